/* Stacks, switching between them, and accesses to memory that is not there (x86-64, Linux). */
#include "grid.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

/* System V ABI: these registers are the callee's to keep. */
asm(R"(
    .text
    .globl emu_switch
    .hidden emu_switch
    .type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emu_switch, . - emu_switch
)");

void *emu_fresh_context(unsigned char *stack_end, void (*entry)(void)) {
    /* As if `entry` had been called: the stack is aligned to 16 before the return address is pushed. */
    void **top = (void **)stack_end;
    *--top = NULL;          /* return address of entry */
    *--top = (void *)entry; /* where emu_switch returns to */
    for (int i = 0; i < 6; i++) {
        *--top = NULL;
    }
    return top;
}

/* ---- memory with guard pages ---- */

enum { PAGE = 4096 };

static unsigned char *map(size_t bytes) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : (unsigned char *)memory;
}

static std::vector<unsigned char *> stacks, windows;
static size_t stacks_made;

unsigned char *emu_take_stack(void) {
    if (!stacks.empty()) {
        unsigned char *end = stacks.back();
        stacks.pop_back();
        return end;
    }
    unsigned char *start = map(EMU_STACK_BYTES);
    if (!start || mprotect(start, PAGE, PROT_NONE) != 0) {
        return NULL;
    }
    /* Not all at the same distance from a page's start: they would compete for the same lines of the cache.
     */
    return start + EMU_STACK_BYTES - stacks_made++ % 61 * 64;
}

void emu_give_stack(unsigned char *stack_end) {
    stacks.push_back(stack_end);
}

unsigned char *emu_take_window(void) {
    if (!windows.empty()) {
        unsigned char *window = windows.back();
        windows.pop_back();
        return window;
    }
    unsigned char *window = map(EMU_SHARED_WINDOW);
    if (!window || mprotect(window + EMU_SHARED_END, EMU_SHARED_WINDOW - EMU_SHARED_END, PROT_NONE) != 0) {
        return NULL;
    }
    return window;
}

void emu_give_window(unsigned char *window) {
    windows.push_back(window);
}

/* ---- faults ---- */

static void (*fault_function)(const void *address, const void *place);
static void (*leave_function)(void);
static struct sigaction earlier[2];
static pthread_t catcher;

static void on_fault(int signal, siginfo_t *info, void *context) {
    ucontext_t *at = (ucontext_t *)context;
    if (!emu_now || !pthread_equal(pthread_self(), catcher)) {
        /* Not ours: as if we had not been there. The instruction runs again and faults again. */
        sigaction(signal, &earlier[signal == SIGBUS], NULL);
        return;
    }
    fault_function(info->si_addr, (void *)at->uc_mcontext.gregs[REG_RIP]);
    /* The fiber does not go on, and its stack may be what is full. */
    static unsigned char *spare;
    spare = spare ? spare : emu_take_stack();
    at->uc_mcontext.gregs[REG_RSP] = (greg_t)(spare - 8); /* as behind a call */
    at->uc_mcontext.gregs[REG_RIP] = (greg_t)leave_function;
}

void emu_catch_faults(void (*fault)(const void *address, const void *place), void (*leave)(void)) {
    fault_function = fault;
    leave_function = leave;
    catcher = pthread_self();
    static thread_local unsigned char *stack;
    enum { SIGNAL_STACK = 256 * 1024 };
    if (!stack) {
        stack = map(SIGNAL_STACK);
        stack_t signal_stack = {};
        signal_stack.ss_sp = stack;
        signal_stack.ss_size = SIGNAL_STACK;
        sigaltstack(&signal_stack, NULL);
    }
    static bool installed;
    if (!installed) {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &earlier[0]);
        sigaction(SIGBUS, &action, &earlier[1]);
        installed = true;
    }
}

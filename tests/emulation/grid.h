/* Running a grid: what the fake runtime hands to the scheduler. */
#ifndef SL_TESTS_EMULATION_GRID_H
#define SL_TESTS_EMULATION_GRID_H

#include "emulation.h"

/* One launch. `call` runs the kernel for the calling fiber, `arguments` are its own copies. */
typedef struct emu_launch {
    dim3 grid, block, cluster;
    uint32_t shared_bytes;
    cudaStream_t stream;
    const void *kernel;
    void (*call)(void *arguments);
    void (*release)(void *arguments);
    void *arguments;
    bool is_cooperative;
    bool is_dependent; /* programmatic dependent launch: threads have to wait for what they read */
} emu_launch;

/* A grid under way; `launch` must live on. Several may be, of which one runs at a time. */
emu_grid *emu_start_grid(const emu_launch *launch);
/* Runs it until it has ended or failed, which frees it, or, if `briefly`, until its threads do nothing but
 * look at memory for a while. Where it failed the report is on standard error. */
enum emu_outcome { EMU_ENDED, EMU_FAILED, EMU_WAITS };
emu_outcome emu_go_on(emu_grid *grid, bool briefly);
void emu_give_up_grid(emu_grid *grid);
/* A count of what its threads did that was more than looking. */
uint64_t emu_progress(const emu_grid *grid);
/* All of it at once. False: it failed. */
bool emu_run_grid(const emu_launch *launch);
/* How many blocks the GPU holds at once. Registers and static shared memory are not counted. */
uint32_t emu_most_resident(const emu_launch *launch);
bool emu_fits_at_once(const emu_launch *launch);

/* runtime.cc: checks the shape, then runs the launch or records it. Takes the arguments. */
cudaError_t emu_launch_configured(const cudaLaunchConfig_t *config, emu_launch *launch);

/* Order of the fibers: 0: as they become ready; other seeds: random. A module may be linked with another one.
 */
extern const uint64_t emu_order_seed;

/* A line of the report of what went wrong. */
void emu_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Function and line of an address in the module, as far as they can be found. */
void emu_report_place(const char *prefix, const void *address);
/* What is known of an address: which allocation, how far off. memory.cc */
void emu_report_address(const void *address);

/* ---- context.cc ---- */

/* Saves where the caller is in *from, and goes on where `to` was saved. */
extern "C" void emu_switch(void **from, void *to);
/* What emu_switch can go to: `entry` on a fresh stack, which must not return. */
void *emu_fresh_context(unsigned char *stack_end, void (*entry)(void));

enum { EMU_STACK_BYTES = 256 * 1024 };
/* The end of a stack with an inaccessible page below it; reused. NULL: no memory. */
unsigned char *emu_take_stack(void);
void emu_give_stack(unsigned char *stack_end);
/* A window of shared memory, EMU_SHARED_WINDOW bytes that can be accessed up to EMU_SHARED_END. */
enum { EMU_SHARED_FIRST = 1024, EMU_SHARED_END = 228 * 1024 };
unsigned char *emu_take_window(void);
void emu_give_window(unsigned char *window);

/* While a fiber runs: an access to memory that is not there calls `fault` with the address, on a stack of its
 * own; when that returns, the fiber goes on in `leave`. */
void emu_catch_faults(void (*fault)(const void *address, const void *place), void (*leave)(void));

#endif

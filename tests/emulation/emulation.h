/* An emulated GPU: what translated device code, the interpreter of inline PTX and the fake CUDA runtime
 * share.
 *
 * A thread of a grid is a fiber with a stack of its own. Fibers run one at a time, on the system thread that
 * launched the kernel; one gives way only where it has to wait (a barrier, a shuffle, a poll). So nothing
 * here needs to be atomic. See README.md. */
#ifndef SL_TESTS_EMULATION_EMULATION_H
#define SL_TESTS_EMULATION_EMULATION_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EMU_WARP = 32,
    EMU_WARPGROUP = 128,
    EMU_NAMED_BARRIERS = 16,
    EMU_DEVICES = 2,
    EMU_PROCESSORS = 6,             /* multiprocessors of the emulated GPU */
    EMU_SHARED_OPTIN = 227 * 1024,  /* most shared memory of a block */
    EMU_SHARED_WINDOW = 256 * 1024, /* address space of a block's shared memory */
};

typedef struct emu_block emu_block;
typedef struct emu_grid emu_grid;

/* What device code may ask about the thread that runs. The scheduler's part of a thread lies behind it. */
typedef struct emu_thread {
    uint3 thread_index; /* threadIdx */
    uint32_t index;     /* in the block */
    uint32_t lane, warp;
    emu_block *block;
    bool waited_for_inputs; /* griddepcontrol.wait */
    /* The interpreter's, e.g. a pointer to its lists of copies; zero when the thread starts. */
    void *interpreter;
} emu_thread;

/* What device code may ask about the block. */
struct emu_block {
    uint3 block_index;                     /* blockIdx */
    dim3 block_dim, grid_dim, cluster_dim; /* blockDim, gridDim */
    uint32_t cluster_rank, cluster_blocks;
    uint32_t threads;
    uint32_t running;      /* threads that have not returned from the kernel */
    unsigned char *shared; /* the window: static variables from its start, dynamic memory at its end */
    unsigned char *dynamic_shared;
    uint32_t dynamic_bytes;
    emu_block **cluster; /* [cluster_blocks]: by rank */
    /* The interpreter's, e.g. what it knows of the block's mbarriers; zero when the block starts. */
    void *interpreter;
};

/* The thread that runs. Device code only. */
extern emu_thread *emu_now __attribute__((visibility("hidden")));

static inline emu_thread *emu_self(void) {
    return emu_now;
}

/* ---- inline PTX (ptx.cc) ---- */

/* An operand of an asm statement. at: the variable of an output, a temporary with the value of an input ("n"
 * too). constraint as in the source: "=r" "+f" "l" "n" ...; bytes: of what `at` points to. */
typedef struct emu_operand {
    const char *constraint;
    void *at;
    uint32_t bytes;
} emu_operand;

/* One asm statement, by one thread. Operands: outputs, then inputs, as %0, %1, ... count them. `text` is the
 * same pointer each time a statement runs: what was parsed can be kept by it. */
void emu_asm(const char *text, emu_operand *operands, int outs, int ins);
/* The scheduler calls these so that the interpreter can free what it keeps, and complain about what is
 * pending. */
void emu_asm_thread_ends(emu_thread *thread);
void emu_asm_block_ends(emu_block *block);

/* ---- waiting ---- */

/* Lanes of a warp (mask of lanes), or an aligned warpgroup of four warps. */
typedef enum emu_group_kind { EMU_LANES, EMU_GROUP_OF_WARPS } emu_group_kind;
typedef struct emu_group {
    emu_group_kind kind;
    uint32_t mask; /* EMU_LANES */
} emu_group;

/* All threads of the group meet; each leaves `bytes` at `mine`. Returns all that was left, [32 or 128][bytes]
 * by lane (or by index in the warpgroup), valid until the calling thread meets the same group again. Threads
 * that do not exist, have ended or are not in the mask left zeros. `what`: the instruction, for reports;
 * threads that meet with different `what` or `bytes` are an error. `what` must be a literal or otherwise live
 * on. */
const void *emu_gather(emu_group group, const void *mine, uint32_t bytes, const char *what);

/* Waits until ready(context) is true; it is called often, by whoever runs, and must have no effects. */
void emu_yield_until(bool (*ready)(void *), void *context, const char *what);
/* Lets the others go on first: in everything that a loop may use to wait for another thread. */
void emu_pause(const char *what);
/* In atomic operations: lets the others go on now and then. */
void emu_atomic(const char *what);
/* The lanes of the warp that have not ended. */
uint32_t emu_alive_lanes(void);

/* bar.sync (wait) and bar.arrive. threads: how many arrive in all, 0 for all of the block. */
void emu_named_barrier(int id, uint32_t threads, bool wait);
/* A barrier of all of the block; how many of its threads said yes. */
uint32_t emu_block_count(bool yes);
/* barrier.cluster.arrive and .wait. */
void emu_cluster_arrive(void);
void emu_cluster_wait(void);
/* griddepcontrol.launch_dependents. */
void emu_let_next_begin(void);

/* The devices' clock, in nanoseconds: where all wait for somebody who does not come, it hurries. runtime.cc
 */
uint64_t emu_time(void);

/* ---- memory ---- */

/* The 32-bit window of shared memory. Bits 24 and above: 1 + rank of the block in its cluster; below: the
 * offset in the block's window. Addresses outside any window of the cluster are errors (emu_fail). */
uint32_t emu_shared_address(const void *pointer);
void *emu_shared_pointer(uint32_t address);
/* A variable of the block, the same one each time for one key. */
void *emu_shared_variable(const void *key, size_t bytes, size_t alignment);

/* What a CUtensorMap holds here, made by the fake cuTensorMapEncodeTiled: its arguments, innermost dimension
 * first. */
typedef struct emu_tensor_map {
    uint32_t magic; /* EMU_TENSOR_MAP */
    uint8_t type, rank, interleave, swizzle, promotion,
        fill; /* CUtensorMapDataType, ...: the driver's enums */
    uint16_t box[5];
    uint64_t address;
    uint64_t size[5];
    uint64_t stride[4]; /* bytes, of dimension 1 and on */
    uint8_t step[5];    /* element strides */
} emu_tensor_map;
enum { EMU_TENSOR_MAP = 0x70616d74 };
/* Of an element of the tensor; 0: a type that is not known here. tensor_map.cc */
uint32_t emu_element_bytes(const emu_tensor_map &map);

/* ---- errors ---- */

/* Ends the launch with an error; says kernel, block and thread, then the formatted message. Does not return
 * when called by device code. */
[[noreturn]] void emu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

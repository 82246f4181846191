/* What the interpreter keeps of threads, blocks and barriers between statements: all that has begun and is
 * not done yet. */
#ifndef SL_TESTS_EMULATION_PTX_STATE_H
#define SL_TESTS_EMULATION_PTX_STATE_H

#include "ptx.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>

/* ---- copies ---- */

/* Copies carry out as late as the instructions allow: at a wait. Until then what they will write is 0xff, so
 * that who reads too early does not find what it hopes for. */
enum { PTX_POISON = 0xff };

/* cp.async: `bytes` at `to`, of which the first `valid` come from `from` and the others are zero. */
struct ptx_copy {
    unsigned char *to;
    const unsigned char *from;
    uint32_t bytes, valid;
    uint64_t group; /* commit_groups before it */
};

/* A bulk copy from shared to global memory. */
struct ptx_bulk_store {
    std::function<void()> carry_out;
    uint64_t group;
};

/* ---- barriers ---- */

/* An mbarrier. Its eight bytes in shared memory hold `mirror`, so that a barrier which somebody overwrote is
 * found. Every phase ends when no arrival is pending and the bytes of copies balance. */
struct ptx_barrier {
    uint32_t expected, pending;
    int64_t bytes; /* expected and not there yet; fewer than none: there and not expected yet */
    uint32_t phase;
    uint64_t mirror;
    /* What will arrive on it, in order; it does when somebody waits. */
    std::deque<std::function<void(ptx_barrier &)>> coming;
};

/* The barrier that operand [..] names, or an error. */
ptx_barrier &ptx_barrier_at(unsigned char *at, const ptx_instruction &instruction);
void ptx_barrier_arrive(ptx_barrier &barrier, uint32_t count, const ptx_instruction &instruction);
void ptx_barrier_bytes(ptx_barrier &barrier, int64_t bytes, const ptx_instruction &instruction);

/* ---- warpgroups (ptx_wgmma.cc) ---- */

struct ptx_warpgroup;
struct ptx_warpgroup_delete {
    void operator()(ptx_warpgroup *warpgroup) const;
};

/* ---- what copies and products see of shared memory (ptx_proxy.cc) ---- */

struct ptx_async_view;
struct ptx_async_view_delete {
    void operator()(ptx_async_view *view) const;
};
/* fence.proxy.async by the thread that runs. */
void ptx_proxy_fence(void);
/* A bulk copy (or the poison before it) wrote these bytes of the window. */
void ptx_proxy_brought(uint32_t address, uint32_t bytes);
/* A copy or a product reads bytes of the block's own shared memory: fails where threads wrote them without a
 * fence. */
void ptx_proxy_read(uint32_t offset, uint32_t bytes, const ptx_instruction &instruction);

/* ---- threads and blocks ---- */

struct ptx_thread {
    std::vector<ptx_copy> copies;
    uint64_t copy_groups; /* committed */
    std::vector<ptx_bulk_store> stores;
    uint64_t store_groups;
    uint64_t products, product_groups; /* wgmma: issued, committed */
    uint64_t matrix_products;          /* mma */
    bool fenced;                       /* since the registers of products may have been used */
};

/* The product that a warp's lanes are at, of 16 rows and 8 columns: one computes it for all. */
struct ptx_warp {
    uint64_t matrix_products;
    float sums[16 * 8];
};

struct ptx_block {
    std::vector<ptx_warp> warps;
    std::vector<std::unique_ptr<ptx_thread>> threads;
    std::map<unsigned char *, ptx_barrier> barriers; /* by address */
    std::vector<std::unique_ptr<ptx_warpgroup, ptx_warpgroup_delete>> warpgroups;
    std::unique_ptr<ptx_async_view, ptx_async_view_delete> async_view;
};

/* Of the thread that runs, and of any block; made when first asked for. */
ptx_thread *ptx_thread_now(void);
ptx_block *ptx_block_of(emu_block *block);

#endif

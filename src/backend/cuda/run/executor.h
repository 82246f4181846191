/* The executor from the inside: what the files of run/ that make it and run it share.
 *
 * A step is one copy of the step block's used bytes, one graph launch (or the same launches eagerly), copies
 * of the outputs to pinned memory, and an event. Kernels copy the block in front of a graph and the tokens
 * behind it (step_copies.cu), the copy engine does the rest. Small buckets are captured at start-up, the
 * others when they are first needed. In the first step of a captured bucket both ways run, from the same
 * caches, and what they leave in the workspace (logits and tokens among it) must be the same bits; a step can
 * be run twice because it reads and writes different state slots, writes the same keys and values again, and
 * the last tokens are put back in between.
 *
 * A program whose ops lie in several sections (SL_OP_TRANSFER) has a graph for each. What a section reads was
 * written in front of it, and it may write over that: a section behind the first runs once, without
 * comparison.
 *
 * A rank that was joined with others (join.c) runs each step once, as they do: its replays are not compared.
 *
 * A step whose masks come later is two parts. What comes before its sampling is captured, compared and
 * replayed like a bucket of its own, the bucket's *front*, when it is first needed. The rest, a launch or
 * two, follows eagerly behind the copy of the masks. */
#ifndef SL_BACKEND_CUDA_RUN_EXECUTOR_H
#define SL_BACKEND_CUDA_RUN_EXECUTOR_H

#include "backend/cuda/exchange/exchange.h"
#include "backend/cuda/run/copies.h"
#include "backend/cuda/run/run.h"
#include "base/arena.h"

typedef enum sl_cuda_bucket_state {
    SL_CUDA_BUCKET_NEW,      /* to be captured when it is needed */
    SL_CUDA_BUCKET_CAPTURED, /* to be compared with eager in its first step */
    SL_CUDA_BUCKET_REPLAYED,
    SL_CUDA_BUCKET_EAGER,
} sl_cuda_bucket_state;

typedef struct sl_cuda_bucket {
    sl_cuda_op *ops;
    int32_t op_count;
    cudaGraphExec_t graph;
    sl_cuda_bucket_state state;
    int32_t index;                     /* of the bucket */
    const sl_cuda_fetch *first_copies; /* of the first FETCH of a whole set; NULL: there is none */
    sl_cuda_fetch *last_copies;        /* of the last one */
    bool is_later; /* a section behind the first: it cannot run twice, so that its replay is not compared */
} sl_cuda_bucket;

/* Besides the pools, in device memory. */
typedef struct sl_cuda_control {
    unsigned long long replayed, eager; /* digests of the workspace */
    int32_t last_tokens[];              /* [slot]: as they were before the step */
} sl_cuda_control;

/* What a step in flight has in pinned memory. */
typedef struct sl_cuda_stage {
    unsigned char *block;
    float *logits;
    int32_t *tokens;
    cudaEvent_t finished;
} sl_cuda_stage;

struct sl_executor {
    sl_cuda_device device;
    const sl_cuda_facts *facts;
    const sl_deployment *deployment;
    sl_arena arena;
    bool no_graphs, sleeps;              /* as in sl_backend_options */
    unsigned char *pools[SL_POOL_COUNT]; /* on the device, or pinned (sl_cuda_is_pinned) */
    unsigned char *block;                /* the device's copy of the step block */
    sl_cuda_control *control;
    uint32_t *arrivals;
    sl_cuda_exchange *exchange;  /* on the device */
    sl_cuda_meeting *meeting;    /* pinned */
    bool joined;                 /* with other ranks */
    cudaEvent_t sent;            /* all that this one sent to other devices; NULL: it was not linked */
    unsigned long long *digests; /* pinned: replayed, eager */
    sl_cuda_stage stages[SL_CUDA_STAGES];
    int32_t next, in_flight;  /* the stage to fill; how many before it are not waited for */
    uint64_t *weight_offsets; /* per weight use */
    sl_cuda_bucket *buckets;  /* [bucket_count], then the front of each */
    sl_cuda_bucket *sections; /* [bucket_count][section_count]; NULL: there is one, the bucket */
    int32_t section_count;
    int32_t next_section; /* of the step submitted last; 0: it has no other */
    sl_cuda_context context;
    sl_cuda_copies copies;
    unsigned long long *expert_counts; /* pinned, [fetch sets][SL_CUDA_EXPERT_COUNTS] */
    sl_fetch_count *fetches;           /* [fetch sets] */
    sl_kernel_count *counts;
    int32_t count_count;
    int32_t last_bucket;  /* that was submitted */
    bool waits_for_masks; /* the step submitted last */
    uint64_t steps, eager_steps, replayed_steps, captured, failed;
};

static inline bool sl_cuda_is_pinned(int pool) {
    return pool == SL_POOL_STAGING || pool == SL_POOL_HOST_WEIGHTS;
}

static inline sl_cuda_bucket *sl_cuda_front_of(const sl_executor *executor, int32_t index) {
    return &executor->buckets[executor->deployment->bucket_count + index];
}

static inline sl_cuda_bucket *sl_cuda_section_of(const sl_executor *executor, int32_t index,
                                                 int32_t section) {
    return executor->sections ? &executor->sections[index * executor->section_count + section]
                              : &executor->buckets[index];
}

/* pools.c: memory of the executor, and the context that kernels are given; and the same for ops of the tail.
 */
int sl_cuda_make_pools(sl_executor *executor, sl_error *error);
int sl_cuda_make_context(sl_executor *executor, sl_error *error);
sl_cuda_context sl_cuda_tail_context(const sl_executor *executor);
/* The stream and events of copies to buffers, of an executor that has fetch sets. Ended also when made in
 * part. */
int sl_cuda_make_copies(sl_executor *executor, sl_error *error);
void sl_cuda_end_copies(sl_cuda_copies *copies);
int sl_cuda_pin(sl_executor *executor, uint64_t bytes, void **memory, sl_error *error);
void sl_cuda_unpin(sl_executor *executor, void *memory);
int sl_cuda_read_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                      sl_error *error);
int sl_cuda_write_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, const void *data,
                       uint64_t bytes, sl_error *error);
/* slots.c: the experts that are to be in slots at first, when the weights are there. */
int sl_cuda_fill_slots(sl_executor *executor, sl_error *error);
/* resolve.c: op lists with every pointer filled in. */
int sl_cuda_resolve_buckets(sl_executor *executor, sl_error *error);
/* capture.c: a bucket's launches, one by one or as a graph. */
int sl_cuda_run_eagerly(sl_executor *executor, const sl_cuda_bucket *bucket, sl_error *error);
int sl_cuda_run_bucket(sl_executor *executor, sl_cuda_bucket *bucket, sl_error *error);
/* On failure the bucket is eager from now on. */
void sl_cuda_capture(sl_executor *executor, sl_cuda_bucket *bucket);
int sl_cuda_digest_workspace(sl_executor *executor, unsigned long long *result, sl_error *error);
/* step.c */
/* The used bytes of the stage's block, to the device. A graph begins when the kernel in front of it has
 * ended; the first launches of an eager run may begin earlier, and read the block before they wait for
 * anything, so that no kernel can bring it there. */
int sl_cuda_bring_block(sl_executor *executor, const sl_cuda_stage *stage, bool before_graph,
                        sl_error *error);
/* Remembers the error: nothing that comes after it can be trusted. */
int sl_cuda_fault(sl_executor *executor, const sl_error *why, sl_error *error);
int sl_cuda_check_fault(const sl_executor *executor, sl_error *error);
void *sl_cuda_step_block(sl_executor *executor);
int sl_cuda_submit(sl_executor *executor, int32_t index, sl_error *error);
int sl_cuda_proceed(sl_executor *executor, sl_error *error);
/* The masks of the step submitted last, and the rest of it. */
int sl_cuda_resume(sl_executor *executor, sl_error *error);
int sl_cuda_wait(sl_executor *executor, sl_error *error);
/* cross.c: see sl_backend_functions */
int sl_cuda_link(sl_executor *from, sl_executor *to, bool *reaches, sl_error *error);
int sl_cuda_send(sl_executor *from, const sl_executor *to, const sl_crossing *crossing, sl_error *error);
int sl_cuda_receive(sl_executor *to, const sl_executor *from, const sl_crossing *crossing, sl_error *error);
/* Sets the device `from`, and lets it reach the other's memory where it can. */
int sl_cuda_reach(int from, int to, bool *reaches, sl_error *error);
/* join.c */
int sl_cuda_join(sl_executor *const *ranks, int32_t count, sl_error *error);
void sl_cuda_leave(sl_executor *const *ranks, int32_t count);
/* Whether the exchanges of a rank that was joined are nothing, and those of the others are not waited for.
 * While no step runs; waits for the device. */
int sl_cuda_set_alone(sl_executor *executor, bool alone, sl_error *error);
const float *sl_cuda_logits(sl_executor *executor);
const int32_t *sl_cuda_tokens(sl_executor *executor);

#endif

/* What a backend is to the rest: a list of kernels to choose from, and an executor that owns the pools and
 * runs buckets of a plan. src/plan decides everything (which kernel, where each value lies, how much of what)
 * and writes it into an sl_deployment; a backend only carries it out. This header, and kernel_list.h for
 * readers of the table, is all that the CUDA module, loaded at run time, shares with the library. */
#ifndef SL_BACKEND_BACKEND_H
#define SL_BACKEND_BACKEND_H

#include "base/cpu.h"
#include "base/error.h"
#include "program/program.h"
#include "program/step.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_BACKEND_ABI = 32 }; /* raised with every change of this header or those it includes */

typedef struct sl_backend sl_backend;
typedef struct sl_executor sl_executor;
typedef struct sl_kernel sl_kernel;

/* What products of prompts are computed with, where there is a choice. */
typedef enum sl_precision {
    SL_PRECISION_AUTO, /* as the backend thinks best */
    SL_PRECISION_BF16,
    SL_PRECISION_INT8, /* int8 with a scale for 256 columns */
    SL_PRECISION_FP8,  /* E4M3 with a scale for 128 columns */
    SL_PRECISION_COUNT
} sl_precision;
#define SL_PRECISION_BIT(ID) (1u << SL_PRECISION_##ID)

/* ---- kernels
 * -------------------------------------------------------------------------------------------------------- */

/* What a kernel is asked to do when the plan looks for one. */
typedef struct sl_kernel_query {
    const sl_backend *backend;
    const sl_program *program;
    const sl_value *values; /* of the lowered list */
    const sl_op *op;        /* a LINEAR's segments all have one weight type here */
    const int32_t *rows;    /* [SL_ROWS_COUNT], of the bucket */
    int32_t span_rows;      /* of the bucket */
    const sl_limits *limits;
    sl_qtype cache_type; /* of the op's cache group, for CACHE_WRITE, RECALL, ATTENTION and COMPACT */
} sl_kernel_query;

/* One way to compute one kind of op. A backend embeds this as the first member of its own row, beside the
 * function to call. Rows of one numeric class give the same bits; a plan takes one class per op in every
 * bucket unless told otherwise. */
struct sl_kernel {
    const char *name; /* "linear/q4_k/avx512", shown by `explain` and counted under this name */
    sl_op_kind op;
    const char *numeric_class;
    sl_value_type
        activation;  /* LINEAR: the format of x it reads; the plan inserts a QUANTIZE when it is not F32 */
    float tolerance; /* against the plain kernel: largest |difference| over the root mean square of the plain
                        result */
    float rounding;  /* of weights, which the plain kernel does too: further from the definition by so much */
    bool batched;    /* handles many rows in one pass over the weights or keys */
    bool on_request; /* taken only where a plan's options name it */
    bool copies;     /* reads a second copy of weights that other kernels have in another layout: taken only
                        where the plan has room for such copies, or names it */
    bool deterministic;  /* taken only by deterministic plans */
    bool cut_dependent;  /* the bits depend on where a sequence was cut into steps, though on no other row; a
                            deterministic plan declines it */
    unsigned precisions; /* SL_PRECISION_BIT: taken only where the options' prompt_precision is one of these;
                            0: whatever it is */
    /* NULL when it can do it, else why not, as the end of "<name>: ..."; a static string. */
    const char *(*declines)(const sl_kernel *kernel, const sl_kernel_query *query);
    /* The weight layout it reads: bytes of a packed copy, and the packing of rows [first, first + count) of
     * every expert's matrix. NULL: it reads the file's own bytes. Kernels with the same pack function share
     * one copy. */
    uint64_t (*packed_bytes)(const sl_weight *weight);
    void (*pack)(const sl_weight *weight, void *packed, int32_t first, int32_t count);
    bool
        takes_unpacked; /* it can read the file's own bytes as well, with the same bits, and is slower then */
    /* Scratch it needs for a query, in bytes; NULL: none. */
    uint64_t (*workspace)(const sl_kernel *kernel, const sl_kernel_query *query);
};

/* ---- fusions
 * -------------------------------------------------------------------------------------------------------- */

enum { SL_FUSED_OPS = 8 };

/* What a fusion is asked when the plan finds ops of its kinds one after the other. */
typedef struct sl_fusion_query {
    const sl_backend *backend;
    const sl_program *program;
    const sl_value *values;          /* of the lowered list */
    const sl_op *ops;                /* [count] */
    const sl_kernel *const *kernels; /* [count]: chosen for the ops, and not run if this is taken */
    const bool (
        *unread)[SL_OP_OUTPUTS]; /* [count]: nobody behind the run reads what that output holds then */
    const int32_t *rows;         /* [SL_ROWS_COUNT], of the bucket */
    const sl_limits *limits;
    sl_qtype cache_type;
} sl_fusion_query;

/* One function for a run of ops: it leaves the bits that the ops' own kernels would leave one after the
 * other, unless it has a numeric class of its own. It need not write what nobody reads behind the run. No
 * value that the run writes overlaps another that it touches. A backend embeds this as the first member of
 * its own row. */
typedef struct sl_fusion sl_fusion;
struct sl_fusion {
    const char *name; /* "rmsnorm+quantize/cuda" */
    /* NULL: the ops' own. Another class is cut_dependent, as kernels may be, and for the buckets that the
     * fusion takes: a plan in which all buckets have one class declines it. */
    const char *numeric_class;
    int32_t count;
    sl_op_kind ops[SL_FUSED_OPS]; /* [count], in order */
    /* NULL when it can do it, else why not; a static string. */
    const char *(*declines)(const sl_fusion *fusion, const sl_fusion_query *query);
    /* Scratch for the run, in bytes, beside what the ops' kernels have; NULL: none. Its first op's kernel has
     * none then. */
    uint64_t (*workspace)(const sl_fusion *fusion, const sl_fusion_query *query);
};

/* ---- what a plan hands over
 * ----------------------------------------------------------------------------------------- */

/* One bucket: the op list for up to `rows[]` rows. Values are the program's followed by those that lowering
 * added. */
typedef struct sl_lowered {
    int32_t rows[SL_ROWS_COUNT];
    int32_t span_rows;                /* of one sequence in a step, at most: all of them, or 1 */
    bool compacts;                    /* for steps whose only sequence is compacted, and for no others */
    int32_t tail_rows[SL_ROWS_COUNT]; /* what ops of the tail take for `rows` (sl_op_is_tail) */
    int32_t tail_span_rows;
    sl_value *values;
    uint64_t *value_offsets; /* of each value in the workspace pool; UINT64_MAX for a value that no op of this
                                bucket uses */
    int32_t value_count;
    sl_op *ops;
    const sl_kernel **kernels;     /* per op */
    uint64_t *scratch_offsets;     /* per op, in the workspace pool */
    const sl_fusion **fusions;     /* per op: what does it and the next in one; NULL: its kernel, unless a run
                                      that began before it covers it */
    bool (*unread)[SL_OP_OUTPUTS]; /* per op in a run, see sl_fusion_query; false elsewhere */
    int32_t op_count;
} sl_lowered;

/* The rows that an op may have at most. */
static inline const int32_t *sl_rows_of_op(const sl_lowered *lowered, const sl_op *op) {
    return sl_op_is_tail(lowered->values, op) ? lowered->tail_rows : lowered->rows;
}

static inline int32_t sl_span_rows_of_op(const sl_lowered *lowered, const sl_op *op) {
    return sl_op_is_tail(lowered->values, op) ? lowered->tail_span_rows : lowered->span_rows;
}

/* A weight in one layout. */
typedef struct sl_weight_use {
    int32_t weight;
    const sl_kernel *layout; /* whose pack function; NULL: as in the file */
    uint64_t bytes;
    /* In SL_POOL_HOST_WEIGHTS instead of SL_POOL_WEIGHTS: of a fetch set, whose FETCH brings it. */
    bool on_host;
    int32_t set;
    uint64_t in_buffer; /* where it lies in a buffer */
    uint64_t slots;     /* in SL_POOL_FETCHED, of experts: an expert's bytes for each slot */
} sl_weight_use;

/* ---- weights in host memory
 * ------------------------------------------------------------------------------------------------------
 * The weights of a layer's experts, or of all LINEARs of a layer without experts, are a *fetch set*. In front
 * of the ops that read them stands a FETCH. It brings all of the set to one of two buffers, while the ops of
 * the set before compute from the other. Of experts only buckets of many rows do so: those of few rows get
 * the experts that were chosen, to slots where they stay until their slot is needed. Buckets in between get
 * the chosen ones to the first buffer, from their slots or from host memory, and those from host memory go to
 * slots as well, as far as there are any on probation that the step does not use. SL_POOL_FETCHED holds the
 * buffers, then each set's slots, then each set's table; a set without experts has neither. */

/* Beginning of a table; behind it lie, in this order, of 8 bytes chosen[experts]: rows that have chosen it,
 * whichever way it came; of 4 bytes each, slot_of[experts] (SL_NONE: in none), expert_of[slots] (SL_NONE:
 * empty), is_protected[slots], and of the last step what is to be copied: expert[experts] and slot[experts];
 * then, of 8 bytes, used_at[slots]. Where `clock` is 0 what is behind `chosen` is not there yet. The first
 * time an expert is used its slot is on probation, from the second time on protected, and of protected ones
 * at most three quarters of all slots. Who must go: the one on probation that has not been used for longest,
 * and if there is none the protected one. Of equals the lower slot. An expert on its way to the buffer puts
 * out no protected one: then there may be fewer slots than missing experts, and those that most rows chose
 * get them. */
typedef struct sl_slot_table {
    uint64_t clock; /* FETCHes of chosen experts with rows so far, and at first the slots filled at start */
    uint64_t hits, misses, promotions; /* the last: from probation to protected */
    /* In the last step: experts from host memory, whose `slot` is that which they get (SL_NONE: none), and
     * behind them in the list those that go from their slot to the buffer. */
    int32_t brought, copied;
} sl_slot_table;

enum { SL_FETCH_ALIGNMENT = 256, SL_FETCH_BUFFERS = 2 };

static inline int32_t sl_most_protected(int32_t slots) {
    return slots - slots / 4;
}

static inline uint64_t sl_slot_table_bytes(int32_t experts, int32_t slots) {
    const uint64_t numbers = 3 * (uint64_t)experts + 2 * (uint64_t)slots, even = numbers + (numbers & 1);
    return sizeof(sl_slot_table) + 8 * (uint64_t)experts + 4 * even + 8 * (uint64_t)slots;
}

typedef struct sl_fetch_set {
    int32_t layer;   /* of the model */
    int32_t experts; /* whose weights these are; 0: a layer's without experts */
    uint64_t bytes;  /* of all of it */
    uint64_t table;  /* in SL_POOL_FETCHED, of experts */
} sl_fetch_set;

typedef struct sl_cache_layout {
    sl_qtype type;                           /* see sl_qtype_is_cache */
    int32_t pages;                           /* in the pool */
    uint64_t page_bytes;                     /* all layers of the group, see sl_cache_group */
    uint64_t row_key_bytes, row_value_bytes; /* one head's key and value; 0: part of its key */
    uint64_t layer_bytes;                    /* of one layer within a page */
} sl_cache_layout;

/* The pools of a deployment. */
typedef enum sl_pool_kind {
    SL_POOL_WEIGHTS,   /* packed or uploaded copies; mapped files are not counted */
    SL_POOL_CACHE,     /* pages of all groups, group after group */
    SL_POOL_STATE,     /* state slots */
    SL_POOL_WORKSPACE, /* values and kernels' scratch */
    SL_POOL_TABLES,  /* page tables [group][sl_table_rows][sl_table_width], last tokens [slot], work lists */
    SL_POOL_STAGING, /* the step block and, on a device, host copies of outputs */
    SL_POOL_OBSERVATIONS, /* what OBSERVE adds up, all 0 at first; empty unless the plan observes */
    SL_POOL_FETCHED,  /* on a device: buffers and slots of what FETCH brings, and tables, which begin as 0 */
    SL_POOL_EXCHANGE, /* on a device: what other devices leave for it. Of a program with ranks what the ranks
                         leave for each other, of a part what parts in front send; begins as 0 */
    SL_POOL_HOST_WEIGHTS, /* in host memory beside a device: what FETCH brings */
    SL_POOL_COUNT
} sl_pool_kind;

/* A value that a part computed, on its way to a part on another device. */
typedef struct sl_crossing {
    uint64_t from, place, to; /* in the source's workspace / the target's SL_POOL_EXCHANGE, its workspace */
    uint64_t bytes;
} sl_crossing;

/* SL_POOL_EXCHANGE of each rank: SL_EXCHANGE_FLAGS bytes, and behind them [SL_EXCHANGE_TURNS][ranks] of
 * sl_deployment.exchange_bytes. Small is what goes to all other ranks in SL_EXCHANGE_SMALL bytes. */
enum { SL_EXCHANGE_TURNS = 2, SL_EXCHANGE_FLAGS = 65536, SL_EXCHANGE_SMALL = 262144 };

/* Bytes of an ALL_REDUCE's or ALL_GATHER's x, in whole groups of four elements. */
static inline uint64_t sl_exchange_x_bytes(int32_t rows, int32_t width) {
    return (uint64_t)rows * (((uint64_t)width + 3) / 4) * 16;
}

static inline bool sl_exchange_is_small(int32_t ranks, uint64_t x_bytes) {
    return x_bytes * (uint64_t)(ranks > 2 ? ranks - 1 : 1) <= SL_EXCHANGE_SMALL;
}

/* What it needs of exchange_bytes: what is small is sent with marks, and lies apart from what is not. */
static inline uint64_t sl_exchange_need(int32_t ranks, uint64_t x_bytes) {
    return sl_exchange_is_small(ranks, x_bytes) ? 2 * x_bytes : 2 * SL_EXCHANGE_SMALL + x_bytes;
}

/* Borrowed by an executor for its whole life. */
typedef struct sl_deployment {
    const sl_program *program;
    sl_limits limits;
    sl_step_layout step;
    sl_cache_layout caches[SL_CACHE_GROUPS];
    uint64_t cache_offsets[SL_CACHE_GROUPS]; /* of each group's first page in the cache pool */
    int32_t state_slots;
    /* The first draft_buckets run the program's draft ops, with an output for each row; the others run the
     * rest. Both rise by rows, but for one that compacts. */
    sl_lowered *buckets;
    int32_t bucket_count, draft_buckets;
    sl_weight_use *weights;
    int32_t weight_count;
    uint64_t pool_bytes[SL_POOL_COUNT];
    /* Per weight: where in that pool its sums of squares lie, double [experts][columns], and behind them the
     * rows added up, double [experts]. UINT64_MAX: no LINEAR reads it. NULL: the plan does not observe. */
    const uint64_t *observations;
    const sl_fetch_set *fetch_sets;
    int32_t fetch_set_count;
    int32_t expert_slots;  /* of each set */
    uint64_t buffer_bytes; /* of each of the two, of a single set without experts the only one; 0: all
                              buckets bring chosen experts to slots */
    /* [fetch sets][expert_slots]: the experts that are in slots before the first step, most wanted first,
     * SL_NONE behind the last. NULL: all slots are empty then. */
    const int32_t *first_experts;
    /* Of a program with ranks: the most that sl_exchange_need says of an ALL_REDUCE or ALL_GATHER. */
    uint64_t exchange_bytes;
    /* Values of the program: the rows that the caller reads, [outputs][result_width] F32, and the sampled
     * tokens, SL_NONE where none are sampled. */
    int32_t result, result_width, tokens;
} sl_deployment;

/* Called during loading with 0 <= done <= total bytes; returns false to stop (SL_ERR_CANCELLED). */
typedef struct sl_progress {
    bool (*report)(void *context, uint64_t done, uint64_t total);
    void *context;
} sl_progress;

/* Since the executor was made. A test of batching reads the kernels' counts; a steady step leaves allocations
 * and synchronisations as they were. */
typedef struct sl_kernel_count {
    const sl_kernel *kernel;
    uint64_t calls, rows; /* rows handled, over all calls */
} sl_kernel_count;

/* Of weights in host memory, in a layer: see sl_counters. */
typedef struct sl_fetch_count {
    int32_t layer;
    uint64_t hits, misses, promotions, streamed_bytes, fetched_bytes;
} sl_fetch_count;

typedef struct sl_counters {
    uint64_t steps, eager_steps, replayed_steps;
    uint64_t device_allocations;
    uint64_t synchronisations; /* inside steps; the wait for a step's outputs is not one */
    uint64_t captured_buckets, failed_captures;
    const sl_kernel_count *kernels; /* one per kernel that a bucket uses; borrowed, live */
    int32_t kernel_count;
    /* Of weights in host memory: chosen experts that were in their slots or not, slots that became protected,
     * and bytes over the bus, of whole sets and of missing experts. A step that runs twice counts twice.
     * One for each fetch set, as of this call; borrowed. */
    const sl_fetch_count *fetches;
    int32_t fetch_count;
} sl_counters;

/* What a choice between devices weighs, in seconds; 0: not known. */
typedef struct sl_speeds {
    sl_rates rates;
    double bus_bytes;      /* in a second, from pinned host memory to the device */
    double border_seconds; /* from a small copy's call until who waits for it goes on */
} sl_speeds;

/* Where the time of a step goes. */
typedef struct sl_profile {
    const int32_t *groups; /* [op_count of the bucket]: whose sum an op's time belongs to */
    int32_t group_count;
    double *seconds;     /* [group_count], filled in: all of a group's ops, one after the other */
    double step_seconds; /* of the whole list as a step runs it */
    sl_rates rates;      /* measured beside it */
} sl_profile;

/* ---- the backend
 * ---------------------------------------------------------------------------------------------------- */

typedef struct sl_backend_options {
    int32_t device;     /* of several GPUs */
    int32_t threads;    /* CPU; 0: one for each core */
    sl_isa isa;         /* CPU: the best tier allowed */
    bool no_graphs;     /* CUDA: run eagerly */
    bool sleeps;        /* CUDA: who waits for a step sleeps: others need the processors meanwhile */
    bool deterministic; /* CUDA: one numeric class per op; the CPU always has it */
    bool no_fusion;     /* every op by its own kernel */
    bool no_repack;     /* CPU: no packed copies; weights are read where they are mapped */
    sl_precision prompt_precision; /* see sl_kernel.precisions */
} sl_backend_options;

typedef struct sl_backend_functions {
    /* All kernels, the preferred first; the plan takes the first that does not decline. */
    const sl_kernel *const *(*kernels)(const sl_backend *backend, int32_t *count);
    /* All fusions, the preferred first; NULL: there are none. */
    const sl_fusion *const *(*fusions)(const sl_backend *backend, int32_t *count);
    /* Makes the pools, loads and packs the weights (with progress; may be NULL), captures what it captures at
     * start-up. On failure nothing is left allocated. Calls that take the executor come one at a time, and
     * each may come from another thread. */
    int (*deploy)(sl_backend *backend, const sl_deployment *deployment, const sl_progress *progress,
                  sl_executor **executor, sl_error *error);
    void (*destroy_executor)(sl_executor *executor);
    /* The block to fill for the next step: host memory, laid out as deployment->step. It may be filled until
     * submit, and read until the step was waited for. */
    void *(*step_block)(sl_executor *executor);
    /* Starts the step in the block on the bucket with that index, behind those that were started before it,
     * of which at most backend->steps_in_flight are not waited for. Allocates nothing. */
    int (*submit)(sl_executor *executor, int32_t bucket, sl_error *error);
    /* Of a program whose ops lie in several sections submit runs the first, and each call of this the next,
     * when what it takes over was written. Between them pools may be read and written. The step is done with
     * the last one; it is waited for then. Allocates nothing. NULL: deployments have one section. */
    int (*proceed)(sl_executor *executor, sl_error *error);
    /* Makes the executors of all ranks of a program a group, in the order of the ranks: from then on their
     * ALL_REDUCEs and ALL_GATHERs meet, and a step is submitted to all of them, with equal blocks. All are
     * this backend's, each on a device of its own. Once, before the first step; on failure they can only be
     * destroyed. They are destroyed when no step is in flight, or when they have left. A profile of one is
     * without the others. Where a rank does not come, the others fail after a while (SL_ERR_DEVICE).
     * SL_ERR_UNSUPPORTED names devices that cannot reach each other. NULL: there are no groups. */
    int (*join)(sl_executor *const *ranks, int32_t count, sl_error *error);
    /* Of joined ranks, one of which may have failed: none waits for another any more, what is in flight ends,
     * its results are nothing, and this returns when no device has anything left to do. Nothing is submitted
     * then. NULL: submit returns when the step has ended. */
    void (*leave)(sl_executor *const *ranks, int32_t count);
    /* Of a step that was submitted with masks_later only what comes before its sampling has started. The rest
     * starts with this call, which comes before any other submit and before the wait for the step; the masks
     * are in its block then. Allocates nothing. NULL: no step has masks_later. */
    int (*resume)(sl_executor *executor, sl_error *error);
    /* Waits for the oldest step. A device fault is SL_ERR_DEVICE, also in every later call. After any error
     * no sequence's old cache or state content below its length is changed. */
    int (*wait)(sl_executor *executor, sl_error *error);
    /* Host views of the results of the step waited for last, valid until the submit after the next or, with
     * one step in flight, the next submit: [outputs][result_width] (only if
     * want_logits) and [outputs], NULL where none are sampled. */
    const float *(*logits)(sl_executor *executor);
    const int32_t *(*tokens)(sl_executor *executor);
    /* Bytes of a pool, from and to host memory: for what the cache keeps on disk, and for tests. Not while a
     * step is in flight, nor beside another call. Done when they return; the next step sees what was written.
     * A device fault is SL_ERR_DEVICE, also in every later call. */
    int (*read)(sl_executor *executor, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                sl_error *error);
    int (*write)(sl_executor *executor, sl_pool_kind pool, uint64_t offset, const void *data, uint64_t bytes,
                 sl_error *error);
    void (*counters)(const sl_executor *executor, sl_counters *counters);
    /* Runs the last step again, group by group, and measures. The cache and the state of the sequences that
     * were in it hold nothing of use afterwards. Not while a step runs, nor before the first. */
    int (*profile)(sl_executor *executor, sl_profile *profile, sl_error *error);
    /* Measures what the device can do at most, by the threads or processors that run steps. Takes less than a
     * second, and memory for that time. Not while a step runs. */
    int (*rates)(sl_executor *executor, sl_rates *rates, sl_error *error);
    /* Measures what a choice between devices weighs, before anything is deployed. Takes a fraction of a
     * second, and memory for that time; what there is no room or no kernel for stays 0. NULL: nothing is
     * known. */
    int (*speeds)(sl_backend *backend, sl_speeds *speeds, sl_error *error);
    /* Bytes free for pools now, for planning. */
    uint64_t (*memory_available)(const sl_backend *backend);
    void (*destroy)(sl_backend *backend);
    /* Host memory that read and write copy from and to at the speed of the bus; freed before the executor is
     * destroyed. NULL: any memory is as fast. */
    int (*pin)(sl_executor *executor, uint64_t bytes, void **memory, sl_error *error);
    void (*unpin)(sl_executor *executor, void *memory);
    /* What one executor computed goes to another of this backend, on another device, without the host: `send`
     * copies it from the one's workspace to the place, `receive` from there to the other's workspace. Neither
     * waits or allocates. A send comes behind all steps and sections that were submitted to `from`, and in
     * front of those that are submitted next; a receive behind all that `from` was told to send before, and
     * in front of what is submitted to `to` next. The place may be sent to again when a step of `to` behind
     * the receive was waited for. send is a call of `from`, which may come beside calls of `to`; receive is
     * one of `to`, which may come beside calls of `from`. Errors are those of the executor that is called: a
     * device fault is SL_ERR_DEVICE, also in every later call of it. `from` is destroyed first.
     * NULL: what crosses goes through read and write. */
    int (*send)(sl_executor *from, const sl_executor *to, const sl_crossing *crossing, sl_error *error);
    int (*receive)(sl_executor *to, const sl_executor *from, const sl_crossing *crossing, sl_error *error);
    /* Makes two executors ready for that, once, before the first step and when no other call of either runs.
     * *reaches: the devices reach each other's memory; otherwise copies are made on a way of the driver's
     * own. NULL where send is. */
    int (*link)(sl_executor *from, sl_executor *to, bool *reaches, sl_error *error);
} sl_backend_functions;

/* A backend embeds this as its first member. */
struct sl_backend {
    const sl_backend_functions *functions;
    const char *name;        /* "cpu", "cuda" */
    const char *description; /* of the device, for people; lives as long as the backend */
    const char *numerics; /* what of the machine results depend on where kernels' classes leave it open; lives
                             as long; NULL: nothing */
    bool maps_weights;    /* weights in the file's layout are read where they are mapped */
    /* Rows of weights in the file's layout, and of what a QUANTIZE makes, are stored in whole multiples of so
     * many elements (sl_stored_width), so that kernels need no rest; 0: as they are. */
    int32_t column_multiple;
    int32_t steps_in_flight; /* 1; 2: a step may be submitted before the one in front of it is waited for, and
                                an error after a submit that succeeded is final (SL_ERR_DEVICE) */
    /* Devices, or more than one of them, that a step goes through one after the other, and that work on
     * different steps at once: a step of which all tokens are known is best submitted as soon as it can be,
     * and does not take as long as it is until the next one is done. 0 or 1: steps are run one by one. */
    int32_t stages;
    int32_t chunk;      /* rows of a step when nobody says otherwise */
    bool fixed_buckets; /* true: launch shapes are fixed per bucket, so the plan makes several; false: one
                           bucket serves all row counts */
    sl_backend_options options; /* as resolved */
    /* What a step of a prompt takes beside its rows, as so many rows take: weights are read, and on GPUs
     * decoded unless they are floats, however many rows there are; 0: not known. Says how a prompt is cut
     * where there are stages. */
    int32_t fixed_rows, fixed_rows_of_floats;
};

int sl_cpu_backend_create(const sl_backend_options *options, sl_backend **backend, sl_error *error);

/* "cpu", "cuda", "cuda:N" or "auto" (CUDA if the module loads and a GPU is there, else the CPU; which one is
 * logged). The module libsluice-cuda.so is looked for beside the library and the program, and by the loader's
 * own rules. */
int sl_backend_open(const char *device, const sl_backend_options *options, sl_backend **backend,
                    sl_error *error);
void sl_backend_close(sl_backend *backend);

/* What the CUDA module exports, under SL_CUDA_ENTRY_NAME. `abi` must equal SL_BACKEND_ABI, else
 * SL_ERR_UNSUPPORTED. */
#define SL_CUDA_ENTRY_NAME "sl_cuda_backend_create"
/* And, for its log lines: void (sl_log_function function, void *context). */
#define SL_CUDA_LOG_NAME "sl_cuda_log_set"
typedef int (*sl_cuda_entry)(int abi, const sl_backend_options *options, sl_backend **backend,
                             sl_error *error);

#ifdef __cplusplus
}
#endif
#endif

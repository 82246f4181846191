/* The CPU backend from the inside: what a kernel is given, and the tables that tiers fill.
 *
 * The executor resolves every pointer when a plan is deployed. A step is one sl_pool_run in which all threads
 * walk the op list side by side, call each op's kernel and meet at a barrier before the next op or run of
 * ops. A kernel shares its work among threads by itself, and keeps the invariant of its numeric class: bits
 * of a row's result depend on that row alone, not on how many rows there are, nor on the other rows, nor on
 * the threads. So each output element is computed wholly by one thread, in an order fixed by the class. */
#ifndef SL_BACKEND_CPU_CPU_H
#define SL_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/shares.h"
#include "base/pool.h"
#include "quant/activation.h"

#include <stdatomic.h>
#include <stddef.h>

typedef struct sl_cpu_context sl_cpu_context;
typedef struct sl_cpu_op sl_cpu_op;
typedef struct sl_cpu_group sl_cpu_group;

/* Called on every thread of the pool. Never fails: whatever could be wrong was refused by the plan or at
 * deploy. */
typedef void (*sl_cpu_run)(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads);

/* A row of the registry. `isa` is the lowest tier that may run it. A tier's table ends with a row whose
 * kernel.name is NULL. A tier row's `declines` starts with sl_cpu_needs. Of a query's backend only the public
 * fields may be used: it can be a wrapper. */
typedef struct sl_cpu_kernel {
    sl_kernel kernel; /* first: the registry hands out pointers to it */
    sl_isa isa;
    sl_qtype weight_type; /* LINEAR: the one it takes */
    sl_cpu_run run;
    bool by_rows; /* sl_cpu_share cuts its rows, and of a row it reads and writes nothing but that row */
} sl_cpu_kernel;

/* sl_kernel.rounding of weights as BF16: half of 2^-8 of each at most, and errors of a sum's terms are not of
 * one sign. */
#define SL_BF16_ROUNDING 2.5e-2f

extern const sl_cpu_kernel sl_cpu_kernels_plain[];
#if defined(__x86_64__)
extern const sl_cpu_kernel sl_cpu_kernels_avx2[];
extern const sl_cpu_kernel sl_cpu_kernels_avxvnni[];
extern const sl_cpu_kernel sl_cpu_kernels_avx512[];
extern const sl_cpu_kernel sl_cpu_kernels_amx[];
#endif

/* NULL when the backend of the query may use `isa`, else why not: the first line of a tier kernel's
 * `declines`. */
const char *sl_cpu_needs(const sl_kernel_query *query, sl_isa isa);

/* sl_backend.description: the tier, the threads, and the nodes of memory when there are several. */
void sl_cpu_describe(const sl_backend_options *options, int nodes, char *text, size_t bytes);

/* All rows, the best tier first, plain last. Borrowed and constant; at most SL_CPU_KERNELS_MAX. */
enum { SL_CPU_KERNELS_MAX = 256 };
int32_t sl_cpu_registry(const sl_kernel **kernels);

/* Which runs of ops there are, and a run's work: `ops` begins with its first. */
const sl_fusion *const *sl_cpu_fusions(const sl_backend *backend, int32_t *count);
void sl_cpu_run_by_rows(const sl_cpu_context *context, const sl_cpu_op *ops, int thread, int threads);

/* An operand, resolved. data is NULL when it is absent. */
typedef struct sl_cpu_operand {
    unsigned char *data; /* row 0, element 0; what `fixed` elements precede lies at `head` */
    int32_t *head;       /* the elements in front of the rows, NULL when there are none */
    uint64_t row_bytes;  /* from one row to the next */
    int32_t width;       /* of the whole value */
    int32_t column;      /* where the operand starts */
    sl_value_type type;
    sl_rows rows;
} sl_cpu_operand;

/* A weight in the layout of the op's kernel: a packed copy, or the file's bytes. data is NULL when it is
 * absent. */
typedef struct sl_cpu_weight {
    const unsigned char *data;
    bool packed; /* by the kernel's pack function */
    sl_qtype type;
    int32_t experts, rows, columns;
    uint64_t expert_bytes; /* from one expert's matrix to the next, in this layout */
    uint64_t row_bytes;    /* in the file's layout */
    const float *bias;     /* LINEAR: [experts][rows], or NULL */
    int32_t column;        /* LINEAR: of the segment in y and in the residual, added to the operand's */
} sl_cpu_weight;

struct sl_cpu_op {
    sl_cpu_run run;
    const sl_op *op;
    const sl_cpu_kernel *kernel;
    sl_cpu_operand in[SL_OP_INPUTS], out[SL_OP_OUTPUTS];
    /* LINEAR: its segments. Others, in the order of their parameter struct: embed's table, rmsnorm's weight,
     * rope's frequencies, attention's sinks, router's bias, conv's weight and bias, delta_scan's a_log and
     * dt_bias, ssm_scan's a_log, dt_bias and skip. */
    sl_cpu_weight weights[SL_LINEAR_SEGMENTS];
    int32_t weight_count;
    unsigned char *scratch; /* what kernel->workspace asked for, aligned to 64; undefined at the start */
    uint64_t scratch_bytes;
    /* Two counters that are zero when the op starts, for handing out work (sl_cpu_take). */
    _Atomic int32_t *cursors;
    sl_cpu_taken *taken; /* [threads of the pool], likewise, for work by shares (sl_cpu_shares_of) */
    int32_t run_length;  /* ops of the run that begins here (runs.c): 1 is this op alone */
    bool is_tail;        /* it is run with the rows that have outputs as all the rows of the step */
    sl_rows counted;     /* which rows its count of handled rows means */
    sl_kernel_count *count;
};

struct sl_cpu_context {
    const sl_backend *backend;
    const sl_deployment *deployment;
    const sl_program *program;
    sl_pool *pool; /* for sl_pool_barrier inside a kernel: all threads run it */
    const sl_step_header *header;
    const sl_step_row *rows;
    const sl_step_span *spans;
    const int32_t *states; /* slots that the spans leave */
    const sl_table_change *table_changes;
    const sl_page_copy *page_copies;
    const sl_step_output *outputs;
    int32_t counts[SL_ROWS_COUNT];          /* true rows of this step, of each kind */
    unsigned char *caches[SL_CACHE_GROUPS]; /* page 0 of each group */
    int32_t *tables[SL_CACHE_GROUPS];       /* [slot][table_width] */
    int32_t table_width;
    int32_t *last_tokens; /* [slot] */
    unsigned char *state; /* slot 0 */
    unsigned char *observations;
    sl_cpu_group *group; /* of a program with ranks (group.h); NULL: there are no others */
    int32_t rank;
};

/* Hands out work: the next `count` units of phase 0 or 1; the caller stops when the result is past the end.
 */
static inline int32_t sl_cpu_take(const sl_cpu_op *op, int phase, int32_t count) {
    return atomic_fetch_add_explicit(&op->cursors[phase], count, memory_order_relaxed);
}

/* Hands out work by shares; counts with the first counter. */
static inline sl_cpu_taking sl_cpu_shares_of(const sl_cpu_context *context, const sl_cpu_op *op, int thread,
                                             int threads) {
    return sl_cpu_taking_of(op->taken, &op->cursors[0], sl_pool_threads(context->pool), thread, threads);
}

static inline float *sl_cpu_f32(const sl_cpu_operand *operand, int64_t row) {
    return (float *)(void *)(operand->data + (uint64_t)row * operand->row_bytes) + operand->column;
}

static inline int32_t *sl_cpu_i32(const sl_cpu_operand *operand, int64_t row) {
    return (int32_t *)(void *)(operand->data + (uint64_t)row * operand->row_bytes) + operand->column;
}

static inline uint16_t *sl_cpu_bf16(const sl_cpu_operand *operand, int64_t row) {
    return (uint16_t *)(void *)(operand->data + (uint64_t)row * operand->row_bytes) + operand->column;
}

/* From the operand's column on, which must be a multiple of 32. */
static inline sl_q8_32 sl_cpu_q8_32(const sl_cpu_operand *operand, int64_t row) {
    sl_q8_32 planes = sl_q8_32_row(operand->data, (uint64_t)operand->width, (uint64_t)row);
    planes.values += operand->column;
    planes.scales += operand->column / SL_Q8_32_GROUP;
    planes.sums += operand->column / SL_Q8_32_GROUP;
    return planes;
}

/* A row of E4M3_128 or Q8_256. */
static inline unsigned char *sl_cpu_codes(const sl_cpu_operand *operand, int64_t row) {
    return operand->data + (uint64_t)row * operand->row_bytes;
}

/* A recurrent layer's part of the slot that a sequence's span begins with: NULL for zeros; and of the one
 * that it leaves behind its row `at`, which is another: NULL where it leaves none. The last row has one. */
static inline const float *sl_cpu_old_state(const sl_cpu_context *context, const sl_step_span *span,
                                            uint64_t offset) {
    const uint64_t slot = (uint64_t)(span->state_read < 0 ? 0 : span->state_read);
    const unsigned char *state = context->state + slot * context->program->state_bytes + offset;
    return span->state_read < 0 ? NULL : (const float *)(const void *)state;
}

static inline float *sl_cpu_new_state(const sl_cpu_context *context, const sl_step_span *span, int32_t at,
                                      uint64_t offset) {
    const int32_t index = at - (span->row_count - span->state_count);
    if (index < 0) {
        return NULL;
    }
    const uint64_t slot = (uint64_t)context->states[span->state_first + index];
    return (float *)(void *)(context->state + slot * context->program->state_bytes + offset);
}

/* What is no number stays so. */
static inline float sl_cpu_clamp(float x, float least, float most) {
    return x < least ? least : x > most ? most : x;
}

static inline int32_t sl_cpu_rows(const sl_cpu_context *context, const sl_cpu_operand *operand) {
    return context->counts[operand->rows];
}

/* Where a thread's share of the scratch starts, when it is `threads` equal parts. */
static inline void *sl_cpu_scratch(const sl_cpu_op *op, int thread, int threads) {
    return op->scratch + op->scratch_bytes / (uint64_t)threads / 64 * 64 * (uint64_t)thread;
}

/* What to ask for so that sl_cpu_scratch gives every thread `bytes`. */
static inline uint64_t sl_cpu_scratch_bytes(const sl_kernel_query *query, uint64_t bytes) {
    return (bytes + 63) / 64 * 64 * (uint64_t)query->backend->options.threads;
}

/* The key (or value) of one token and head in the cache: NULL when its page is not there. `index` counts in
 * the sequence's physical order. */
typedef struct sl_cpu_cache {
    unsigned char *base;  /* of the layer in page 0 */
    const int32_t *table; /* of the sequence */
    uint64_t page_bytes, key_bytes, value_bytes, values_offset;
} sl_cpu_cache;

static inline sl_cpu_cache sl_cpu_cache_of(const sl_cpu_context *context, sl_cache_place place,
                                           int32_t slot) {
    const sl_cache_layout *layout = &context->deployment->caches[place.group];
    const sl_cache_group *group = &context->program->groups[place.group];
    sl_cpu_cache cache;
    cache.base = context->caches[place.group] + (uint64_t)place.layer * layout->layer_bytes;
    cache.table = context->tables[place.group] + (int64_t)slot * context->table_width;
    cache.page_bytes = layout->page_bytes;
    cache.key_bytes = layout->row_key_bytes;
    cache.value_bytes = group->values_are_keys ? layout->row_key_bytes : layout->row_value_bytes;
    cache.values_offset =
        group->values_are_keys ? 0 : (uint64_t)group->kv_heads * SL_PAGE_TOKENS * layout->row_key_bytes;
    return cache;
}

/* 64 keys of `head` on the page with number `tile` of the sequence, key_bytes apart; NULL when there is no
 * page. */
static inline unsigned char *sl_cpu_page_keys(const sl_cpu_cache *cache, int32_t tile, int32_t head) {
    const int32_t page = cache->table[tile];
    if (page < 0) {
        return NULL;
    }
    return cache->base + (uint64_t)page * cache->page_bytes +
           (uint64_t)head * SL_PAGE_TOKENS * cache->key_bytes;
}

static inline unsigned char *sl_cpu_page_values(const sl_cpu_cache *cache, int32_t tile, int32_t head) {
    const int32_t page = cache->table[tile];
    if (page < 0) {
        return NULL;
    }
    return cache->base + (uint64_t)page * cache->page_bytes + cache->values_offset +
           (uint64_t)head * SL_PAGE_TOKENS * cache->value_bytes;
}

/* A linear op's work as batches: without experts one batch of all rows; with experts one batch per expert,
 * its rows listed by the schedule. */
typedef struct sl_cpu_batch {
    int32_t expert;
    int32_t count;
    const int32_t *list; /* rows of y; NULL: 0 .. count-1 */
} sl_cpu_batch;

static inline int32_t sl_cpu_batch_count(const sl_cpu_op *op) {
    return op->in[1].data ? op->weights[0].experts : 1;
}

static inline sl_cpu_batch sl_cpu_batch_at(const sl_cpu_context *context, const sl_cpu_op *op,
                                           int32_t index) {
    const sl_cpu_operand *schedule = &op->in[2];
    sl_cpu_batch batch = {0, sl_cpu_rows(context, &op->out[0]), NULL};
    if (op->in[1].data) {
        batch.expert = index;
        batch.count = schedule->head[index + 1] - schedule->head[index];
        batch.list = (const int32_t *)(const void *)schedule->data + schedule->head[index];
    }
    return batch;
}

/* Row of y, and the row of x it is computed from: experts may all read the step's row. */
static inline int32_t sl_cpu_batch_row(const sl_cpu_batch *batch, int32_t i) {
    return batch->list ? batch->list[i] : i;
}

static inline int32_t sl_cpu_source_row(const sl_cpu_context *context, const sl_cpu_op *op, int32_t row) {
    return op->out[0].rows == SL_ROWS_EXPERT && op->in[0].rows == SL_ROWS_STEP
               ? row / context->program->experts_used
               : row;
}

#endif

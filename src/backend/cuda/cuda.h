/* The CUDA backend from the inside: what the executor, the kernel table and the kernels share.
 *
 * The executor resolves every pointer when a plan is deployed. A step is the bucket's op list, each op one
 * call of its launch function on one stream; captured, it is one graph. Launch shapes depend on the bucket
 * alone. What varies inside a bucket (true rows, spans, lengths, expert loads) is read on the device from the
 * step block, and blocks past the true counts return at once. So a captured list serves every step of its
 * bucket.
 *
 * Kernels keep the invariant of numeric classes: the bits of a row's result depend on that row and its
 * sequence, not on the bucket, on the number of rows, nor on other rows. Code is compiled without contraction
 * of a * b + c; where a fused operation is part of a class it is written as fmaf. No kernel uses a
 * floating-point atomic. */
#ifndef SL_BACKEND_CUDA_CUDA_H
#define SL_BACKEND_CUDA_CUDA_H

#include "backend/backend.h"
#include "quant/blocks.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_CUDA_STAGES = 2 }; /* steps in flight */

/* Types whose products activate by swiglu_oai as well: what gpt-oss's experts come in. In others it would be
 * longer code for nothing. */
#define SL_CUDA_TAKES_OAI(type) ((type) == SL_QTYPE_MXFP4)

/* Columns that kernels take at a time; see sl_backend.column_multiple. */
enum { SL_CUDA_COLUMN_MULTIPLE = 256 };

/* Of a LINEAR's weight in the file's layout, as its kernels see it. */
static inline int32_t sl_cuda_columns(const sl_weight *weight) {
    return sl_stored_columns(SL_CUDA_COLUMN_MULTIPLE, weight);
}

/* A row of FP8_128 on the device: the codes of all its columns, then a float scale for each 128, then what is
 * missing to a multiple of 16 bytes. So rows begin at multiples of 16, and codes can be copied in boxes.
 * Where such a row's scales begin. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline uint64_t
    sl_fp8_scales_at(uint64_t row_bytes) {
    return row_bytes / SL_FP8_128_BYTES * SL_FP8_128_ELEMENTS;
}

/* Whether zeros are to be written behind each row of what a QUANTIZE of a run makes. */
static inline bool sl_cuda_is_padded(const sl_fusion_query *query, const sl_op *quantize) {
    return query->values[quantize->out[0].value].width != quantize->u.quantize.width;
}
#define SL_CUDA_PADS_NOT "writes no zeros behind a row"

/* ---- what kernels are given ---- */

/* An operand, resolved. data is NULL when it is absent. Device memory. */
typedef struct sl_cuda_operand {
    unsigned char *data; /* row 0, element 0 */
    int32_t *head;       /* the `fixed` elements in front of the rows, or NULL */
    uint64_t row_bytes;
    int32_t width;   /* of the whole value */
    int32_t padding; /* of what a QUANTIZE writes: zeros at the end of each row */
    int32_t column;  /* where the operand starts */
    sl_value_type type;
    sl_rows rows;
} sl_cuda_operand;

/* A weight in the file's layout, in device memory, but for FP8_128 (sl_fp8_scales_at); rows may end with
 * blocks of zeros. data is NULL when it is absent. */
typedef struct sl_cuda_weight {
    const unsigned char *data;
    const float *bias; /* LINEAR: [experts][rows], or NULL */
    uint64_t expert_bytes, row_bytes;
    sl_qtype type;
    int32_t experts, rows;
    int32_t columns; /* LINEAR: zeros included (sl_cuda_columns) */
    int32_t column;  /* LINEAR: of the segment in y and in the residual */
} sl_cuda_weight;

/* One cache group. */
typedef struct sl_cuda_cache {
    unsigned char *pages;
    int32_t *table; /* [slot][table_width] */
    uint64_t page_bytes, layer_bytes, key_bytes, value_bytes;
    uint64_t values; /* where they begin in a layer; 0: they are the first part of the keys */
    int32_t kv_heads, key_size, value_size, window; /* sl_group_window */
    sl_qtype type;
} sl_cuda_cache;

typedef struct sl_cuda_blas sl_cuda_blas;

/* ---- weights in host memory (backend.h) ---- */

enum { SL_CUDA_FETCH_PARTS = 32 }; /* weights of a set that the ops of a bucket read */
enum { SL_CUDA_EXPERT_COUNTS = 3 };

/* The arrays of a table. */
typedef struct sl_slot_arrays {
    unsigned long long *chosen, *used_at;
    int32_t *slot_of, *expert_of, *is_protected, *expert, *slot;
} sl_slot_arrays;

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline sl_slot_arrays
    sl_slot_arrays_of(sl_slot_table *table, int32_t experts, int32_t slots) {
    sl_slot_arrays a;
    const int32_t numbers = 3 * experts + 2 * slots;
    a.chosen = (unsigned long long *)(void *)(table + 1);
    a.slot_of = (int32_t *)(void *)(a.chosen + experts);
    a.expert_of = a.slot_of + experts;
    a.is_protected = a.expert_of + slots;
    a.expert = a.is_protected + slots;
    a.slot = a.expert + experts;
    a.used_at = (unsigned long long *)(void *)(a.slot_of + numbers + (numbers & 1));
    return a;
}

typedef struct sl_cuda_fetch_part {
    const unsigned char *from; /* pinned */
    unsigned char *to;         /* the set's part of a buffer, or its slots */
    unsigned char *slots;      /* of chosen experts */
    uint64_t expert_bytes;     /* of a set without experts: all */
} sl_cuda_fetch_part;

/* What a FETCH brings. */
typedef struct sl_cuda_fetch {
    sl_cuda_fetch_part parts[SL_CUDA_FETCH_PARTS];
    int32_t part_count;
    int32_t set;
    int32_t experts, slots; /* experts 0: of a layer without; slots 0: of SL_FETCH_ALL */
    sl_fetch_way way;
    int32_t number;                   /* of those in the bucket that bring all; else 0 */
    const struct sl_cuda_fetch *next; /* of these */
    sl_slot_table *table;             /* on the device; NULL: there are no experts */
    unsigned long long *counts; /* pinned, SL_CUDA_EXPERT_COUNTS: hits, misses, promotions, written with each
                                   step */
} sl_cuda_fetch;

/* The copies to the buffers, on a stream of their own, one list of ops at a time. All on the host. */
typedef struct sl_cuda_copies {
    cudaStream_t stream;
    cudaEvent_t may_begin;               /* what read the buffer before has ended */
    cudaEvent_t ended[SL_FETCH_BUFFERS]; /* of the last copy to that buffer */
    int32_t begun;                       /* number of the last fetch whose copies are under way */
    bool ahead; /* the list is run whole and in order, so that copies may begin before their FETCH */
} sl_cuda_copies;

enum { SL_CUDA_ARRIVALS = 16384 };

/* Passed to kernels by value. All pointers are to device memory; the arrays are the device's copy of the step
 * block. */
typedef struct sl_cuda_context {
    const sl_step_header *header;
    const sl_step_row *rows;
    const sl_step_span *spans;
    const int32_t *states; /* slots that the spans leave */
    const sl_table_change *table_changes;
    const sl_page_copy *page_copies;
    const sl_step_output *outputs;
    sl_cuda_cache caches[SL_CACHE_GROUPS];
    int32_t *last_tokens; /* [slot] */
    unsigned char *state; /* slot 0 */
    uint64_t state_bytes; /* of one slot */
    int32_t table_width;
    int32_t slots; /* rows of the page tables in front of the spare one */
    int32_t experts_used;
    int32_t processors;      /* multiprocessors of the device */
    int32_t shared_bytes;    /* of shared memory that a block can have */
    bool dependent_launches; /* the device knows programmatic dependent launch */
    sl_arena *arena;         /* on the host: of what `prepare` makes, which lives as long as the executor */
    sl_cuda_blas *blas;      /* on the host: cuBLASLt and cuBLAS, NULL while no kernel needs them */
    sl_cuda_copies *copies;  /* on the host */
    /* [SL_CUDA_ARRIVALS]: how many blocks have come to a point; a kernel leaves zeros, as it finds them */
    uint32_t *arrivals;
    struct sl_cuda_exchange *exchange; /* exchange/exchange.h; there without ranks too */
} sl_cuda_context;

typedef struct sl_cuda_kernel sl_cuda_kernel;
typedef struct sl_cuda_fusion sl_cuda_fusion;

typedef struct sl_cuda_op {
    const sl_op *op;
    const sl_cuda_kernel *kernel;
    const sl_cuda_fusion *fusion; /* runs it and those behind it; NULL: the kernel does */
    int32_t run_length;           /* ops that one launch function does, from this one on; 1 when alone */
    bool unread[SL_OP_OUTPUTS];   /* in a run: nobody behind it reads what the output holds then */
    sl_cuda_operand in[SL_OP_INPUTS], out[SL_OP_OUTPUTS];
    /* LINEAR: its segments; others in the order of their parameter struct (sl_op_weights). */
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t weight_count;
    unsigned char *scratch; /* aligned to 64; undefined at the start */
    bool is_tail;           /* it is run with the rows that have outputs as all the rows of the step */
    const int32_t *rows;    /* [SL_ROWS_COUNT]: the bucket's, or those of its tail */
    int32_t spans;          /* most spans in a step of the bucket */
    const sl_program *program;
    const sl_limits *limits;
    const void *prepared;       /* what the kernel's `prepare` made */
    const sl_cuda_fetch *fetch; /* FETCH */
    const struct sl_cuda_facts *facts;
    sl_rows counted;
    sl_kernel_count *count;
} sl_cuda_op;

/* A product in ranges of its columns, whose sums are yet to be added. */
typedef struct sl_cuda_ranges {
    unsigned char *data; /* of the first range, rows as of y */
    uint64_t bytes;      /* from a range to the next */
    int32_t count;
} sl_cuda_ranges;

/* Puts the op's launches on the stream, also while that is being captured: nothing but launches may happen
 * here. */
typedef cudaError_t (*sl_cuda_run)(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream);
typedef cudaError_t (*sl_cuda_ranges_run)(const sl_cuda_context *context, const sl_cuda_op *op,
                                          cudaStream_t stream, sl_cuda_ranges *ranges);

#define SL_CUDA_RUN(name)                                                                                    \
    cudaError_t name(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream)
#define SL_CUDA_RANGES(name)                                                                                 \
    cudaError_t name(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,              \
                     sl_cuda_ranges *ranges)

/* ---- rows of the table ---- */

/* What a device is: read once, when the backend is made. */
typedef struct sl_cuda_facts {
    int32_t major, minor;    /* compute capability */
    int32_t processors;      /* multiprocessors */
    int32_t block_bytes;     /* shared memory that a block can have */
    int32_t processor_bytes; /* shared memory of a multiprocessor */
    bool has_wgmma;          /* 9.0's instructions: later devices have others */
    bool has_bulk_copies;    /* and clusters, tensor maps, programmatic dependent launch: from 9.0 on */
} sl_cuda_facts;

/* How a kernel does its op. Of one op and weight type, kernels are tried in the order in which these stand
 * here. */
typedef enum sl_cuda_arrangement {
    SL_CUDA_ONLY, /* the op has no other */
    /* LINEAR: arithmetic, rows, mechanism */
    SL_CUDA_K16_ROWS4,
    SL_CUDA_K16_ROWS8,
    SL_CUDA_K16_ROWS128,
    SL_CUDA_K16_CUBLAS,
    SL_CUDA_K16_TILE,
    SL_CUDA_S8_COPY_TILE,
    SL_CUDA_BF16_COPY_CUBLAS,
    SL_CUDA_BF16_ROWS128,
    SL_CUDA_I8_ROWS64,
    SL_CUDA_S8_TILE,
    SL_CUDA_E4M3_TILE,
    SL_CUDA_BF16_CUBLAS,
    SL_CUDA_BF16_TILE_WGMMA,
    SL_CUDA_BF16_TILE_MMA,
    SL_CUDA_I8_TILE,
    SL_CUDA_TF32_TILE,
    SL_CUDA_F32_TILE,
    SL_CUDA_F32_ROWS8,
    SL_CUDA_I8_ROW1_TMA,
    SL_CUDA_I8_ROW1,
    SL_CUDA_I8_ROWS8_TMA,
    SL_CUDA_I8_ROWS8,
    SL_CUDA_PLAIN_ROWS8,
    SL_CUDA_PLAIN_TILE,
    /* ATTENTION */
    SL_CUDA_DECODE_PROMPT,
    SL_CUDA_WGMMA_RANGES,
    SL_CUDA_DECODE,
    SL_CUDA_WGMMA_PROMPT,
    SL_CUDA_WGMMA_RANGES_DET,
    SL_CUDA_DECODE_DET,
    SL_CUDA_WGMMA_PROMPT_DET,
    SL_CUDA_MMA_ROWS16,
    SL_CUDA_MMA_ROWS64,
    SL_CUDA_MMA_PROMPT,
    SL_CUDA_LATENT_ROWS64,
    SL_CUDA_LATENT_WGMMA,
    SL_CUDA_LATENT_PROMPT,
    SL_CUDA_ATTENTION_FLOATS,
    SL_CUDA_ATTENTION_PLAIN,
    SL_CUDA_ATTENTION_CUBLAS,
    /* DELTA_SCAN */
    SL_CUDA_DELTA_CHUNK,
    SL_CUDA_DELTA_ROW,
    /* SSM_SCAN */
    SL_CUDA_SSM_CHUNK,
    SL_CUDA_SSM_ROW,
    /* HEAD_LINEAR */
    SL_CUDA_HEADS_TILE,
    SL_CUDA_HEADS_ROWS,
    SL_CUDA_ARRANGEMENTS
} sl_cuda_arrangement;

enum { SL_CUDA_LEAST_CAPABILITY = 80 }; /* of a device: 8.0 */

struct sl_cuda_kernel {
    sl_kernel kernel; /* first: the registry hands out pointers to it */
    sl_cuda_arrangement arrangement;
    sl_qtype weight_type;          /* ATTENTION: of the cache */
    int32_t most_rows;             /* LINEAR, ATTENTION: declines larger buckets; 0: takes any */
    int32_t least_rows, best_rows; /* LINEAR: declines smaller buckets; declines larger ones unless
                                      deterministic, as others are faster there; 0: neither */
    sl_cuda_run run;
    /* LINEAR of gates and values, the ACTIVATE and the QUANTIZE to BF16 behind it. NULL: it cannot. */
    sl_cuda_run gated;
    /* LINEAR: the same product, but the sums of its columns' ranges to op->scratch instead of y: whoever
     * reads it adds them, one after the other. Neither bias nor residual. NULL: it cannot. */
    sl_cuda_ranges_run ranges;
    /* Why `ranges` does not take the first op of the run, or NULL. */
    const char *(*ranges_declines)(const sl_fusion_query *query);
    /* Once, when the op is resolved: whatever `run` must not do. NULL: nothing. */
    int (*prepare)(sl_cuda_context *context, sl_cuda_op *op, sl_error *error);
    /* With kernel.pack: puts the packing of all of a weight on the stream, from the file's bytes on the
     * device. The packed copy has this type, or that of the weight where no type is like it. */
    cudaError_t (*repack)(const sl_weight *weight, const unsigned char *from, unsigned char *packed,
                          cudaStream_t stream);
    sl_qtype packed_type;
};

/* `run` is given the first op of the run; the others lie behind it: op[1], op[2], ... */
struct sl_cuda_fusion {
    sl_fusion fusion; /* first */
    sl_cuda_run run;
    sl_cuda_arrangement product; /* of the LINEAR it begins with, where it does what that kernel does */
};

/* Kernels and fusions that stand in one file. */
typedef struct sl_cuda_family {
    const sl_cuda_kernel *kernels;
    size_t kernel_count;
    const sl_cuda_fusion *fusions;
    size_t fusion_count;
    /* Allows kernels the shared memory they take, on the device that is set. NULL: they need no leave. */
    cudaError_t (*prepare)(const sl_cuda_facts *facts);
} sl_cuda_family;

/* SL_CUDA_FAMILY(name) = {SL_CUDA_ROWS(kernels), SL_CUDA_ROWS(fusions), prepare}; table/families.def lists
 * the names. */
#ifdef __cplusplus
#define SL_CUDA_FAMILY(name)                                                                                 \
    extern "C" {                                                                                             \
    extern const sl_cuda_family sl_cuda_family_##name;                                                       \
    }                                                                                                        \
    const sl_cuda_family sl_cuda_family_##name
#else
#define SL_CUDA_FAMILY(name)                                                                                 \
    extern const sl_cuda_family sl_cuda_family_##name;                                                       \
    const sl_cuda_family sl_cuda_family_##name
#endif
#define SL_CUDA_ROWS(rows) rows, sizeof(rows) / sizeof *(rows)
#define SL_CUDA_NO_ROWS NULL, 0

/* A kernel of an op that has few. */
#define SL_CUDA_KERNEL(ID, kernel_name, class_name, most, check, function)                                   \
    {                                                                                                        \
        .kernel = {.name = kernel_name,                                                                      \
                   .op = SL_OP_##ID,                                                                         \
                   .numeric_class = class_name,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = check},                                                                       \
        .run = function                                                                                      \
    }

#define SL_CUDA_COUNT_OPS(...) SL_CUDA_NINTH(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define SL_CUDA_NINTH(a, b, c, d, e, f, g, h, ninth, ...) ninth
#define SL_CUDA_FUSION(function, check, fusion_name, ...)                                                    \
    {                                                                                                        \
        .fusion = {.name = fusion_name "/cuda",                                                              \
                   .count = SL_CUDA_COUNT_OPS(__VA_ARGS__),                                                  \
                   .ops = {__VA_ARGS__},                                                                     \
                   .declines = check},                                                                       \
        .run = function                                                                                      \
    }

/* What does an op that begins a run, and the rest of the run: the fusion's function, or its kernel's. */
static inline sl_cuda_run sl_cuda_run_of(const sl_cuda_op *op) {
    return op->fusion ? op->fusion->run : op->kernel->run;
}

/* Its name. */
static inline const char *sl_cuda_name_of(const sl_cuda_op *op) {
    return op->fusion ? op->fusion->fusion.name : op->kernel->kernel.name;
}

/* How the i-th op of a run would be done. */
static inline sl_cuda_arrangement sl_cuda_arrangement_of(const sl_fusion_query *query, int32_t i) {
    return ((const sl_cuda_kernel *)(const void *)query->kernels[i])->arrangement;
}

typedef struct sl_cuda_backend {
    sl_backend base; /* first */
    sl_cuda_facts facts;
    char description[320];
} sl_cuda_backend;

/* Why the device cannot run kernels of that arrangement, or NULL (table/arrangements.c). */
const char *sl_cuda_device_declines(sl_cuda_arrangement arrangement, const sl_cuda_facts *facts);

/* Live as long as the backend. */
static inline const sl_cuda_facts *sl_cuda_facts_of(const sl_backend *backend) {
    return &((const sl_cuda_backend *)(const void *)backend)->facts;
}

#ifdef __cplusplus
}
#endif
#endif

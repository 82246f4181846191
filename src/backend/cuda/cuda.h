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

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_CUDA_STAGES = 2 }; /* steps in flight */

/* ---- what kernels are given ---- */

/* An operand, resolved. data is NULL when it is absent. Device memory. */
typedef struct sl_cuda_operand {
    unsigned char *data; /* row 0, element 0 */
    int32_t *head;       /* the `fixed` elements in front of the rows, or NULL */
    uint64_t row_bytes;
    int32_t width;  /* of the whole value */
    int32_t column; /* where the operand starts */
    sl_value_type type;
    sl_rows rows;
} sl_cuda_operand;

/* A weight in the file's layout, in device memory. data is NULL when it is absent. */
typedef struct sl_cuda_weight {
    const unsigned char *data;
    const float *bias; /* LINEAR: [experts][rows], or NULL */
    uint64_t expert_bytes, row_bytes;
    sl_qtype type;
    int32_t experts, rows, columns;
    int32_t column; /* LINEAR: of the segment in y and in the residual */
} sl_cuda_weight;

/* One cache group. */
typedef struct sl_cuda_cache {
    unsigned char *pages;
    int32_t *table; /* [slot][table_width] */
    uint64_t page_bytes, layer_bytes, key_bytes, value_bytes;
    int32_t kv_heads, key_size, value_size, window;
    sl_qtype type;
} sl_cuda_cache;

typedef struct sl_cuda_blas sl_cuda_blas;

enum { SL_CUDA_ARRIVALS = 16384 };

/* Passed to kernels by value. All pointers are to device memory; the arrays are the device's copy of the step
 * block. */
typedef struct sl_cuda_context {
    const sl_step_header *header;
    const sl_step_row *rows;
    const sl_step_span *spans;
    const sl_table_change *table_changes;
    const sl_page_copy *page_copies;
    const sl_step_output *outputs;
    sl_cuda_cache caches[SL_CACHE_GROUPS];
    int32_t *last_tokens; /* [slot] */
    unsigned char *state; /* slot 0 */
    uint64_t state_bytes; /* of one slot */
    int32_t table_width;
    int32_t experts_used;
    int32_t processors;      /* multiprocessors of the device */
    int32_t shared_bytes;    /* of shared memory that a block can have */
    bool dependent_launches; /* the device knows programmatic dependent launch */
    sl_cuda_blas *blas;      /* on the host: cuBLASLt and cuBLAS, NULL while no kernel needs them */
    /* [SL_CUDA_ARRIVALS]: how many blocks have come to a point; a kernel leaves zeros, as it finds them */
    uint32_t *arrivals;
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
    /* LINEAR: its segments; others in the order of their parameter struct (see sl_cuda_op_weights in exec.c).
     */
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t weight_count;
    unsigned char *scratch; /* aligned to 64; undefined at the start */
    const int32_t *rows;    /* [SL_ROWS_COUNT]: the bucket's */
    int32_t spans;          /* most spans in a step of the bucket */
    const sl_program *program;
    const void *prepared; /* what the kernel's `prepare` made */
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

struct sl_cuda_kernel {
    sl_kernel kernel; /* first: the registry hands out pointers to it */
    sl_qtype weight_type;
    int32_t most_rows;             /* LINEAR, ATTENTION: declines larger buckets; 0: takes any */
    int32_t least_rows, best_rows; /* LINEAR: declines smaller buckets; declines larger ones unless
                                      deterministic, as others are faster there; 0: neither */
    sl_cuda_run run;
    /* Once, when the op is resolved: whatever `run` must not do. NULL: nothing. */
    int (*prepare)(sl_cuda_context *context, sl_cuda_op *op, sl_error *error);
    /* With kernel.pack: puts the packing of all of a weight on the stream, from the file's bytes on the
     * device. The packed copy has this type. */
    cudaError_t (*repack)(const sl_weight *weight, const unsigned char *from, unsigned char *packed,
                          cudaStream_t stream);
    sl_qtype packed_type;
};

/* `run` is given the first op of the run; the others lie behind it: op[1], op[2], ... */
struct sl_cuda_fusion {
    sl_fusion fusion; /* first */
    sl_cuda_run run;
    /* What the kernel of the LINEAR it begins with declines by, where it does what that kernel does. */
    const char *(*product)(const sl_kernel *kernel, const sl_kernel_query *query);
};

/* What does an op that begins a run, and the rest of the run: the fusion's function, or its kernel's. */
static inline sl_cuda_run sl_cuda_run_of(const sl_cuda_op *op) {
    return op->fusion ? op->fusion->run : op->kernel->run;
}

/* Its name. */
static inline const char *sl_cuda_name_of(const sl_cuda_op *op) {
    return op->fusion ? op->fusion->fusion.name : op->kernel->kernel.name;
}

#define SL_CUDA_RUN(name)                                                                                    \
    cudaError_t name(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream)

/* rows.cu */
SL_CUDA_RUN(sl_cuda_embed);
SL_CUDA_RUN(sl_cuda_rmsnorm);
SL_CUDA_RUN(sl_cuda_rmsnorm_quantize);
const char *sl_cuda_rmsnorm_declines(const sl_kernel *kernel, const sl_kernel_query *query);
SL_CUDA_RUN(sl_cuda_quantize);
SL_CUDA_RUN(sl_cuda_rope);
SL_CUDA_RUN(sl_cuda_combine);
SL_CUDA_RUN(sl_cuda_activate);
SL_CUDA_RUN(sl_cuda_activate_quantize);
SL_CUDA_RUN(sl_cuda_gather);
SL_CUDA_RUN(sl_cuda_softcap);
/* fuse_rows.cu */
SL_CUDA_RUN(sl_cuda_embed_norm);
SL_CUDA_RUN(sl_cuda_gather_norm);
SL_CUDA_RUN(sl_cuda_gather_gather_norm);
SL_CUDA_RUN(sl_cuda_combine_norm);
SL_CUDA_RUN(sl_cuda_ranges_gather_norm); /* LINEAR by skinny, GATHER, GATHER, RMSNORM, QUANTIZE */
const char *sl_cuda_ranges_gather_norm_declines(const sl_fusion *fusion, const sl_fusion_query *query);
SL_CUDA_RUN(sl_cuda_ranges_norm); /* LINEAR by skinny, RMSNORM, possibly QUANTIZE */
const char *sl_cuda_ranges_norm_declines(const sl_fusion *fusion, const sl_fusion_query *query);
const char *sl_cuda_norm_fusion_declines(const sl_fusion *fusion, const sl_fusion_query *query);
const char *sl_cuda_source_fusion_declines(const sl_fusion *fusion, const sl_fusion_query *query);
const char *sl_cuda_gathers_fusion_declines(const sl_fusion *fusion, const sl_fusion_query *query);
const char *sl_cuda_activate_fusion_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* fuse_heads.cu */
SL_CUDA_RUN(sl_cuda_heads);
const char *sl_cuda_heads_declines(const sl_fusion *fusion, const sl_fusion_query *query);
SL_CUDA_RUN(sl_cuda_ranges_heads); /* the same behind LINEAR by skinny */
const char *sl_cuda_ranges_heads_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* cache.cu */
SL_CUDA_RUN(sl_cuda_begin);
SL_CUDA_RUN(sl_cuda_cache_write);
/* attention.cu */
SL_CUDA_RUN(sl_cuda_attention);
const char *sl_cuda_attention_declines(const sl_kernel *kernel, const sl_kernel_query *query);
cudaError_t sl_cuda_attention_prepare(int device);
/* attention_cublas.cu */
SL_CUDA_RUN(sl_cuda_attention_cublas);
const char *sl_cuda_attention_cublas_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_cuda_attention_cublas_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
int sl_cuda_attention_cublas_prepare(sl_cuda_context *context, sl_cuda_op *op, sl_error *error);
/* flash.cu: `whole` for many rows, `few` for few, `split` for few rows with many keys, one class; on Hopper
 * `decode` for few rows and `wgmma` for many, a class each. */
enum { SL_CUDA_SPLIT_ROWS = 16, SL_CUDA_FLASH_FEW_ROWS = 64 };
SL_CUDA_RUN(sl_cuda_flash_whole);
SL_CUDA_RUN(sl_cuda_flash_few);
SL_CUDA_RUN(sl_cuda_flash_split);
SL_CUDA_RUN(sl_cuda_flash_wgmma);
SL_CUDA_RUN(sl_cuda_flash_decode);
SL_CUDA_RUN(sl_cuda_flash_decode_split); /* `decode` in the class of `split` */
/* `decode` with what sl_cuda_heads does in front of it */
SL_CUDA_RUN(sl_cuda_heads_decode);
const char *sl_cuda_heads_decode_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* `decode` with the QUANTIZE behind it */
SL_CUDA_RUN(sl_cuda_decode_quantize);
const char *sl_cuda_decode_quantize_declines(const sl_fusion *fusion, const sl_fusion_query *query);
uint64_t sl_cuda_flash_decode_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_cuda_flash_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_flash_declines(const sl_kernel *kernel, const sl_kernel_query *query);
cudaError_t sl_cuda_flash_prepare(int device);
/* router.cu */
SL_CUDA_RUN(sl_cuda_router);
uint64_t sl_cuda_router_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_router_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* fuse_router.cu: RMSNORM, possibly QUANTIZE, the LINEAR of a router */
SL_CUDA_RUN(sl_cuda_route);
const char *sl_cuda_route_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* matvec_experts.cu: ROUTER, LINEAR, ACTIVATE, QUANTIZE, LINEAR, COMBINE of one row's experts */
SL_CUDA_RUN(sl_cuda_experts);
const char *sl_cuda_experts_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* Why the six ops are not one row's experts with activations in that format, each reading the one before, or
 * NULL. Gates and values are not looked at. */
const char *sl_cuda_experts_reason(const sl_fusion_query *query, sl_value_type format);
/* Allows the kernels their shared memory; once per device, before a launch. */
cudaError_t sl_cuda_experts_prepare(int device);
/* matmul_thin_experts.cu: the same run in class "bf16/k16" */
SL_CUDA_RUN(sl_cuda_thin_experts);
const char *sl_cuda_thin_experts_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* By sl_cuda_experts_prepare. */
cudaError_t sl_cuda_thin_experts_prepare(void);
/* sample.cu */
SL_CUDA_RUN(sl_cuda_sample);
cudaError_t sl_cuda_sample_prepare(int device);
uint64_t sl_cuda_sample_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* delta.cu */
SL_CUDA_RUN(sl_cuda_delta_conv);
SL_CUDA_RUN(sl_cuda_delta_scan);
const char *sl_cuda_delta_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* delta_chunk.cu: for many rows, on the tensor cores */
SL_CUDA_RUN(sl_cuda_delta_chunk);
const char *sl_cuda_delta_chunk_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_cuda_delta_chunk_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
cudaError_t sl_cuda_delta_prepare(int device);
/* linear.cu: `few` reads the weights once for up to SL_CUDA_FEW_ROWS rows, `many` decodes a tile for 64 rows
 */
enum { SL_CUDA_FEW_ROWS = 8 };
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    SL_CUDA_RUN(sl_cuda_linear_few_##name);                                                                  \
    SL_CUDA_RUN(sl_cuda_linear_many_##name);
#include "quant/qtypes.def"
#undef SL_QTYPE
const char *sl_cuda_linear_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* matvec*.cu: as `few`, at the rate the weights can be read; of few's class, but for floats. */
SL_CUDA_RUN(sl_cuda_linear_matvec_f32);
SL_CUDA_RUN(sl_cuda_linear_matvec_f16);
SL_CUDA_RUN(sl_cuda_linear_tile_f32); /* from 9 rows on, in the class of matvec's F32 */
SL_CUDA_RUN(sl_cuda_linear_matvec_bf16);
SL_CUDA_RUN(sl_cuda_linear_matvec_fp8_128);
SL_CUDA_RUN(sl_cuda_linear_matvec_nvfp4);
SL_CUDA_RUN(sl_cuda_linear_matvec_nvfp4_128);
const char *sl_cuda_fp4_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* Integers, up to SL_CUDA_FEW_ROWS rows: `stream` for one row and `held` for more where the device has bulk
 * copies, `ring` for one row and for experts', `rows` for more. */
SL_CUDA_RUN(sl_cuda_linear_stream_q8_0);
SL_CUDA_RUN(sl_cuda_linear_stream_q4_k);
SL_CUDA_RUN(sl_cuda_linear_held_q8_0);
SL_CUDA_RUN(sl_cuda_linear_held_q4_k);
SL_CUDA_RUN(sl_cuda_linear_wide_q8_0); /* as held, for 3072 columns and more */
SL_CUDA_RUN(sl_cuda_linear_ring_q8_0);
SL_CUDA_RUN(sl_cuda_linear_ring_q4_0);
SL_CUDA_RUN(sl_cuda_linear_ring_q4_k);
SL_CUDA_RUN(sl_cuda_linear_ring_q5_k);
SL_CUDA_RUN(sl_cuda_linear_ring_q6_k);
SL_CUDA_RUN(sl_cuda_linear_ring_q4_1);
SL_CUDA_RUN(sl_cuda_linear_ring_q5_0);
SL_CUDA_RUN(sl_cuda_linear_ring_q5_1);
SL_CUDA_RUN(sl_cuda_linear_ring_q2_k);
SL_CUDA_RUN(sl_cuda_linear_ring_q3_k);
SL_CUDA_RUN(sl_cuda_linear_ring_iq4_nl);
SL_CUDA_RUN(sl_cuda_linear_ring_iq4_xs);
SL_CUDA_RUN(sl_cuda_linear_ring_mxfp4);
SL_CUDA_RUN(sl_cuda_linear_ring_nvfp4);
SL_CUDA_RUN(sl_cuda_linear_ring_nvfp4_128);
SL_CUDA_RUN(sl_cuda_linear_rows_q8_0);
SL_CUDA_RUN(sl_cuda_linear_rows_q4_0);
SL_CUDA_RUN(sl_cuda_linear_rows_q4_k);
SL_CUDA_RUN(sl_cuda_linear_rows_q5_k);
SL_CUDA_RUN(sl_cuda_linear_rows_q6_k);
SL_CUDA_RUN(sl_cuda_linear_rows_q4_1);
SL_CUDA_RUN(sl_cuda_linear_rows_q5_0);
SL_CUDA_RUN(sl_cuda_linear_rows_q5_1);
SL_CUDA_RUN(sl_cuda_linear_rows_q2_k);
SL_CUDA_RUN(sl_cuda_linear_rows_q3_k);
SL_CUDA_RUN(sl_cuda_linear_rows_iq4_nl);
SL_CUDA_RUN(sl_cuda_linear_rows_iq4_xs);
SL_CUDA_RUN(sl_cuda_linear_rows_mxfp4);
SL_CUDA_RUN(sl_cuda_linear_rows_nvfp4);
SL_CUDA_RUN(sl_cuda_linear_rows_nvfp4_128);
/* What all of them decline, and `units` nothing else. */
const char *sl_cuda_matvec_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_stream_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_held_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_wide_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_ring_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_rows_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_matvec_float_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_tile_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* An integer matvec, the ACTIVATE of its two segments, and possibly the QUANTIZE of that. */
SL_CUDA_RUN(sl_cuda_matvec_activate);
const char *sl_cuda_matvec_activate_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* Allows the kernels their shared memory; once per device, before a launch. */
cudaError_t sl_cuda_matvec_prepare(int device);
cudaError_t sl_cuda_matvec_prepare_legacy(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_kquants(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_fives(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_bits(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_tables(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_nvfp4(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_units(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_held(int most_bytes);
cudaError_t sl_cuda_matvec_prepare_wide(int most_bytes);
/* matvec_units.cu, matmul_planes.cu: class "q8_256" for few and for many rows */
SL_CUDA_RUN(sl_cuda_linear_units_q4_k);
SL_CUDA_RUN(sl_cuda_linear_planes_q4_k);
const char *sl_cuda_planes_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_cuda_planes_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
cudaError_t sl_cuda_planes_prepare(int device);
/* matmul_*.cu: tensor cores on BF16 x, weights decoded to BF16 in registers; for more rows than `few` */
SL_CUDA_RUN(sl_cuda_linear_mma_f16);
SL_CUDA_RUN(sl_cuda_linear_mma_bf16);
SL_CUDA_RUN(sl_cuda_linear_mma_q8_0);
SL_CUDA_RUN(sl_cuda_linear_mma_q4_0);
SL_CUDA_RUN(sl_cuda_linear_mma_q4_k);
SL_CUDA_RUN(sl_cuda_linear_mma_q6_k);
SL_CUDA_RUN(sl_cuda_linear_mma_fp8_128);
SL_CUDA_RUN(sl_cuda_linear_wgmma_f16);
SL_CUDA_RUN(sl_cuda_linear_wgmma_bf16);
SL_CUDA_RUN(sl_cuda_linear_wgmma_q8_0);
SL_CUDA_RUN(sl_cuda_linear_wgmma_q4_0);
SL_CUDA_RUN(sl_cuda_linear_wgmma_q4_k);
SL_CUDA_RUN(sl_cuda_linear_wgmma_q5_k);
SL_CUDA_RUN(sl_cuda_linear_wgmma_q6_k);
/* linear of gates and values, activate, quantize to BF16, in one */
SL_CUDA_RUN(sl_cuda_gated_wgmma);
SL_CUDA_RUN(sl_cuda_gated_wgmma_f16);
SL_CUDA_RUN(sl_cuda_gated_wgmma_bf16);
SL_CUDA_RUN(sl_cuda_gated_wgmma_q8_0);
SL_CUDA_RUN(sl_cuda_gated_wgmma_q4_0);
SL_CUDA_RUN(sl_cuda_gated_wgmma_q4_k);
SL_CUDA_RUN(sl_cuda_gated_wgmma_q5_k);
SL_CUDA_RUN(sl_cuda_gated_wgmma_q6_k);
const char *sl_cuda_gated_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* Why the run is not gates and values side by side, stored as BF16 alone, or NULL. */
const char *sl_cuda_gated_reason(const sl_fusion_query *query);
cudaError_t sl_cuda_has_wgmma(int device, bool *has);
const char *sl_cuda_wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* The same in class "bf16/k16" (k16.h), for experts alone. */
const char *sl_cuda_k16_wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_matmul_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* Allows the kernels their shared memory; once per device, before a launch. */
cudaError_t sl_cuda_matmul_prepare(int device);
cudaError_t sl_cuda_matmul_prepare_fp8(int most_bytes);
cudaError_t sl_cuda_matmul_prepare_legacy(int most_bytes, bool wgmma);
cudaError_t sl_cuda_matmul_prepare_kquants(int most_bytes, bool wgmma);
/* matmul_skinny*.cu: Hopper's tensor cores on BF16 x for 5 to 128 rows, at the rate the weights can be read;
 * alone, and with activate and quantize to BF16 behind gates and values */
SL_CUDA_RUN(sl_cuda_linear_skinny_f16);
SL_CUDA_RUN(sl_cuda_linear_skinny_bf16);
SL_CUDA_RUN(sl_cuda_linear_skinny_q8_0);
SL_CUDA_RUN(sl_cuda_linear_skinny_q4_0);
SL_CUDA_RUN(sl_cuda_linear_skinny_q4_k);
SL_CUDA_RUN(sl_cuda_linear_skinny_q5_k);
SL_CUDA_RUN(sl_cuda_linear_skinny_q6_k);
SL_CUDA_RUN(sl_cuda_linear_skinny_mxfp4);
SL_CUDA_RUN(sl_cuda_linear_skinny_nvfp4);
SL_CUDA_RUN(sl_cuda_linear_skinny_nvfp4_128);
SL_CUDA_RUN(sl_cuda_linear_skinny_fp8_128);
SL_CUDA_RUN(sl_cuda_gated_skinny);
SL_CUDA_RUN(sl_cuda_gated_skinny_f16);
SL_CUDA_RUN(sl_cuda_gated_skinny_bf16);
SL_CUDA_RUN(sl_cuda_gated_skinny_q8_0);
SL_CUDA_RUN(sl_cuda_gated_skinny_q4_0);
SL_CUDA_RUN(sl_cuda_gated_skinny_q4_k);
SL_CUDA_RUN(sl_cuda_gated_skinny_q5_k);
SL_CUDA_RUN(sl_cuda_gated_skinny_q6_k);
SL_CUDA_RUN(sl_cuda_gated_skinny_mxfp4);
SL_CUDA_RUN(sl_cuda_gated_skinny_nvfp4);
SL_CUDA_RUN(sl_cuda_gated_skinny_nvfp4_128);
SL_CUDA_RUN(sl_cuda_gated_skinny_fp8_128);
/* The same product, but the sums of its columns' ranges to op->scratch instead of y: whoever reads it adds
 * them, one after the other. Neither bias nor residual. */
#define SL_CUDA_RANGES(name)                                                                                 \
    cudaError_t name(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,              \
                     sl_cuda_ranges *ranges)
SL_CUDA_RANGES(sl_cuda_skinny_ranges);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_f16);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_bf16);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_q8_0);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_q4_0);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_q4_k);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_q5_k);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_q6_k);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_mxfp4);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_nvfp4);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_nvfp4_128);
SL_CUDA_RANGES(sl_cuda_ranges_skinny_fp8_128);
uint64_t sl_cuda_skinny_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* Why the first op of the run is not a product that sl_cuda_skinny_ranges does, or NULL. */
const char *sl_cuda_ranges_reason(const sl_fusion_query *query);
const char *sl_cuda_skinny_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_gated_skinny_declines(const sl_fusion *fusion, const sl_fusion_query *query);
/* Allows the kernels their shared memory; once per device, before a launch. */
cudaError_t sl_cuda_skinny_prepare(int device);
cudaError_t sl_cuda_skinny_prepare_legacy(void);
cudaError_t sl_cuda_skinny_prepare_kquants(void);
cudaError_t sl_cuda_skinny_prepare_small(void);
/* matmul_thin.cu: class "bf16/k16" (k16.h) for up to 4 rows; with activate and quantize behind it likewise */
SL_CUDA_RUN(sl_cuda_linear_thin_f16);
SL_CUDA_RUN(sl_cuda_linear_thin_bf16);
SL_CUDA_RUN(sl_cuda_linear_thin_q8_0);
SL_CUDA_RUN(sl_cuda_linear_thin_q4_0);
SL_CUDA_RUN(sl_cuda_linear_thin_q4_k);
SL_CUDA_RUN(sl_cuda_linear_thin_q5_k);
SL_CUDA_RUN(sl_cuda_linear_thin_q6_k);
SL_CUDA_RUN(sl_cuda_gated_thin);
const char *sl_cuda_thin_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_gated_thin_declines(const sl_fusion *fusion, const sl_fusion_query *query);
cudaError_t sl_cuda_thin_prepare(int device);
/* matmul_slim.cu: the same class for up to 8 rows, of more than thin takes */
SL_CUDA_RUN(sl_cuda_linear_slim_f16);
SL_CUDA_RUN(sl_cuda_linear_slim_bf16);
SL_CUDA_RUN(sl_cuda_linear_slim_q8_0);
SL_CUDA_RUN(sl_cuda_linear_slim_q4_0);
SL_CUDA_RUN(sl_cuda_linear_slim_q4_k);
SL_CUDA_RUN(sl_cuda_linear_slim_q5_k);
SL_CUDA_RUN(sl_cuda_linear_slim_q6_k);
SL_CUDA_RUN(sl_cuda_gated_slim);
SL_CUDA_RANGES(sl_cuda_slim_ranges); /* as sl_cuda_skinny_ranges */
const char *sl_cuda_slim_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_cuda_gated_slim_declines(const sl_fusion *fusion, const sl_fusion_query *query);
cudaError_t sl_cuda_slim_prepare(void); /* by sl_cuda_skinny_prepare */
/* mmq_*.cu: int8 tensor cores, the class of `few` and `many`; `mmq_batch` for few to middling rows,
 * `mmq_tile` for many */
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q8_0);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q4_0);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q4_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q5_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q6_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q4_1);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q5_0);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q5_1);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q2_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_q3_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_iq4_nl);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_iq4_xs);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_mxfp4);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_nvfp4);
SL_CUDA_RUN(sl_cuda_linear_mmq_batch_nvfp4_128);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q8_0);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q4_0);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q4_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q5_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q6_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q4_1);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q5_0);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q5_1);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q2_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_q3_k);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_iq4_nl);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_iq4_xs);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_mxfp4);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_nvfp4);
SL_CUDA_RUN(sl_cuda_linear_mmq_tile_nvfp4_128);
const char *sl_cuda_mmq_declines(const sl_kernel *kernel, const sl_kernel_query *query);
cudaError_t sl_cuda_mmq_prepare(int device);
cudaError_t sl_cuda_mmq_prepare_legacy(int most_bytes);
cudaError_t sl_cuda_mmq_prepare_kquants(int most_bytes);
cudaError_t sl_cuda_mmq_prepare_fives(int most_bytes);
cudaError_t sl_cuda_mmq_prepare_bits(int most_bytes);
cudaError_t sl_cuda_mmq_prepare_fp4(int most_bytes);
cudaError_t sl_cuda_mmq_prepare_tables(int most_bytes);
/* digest.cu: adds an order-free 64-bit digest of `bytes` (a multiple of 4) at `data` to *digest, on the
 * device */
cudaError_t sl_cuda_digest(const void *data, uint64_t bytes, unsigned long long *digest, cudaStream_t stream);

/* table.c: all kernels, the preferred first. Constant. */
const sl_kernel *const *sl_cuda_registry(int32_t *count);
const sl_fusion *const *sl_cuda_fusions(int32_t *count);

/* ---- checked calls (runtime.c) ---- */

/* Of one executor. A CUDA error in a step is final: `fault` keeps it, and every later call returns it. */
typedef struct sl_cuda_device {
    int32_t index;
    cudaStream_t stream;
    uint64_t allocations, synchronisations;
    sl_error fault;
} sl_cuda_device;

/* Evaluates a CUDA runtime call unless a test asked for a failure here; 0 or an SL_ERR_ code. */
#define SL_CUDA(call, error) sl_cuda_result(sl_cuda_inject() ? cudaErrorUnknown : (call), #call, (error))
int sl_cuda_result(cudaError_t code, const char *call, sl_error *error);
/* True when this is the call that a test wants to fail. */
bool sl_cuda_inject(void);
/* For tests, exported by the module: the n-th next checked call fails (1 = the next; 0 = none). */
__attribute__((visibility("default"))) void sl_cuda_fail_at(uint64_t nth);
/* Checked calls since the module was loaded. */
__attribute__((visibility("default"))) uint64_t sl_cuda_call_count(void);
/* Allocations, on the device and pinned ones, that were not freed yet. */
__attribute__((visibility("default"))) uint64_t sl_cuda_live_count(void);

/* Zero bytes give a valid pointer too. */
int sl_cuda_malloc(sl_cuda_device *device, uint64_t bytes, void **memory, sl_error *error);
int sl_cuda_malloc_host(sl_cuda_device *device, uint64_t bytes, void **memory, sl_error *error);
/* Errors do not matter any more here; NULL is fine. */
void sl_cuda_free(void *memory);
void sl_cuda_free_host(void *memory);
/* Waiting inside a step or while loading; counted. */
int sl_cuda_synchronize(sl_cuda_device *device, sl_error *error);

/* ---- weights (upload.c) ---- */

/* Copies the deployment's weights, one after the other at multiples of 64, to the pool. offsets:
 * [weight_count], filled in. Waits until all are there. */
int sl_cuda_upload(sl_cuda_device *device, const sl_deployment *deployment, unsigned char *pool,
                   uint64_t *offsets, const sl_progress *progress, sl_error *error);

/* ---- profile (profile.c, peaks.cu) ---- */

/* A list of ops and all that launching them takes. */
typedef struct sl_cuda_list {
    const sl_cuda_context *context;
    const sl_cuda_op *ops;
    int32_t count;
} sl_cuda_list;

/* Measures the list, whose step block is on the device. `memory`: weights, to measure how fast memory is
 * read. Allocates graphs, waits for the device. */
int sl_cuda_profile(sl_cuda_device *device, const sl_cuda_list *list, const void *memory, uint64_t bytes,
                    sl_profile *profile, sl_error *error);
/* Reads all `bytes` (whole 16-byte words count) once. *sink is written only if the sum is one unlikely
 * number. */
cudaError_t sl_cuda_peak_read(const void *memory, uint64_t bytes, uint32_t *sink, cudaStream_t stream);
/* BF16 products of arbitrary numbers, as many as the tensor cores take; *operations: how many
 * multiplications and additions that is, 0 where there is no such kernel for the device. */
cudaError_t sl_cuda_peak_tensor(int device, float *sink, double *operations, cudaStream_t stream);

/* exec.c */
extern const sl_backend_functions sl_cuda_functions;

#ifdef __cplusplus
}
#endif
#endif

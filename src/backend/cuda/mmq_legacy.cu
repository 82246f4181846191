/* int8 tensor-core products of weights in blocks of 32, and what all of mmq_*.cu share on the host. */
#include "backend/cuda/mmq_launch.cuh"
#include "backend/cuda/units.h"

enum { LEAST_BYTES = 112 * 1024 };

MMQ_RUN(Q8_0, q8_0)
MMQ_RUN(Q4_0, q4_0)

cudaError_t sl_cuda_mmq_prepare_legacy(int most_bytes) {
    const cudaError_t code = mmq_prepare<SL_QTYPE_Q8_0>(most_bytes);
    return code ? code : mmq_prepare<SL_QTYPE_Q4_0>(most_bytes);
}

cudaError_t sl_cuda_mmq_prepare(int device) {
    int most_bytes = 0, major = 0;
    cudaError_t code = cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    code = code ? code : cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code || major < 8 || most_bytes < LEAST_BYTES) {
        return code;
    }
    code = sl_cuda_mmq_prepare_legacy(most_bytes);
    code = code ? code : sl_cuda_units_batch_prepare(most_bytes);
    code = code ? code : sl_cuda_mmq_prepare_kquants(most_bytes);
    code = code ? code : sl_cuda_mmq_prepare_fives(most_bytes);
    code = code ? code : sl_cuda_mmq_prepare_bits(most_bytes);
    code = code ? code : sl_cuda_mmq_prepare_fp4(most_bytes);
    return code ? code : sl_cuda_mmq_prepare_tables(most_bytes);
}

const char *sl_cuda_mmq_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    const int device = query->backend->options.device;
    int major = 0, bytes = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        major < 8) {
        return "needs compute capability 8.0";
    }
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess ||
        bytes < LEAST_BYTES) {
        return "needs 112 KiB of shared memory in a block";
    }
    if (weight->columns % MMQ_CHUNK != 0) {
        return "takes columns in chunks of 256";
    }
    for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
        if (query->program->weights[op->u.linear.segments[s].weight].rows < BATCH_OUTPUTS) {
            return "takes 16 weight rows or more";
        }
    }
    /* x is read in pieces of 16 bytes, scales and sums too. */
    const sl_value *x = &query->values[op->in[0].value];
    if (x->width % 128 != 0 || op->in[0].column % 128 != 0) {
        return "takes rows of x aligned to 16 bytes";
    }
    /* Of an expert's rows it is the step that counts. */
    const sl_rows kind = query->values[op->out[0].value].rows;
    const int32_t rows = query->rows[kind == SL_ROWS_EXPERT ? SL_ROWS_STEP : kind];
    if (row->most_rows > 0 && rows > row->most_rows) {
        return "is for fewer rows";
    }
    if (rows < row->least_rows) {
        return "is for more rows";
    }
    /* Above that BF16 is faster; not a matter of speed alone where one class must serve all. */
    if (!query->backend->options.deterministic && row->best_rows > 0 && rows > row->best_rows) {
        return "is slower than BF16 for so many rows";
    }
    return NULL;
}

/* Many-row matrix products of floating-point weights; what all types share on the host. */
#include "backend/cuda/matmul_wgmma.cuh"

SL_CUDA_RUN(sl_cuda_linear_mma_f16) {
    return launch_type<SL_QTYPE_F16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_mma_bf16) {
    return launch_type<SL_QTYPE_BF16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_f16) {
    return wgmma_launch_type<SL_QTYPE_F16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_bf16) {
    return wgmma_launch_type<SL_QTYPE_BF16>(context, op, stream);
}

/* The instructions are those of 9.0 alone: later chips have others. */
static cudaError_t has_wgmma(int device, bool *has) {
    int major = 0;
    const cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    *has = major == 9;
    return code;
}

cudaError_t sl_cuda_matmul_prepare(int device) {
    int most_bytes = 0;
    bool wgmma = false;
    cudaError_t code = cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    code = code ? code : has_wgmma(device, &wgmma);
    code = code ? code : prepare_type<SL_QTYPE_F16>(most_bytes);
    code = code ? code : prepare_type<SL_QTYPE_BF16>(most_bytes);
    code = code || !wgmma ? code : wgmma_prepare_type<SL_QTYPE_F16>();
    code = code || !wgmma ? code : wgmma_prepare_type<SL_QTYPE_BF16>();
    code = code ? code : sl_cuda_matmul_prepare_legacy(most_bytes, wgmma);
    return code ? code : sl_cuda_matmul_prepare_kquants(most_bytes, wgmma);
}

const char *sl_cuda_matmul_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    if (weight->columns % GROUP != 0) {
        return "takes columns in groups of 32";
    }
    /* x is read in pieces of 8 columns; a converted x starts at column 0. */
    const sl_value *x = &query->values[op->in[0].value];
    if (x->type == SL_VALUE_BF16 && (op->in[0].column % 8 != 0 || x->width % 8 != 0)) {
        return "takes x at multiples of 8 columns";
    }
    /* Of an expert's rows it is the step that counts. */
    const sl_rows rows = query->values[op->out[0].value].rows;
    if (query->rows[rows == SL_ROWS_EXPERT ? SL_ROWS_STEP : rows] <= SL_CUDA_FEW_ROWS) {
        return "is for more than 8 rows";
    }
    return NULL;
}

const char *sl_cuda_wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    bool has = false;
    if (has_wgmma(query->backend->options.device, &has) != cudaSuccess || !has) {
        return "needs compute capability 9.0";
    }
    return sl_cuda_matmul_declines(kernel, query);
}

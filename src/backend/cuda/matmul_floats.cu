/* Many-row matrix products of floating-point weights; what all types share on the host. */
#include "backend/cuda/matmul_ring.cuh"
#include "quant/qtype.h"

#include <string.h>

SL_CUDA_RUN(sl_cuda_linear_mma_f16) {
    return launch_type<SL_QTYPE_F16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_mma_bf16) {
    return launch_type<SL_QTYPE_BF16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_f16) {
    return ring_launch_type<SL_QTYPE_F16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_gated_wgmma_f16) {
    return ring_launch_gated<SL_QTYPE_F16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_bf16) {
    return ring_launch_type<SL_QTYPE_BF16>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_gated_wgmma_bf16) {
    return ring_launch_gated<SL_QTYPE_BF16>(context, op, stream);
}

/* The instructions are those of 9.0 alone: later chips have others. */
cudaError_t sl_cuda_has_wgmma(int device, bool *has) {
    int major = 0;
    const cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    *has = major == 9;
    return code;
}

cudaError_t sl_cuda_matmul_prepare(int device) {
    int most_bytes = 0;
    bool wgmma = false;
    cudaError_t code = cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    code = code ? code : sl_cuda_has_wgmma(device, &wgmma);
    code = code ? code : prepare_type<SL_QTYPE_F16>(most_bytes);
    code = code ? code : prepare_type<SL_QTYPE_BF16>(most_bytes);
    code = code || !wgmma ? code : ring_prepare_type<SL_QTYPE_F16>();
    code = code || !wgmma ? code : ring_prepare_type<SL_QTYPE_BF16>();
    code = code ? code : sl_cuda_matmul_prepare_fp8(most_bytes);
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

/* What the ring's bulk copies need, beyond what all many-row products do. */
const char *sl_cuda_wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_cuda_matmul_declines(kernel, query);
    if (reason) {
        return reason;
    }
    bool has = false;
    if (sl_cuda_has_wgmma(query->backend->options.device, &has) != cudaSuccess || !has) {
        return "needs compute capability 9.0";
    }
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    const bool blocks = sl_qtype_get(weight->type)->block_elements > 1;
    if (weight->columns % (blocks ? 256 : 128) != 0) {
        return blocks ? "takes columns in groups of 256" : "takes columns in groups of 128";
    }
    return weight->experts > RING_EXPERTS ? "takes up to 512 experts" : NULL;
}

const char *sl_cuda_k16_wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    if (query->op->in[1].value == SL_NONE) {
        return "is for experts";
    }
    return sl_cuda_wgmma_declines(kernel, query);
}

const char *sl_cuda_gated_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    if (query->kernels[0]->declines != sl_cuda_wgmma_declines &&
        query->kernels[0]->declines != sl_cuda_k16_wgmma_declines) {
        return "is for products of wgmma";
    }
    return sl_cuda_gated_reason(query);
}

const char *sl_cuda_gated_reason(const sl_fusion_query *query) {
    const sl_op *linear = &query->ops[0], *activate = &query->ops[1], *quantize = &query->ops[2];
    const sl_op_linear *parts = &linear->u.linear;
    const int32_t width = activate->u.activate.width, first = parts->segments[0].weight;
    const int32_t rows = query->program->weights[first].rows;
    const sl_operand *y = &linear->out[0], *gate = &activate->in[0], *up = &activate->in[1];
    int32_t gate_column = parts->segments[0].column, up_column = gate_column + width;
    if (parts->segment_count == 1) {
        if (rows != 2 * width || parts->segments[0].bias != SL_NONE) {
            return "one weight must be gates and values, without bias";
        }
    } else if (parts->segment_count == 2) {
        up_column = parts->segments[1].column;
        if ((parts->segments[0].bias == SL_NONE) != (parts->segments[1].bias == SL_NONE)) {
            return "both weights must have a bias or none";
        }
        if (rows != width || query->program->weights[parts->segments[1].weight].rows != width) {
            return "both weights must be as high as the activation is wide";
        }
    } else {
        return "takes gates and values, nothing else";
    }
    if (linear->in[3].value != SL_NONE) {
        return "takes no residual";
    }
    if (gate->value != y->value || up->value != y->value || gate->column != y->column + gate_column ||
        up->column != y->column + up_column) {
        return "the activation must read what the product writes";
    }
    if (quantize->in[0].value != activate->out[0].value ||
        quantize->in[0].column != activate->out[0].column || quantize->u.quantize.width != width ||
        query->values[quantize->out[0].value].type != SL_VALUE_BF16) {
        return "the activation must become BF16, all of it";
    }
    return query->unread[0][0] && query->unread[1][0] ? NULL : "something else reads what it would not write";
}

SL_CUDA_RUN(sl_cuda_gated_wgmma) {
    switch (op->weights[0].type) {
    case SL_QTYPE_F16:
        return sl_cuda_gated_wgmma_f16(context, op, stream);
    case SL_QTYPE_BF16:
        return sl_cuda_gated_wgmma_bf16(context, op, stream);
    case SL_QTYPE_Q8_0:
        return sl_cuda_gated_wgmma_q8_0(context, op, stream);
    case SL_QTYPE_Q4_0:
        return sl_cuda_gated_wgmma_q4_0(context, op, stream);
    case SL_QTYPE_Q4_K:
        return sl_cuda_gated_wgmma_q4_k(context, op, stream);
    case SL_QTYPE_Q5_K:
        return sl_cuda_gated_wgmma_q5_k(context, op, stream);
    case SL_QTYPE_Q6_K:
        return sl_cuda_gated_wgmma_q6_k(context, op, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

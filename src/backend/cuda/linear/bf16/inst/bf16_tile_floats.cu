/* Many-row matrix products of floating-point weights; what all types share on the host. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"
#include "quant/qtype.h"

static const sl_cuda_kernel KERNELS[] = {
    TILES_WGMMA(F16, f16, 1.5e-2f, 1.5e-2f),
    TILES_WGMMA(BF16, bf16, 1e-4f, 1e-4f),
    BF16_TILE_MMA(F16, f16, 1.5e-2f),
    BF16_TILE_MMA(BF16, bf16, 1e-4f),
};

static cudaError_t prepare(const sl_cuda_facts *facts) {
    const cudaError_t code = prepare_mma<SL_QTYPE_F16, SL_QTYPE_BF16>(facts);
    return code ? code : prepare_wgmma<SL_QTYPE_F16, SL_QTYPE_BF16>(facts);
}

SL_CUDA_FAMILY(bf16_tile_floats) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};

const char *sl_bf16_tile_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
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
const char *sl_bf16_tile_wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_arrangement arrangement = ((const sl_cuda_kernel *)kernel)->arrangement;
    if (arrangement == SL_CUDA_K16_TILE && query->op->in[1].value == SL_NONE) {
        return "is for experts";
    }
    const char *reason = sl_bf16_tile_declines(kernel, query);
    reason = reason ? reason : sl_cuda_device_declines(arrangement, sl_cuda_facts_of(query->backend));
    if (reason) {
        return reason;
    }
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    const bool blocks = sl_qtype_get(weight->type)->block_elements > 1;
    if (sl_cuda_columns(weight) % (blocks ? 256 : 128) != 0) {
        return blocks ? "takes columns in groups of 256" : "takes columns in groups of 128";
    }
    return weight->experts > TILE_EXPERTS ? "takes up to 512 experts" : NULL;
}

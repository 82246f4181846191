/* What one row's experts in two launches take (i8_experts.cuh). Their kernels are in inst/i8_experts_*.cu. */
#include "backend/cuda/linear/i8/i8_experts.cuh"
#include "backend/cuda/linear/linear.h"

/* ---- types ---- */

static const sl_i8_experts_list LISTS[] = {sl_i8_experts_kquants, sl_i8_experts_bits, sl_i8_experts_fp4,
                                           sl_i8_experts_codebooks};

static const sl_i8_experts *type_of(sl_qtype type) {
    for (const sl_i8_experts_list list : LISTS) {
        for (const sl_i8_experts *row = list(); row->prepare; row++) {
            if (row->type == type) {
                return row;
            }
        }
    }
    return NULL;
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    for (const sl_i8_experts_list list : LISTS) {
        for (const sl_i8_experts *row = list(); row->prepare; row++) {
            code = code || !facts->has_wgmma ? code : row->prepare(facts->block_bytes);
        }
    }
    return code;
}

/* ROUTER, LINEAR of gate and up, ACTIVATE, QUANTIZE, LINEAR of down, COMBINE. */
static SL_CUDA_RUN(run) {
    const cudaError_t code = type_of(op[1].weights[0].type)->gated(context, op, stream);
    return code ? code : type_of(op[4].weights[0].type)->down(context, op, stream);
}

/* ---- what they take ---- */

static bool same(const sl_operand &a, const sl_operand &b, int32_t column) {
    return a.value == b.value && a.column == b.column + column;
}

/* Whether the ops are one row's experts, each reading what the one before wrote, but for gates and values. */
static bool is_chain(const sl_fusion_query *query, sl_value_type format) {
    const sl_op *router = &query->ops[0], *gated = router + 1, *activate = router + 2, *quantize = router + 3,
                *down = router + 4, *combine = router + 5;
    const int32_t width = activate->u.activate.width;
    return same(quantize->in[0], activate->out[0], 0) && quantize->u.quantize.width == width &&
           query->values[quantize->out[0].value].type == format && same(gated->in[1], router->out[0], 0) &&
           same(down->in[0], quantize->out[0], 0) && same(down->in[1], router->out[0], 0) &&
           same(combine->in[0], down->out[0], down->u.linear.segments[0].column) &&
           same(combine->in[1], router->out[1], 0);
}

/* Whether the activation's operands are gate and up, two segments of one height. */
static bool is_gated(const sl_fusion_query *query) {
    const sl_op *gated = &query->ops[1], *activate = gated + 1;
    const sl_linear_segment *segments = gated->u.linear.segments;
    const sl_weight *weights = query->program->weights;
    const int32_t width = weights[segments[0].weight].rows;
    return gated->u.linear.segment_count == 2 && weights[segments[1].weight].rows == width &&
           same(activate->in[0], gated->out[0], segments[0].column) &&
           same(activate->in[1], gated->out[0], segments[1].column) && activate->u.activate.width == width;
}

/* What the run computes and nobody else may read. */
static bool is_unread(const sl_fusion_query *query) {
    for (int32_t i = 0; i < 5; i++) {
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            if (query->ops[i].out[o].value != SL_NONE && !query->unread[i][o]) {
                return false;
            }
        }
    }
    return true;
}

const char *sl_cuda_experts_reason(const sl_fusion_query *query, sl_value_type format, bool swiglu_oai) {
    const sl_op *router = &query->ops[0], *gated = router + 1, *down = router + 4, *combine = router + 5;
    const sl_weight *out = &query->program->weights[down->u.linear.segments[0].weight];
    if (query->rows[SL_ROWS_STEP] > 1) {
        return "takes experts of one row";
    }
    if (down->u.linear.segment_count != 1 || gated->in[3].value != SL_NONE || down->in[3].value != SL_NONE ||
        query->values[gated->in[0].value].rows != SL_ROWS_STEP) {
        return "takes down in one segment, and no residuals";
    }
    const char *reason = sl_cuda_activation_reason(&query->ops[2], swiglu_oai);
    if (reason || !sl_router_is_simple(&router->u.router)) {
        return reason ? reason : "takes routers without groups and factors";
    }
    if (!is_chain(query, format) || !is_unread(query) || combine->u.combine.width != out->rows) {
        return "takes ops that read each other's output, and no others do";
    }
    return router->u.router.experts > CHOICE_EXPERTS || router->u.router.used > CHOICE_USED
               ? "takes 256 experts, and 32 of a row"
               : NULL;
}

static const char *declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    const sl_op *router = &query->ops[0], *gated = router + 1, *down = router + 4;
    const sl_weight *weights = query->program->weights;
    for (int32_t i = 1; i <= 4; i += 3) {
        if (sl_cuda_arrangement_of(query, i) != SL_CUDA_I8_ROW1) {
            return "is for products of another kernel";
        }
    }
    const sl_weight *gate = &weights[gated->u.linear.segments[0].weight];
    const sl_weight *out = &weights[down->u.linear.segments[0].weight];
    const char *reason = sl_cuda_experts_reason(query, SL_VALUE_Q8_32, SL_CUDA_TAKES_OAI(gate->type));
    if (reason) {
        return reason;
    }
    if (!is_gated(query)) {
        return "takes gate and up in two segments";
    }
    if (!type_of(gate->type) || !type_of(out->type)) {
        return "takes weights of integer types";
    }
    if (query->ops[2].u.activate.width % SL_Q8_32_GROUP != 0) {
        return "takes experts of whole groups of 32";
    }
    /* gpt-oss: of 12 chunks 24 lanes of a warp have one, which takes longer than a launch for each op. */
    if (sl_cuda_is_padded(query, &query->ops[3]) && SL_WARP % (sl_cuda_columns(gate) / SL_CHUNK) != 0) {
        return "takes rows with zeros behind them where these divide a warp";
    }
    if (sl_cuda_columns(gate) > SL_WARP * SL_CHUNK ||
        (int64_t)router->u.router.used * sl_cuda_columns(out) > EXPERTS_MOST_COLUMNS) {
        return "takes 8192 columns, and 16384 outputs of a row's experts";
    }
    return sl_cuda_facts_of(query->backend)->has_wgmma ? NULL : "takes devices of capability 9.0";
}

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run, declines, "router+linear-i8-row1+activate+quantize+linear-i8-row1+combine",
                   SL_OP_ROUTER, SL_OP_LINEAR, SL_OP_ACTIVATE, SL_OP_QUANTIZE, SL_OP_LINEAR, SL_OP_COMBINE),
};

SL_CUDA_FAMILY(i8_experts) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), prepare};

/* One row's experts of class "bf16/k16" in two launches, for the types that experts come in. */
#include "backend/cuda/linear/k16/k16_experts.cuh"
#include "backend/cuda/linear/linear.h"

template <int TYPE> static cudaError_t prepare_type(void) {
    cudaError_t code = sl_allow_shared(thin_gated_kernel<TYPE, THIN_CHOICE_FEW>, THIN_BYTES);
    code = code ? code : sl_allow_shared(thin_gated_kernel<TYPE, THIN_CHOICE_MANY>, THIN_BYTES);
    return code ? code : sl_allow_shared(thin_down_kernel<TYPE>, THIN_DOWN_MOST);
}

/* Of a block of down with the shortest rings. */
template <int TYPE> static uint32_t down_bytes(int32_t used, int32_t columns) {
    thin_args args = {};
    uint32_t outputs;
    args.warps = used;
    args.stages = 2;
    args.ranges = args.rows = 1;
    args.weights[0].columns = columns;
    return thin_down_bytes<TYPE>(args, &outputs);
}

#define EXPERTS(ID)                                                                                          \
    {                                                                                                        \
        SL_QTYPE_##ID, thin_gated_launch<SL_QTYPE_##ID>, thin_down_launch<SL_QTYPE_##ID>,                    \
            prepare_type<SL_QTYPE_##ID>, down_bytes<SL_QTYPE_##ID>                                           \
    }
static const struct k16_experts_type {
    sl_qtype type;
    sl_cuda_run gated, down;
    cudaError_t (*prepare)(void);
    uint32_t (*down_bytes)(int32_t used, int32_t columns);
} TYPES[] = {EXPERTS(Q8_0), EXPERTS(Q4_0), EXPERTS(Q4_K), EXPERTS(Q5_K), EXPERTS(Q6_K)};

static const k16_experts_type *type_of(sl_qtype type) {
    for (const k16_experts_type &row : TYPES) {
        if (row.type == type) {
            return &row;
        }
    }
    return NULL;
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    for (const k16_experts_type &row : TYPES) {
        code = code || !facts->has_wgmma ? code : row.prepare();
    }
    return code;
}

/* ROUTER, LINEAR of gate and up, ACTIVATE, QUANTIZE, LINEAR of down, COMBINE. */
static SL_CUDA_RUN(run) {
    const cudaError_t code = type_of(op[1].weights[0].type)->gated(context, op, stream);
    return code ? code : type_of(op[4].weights[0].type)->down(context, op, stream);
}

static const char *declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    if (sl_cuda_arrangement_of(query, 1) != SL_CUDA_K16_ROWS4 ||
        sl_cuda_arrangement_of(query, 4) != SL_CUDA_K16_ROWS4) {
        return "is for products of k16-rows4";
    }
    const char *reason = sl_cuda_experts_reason(query, SL_VALUE_BF16, false);
    if (reason) {
        return reason;
    }
    sl_fusion_query products = *query;
    products.ops++;
    products.kernels++;
    products.unread++;
    reason = sl_cuda_gated_reason(&products, SL_VALUE_BF16);
    if (reason) {
        return reason;
    }
    const sl_op *router = &query->ops[0], *gated = router + 1, *down = router + 4;
    const sl_weight *gate = &query->program->weights[gated->u.linear.segments[0].weight];
    const sl_weight *out = &query->program->weights[down->u.linear.segments[0].weight];
    if (!type_of(gate->type) || !type_of(out->type)) {
        return "takes weights of q8_0, q4_0, q4_k, q5_k and q6_k";
    }
    const int32_t used = router->u.router.used;
    return used > THIN_EXPERTS_USED ? "takes up to 12 experts of a row"
           : type_of(out->type)->down_bytes(used, sl_cuda_columns(out)) > THIN_DOWN_MOST
               ? "takes narrower experts: two slots of weights and x of each must fit in shared memory"
               : NULL;
}

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run, declines, "router+linear-k16-rows4+activate+quantize+linear-k16-rows4+combine",
                   SL_OP_ROUTER, SL_OP_LINEAR, SL_OP_ACTIVATE, SL_OP_QUANTIZE, SL_OP_LINEAR, SL_OP_COMBINE),
};

SL_CUDA_FAMILY(k16_experts) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), prepare};

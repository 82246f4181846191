/* One row's experts of class "bf16/k16" in two launches, for the types that experts come in. */
#include "backend/cuda/matmul_thin_experts.cuh"

typedef cudaError_t (*experts_launch)(const sl_cuda_context *context, const sl_cuda_op *op,
                                      cudaStream_t stream);

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
static const struct experts_type {
    sl_qtype type;
    experts_launch gated, down;
    cudaError_t (*prepare)(void);
    uint32_t (*down_bytes)(int32_t used, int32_t columns);
} TYPES[] = {EXPERTS(Q8_0), EXPERTS(Q4_0), EXPERTS(Q4_K), EXPERTS(Q5_K), EXPERTS(Q6_K)};

static const experts_type *type_of(sl_qtype type) {
    for (const experts_type &row : TYPES) {
        if (row.type == type) {
            return &row;
        }
    }
    return NULL;
}

cudaError_t sl_cuda_thin_experts_prepare(void) {
    cudaError_t code = cudaSuccess;
    for (const experts_type &row : TYPES) {
        code = code ? code : row.prepare();
    }
    return code;
}

/* ROUTER, LINEAR of gate and up, ACTIVATE, QUANTIZE, LINEAR of down, COMBINE. */
SL_CUDA_RUN(sl_cuda_thin_experts) {
    const cudaError_t code = type_of(op[1].weights[0].type)->gated(context, op, stream);
    return code ? code : type_of(op[4].weights[0].type)->down(context, op, stream);
}

const char *sl_cuda_thin_experts_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    if (query->kernels[1]->declines != sl_cuda_thin_declines ||
        query->kernels[4]->declines != sl_cuda_thin_declines) {
        return "is for products of thin";
    }
    const char *reason = sl_cuda_experts_reason(query, SL_VALUE_BF16);
    if (reason) {
        return reason;
    }
    sl_fusion_query products = *query;
    products.ops++;
    products.kernels++;
    products.unread++;
    reason = sl_cuda_gated_reason(&products);
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
           : type_of(out->type)->down_bytes(used, out->columns) > THIN_DOWN_MOST
               ? "takes narrower experts: two slots of weights and x of each must fit in shared memory"
               : NULL;
}

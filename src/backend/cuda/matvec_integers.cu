/* Matrix products with few rows of x and integer weights: what the plan asks of `stream`, `ring`, `held`,
 * `rows` and `units`, and what an activation behind them takes. */
#include "backend/cuda/matvec_stream.cuh"

static cudaError_t shared_bytes(int device, int *bytes) {
    return cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

cudaError_t sl_cuda_matvec_prepare(int device) {
    int most_bytes = 0;
    cudaError_t code = shared_bytes(device, &most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_legacy(most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_units(most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_held(most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_wide(most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_kquants(most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_fives(most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_bits(most_bytes);
    code = code ? code : sl_cuda_matvec_prepare_nvfp4(most_bytes);
    return code ? code : sl_cuda_matvec_prepare_tables(most_bytes);
}

/* ---- kernels ---- */

const char *sl_cuda_matvec_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const int32_t columns = query->program->weights[op->u.linear.segments[0].weight].columns;
    int bytes = 0;
    if (shared_bytes(query->backend->options.device, &bytes) != cudaSuccess || bytes < MATVEC_SHARED_BYTES) {
        return "needs 227 KiB of shared memory";
    }
    if (columns % SL_CHUNK != 0 || columns > MATVEC_COLUMNS) {
        return "takes a multiple of 256 columns, at most 32768";
    }
    /* A row of x is int8 with 8 bytes per group of 32, and read 16 bytes at a time. */
    if (query->values[op->in[0].value].width % 64 != 0 || op->in[0].column % 32 != 0) {
        return "takes rows aligned to 16 bytes";
    }
    return sl_cuda_linear_declines(kernel, query);
}

static bool has_experts(const sl_kernel_query *query) {
    return query->op->in[1].value != SL_NONE;
}

static int32_t rows_of(const sl_kernel_query *query) {
    return query->rows[query->values[query->op->out[0].value].rows];
}

/* Bulk copies, and tensor maps. */
static bool has_bulk_copies(const sl_backend *backend) {
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, backend->options.device) ==
               cudaSuccess &&
           major >= 9;
}

const char *sl_cuda_ring_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_cuda_matvec_declines(kernel, query);
    return !reason && !has_experts(query) && rows_of(query) > 1 ? "is for one row, or for experts" : reason;
}

const char *sl_cuda_stream_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_cuda_matvec_declines(kernel, query);
    return reason                            ? reason
           : has_experts(query)              ? "takes no experts"
           : rows_of(query) > 1              ? "is for one row"
           : has_bulk_copies(query->backend) ? NULL
                                             : "needs compute capability 9.0";
}

const char *sl_cuda_rows_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_cuda_matvec_declines(kernel, query);
    return !reason && has_experts(query) ? "takes no experts" : reason;
}

/* ---- with an activation ---- */

SL_CUDA_RUN(sl_cuda_matvec_activate) {
    return op->kernel->run(context, op, stream);
}

static bool same(sl_operand a, sl_operand b, int32_t column) {
    return a.value == b.value && a.column == b.column + column;
}

/* Whether `stream` has room for the sums of a block's whole range. */
static bool stream_has_room(const sl_backend *backend, const sl_weight *gate) {
    int bytes = 0, processors = 0;
    if (shared_bytes(backend->options.device, &bytes) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, backend->options.device) !=
            cudaSuccess) {
        return false;
    }
    sl_matvec_args args = {};
    args.activates = true;
    args.segments = 2;
    args.weights[0].rows = args.weights[1].rows = gate->rows;
    sl_matvec_cut(1, processors, &args);
    const int32_t most = sl_matvec_most(args) * args.granule, chunks = gate->columns / SL_CHUNK;
    return gate->type == SL_QTYPE_Q8_0 ? stream_activates<SL_QTYPE_Q8_0>(chunks, most, bytes)
                                       : stream_activates<SL_QTYPE_Q4_K>(chunks, most, bytes);
}

/* Gate and up are the linear's two segments; nothing but a bias is added to them. */
const char *sl_cuda_matvec_activate_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *linear = &query->ops[0], *activate = &query->ops[1];
    const sl_op_linear *product = &linear->u.linear;
    if (query->kernels[0]->declines != ((const sl_cuda_fusion *)fusion)->product) {
        return "is for products of another kernel";
    }
    const sl_weight *gate = &query->program->weights[product->segments[0].weight];
    const int32_t width = gate->rows;
    if (product->segment_count != 2 || query->program->weights[product->segments[1].weight].rows != width ||
        width % 32 != 0 || activate->u.activate.width != width || linear->in[3].value != SL_NONE) {
        return "takes two segments of whole groups of 32";
    }
    if (!same(activate->in[0], linear->out[0], product->segments[0].column) ||
        !same(activate->in[1], linear->out[0], product->segments[1].column) ||
        (fusion->count > 2 &&
         !(same(query->ops[2].in[0], activate->out[0], 0) && query->ops[2].u.quantize.width == width &&
           query->values[query->ops[2].out[0].value].type == SL_VALUE_Q8_32))) {
        return "takes ops that read each other's output";
    }
    if (query->kernels[0]->declines == sl_cuda_stream_declines && !stream_has_room(query->backend, gate)) {
        return "takes so many outputs that the sums of a block fit into shared memory";
    }
    return NULL;
}

/* Products for many rows in class "q8_256": launches of planes.cuh. */
#include "backend/cuda/planes.cuh"
#include "backend/cuda/planes_rows.cuh"

enum { LEAST_SHARED = 227 * 1024, MANY_ROWS = 128, FEW_ROWS = 64 /* of a tile */ };

/* What a product needs of the scratch. */
typedef struct planes_cut {
    int32_t tile_rows, x_rows, chunks;
    int32_t row_tiles; /* at most */
    uint64_t plan_bytes, x_bytes, scale_bytes;
} planes_cut;

/* experts: 0 for one matrix. */
static planes_cut cut_of(int32_t rows, int32_t columns, int32_t experts) {
    planes_cut cut;
    const int32_t each = experts > 0 ? rows / experts : rows;
    cut.tile_rows = each <= FEW_ROWS * 3 / 4 || (experts == 0 && rows <= FEW_ROWS) ? FEW_ROWS : MANY_ROWS;
    cut.row_tiles = (rows + cut.tile_rows - 1) / cut.tile_rows + experts;
    cut.x_rows = (rows + 7) / 8 * 8 + 8 * experts + cut.tile_rows;
    cut.chunks = columns / UNITS_CHUNK;
    cut.plan_bytes =
        experts > 0 ? (sizeof(planes_plan) + (uint64_t)cut.row_tiles * sizeof(planes_tile) + 63) / 64 * 64
                    : 0;
    cut.x_bytes = (uint64_t)cut.x_rows * UNITS_CHUNK * (uint64_t)cut.chunks;
    cut.scale_bytes = (uint64_t)cut.x_rows * 4 * (uint64_t)cut.chunks;
    return cut;
}

uint64_t sl_cuda_planes_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    const planes_cut cut = cut_of(query->rows[query->values[query->op->out[0].value].rows], weight->columns,
                                  query->op->in[2].value != SL_NONE ? weight->experts : 0);
    return cut.plan_bytes + cut.x_bytes + cut.scale_bytes;
}

const char *sl_cuda_planes_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    const int device = query->backend->options.device;
    int major = 0, minor = 0, bytes = 0;
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
        major != 9 || minor != 0) {
        return "needs compute capability 9.0";
    }
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess ||
        bytes < LEAST_SHARED) {
        return "needs 227 KiB of shared memory";
    }
    if (weight->columns % UNITS_CHUNK != 0) {
        return "takes columns in chunks of 256";
    }
    if (query->values[op->in[0].value].width % 64 != 0 || op->in[0].column % 32 != 0) {
        return "takes rows aligned to 16 bytes";
    }
    /* Of an expert's rows it is the step that counts. */
    const sl_rows kind = query->values[op->out[0].value].rows;
    if (query->rows[kind == SL_ROWS_EXPERT ? SL_ROWS_STEP : kind] < row->least_rows) {
        return "is for more rows";
    }
    return NULL;
}

template <int TYPE, int ROWS>
static cudaError_t launch_rows(const sl_cuda_context *context, const sl_cuda_op *op, const planes_cut &cut,
                               const planes_args &args, cudaStream_t stream) {
    const int32_t x_share =
        op->out[0].rows == SL_ROWS_EXPERT && op->in[0].rows == SL_ROWS_STEP ? context->experts_used : 1;
    cudaError_t code = cudaSuccess;
    if (args.plan) {
        const sl_launch_shape one = {dim3(1), dim3(SL_WARP), 0};
        code = sl_launch(context, stream, one, planes_plan_kernel<ROWS>, (const int32_t *)op->in[2].head,
                         op->weights[0].experts, (planes_plan *)args.plan);
    }
    const sl_launch_shape fill = {dim3((unsigned)cut.row_tiles, (unsigned)(ROWS * cut.chunks / PLANES_EACH)),
                                  dim3(PLANES_FILL), 0};
    code =
        code ? code
             : sl_launch(context, stream, fill, planes_rows_kernel<ROWS>, *context, args, op->in[0], x_share);
    const int32_t tiles = cut.row_tiles * args.segment_tile[SL_LINEAR_SEGMENTS];
    const sl_launch_shape shape = {
        dim3((unsigned)(tiles < context->processors ? tiles : context->processors)), dim3(PLANES_THREADS),
        planes_memory<ROWS>::bytes};
    return code ? code : sl_launch(context, stream, shape, planes_kernel<TYPE, ROWS>, *context, args);
}

template <int TYPE>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    planes_args args = {};
    const bool experts = op->in[2].data != NULL;
    int32_t tiles = 0;
    args.segments = op->weight_count;
    for (int32_t s = 0; s < op->weight_count; s++) {
        args.weights[s] = op->weights[s];
        args.segment_tile[s] = tiles;
        tiles += (op->weights[s].rows + PLANES_OUTPUTS - 1) / PLANES_OUTPUTS;
    }
    args.segment_tile[SL_LINEAR_SEGMENTS] = tiles;
    const planes_cut cut =
        cut_of(op->rows[op->out[0].rows], op->weights[0].columns, experts ? op->weights[0].experts : 0);
    args.plan = experts ? (const planes_plan *)op->scratch : NULL;
    args.list = (const int32_t *)op->in[2].data;
    args.x = op->scratch + cut.plan_bytes;
    args.x_scales = (const float *)(args.x + cut.x_bytes);
    args.x_rows = cut.x_rows;
    args.chunks = cut.chunks;
    args.y = op->out[0];
    args.residual = op->in[3];
    return cut.tile_rows == FEW_ROWS ? launch_rows<TYPE, FEW_ROWS>(context, op, cut, args, stream)
                                     : launch_rows<TYPE, MANY_ROWS>(context, op, cut, args, stream);
}

SL_CUDA_RUN(sl_cuda_linear_planes_q4_k) {
    return launch<SL_QTYPE_Q4_K>(context, op, stream);
}

template <int TYPE, int ROWS> static cudaError_t prepare(int bytes) {
    return planes_memory<ROWS>::bytes > bytes
               ? cudaSuccess
               : cudaFuncSetAttribute(planes_kernel<TYPE, ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      planes_memory<ROWS>::bytes);
}

cudaError_t sl_cuda_planes_prepare(int device) {
    int bytes = 0;
    cudaError_t code = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    code = code ? code : prepare<SL_QTYPE_Q4_K, FEW_ROWS>(bytes);
    return code ? code : prepare<SL_QTYPE_Q4_K, MANY_ROWS>(bytes);
}

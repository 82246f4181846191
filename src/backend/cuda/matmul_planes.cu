/* Products for many rows in class "q8_256": launches of planes.cuh. */
#include "backend/cuda/planes.cuh"
#include "backend/cuda/planes_scratch.cuh"

enum { TILE_BYTES = 2 * PLANES_OUTPUTS * UNITS_CHUNK, LEAST_SHARED = 227 * 1024 };
#define PANEL_BYTES ((uint64_t)64 << 20) /* of decoded weights, about */

/* How a product is cut. */
typedef struct planes_cut {
    int32_t tile_rows, cluster, rows; /* rows: of x, with padding */
    int32_t chunks, tiles, panel;     /* tiles of outputs: all, and those decoded at a time */
    uint64_t w_bytes, unit_bytes, x_bytes, scale_bytes;
} planes_cut;

static planes_cut cut_of(int32_t rows, int32_t columns, int32_t tiles) {
    planes_cut cut;
    cut.tile_rows = rows <= 64 ? 64 : 128;
    cut.cluster = rows <= 128 ? 1 : 2;
    const int32_t step = cut.tile_rows * cut.cluster;
    cut.rows = (rows + step - 1) / step * step;
    cut.chunks = columns / UNITS_CHUNK;
    cut.tiles = tiles;
    const int64_t most = (int64_t)(PANEL_BYTES / ((uint64_t)TILE_BYTES * (uint64_t)cut.chunks));
    const int32_t panels = most < 1 ? tiles : (int32_t)((tiles + most - 1) / most);
    cut.panel = (tiles + panels - 1) / panels;
    cut.w_bytes = (uint64_t)cut.panel * TILE_BYTES * (uint64_t)cut.chunks;
    cut.unit_bytes = (uint64_t)cut.panel * PLANES_OUTPUTS * 4 * (uint64_t)cut.chunks;
    cut.x_bytes = (uint64_t)cut.rows * UNITS_CHUNK * (uint64_t)cut.chunks;
    cut.scale_bytes = (uint64_t)cut.rows * 4 * (uint64_t)cut.chunks;
    return cut;
}

static int32_t tiles_of(int32_t rows) {
    return (rows + PLANES_OUTPUTS - 1) / PLANES_OUTPUTS;
}

uint64_t sl_cuda_planes_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_linear *linear = &query->op->u.linear;
    const sl_weight *weights = query->program->weights;
    int32_t tiles = 0;
    for (int32_t s = 0; s < linear->segment_count; s++) {
        tiles += tiles_of(weights[linear->segments[s].weight].rows);
    }
    const planes_cut cut = cut_of(query->rows[query->values[query->op->out[0].value].rows],
                                  weights[linear->segments[0].weight].columns, tiles);
    return cut.w_bytes + cut.unit_bytes + cut.x_bytes + cut.scale_bytes;
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
    if (op->in[1].value != SL_NONE || op->in[2].value != SL_NONE) {
        return "takes no experts";
    }
    if (weight->columns % UNITS_CHUNK != 0) {
        return "takes columns in chunks of 256";
    }
    if (query->values[op->in[0].value].width % 64 != 0 || op->in[0].column % 32 != 0) {
        return "takes rows aligned to 16 bytes";
    }
    if (query->rows[query->values[op->out[0].value].rows] < row->least_rows) {
        return "is for more rows";
    }
    return NULL;
}

template <int ROWS, int CLUSTER>
static cudaError_t multiply(const sl_cuda_context *context, const planes_args &args, cudaStream_t stream) {
    sl_launch_shape shape = {};
    const int32_t most = context->processors / CLUSTER * CLUSTER;
    shape.grid = dim3((unsigned)(args.tiles < most ? args.tiles : most));
    shape.block = dim3(PLANES_THREADS);
    shape.shared_bytes = planes_memory<ROWS>::bytes;
    shape.cluster = CLUSTER;
    return sl_launch(context, stream, shape, planes_kernel<ROWS, CLUSTER>, *context, args);
}

static cudaError_t fill_x(const sl_cuda_context *context, const sl_cuda_op *op, const planes_cut &cut,
                          const planes_args &args, cudaStream_t stream) {
    planes_rows x = {};
    x.x = op->in[0];
    x.chunks = cut.chunks;
    x.rows = cut.rows;
    x.to = (unsigned char *)args.x;
    x.scales = (float *)args.x_scales;
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)((cut.rows * cut.chunks + PLANES_EACH - 1) / PLANES_EACH));
    shape.block = dim3(PLANES_FILL);
    return sl_launch(context, stream, shape, planes_rows_kernel, *context, x);
}

template <int TYPE>
static cudaError_t fill_weights(const sl_cuda_context *context, const planes_args &args, int32_t count,
                                cudaStream_t stream) {
    planes_weights w = {};
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS; s++) {
        w.weights[s] = args.weights[s];
        w.segment_tile[s] = args.segment_tile[s];
    }
    w.segments = args.segments;
    w.first = args.first_tile;
    w.count = count;
    w.chunks = args.chunks;
    w.to = (unsigned char *)args.w;
    w.units = (float *)args.units;
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)((int64_t)count * 128 * args.chunks / PLANES_EACH));
    shape.block = dim3(PLANES_FILL);
    return sl_launch(context, stream, shape, planes_weights_kernel<TYPE>, w);
}

template <int TYPE>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    planes_args args = {};
    int32_t tiles = 0;
    args.segments = op->weight_count;
    for (int32_t s = 0; s < op->weight_count; s++) {
        args.weights[s] = op->weights[s];
        args.segment_tile[s] = tiles;
        tiles += tiles_of(op->weights[s].rows);
    }
    const planes_cut cut = cut_of(op->rows[op->out[0].rows], op->weights[0].columns, tiles);
    args.w = op->scratch;
    args.x = args.w + cut.w_bytes;
    args.units = (const float *)(args.x + cut.x_bytes);
    args.x_scales = args.units + cut.unit_bytes / 4;
    args.x_rows = cut.rows;
    args.chunks = cut.chunks;
    args.row_tiles = cut.rows / cut.tile_rows;
    args.y = op->out[0];
    args.residual = op->in[3];
    cudaError_t code = fill_x(context, op, cut, args, stream);
    for (int32_t first = 0; first < tiles && !code; first += cut.panel) {
        const int32_t count = tiles - first < cut.panel ? tiles - first : cut.panel;
        args.first_tile = first;
        args.outputs = count * PLANES_OUTPUTS;
        args.tiles = args.row_tiles * count;
        code = fill_weights<TYPE>(context, args, count, stream);
        code = code                  ? code
               : cut.tile_rows == 64 ? multiply<64, 1>(context, args, stream)
               : cut.cluster == 1    ? multiply<128, 1>(context, args, stream)
                                     : multiply<128, 2>(context, args, stream);
    }
    return code;
}

SL_CUDA_RUN(sl_cuda_linear_planes_q4_k) {
    return launch<SL_QTYPE_Q4_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_planes_q8_0) {
    return launch<SL_QTYPE_Q8_0>(context, op, stream);
}

template <int ROWS, int CLUSTER> static cudaError_t prepare(int bytes) {
    return planes_memory<ROWS>::bytes > bytes
               ? cudaSuccess
               : cudaFuncSetAttribute(planes_kernel<ROWS, CLUSTER>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, planes_memory<ROWS>::bytes);
}

cudaError_t sl_cuda_planes_prepare(int device) {
    int bytes = 0;
    cudaError_t code = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    code = code ? code : prepare<64, 1>(bytes);
    code = code ? code : prepare<128, 1>(bytes);
    return code ? code : prepare<128, 2>(bytes);
}

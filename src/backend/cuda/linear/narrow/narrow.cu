/* Which tile an eight-bit product has, its tensor maps, and its launch. */
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/linear/narrow/narrow_shapes.cuh"
#include "backend/cuda/ptx/bulk_copy.cuh"

typedef struct shape_list {
    const sl_narrow_shape *at;
    int32_t count;
} shape_list;

static shape_list shapes_of(const sl_narrow_product *product) {
    if (product->values) {
        return {product->kind == SL_NARROW_S8 ? sl_narrow_s8_gated_shapes
                : product->has_blocks         ? sl_narrow_e4m3_blocks_gated_shapes
                                              : sl_narrow_e4m3_gated_shapes,
                SL_NARROW_GATED_SHAPES};
    }
    return {product->kind == SL_NARROW_S8 ? sl_narrow_s8_shapes
            : product->has_blocks         ? sl_narrow_e4m3_blocks_shapes
                                          : sl_narrow_e4m3_shapes,
            SL_NARROW_SHAPES};
}

cudaError_t sl_narrow_allow(const sl_cuda_facts *facts) {
    const shape_list lists[] = {{sl_narrow_e4m3_shapes, SL_NARROW_SHAPES},
                                {sl_narrow_e4m3_blocks_shapes, SL_NARROW_SHAPES},
                                {sl_narrow_s8_shapes, SL_NARROW_SHAPES},
                                {sl_narrow_e4m3_gated_shapes, SL_NARROW_GATED_SHAPES},
                                {sl_narrow_e4m3_blocks_gated_shapes, SL_NARROW_GATED_SHAPES},
                                {sl_narrow_s8_gated_shapes, SL_NARROW_GATED_SHAPES}};
    cudaError_t code = cudaSuccess;
    for (const shape_list &list : lists) {
        for (int32_t i = 0; i < list.count && facts->has_wgmma && !code; i++) {
            code = list.at[i].allow(list.at[i].bytes);
        }
    }
    return code;
}

/* Outputs that a tile of the product has: gates and values are two of each. */
static int32_t width_of(const sl_narrow_product *product, const sl_narrow_shape *shape) {
    return product->values ? shape->width / 2 : shape->width;
}

/* Tiles of clusters, at most: each expert that is chosen may have one more. */
static int64_t most_tiles(const sl_narrow_product *product, const sl_narrow_shape *shape) {
    const int64_t height = SL_NARROW_ROWS * shape->down, width = width_of(product, shape) * shape->across;
    const int64_t wide = (product->outputs + width - 1) / width;
    const int32_t chosen = product->experts < product->rows ? product->experts : product->rows;
    return wide *
           (product->experts ? product->rows / height + chosen : (product->rows + height - 1) / height);
}

/* Clusters that run at once. Those of more than two blocks leave 12 of 132 processors. */
static int32_t clusters_of(const sl_narrow_shape *shape, int32_t processors) {
    const int32_t blocks = shape->down * shape->across;
    return (blocks > 2 ? processors - processors / 11 : processors) / blocks;
}

/* The least time, as rounds of all processors' tiles. */
static int32_t choose_shape(const sl_narrow_product *product, int32_t processors) {
    int32_t best = 0;
    int64_t least = INT64_MAX;
    const shape_list shapes = shapes_of(product);
    for (int32_t i = 0; i < shapes.count; i++) {
        const sl_narrow_shape *shape = &shapes.at[i];
        const int64_t clusters = clusters_of(shape, processors);
        const int64_t time = (most_tiles(product, shape) + clusters - 1) / clusters * shape->time;
        if (time < least) {
            least = time;
            best = i;
        }
    }
    return best;
}

static cudaError_t make_maps(const sl_narrow_shape *shape, sl_narrow_plan *plan) {
    const sl_narrow_product *product = &plan->product;
    const uint64_t columns = (uint64_t)product->columns, rows = (uint64_t)product->rows,
                   outputs = (uint64_t)product->outputs,
                   groups = columns / (uint64_t)sl_narrow_group(product->kind),
                   experts = product->experts ? (uint64_t)product->experts : 1;
    const bool gated = product->values != NULL;
    const sl_cuda_tensor x = {product->x,
                              1,
                              {columns, rows, 1},
                              {product->x_row_bytes, product->x_row_bytes * rows},
                              {128, (uint32_t)(SL_NARROW_ROWS / shape->across)},
                              true};
    const sl_cuda_tensor x_scales = {
        product->x + product->x_scales, 1,
        {groups * 4, rows, 1},          {product->x_row_bytes, product->x_row_bytes * rows},
        {16, SL_NARROW_ROWS},           false};
    const sl_cuda_tensor weights = {product->weights,
                                    1,
                                    {columns, outputs, experts},
                                    {product->weight_row_bytes, product->weight_row_bytes * outputs},
                                    {128, (uint32_t)(gated ? shape->width / 2 : shape->width / shape->down)},
                                    true};
    /* Of blocks the first output of each 64: tiles begin there. */
    const uint64_t same = product->has_blocks ? SL_NARROW_BLOCK / 2 : 1;
    const bool pairs = product->kind == SL_NARROW_S8;
    const uint64_t scaled = pairs ? (outputs + 1) / 2 * 2 : outputs;
    const sl_cuda_tensor weight_scales = {
        product->weight_scales,
        1,
        {pairs ? (groups + 3) / 4 * 16 : groups * 4, (scaled + same - 1) / same, experts},
        {product->scale_row_bytes * same, product->scale_row_bytes * scaled},
        {16, (uint32_t)((width_of(product, shape) + same - 1) / same)},
        false};
    cudaError_t code = sl_cuda_tensor_map(&x, &plan->x);
    code = code ? code : sl_cuda_tensor_map(&x_scales, &plan->x_scales);
    code = code ? code : sl_cuda_tensor_map(&weights, &plan->weights);
    code = code ? code : sl_cuda_tensor_map(&weight_scales, &plan->weight_scales);
    if (gated) {
        sl_cuda_tensor values = weights, value_scales = weight_scales;
        values.data = product->values;
        value_scales.data = product->value_scales;
        code = code ? code : sl_cuda_tensor_map(&values, &plan->values);
        code = code ? code : sl_cuda_tensor_map(&value_scales, &plan->value_scales);
    }
    return code;
}

int sl_narrow_prepare_shape(const sl_narrow_product *product, int32_t shape, sl_narrow_plan *plan,
                            sl_error *error) {
    plan->product = *product;
    plan->shape = shape;
    if (product->rows <= 0 || product->outputs <= 0 || product->columns <= 0 ||
        product->columns % sl_narrow_group(product->kind) != 0 || product->experts > SL_NARROW_EXPERTS) {
        return sl_fail(error, SL_ERR_INVALID, "narrow product: %d rows, %d outputs, %d columns, %d experts",
                       product->rows, product->outputs, product->columns, product->experts);
    }
    const cudaError_t code = make_maps(&shapes_of(product).at[shape], plan);
    return code ? sl_fail(error, SL_ERR_DEVICE, "narrow product: its tensor maps: %s",
                          cudaGetErrorString(code))
                : SL_OK;
}

int sl_narrow_prepare(const sl_narrow_product *product, int32_t processors, sl_narrow_plan *plan,
                      sl_error *error) {
    return sl_narrow_prepare_shape(product, choose_shape(product, processors), plan, error);
}

cudaError_t sl_narrow_launch(const sl_cuda_context *context, const sl_narrow_plan *plan,
                             cudaStream_t stream) {
    const sl_narrow_shape *shape = &shapes_of(&plan->product).at[plan->shape];
    const int64_t tiles = most_tiles(&plan->product, shape),
                  clusters = clusters_of(shape, context->processors);
    const int32_t blocks = shape->down * shape->across;
    const sl_launch_shape launch = {dim3((unsigned)(blocks * (tiles < clusters ? tiles : clusters))),
                                    SL_NARROW_THREADS, (uint32_t)shape->bytes, (uint32_t)blocks};
    return shape->launch(context, plan, &launch, stream);
}

/* mmq_batch.cuh in class "q8_256", for 2 to 64 rows. x is brought to one scale for 256 columns first. */
#include "backend/cuda/mmq_batch.cuh"
#include "backend/cuda/units.h"

enum { FILL_THREADS = 256 };

/* Rows of x in the format they have, with a chunk's scale in place of its groups'; a thread takes a group. */
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ sl_cuda_operand from,
                const __grid_constant__ sl_cuda_operand to) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.y, groups = to.width / SL_Q8_32_GROUP;
    const int32_t group = (int32_t)(blockIdx.x * FILL_THREADS + threadIdx.x), at = min(group, groups - 1);
    if (row >= sl_count(context, from.rows)) {
        return;
    }
    const sl_q8_32 x = sl_q8_32_of(from, row), y = sl_q8_32_of(to, row);
    const float own = x.scales[at], scale = units_x_scale(own), ratio = units_x_ratio(own, scale);
    const uint4 low = ((const uint4 *)x.values)[2 * at], high = ((const uint4 *)x.values)[2 * at + 1];
    uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        words[i] = units_x_word(words[i], ratio);
        sum = __dp4a((int32_t)words[i], 0x01010101, sum);
    }
    if (group < groups) {
        ((uint4 *)y.values)[2 * group] = make_uint4(words[0], words[1], words[2], words[3]);
        ((uint4 *)y.values)[2 * group + 1] = make_uint4(words[4], words[5], words[6], words[7]);
        y.scales[group] = scale;
        y.sums[group] = sum;
    }
}

static uint64_t row_bytes_of(int32_t columns) {
    return (uint64_t)columns / 4 * 5;
}

uint64_t sl_cuda_units_batch_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    return (uint64_t)query->rows[query->values[query->op->in[0].value].rows] * row_bytes_of(weight->columns);
}

/* Few rows of experts are matvec's, which reads what was chosen. */
const char *sl_cuda_units_batch_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    if (query->op->in[2].value != SL_NONE && query->rows[SL_ROWS_STEP] <= SL_CUDA_FEW_ROWS) {
        return "is for more rows of experts";
    }
    return sl_cuda_mmq_declines(kernel, query);
}

template <int TYPE>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const int32_t columns = op->weights[0].columns, rows = op->rows[op->out[0].rows];
    sl_cuda_op moved = *op;
    moved.in[0].data = op->scratch;
    moved.in[0].row_bytes = (uint32_t)row_bytes_of(columns);
    moved.in[0].width = columns;
    moved.in[0].column = 0;
    const sl_launch_shape shape = {
        dim3((unsigned)((columns / SL_Q8_32_GROUP + FILL_THREADS - 1) / FILL_THREADS),
             (unsigned)op->rows[op->in[0].rows]),
        dim3(FILL_THREADS), 0};
    const cudaError_t code = sl_launch(context, stream, shape, fill_kernel, *context, op->in[0], moved.in[0]);
    const bool experts = op->in[2].data != NULL;
    const int32_t load = experts ? (rows + op->weights[0].experts - 1) / op->weights[0].experts : rows;
    const int32_t limit = experts ? 4 : 8; /* loads of experts differ */
    return code                ? code
           : load <= limit     ? batch_launch<TYPE, 1>(context, &moved, stream)
           : load <= 2 * limit ? batch_launch<TYPE, 2>(context, &moved, stream)
                               : batch_launch<TYPE, 4>(context, &moved, stream);
}

SL_CUDA_RUN(sl_cuda_linear_units_batch_q4_k) {
    return launch<MMQ_UNITS + SL_QTYPE_Q4_K>(context, op, stream);
}

template <int TYPE> static cudaError_t prepare(int most_bytes) {
    cudaError_t code = batch_prepare_shape<TYPE, 1>(most_bytes);
    code = code ? code : batch_prepare_shape<TYPE, 2>(most_bytes);
    return code ? code : batch_prepare_shape<TYPE, 4>(most_bytes);
}

cudaError_t sl_cuda_units_batch_prepare(int most_bytes) {
    return prepare<MMQ_UNITS + SL_QTYPE_Q4_K>(most_bytes);
}

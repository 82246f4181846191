/* Ops that treat each row by itself. The grid covers the bucket's rows; blocks of rows that a step does not
 * have return at once. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256 };

static unsigned blocks_for(int64_t items, int64_t per_block) {
    return (unsigned)((items + per_block - 1) / per_block);
}

/* ---- embed ---- */

typedef struct embed_args {
    sl_cuda_weight table;
    sl_cuda_operand y;
    float scale;
} embed_args;

/* A token outside the table gives zeros: the step's maker checks ids, and nothing is read outside in any
 * case. */
static __global__ void embed_kernel(sl_cuda_context context, embed_args args) {
    const int32_t row = (int32_t)blockIdx.x;
    if (row >= context.header->rows) {
        return;
    }
    const sl_step_row *source = &context.rows[row];
    const int32_t token = source->source == SL_ROW_LAST_TOKEN
                              ? context.last_tokens[context.spans[source->span].slot]
                              : source->token;
    float *y = sl_f32(args.y, row);
    const bool inside = token >= 0 && token < args.table.rows;
    const unsigned char *values = args.table.data + (inside ? (uint64_t)token : 0) * args.table.row_bytes;
    for (int32_t i = (int32_t)threadIdx.x; i < args.table.columns; i += THREADS) {
        y[i] = inside ? sl_decode(args.table.type, values, i) * args.scale : 0.0f;
    }
}

SL_CUDA_RUN(sl_cuda_embed) {
    const embed_args args = {op->weights[0], op->out[0], op->op->u.embed.scale};
    embed_kernel<<<op->rows[SL_ROWS_STEP], THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

/* ---- rmsnorm ---- */

typedef struct rmsnorm_args {
    sl_op_rmsnorm norm;
    sl_cuda_operand x, residual, gate, y, sum;
    const float *weight;
    int32_t y_stride;
} rmsnorm_args;

/* One block per row and group. Class "f32/tree": each thread adds the squares of its elements in rising
 * order, then sl_block_sum; the number of threads depends on the group's width alone. x, y, residual and sum
 * may be the same memory: a thread reads what it overwrites, and all squares are read before the first write.
 */
static __global__ void rmsnorm_kernel(sl_cuda_context context, rmsnorm_args args) {
    __shared__ float partial[SL_WARP];
    const int32_t row = (int32_t)blockIdx.x, group = (int32_t)blockIdx.y;
    if (row >= sl_count(context, args.y.rows)) {
        return;
    }
    const sl_op_rmsnorm norm = args.norm;
    const int32_t at = group * norm.stride, step = (int32_t)blockDim.x;
    const float *x = sl_f32(args.x, row) + at;
    float *y = sl_f32(args.y, row) + group * args.y_stride;
    float *sum = args.sum.data ? sl_f32(args.sum, row) + at : NULL;
    const float *gate = args.gate.data ? sl_f32(args.gate, row) + group * norm.gate_stride : NULL;
    const float *before = norm.residual == SL_RESIDUAL_BEFORE ? sl_f32(args.residual, row) + at : NULL;
    const float *after =
        norm.residual == SL_RESIDUAL_AFTER ? sl_f32(args.residual, row) + group * args.y_stride : NULL;

    float squares = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < norm.width; i += step) {
        const float value = before ? x[i] + before[i] : x[i];
        squares += value * value;
    }
    const float mean = sl_block_sum(squares, partial) / (float)norm.width;
    const float factor = 1.0f / sqrtf(mean + norm.epsilon);
    for (int32_t i = (int32_t)threadIdx.x; i < norm.width; i += step) {
        const float value = before ? x[i] + before[i] : x[i];
        float result = value * factor;
        if (args.weight) {
            result *= args.weight[i] + norm.weight_offset;
        }
        if (gate) {
            result *= sl_silu(gate[i]);
        }
        if (after) {
            result += after[i];
        }
        if (sum) {
            sum[i] = after ? result : value;
        }
        y[i] = result;
    }
}

SL_CUDA_RUN(sl_cuda_rmsnorm) {
    const sl_op_rmsnorm *norm = &op->op->u.rmsnorm;
    const bool in_place = op->op->in[0].value == op->op->out[0].value;
    const rmsnorm_args args = {*norm,
                               op->in[0],
                               op->in[1],
                               op->in[2],
                               op->out[0],
                               op->out[1],
                               (const float *)op->weights[0].data,
                               in_place ? norm->stride : norm->width};
    const dim3 grid((unsigned)op->rows[op->out[0].rows], (unsigned)norm->groups);
    const int threads = norm->width <= 256 ? (int)SL_WARP : (int)THREADS;
    rmsnorm_kernel<<<grid, threads, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

/* ---- quantize ---- */

typedef struct quantize_args {
    sl_cuda_operand x, q;
    int32_t width;
} quantize_args;

/* One warp per group of 32; the bits of sl_q8_32_encode. */
static __device__ void quantize_group(float value, sl_q8_32 row, int32_t group, int32_t lane) {
    const uint32_t magnitude = __reduce_max_sync(SL_FULL_WARP, sl_f32_bits(value) & 0x7fffffffu);
    const float largest = sl_f32_from_bits(magnitude);
    const bool usable = largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
    int quant = 0;
    if (usable) {
        const float inverse = 127.0f / largest;
        quant = (int)(sl_f32_bits(value * inverse + 12582912.0f) & 0x7fffffu) - 0x400000;
    }
    row.values[32 * group + lane] = (int8_t)quant;
    const int sum = __reduce_add_sync(SL_FULL_WARP, quant);
    if (lane == 0) {
        row.sums[group] = sum;
        row.scales[group] = usable                          ? largest / 127.0f
                            : largest < SL_Q8_32_ZERO_BELOW ? 0.0f
                                                            : sl_f32_from_bits(0x7fc00000u);
    }
}

static __global__ void quantize_kernel(sl_cuda_context context, quantize_args args) {
    const int32_t row = (int32_t)blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (row >= sl_count(context, args.q.rows) || i / SL_WARP * SL_WARP >= args.width) {
        return;
    }
    if (args.q.type == SL_VALUE_Q8_32) {
        quantize_group(sl_f32(args.x, row)[i], sl_q8_32_of(args.q, row), i / SL_WARP, i % SL_WARP);
    } else if (i < args.width) {
        uint16_t *q = (uint16_t *)(args.q.data + (uint64_t)row * args.q.row_bytes) + args.q.column;
        q[i] = sl_f32_to_bf16(sl_f32(args.x, row)[i]);
    }
}

SL_CUDA_RUN(sl_cuda_quantize) {
    const quantize_args args = {op->in[0], op->out[0], op->op->u.quantize.width};
    const dim3 grid(blocks_for(args.width, THREADS), (unsigned)op->rows[op->out[0].rows]);
    quantize_kernel<<<grid, THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

/* ---- rope ---- */

typedef struct rope_args {
    sl_op_rope rope;
    sl_cuda_operand x;
    const float *frequencies;
} rope_args;

/* A block takes a row; each thread keeps the sine and cosine of its pair for all heads. */
static __global__ void rope_kernel(sl_cuda_context context, rope_args args) {
    const int32_t row = (int32_t)blockIdx.x;
    if (row >= context.header->rows) {
        return;
    }
    const sl_op_rope rope = args.rope;
    const int32_t pairs = rope.dims / 2;
    const int32_t apart = rope.layout == SL_ROPE_HALVES ? pairs : 1;
    const int32_t step = rope.layout == SL_ROPE_HALVES ? 1 : 2;
    float *x = sl_f32(args.x, row);
    for (int32_t i = (int32_t)threadIdx.x; i < pairs; i += (int32_t)blockDim.x) {
        const float angle = (float)context.rows[row].position * args.frequencies[i];
        const float cosine = cosf(angle) * rope.magnitude;
        const float sine = sinf(angle) * rope.magnitude;
        for (int32_t head = (int32_t)threadIdx.y; head < rope.heads; head += (int32_t)blockDim.y) {
            float *pair = x + head * rope.stride + i * step;
            const float a = pair[0], b = pair[apart];
            pair[0] = a * cosine - b * sine;
            pair[apart] = a * sine + b * cosine;
        }
    }
}

SL_CUDA_RUN(sl_cuda_rope) {
    const rope_args args = {op->op->u.rope, op->out[0], (const float *)op->weights[0].data};
    const dim3 block(SL_WARP, 8);
    rope_kernel<<<op->rows[SL_ROWS_STEP], block, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

/* ---- combine ---- */

typedef struct combine_args {
    sl_op_combine combine;
    sl_cuda_operand x, weights, residual, shared, shared_gate, y;
} combine_args;

static __global__ void combine_kernel(sl_cuda_context context, combine_args args) {
    const int32_t row = (int32_t)blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (row >= sl_count(context, args.y.rows) || i >= args.combine.width) {
        return;
    }
    const float *weights = sl_f32(args.weights, row);
    float sum = 0;
    for (int32_t rank = 0; rank < args.combine.used; rank++) {
        sum += weights[rank] * sl_f32(args.x, (int64_t)row * args.combine.used + rank)[i];
    }
    if (args.shared.data) {
        const float weight = args.shared_gate.data ? sl_sigmoid(*sl_f32(args.shared_gate, row)) : 1.0f;
        sum += sl_f32(args.shared, row)[i] * weight;
    }
    sl_f32(args.y, row)[i] = args.residual.data ? sum + sl_f32(args.residual, row)[i] : sum;
}

SL_CUDA_RUN(sl_cuda_combine) {
    const combine_args args = {op->op->u.combine, op->in[0], op->in[1], op->in[2],
                               op->in[3],         op->in[4], op->out[0]};
    const dim3 grid(blocks_for(args.combine.width, THREADS), (unsigned)op->rows[op->out[0].rows]);
    combine_kernel<<<grid, THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

/* ---- activate, gather, softcap ---- */

typedef struct element_args {
    sl_cuda_operand a, b, y;
    int32_t width, function;
    float cap;
} element_args;

/* Hugging Face's gelu_pytorch_tanh. */
static __device__ float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static __global__ void activate_kernel(sl_cuda_context context, element_args args) {
    const int32_t row = (int32_t)blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (row < sl_count(context, args.y.rows) && i < args.width) {
        const float gate = sl_f32(args.a, row)[i], up = sl_f32(args.b, row)[i];
        sl_f32(args.y, row)[i] = (args.function == SL_ACTIVATION_SILU ? sl_silu(gate) : gelu_tanh(gate)) * up;
    }
}

SL_CUDA_RUN(sl_cuda_activate) {
    const element_args args = {
        op->in[0], op->in[1], op->out[0], op->op->u.activate.width, op->op->u.activate.function, 0};
    const dim3 grid(blocks_for(args.width, THREADS), (unsigned)op->rows[op->out[0].rows]);
    activate_kernel<<<grid, THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

static __global__ void gather_kernel(sl_cuda_context context, element_args args) {
    const int32_t output = (int32_t)blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (output < context.header->outputs && i < args.width) {
        sl_f32(args.y, output)[i] = sl_f32(args.a, context.outputs[output].row)[i];
    }
}

SL_CUDA_RUN(sl_cuda_gather) {
    const element_args args = {op->in[0], op->in[0], op->out[0], op->op->u.gather.width, 0, 0};
    const dim3 grid(blocks_for(args.width, THREADS), (unsigned)op->rows[SL_ROWS_OUTPUT]);
    gather_kernel<<<grid, THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

static __global__ void softcap_kernel(sl_cuda_context context, element_args args) {
    const int32_t row = (int32_t)blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (row < sl_count(context, args.y.rows) && i < args.width) {
        float *x = sl_f32(args.y, row) + i;
        *x = args.cap * tanhf(*x / args.cap);
    }
}

SL_CUDA_RUN(sl_cuda_softcap) {
    const element_args args = {
        op->in[0], op->in[0], op->out[0], op->op->u.softcap.width, 0, op->op->u.softcap.cap};
    const dim3 grid(blocks_for(args.width, THREADS), (unsigned)op->rows[op->out[0].rows]);
    softcap_kernel<<<grid, THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

/* What the integer matvec kernels share: arguments, and what follows the sums. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ARGUMENTS_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ARGUMENTS_CUH

#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/common/linear_arguments.cuh"
#include "backend/cuda/rows/row_ops.cuh"

enum { SL_CHUNK = 256, SL_CHUNK_GROUPS = SL_CHUNK / SL_Q8_32_GROUP }; /* columns; groups of 32 */

/* What the plan takes them for: rows whose x still fits beside the weights, and devices with the shared
 * memory that the largest blocks nearly use. */
enum { MATVEC_COLUMNS = 32768, MATVEC_SHARED_BYTES = 227 * 1024 };

/* ---- arguments ---- */

enum { SL_GRANULE = SL_Q8_32_GROUP }; /* outputs that a block activates together */

/* The weight rows are cut into units. A block takes an equal part of them, in whole granules: where an
 * activation follows, 32 rows of the gate and the same 32 of up; otherwise one unit. */
typedef struct sl_matvec_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_unit[SL_LINEAR_SEGMENTS + 1]; /* of each segment, when there is no activation; the end */
    int32_t segments;
    int32_t units, unit; /* in all; weight rows of one */
    int32_t granule;     /* units */
    int32_t each, more;  /* granules of a block */
    int32_t chunks;      /* of a row */
    bool activates;
    int32_t function; /* sl_activation */
    sl_cuda_operand x, ids, residual, y;
    sl_cuda_operand active,
        quantized; /* data is NULL when they are not asked for; so y's, with an activation */
    const sl_step_header *header;
    int32_t experts_used, x_share; /* x_share: rows of y that read one row of x */
} sl_matvec_args;

static __device__ __forceinline__ int32_t sl_matvec_rows(const sl_matvec_args &args) {
    switch (args.y.rows) {
    case SL_ROWS_STEP:
        return args.header->rows;
    case SL_ROWS_EXPERT:
        return args.header->rows * args.experts_used;
    default:
        return args.header->outputs;
    }
}

/* The units of this block: the first `more` blocks take a granule more than the others. */
static __device__ __forceinline__ void sl_matvec_range(const sl_matvec_args &args, int32_t *first,
                                                       int32_t *end) {
    const int32_t block = (int32_t)blockIdx.x, granule = block * args.each + min(block, args.more);
    *first = granule * args.granule;
    *end = (granule + args.each + (block < args.more)) * args.granule;
}

/* The segment and the first row of a unit. */
static __device__ __forceinline__ int32_t sl_matvec_unit(const sl_matvec_args &args, int32_t unit,
                                                         int32_t *row) {
    int32_t segment = 0;
    if (args.activates) {
        const int32_t granule = unit / args.granule, at = unit - granule * args.granule;
        segment = 2 * at >= args.granule;
        *row = granule * SL_GRANULE + (at - (segment ? args.granule / 2 : 0)) * args.unit;
        return segment;
    }
    while (segment + 1 < args.segments && unit >= args.first_unit[segment + 1]) {
        segment++;
    }
    *row = (unit - args.first_unit[segment]) * args.unit;
    return segment;
}

/* What an op, and an ACTIVATE and a QUANTIZE behind it in one run, ask for: all but how rows are cut. */
static inline sl_matvec_args sl_matvec_args_of(const sl_cuda_context *context, const sl_cuda_op *op) {
    sl_matvec_args args = {};
    sl_linear_fill(context, op, &args);
    args.chunks = op->weights[0].columns / SL_CHUNK;
    args.ids = op->in[1];
    args.header = context->header;
    args.experts_used = context->experts_used;
    args.activates = op->run_length > 1;
    if (args.activates) {
        args.function = op[1].op->u.activate.function;
        args.y.data = op[0].unread[0] ? NULL : args.y.data;
        args.active = op[1].out[0];
        if (op->run_length > 2) {
            args.active.data = op[1].unread[0] ? NULL : args.active.data;
            args.quantized = op[2].out[0];
        }
    }
    return args;
}

/* Cuts the weight rows into units of `unit`, with an activation a divisor of 32, for at most `blocks` blocks.
 * Returns how many there are. */
static inline int32_t sl_matvec_cut(int32_t unit, int32_t blocks, sl_matvec_args *args) {
    args->unit = unit;
    for (int32_t s = 0; s < args->segments; s++) {
        args->first_unit[s] = args->units;
        args->units += (args->weights[s].rows + unit - 1) / unit;
    }
    args->first_unit[args->segments] = args->units;
    args->granule = args->activates ? 2 * SL_GRANULE / unit : 1;
    const int32_t granules = args->units / args->granule;
    blocks = blocks < granules ? blocks : granules;
    args->each = granules / blocks;
    args->more = granules % blocks;
    return blocks;
}

/* The most granules of a block. */
static inline int32_t sl_matvec_most(const sl_matvec_args &args) {
    return args.each + (args.more > 0);
}

/* n / divisor for n below 2^16, when `inverse` is sl_matvec_inverse(divisor) and that divisor below 2^8. */
static inline uint32_t sl_matvec_inverse(int32_t divisor) {
    return ((1u << 24) + (uint32_t)divisor - 1) / (uint32_t)divisor;
}

static __device__ __forceinline__ int32_t sl_matvec_divide(int32_t n, uint32_t inverse) {
    return (int32_t)((uint64_t)(uint32_t)n * inverse >> 24);
}

/* ---- what follows the sums ---- */

static __device__ __forceinline__ float sl_matvec_biased(const sl_cuda_weight &weight, int32_t expert,
                                                         int32_t output, float value) {
    return weight.bias ? value + weight.bias[(int64_t)expert * weight.rows + output] : value;
}

/* A lane's element of a group of 32, the bits of sl_q8_32_encode. */
static __device__ __forceinline__ void sl_matvec_quantize(float value, const sl_q8_32 &row, int32_t group) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const uint32_t magnitude = __reduce_max_sync(SL_FULL_WARP, sl_f32_bits(value) & 0x7fffffffu);
    const float largest = sl_f32_from_bits(magnitude);
    const bool usable = largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
    int quant = 0;
    if (usable) {
        quant = (int)(sl_f32_bits(value * (127.0f / largest) + 12582912.0f) & 0x7fffffu) - 0x400000;
    }
    row.values[SL_Q8_32_GROUP * group + lane] = (int8_t)quant;
    const int sum = __reduce_add_sync(SL_FULL_WARP, quant);
    if (lane == 0) {
        row.sums[group] = sum;
        row.scales[group] = usable                          ? largest / 127.0f
                            : largest < SL_Q8_32_ZERO_BELOW ? 0.0f
                                                            : sl_f32_from_bits(0x7fc00000u);
    }
}

/* Activates 32 outputs of a row, `granule` of them before; by a warp. sums: a lane's, of gate and up;
 * function: of these, with their biases. */
template <typename FUNCTION>
static __device__ __forceinline__ void sl_matvec_activate_by(const sl_matvec_args &args, int32_t expert,
                                                             int32_t row, int32_t granule, float2 sums,
                                                             FUNCTION function) {
    const int32_t output = granule * SL_GRANULE + (int32_t)threadIdx.x % SL_WARP;
    const float gate = sl_matvec_biased(args.weights[0], expert, output, sums.x);
    const float up = sl_matvec_biased(args.weights[1], expert, output, sums.y);
    if (args.y.data) {
        sl_f32(args.y, row)[args.weights[0].column + output] = gate;
        sl_f32(args.y, row)[args.weights[1].column + output] = up;
    }
    const float value = function(gate, up);
    if (args.active.data) {
        sl_f32(args.active, row)[output] = value;
    }
    if (args.quantized.data) {
        sl_matvec_quantize(value, sl_q8_32_of(args.quantized, row), granule);
    }
}

/* By the activations that sl_activation_is_gate names. */
static __device__ __forceinline__ void sl_matvec_activate(const sl_matvec_args &args, int32_t expert,
                                                          int32_t row, int32_t granule, float gate,
                                                          float up) {
    sl_matvec_activate_by(args, expert, row, granule, make_float2(gate, up), [&args](float g, float u) {
        return (args.function == SL_ACTIVATION_SILU ? sl_silu(g) : sl_gelu_tanh(g)) * u;
    });
}

#endif

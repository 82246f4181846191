/* What device code of several files uses. */
#ifndef SL_BACKEND_CUDA_COMMON_DEVICE_CUH
#define SL_BACKEND_CUDA_COMMON_DEVICE_CUH

#include "backend/cuda/ptx/cluster.cuh"
#include "backend/cuda/ptx/copy.cuh"
#include "backend/cuda/cuda.h"
#include "quant/activation.h"
#include "quant/blocks.h"

#include <cuda_runtime.h>

enum { SL_WARP = 32 };
#define SL_FULL_WARP 0xffffffffu

/* ---- launches ---- */

typedef struct sl_launch_shape {
    dim3 grid, block;
    uint32_t shared_bytes; /* dynamic shared memory */
    uint32_t cluster = 1;  /* blocks, neighbours along x, that share their shared memory (from 9.0 on) */
} sl_launch_shape;

/* Launches a kernel that begins with sl_wait_for_inputs(). Where the device can, its blocks come up while the
 * kernel before it drains (programmatic dependent launch, CUDA programming guide). */
template <typename... PARAMETERS, typename... ARGUMENTS>
static cudaError_t sl_launch(const sl_cuda_context *context, cudaStream_t stream,
                             const sl_launch_shape &shape, void (*kernel)(PARAMETERS...),
                             ARGUMENTS &&...arguments) {
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (context->dependent_launches) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, static_cast<ARGUMENTS &&>(arguments)...);
}

/* Lets a kernel's blocks have up to `most_bytes` of dynamic shared memory, on processors divided for it: a
 * block cannot come up beside one of a kernel that asks for another division. */
template <typename KERNEL> static cudaError_t sl_allow_shared(KERNEL kernel, int most_bytes) {
    const cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes);
    return code ? code
                : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared);
}

/* First in every kernel that sl_launch launches, by every thread, before anything conditional: until it
 * returns, what the kernels before wrote is not there, and nothing may be written. Only weights may be read
 * earlier, and the step block, which is copied before a step's first launch. A block that left without it
 * could let the next kernel begin before the last one ended. */
static __device__ __forceinline__ void sl_wait_for_inputs(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Where the kernel's remaining work needs no more room than it has: the next kernel's blocks may come up. */
static __device__ __forceinline__ void sl_let_next_begin(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- shared memory from warp to warp ---- */

/* Lanes of a warp that arrive at the mbarrier at which it hands shared memory over. After __syncwarp() one is
 * enough. compute-sanitizer's racecheck takes as ordered what the arriving thread itself did, so in a module
 * for it all lanes arrive (docs/gpu-test.md). */
#ifdef SL_CUDA_RACECHECK
enum { SL_ARRIVING_LANES = SL_WARP };
#else
enum { SL_ARRIVING_LANES = 1 };
#endif

/* ---- numbers ---- */

/* Of the lower 16 bits, as f16. */
static __device__ __forceinline__ float sl_half_of(uint32_t bits) {
    float value;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
    return value;
}

/* Rounded to BF16; low in the lower half. */
static __device__ __forceinline__ uint32_t sl_bf16_pair(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* ---- operands ---- */

static __device__ __forceinline__ int32_t sl_count(const sl_cuda_context &context, sl_rows rows) {
    switch (rows) {
    case SL_ROWS_STEP:
        return context.header->rows;
    case SL_ROWS_EXPERT:
        return context.header->rows * context.experts_used;
    default:
        return context.header->outputs;
    }
}

static __device__ __forceinline__ float *sl_f32(const sl_cuda_operand &operand, int64_t row) {
    return (float *)(operand.data + (uint64_t)row * operand.row_bytes) + operand.column;
}

static __device__ __forceinline__ int32_t *sl_i32(const sl_cuda_operand &operand, int64_t row) {
    return (int32_t *)(operand.data + (uint64_t)row * operand.row_bytes) + operand.column;
}

/* From the operand's column on, which is a multiple of 32. */
static __device__ __forceinline__ sl_q8_32 sl_q8_32_of(const sl_cuda_operand &operand, int64_t row) {
    unsigned char *start = operand.data + (uint64_t)row * operand.row_bytes;
    sl_q8_32 planes;
    planes.values = (int8_t *)start + operand.column;
    planes.scales = (float *)(start + operand.width) + operand.column / SL_Q8_32_GROUP;
    planes.sums = (int32_t *)(start + operand.width + operand.width / 8) + operand.column / SL_Q8_32_GROUP;
    return planes;
}

static __device__ __forceinline__ float sl_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* Within 1e-6 of itself where it is not tiny. */
static __device__ __forceinline__ float sl_silu(float x) {
    return __fdividef(x, 1.0f + __expf(-x));
}

/* Hugging Face's gelu_pytorch_tanh. */
static __device__ __forceinline__ float sl_gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

/* function: of those that sl_activation_is_gate names */
static __device__ __forceinline__ float sl_activate(int32_t function, float x) {
    return function == SL_ACTIVATION_SILU ? sl_silu(x) : sl_gelu_tanh(x);
}

/* program.h's SWIGLU_OAI. No fminf: a NaN stays one. */
static __device__ __forceinline__ float sl_swiglu_oai(float alpha, float limit, float gate, float up) {
    const float least = up < -limit ? -limit : up, bounded = least > limit ? limit : least;
    const float c = gate > limit ? limit : gate;
    return __fdividef(c, 1.0f + __expf(-(alpha * c))) * (bounded + 1.0f);
}

/* What products compute of a gate and its value. OAI: swiglu_oai too, as the types that SL_CUDA_TAKES_OAI
 * (cuda.h) names. */
typedef struct sl_gating {
    int32_t function; /* sl_activation */
    float alpha, limit;
} sl_gating;

template <bool OAI>
static __device__ __forceinline__ float sl_gate(const sl_gating &how, float gate, float up) {
    return OAI && how.function == SL_ACTIVATION_SWIGLU_OAI ? sl_swiglu_oai(how.alpha, how.limit, gate, up)
                                                           : sl_activate(how.function, gate) * up;
}

static inline sl_gating sl_gating_of(const sl_op *op) {
    return {op->u.activate.function, op->u.activate.alpha, op->u.activate.limit};
}

/* Sum over a warp, the same bits in every lane. */
static __device__ __forceinline__ float sl_warp_sum(float value) {
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(SL_FULL_WARP, value, distance);
    }
    return value;
}

/* By the first warp: which rows of the schedule tile `tile` has, ROWS of them or an expert's last ones.
 * Experts one after the other, expert e's rows at offsets[e] .. offsets[e + 1] - 1. `found` (expert, first,
 * count) stays as it is when there is no such tile. */
template <int ROWS, typename FOUND>
static __device__ void sl_find_tile(const int32_t *offsets, int32_t experts, int32_t tile, FOUND *found) {
    const int32_t lane = (int32_t)threadIdx.x;
    int32_t before = 0;
    for (int32_t base = 0; base < experts && before <= tile; base += SL_WARP) {
        const int32_t expert = base + lane;
        const int32_t count = expert < experts ? offsets[expert + 1] - offsets[expert] : 0;
        const int32_t tiles = (count + ROWS - 1) / ROWS;
        int32_t end = tiles;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
            end += lane >= distance ? other : 0;
        }
        end += before;
        if (tile >= end - tiles && tile < end) {
            const int32_t done = (tile - (end - tiles)) * ROWS;
            found->expert = expert;
            found->first = offsets[expert] + done;
            found->count = count - done < ROWS ? count - done : ROWS;
        }
        before = __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
    }
}

#endif

/* What device code of several files uses. */
#ifndef SL_BACKEND_CUDA_DEVICE_CUH
#define SL_BACKEND_CUDA_DEVICE_CUH

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

/* In the window of shared memory, as PTX takes it. */
static __device__ __forceinline__ uint32_t sl_shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* Lanes of a warp that arrive at the mbarrier at which it hands shared memory over. After __syncwarp() one is
 * enough. compute-sanitizer's racecheck takes as ordered what the arriving thread itself did, so in a module
 * for it all lanes arrive (docs/gpu-test.md). */
#ifdef SL_CUDA_RACECHECK
enum { SL_ARRIVING_LANES = SL_WARP };
#else
enum { SL_ARRIVING_LANES = 1 };
#endif

/* Between reads of shared memory and the bulk or tensor copy that fills it again, which is of another proxy
 * (PTX): by all who read, before they say so, or by who copies, behind the barrier that told it: it delays
 * nobody. */
static __device__ __forceinline__ void sl_fence_reads(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

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

/* ---- clusters, of one block where the device does not know them ---- */

static __device__ __forceinline__ uint32_t sl_cluster_blocks(void) {
    uint32_t blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
    return blocks;
}

/* A barrier of the cluster in two parts. Other blocks' shared memory is there after the first, and until the
 * last. */
template <int BLOCKS> static __device__ __forceinline__ void sl_cluster_arrive(void) {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    }
#endif
}

template <int BLOCKS> static __device__ __forceinline__ void sl_cluster_wait(void) {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS > 1) {
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
#endif
}

static __device__ __forceinline__ void sl_cluster_sync(void) {
#if __CUDA_ARCH__ >= 900
    sl_cluster_arrive<2>();
    sl_cluster_wait<2>();
#else
    __syncthreads();
#endif
}

/* The same shared variable of another block. */
template <typename TYPE> static __device__ __forceinline__ TYPE *sl_of_block(TYPE *own, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    TYPE *other;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(own), "r"(rank));
    return other;
#else
    (void)rank;
    return own;
#endif
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

/* function: sl_activation */
static __device__ __forceinline__ float sl_activate(int32_t function, float x) {
    return function == SL_ACTIVATION_SILU ? sl_silu(x) : sl_gelu_tanh(x);
}

/* Sum over a warp, the same bits in every lane. */
static __device__ __forceinline__ float sl_warp_sum(float value) {
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(SL_FULL_WARP, value, distance);
    }
    return value;
}

/* Sum over the block in every thread; blockDim.x is a multiple of 32, `shared` has 32 floats. */
static __device__ __forceinline__ float sl_block_sum(float value, float *shared) {
    value = sl_warp_sum(value);
    if (blockDim.x == SL_WARP) {
        return value;
    }
    __syncthreads();
    if (threadIdx.x % SL_WARP == 0) {
        shared[threadIdx.x / SL_WARP] = value;
    }
    __syncthreads();
    const unsigned lane = threadIdx.x % SL_WARP;
    return sl_warp_sum(lane < blockDim.x / SL_WARP ? shared[lane] : 0.0f);
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

/* What sl_decode does for the types that have two or three bits, or a table, or E4M3. */
static __device__ __forceinline__ float sl_decode_other(sl_qtype type, const unsigned char *row, int32_t i) {
    switch (type) {
    case SL_QTYPE_Q2_K: {
        const sl_block_q2_k *block = (const sl_block_q2_k *)row + i / 256;
        const int numbers = block->scales[i % 256 / 16];
        const int quant = (block->quants[32 * (i % 256 / 128) + i % 32] >> 2 * (i % 128 / 32)) & 3;
        return sl_f16_to_f32(block->scale) * (float)(numbers & 15) * (float)quant -
               sl_f16_to_f32(block->min_scale) * (float)(numbers >> 4);
    }
    case SL_QTYPE_Q3_K: {
        const sl_block_q3_k *block = (const sl_block_q3_k *)row + i / 256;
        const int low = (block->quants[32 * (i % 256 / 128) + i % 32] >> 2 * (i % 128 / 32)) & 3;
        const int high = (block->high[i % 32] >> i % 256 / 32) & 1;
        return sl_f16_to_f32(block->scale) * (float)sl_q3_k_scale(block->scales, (uint32_t)i % 256 / 16) *
               (float)(low + 4 * high - 4);
    }
    case SL_QTYPE_IQ4_NL: {
        const sl_block_iq4_nl *block = (const sl_block_iq4_nl *)row + i / 32;
        const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
        return sl_f16_to_f32(block->scale) * (float)sl_iq4_value((uint32_t)quant);
    }
    case SL_QTYPE_IQ4_XS: {
        const sl_block_iq4_xs *block = (const sl_block_iq4_xs *)row + i / 256;
        const int quant = (block->quants[16 * (i % 256 / 32) + i % 16] >> 4 * (i % 32 / 16)) & 15;
        return sl_f16_to_f32(block->scale) * (float)sl_iq4_xs_scale(block, (uint32_t)i % 256 / 32) *
               (float)sl_iq4_value((uint32_t)quant);
    }
    case SL_QTYPE_NVFP4: {
        const sl_block_nvfp4 *block = (const sl_block_nvfp4 *)row + i / 64;
        const uint32_t quant = sl_nvfp4_quant(block->quants + 8 * (i % 64 / 16), (uint32_t)i % 16);
        return (float)sl_mxfp4_value(quant) * sl_nvfp4_scale(block->scales[i % 64 / 16]);
    }
    case SL_QTYPE_NVFP4_128: {
        const sl_block_nvfp4_128 *block = (const sl_block_nvfp4_128 *)row + i / 128;
        const uint32_t quant = sl_nvfp4_quant(block->quants + 8 * (i % 128 / 16), (uint32_t)i % 16);
        return (float)sl_mxfp4_value(quant) * (block->scale * sl_nvfp4_scale(block->scales[i % 128 / 16]));
    }
    case SL_QTYPE_FP8_128: {
        const sl_block_fp8_128 *block = (const sl_block_fp8_128 *)row + i / 128;
        return block->scale * sl_e4m3_to_f32(block->codes[i % 128]);
    }
    default: { /* mxfp4 */
        const sl_block_mxfp4 *block = (const sl_block_mxfp4 *)row + i / 32;
        const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
        return (float)sl_mxfp4_value((uint32_t)quant) * sl_mxfp4_scale(block->exponent);
    }
    }
}

/* Element i of a row of any type: the bits of the reference decode (quant/codec.h). */
static __device__ __forceinline__ float sl_decode(sl_qtype type, const unsigned char *row, int32_t i) {
    switch (type) {
    case SL_QTYPE_F32:
        return ((const float *)row)[i];
    case SL_QTYPE_F16:
        return sl_f16_to_f32(((const uint16_t *)row)[i]);
    case SL_QTYPE_BF16:
        return sl_bf16_to_f32(((const uint16_t *)row)[i]);
    case SL_QTYPE_Q8_0: {
        const sl_block_q8_0 *block = (const sl_block_q8_0 *)row + i / 32;
        return (float)block->quants[i % 32] * sl_f16_to_f32(block->scale);
    }
    case SL_QTYPE_Q4_0: {
        const sl_block_q4_0 *block = (const sl_block_q4_0 *)row + i / 32;
        const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
        return (float)(quant - 8) * sl_f16_to_f32(block->scale);
    }
    case SL_QTYPE_Q4_K: {
        const sl_block_q4_k *block = (const sl_block_q4_k *)row + i / 256;
        const uint32_t group = i % 256 / 32;
        uint8_t scale, min;
        sl_q4_k_group(block->scales, group, &scale, &min);
        const int quant = (block->quants[32 * (group / 2) + i % 32] >> 4 * (group % 2)) & 15;
        return sl_f16_to_f32(block->scale) * (float)scale * (float)quant -
               sl_f16_to_f32(block->min_scale) * (float)min;
    }
    case SL_QTYPE_Q5_K: {
        const sl_block_q5_k *block = (const sl_block_q5_k *)row + i / 256;
        const uint32_t group = i % 256 / 32;
        uint8_t scale, min;
        sl_q4_k_group(block->scales, group, &scale, &min);
        return sl_f16_to_f32(block->scale) * (float)scale *
                   (float)sl_q5_k_quant(block, group, (uint32_t)i % 32) -
               sl_f16_to_f32(block->min_scale) * (float)min;
    }
    case SL_QTYPE_Q4_1: {
        const sl_block_q4_1 *block = (const sl_block_q4_1 *)row + i / 32;
        const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
        return (float)quant * sl_f16_to_f32(block->scale) + sl_f16_to_f32(block->min);
    }
    case SL_QTYPE_Q5_0: {
        const sl_block_q5_0 *block = (const sl_block_q5_0 *)row + i / 32;
        const int quant = sl_q5_quant(block->high, block->quants, (uint32_t)i % 32);
        return (float)(quant - 16) * sl_f16_to_f32(block->scale);
    }
    case SL_QTYPE_Q5_1: {
        const sl_block_q5_1 *block = (const sl_block_q5_1 *)row + i / 32;
        const int quant = sl_q5_quant(block->high, block->quants, (uint32_t)i % 32);
        return (float)quant * sl_f16_to_f32(block->scale) + sl_f16_to_f32(block->min);
    }
    case SL_QTYPE_Q6_K: {
        const sl_block_q6_k *block = (const sl_block_q6_k *)row + i / 256;
        const int half = i % 256 / 128, r = i % 128 / 32, c = i % 32;
        const int low = (block->low[64 * half + 32 * (r % 2) + c] >> 4 * (r / 2)) & 15;
        const int high = (block->high[32 * half + c] >> 2 * r) & 3;
        return sl_f16_to_f32(block->scale) * (float)block->scales[i % 256 / 16] *
               (float)((low | high << 4) - 32);
    }
    default:
        return sl_decode_other(type, row, i);
    }
}

#endif

/* matvec_ring.cuh in class "q8_256" (units.cuh): the same copies and sums, another product of a chunk. */
#include "backend/cuda/matvec_ring.cuh"
#include "backend/cuda/units.cuh"

enum {
    OF_UNITS = 64, /* added to a type where a template is to have this class */
    UNITS_Q4_K = OF_UNITS + SL_QTYPE_Q4_K,
    WARPS = 8,
    SLOTS = 3
};

/* ---- x: 256 values, of Q4_K the groups' sums, the scale ---- */

template <> struct sl_chunk_shape<UNITS_Q4_K> {
    enum { BYTES = SL_Q4_K_BYTES, RECORD = 304 };
};

/* By all threads of the block; eight neighbours have a chunk. */
template <int RECORD, bool SUMS>
static __device__ __forceinline__ void stage_x(const sl_q8_32 &x, int32_t chunks, unsigned char *records) {
    const int32_t groups = chunks * SL_CHUNK_GROUPS;
    for (int32_t first = 0; first < groups; first += (int32_t)blockDim.x) {
        const int32_t i = first + (int32_t)threadIdx.x, at = i < groups ? i : 0, g = i % SL_CHUNK_GROUPS;
        const uint4 low = ((const uint4 *)x.values)[2 * at], high = ((const uint4 *)x.values)[2 * at + 1];
        const float own = x.scales[at], scale = units_x_scale(own), ratio = units_x_ratio(own, scale);
        uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        int32_t sum = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            words[k] = units_x_word(words[k], ratio);
            sum = __dp4a((int32_t)words[k], 0x01010101, sum);
        }
        if (i < groups) {
            unsigned char *record = records + i / SL_CHUNK_GROUPS * RECORD;
            ((uint4 *)record)[2 * g] = make_uint4(words[0], words[1], words[2], words[3]);
            ((uint4 *)record)[2 * g + 1] = make_uint4(words[4], words[5], words[6], words[7]);
            if (SUMS) {
                ((int32_t *)(record + SL_CHUNK))[g] = sum;
            }
            if (g == 0) {
                *(float *)(record + SL_CHUNK + (SUMS ? 32 : 0)) = scale;
            }
        }
    }
}

template <>
__device__ __forceinline__ void sl_stage_x<UNITS_Q4_K>(const sl_q8_32 &x, int32_t chunks,
                                                       unsigned char *records) {
    stage_x<sl_chunk_shape<UNITS_Q4_K>::RECORD, true>(x, chunks, records);
}

template <bool SUMS> struct units_x_chunk {
    int32_t values[SL_CHUNK / 4];
    int32_t sums[SL_CHUNK_GROUPS];
    float scale;

    __device__ __forceinline__ void load(const unsigned char *record) {
#pragma unroll
        for (int i = 0; i < SL_CHUNK / 16; i++) {
            const int4 v = ((const int4 *)record)[i];
            values[4 * i] = v.x, values[4 * i + 1] = v.y, values[4 * i + 2] = v.z, values[4 * i + 3] = v.w;
        }
#pragma unroll
        for (int i = 0; SUMS && i < 2; i++) {
            const int4 v = ((const int4 *)(record + SL_CHUNK))[i];
            sums[4 * i] = v.x, sums[4 * i + 1] = v.y, sums[4 * i + 2] = v.z, sums[4 * i + 3] = v.w;
        }
        scale = *(const float *)(record + SL_CHUNK + (SUMS ? 32 : 0));
    }
};
template <> struct sl_x_chunk<UNITS_Q4_K> : units_x_chunk<true> {};

/* ---- products ---- */

template <> struct sl_chunk<UNITS_Q4_K> {
    static __device__ __forceinline__ float product(const unsigned char *w, const sl_x_chunk<UNITS_Q4_K> &x) {
        const units_k k = units_k_of(*(const uint4 *)w);
        int32_t sums[2] = {0, 0}, mins = 0; /* of low and of high nibbles, which stay 16 times too large */
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 a = ((const uint4 *)w)[1 + 2 * p], b = ((const uint4 *)w)[2 + 2 * p];
            const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int g = 2 * p + n;
                int32_t dot = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    dot =
                        sl_dot_unsigned(words[i] & (n ? 0xf0f0f0f0u : 0x0f0f0f0fu), x.values[8 * g + i], dot);
                }
                sums[n] += units_k_scale(k, g) * dot;
                mins += units_k_min(k, g) * x.sums[g];
            }
        }
        return units_product(sums[0] + (sums[1] >> 4) - mins, k.unit, x.scale);
    }
};

/* ---- launches ---- */

template <int TYPE>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const int32_t blocks = context->processors * (op->in[1].data ? 2 : 1);
    return ring_launch<TYPE, WARPS, SLOTS>(context, op, blocks, stream);
}

SL_CUDA_RUN(sl_cuda_linear_units_q4_k) {
    return launch<UNITS_Q4_K>(context, op, stream);
}

cudaError_t sl_cuda_matvec_prepare_units(int most_bytes) {
    const cudaError_t code = sl_allow_shared(ring_kernel<UNITS_Q4_K, WARPS, SLOTS>, most_bytes);
    return code ? code : sl_allow_shared(ring_kernel<UNITS_Q4_K, WARPS, 1>, most_bytes);
}

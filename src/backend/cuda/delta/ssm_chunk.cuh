/* What the launches of ssm_chunk.cu share. */
#ifndef SL_BACKEND_CUDA_DELTA_SSM_CHUNK_CUH
#define SL_BACKEND_CUDA_DELTA_SSM_CHUNK_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/delta/chunks.cuh"
#include "backend/cuda/delta/ssm.cuh"

/* Of a chunk and a head, for each row t: the logarithm of g_t, the step d_t, g_t, and d_t g_C / g_t. */
enum { LOGS, STEPS, GROWTHS, RESTS, FACTORS };

enum {
    HIGH, /* A number's first eight bits, and the next eight: BF16 both. */
    LOW,
    PARTS
};

/* A chunk's two matrices [CHUNK][KEYS] lie twice in shared memory, so wide ones have fewer rows. */
template <int KEYS> struct ssm_chunk_shape {
    enum {
        CHUNK = KEYS > 128 ? 32 : 64,
        TILES = CHUNK / 16,
        STRIDE = KEYS + 8,         /* elements; rows 16 bytes apart in the banks */
        SQUARE_STRIDE = CHUNK + 8, /* floats */
        MATRIX = PARTS * CHUNK * KEYS
    };
};

/* What the first launch leaves for the second; chunks of all spans one after the other. */
typedef struct ssm_chunk_memory {
    uint16_t *writes, *reads; /* B and C: [chunks][groups][PARTS][CHUNK][KEYS] */
    float *products;          /* C B^T: [chunks][groups][CHUNK][CHUNK], what lies right of the diagonal's
                                 blocks of 16 is not there */
    float *factors;           /* [chunks][heads][FACTORS][CHUNK] */
} ssm_chunk_memory;

/* Two neighbours in the layout of factors, a word each. */
static __device__ __forceinline__ uint2 split(float first, float second) {
    const uint32_t high = sl_bf16_pair(first, second);
    return make_uint2(high, sl_bf16_pair(first - __uint_as_float(high << 16),
                                         second - __uint_as_float(high & 0xffff0000u)));
}

typedef struct left_factor {
    uint32_t words[PARTS][4];
} left_factor;

static __device__ __forceinline__ void set_word(left_factor *a, int word, float first, float second) {
    const uint2 parts = split(first, second);
    a->words[HIGH][word] = parts.x;
    a->words[LOW][word] = parts.y;
}

/* Of 16 columns: words as load_right and load_right_rows leave them. */
typedef struct right_factor {
    uint32_t words[PARTS][4];
} right_factor;

/* c += a b for COUNT factors b of 16 columns, without the product of the lower parts. What is added to one
 * sum lies as far apart as can be, since each product waits for the one before. */
template <int COUNT>
static __device__ __forceinline__ void add_products(float (*c)[4], const left_factor &a,
                                                    const right_factor *b) {
#pragma unroll
    for (int term = 0; term < 3; term++) {
        const uint32_t *left = a.words[term == 0 ? LOW : HIGH];
#pragma unroll
        for (int n = 0; n < 2 * COUNT; n++) {
            const uint32_t *right = b[n / 2].words[term == 1 ? LOW : HIGH] + n % 2 * 2;
            sl_mma_bf16(c[n], left, right[0], right[1]);
        }
    }
}

#endif

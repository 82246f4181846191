/* Codebooks of IQ1, IQ2 and IQ3 as bytes in shared memory, for products that look points up there.
 *
 * A point's columns are neighbouring unsigned bytes, below 128, so that a word of them is an operand of dp4a
 * or goes through a byte permutation. IQ2 and IQ3: the absolute values of quant/codebook.h. IQ1: its values
 * are 8 g + 1 or 8 g - 1 with g of -1, 0 and 1; a byte is 8 g + 8, so 7 or 9 is to be subtracted. */
#ifndef SL_BACKEND_CUDA_TYPES_CODEBOOK_TABLES_CUH
#define SL_BACKEND_CUDA_TYPES_CODEBOOK_TABLES_CUH

#include "backend/cuda/types/blocks.cuh"
#include "backend/cuda/types/codebook.cuh"

/* POINTS of WIDTH columns. Types without a codebook have none. */
template <int TYPE> struct sl_codebook {
    enum { POINTS = 0, WIDTH = 1, BYTES = 0 };
    static __device__ __forceinline__ void fill(unsigned char *, int32_t, int32_t) {
    }
};

/* The bytes of eight nibbles below 8, by a table of eight bytes. */
static __device__ __forceinline__ uint2 sl_codebook_bytes(uint64_t table, uint32_t nibbles) {
    return make_uint2(sl_table_bytes(table, nibbles), sl_table_bytes(table, nibbles >> 16));
}

/* Shared memory at a multiple of 16, by threads `thread`, `thread` + `threads` and so on; a barrier is the
 * caller's. */
#define SL_CODEBOOK_OF_EIGHT(ID, grid, points, table)                                                        \
    template <> struct sl_codebook<SL_QTYPE_##ID> {                                                          \
        enum { POINTS = points, WIDTH = 8, BYTES = POINTS * WIDTH };                                         \
        static __device__ __forceinline__ void fill(unsigned char *to, int32_t thread, int32_t threads) {    \
            for (int32_t i = thread; i < POINTS; i += threads) {                                             \
                ((uint2 *)to)[i] = sl_codebook_bytes(table, sl_spread_pairs(grid[i]));                       \
            }                                                                                                \
        }                                                                                                    \
    };
#define SL_CODEBOOK_OF_FOUR(ID, grid, points, table)                                                         \
    template <> struct sl_codebook<SL_QTYPE_##ID> {                                                          \
        enum { POINTS = points, WIDTH = 4, BYTES = POINTS * WIDTH };                                         \
        static __device__ __forceinline__ void fill(unsigned char *to, int32_t thread, int32_t threads) {    \
            for (int32_t i = thread; i < POINTS; i += threads) {                                             \
                ((uint32_t *)to)[i] = sl_table_bytes(table, grid[i]);                                        \
            }                                                                                                \
        }                                                                                                    \
    };
SL_CODEBOOK_OF_EIGHT(IQ2_XXS, sl_grid_iq2_xxs, 256, SL_IQ2_VALUES_0)
SL_CODEBOOK_OF_EIGHT(IQ2_XS, sl_grid_iq2_xs, 512, SL_IQ2_VALUES_0)
SL_CODEBOOK_OF_EIGHT(IQ2_S, sl_grid_iq2_s, 1024, SL_IQ2_VALUES_0)
SL_CODEBOOK_OF_EIGHT(IQ1_S, sl_grid_iq1, 2048, 0x0000000000100800u)
SL_CODEBOOK_OF_EIGHT(IQ1_M, sl_grid_iq1, 2048, 0x0000000000100800u)
SL_CODEBOOK_OF_FOUR(IQ3_XXS, sl_grid_iq3_xxs, 256, SL_IQ3_XXS_VALUES_0)
SL_CODEBOOK_OF_FOUR(IQ3_S, sl_grid_iq3_s, 512, SL_IQ3_S_VALUES_0)

#endif

/* Tiles for many rows: the weights of a chunk are made bytes once, and all tiles of the batch read these, of
 * all types alike. Pays where unpacking competes with the dot products for the same ports. Included by a
 * tier's matmul.c in front of its table, after matmul_tiles.h. */
#ifndef SL_BACKEND_CPU_MATMUL_UNPACKED_H
#define SL_BACKEND_CPU_MATMUL_UNPACKED_H

/* What a tile of bytes differs by: scales and minima of a group, exact scales or not. */
enum {
    UNPACKED_ONE,
    UNPACKED_ONE_MINIMUM,
    UNPACKED_ONE_ROUNDED,
    UNPACKED_TWO,
    UNPACKED_TWO_MINIMA,
    UNPACKED_TWO_ROUNDED,
    UNPACKED_KINDS
};

#define SL_UNPACKED_KIND(type)                                                                               \
    ((type) == SL_QTYPE_Q4_K || (type) == SL_QTYPE_Q5_K || (type) == SL_QTYPE_Q4_1 ||                        \
             (type) == SL_QTYPE_Q5_1                                                                         \
         ? UNPACKED_ONE_MINIMUM                                                                              \
     : (type) == SL_QTYPE_Q6_K || (type) == SL_QTYPE_Q3_K || (type) == SL_QTYPE_NVFP4 ? UNPACKED_TWO         \
     : (type) == SL_QTYPE_Q2_K                                                        ? UNPACKED_TWO_MINIMA  \
     : (type) == SL_QTYPE_MXFP4 || (type) == SL_QTYPE_IQ3_XXS || (type) == SL_QTYPE_IQ3_S                    \
         ? UNPACKED_ONE_ROUNDED                                                                              \
     : (type) == SL_QTYPE_NVFP4_128 || ((type) >= SL_QTYPE_IQ2_XXS && (type) <= SL_QTYPE_IQ1_M)              \
         ? UNPACKED_TWO_ROUNDED                                                                              \
         : UNPACKED_ONE)

/* What is a byte in a panel is read there. */
#define SL_INT_UNPACKED(name, ID)                                                                            \
    .unpack = SL_QTYPE_##ID == SL_QTYPE_Q8_0 ? NULL : name##_unpack,                                         \
    .unpacked_bytes = SL_QTYPE_##ID == SL_QTYPE_Q8_0 ? 0 : 1,                                                \
    .unpacked_tiles = unpacked_tiles[SL_UNPACKED_KIND(SL_QTYPE_##ID)]

#include "backend/cpu/matmul_tiles.h"

/* int_tile of such bytes and of expanded scales. */
SL_ALWAYS_INLINE void unpacked_tile(const sl_qtype type, const int rows, const sl_matmul_part *part) {
    const unsigned char *weights = part->unpacked, *x = part->x;
    const float *scales = part->scales;
    vf sums[SL_MATMUL_TILE][2];
    load_sums(part, sums, rows);
    for (int32_t left = part->columns; left > 0; left -= SL_MATMUL_GROUP) {
        add_group(type, true, rows, (int_group){weights, 0, x, scales}, sums);
        weights += SL_MATMUL_GROUP * SL_PANEL;
        x += rows * INT_GROUP_BYTES;
        scales += group_scales(type) * SL_PANEL;
    }
    store_sums(part, sums, rows);
}

/* [groups][8][2] vectors of unpack_weights. */
SL_ALWAYS_INLINE void unpack_blocks(const sl_qtype type, const unsigned char *weights, int32_t blocks,
                                    unsigned char *unpacked) {
    const int periods = block_groups(type) / period_groups(type);
    const unsigned char *share = weights;
    for (int32_t b = 0; b < blocks; b++) {
        weights += header_bytes(type);
        for (int p = 0; p < periods; p++, weights += period_bytes(type)) {
            SL_UNROLL for (int phase = 0; phase < period_groups(type); phase++) {
                prefetch_group(type, share);
                share += share_bytes(type);
                SL_UNROLL for (int i = 0; i < 16; i++, unpacked += sizeof(vi)) {
                    vi_store(unpacked, unpack_weights(type, weights, phase, i / 2, i % 2));
                }
            }
        }
    }
}

#define SL_UNPACKED_TILE(name, ID, rows)                                                                     \
    static void name##_tile_##rows(const sl_matmul_part *part) {                                             \
        unpacked_tile(SL_QTYPE_##ID, rows, part);                                                            \
    }
SL_TILES(SL_UNPACKED_TILE, one, Q4_0)
SL_TILES(SL_UNPACKED_TILE, one_minimum, Q4_K)
SL_TILES(SL_UNPACKED_TILE, one_rounded, MXFP4)
SL_TILES(SL_UNPACKED_TILE, two, Q6_K)
SL_TILES(SL_UNPACKED_TILE, two_minima, Q2_K)
SL_TILES(SL_UNPACKED_TILE, two_rounded, NVFP4_128)

static const sl_matmul_tile unpacked_tiles[UNPACKED_KINDS][SL_MATMUL_TILE] = {
    [UNPACKED_ONE] = SL_TILE_LIST(one),
    [UNPACKED_ONE_MINIMUM] = SL_TILE_LIST(one_minimum),
    [UNPACKED_ONE_ROUNDED] = SL_TILE_LIST(one_rounded),
    [UNPACKED_TWO] = SL_TILE_LIST(two),
    [UNPACKED_TWO_MINIMA] = SL_TILE_LIST(two_minima),
    [UNPACKED_TWO_ROUNDED] = SL_TILE_LIST(two_rounded),
};

#define SL_INT_UNPACK(name, ID, block_scales)                                                                \
    static void name##_unpack(const unsigned char *weights, int32_t blocks, unsigned char *unpacked) {       \
        unpack_blocks(SL_QTYPE_##ID, weights, blocks, unpacked);                                             \
    }

#endif

/* The matrix product's layout, shared by the tiers: weights in panels, activations in tiles.
 *
 * A panel is SL_PANEL outputs side by side. Quantised weights: block after block along K, each block of the
 * panel being a header and then the quants, both cut into words and interleaved, word w of output o at index
 * w * SL_PANEL + o. So a vector load gives the same four columns of as many outputs as it has lanes. (Outputs
 * past the last are zeros.) A panel has exactly the bytes of its outputs' blocks, but for the types of
 * quant/codebook.h: these are brought to two or four bits for each column, with numbers in place of points.
 *
 * The header's fields come first, then periods of quants; n w: n words of a plane, "low" and "two": four and
 * two bits of each quant, "high": a word of one more bit for each of 32 columns, bit 8 b + q for column 4 q +
 * b.
 *
 *     q8_0     scale f16; 8 w: columns 4w .. 4w+3
 *     q4_0     scale f16; 4 w low: nibble 0 columns 4w .., nibble 1 columns 16+4w ..
 *     iq4_nl   the same
 *     mxfp4    exponent, a byte; the same
 *     q4_1     scale f16, min f16; the same
 *     q5_0     scale f16; 1 w high, then the same
 *     q5_1     scale f16, min f16; 1 w high, then the same
 *     iq4_xs   scale f16, high scale bits 16, 1 w low; 8 periods, each a group as q4_0's
 *     nvfp4    1 w: 4 scales E4M3; 2 periods, each a group as q4_0's
 *     nvfp4_128  scale f32; 2 w: 8 scales E4M3; 4 periods likewise
 *     q4_k     scale, min scale f16; 3 w group scales; 4 periods of 8 w low: nibble n is group 2 period + n
 *     q5_k     the same; 4 periods of 2 w high (of its groups), then 8 w low
 *     q2_k     4 w group scales; scale, min scale f16;
 *              2 periods (halves) of 8 w two: bits 2r, 2r+1 are group r
 *     q3_k     scale f16; 3 w group scales; 2 periods of 4 w high (of its groups), then 8 w two
 *     q6_k     scale f16; 4 w: 16 int8 scales; 2 periods of 16 w low and 8 w high bits: group r of the
 *              half in nibble r / 2 of the low words 8 (r % 2) .., in bits 2r, 2r+1 of the high words
 *     tq1_0, tq2_0   scale f16; 2 periods of 8 w two, as q2_k's
 *     iq3_xxs, iq3_s   scale f32; 2 w: factors of 8 groups, bytes; 8 periods, each a group of codes as q4_0's
 *     iq2_*, iq1_*     scale f32; 4 w: factors of 16 halves of groups; 8 periods likewise
 *     fp8_128  scale f32; codes [128][SL_PANEL]
 *     f32, f16, bf16   [columns][SL_PANEL]; bf16 for pairs (AVX-512) [columns / 2][SL_PANEL][2]
 *
 * In panels of runs, which products on AMX read with weights as BF16, the header is the same, and instead of
 * words side by side an output's bytes lie together; [SL_PANEL] runs of
 *
 *     q8_0     32 bytes, plus 128
 *     q4_0     16 bytes as in the file
 *     q4_k, iq4_xs   2 periods of 32 words of 16 bits: a column's nibbles in four groups, from bit 1 on in a
 *              ring; column i, then column 16 + i, for i from 0
 *     q5_k     32 bytes of high bits as in the file, which are of the header; 4 periods of 32 bytes
 *     q6_k     2 periods (halves): 64 bytes of low bits; then as many runs of 32 bytes of high ones
 *
 * A tile is some rows of activations, packed for the kernels at the start of an op. Of every 32 columns:
 *     int8    values [rows][32]; f32 scale [rows]; two planes of 32-bit numbers [rows], see matmul_tiles.h
 *     bf16    [rows][32]; for panels of runs [16][rows][2], columns i and 16 + i in pairs, of 16 rows each
 *     f32     [rows][32]
 *     int8 for 256 columns: see matmul_s8.h
 * with zeros past the last column. Tiles of a batch follow each other.
 *
 * A kernel adds the products of one chunk of columns, for one tile and one panel, to sums [rows][SL_PANEL]
 * that the skeleton keeps from chunk to chunk. Each sum is one chain over the columns from left to right
 * whatever the tile's size, which makes all tile sizes one numeric class. */
#ifndef SL_BACKEND_CPU_MATMUL_H
#define SL_BACKEND_CPU_MATMUL_H

#include "backend/cpu/cpu.h"

enum {
    SL_MATMUL_TILE = 12,  /* rows of a tile that has a function of its own, at most */
    SL_MATMUL_PANELS = 4, /* panels in a unit of work at most: what one reading of a chunk of x serves */
    SL_MATMUL_GROUP = 32, /* columns that a tile keeps together */
    SL_MATMUL_SUM_ROWS =
        16, /* a panel's sums have room for a multiple of so many rows, which tiles may write */
    SL_MATMUL_OWN_TILES = 8192, /* bytes of packed rows that every thread packs sooner than it meets others */
    /* Bytes of a block of 256 columns in a panel, of types whose blocks in the file have fewer. */
    SL_PACKED_TERNARY = 2 + 64,
    SL_PACKED_CODES = 4 + 8 + 128,
    SL_PACKED_CODES_OF_HALVES = 4 + 16 + 128,
};

/* What a kernel is given. */
typedef struct sl_matmul_part {
    const unsigned char *weights;  /* the panel, from the chunk's first column on */
    const unsigned char *x;        /* the tile, likewise */
    const float *scales;           /* of all blocks of the chunk, expanded; NULL: expand them as you go */
    const unsigned char *unpacked; /* for sl_matmul_type.unpacked_tiles: what unpack made of the weights */
    float *sums;
    int32_t rows;    /* of the tile */
    int32_t columns; /* of the chunk */
    bool first;      /* sums start from zero */
    bool last;       /* no chunk comes after this one */
} sl_matmul_part;

typedef void (*sl_matmul_tile)(const sl_matmul_part *part);

/* Packs one row of x into a tile of `rows`, as row `index`. */
typedef struct sl_matmul_source {
    const sl_cpu_operand *x;
    int64_t row;
    int32_t columns;
    int32_t index, rows;
    unsigned char *tile;
} sl_matmul_source;

/* A panel's weights for a chunk of columns, as they lie in the file. */
typedef struct sl_matmul_rows {
    const unsigned char *rows; /* the first output's block that the chunk begins with */
    uint64_t row_bytes;        /* from one output to the next */
    sl_qtype type;
    int32_t columns, outputs; /* true ones; the others become zeros */
} sl_matmul_rows;

/* A type's constants on a tier. */
typedef struct sl_matmul_type {
    sl_matmul_tile tiles[SL_MATMUL_TILE]; /* by rows - 1; the last for more as well */
    /* What a thread has to set up before the tiles of a batch of so many rows, and to give back at the end;
     * NULL: nothing. */
    void (*begin)(int32_t rows);
    void (*end)(void);
    void (*pack_row)(const sl_matmul_source *source);
    const char *(*declines)(void); /* why not on this processor; NULL: on any */
    /* Expands the scales of `blocks` blocks; NULL when there is nothing to expand. */
    void (*expand)(const unsigned char *weights, int32_t blocks, float *scales);
    /* For many rows: makes bytes of the quants, and the tiles that take them; NULL: the other tiles do. */
    void (*unpack)(const unsigned char *weights, int32_t blocks, unsigned char *unpacked);
    const sl_matmul_tile *unpacked_tiles; /* [SL_MATMUL_TILE] */
    int32_t main_rows, most_rows; /* of a tile: while more than most_rows are left, it takes main_rows */
    int32_t few_rows;             /* of a batch at most, for which it does not pay to expand and unpack */
    int32_t chunk;                /* columns whose weights, as a tile reads them, stay in L1 */
    int32_t block;                /* columns */
    int32_t block_bytes;          /* of one output */
    int32_t scales;               /* floats of one output and block that expand makes */
    int32_t group_bytes;          /* of one row of a tile, for SL_MATMUL_GROUP columns */
    int32_t unpacked_bytes;       /* of one weight, as unpack makes it */
    /* Packs what is not packed at load; NULL: into words side by side, as the tier does at load. */
    void (*pack_rows)(const sl_matmul_rows *rows, unsigned char *packed);
} sl_matmul_type;

/* matmul_pack.c: kernel.packed_bytes and kernel.pack for panels of 32 and of 16; `pairs` for bf16 in pairs.
 */
uint64_t sl_matmul_packed_bytes_32(const sl_weight *weight);
uint64_t sl_matmul_packed_bytes_runs(const sl_weight *weight);
uint64_t sl_matmul_packed_bytes_16(const sl_weight *weight);
void sl_matmul_pack_32(const sl_weight *weight, void *packed, int32_t first, int32_t count);
void sl_matmul_pack_runs(const sl_weight *weight, void *packed, int32_t first, int32_t count);
void sl_matmul_pack_16(const sl_weight *weight, void *packed, int32_t first, int32_t count);
/* What pack makes at load, made when it is needed: one panel's columns of `rows`. */
void sl_matmul_pack_rows_32(const sl_matmul_rows *rows, unsigned char *packed);
void sl_matmul_pack_rows_runs(const sl_matmul_rows *rows, unsigned char *packed);
void sl_matmul_pack_rows_16(const sl_matmul_rows *rows, unsigned char *packed);

#endif

/* Matrix products of the AVX-512 tier. */
#include "backend/cpu/avx512/avx512.h"

#include "backend/cpu/avx512/unpack.h"
#include "backend/cpu/matmul_unpacked.h"
enum { S8_STEP = 256 };
#include "backend/cpu/matmul_s8.h"
#include "base/cpu.h"
#include "quant/blocks.h"

enum { SL_FLOAT_ROWS = 12, SL_FLOAT_CHUNK = 256, PAIR_ROWS = 8, PAIR_CHUNK = 512 };
#define SL_FLOAT_TILE_LIST SL_LONG_TILE_LIST

SL_EACH_INT_TYPE(SL_INT_TYPE)
SL_EACH_INT_TYPE(SL_INT_UNPACK)
SL_LONG_TILES(SL_FLOAT_TILE, f32, F32)
SL_LONG_TILES(SL_FLOAT_TILE, f16, F16)
SL_LONG_TILES(SL_FP8_TILE, fp8_128, FP8_128)

/* Class "f32/chain" of bf16: a word is a pair of columns, the even one's bits below. */
SL_ALWAYS_INLINE void bf16_tile(const int rows, const sl_matmul_part *part) {
    const unsigned char *weights = part->weights, *x = part->x;
    vf sums[SL_MATMUL_TILE][2];
    load_sums(part, sums, rows);
    for (int32_t left = part->columns; left > 0; left -= SL_MATMUL_GROUP) {
        const int32_t count = left < SL_MATMUL_GROUP ? left : SL_MATMUL_GROUP;
        for (int32_t k = 0; k < count; k += 2, weights += SL_PANEL * 4) {
            _mm_prefetch((const char *)weights + PREFETCH, _MM_HINT_T0);
            _mm_prefetch((const char *)weights + PREFETCH + 64, _MM_HINT_T0);
            const vi pairs[2] = {vi_load(weights), vi_load(weights + 64)};
            SL_UNROLL for (int odd = 0; odd < 2; odd++) {
                vf w[2];
                SL_UNROLL for (int v = 0; v < 2; v++) {
                    w[v] = vf_xor(vf_zero(), odd ? vi_and(pairs[v], vi_set1((int32_t)0xffff0000))
                                                 : vi_left(pairs[v], 16));
                }
                SL_UNROLL for (int r = 0; r < rows; r++) {
                    const vf value = broadcast_f32(x + (r * SL_MATMUL_GROUP + k + odd) * 4);
                    sums[r][0] = vf_fma(w[0], value, sums[r][0]);
                    sums[r][1] = vf_fma(w[1], value, sums[r][1]);
                }
            }
        }
        x += rows * SL_MATMUL_GROUP * 4;
    }
    store_sums(part, sums, rows);
}

static const char *bf16_declines(void) {
    return sl_cpu_multiplies_bf16_pairs()
               ? "multiplies as floats, which this processor does at half the rate of vdpbf16ps"
               : NULL;
}

/* Class "bf16/pairs": vdpbf16ps adds the products of two neighbouring columns to the sum, the odd column's
 * first, each rounded to nearest even, subnormals taken as zero. */
SL_ALWAYS_INLINE void pair_tile(const int rows, const sl_matmul_part *part) {
    const unsigned char *weights = part->weights, *x = part->x;
    vf sums[SL_MATMUL_TILE][2];
    load_sums(part, sums, rows);
    for (int32_t left = part->columns; left > 0; left -= SL_MATMUL_GROUP) {
        const int32_t pairs = (left < SL_MATMUL_GROUP ? left : SL_MATMUL_GROUP) / 2;
        for (int32_t k = 0; k < pairs; k++, weights += SL_PANEL * 4) {
            _mm_prefetch((const char *)weights + PREFETCH, _MM_HINT_T0);
            _mm_prefetch((const char *)weights + PREFETCH + 64, _MM_HINT_T0);
            const __m512bh w0 = (__m512bh)vi_load(weights), w1 = (__m512bh)vi_load(weights + 64);
            SL_UNROLL for (int r = 0; r < rows; r++) {
                const __m512bh pair = (__m512bh)dot_x(x + (r * SL_MATMUL_GROUP + 2 * k) * 2);
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], w0, pair);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], w1, pair);
            }
        }
        x += rows * SL_MATMUL_GROUP * 2;
    }
    store_sums(part, sums, rows);
}

#define BF16_TILE(name, ID, rows)                                                                            \
    static void name##_tile_##rows(const sl_matmul_part *part) {                                             \
        bf16_tile(rows, part);                                                                               \
    }
#define PAIR_TILE(name, ID, rows)                                                                            \
    static void name##_tile_##rows(const sl_matmul_part *part) {                                             \
        pair_tile(rows, part);                                                                               \
    }
SL_LONG_TILES(BF16_TILE, bf16, BF16)
SL_TILES(PAIR_TILE, pair, BF16)

static const sl_matmul_type matmul_types[SL_QTYPE_COUNT] = {
    SL_FLOAT_ROW(f32, F32), SL_FLOAT_ROW(f16, F16), SL_FLOAT_ROW(fp8_128, FP8_128),
    /* A block is a pair of columns. */
    [SL_QTYPE_BF16] = {.tiles = SL_LONG_TILE_LIST(bf16),
                       .declines = bf16_declines,
                       .pack_row = pack_row_f32,
                       .main_rows = SL_FLOAT_ROWS,
                       .most_rows = SL_FLOAT_ROWS,
                       .block = 2,
                       .block_bytes = 4,
                       .chunk = SL_FLOAT_CHUNK,
                       .group_bytes = SL_MATMUL_GROUP * 4},
    SL_EACH_INT_TYPE(SL_INT_ROW) SL_EACH_INT_ALIAS(SL_INT_ROW)};

static const sl_matmul_type bf16_pairs = {.tiles = SL_TILE_LIST(pair),
                                          .pack_row = pack_row_bf16,
                                          .main_rows = PAIR_ROWS,
                                          .most_rows = PAIR_ROWS,
                                          .block = 2,
                                          .block_bytes = 4,
                                          .chunk = PAIR_CHUNK,
                                          .group_bytes = SL_MATMUL_GROUP * 2};

#define S8_UNPACKED_TILE(name, ID, rows)                                                                     \
    static void name##_tile_##rows(const sl_matmul_part *part) {                                             \
        s8_unpacked_tile(rows, part);                                                                        \
    }
#define S8_TYPE(name, ID) SL_LONG_TILES(S8_TILE, name, ID) S8_EXPAND(name, ID) S8_UNPACK(name, ID, false)
SL_EACH_S8_TYPE(S8_TYPE)
SL_LONG_TILES(S8_UNPACKED_TILE, s8_of_many, Q8_0)

static const sl_matmul_tile s8_of_many[SL_MATMUL_TILE] = SL_LONG_TILE_LIST(s8_of_many);

#define S8_ROW(name, ID)                                                                                     \
    [SL_QTYPE_##ID] = {.tiles = SL_LONG_TILE_LIST(name##_s8),                                                \
                       .main_rows = S8_ROWS,                                                                 \
                       .most_rows = S8_ROWS,                                                                 \
                       .few_rows = S8_ROWS,                                                                  \
                       S8_FIELDS(name, ID)},

static const sl_matmul_type s8_types[SL_QTYPE_COUNT] = {SL_EACH_S8_TYPE(S8_ROW)};

#define SL_MATMUL_TYPE(row)                                                                                  \
    ((row)->kernel.activation == SL_VALUE_BF16     ? &bf16_pairs                                             \
     : (row)->kernel.activation == SL_VALUE_Q8_256 ? &s8_types[(row)->weight_type]                           \
                                                   : &matmul_types[(row)->weight_type])

#include "backend/cpu/matmul_skeleton.h"

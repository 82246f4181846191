/* Products of a warpgroup with matrices of f16 or bf16 in shared memory that lie as tensor maps bring them:
 * the products of attention. */
#ifndef SL_BACKEND_CUDA_PTX_WGMMA_TILES_CUH
#define SL_BACKEND_CUDA_PTX_WGMMA_TILES_CUH

#include "backend/cuda/ptx/wgmma.cuh"
#include "quant/qtype.h"

#if SL_HAS_WGMMA

/* Of a tile of rows of 128 bytes, swizzled: rows of eight are 1024 bytes apart. The leading distance counts
 * for operands whose rows are keys and that are wider than 64 columns. */
static __device__ __forceinline__ uint64_t wgmma_operand(uint32_t at, uint32_t leading) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           UINT64_C(1) << 62;
}

#define D4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define D16(c, n) D4(c, n), D4(c, n + 1), D4(c, n + 2), D4(c, n + 3)
#define D32(c, n) D16(c, n), D16(c, n + 4)
#define R32                                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"                  \
    ",%24,%25,%26,%27,%28,%29,%30,%31"
#define R48 R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R64                                                                                                  \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53"           \
        ",%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R96                                                                                                  \
    R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85"           \
        ",%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define R128                                                                                                 \
    R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113"             \
        ",%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* s (+)= q . k for 16 columns, both in shared memory */
#define SCORES(type, n, registers, q, k, add, ...)                                                           \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " add ", 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, " q       \
                 ", " k ", p, 1, 1, 0, 0;}"                                                                  \
                 : __VA_ARGS__                                                                               \
                 : "l"(q_at), "l"(k_at), "r"(accumulate))
template <int TYPE, int KEYS>
static __device__ __forceinline__ void wgmma_scores(float s[KEYS / 8][4], uint64_t q_at, uint64_t k_at,
                                                    int accumulate) {
    if constexpr (KEYS == 64) {
        if (TYPE == SL_QTYPE_BF16) {
            SCORES("bf16", "64", R32, "%32", "%33", "%34", D32(s, 0));
        } else {
            SCORES("f16", "64", R32, "%32", "%33", "%34", D32(s, 0));
        }
    } else {
        if (TYPE == SL_QTYPE_BF16) {
            SCORES("bf16", "128", R64, "%64", "%65", "%66", D32(s, 0), D32(s, 8));
        } else {
            SCORES("f16", "128", R64, "%64", "%65", "%66", D32(s, 0), D32(s, 8));
        }
    }
}

/* y += p v for 16 keys */
#define VALUES(type, n, registers, a, b, ...)                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, {" a      \
                 "}, " b ", 1, 1, 1, 1;"                                                                     \
                 : __VA_ARGS__                                                                               \
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v_at))
#define VALUES_OF(n, registers, a, b, ...)                                                                   \
    if (TYPE == SL_QTYPE_BF16) {                                                                             \
        VALUES("bf16", n, registers, a, b, __VA_ARGS__);                                                     \
    } else {                                                                                                 \
        VALUES("f16", n, registers, a, b, __VA_ARGS__);                                                      \
    }
template <int TYPE, int SIZE>
static __device__ __forceinline__ void wgmma_values(float y[SIZE / 8][4], const uint32_t p[4],
                                                    uint64_t v_at) {
    if constexpr (SIZE == 64) {
        VALUES_OF("64", R32, "%32,%33,%34,%35", "%36", D32(y, 0))
    } else if constexpr (SIZE == 96) {
        VALUES_OF("96", R48, "%48,%49,%50,%51", "%52", D32(y, 0), D16(y, 8))
    } else if constexpr (SIZE == 128) {
        VALUES_OF("128", R64, "%64,%65,%66,%67", "%68", D32(y, 0), D32(y, 8))
    } else if constexpr (SIZE == 192) {
        VALUES_OF("192", R96, "%96,%97,%98,%99", "%100", D32(y, 0), D32(y, 8), D32(y, 16))
    } else {
        VALUES_OF("256", R128, "%128,%129,%130,%131", "%132", D32(y, 0), D32(y, 8), D32(y, 16), D32(y, 24))
    }
}

/* The same with p in shared memory. */
#define SHARED_VALUES(type, n, registers, a, b, ...)                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, " a       \
                 ", " b ", 1, 1, 1, 0, 1;"                                                                   \
                 : __VA_ARGS__                                                                               \
                 : "l"(p_at), "l"(v_at))
#define SHARED_VALUES_OF(n, registers, a, b, ...)                                                            \
    if (TYPE == SL_QTYPE_BF16) {                                                                             \
        SHARED_VALUES("bf16", n, registers, a, b, __VA_ARGS__);                                              \
    } else {                                                                                                 \
        SHARED_VALUES("f16", n, registers, a, b, __VA_ARGS__);                                               \
    }
template <int TYPE, int SIZE>
static __device__ __forceinline__ void wgmma_values(float y[SIZE / 8][4], uint64_t p_at, uint64_t v_at) {
    static_assert(SIZE == 128 || SIZE == 256, "no other is written down");
    if constexpr (SIZE == 128) {
        SHARED_VALUES_OF("128", R64, "%64", "%65", D32(y, 0), D32(y, 8))
    } else {
        SHARED_VALUES_OF("256", R128, "%128", "%129", D32(y, 0), D32(y, 8), D32(y, 16), D32(y, 24))
    }
}

#undef D4
#undef D16
#undef D32
#undef R32
#undef R48
#undef R64
#undef R96
#undef R128
#undef SCORES
#undef VALUES
#undef VALUES_OF
#undef SHARED_VALUES
#undef SHARED_VALUES_OF

#endif
#endif

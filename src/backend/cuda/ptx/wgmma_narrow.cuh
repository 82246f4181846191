/* Products of a warpgroup with eight-bit numbers, both operands in shared memory. */
#ifndef SL_BACKEND_CUDA_PTX_WGMMA_NARROW_CUH
#define SL_BACKEND_CUDA_PTX_WGMMA_NARROW_CUH

#include "backend/cuda/ptx/wgmma_tiles.cuh"

#if SL_HAS_WGMMA

#define F8(i)                                                                                                \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),              \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
#define I8(i)                                                                                                \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]),              \
        "+r"(d[i + 6]), "+r"(d[i + 7])
#define I32(i) I8(i), I8(i + 8), I8(i + 16), I8(i + 24)
#define NARROW(shape, factors, registers, rest, ...)                                                         \
    asm volatile("wgmma.mma_async.sync.aligned." shape "." factors " {" registers "}, " rest ";"             \
                 : __VA_ARGS__                                                                               \
                 : "l"(a), "l"(b), "n"((int)ADDS))

/* d = a b^T (ADDS: d +=) of 64 rows and COLUMNS columns, 32 bytes of each; a, b: wgmma_operand. Of E4M3. */
template <int COLUMNS, bool ADDS>
static __device__ __forceinline__ void wgmma_narrow(float (&d)[COLUMNS / 2], uint64_t a, uint64_t b) {
    static_assert(COLUMNS == 64 || COLUMNS == 128 || COLUMNS == 192, "no other is written down");
    if constexpr (COLUMNS == 64) {
        NARROW("m64n64k32", "f32.e4m3.e4m3", SL_M32, "%32, %33, %34, 1, 1", F32(0));
    } else if constexpr (COLUMNS == 128) {
        NARROW("m64n128k32", "f32.e4m3.e4m3", SL_M64, "%64, %65, %66, 1, 1", F32(0), F32(32));
    } else {
        NARROW("m64n192k32", "f32.e4m3.e4m3", SL_M96, "%96, %97, %98, 1, 1", F32(0), F32(32), F32(64));
    }
}

/* The same of int8. */
template <int COLUMNS, bool ADDS>
static __device__ __forceinline__ void wgmma_narrow(int32_t (&d)[COLUMNS / 2], uint64_t a, uint64_t b) {
    static_assert(COLUMNS == 64 || COLUMNS == 128 || COLUMNS == 192, "no other is written down");
    if constexpr (COLUMNS == 64) {
        NARROW("m64n64k32", "s32.s8.s8", SL_M32, "%32, %33, %34", I32(0));
    } else if constexpr (COLUMNS == 128) {
        NARROW("m64n128k32", "s32.s8.s8", SL_M64, "%64, %65, %66", I32(0), I32(32));
    } else {
        NARROW("m64n192k32", "s32.s8.s8", SL_M96, "%96, %97, %98", I32(0), I32(32), I32(64));
    }
}

#undef F8
#undef F32
#undef I8
#undef I32
#undef NARROW

/* After a wait: whatever reads the sums comes later. No instruction. */
template <int COUNT> static __device__ __forceinline__ void wgmma_keep(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

template <int COUNT> static __device__ __forceinline__ void wgmma_keep(int32_t (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+r"(d[i])::"memory");
    }
}

#endif
#endif

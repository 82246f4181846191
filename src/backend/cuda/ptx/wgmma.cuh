/* Hopper's warpgroup products, as PTX has them (compute capability 9.0a). */
#ifndef SL_BACKEND_CUDA_PTX_WGMMA_CUH
#define SL_BACKEND_CUDA_PTX_WGMMA_CUH

#include "backend/cuda/ptx/bulk_copy.cuh"

/* The instructions are those of 9.0 alone: later chips have others. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SL_HAS_WGMMA 1
#else
#define SL_HAS_WGMMA 0
#endif

#if SL_HAS_WGMMA

static __device__ __forceinline__ void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all but the last PENDING groups are done. */
template <int PENDING> static __device__ __forceinline__ void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* The same. The registers that those products read are operands, so
 * that the compiler keeps them as they are until here. */
template <int PENDING> static __device__ __forceinline__ void wgmma_wait(uint32_t (&a)[4][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %16;"
                 : "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]), "+r"(a[1][0]), "+r"(a[1][1]),
                   "+r"(a[1][2]), "+r"(a[1][3]), "+r"(a[2][0]), "+r"(a[2][1]), "+r"(a[2][2]), "+r"(a[2][3]),
                   "+r"(a[3][0]), "+r"(a[3][1]), "+r"(a[3][2]), "+r"(a[3][3])
                 : "n"(PENDING)
                 : "memory");
}

/* sums += a x^T: 64 outputs, ROWS rows, 16 columns; x: descriptor of a matrix in shared memory. */
template <int ROWS>
static __device__ __forceinline__ void wgmma(float (&d)[ROWS / 2], const uint32_t (&a)[4], uint64_t x);

/* Eight accumulators' operands, and their names. */
#define SL_D(i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),              \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define SL_N0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SL_N8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define SL_N16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define SL_N24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define SL_N32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define SL_N40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define SL_N48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define SL_N56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define SL_N64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define SL_N72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define SL_N80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define SL_N88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define SL_N96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define SL_N104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define SL_N112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define SL_N120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define SL_WGMMA(ROWS, NAMES, OPERANDS, D)                                                                   \
    template <>                                                                                              \
    __device__ __forceinline__ void wgmma<ROWS>(float(&d)[ROWS / 2], const uint32_t(&a)[4], uint64_t x) {    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #ROWS "k16.f32.bf16.bf16 {" NAMES "}, " OPERANDS    \
                     ", 1, 1, 1, 0;"                                                                         \
                     : D                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));                                  \
    }
#define SL_COMMA ", "
#define SL_D16 SL_D(0), SL_D(8)
#define SL_M16 SL_N0 SL_COMMA SL_N8
#define SL_D24 SL_D16, SL_D(16)
#define SL_D32 SL_D24, SL_D(24)
#define SL_D40 SL_D32, SL_D(32)
#define SL_D48 SL_D40, SL_D(40)
#define SL_D56 SL_D48, SL_D(48)
#define SL_D64 SL_D56, SL_D(56)
#define SL_D72 SL_D64, SL_D(64)
#define SL_D80 SL_D72, SL_D(72)
#define SL_D88 SL_D80, SL_D(80)
#define SL_D96 SL_D88, SL_D(88)
#define SL_D104 SL_D96, SL_D(96)
#define SL_D112 SL_D104, SL_D(104)
#define SL_D120 SL_D112, SL_D(112)
#define SL_D128 SL_D120, SL_D(120)
#define SL_M24 SL_M16 SL_COMMA SL_N16
#define SL_M32 SL_M24 SL_COMMA SL_N24
#define SL_M40 SL_M32 SL_COMMA SL_N32
#define SL_M48 SL_M40 SL_COMMA SL_N40
#define SL_M56 SL_M48 SL_COMMA SL_N48
#define SL_M64 SL_M56 SL_COMMA SL_N56
#define SL_M72 SL_M64 SL_COMMA SL_N64
#define SL_M80 SL_M72 SL_COMMA SL_N72
#define SL_M88 SL_M80 SL_COMMA SL_N80
#define SL_M96 SL_M88 SL_COMMA SL_N88
#define SL_M104 SL_M96 SL_COMMA SL_N96
#define SL_M112 SL_M104 SL_COMMA SL_N104
#define SL_M120 SL_M112 SL_COMMA SL_N112
#define SL_M128 SL_M120 SL_COMMA SL_N120
#define SL_D4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define SL_M4 "%0, %1, %2, %3"
SL_WGMMA(8, SL_M4, "{%4, %5, %6, %7}, %8", SL_D4)
SL_WGMMA(16, SL_N0, "{%8, %9, %10, %11}, %12", SL_D(0))
SL_WGMMA(32, SL_M16, "{%16, %17, %18, %19}, %20", SL_D16)
SL_WGMMA(48, SL_M24, "{%24, %25, %26, %27}, %28", SL_D24)
SL_WGMMA(64, SL_M32, "{%32, %33, %34, %35}, %36", SL_D32)
SL_WGMMA(80, SL_M40, "{%40, %41, %42, %43}, %44", SL_D40)
SL_WGMMA(96, SL_M48, "{%48, %49, %50, %51}, %52", SL_D48)
SL_WGMMA(112, SL_M56, "{%56, %57, %58, %59}, %60", SL_D56)
SL_WGMMA(128, SL_M64, "{%64, %65, %66, %67}, %68", SL_D64)
SL_WGMMA(144, SL_M72, "{%72, %73, %74, %75}, %76", SL_D72)
SL_WGMMA(160, SL_M80, "{%80, %81, %82, %83}, %84", SL_D80)
SL_WGMMA(256, SL_M128, "{%128, %129, %130, %131}, %132", SL_D128)

#endif
#endif

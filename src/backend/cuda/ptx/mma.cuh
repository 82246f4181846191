/* Products of a warp, and matrices between shared memory and its registers (PTX, "mma", "ldmatrix").
 *
 * a: 16 rows, b: 8 columns, c and d [4]: of rows lane / 4 (0 and 1) and lane / 4 + 8 (2 and 3) columns
 * 2 (lane % 4) and the next. Where d is not there, c is added to in place. */
#ifndef SL_BACKEND_CUDA_PTX_MMA_CUH
#define SL_BACKEND_CUDA_PTX_MMA_CUH

#include <stdint.h>

/* 16 columns of a. */
static __device__ __forceinline__ void sl_mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void sl_mma_bf16(float c[4], const uint32_t a[4], uint32_t b0,
                                                   uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 8 columns of a. */
static __device__ __forceinline__ void sl_mma_bf16_k8(float d[4], const uint32_t a[2], uint32_t b,
                                                      const float c[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, "
        "%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

/* 8 columns of a. Of each number the first 11 bits count. */
static __device__ __forceinline__ void sl_mma_tf32(float c[4], const uint32_t a[4], uint32_t b0,
                                                   uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 32 columns of a, whose bytes have a sign or not; b's have. c is that of both rows: columns' first and
 * second. */
template <bool UNSIGNED>
static __device__ __forceinline__ void sl_mma_i8(int32_t d[4], const uint32_t a[4], uint2 b, int2 c) {
    if (UNSIGNED) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%10, %11, %10, %11};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c.x), "r"(c.y));
    } else {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%10, %11, %10, %11};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c.x), "r"(c.y));
    }
}

/* The same in place, signed. */
static __device__ __forceinline__ void sl_mma_i8_add(int32_t c[4], const int32_t a[4], const int32_t b[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
        "%1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* 16 columns of a. */
template <bool UNSIGNED>
static __device__ __forceinline__ void sl_mma_i8_k16_add(int32_t c[4], uint32_t a0, uint32_t a1, uint32_t b) {
    if (UNSIGNED) {
        asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
            "%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a0), "r"(a1), "r"(b));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
            "%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a0), "r"(a1), "r"(b));
    }
}

/* Signed; every sum begins at c. */
static __device__ __forceinline__ void sl_mma_i8_k16(int32_t d[4], uint32_t a0, uint32_t a1, uint32_t b,
                                                     int32_t c) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c));
}

/* Four matrices of eight rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8 in shared
 * memory, and gets word l % 4 of row l / 4 of each. */
static __device__ __forceinline__ void sl_load_matrices(uint32_t from, uint32_t words[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
}

/* Each of 8 x 8 elements of 16 bits, transposed. */
static __device__ __forceinline__ void sl_load_matrices_transposed(uint32_t from, uint32_t words[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
}

/* A matrix of 8 x 8 elements of 16 bits in registers, transposed. */
static __device__ __forceinline__ uint32_t sl_transposed(uint32_t pair) {
    uint32_t other;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
    return other;
}

#endif

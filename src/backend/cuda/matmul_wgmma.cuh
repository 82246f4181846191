/* Matrix products for many rows with Hopper's warpgroup instructions: y = x W^T (+ bias) (+ residual), with
 * or without experts.
 *
 * Class "bf16/wgmma": like "bf16/mma" (matmul_mma.cuh), added by wgmma.m64nNk16 instead; the order of the
 * columns does not depend on N.
 *
 * A block computes 128 outputs by ROWS rows. The weights are the instruction's first operand, from registers:
 * each of eight warps decodes its 16 outputs' weights once, for all rows of the block. x is the second, read
 * by the tensor cores from shared memory in the layout "128-byte swizzle": row r's 16-byte piece c lies at
 * 128 r + 16 (c ^ r % 8). A step's products run while the next one's weights are decoded; registers and the
 * stage that products read are written again only after those were waited for. */
#ifndef SL_BACKEND_CUDA_MATMUL_WGMMA_CUH
#define SL_BACKEND_CUDA_MATMUL_WGMMA_CUH

#include "backend/cuda/matmul_mma.cuh"

enum { WGMMA_STAGES = 4, WGMMA_THREADS = 256, WGMMA_OUTPUTS = 128 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SL_HAS_WGMMA 1
#else
#define SL_HAS_WGMMA 0
#endif

#if SL_HAS_WGMMA
/* sums += a x^T: 64 outputs, ROWS rows, 16 columns. */
template <int ROWS>
static __device__ __forceinline__ void wgmma(float (&d)[ROWS / 2], const uint32_t a[4], uint64_t x);

template <> __device__ __forceinline__ void wgmma<64>(float (&d)[32], const uint32_t a[4], uint64_t x) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                   "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
                   "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
                   "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
                   "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
}

template <> __device__ __forceinline__ void wgmma<128>(float (&d)[64], const uint32_t a[4], uint64_t x) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                   "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
                   "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
                   "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
                   "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
                   "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                   "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
                   "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
}

template <> __device__ __forceinline__ void wgmma<256>(float (&d)[128], const uint32_t a[4], uint64_t x) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),
          "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),
          "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),
          "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]),
          "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]),
          "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),
          "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]),
          "+f"(d[127])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
}

#endif

template <int TYPE, int ROWS> static __host__ __device__ constexpr int wgmma_stage_bytes() {
    return (ROWS * STEP * 2 + WGMMA_OUTPUTS * weight_layout<TYPE>::bytes + 1023) / 1024 * 1024;
}

template <int TYPE, int ROWS> static __host__ __device__ constexpr int wgmma_bytes() {
    return WGMMA_STAGES * wgmma_stage_bytes<TYPE, ROWS>() + 1024; /* the start is aligned by hand */
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void wgmma_copy(const matmul_work<ROWS> &work, int32_t step,
                                                  uint32_t stage) {
    const matmul_args &args = work.args;
    int32_t thread = (int32_t)threadIdx.x;
    asm volatile("" : "+r"(thread)); /* addresses are computed anew in each step: registers are short */
    const int32_t piece = thread % 8, column = step * STEP + 8 * piece;
    const unsigned char *x = args.x.data + 2 * (uint64_t)(args.x.column + column);
    const uint32_t x_bytes = (uint32_t)args.x.row_bytes;
#pragma unroll
    for (int i = 0; i < ROWS * 8 / WGMMA_THREADS; i++) {
        const int32_t at = thread / 8 + i * (WGMMA_THREADS / 8), row = work.rows.x[at];
        const bool valid = row >= 0 && column < work.weight.columns;
        copy_16(stage + at * 128 + (piece ^ at % 8) * 16,
                valid ? x + (uint64_t)(uint32_t)row * x_bytes : args.x.data, valid ? 16 : 0);
    }
    copy_weights<TYPE, ROWS, WGMMA_OUTPUTS, WGMMA_THREADS>(work, thread, step, stage + ROWS * STEP * 2);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Bytes i and i + 1 of two words' lower halves as one word. */
static __device__ __forceinline__ uint32_t two_pairs(const unsigned char *first,
                                                     const unsigned char *second) {
    return (uint32_t) * (const uint16_t *)first | (uint32_t) * (const uint16_t *)second << 16;
}

/* Columns 2 part, 2 part + 1, and these plus 8, 16 and 24 of the group, as four pairs: what the instruction
 * wants of one row for two times 16 columns. */
template <int TYPE>
static __device__ __forceinline__ void load_pairs(const unsigned char *tile, int32_t row,
                                                  const weight_columns &columns, uint32_t out[4]) {
    typedef weight_layout<TYPE> layout;
    const int32_t group = columns.group, part = columns.part;
    if constexpr (TYPE == SL_QTYPE_Q8_0) {
        const unsigned char *block = tile + row * layout::bytes + columns.shift + group * SL_Q8_0_BYTES;
        const float scale = to_float(*(const uint16_t *)block), constant = -32896.0f * scale;
        const unsigned char *quants = block + 2 + 2 * part;
        decode_bytes(two_pairs(quants, quants + 8) ^ 0x80808080u, scale, constant, out);
        decode_bytes(two_pairs(quants + 16, quants + 24) ^ 0x80808080u, scale, constant, out + 2);
    } else if constexpr (TYPE == SL_QTYPE_Q4_0) {
        const unsigned char *block = tile + row * layout::bytes + columns.shift + group * SL_Q4_0_BYTES;
        const float scale = to_float(*(const uint16_t *)block), constant = -32776.0f * scale;
        const uint32_t quants = two_pairs(block + 2 + 2 * part, block + 10 + 2 * part);
        decode_bytes(quants & 0x0f0f0f0fu, scale, constant, out);
        decode_bytes(quants >> 4 & 0x0f0f0f0fu, scale, constant, out + 2);
    } else if constexpr (TYPE == SL_QTYPE_Q4_K) {
        const unsigned char *quants = tile + WGMMA_OUTPUTS * 16 + row * 32 + 2 * part;
        float scale, constant;
        q4_k_scales(*(const uint4 *)(tile + row * 16), columns.step, group, &scale, &constant);
        decode_bytes(two_pairs(quants, quants + 8) >> 4 * group & 0x0f0f0f0fu, scale, constant, out);
        decode_bytes(two_pairs(quants + 16, quants + 24) >> 4 * group & 0x0f0f0f0fu, scale, constant,
                     out + 2);
    } else {
        const unsigned char *block = tile + row * layout::bytes + columns.shift;
        const int32_t odd = columns.step % 2, bits = 4 * odd + 2 * group;
        const unsigned char *low = block + 32 * group + 2 * part, *high = block + layout::high + 2 * part;
        const int8_t *factors = (const int8_t *)block + layout::scales + 4 * (columns.step % 4) + 2 * group;
        const float all = to_float(*(const uint16_t *)(block + layout::scales + 16));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float scale = all * (float)factors[i];
            const uint32_t l = two_pairs(low + 16 * i, low + 16 * i + 8);
            const uint32_t h = two_pairs(high + 16 * i, high + 16 * i + 8);
            decode_bytes((l >> 4 * odd & 0x0f0f0f0fu) | (h >> bits & 0x03030303u) << 4, scale,
                         -32800.0f * scale, out + 2 * i);
        }
    }
}

/* a[k]: the registers for columns 16 k .. 16 k + 15 of the step; rows `row` and `row + 8` of the tile. */
template <int TYPE>
static __device__ __forceinline__ void load_operand(const unsigned char *tile, int32_t row, int32_t step,
                                                    int32_t shift, uint32_t a[4][4]) {
    if constexpr (TYPE == SL_QTYPE_BF16 || TYPE == SL_QTYPE_F16) {
        /* Lanes 0..15 point at the 16 rows' first 8 columns, the others at the next 8. */
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP, at = row - lane / 4 + lane % 16;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int32_t group = k / 2, piece = k % 2 * 2 + lane / 16;
            const uint32_t from = (uint32_t)__cvta_generic_to_shared(tile) +
                                  (group * WGMMA_OUTPUTS + (at ^ group)) * 64 + 16 * (piece ^ at / 2 % 4);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[k][0]), "=r"(a[k][1]), "=r"(a[k][2]), "=r"(a[k][3])
                         : "r"(from)
                         : "memory");
#pragma unroll
            for (int i = 0; i < 4 && TYPE == SL_QTYPE_F16; i++) {
                a[k][i] = pack_bf16(to_float(a[k][i]), to_float(a[k][i] >> 16));
            }
        }
    } else {
#pragma unroll
        for (int group = 0; group < 2; group++) {
            uint32_t upper[4], lower[4];
            const weight_columns columns = {step, group, (int32_t)threadIdx.x % 4, shift};
            load_pairs<TYPE>(tile, row, columns, upper);
            load_pairs<TYPE>(tile, row + 8, columns, lower);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                a[2 * group + k][0] = upper[2 * k];
                a[2 * group + k][1] = lower[2 * k];
                a[2 * group + k][2] = upper[2 * k + 1];
                a[2 * group + k][3] = lower[2 * k + 1];
            }
        }
    }
}

template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1)
    wgmma_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ matmul_args args) {
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ matmul_rows<ROWS> rows;
    int32_t segment = 0;
    while (segment + 1 < args.segments && (int32_t)blockIdx.y >= args.first_block[segment + 1]) {
        segment++;
    }
    const sl_cuda_weight &weight = args.weights[segment];
    if (!find_matmul_rows(context, args, weight.experts, &rows)) {
        return;
    }
    const unsigned char *matrix = weight.data + (uint64_t)rows.expert * weight.expert_bytes;
    const int32_t first_output = ((int32_t)blockIdx.y - args.first_block[segment]) * WGMMA_OUTPUTS;
    const matmul_work<ROWS> work = {args, weight, matrix, rows, first_output};
    const int32_t steps = (weight.columns + STEP - 1) / STEP;
    const int32_t my_output = (int32_t)threadIdx.x / SL_WARP * 16 + (int32_t)threadIdx.x % SL_WARP / 4;
    const uint32_t row_start =
        (uint32_t)(uint64_t)matrix + (uint32_t)(first_output + my_output) * (uint32_t)weight.row_bytes;
    const uint32_t start = (uint32_t)__cvta_generic_to_shared(memory), base = (start + 1023) / 1024 * 1024;
    unsigned char *const stages = memory + (base - start);
    /* Rows of 128 bytes, groups of 8 rows 1024 bytes apart, 128-byte swizzle; see PTX, "matrix descriptor".
     */
    const uint64_t layout = (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16;
    float sums[ROWS / 2] = {};
    uint32_t a[2][4][4];
#pragma unroll
    for (int i = 0; i < WGMMA_STAGES - 2; i++) {
        wgmma_copy<TYPE, ROWS>(work, i, base + i * wgmma_stage_bytes<TYPE, ROWS>());
    }
    for (int32_t pair = 0; pair < steps; pair += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            /* An odd last step multiplies zeros: stages past the end are filled with them. */
            const int32_t step = pair + odd, now = step % WGMMA_STAGES;
            asm volatile("cp.async.wait_group %0;" ::"n"(WGMMA_STAGES - 3) : "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            const int32_t offset = TYPE == SL_QTYPE_Q8_0   ? step * 2 * SL_Q8_0_BYTES
                                   : TYPE == SL_QTYPE_Q4_0 ? step * 2 * SL_Q4_0_BYTES
                                                           : step / 4 * SL_Q6_K_BYTES;
            const uint32_t stage = (uint32_t)(now * wgmma_stage_bytes<TYPE, ROWS>());
            load_operand<TYPE>(stages + stage + ROWS * STEP * 2, my_output, step,
                               (int32_t)((row_start + (uint32_t)offset) % 16), a[odd]);
            const uint64_t x = layout | (uint64_t)((base + stage) >> 4 & 0x3fffu);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int k = 0; k < 4; k++) {
                wgmma<ROWS>(sums, a[odd][k], x + (uint64_t)(2 * k));
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            /* The stage of two steps ago, which every warp has waited for. */
            wgmma_copy<TYPE, ROWS>(work, step + WGMMA_STAGES - 2,
                                   base + (step + WGMMA_STAGES - 2) % WGMMA_STAGES *
                                              wgmma_stage_bytes<TYPE, ROWS>());
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    const float *bias = weight.bias ? weight.bias + (int64_t)rows.expert * weight.rows : NULL;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int32_t row = rows.y[i / 4 * 8 + (int32_t)threadIdx.x % 4 * 2 + i % 2];
        const int32_t output = first_output + my_output + i % 4 / 2 * 8;
        if (row >= 0 && output < weight.rows) {
            float value = sums[i];
            if (bias) {
                value += bias[output];
            }
            if (args.residual.data) {
                value += sl_f32(args.residual, row)[weight.column + output];
            }
            sl_f32(args.y, row)[weight.column + output] = value;
        }
    }
#endif
}

template <int TYPE, int ROWS> static cudaError_t wgmma_prepare_shape() {
    return cudaFuncSetAttribute(wgmma_kernel<TYPE, ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                wgmma_bytes<TYPE, ROWS>());
}

template <int TYPE> static cudaError_t wgmma_prepare_type() {
    cudaError_t code = wgmma_prepare_shape<TYPE, 256>();
    code = code ? code : wgmma_prepare_shape<TYPE, 128>();
    return code ? code : wgmma_prepare_shape<TYPE, 64>();
}

template <int TYPE, int ROWS>
static cudaError_t wgmma_launch_shape(const sl_cuda_context *context, const sl_cuda_op *op,
                                      cudaStream_t stream) {
    matmul_args args;
    const unsigned blocks = make_matmul_args(context, op, WGMMA_OUTPUTS, &args);
    const dim3 grid((unsigned)row_tiles_of(op, ROWS), blocks);
    wgmma_kernel<TYPE, ROWS><<<grid, WGMMA_THREADS, wgmma_bytes<TYPE, ROWS>(), stream>>>(*context, args);
    return cudaGetLastError();
}

template <int TYPE>
static cudaError_t wgmma_launch_type(const sl_cuda_context *context, const sl_cuda_op *op,
                                     cudaStream_t stream) {
    const int32_t heights[3] = {256, 128, 64};
    /* H200, TFLOPS of full grids (4096 x 12288; 2048 rows for the first two, 512 for the last): BF16 395,
     * 322, 257; Q4_K 326, 237, 199; Q8_0 313, 219, 170. */
    const float speeds[3] = {1.0f, 0.75f, 0.62f};
    int best;
    const cudaError_t code = choose_height(op, heights, speeds, 3, &best);
    return code        ? code
           : best == 0 ? wgmma_launch_shape<TYPE, 256>(context, op, stream)
           : best == 1 ? wgmma_launch_shape<TYPE, 128>(context, op, stream)
                       : wgmma_launch_shape<TYPE, 64>(context, op, stream);
}

#endif

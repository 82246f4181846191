/* What device code takes for granted and g++ does not have: included before every translated file. Semantics
 * are those of the CUDA C++ programming guide and of the CUDA math API's "SIMD" and "type casting"
 * intrinsics. */
#ifndef SL_TESTS_EMULATION_DEVICE_H
#define SL_TESTS_EMULATION_DEVICE_H

#include "emulation.h"
#include "grid.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __maxnreg__
#undef __grid_constant__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

#define warpSize 32

/* ---- asm statements ---- */

namespace emu {

struct output {
    const char *constraint;
    template <typename TYPE> emu_operand operator()(TYPE &variable) const {
        return {constraint, &variable, sizeof variable};
    }
};

/* An input's value, as wide as its register: an int given to "l" is sign-extended. */
struct input_value {
    const char *constraint;
    uint64_t bits;
    uint32_t bytes;
};

struct input {
    const char *constraint;
    template <typename TYPE> input_value operator()(TYPE value) const {
        input_value result = {constraint, 0, sizeof value};
        if constexpr (std::is_integral_v<TYPE> || std::is_enum_v<TYPE>) {
            result.bits = (uint64_t)(int64_t)value;
            result.bytes = *constraint == 'h' ? 2 : *constraint == 'l' ? 8 : 4;
        } else {
            static_assert(sizeof value <= sizeof result.bits, "an asm operand of at most eight bytes");
            memcpy(&result.bits, &value, sizeof value);
        }
        return result;
    }
};

template <size_t OUTS> struct outputs_list { emu_operand operands[OUTS + 1]; };
template <size_t INS> struct inputs_list { input_value values[INS + 1]; };

template <typename... OPERANDS>
static inline outputs_list<sizeof...(OPERANDS)> outputs(OPERANDS... operands) {
    return {{operands..., emu_operand{}}};
}
template <typename... VALUES> static inline inputs_list<sizeof...(VALUES)> inputs(VALUES... values) {
    return {{values..., input_value{}}};
}

template <size_t OUTS = 0, size_t INS = 0>
static inline void assembly(const char *text, outputs_list<OUTS> outs = {}, inputs_list<INS> ins = {}) {
    if (text[0] == '\0') {
        return; /* for the compiler's eyes only */
    }
    emu_operand operands[OUTS + INS + 1];
    for (size_t i = 0; i < OUTS; i++) {
        operands[i] = outs.operands[i];
    }
    for (size_t i = 0; i < INS; i++) {
        operands[OUTS + i] = {ins.values[i].constraint, &ins.values[i].bits, ins.values[i].bytes};
    }
    emu_asm(text, operands, (int)OUTS, (int)INS);
}

/* ---- launches ---- */

/* Keeps a launch's arguments, converted to the kernel's parameters. */
template <typename... PARAMETERS> struct call {
    void (*kernel)(PARAMETERS...);
    std::tuple<std::decay_t<PARAMETERS>...> arguments;
    static void run(void *self) {
        call *c = (call *)self;
        std::apply(c->kernel, c->arguments);
    }
    static void release(void *self) {
        delete (call *)self;
    }
};

template <typename... PARAMETERS, typename... ARGUMENTS>
static inline emu_launch launch_of(void (*kernel)(PARAMETERS...), ARGUMENTS &&...arguments) {
    static_assert(sizeof...(PARAMETERS) == sizeof...(ARGUMENTS),
                  "as many arguments as the kernel has parameters");
    emu_launch launch = {};
    launch.kernel = (const void *)kernel;
    launch.call = call<PARAMETERS...>::run;
    launch.release = call<PARAMETERS...>::release;
    launch.arguments = new call<PARAMETERS...>{
        kernel, std::tuple<std::decay_t<PARAMETERS>...>(
                    static_cast<std::decay_t<PARAMETERS>>(std::forward<ARGUMENTS>(arguments))...)};
    launch.cluster = dim3(1, 1, 1);
    return launch;
}

template <typename... PARAMETERS, typename... ARGUMENTS>
static inline cudaError_t launch_kernel_ex(const cudaLaunchConfig_t *config, void (*kernel)(PARAMETERS...),
                                           ARGUMENTS &&...arguments) {
    emu_launch launch = launch_of(kernel, std::forward<ARGUMENTS>(arguments)...);
    return emu_launch_configured(config, &launch);
}

/* kernel<<<grid, block, bytes, stream>>>(arguments) is translated to kernel << emu::shape(...)(arguments). */
template <typename... ARGUMENTS> struct pending {
    cudaLaunchConfig_t config;
    std::tuple<ARGUMENTS...> arguments;
};

struct shape {
    cudaLaunchConfig_t config = {};
    shape(dim3 grid, dim3 block, size_t bytes = 0, cudaStream_t stream = nullptr) {
        config.gridDim = grid;
        config.blockDim = block;
        config.dynamicSmemBytes = bytes;
        config.stream = stream;
    }
    template <typename... ARGUMENTS> pending<ARGUMENTS...> operator()(ARGUMENTS... arguments) const {
        return {config, std::tuple<ARGUMENTS...>(arguments...)};
    }
};

template <typename... PARAMETERS, typename... ARGUMENTS>
static inline void operator<<(void (*kernel)(PARAMETERS...), const pending<ARGUMENTS...> &launch) {
    std::apply([&](const ARGUMENTS &...arguments) { launch_kernel_ex(&launch.config, kernel, arguments...); },
               launch.arguments);
}

} // namespace emu

#define cudaLaunchKernelEx emu::launch_kernel_ex

template <typename RESULT, typename... PARAMETERS>
static inline cudaError_t cudaFuncSetAttribute(RESULT (*kernel)(PARAMETERS...), cudaFuncAttribute attribute,
                                               int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

template <typename RESULT, typename... PARAMETERS>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes,
                                                RESULT (*kernel)(PARAMETERS...)) {
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}

template <typename RESULT, typename... PARAMETERS>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                                        RESULT (*kernel)(PARAMETERS...),
                                                                        int threads, size_t bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)kernel, threads, bytes);
}

/* ---- barriers and warps ---- */

static inline const void *emu_lanes(uint32_t mask, const void *mine, uint32_t bytes, const char *what) {
    return emu_gather({EMU_LANES, mask}, mine, bytes, what);
}

static inline void __syncthreads(void) {
    emu_named_barrier(0, 0, true);
}
int __syncthreads_or(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_count(int predicate);
static inline void __syncwarp(uint32_t mask = 0xffffffffu) {
    emu_lanes(mask, nullptr, 0, "__syncwarp");
}
static inline void __threadfence(void) {
}
static inline void __threadfence_block(void) {
}
static inline void __threadfence_system(void) {
}

template <typename TYPE>
static inline TYPE emu_shuffle(uint32_t mask, TYPE value, uint32_t from, const char *what) {
    const TYPE *all = (const TYPE *)emu_lanes(mask, &value, sizeof value, what);
    if (!(mask >> from & 1u)) {
        emu_fail("%s: lane %u, which is not in the mask 0x%08x, is read", what, from, mask);
    }
    return all[from];
}

/* Programming guide, "Warp Shuffle Functions": a lane past the segment's end reads its own value. */
template <typename TYPE>
static inline TYPE __shfl_sync(uint32_t mask, TYPE value, int source, int width = EMU_WARP) {
    const uint32_t lane = emu_now->lane;
    return emu_shuffle(mask, value,
                       (lane & ~(uint32_t)(width - 1)) | ((uint32_t)source & (uint32_t)(width - 1)),
                       "__shfl_sync");
}
template <typename TYPE>
static inline TYPE __shfl_xor_sync(uint32_t mask, TYPE value, int bits, int width = EMU_WARP) {
    const uint32_t lane = emu_now->lane, from = lane ^ (uint32_t)bits;
    const uint32_t end = (lane & ~(uint32_t)(width - 1)) + (uint32_t)width;
    return emu_shuffle(mask, value, from < end ? from : lane, "__shfl_xor_sync");
}
template <typename TYPE>
static inline TYPE __shfl_up_sync(uint32_t mask, TYPE value, unsigned distance, int width = EMU_WARP) {
    const uint32_t lane = emu_now->lane, start = lane & ~(uint32_t)(width - 1);
    return emu_shuffle(mask, value, lane >= start + distance ? lane - distance : lane, "__shfl_up_sync");
}
template <typename TYPE>
static inline TYPE __shfl_down_sync(uint32_t mask, TYPE value, unsigned distance, int width = EMU_WARP) {
    const uint32_t lane = emu_now->lane, end = (lane & ~(uint32_t)(width - 1)) + (uint32_t)width;
    return emu_shuffle(mask, value, lane + distance < end ? lane + distance : lane, "__shfl_down_sync");
}

unsigned __ballot_sync(unsigned mask, int predicate);
static inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, !predicate) == 0;
}
unsigned __match_any_sync(unsigned mask, uint64_t value);
static inline unsigned __activemask(void) {
    return emu_alive_lanes();
}

template <typename TYPE, typename JOIN>
static inline TYPE emu_reduce(unsigned mask, TYPE value, const char *what, JOIN join) {
    const TYPE *all = (const TYPE *)emu_lanes(mask, &value, sizeof value, what);
    TYPE result = value;
    for (uint32_t lane = 0; lane < EMU_WARP; lane++) {
        if ((mask >> lane & 1u) && lane != emu_now->lane) {
            result = join(result, all[lane]);
        }
    }
    return result;
}
/* Only 32-bit integers, as the hardware has them. */
#define EMU_REDUCE(name, TYPE, expression)                                                                   \
    static inline TYPE name(unsigned mask, TYPE value) {                                                     \
        return emu_reduce(mask, value, #name, [](TYPE a, TYPE b) { return (TYPE)(expression); });            \
    }
EMU_REDUCE(__reduce_add_sync, unsigned, a + b)
EMU_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMU_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EMU_REDUCE(__reduce_add_sync, int, (unsigned)a + (unsigned)b)
EMU_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMU_REDUCE(__reduce_max_sync, int, a > b ? a : b)
EMU_REDUCE(__reduce_and_sync, unsigned, a &b)
EMU_REDUCE(__reduce_or_sync, unsigned, a | b)
EMU_REDUCE(__reduce_xor_sync, unsigned, a ^ b)

/* ---- memory ---- */

static inline size_t __cvta_generic_to_shared(const void *pointer) {
    return emu_shared_address(pointer);
}
static inline void *__cvta_shared_to_generic(size_t address) {
    return emu_shared_pointer((uint32_t)address);
}
static inline size_t __cvta_generic_to_global(const void *pointer) {
    return (size_t)pointer;
}

#define EMU_LOAD(name)                                                                                       \
    template <typename TYPE> static inline TYPE name(const TYPE *at) {                                       \
        emu_check_aligned(at, sizeof(TYPE), #name);                                                          \
        return *at;                                                                                          \
    }
#define EMU_STORE(name)                                                                                      \
    template <typename TYPE> static inline void name(TYPE *at, TYPE value) {                                 \
        emu_check_aligned(at, sizeof(TYPE), #name);                                                          \
        *at = value;                                                                                         \
    }
static inline void emu_check_aligned(const void *at, size_t bytes, const char *what) {
    if ((uintptr_t)at % bytes != 0) {
        emu_fail("%s of %zu bytes at %p, which is not aligned", what, bytes, at);
    }
}
EMU_LOAD(__ldg)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwb)
EMU_STORE(__stwt)

/* The type of the value is the memory's. */
#define EMU_ATOMIC(name, expression)                                                                         \
    template <typename TYPE> static inline TYPE name(TYPE *at, std::common_type_t<TYPE> operand) {           \
        emu_atomic(#name);                                                                                   \
        const TYPE old = *at;                                                                                \
        *at = (TYPE)(expression);                                                                            \
        return old;                                                                                          \
    }
EMU_ATOMIC(atomicAdd, old + operand)
EMU_ATOMIC(atomicSub, old - operand)
EMU_ATOMIC(atomicMin, operand < old ? operand : old)
EMU_ATOMIC(atomicMax, operand > old ? operand : old)
EMU_ATOMIC(atomicAnd, old &operand)
EMU_ATOMIC(atomicOr, old | operand)
EMU_ATOMIC(atomicXor, old ^ operand)
EMU_ATOMIC(atomicExch, operand)
EMU_ATOMIC(atomicInc, old >= operand ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > operand ? operand : old - 1)
template <typename TYPE>
static inline TYPE atomicCAS(TYPE *at, std::common_type_t<TYPE> expected, std::common_type_t<TYPE> desired) {
    emu_atomic("atomicCAS");
    const TYPE old = *at;
    *at = old == expected ? desired : old;
    return old;
}

static inline void __nanosleep(unsigned) {
    emu_pause("__nanosleep");
}
long long clock64(void);
static inline void __trap(void) {
    emu_fail("__trap");
}

/* ---- bits ---- */

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
unsigned __brev(unsigned x);
unsigned __byte_perm(unsigned x, unsigned y, unsigned selector);
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31u));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31u) >> 32);
}
static inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift < 32u ? shift : 32u));
}
static inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline int __mulhi(int x, int y) {
    return (int)((int64_t)x * y >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
int __dp4a(int a, int b, int c);
unsigned __dp4a(unsigned a, unsigned b, unsigned c);
unsigned __vsub4(unsigned a, unsigned b);
unsigned __vadd4(unsigned a, unsigned b);
unsigned __vsubss4(unsigned a, unsigned b);
unsigned __vcmpeq4(unsigned a, unsigned b);
unsigned __vcmpne4(unsigned a, unsigned b);

template <typename TO, typename FROM> static inline TO emu_bits(FROM from) {
    static_assert(sizeof(TO) == sizeof(FROM), "as many bits");
    TO to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) {
    return emu_bits<unsigned>(x);
}
static inline int __float_as_int(float x) {
    return emu_bits<int>(x);
}
static inline float __uint_as_float(unsigned x) {
    return emu_bits<float>(x);
}
static inline float __int_as_float(int x) {
    return emu_bits<float>(x);
}
static inline long long __double_as_longlong(double x) {
    return emu_bits<long long>(x);
}
static inline double __longlong_as_double(long long x) {
    return emu_bits<double>(x);
}

/* ---- numbers ---- */

#define EMU_MIN_MAX(TYPE, A, B)                                                                              \
    static inline TYPE min(A a, B b) {                                                                       \
        return (TYPE)a < (TYPE)b ? (TYPE)a : (TYPE)b;                                                        \
    }                                                                                                        \
    static inline TYPE max(A a, B b) {                                                                       \
        return (TYPE)a > (TYPE)b ? (TYPE)a : (TYPE)b;                                                        \
    }
EMU_MIN_MAX(int, int, int)
EMU_MIN_MAX(unsigned, unsigned, unsigned)
EMU_MIN_MAX(unsigned, int, unsigned)
EMU_MIN_MAX(unsigned, unsigned, int)
EMU_MIN_MAX(long, long, long)
EMU_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMU_MIN_MAX(long long, long long, long long)
EMU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
static inline float min(float a, float b) {
    return fminf(a, b);
}
static inline float max(float a, float b) {
    return fmaxf(a, b);
}

/* Approximations on the GPU, a few units in the last place off; here as good as the C library's. */
static inline float emu_expf(float x) {
    return expf(x);
}
static inline float emu_logf(float x) {
    return logf(x);
}
static inline float emu_powf(float x, float y) {
    return powf(x, y);
}
static inline float emu_sinf(float x) {
    return sinf(x);
}
static inline float emu_cosf(float x) {
    return cosf(x);
}
static inline float __fdividef(float x, float y) {
    return x / y;
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
static inline float __fadd_rn(float x, float y) {
    return x + y;
}
static inline float __fmul_rn(float x, float y) {
    return x * y;
}
static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
static inline float __saturatef(float x) {
    return x > 0.0f ? fminf(x, 1.0f) : 0.0f;
}
static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
static inline int __float2int_rn(float x) {
    return (int)nearbyintf(x);
}
static inline float __int2float_rn(int x) {
    return (float)x;
}

#endif

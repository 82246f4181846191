/* SL_UNROLL before a loop with a constant count unrolls it fully, so that small arrays live in registers. Not
 * under sanitizers: their checks make the unrolled code enormous, and gcc refuses to. (clang tells of
 * sanitizers by a feature test, gcc by macros.) */
#ifndef SL_BACKEND_CPU_UNROLL_H
#define SL_BACKEND_CPU_UNROLL_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SL_UNROLL
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SL_UNROLL
#endif

#if defined(SL_UNROLL)
#elif defined(__clang__)
#define SL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SL_UNROLL _Pragma("GCC unroll 16")
#endif

#endif

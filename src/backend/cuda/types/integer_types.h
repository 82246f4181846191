/* Weight types that the integer products multiply (`i8-row1`, `i8-rows8`, `i8-rows64`, `i8-tile`) and that
 * `bf16-cublas` decodes. A list is what one file of instances compiles; the lists' order is that of the rows.
 */
#ifndef SL_BACKEND_CUDA_TYPES_INTEGER_TYPES_H
#define SL_BACKEND_CUDA_TYPES_INTEGER_TYPES_H

/* EACH(ID, name) of every type, with commas between them. */
#define SL_INTEGER_LEGACY(EACH) EACH(Q8_0, q8_0), EACH(Q4_0, q4_0)
#define SL_INTEGER_KQUANTS(EACH) EACH(Q4_K, q4_k), EACH(Q5_K, q5_k), EACH(Q6_K, q6_k)
#define SL_INTEGER_FIVES(EACH) EACH(Q4_1, q4_1), EACH(Q5_0, q5_0), EACH(Q5_1, q5_1)
#define SL_INTEGER_BITS(EACH) EACH(Q2_K, q2_k), EACH(Q3_K, q3_k)
#define SL_INTEGER_TABLES(EACH) EACH(IQ4_NL, iq4_nl), EACH(IQ4_XS, iq4_xs), EACH(MXFP4, mxfp4)
#define SL_INTEGER_NVFP4(EACH) EACH(NVFP4, nvfp4), EACH(NVFP4_128, nvfp4_128)

/* Of these, in `i8-row1` and `i8-rows8` alone. */
#define SL_INTEGER_IQ1(EACH) EACH(IQ1_S, iq1_s), EACH(IQ1_M, iq1_m)
#define SL_INTEGER_IQ2(EACH) EACH(IQ2_XXS, iq2_xxs), EACH(IQ2_XS, iq2_xs), EACH(IQ2_S, iq2_s)
#define SL_INTEGER_IQ3(EACH) EACH(IQ3_XXS, iq3_xxs), EACH(IQ3_S, iq3_s)
#define SL_INTEGER_TERNARY(EACH) EACH(TQ1_0, tq1_0), EACH(TQ2_0, tq2_0)

#define SL_INTEGER_TYPES(EACH)                                                                               \
    SL_INTEGER_LEGACY(EACH), SL_INTEGER_KQUANTS(EACH), SL_INTEGER_FIVES(EACH), SL_INTEGER_BITS(EACH),        \
        SL_INTEGER_TABLES(EACH), SL_INTEGER_NVFP4(EACH)

/* An EACH: the type's number. */
#define SL_INTEGER_ID(ID, name) SL_QTYPE_##ID

#endif

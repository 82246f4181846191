/* Between the files that make cases. */
#ifndef SL_TESTS_KERNELS_CASES_H
#define SL_TESTS_KERNELS_CASES_H

#include "harness.h"

/* Of numbers. */
typedef enum style { NORMAL, OUTLIERS, ZEROS, LARGE, TIES, SATURATED, NANS } style;

typedef struct attention_shape {
    int32_t rows, spans;
    int32_t heads, kv_heads, key_size, value_size, window;
    float softcap;
    bool sinks, gate;
    sl_qtype cache;
    style how;
    int32_t step_rows;    /* 0: all at once */
    bool values_are_keys; /* no value is written */
} attention_shape;

/* `aligned`: operands fill their values; else columns lie in front of them. Without attention: the writes to
 * the cache alone. */
void kt_build_attention(kt_case *c, const attention_shape *shape, sl_op_kind kind, bool aligned,
                        kt_random *random);
void kt_name_case(kt_case *c, sl_op_kind kind, int32_t index, const char *detail);
/* Rows that see their own chunk; then values that are the keys' first part. False behind the last. */
bool kt_make_more_attention(kt_case *c, int32_t index, kt_random *random);
bool kt_make_transfer(kt_case *c, int32_t index, kt_random *random);
/* ALL_REDUCE and ALL_GATHER; false for all others too. */
bool kt_make_exchange(kt_case *c, sl_op_kind kind, int32_t index, kt_random *random);
bool kt_make_compact(kt_case *c, int32_t index, kt_random *random);

#endif

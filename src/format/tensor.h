/* A view of one tensor in a mapped file: no copies. */
#ifndef SL_FORMAT_TENSOR_H
#define SL_FORMAT_TENSOR_H

#include "quant/qtype.h"

#include <stdint.h>

enum { SL_TENSOR_DIMS = 4 };

typedef struct sl_tensor {
    const char *name; /* NUL-terminated, lives as long as the file that it came from */
    sl_qtype type;
    uint32_t dim_count;            /* 1 to 4; a safetensors scalar becomes one dimension of 1 */
    uint64_t dims[SL_TENSOR_DIMS]; /* GGUF's order for both formats: dims[0] is the innermost (a row's
                                      length); unused are 1 */
    uint64_t elements;             /* product of dims, checked */
    const void *data;              /* in the map; may be unaligned */
    uint64_t bytes;
} sl_tensor;

#endif

/* Matrix products of the AVX-VNNI tier: integers in the AVX2 tier's panels. */
#include "backend/cpu/avxvnni/avxvnni.h"

#include "backend/cpu/avxvnni/dot.h"
#include "backend/cpu/matmul_unpacked.h"
#include "quant/blocks.h"

SL_EACH_INT_TYPE(SL_INT_TYPE)
SL_EACH_INT_TYPE(SL_INT_UNPACK)

static const sl_matmul_type matmul_types[SL_QTYPE_COUNT] = {SL_EACH_INT_TYPE(SL_INT_ROW)
                                                                SL_EACH_INT_ALIAS(SL_INT_ROW)};

#include "backend/cpu/matmul_skeleton.h"

#include "quant/weighted.h"

#include "quant/weigh.h"

#include <stddef.h>
#include <string.h>

enum { MOST_ELEMENTS = 256, MOST_BYTES = 256 };

typedef void (*weigh_block)(const float *values, const float *importance, void *block);

static const weigh_block WEIGH[SL_QTYPE_COUNT] = {
    [SL_QTYPE_Q2_K] = sl_weigh_q2_k,     [SL_QTYPE_Q3_K] = sl_weigh_q3_k,
    [SL_QTYPE_Q4_K] = sl_weigh_q4_k,     [SL_QTYPE_Q5_K] = sl_weigh_q5_k,
    [SL_QTYPE_Q6_K] = sl_weigh_q6_k,     [SL_QTYPE_IQ4_NL] = sl_weigh_iq4_nl,
    [SL_QTYPE_IQ4_XS] = sl_weigh_iq4_xs, [SL_QTYPE_IQ3_XXS] = sl_weigh_iq3_xxs,
    [SL_QTYPE_IQ3_S] = sl_weigh_iq3_s,   [SL_QTYPE_IQ2_XXS] = sl_weigh_iq2_xxs,
    [SL_QTYPE_IQ2_XS] = sl_weigh_iq2_xs, [SL_QTYPE_IQ2_S] = sl_weigh_iq2_s,
    [SL_QTYPE_IQ1_S] = sl_weigh_iq1_s,   [SL_QTYPE_IQ1_M] = sl_weigh_iq1_m,
};

static double weighted_error(const sl_qtype_info *info, const float *values, const float *importance,
                             const void *block) {
    float decoded[MOST_ELEMENTS];
    double error = 0;
    info->decode(block, decoded, info->block_elements);
    for (uint32_t i = 0; i < info->block_elements; i++) {
        const double difference = (double)decoded[i] - values[i];
        error += importance[i] * difference * difference;
    }
    return error;
}

bool sl_qtype_encode_weighted(sl_qtype type, const float *values, const float *importance, void *blocks,
                              uint64_t count) {
    const sl_qtype_info *info = sl_qtype_get(type);
    const weigh_block weigh = (unsigned)type < SL_QTYPE_COUNT ? WEIGH[type] : NULL;
    unsigned char *block = blocks, plain[MOST_BYTES], weighed[MOST_BYTES];
    for (uint64_t done = 0; weigh && done < count; done += info->block_elements, block += info->block_bytes) {
        info->encode(values + done, plain, info->block_elements);
        weigh(values + done, importance + done, weighed);
        const bool better = weighted_error(info, values + done, importance + done, weighed) <
                            weighted_error(info, values + done, importance + done, plain);
        memcpy(block, better ? weighed : plain, info->block_bytes);
    }
    return weigh != NULL;
}

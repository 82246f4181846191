#include "model/part.h"

int32_t sl_part_rows(const sl_tensor_part *part) {
    int32_t rows = 0;
    for (int32_t i = 0; i < part->count; i++) {
        rows += part->runs[i].rows;
    }
    return rows;
}

int32_t sl_part_row(const sl_tensor_part *part, int32_t row) {
    int32_t i = 0;
    while (i + 1 < part->count && row >= part->runs[i].rows) {
        row -= part->runs[i++].rows;
    }
    return part->runs[i].first + row / part->runs[i].piece * part->runs[i].stride + row % part->runs[i].piece;
}

static void add_run(sl_tensor_part *part, int32_t rows, int32_t piece, int32_t stride, int32_t first) {
    part->runs[part->count].rows = rows;
    part->runs[part->count].piece = piece;
    part->runs[part->count].stride = stride;
    part->runs[part->count++].first = first;
}

/* Gate and up of a checkpoint that has them turned: in turn, or one behind the other. */
static bool alternating(const sl_config *c, sl_tensor_id of, int32_t first, sl_tensor_part *part) {
    part->of = of;
    if (c->family->hf_experts_apart) {
        add_run(part, c->expert_width, c->expert_width, c->expert_width, first * c->expert_width);
    } else {
        add_run(part, c->expert_width, 1, 2, first);
    }
    return c->naming == SL_NAMING_HF && c->family->hf_experts_turned;
}

/* For each key head in turn: its query, its key, its value heads' values, and as many rows of the gate. */
static bool by_key_head(const sl_config *c, bool gate, sl_tensor_part *part) {
    const int32_t heads = c->delta_key_heads, key = c->delta_key_size;
    const int32_t values = heads > 0 ? c->delta_value_heads / heads * c->delta_value_size : 0;
    const int32_t stride = 2 * (key + values);
    part->of = SL_TENSOR_DELTA_QKVZ;
    if (gate) {
        add_run(part, heads * values, values, stride, 2 * key + values);
    } else {
        add_run(part, heads * key, key, stride, 0);
        add_run(part, heads * key, key, stride, key);
        add_run(part, heads * values, values, stride, 2 * key);
    }
    return true;
}

/* For each key head in turn: its value heads' rates of writing, then of decay. */
static bool rates(const sl_config *c, sl_tensor_part *part) {
    const int32_t heads = c->delta_value_heads,
                  ratio = heads / (c->delta_key_heads > 0 ? c->delta_key_heads : 1);
    part->of = SL_TENSOR_DELTA_ALPHA_BETA;
    add_run(part, heads, ratio, 2 * ratio, ratio);
    add_run(part, heads, ratio, 2 * ratio, 0);
    return true;
}

/* Of each head in turn `rows` rows, which begin at `first` of its rows. */
static bool by_head(const sl_config *c, int32_t rows, int32_t first, sl_tensor_part *part) {
    part->of = SL_TENSOR_LATENT_UP;
    add_run(part, c->heads * rows, rows, c->head_size - c->rope_dims + c->value_size, first);
    return true;
}

bool sl_config_part(const sl_config *config, sl_tensor_id id, sl_tensor_part *part) {
    part->count = 0;
    switch (id) {
    case SL_TENSOR_GATE_EXPERTS:
        return alternating(config, SL_TENSOR_FUSED_EXPERTS, 0, part);
    case SL_TENSOR_UP_EXPERTS:
        return alternating(config, SL_TENSOR_FUSED_EXPERTS, 1, part);
    case SL_TENSOR_GATE_EXPERTS_BIAS:
        return alternating(config, SL_TENSOR_FUSED_EXPERTS_BIAS, 0, part);
    case SL_TENSOR_UP_EXPERTS_BIAS:
        return alternating(config, SL_TENSOR_FUSED_EXPERTS_BIAS, 1, part);
    case SL_TENSOR_DELTA_QKV:
        return by_key_head(config, false, part);
    case SL_TENSOR_DELTA_GATE:
        return by_key_head(config, true, part);
    case SL_TENSOR_DELTA_ALPHA_BETA:
        return rates(config, part);
    case SL_TENSOR_LATENT_KEYS:
        return by_head(config, config->head_size - config->rope_dims, 0, part);
    case SL_TENSOR_LATENT_VALUES:
        return by_head(config, config->value_size, config->head_size - config->rope_dims, part);
    default:
        return false;
    }
}

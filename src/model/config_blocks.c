/* Facts of few families: what their configs and checkpoints say of blocks that others do not have. */
#include "model/bind.h"
#include "model/config_reader.h"

#include <math.h>

/* A list of factors; absent: those of the config's class. */
static int hf_factors(const sl_config_reader *r, const char *key, double *factors, size_t count) {
    const json_t *list = sl_json_find(r->text, NULL, key);
    if (!list || json_is_null(list)) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        const double value = json_is_number(item) ? json_number_value(item) : 0;
        if (json_array_size(list) != count || !(value >= 1e-9 && value <= 1e9)) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: %s must be an array of %zu numbers above 0",
                           r->file, key, count);
        }
        factors[i] = value;
    }
    return 0;
}

/* Of checkpoints. What a projection reads and what it leaves is multiplied by one number in the end. */
int sl_config_derive_factors(const sl_config_reader *r) {
    const sl_config_raw *raw = r->raw;
    sl_config *config = &r->raw->config;
    double mlp[2] = {1, 1};
    if (r->gguf || !r->family->multiplied) {
        return 0;
    }
    int code = hf_factors(r, "ssm_multipliers", config->factors.ssm, SL_SSM_PARTS);
    code = code ? code : hf_factors(r, "mlp_multipliers", mlp, 2);
    for (int part = 0; part < SL_SSM_PARTS; part++) {
        config->factors.ssm[part] *= raw->ssm_in;
    }
    config->factors.ssm_out = raw->ssm_out;
    config->factors.scores = raw->attention_in * raw->attention_in * raw->key_factor;
    config->factors.attention = raw->attention_in * raw->attention_out;
    config->factors.gate = mlp[0];
    config->factors.down = mlp[1];
    config->attention_scale *= config->factors.scores;
    config->logit_divisor = 1 / raw->logit_factor;
    return code;
}

/* A key's number for each layer, or for all. */
static int gguf_xielu(const sl_config_reader *r, const char *key, float *values) {
    const sl_gguf_entry *entry = sl_gguf_find(r->gguf, key);
    const int32_t layers = r->raw->config.layers;
    const bool array = entry && entry->type == SL_GGUF_ARRAY;
    const int type = !entry ? -1 : array ? (int)entry->item_type : (int)entry->type;
    if ((type != SL_GGUF_F32 && type != SL_GGUF_F64) || (array && entry->count < (uint64_t)layers)) {
        return sl_fail(r->error, SL_ERR_FORMAT, "%s: %s must be an array of %d numbers", r->file, key,
                       layers);
    }
    for (int32_t layer = 0; layer < layers; layer++) {
        values[layer] = (float)sl_gguf_item_f64(entry, array ? (uint64_t)layer : 0);
    }
    return 0;
}

/* Of checkpoints, where they are tensors: the binder says which is missing. */
static void hf_xielu(const sl_config_reader *r, sl_tensor_id id, float *values) {
    for (int32_t layer = 0; layer < r->raw->config.layers; layer++) {
        const sl_tensor *tensor = sl_model_tensor(&r->raw->config, r->source, id, layer);
        if (tensor && tensor->elements == 1 && sl_qtype_get(tensor->type)->block_elements == 1) {
            sl_qtype_get(tensor->type)->decode(tensor->data, &values[layer], 1);
        }
    }
}

int sl_config_derive_xielu(const sl_config_reader *r) {
    static const sl_tensor_id tensors[SL_XIELU_COUNT] = {
        [SL_XIELU_POSITIVE] = SL_TENSOR_XIELU_POSITIVE,
        [SL_XIELU_NEGATIVE] = SL_TENSOR_XIELU_NEGATIVE,
        [SL_XIELU_BETA] = SL_TENSOR_XIELU_BETA,
        [SL_XIELU_EPSILON] = SL_TENSOR_XIELU_EPSILON,
    };
    sl_config *config = &r->raw->config;
    int code = 0;
    for (int i = 0; i < SL_XIELU_COUNT && config->activation == SL_ACTIVATION_XIELU && code == 0; i++) {
        if (r->gguf) {
            code = gguf_xielu(r, SL_XIELU_KEYS[i], config->xielu[i]);
        } else {
            hf_xielu(r, tensors[i], config->xielu[i]);
        }
    }
    return code;
}

/* Some configs of Llama 4 say 4 for true. */
void sl_config_derive_temperature(const sl_config_reader *r) {
    const json_t *tuned = r->gguf ? NULL : sl_json_find(r->text, NULL, "attn_temperature_tuning");
    const bool off = json_is_false(tuned) || (json_is_integer(tuned) && json_integer_value(tuned) == 0);
    if (r->family->still_temperature > 0 && !r->gguf) {
        r->raw->config.temperature_scale = off ? 0 : r->raw->still_temperature;
        r->raw->config.temperature_length = r->raw->still_length;
    }
}

int sl_config_listed_sparse(const sl_config_reader *r, const json_t *list) {
    sl_config *config = &r->raw->config;
    memset(config->dense, true, (size_t)config->layers);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= config->layers) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: moe_layers[%zu] is not a layer (0 to %d)", r->file,
                           i, config->layers - 1);
        }
        config->dense[json_integer_value(item)] = false;
    }
    return 0;
}

/* What a layer of a config has, by its kind or its number. */
#include "model/config.h"

static bool in_window(const sl_config *config, int32_t layer) {
    return config->kinds[layer] == SL_LAYER_WINDOW;
}

int32_t sl_config_position_offset(const sl_config *config) {
    return config->naming == SL_NAMING_HF ? config->family->hf_position_offset : 0;
}

int32_t sl_config_head_size(const sl_config *config, int32_t layer) {
    return in_window(config, layer) && config->window_head_size > 0 ? config->window_head_size
                                                                    : config->head_size;
}

int32_t sl_config_value_size(const sl_config *config, int32_t layer) {
    return config->latent > 0 ? config->value_size : sl_config_head_size(config, layer);
}

int32_t sl_config_kv_heads(const sl_config *config, int32_t layer) {
    return in_window(config, layer) && config->window_kv_heads > 0 ? config->window_kv_heads
                                                                   : config->kv_heads;
}

int32_t sl_config_rope_dims(const sl_config *config, int32_t layer) {
    return in_window(config, layer) && config->window_rope_dims > 0 ? config->window_rope_dims
                                                                    : config->rope_dims;
}

int32_t sl_config_feed_forward(const sl_config *config, int32_t layer) {
    return config->feed_forwards[layer] > 0 ? config->feed_forwards[layer] : config->feed_forward;
}

int32_t sl_config_kv_layer(const sl_config *config, int32_t layer) {
    const int32_t first_shared = config->layers - config->shared_kv;
    if (layer < first_shared || layer >= config->layers) {
        return layer;
    }
    for (int32_t source = first_shared - 1; source >= 0; source--) {
        if (config->kinds[source] == config->kinds[layer]) {
            return source;
        }
    }
    return SL_NONE;
}

bool sl_config_is_long(const sl_config *config) {
    return config->context > config->rope.original_context;
}

bool sl_config_attends(const sl_config *config, int32_t layer) {
    return config->kinds[layer] == SL_LAYER_FULL || config->kinds[layer] == SL_LAYER_WINDOW;
}

bool sl_config_has_feed_forward(const sl_config *config, int32_t layer) {
    return config->kinds[layer] == SL_LAYER_FEED_FORWARD || !config->family->one_block;
}

int32_t sl_config_expert_rows(const sl_config *config) {
    return config->latent_width > 0 ? config->latent_width : config->width;
}

bool sl_config_turns(const sl_config *config) {
    for (int32_t layer = 0; layer < config->layers; layer++) {
        if (sl_config_attends(config, layer) && !config->no_rope[layer]) {
            return true;
        }
    }
    return false;
}

bool sl_config_has_keys(const sl_config *config, int32_t layer) {
    return sl_config_attends(config, layer) &&
           (layer < config->layers - config->shared_kv || layer >= config->layers);
}

bool sl_config_has_values(const sl_config *config, int32_t layer) {
    return sl_config_has_keys(config, layer) &&
           !(config->key_is_value && config->kinds[layer] == SL_LAYER_FULL);
}

/* Keys: transformers' GenerationConfig; gguf-py's constants.py (general.sampling.*). */
#include "model/generation.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>

typedef struct row {
    const char *gguf, *hf; /* NULL: that format has no such key */
    double least, most;
    bool integer;
} row;

#define GGUF(key) "general.sampling." key

static const row ROWS[SL_SAMPLING_COUNT] = {
    [SL_SAMPLING_DO_SAMPLE] = {NULL, "do_sample", 0, 1, true},
    [SL_SAMPLING_TEMPERATURE] = {GGUF("temp"), "temperature", 0, 1e6, false},
    /* Some files say -1 where they mean all. */
    [SL_SAMPLING_TOP_K] = {GGUF("top_k"), "top_k", -1, INT32_MAX, true},
    [SL_SAMPLING_TOP_P] = {GGUF("top_p"), "top_p", 0, 1, false},
    [SL_SAMPLING_MIN_P] = {GGUF("min_p"), "min_p", 0, 1, false},
    [SL_SAMPLING_TYPICAL_P] = {NULL, "typical_p", 0, 1, false},
    [SL_SAMPLING_REPETITION_PENALTY] = {GGUF("penalty_repeat"), "repetition_penalty", 1e-6, 1e3, false},
    [SL_SAMPLING_PENALTY_TOKENS] = {GGUF("penalty_last_n"), NULL, -1, INT32_MAX, true},
    [SL_SAMPLING_XTC_PROBABILITY] = {GGUF("xtc_probability"), NULL, 0, 1, false},
    [SL_SAMPLING_XTC_THRESHOLD] = {GGUF("xtc_threshold"), NULL, 0, 1, false},
    [SL_SAMPLING_MIROSTAT] = {GGUF("mirostat"), NULL, 0, 2, true},
    [SL_SAMPLING_MIROSTAT_TAU] = {GGUF("mirostat_tau"), NULL, 0, 1e3, false},
    [SL_SAMPLING_MIROSTAT_ETA] = {GGUF("mirostat_eta"), NULL, 0, 1e3, false},
};

/* 1: found, 0: absent, negative: wrong. */
static int gguf_number(const sl_gguf *gguf, const char *key, double *value, sl_error *error) {
    const sl_gguf_entry *entry = sl_gguf_find(gguf, key);
    if (!entry) {
        return 0;
    }
    if (entry->type == SL_GGUF_F32 || entry->type == SL_GGUF_F64) {
        *value = sl_gguf_item_f64(entry, 0);
        return 1;
    }
    int64_t integer;
    const int code = sl_gguf_i64(gguf, key, &integer, error);
    *value = code ? 0 : (double)integer;
    return code ? code : 1;
}

static int hf_number(sl_json_place place, const char *key, double *value, sl_error *error) {
    const json_t *found = sl_json_find(place.root, NULL, key);
    if (!found) {
        return 0;
    }
    if (json_is_boolean(found)) {
        *value = json_is_true(found);
        return 1;
    }
    const int code = sl_json_f64(place, NULL, key, value, error);
    return code ? code : 1;
}

int sl_sampling_read(const sl_source *source, sl_sampling *sampling, sl_error *error) {
    *sampling = (sl_sampling){0};
    const sl_gguf *gguf = sl_source_gguf(source);
    const sl_json_place place =
        gguf ? (sl_json_place){NULL, sl_gguf_path(gguf)} : sl_hf_generation_place(sl_source_hf(source));
    for (int i = 0; i < SL_SAMPLING_COUNT; i++) {
        const row *row = &ROWS[i];
        const char *key = gguf ? row->gguf : row->hf;
        double value = 0;
        const int code = !key   ? 0
                         : gguf ? gguf_number(gguf, key, &value, error)
                                : hf_number(place, key, &value, error);
        if (code < 0) {
            return code;
        }
        if (code == 0) {
            continue;
        }
        if (!isfinite(value) || value < row->least || value > row->most ||
            (row->integer && value != floor(value))) {
            return sl_fail(error, SL_ERR_INVALID, "%s: %s is %.10g, must be %s%.10g to %.10g", place.file,
                           key, value, row->integer ? "an integer of " : "", row->least, row->most);
        }
        sampling->values[i] = i == SL_SAMPLING_TOP_K && value < 0 ? 0 : value;
        sampling->present |= 1u << i;
        sampling->file = place.file;
    }
    sl_view order = {NULL, 0};
    const int code = gguf ? sl_gguf_string(gguf, GGUF("sequence"), &order, error) : SL_ERR_NOT_FOUND;
    if (code == 0) {
        if (order.length >= sizeof sampling->samplers || memchr(order.data, '\0', order.length)) {
            return sl_fail(error, SL_ERR_INVALID, "%s: %s must be a text of at most %zu bytes", place.file,
                           GGUF("sequence"), sizeof sampling->samplers - 1);
        }
        memcpy(sampling->samplers, order.data, order.length);
        sampling->file = place.file;
    }
    return code == SL_ERR_NOT_FOUND ? 0 : code;
}

/* ---- tokens that end a text ---- */

static int add_end(sl_json_place place, const json_t *id, sl_tokenizer *tokenizer, sl_error *error) {
    if (!json_is_integer(id)) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: eos_token_id must be an integer or a list of integers",
                       place.file);
    }
    const json_int_t number = json_integer_value(id);
    if (number < 0 || number >= sl_tokenizer_size(tokenizer)) {
        sl_log(SL_LOG_WARNING, "%s: eos_token_id is %lld, but the tokenizer has %d tokens; it is left out",
               place.file, (long long)number, sl_tokenizer_size(tokenizer));
        return 0;
    }
    sl_tokenizer_add_eog(tokenizer, (int32_t)number);
    return 0;
}

static int add_ends(sl_json_place place, const char *prefix, sl_tokenizer *tokenizer, sl_error *error) {
    const json_t *ids = sl_json_find(place.root, prefix, "eos_token_id");
    if (!ids) {
        return 0;
    }
    if (!json_is_array(ids)) {
        return add_end(place, ids, tokenizer, error);
    }
    int code = 0;
    for (size_t i = 0; i < json_array_size(ids) && code == 0; i++) {
        code = add_end(place, json_array_get(ids, i), tokenizer, error);
    }
    return code;
}

int sl_read_ends(const sl_source *source, sl_tokenizer *tokenizer, sl_error *error) {
    const sl_hf *hf = sl_source_hf(source);
    if (!hf) {
        return 0; /* the loader of GGUF vocabularies reads all that the file says */
    }
    int code = add_ends(sl_hf_generation_place(hf), NULL, tokenizer, error);
    code = code ? code : add_ends(sl_hf_config_place(hf), NULL, tokenizer, error);
    return code ? code : add_ends(sl_hf_config_place(hf), "text_config", tokenizer, error);
}

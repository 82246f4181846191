/* The C API: how a model wants to be used, as its files say it: sampling, ends of a turn, replies, thinking.
 */
#include "api/conduct.h"

#include "base/text.h"

#include <string.h>

enum { ENDS = 8, END_TEXT = 40 };

static const char *const SAMPLING_NAMES[SL_SAMPLING_COUNT] = {
    [SL_SAMPLING_DO_SAMPLE] = "do_sample",
    [SL_SAMPLING_TEMPERATURE] = "temperature",
    [SL_SAMPLING_TOP_K] = "top_k",
    [SL_SAMPLING_TOP_P] = "top_p",
    [SL_SAMPLING_MIN_P] = "min_p",
    [SL_SAMPLING_TYPICAL_P] = "typical_p",
    [SL_SAMPLING_REPETITION_PENALTY] = "repetition_penalty",
    [SL_SAMPLING_PENALTY_TOKENS] = "penalty_tokens",
    [SL_SAMPLING_XTC_PROBABILITY] = "xtc_probability",
    [SL_SAMPLING_XTC_THRESHOLD] = "xtc_threshold",
    [SL_SAMPLING_MIROSTAT] = "mirostat",
    [SL_SAMPLING_MIROSTAT_TAU] = "mirostat_tau",
    [SL_SAMPLING_MIROSTAT_ETA] = "mirostat_eta",
};

/* The first tokens that end a turn or a text; returns how many there are. */
static int list_ends(const sl_tokenizer *tokenizer, int32_t ends[ENDS]) {
    int count = 0;
    for (int32_t id = 0; id < sl_tokenizer_size(tokenizer); id++) {
        if (sl_tokenizer_is_eog(tokenizer, id)) {
            if (count < ENDS) {
                ends[count] = id;
            }
            count++;
        }
    }
    return count;
}

/* In whole characters; what is no UTF-8, and control characters, become question marks. */
static void show(sl_view from, char to[END_TEXT]) {
    size_t length = 0;
    for (size_t at = 0; at < from.length;) {
        uint32_t c;
        size_t step = sl_utf8_decode(from.data + at, from.length - at, &c);
        const bool shown = step > 0 && c >= 0x20 && (c < 0x7f || c > 0x9f);
        if (length + (shown ? step : 1) >= END_TEXT) {
            break;
        }
        if (shown) {
            memcpy(to + length, from.data + at, step);
        } else {
            to[length] = '?';
        }
        length += shown ? step : 1;
        at += step > 0 ? step : 1;
    }
    to[length] = '\0';
}

static const char *thinking_of(const sluice_chat_facts *facts) {
    if (facts->thinks) {
        return facts->enable_thinking ? "first, unless enable_thinking=false" : "first, always";
    }
    if (facts->marks_thoughts || facts->think_open) {
        return facts->enable_thinking ? "may come first; enable_thinking decides" : "may come first";
    }
    return "none known";
}

static bool chat_facts(const sluice_model *model, sluice_chat_facts *facts) {
    *facts = (sluice_chat_facts){.size = sizeof *facts};
    return sluice_chat_get_facts(model, facts, NULL) == 0;
}

void sl_api_describe_conduct(const sluice_model *model, sl_buffer *out) {
    const sl_sampling *sampling = &model->model->sampling;
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const char *between = "";
    sl_buffer_text(out, "sampling    ");
    for (int i = 0; i < SL_SAMPLING_COUNT; i++) {
        if (sampling->present & 1u << i) {
            sl_buffer_printf(out, "%s%s %.6g", between, SAMPLING_NAMES[i], sampling->values[i]);
            between = ", ";
        }
    }
    if (sampling->samplers[0]) {
        sl_buffer_printf(out, "%ssamplers %s", between, sampling->samplers);
        between = ", ";
    }
    sl_buffer_text(out, *between ? "\n" : "none of its own\n");
    if (!tokenizer) {
        return;
    }
    int32_t ends[ENDS];
    const int count = list_ends(tokenizer, ends);
    sl_buffer_text(out, "ends        ");
    for (int i = 0; i < count && i < ENDS; i++) {
        char text[END_TEXT];
        show(sl_tokenizer_token_text(tokenizer, ends[i]), text);
        sl_buffer_printf(out, "%s%s (%d)", i ? ", " : "", text, ends[i]);
    }
    sl_buffer_text(out, count == 0 ? "none\n" : count > ENDS ? ", ...\n" : "\n");
    sluice_chat_facts facts;
    if (chat_facts(model, &facts)) {
        sl_buffer_printf(out, "replies     %s\nthinking    %s\n", facts.reply_format, thinking_of(&facts));
    }
}

/* NULL when memory ran out. */
static json_t *sampling_json(const sl_sampling *sampling) {
    json_t *json = json_object();
    bool done = json != NULL;
    for (int i = 0; done && i < SL_SAMPLING_COUNT; i++) {
        done = !(sampling->present & 1u << i) ||
               json_object_set_new(json, SAMPLING_NAMES[i], json_real(sampling->values[i])) == 0;
    }
    if (done && sampling->samplers[0]) {
        done = json_object_set_new(json, "samplers", json_string(sampling->samplers)) == 0;
    }
    if (!done) {
        json_decref(json);
    }
    return done ? json : NULL;
}

bool sl_api_add_conduct(const sluice_model *model, json_t *description) {
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    sluice_chat_facts facts;
    bool done = json_object_set_new(description, "sampling", sampling_json(&model->model->sampling)) == 0;
    if (!tokenizer) {
        return done;
    }
    json_t *list = json_array();
    for (int32_t id = 0; list && done && id < sl_tokenizer_size(tokenizer); id++) {
        done = !sl_tokenizer_is_eog(tokenizer, id) || json_array_append_new(list, json_integer(id)) == 0;
    }
    done = json_object_set_new(description, "ends", list) == 0 && done;
    if (done && chat_facts(model, &facts)) {
        done = json_object_set_new(description, "replies", json_string(facts.reply_format)) == 0 &&
               json_object_set_new(description, "thinks", json_boolean(facts.thinks)) == 0 &&
               json_object_set_new(description, "enable_thinking", json_boolean(facts.enable_thinking)) == 0;
    }
    return done;
}

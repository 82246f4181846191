#include "apis.h"

#include "convert.h"
#include "openai.h"

#include <string.h>

void event_send(generation *g, event_writer *w) {
    if (!w->broken) {
        w->broken = w->event.failed;
        exchange_write(generation_exchange(g), w->broken ? w->failure : w->event.data,
                       w->broken ? strlen(w->failure) : w->event.length);
    }
    text_clear(&w->event);
}

int api_add_messages(generation *g, json_t *messages, json_t *kwargs, const char *param, http_error *error) {
    int code = check_messages(messages, param, error);
    if (!code) {
        code = add_messages(g, messages, kwargs, param, error);
    }
    json_decref(messages);
    json_decref(kwargs);
    return code;
}

int api_read_fields(generation *g, http_error *error) {
    generation_options *o = generation_get_options(g);
    if (body_fields(generation_body(g), "", GENERATION_FIELDS, GENERATION_FIELD_COUNT, o, error)) {
        return -1;
    }
    return o->n == 1 ? 0 : body_refuse(error, "n must be 1 in this API");
}

const choice *api_choice(const generation *g) {
    return generation_choice(g, 0);
}

bool api_is_cut(const choice *c) {
    return c->finish == SLUICE_FINISH_LENGTH || c->finish == SLUICE_FINISH_CONTEXT;
}

bool api_has_logprobs(const choice *c, const piece *p) {
    for (size_t i = p->first_entry; i < p->first_entry + p->entry_count; i++) {
        if (!c->entries[i].outside) {
            return true;
        }
    }
    return false;
}

static void write_token(text *out, const generation *g, int32_t token, float logprob) {
    size_t length;
    const char *bytes = openai_token_bytes(g, token, &length);
    text_put(out, "{\"token\":");
    text_string(out, bytes, length);
    text_put(out, ",\"logprob\":");
    openai_write_logprob(out, logprob);
    text_put(out, ",\"bytes\":[");
    for (size_t i = 0; i < length; i++) {
        text_format(out, i ? ",%d" : "%d", (unsigned char)bytes[i]);
    }
    text_put(out, "]");
}

void api_write_logprobs(text *out, const generation *g, const choice *c, size_t first, size_t count) {
    const char *comma = "";
    text_put(out, "[");
    for (size_t i = first; i < first + count; i++) {
        const token_entry *entry = &c->entries[i];
        if (entry->outside) {
            continue;
        }
        text_put(out, comma);
        comma = ",";
        write_token(out, g, entry->token, entry->logprob);
        text_put(out, ",\"top_logprobs\":[");
        for (size_t t = 0; t < entry->top_count; t++) {
            const sluice_logprob *top = &c->tops[entry->top_first + t];
            text_put(out, t ? "," : "");
            write_token(out, g, top->token, top->logprob);
            text_put(out, "}");
        }
        text_put(out, "]}");
    }
    text_put(out, "]");
}

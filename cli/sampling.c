/* How a model's makers would sample from it, where the command line does not say. */
#include "cli.h"

#include <string.h>

typedef struct model_value {
    unsigned bit; /* SLUICE_SAMPLING_... */
    const char *option;
    bool whole; /* int32_t in both structs; else float in the model's and double in the settings */
    size_t from, to;
} model_value;

#define VALUE(bit, option, whole, from, to)                                                                  \
    { SLUICE_SAMPLING_##bit, option, whole, offsetof(sluice_sampling_facts, from), offsetof(settings, to) }
static const model_value VALUES[] = {
    VALUE(TEMPERATURE, "--temp", false, temperature, temperature),
    VALUE(TOP_K, "--top-k", true, top_k, top_k),
    VALUE(TOP_P, "--top-p", false, top_p, top_p),
    VALUE(MIN_P, "--min-p", false, min_p, min_p),
    VALUE(TYPICAL_P, "--typical", false, typical_p, typical),
    VALUE(REPETITION_PENALTY, "--repeat-penalty", false, repetition_penalty, repeat_penalty),
    VALUE(PENALTY_TOKENS, "--repeat-last-n", true, penalty_tokens, repeat_last),
};

/* Greedy as transformers has it: then nothing else of the file counts. */
static bool is_greedy(const sluice_sampling_facts *facts) {
    return (facts->present & SLUICE_SAMPLING_DO_SAMPLE) && !facts->do_sample;
}

static double take(settings *s, const sluice_sampling_facts *facts, const model_value *v) {
    const char *from = (const char *)facts + v->from;
    char *to = (char *)s + v->to;
    if (v->whole) {
        int32_t whole;
        memcpy(&whole, from, sizeof whole);
        memcpy(to, &whole, sizeof whole);
        return whole;
    }
    float real;
    memcpy(&real, from, sizeof real);
    const double wide = real;
    memcpy(to, &wide, sizeof wide);
    return wide;
}

void take_model_sampling(settings *s, const sluice_model *model) {
    char said[256];
    int at = 0;
    sluice_sampling_facts facts = {.size = sizeof facts};
    if (s->no_model_sampling) {
        return;
    }
    sluice_model_get_sampling(model, &facts);
    if (is_greedy(&facts)) {
        if (!is_given(s, "--temp")) {
            s->temperature = 0;
            at = snprintf(said, sizeof said, " --temp 0");
        }
        facts.present = 0;
    }
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        if ((facts.present & VALUES[i].bit) && !is_given(s, VALUES[i].option)) {
            const double value = take(s, &facts, &VALUES[i]);
            if (at < (int)sizeof said) {
                at += snprintf(said + at, sizeof said - (size_t)at, " %s %g", VALUES[i].option, value);
            }
        }
    }
    if (at > 0) {
        notice(s, "the model's own sampling (%s):%s", facts.file, said);
    }
}

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
    VALUE(XTC_PROBABILITY, "--xtc-probability", false, xtc_probability, xtc_probability),
    VALUE(XTC_THRESHOLD, "--xtc-threshold", false, xtc_threshold, xtc_threshold),
    VALUE(MIROSTAT, "--mirostat", true, mirostat, mirostat),
    VALUE(MIROSTAT_TAU, "--mirostat-ent", false, mirostat_tau, mirostat_tau),
    VALUE(MIROSTAT_ETA, "--mirostat-lr", false, mirostat_eta, mirostat_eta),
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

/* What is done about candidates, in which order; true: it was taken from the model's files. */
static bool take_order(settings *s, const sluice_sampling_facts *facts) {
    sluice_error error;
    sampler_list order = {0};
    if (!facts->samplers || is_given(s, "--samplers")) {
        return false;
    }
    if (sluice_samplers_parse(facts->samplers, order.items, &order.count, &error)) {
        fail("the order of samplers in %s is not followed: %s", facts->file, error.message);
        return false;
    }
    s->samplers = order;
    return order.count > 0;
}

void take_model_sampling(settings *s, const sluice_model *model) {
    char said[768] = "";
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
        facts.samplers = NULL;
    }
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        if ((facts.present & VALUES[i].bit) && !is_given(s, VALUES[i].option)) {
            const double value = take(s, &facts, &VALUES[i]);
            if (at < (int)sizeof said) {
                at += snprintf(said + at, sizeof said - (size_t)at, " %s %g", VALUES[i].option, value);
            }
        }
    }
    if (take_order(s, &facts) && at < (int)sizeof said) {
        at += snprintf(said + at, sizeof said - (size_t)at, " --samplers %s", facts.samplers);
    }
    if (at > 0) {
        notice(s, "the model's own sampling (%s):%s", facts.file, said);
    }
}

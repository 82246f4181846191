/* How those who made a model would sample from it: the defaults of its requests. */
#include "sampling.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct model_value {
    unsigned bit; /* SLUICE_SAMPLING_... */
    const char *field;
    bool whole; /* int32_t in the facts and int64_t in the options; else float and double */
    size_t from, to;
} model_value;

#define VALUE(bit, field, whole, from, to)                                                                   \
    {                                                                                                        \
        SLUICE_SAMPLING_##bit, field, whole, offsetof(sluice_sampling_facts, from),                          \
            offsetof(generation_options, to)                                                                 \
    }
static const model_value VALUES[] = {
    VALUE(TEMPERATURE, "temperature", false, temperature, temperature),
    VALUE(TOP_K, "top_k", true, top_k, top_k),
    VALUE(TOP_P, "top_p", false, top_p, top_p),
    VALUE(MIN_P, "min_p", false, min_p, min_p),
    VALUE(TYPICAL_P, "typical_p", false, typical_p, typical_p),
    VALUE(REPETITION_PENALTY, "repeat_penalty", false, repetition_penalty, repetition_penalty),
    VALUE(PENALTY_TOKENS, "repeat_last_n", true, penalty_tokens, penalty_tokens),
    VALUE(XTC_PROBABILITY, "xtc_probability", false, xtc_probability, xtc_probability),
    VALUE(XTC_THRESHOLD, "xtc_threshold", false, xtc_threshold, xtc_threshold),
    VALUE(MIROSTAT, "mirostat", true, mirostat, mirostat),
    VALUE(MIROSTAT_TAU, "mirostat_tau", false, mirostat_tau, mirostat_tau),
    VALUE(MIROSTAT_ETA, "mirostat_eta", false, mirostat_eta, mirostat_eta),
};
enum { VALUE_COUNT = sizeof VALUES / sizeof *VALUES };

/* In the usual order. */
static const struct {
    sluice_sampler sampler;
    const char *name;
} SAMPLERS[SLUICE_SAMPLERS] = {
    {SLUICE_SAMPLER_PENALTIES, "penalties"},
    {SLUICE_SAMPLER_DRY, "dry"},
    {SLUICE_SAMPLER_TOP_N_SIGMA, "top_n_sigma"},
    {SLUICE_SAMPLER_TOP_K, "top_k"},
    {SLUICE_SAMPLER_TYPICAL_P, "typ_p"},
    {SLUICE_SAMPLER_TOP_P, "top_p"},
    {SLUICE_SAMPLER_MIN_P, "min_p"},
    {SLUICE_SAMPLER_XTC, "xtc"},
    {SLUICE_SAMPLER_TEMPERATURE, "temperature"},
};

static const char *sampler_name(sluice_sampler sampler) {
    for (size_t i = 0; i < SLUICE_SAMPLERS; i++) {
        if (SAMPLERS[i].sampler == sampler) {
            return SAMPLERS[i].name;
        }
    }
    return "";
}

/* The double of the shortest decimal that is this float: 0.3, where the float's own value is 0.300000012. */
static double shortest(float value) {
    char number[40];
    double real = (double)value;
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, (double)value);
        real = strtod(number, NULL);
        if ((float)real == value) {
            break;
        }
    }
    return real;
}

static double value_of(const sluice_sampling_facts *facts, const model_value *v) {
    const char *from = (const char *)facts + v->from;
    int32_t whole;
    float real;
    if (v->whole) {
        memcpy(&whole, from, sizeof whole);
        return whole;
    }
    memcpy(&real, from, sizeof real);
    return shortest(real);
}

void model_sampling_read(const sluice_model *model, model_sampling *out) {
    *out = (model_sampling){.facts = {.size = sizeof out->facts}};
    sluice_model_get_sampling(model, &out->facts);
    if ((out->facts.present & SLUICE_SAMPLING_DO_SAMPLE) && !out->facts.do_sample) {
        /* transformers then takes the likeliest, and nothing else of the file counts. */
        out->facts.present = SLUICE_SAMPLING_TEMPERATURE;
        out->facts.temperature = 0;
        out->facts.samplers = NULL;
    }
    if (out->facts.samplers) {
        out->refused =
            sluice_samplers_parse(out->facts.samplers, out->samplers, &out->sampler_count, &out->error) != 0;
    }
}

bool model_sampling_describe(const model_sampling *m, text *out) {
    bool any = false;
    for (int i = 0; i < VALUE_COUNT; i++) {
        if (m->facts.present & VALUES[i].bit) {
            text_format(out, "%s%s %g", any ? ", " : "", VALUES[i].field, value_of(&m->facts, &VALUES[i]));
            any = true;
        }
    }
    for (size_t i = 0; i < m->sampler_count; i++) {
        text_format(out, "%s%s", i ? ";" : any ? ", samplers " : "samplers ", sampler_name(m->samplers[i]));
        any = true;
    }
    return any;
}

void model_sampling_set(const model_sampling *m, generation_options *options) {
    for (int i = 0; i < VALUE_COUNT; i++) {
        if (m->facts.present & VALUES[i].bit) {
            const double value = value_of(&m->facts, &VALUES[i]);
            char *to = (char *)options + VALUES[i].to;
            if (VALUES[i].whole) {
                const int64_t whole = (int64_t)value;
                memcpy(to, &whole, sizeof whole);
            } else {
                memcpy(to, &value, sizeof value);
            }
        }
    }
}

void model_sampling_write_order(const model_sampling *m, text *out) {
    const size_t count = m->sampler_count ? m->sampler_count : SLUICE_SAMPLERS;
    for (size_t i = 0; i < count; i++) {
        text_format(out, "%s\"%s\"", i ? "," : "[",
                    m->sampler_count ? sampler_name(m->samplers[i]) : SAMPLERS[i].name);
    }
    text_put(out, "]");
}

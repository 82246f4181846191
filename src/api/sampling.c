/* The C API: what a request's options say about sampling, checked, and as the layers below want it. */
#include "api/engine.h"

#include <math.h>
#include <string.h>

/* ---- the order ---- */

typedef struct sampler_name {
    sluice_sampler sampler;
    sl_sampler_stage stage; /* SL_STAGE_END: none of the kernels', but done before them */
    char letter;
    const char *names; /* with spaces around each; the first is what messages say */
} sampler_name;

/* Names and letters are llama.cpp's (--samplers, --sampler-seq); the rows are in its usual order. */
static const sampler_name SAMPLERS[] = {
    {SLUICE_SAMPLER_PENALTIES, SL_STAGE_END, 'e', " penalties "},
    {SLUICE_SAMPLER_DRY, SL_STAGE_END, 'd', " dry "},
    {SLUICE_SAMPLER_TOP_N_SIGMA, SL_STAGE_TOP_N_SIGMA, 's', " top_n_sigma top-n-sigma "},
    {SLUICE_SAMPLER_TOP_K, SL_STAGE_TOP_K, 'k', " top_k top-k "},
    {SLUICE_SAMPLER_TYPICAL_P, SL_STAGE_TYPICAL_P, 'y', " typ_p typ-p typical_p typical-p typ typical "},
    {SLUICE_SAMPLER_TOP_P, SL_STAGE_TOP_P, 'p', " top_p top-p nucleus "},
    {SLUICE_SAMPLER_MIN_P, SL_STAGE_MIN_P, 'm', " min_p min-p "},
    {SLUICE_SAMPLER_XTC, SL_STAGE_XTC, 'x', " xtc "},
    {SLUICE_SAMPLER_TEMPERATURE, SL_STAGE_TEMPERATURE, 't', " temperature temp "},
};
enum { SAMPLER_COUNT = sizeof SAMPLERS / sizeof *SAMPLERS };
_Static_assert((int)SAMPLER_COUNT == (int)SLUICE_SAMPLERS, "a row for each");
_Static_assert((int)SL_STAGE_COUNT <= (int)SL_SAMPLER_STAGES, "room for all, and an end");

static const sampler_name *find_sampler(sluice_sampler sampler) {
    for (int i = 0; i < SAMPLER_COUNT; i++) {
        if (SAMPLERS[i].sampler == sampler) {
            return &SAMPLERS[i];
        }
    }
    return NULL;
}

static const sampler_name *find_name(const char *name, size_t length) {
    for (int i = 0; i < SAMPLER_COUNT; i++) {
        for (const char *at = strchr(SAMPLERS[i].names, ' ') + 1; *at; at += strcspn(at, " ") + 1) {
            if (strcspn(at, " ") == length && memcmp(at, name, length) == 0) {
                return &SAMPLERS[i];
            }
        }
    }
    return NULL;
}

static const sampler_name *find_letter(char letter) {
    for (int i = 0; i < SAMPLER_COUNT; i++) {
        if (SAMPLERS[i].letter == letter) {
            return &SAMPLERS[i];
        }
    }
    return NULL;
}

static int check_order(const sluice_sampler *samplers, size_t count, sl_error *error) {
    uint32_t seen = 0;
    bool others = false;
    for (size_t i = 0; i < count; i++) {
        const sampler_name *s = find_sampler(samplers[i]);
        if (!s) {
            return sl_fail(error, SL_ERR_INVALID, "samplers %zu: %d is no sluice_sampler", i,
                           (int)samplers[i]);
        }
        const int length = (int)strcspn(s->names + 1, " ");
        if (seen & 1u << s->sampler) {
            return sl_fail(error, SL_ERR_INVALID, "samplers: %.*s is there twice", length, s->names + 1);
        }
        if (s->stage == SL_STAGE_END && others) {
            return sl_fail(error, SL_ERR_INVALID,
                           "samplers: %.*s comes too late; penalties and dry come before all others", length,
                           s->names + 1);
        }
        seen |= 1u << s->sampler;
        others |= s->stage != SL_STAGE_END;
    }
    return 0;
}

int sluice_samplers_parse(const char *text, sluice_sampler *samplers, size_t *count, sluice_error *error) {
    if (sl_api_lacks(text, "samplers", error) || sl_api_lacks(samplers, "samplers", error) ||
        sl_api_lacks(count, "count", error)) {
        return SL_ERR_INVALID;
    }
    const bool names = strchr(text, ';') || find_name(text, strlen(text));
    size_t found = 0;
    *count = 0;
    for (const char *at = text; *at; at += names && *at == ';') {
        const size_t length = names ? strcspn(at, ";") : 1;
        const sampler_name *s = names ? find_name(at, length) : find_letter(*at);
        if (!s) {
            return sl_api_fail(error, SL_ERR_INVALID,
                               "samplers: \"%.*s\" is none of penalties, dry, top_n_sigma, top_k, typ_p, "
                               "top_p, min_p, xtc and temperature, nor one of the letters edskypmxt",
                               (int)(length < 40 ? length : 40), at);
        }
        if (found == SLUICE_SAMPLERS) {
            return sl_api_fail(error, SL_ERR_INVALID, "samplers: \"%.*s\" is there twice", (int)length, at);
        }
        samplers[found++] = s->sampler;
        at += length;
    }
    sl_error inner;
    if (check_order(samplers, found, &inner)) {
        return sl_api_error(error, &inner);
    }
    *count = found;
    return 0;
}

static bool is_listed(const sluice_request_options *o, sluice_sampler sampler) {
    bool listed = o->sampler_count == 0;
    for (size_t i = 0; i < o->sampler_count; i++) {
        listed |= o->samplers[i] == sampler;
    }
    return listed;
}

/* ---- checks ---- */

static int check_penalties(const sluice_request_options *o, sl_error *error) {
    if (!(o->repetition_penalty >= 0) || !(o->repetition_penalty <= 1e3f)) {
        return sl_fail(error, SL_ERR_INVALID, "repetition_penalty: %g is not between 0 and 1000",
                       (double)o->repetition_penalty);
    }
    if (!isfinite(o->presence_penalty) || !isfinite(o->frequency_penalty)) {
        return sl_fail(error, SL_ERR_INVALID,
                       "presence_penalty %g, frequency_penalty %g: both must be finite",
                       (double)o->presence_penalty, (double)o->frequency_penalty);
    }
    if (o->penalty_tokens < -1) {
        return sl_fail(error, SL_ERR_INVALID, "penalty_tokens: %d is less than -1", o->penalty_tokens);
    }
    if (o->logit_bias_count > SL_MOST_BIASED) {
        return sl_fail(error, SL_ERR_INVALID, "logit_bias: %zu tokens are more than %d", o->logit_bias_count,
                       SL_MOST_BIASED);
    }
    if (!(o->dry_multiplier >= 0) || !(o->dry_multiplier <= 1e6f)) {
        return sl_fail(error, SL_ERR_INVALID, "dry_multiplier: %g is not between 0 and 1e6",
                       (double)o->dry_multiplier);
    }
    if (o->dry_base != 0 && (!(o->dry_base >= 1) || !(o->dry_base <= 1e3f))) {
        return sl_fail(error, SL_ERR_INVALID, "dry_base: %g is not between 1 and 1000", (double)o->dry_base);
    }
    if (o->dry_allowed_length < 0 || o->dry_tokens < 0) {
        return sl_fail(error, SL_ERR_INVALID, "dry_allowed_length %d, dry_tokens %d: neither may be negative",
                       o->dry_allowed_length, o->dry_tokens);
    }
    return 0;
}

static int check_mirostat(const sluice_request_options *o, sl_error *error) {
    if (o->mirostat < 0 || o->mirostat > 2) {
        return sl_fail(error, SL_ERR_INVALID, "mirostat: %d is not 0, 1 or 2", o->mirostat);
    }
    if (!(o->mirostat_tau >= 0) || !(o->mirostat_tau <= 1e3f) || !(o->mirostat_eta >= 0) ||
        !(o->mirostat_eta <= 1e3f)) {
        return sl_fail(error, SL_ERR_INVALID,
                       "mirostat_tau %g, mirostat_eta %g: both must be between 0 and 1000",
                       (double)o->mirostat_tau, (double)o->mirostat_eta);
    }
    return 0;
}

int sl_api_check_sampling(const sluice_request_options *o, sl_error *error) {
    const struct {
        const char *name;
        float value, most;
    } ranges[] = {
        {"temperature", o->temperature, 1e6f},
        {"typical_p", o->typical_p, 1},
        {"top_n_sigma", o->top_n_sigma, 1e6f},
        {"xtc_probability", o->xtc_probability, 1},
        {"xtc_threshold", o->xtc_threshold, 1},
        {"dynamic_temperature_range", o->dynamic_temperature_range, 1e6f},
        {"dynamic_temperature_exponent", o->dynamic_temperature_exponent, 1e3f},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (!(ranges[i].value >= 0) || !(ranges[i].value <= ranges[i].most)) {
            return sl_fail(error, SL_ERR_INVALID, "%s: %g is not between 0 and %g", ranges[i].name,
                           (double)ranges[i].value, (double)ranges[i].most);
        }
    }
    if (!(o->top_p >= 0) || !(o->top_p <= 1) || !(o->min_p >= 0) || !(o->min_p <= 1)) {
        return sl_fail(error, SL_ERR_INVALID, "top_p %g, min_p %g: both must be between 0 and 1",
                       (double)o->top_p, (double)o->min_p);
    }
    if (o->top_k < 0) {
        return sl_fail(error, SL_ERR_INVALID, "top_k: %d is negative", o->top_k);
    }
    if ((unsigned)o->logits > SLUICE_LOGITS_ALL) {
        return sl_fail(error, SL_ERR_INVALID, "logits: %d is no sluice_logits", (int)o->logits);
    }
    int result = check_penalties(o, error);
    result = result ? result : check_mirostat(o, error);
    return result ? result : check_order(o->samplers, o->sampler_count, error);
}

/* ---- what is made of them ---- */

void sl_api_fill_sampler(const sluice_request_options *o, sl_sampler *sampler) {
    *sampler = (sl_sampler){
        .temperature = o->mirostat ? 0 : o->temperature, /* mirostat draws elsewhere */
        .top_p = o->top_p == 0 ? 1 : o->top_p,
        .min_p = o->min_p,
        .typical_p = o->typical_p,
        .top_k = o->top_k,
        .top_n_sigma = o->top_n_sigma,
        .xtc_probability = o->xtc_probability,
        .xtc_threshold = o->xtc_threshold,
        .dynamic_range = o->dynamic_temperature_range,
        .dynamic_exponent = o->dynamic_temperature_exponent == 0 ? 1 : o->dynamic_temperature_exponent,
        .seed_low = (uint32_t)o->seed,
        .seed_high = (uint32_t)(o->seed >> 32),
    };
    const size_t count = o->sampler_count ? o->sampler_count : SAMPLER_COUNT;
    size_t stages = 0;
    for (size_t i = 0; i < count; i++) {
        const sampler_name *s = o->sampler_count ? find_sampler(o->samplers[i]) : &SAMPLERS[i];
        if (s->stage != SL_STAGE_END) {
            sampler->order[stages++] = (uint8_t)s->stage;
        }
    }
}

const char *sl_api_bytes_of(const void *owner, int32_t token, size_t *length) {
    const sl_tokenizer *tokenizer = owner;
    const sl_view bytes =
        token < sl_tokenizer_size(tokenizer) ? sl_tokenizer_decode_piece(tokenizer, token) : (sl_view){0};
    *length = bytes.length;
    return bytes.data;
}

/* Fills *dry when the request wants it. */
static bool wants_dry(const sluice_request *request, const sluice_request_options *o, sl_dry_options *dry) {
    static const char *const usual[] = {"\n", ":", "\"", "*"}; /* llama.cpp's */
    const sl_deployment *deployment = &request->engine->planned.plan->deployment;
    const sl_tokenizer *tokenizer = request->engine->model->model->tokenizer;
    *dry = (sl_dry_options){
        .multiplier = o->dry_multiplier,
        .base = o->dry_base == 0 ? 1.75f : o->dry_base,
        .allowed_length = o->dry_allowed_length ? o->dry_allowed_length : 2,
        .window = o->dry_tokens ? o->dry_tokens : INT32_MAX,
        .context = deployment->limits.context,
        .vocabulary = deployment->program->vocabulary,
        .breakers = o->dry_breakers ? o->dry_breakers : usual,
        .breaker_count = o->dry_breakers ? o->dry_breaker_count : sizeof usual / sizeof *usual,
        .bytes = sl_api_bytes_of,
        .owner = tokenizer,
    };
    dry->breaker_count = tokenizer ? dry->breaker_count : 0;
    return o->dry_multiplier > 0 && is_listed(o, SLUICE_SAMPLER_DRY);
}

static int make_adjust(sluice_request *request, const sluice_request_options *o, const sl_sequence *core,
                       sl_error *error) {
    const sluice_engine *engine = request->engine;
    const sl_deployment *deployment = &engine->planned.plan->deployment;
    const size_t context = (size_t)deployment->limits.context;
    const size_t ends = o->minimum > 0 ? (size_t)engine->end_count : 0;
    const size_t stops = o->minimum > 0 ? o->stop_token_count : 0;
    const size_t left = context - (size_t)core->count;
    const bool listed = is_listed(o, SLUICE_SAMPLER_PENALTIES);
    sl_dry_options dry;
    const bool repeats = wants_dry(request, o, &dry);
    const sl_adjust_options options = {
        .repetition = o->repetition_penalty == 0 || !listed ? 1 : o->repetition_penalty,
        .presence = listed ? o->presence_penalty : 0,
        .frequency = listed ? o->frequency_penalty : 0,
        .window = o->penalty_tokens == -1  ? INT32_MAX
                  : o->penalty_tokens == 0 ? 64
                                           : o->penalty_tokens,
        .prompt = core->count + (int32_t)(o->token_count < left ? o->token_count : left),
        .minimum = (int32_t)(o->minimum < context ? o->minimum : context),
        .context = deployment->limits.context,
        .vocabulary = deployment->program->vocabulary,
        .constants =
            (int32_t)(o->logit_bias_count + (stops < SL_MOST_ENDS - ends ? ends + stops : SL_MOST_ENDS)),
        .dry = repeats ? &dry : NULL,
    };
    const bool penalised = options.repetition != 1 || options.presence != 0 || options.frequency != 0;
    if (!penalised && !repeats && o->logit_bias_count == 0 && o->minimum == 0) {
        return 0;
    }
    sl_adjust *adjust;
    int result = sl_adjust_create(&options, &adjust, error);
    if (result) {
        return result;
    }
    request->work.adjust = adjust;
    for (size_t i = 0; i < o->logit_bias_count && result == 0; i++) {
        result = sl_adjust_bias(adjust, o->logit_bias[i].token, o->logit_bias[i].bias, error);
    }
    for (size_t i = 0; i < ends && result == 0; i++) {
        result = sl_adjust_end(adjust, engine->ends[i], error);
    }
    for (size_t i = 0; i < stops && result == 0; i++) {
        result = sl_adjust_end(adjust, o->stop_tokens[i], error);
    }
    return result;
}

int sl_api_make_sampling(sluice_request *request, const sluice_request_options *o, const sl_sequence *core,
                         sl_error *error) {
    const int result = make_adjust(request, o, core, error);
    if (result || !o->mirostat || o->temperature == 0) {
        return result;
    }
    const sl_mirostat_options options = {
        .version = o->mirostat,
        .tau = o->mirostat_tau == 0 ? 5.0f : o->mirostat_tau,
        .eta = o->mirostat_eta == 0 ? 0.1f : o->mirostat_eta,
        .temperature = o->temperature,
        .vocabulary = request->engine->planned.plan->deployment.program->vocabulary,
    };
    return sl_mirostat_create(&options, &request->work.mirostat, error);
}

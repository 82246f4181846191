/* What a request changes about sampling, through the public interface: bias, penalties, `minimum` and
 * typical-p, against what follows from the engine's own raw logits. */
#include "support/engine.h"

#include <math.h>
#include <stdio.h>

enum { PROMPT = 12, MOST = 200 };

typedef struct fixture {
    sluice_model *model;
    sluice_engine *engine;
    int32_t vocabulary, eos;
} fixture;

static const int32_t prompt[PROMPT] = {40, 41, 300, 17, 40, 99, 250, 17, 64, 40, 120, 77};

static int open_fixture(void **state) {
    static fixture f;
    sluice_model_info info = {.size = sizeof info};
    f.model = open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    sluice_model_get_info(f.model, &info);
    f.vocabulary = info.vocabulary;
    f.eos = info.eos;
    const sluice_engine_options options = {
        .size = sizeof options, .device = "cpu", .threads = 2, .context = 512, .sequences = 2};
    f.engine = open_engine(f.model, &options);
    *state = &f;
    return 0;
}

static int close_fixture(void **state) {
    fixture *f = *state;
    sluice_engine_destroy(f->engine);
    sluice_model_release(f->model);
    return 0;
}

static sluice_request_options options_of(size_t generate) {
    return (sluice_request_options){.size = sizeof(sluice_request_options),
                                    .tokens = prompt,
                                    .token_count = PROMPT,
                                    .generate = generate,
                                    .ignore_eos = true,
                                    .no_text = true};
}

/* Tokens of a request on a sequence of its own. */
static size_t run(fixture *f, const sluice_request_options *options, int32_t *tokens) {
    sluice_sequence *sequence = open_sequence(f->engine);
    collected got = {.tokens = tokens};
    const size_t count = collect(submit(sequence, options), &got);
    sluice_sequence_release(sequence);
    return count;
}

static size_t times(const int32_t *tokens, size_t count, int32_t token) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        found += tokens[i] == token;
    }
    return found;
}

/* ---- bias ---- */

static void a_large_bias_forces_a_token(void **state) {
    int32_t tokens[MOST];
    const sluice_logit_bias bias = {301, 100};
    for (int i = 0; i < 2; i++) {
        sluice_request_options o = options_of(20);
        o.temperature = i ? 1.0f : 0;
        assert_int_equal(run(*state, &o, tokens), 20);
        assert_int_not_equal(times(tokens, 20, bias.token), 20);
        o.logit_bias = &bias;
        o.logit_bias_count = 1;
        assert_int_equal(run(*state, &o, tokens), 20);
        assert_int_equal(times(tokens, 20, bias.token), 20);
    }
}

/* What came is banned, until as many as may be are. */
static void a_negative_bias_bans_tokens(void **state) {
    static const float amounts[] = {-100, -INFINITY};
    for (int i = 0; i < 4; i++) {
        sluice_logit_bias banned[1024];
        sluice_request_options o = options_of(40);
        o.temperature = i / 2 ? 0.7f : 0;
        o.logit_bias = banned;
        for (int round = 0; round < 8; round++) {
            int32_t tokens[MOST];
            assert_int_equal(run(*state, &o, tokens), 40);
            for (size_t b = 0; b < o.logit_bias_count; b++) {
                assert_int_equal(times(tokens, 40, banned[b].token), 0);
            }
            for (size_t t = 0; t < 40; t++) {
                if (times(tokens, t, tokens[t]) == 0) {
                    banned[o.logit_bias_count++] = (sluice_logit_bias){tokens[t], amounts[i % 2]};
                }
            }
        }
        assert_true(o.logit_bias_count > 40);
    }
}

/* ---- penalties ---- */

static void penalties_end_a_repetition(void **state) {
    int32_t tokens[MOST];
    const sluice_logit_bias bias = {40, 100}; /* in the prompt, where it does not count as generated */
    sluice_request_options o = options_of(100);
    o.logit_bias = &bias;
    o.logit_bias_count = 1;
    o.presence_penalty = 1000;
    assert_int_equal(run(*state, &o, tokens), 100);
    assert_int_equal(tokens[0], bias.token);
    assert_int_equal(tokens[65], bias.token); /* the 64 tokens before are others */
    assert_int_equal(times(tokens, 100, bias.token), 2);
    o.penalty_tokens = -1;
    run(*state, &o, tokens);
    assert_int_equal(times(tokens, 100, bias.token), 1);
    o.presence_penalty = 0;
    o.frequency_penalty = 30; /* others are up to some tens below */
    run(*state, &o, tokens);
    assert_in_range(times(tokens, 10, bias.token), 3, 5);
    assert_int_equal(times(tokens + 10, 90, bias.token), 0);
    o.penalty_tokens = 2; /* of which none, one or both are it */
    run(*state, &o, tokens);
    assert_int_equal(times(tokens, 100, bias.token), 100);
}

typedef struct penalties {
    float repetition, presence, frequency;
    int32_t window;
} penalties;

/* The likeliest token behind `count` tokens, of which `generated` are the request's: what OpenAI's guide says
 * of presence and frequency, and the CTRL paper of repetition, on all tokens one after the other. */
static int32_t likeliest(const float *logits, int32_t vocabulary, const penalties *p, const int32_t *tokens,
                         size_t count, size_t generated) {
    const size_t window = p->window < 0 ? count : p->window == 0 ? 64 : (size_t)p->window;
    const size_t first = count > window ? count - window : 0, own = count - generated;
    int32_t best = 0;
    float largest = -INFINITY;
    for (int32_t token = 0; token < vocabulary; token++) {
        const size_t seen = times(tokens + first, count - first, token);
        const size_t of = first > own ? first : own, sampled = times(tokens + of, count - of, token);
        float x = logits[token];
        if (seen > 0 && p->repetition != 0) {
            x = x > 0 ? x / p->repetition : x * p->repetition;
        }
        if (sampled > 0) {
            x -= p->presence + (float)sampled * p->frequency;
        }
        if (x > largest) {
            largest = x;
            best = token;
        }
    }
    return best;
}

static void greedy_tokens_follow_from_the_logits(void **state) {
    static const penalties cases[] = {
        {1.3f, 0, 0, 0},         {0, 3, 0, 0},         {0, 0, 0.75f, 0},     {1.2f, 1, 0.5f, 6},
        {0.8f, -0.5f, 0.25f, 3}, {1.5f, 0.25f, 1, -1}, {0, -0.5f, -0.5f, 20}};
    fixture *f = *state;
    float *logits = malloc((size_t)f->vocabulary * sizeof *logits);
    int32_t plain[MOST], tokens[MOST];
    sluice_request_options o = options_of(40);
    run(f, &o, plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const penalties *p = &cases[i];
        sluice_sequence *sequence = open_sequence(f->engine);
        size_t count = 0, changed = 0;
        for (int round = 0; round < 2; round++) { /* tokens of the request before are not the next one's */
            o = options_of(40);
            o.repetition_penalty = p->repetition;
            o.presence_penalty = p->presence;
            o.frequency_penalty = p->frequency;
            o.penalty_tokens = p->window;
            o.logits = SLUICE_LOGITS_LAST;
            memcpy(tokens + count, prompt, sizeof prompt);
            count += PROMPT;
            sluice_request *request = submit(sequence, &o);
            sluice_event event = {.size = sizeof event};
            sluice_error error;
            size_t generated = 0;
            do {
                must(sluice_poll(request, -1, &event, &error), &error, "poll");
                if (event.kind == SLUICE_EVENT_LOGITS) {
                    memcpy(logits, event.logits, (size_t)f->vocabulary * sizeof *logits);
                } else if (event.kind == SLUICE_EVENT_TOKEN) {
                    assert_int_equal(event.token,
                                     likeliest(logits, f->vocabulary, p, tokens, count, generated));
                    changed += round == 0 && event.token != plain[generated];
                    tokens[count++] = event.token;
                    generated++;
                }
            } while (event.kind != SLUICE_EVENT_DONE);
            assert_int_equal(generated, 40);
            sluice_request_release(request);
        }
        assert_true(changed > 0);
        sluice_sequence_release(sequence);
    }
    free(logits);
}

/* ---- minimum ---- */

static void no_text_ends_before_its_minimum(void **state) {
    fixture *f = *state;
    int32_t tokens[MOST];
    const sluice_logit_bias bias = {f->eos, 100};
    sluice_request_options o = options_of(30);
    o.ignore_eos = false;
    o.logit_bias = &bias;
    o.logit_bias_count = 1;
    assert_int_equal(run(f, &o, tokens), 1);
    o.minimum = 7;
    for (int i = 0; i < 2; i++) {
        o.temperature = i ? 1.0f : 0;
        assert_int_equal(run(f, &o, tokens), 8);
        assert_int_equal(times(tokens, 8, f->eos), 1);
        assert_int_equal(tokens[7], f->eos);
    }
    const int32_t stop = 200;
    const sluice_logit_bias stop_bias = {stop, 100};
    o.logit_bias = &stop_bias;
    o.stop_tokens = &stop;
    o.stop_token_count = 1;
    assert_true(run(f, &o, tokens) >= 8);
    assert_int_equal(times(tokens, 7, stop), 0);
    assert_int_equal(tokens[7], stop);
}

/* ---- typical-p ---- */

/* Of a set as small as can be the one token whose -ln p is nearest to the entropy is left, whatever is drawn:
 * by the model's own probabilities, or by those at a temperature that comes before. */
static void find_typical(fixture *f, const sluice_sampler *order, size_t order_count, double temperature) {
    sluice_sequence *sequence = open_sequence(f->engine);
    sluice_request_options o = options_of(40);
    o.temperature = 1.5f;
    o.typical_p = 1e-6f;
    o.samplers = order;
    o.sampler_count = order_count;
    o.logits = SLUICE_LOGITS_LAST;
    sluice_request *request = submit(sequence, &o);
    sluice_event event = {.size = sizeof event};
    sluice_error error;
    int32_t typical = -1, most_likely = -1, others = 0, wrong = 0;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        if (event.kind == SLUICE_EVENT_LOGITS) {
            double sum = 0, entropy = 0, least = INFINITY;
            for (int32_t i = 0; i < f->vocabulary; i++) {
                sum += exp((double)event.logits[i] / temperature);
                most_likely = i == 0 || event.logits[i] > event.logits[most_likely] ? i : most_likely;
            }
            for (int32_t i = 0; i < f->vocabulary; i++) {
                const double p = exp((double)event.logits[i] / temperature) / sum;
                entropy -= p * log(p);
            }
            for (int32_t i = 0; i < f->vocabulary; i++) {
                const double distance =
                    fabs(-log(exp((double)event.logits[i] / temperature) / sum) - entropy);
                typical = distance < least ? i : typical;
                least = fmin(least, distance);
            }
        } else if (event.kind == SLUICE_EVENT_TOKEN) {
            wrong += event.token != typical;
            others += typical != most_likely;
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    assert_int_equal(wrong, 0);
    assert_true(others > 0);
}

static void the_most_typical_token_is_drawn(void **state) {
    static const sluice_sampler order[] = {SLUICE_SAMPLER_TEMPERATURE, SLUICE_SAMPLER_TYPICAL_P};
    find_typical(*state, NULL, 0, 1);
    find_typical(*state, order, 2, 1.5);
}

/* ---- the order of samplers ---- */

static void orders_are_read_from_text(void **state) {
    const struct {
        const char *text;
        size_t count; /* 0: refused, with the message below */
        const char *message;
        sluice_sampler samplers[SLUICE_SAMPLERS];
    } cases[] = {
        {"top_k;top_p;temperature",
         3,
         NULL,
         {SLUICE_SAMPLER_TOP_K, SLUICE_SAMPLER_TOP_P, SLUICE_SAMPLER_TEMPERATURE}},
        /* llama.cpp's own order, in both of its spellings */
        {"penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
         9,
         NULL,
         {SLUICE_SAMPLER_PENALTIES, SLUICE_SAMPLER_DRY, SLUICE_SAMPLER_TOP_N_SIGMA, SLUICE_SAMPLER_TOP_K,
          SLUICE_SAMPLER_TYPICAL_P, SLUICE_SAMPLER_TOP_P, SLUICE_SAMPLER_MIN_P, SLUICE_SAMPLER_XTC,
          SLUICE_SAMPLER_TEMPERATURE}},
        {"edskypmxt",
         9,
         NULL,
         {SLUICE_SAMPLER_PENALTIES, SLUICE_SAMPLER_DRY, SLUICE_SAMPLER_TOP_N_SIGMA, SLUICE_SAMPLER_TOP_K,
          SLUICE_SAMPLER_TYPICAL_P, SLUICE_SAMPLER_TOP_P, SLUICE_SAMPLER_MIN_P, SLUICE_SAMPLER_XTC,
          SLUICE_SAMPLER_TEMPERATURE}},
        {"temp;top-k", 2, NULL, {SLUICE_SAMPLER_TEMPERATURE, SLUICE_SAMPLER_TOP_K}},
        {"xtc", 1, NULL, {SLUICE_SAMPLER_XTC}},
        {"top_k;top_q", 0, "samplers: \"top_q\" is none of", {0}},
        {"kz", 0, "samplers: \"z\" is none of", {0}},
        {"top_k;;top_p", 0, "samplers: \"\" is none of", {0}},
        {"top_k;temp;top-k", 0, "samplers: top_k is there twice", {0}},
        {"edskypmxtt", 0, "samplers: \"t\" is there twice", {0}},
        {"top_k;penalties", 0, "samplers: penalties comes too late", {0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_sampler samplers[SLUICE_SAMPLERS];
        sluice_error error;
        size_t count = 99;
        const int result = sluice_samplers_parse(cases[i].text, samplers, &count, &error);
        assert_int_equal(count, cases[i].count);
        assert_int_equal(result, cases[i].count ? 0 : SLUICE_ERR_INVALID);
        for (size_t k = 0; k < count; k++) {
            assert_int_equal(samplers[k], cases[i].samplers[k]);
        }
        if (result && !strstr(error.message, cases[i].message)) {
            fail_msg("\"%s\" expected, got \"%s\"", cases[i].message, error.message);
        }
    }
}

/* What is not in the list is not done. */
static void what_is_not_listed_is_not_done(void **state) {
    static const sluice_sampler temperature[] = {SLUICE_SAMPLER_TEMPERATURE};
    int32_t plain[MOST], listed[MOST];
    sluice_request_options o = options_of(60);
    o.temperature = 0.9f;
    assert_int_equal(run(*state, &o, plain), 60);
    o.samplers = temperature;
    o.sampler_count = 1;
    o.top_k = 1;
    o.repetition_penalty = 5;
    o.dry_multiplier = 50;
    o.xtc_probability = 1;
    assert_int_equal(run(*state, &o, listed), 60);
    assert_memory_equal(plain, listed, 60 * sizeof *plain);
    o.sampler_count = 0;
    run(*state, &o, listed);
    assert_memory_not_equal(plain, listed, 60 * sizeof *plain);
}

/* ---- XTC, DRY, mirostat ---- */

/* How often XTC does something, and how often each of what it leaves is drawn: Pearson's chi-square of the
 * first token, by seeds 1 to 400, with the 99.9th percentiles of 1 and 3 degrees of freedom. Of five equally
 * likely tokens (by bias; the rest is far behind) XTC leaves the one of the highest id. */
static void xtc_follows_its_probability(void **state) {
    enum { SEEDS = 400, LIKELY = 5 };
    fixture *f = *state;
    sluice_request_options o = options_of(1);
    int32_t token, left_out = 0, times_of[LIKELY] = {0};
    sluice_logit_bias bias[LIKELY];
    float logits[LIKELY];
    /* The biases that make them equal. */
    sluice_sequence *sequence = open_sequence(f->engine);
    sluice_event event = {.size = sizeof event};
    sluice_error error;
    o.logits = SLUICE_LOGITS_LAST;
    sluice_request *request = submit(sequence, &o);
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        for (int i = 0; i < LIKELY && event.kind == SLUICE_EVENT_LOGITS; i++) {
            logits[i] = event.logits[100 + i];
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    for (int i = 0; i < LIKELY; i++) {
        bias[i] = (sluice_logit_bias){100 + i, 200 - logits[i] + 0.001f * (float)(LIKELY - i)};
    }
    o.logits = SLUICE_LOGITS_NONE;
    o.logit_bias = bias;
    o.logit_bias_count = LIKELY;
    o.temperature = 1;
    o.xtc_probability = 0.3f;
    o.xtc_threshold = 0.1f;
    for (o.seed = 1; o.seed <= SEEDS; o.seed++) {
        assert_int_equal(run(f, &o, &token), 1);
        assert_in_range(token, 100, 100 + LIKELY - 1);
        times_of[token - 100]++;
    }
    /* The last of them: always when XTC came, by its share otherwise. */
    double chi = 0;
    left_out = times_of[LIKELY - 1];
    const double last = SEEDS * (0.3 + 0.7 / LIKELY), each = SEEDS * 0.7 / LIKELY;
    chi = (left_out - last) * (left_out - last) * (1 / last + 1 / (SEEDS - last));
    assert_true(chi < 10.83);
    chi = 0;
    for (int i = 0; i < LIKELY - 1; i++) {
        chi += (times_of[i] - each) * (times_of[i] - each) / each;
    }
    assert_true(chi < 16.27);
    o.xtc_threshold = 0.5f; /* no two can reach it */
    o.xtc_probability = 1;
    memset(times_of, 0, sizeof times_of);
    for (o.seed = 1; o.seed <= 60; o.seed++) {
        assert_int_equal(run(f, &o, &token), 1);
        times_of[token - 100]++;
    }
    assert_true(times_of[0] > 4 && times_of[LIKELY - 1] < 30);
}

/* A text that a bias makes repeat itself goes on differently as soon as DRY outweighs that. */
static void dry_ends_a_repetition(void **state) {
    fixture *f = *state;
    int32_t tokens[MOST];
    const sluice_logit_bias bias = {301, 100};
    const char *bytes;
    size_t length;
    char breaker[64];
    sluice_error error;
    sluice_request_options o = options_of(30);
    o.logit_bias = &bias;
    o.logit_bias_count = 1;
    o.dry_multiplier = 1;
    o.dry_base = 4;
    o.dry_allowed_length = 3;
    assert_int_equal(run(f, &o, tokens), 30);
    /* Matches of 3, 4, 5, 6, 7 cost 1, 4, 16, 64, 256: one of the eighth to tenth token is another. */
    assert_int_equal(times(tokens, 7, bias.token), 7);
    assert_true(times(tokens, 10, bias.token) < 10);
    must(sluice_token_bytes(f->model, bias.token, &bytes, &length, &error), &error, "bytes");
    snprintf(breaker, sizeof breaker, "%.*s", (int)length, bytes);
    const char *const breakers[] = {breaker};
    o.dry_breakers = breakers;
    o.dry_breaker_count = 1;
    run(f, &o, tokens);
    assert_int_equal(times(tokens, 30, bias.token), 30);
}

/* The same seed gives the same text, alone and beside others; the target changes it. */
static void mirostat_depends_on_the_seed_alone(void **state) {
    enum { SHORT = 60 };
    fixture *f = *state;
    int32_t alone[SHORT], again[SHORT], beside[SHORT], low[SHORT];
    for (int32_t version = 1; version <= 2; version++) {
        sluice_request_options o = options_of(SHORT);
        o.temperature = 1.3f;
        o.mirostat = version;
        o.mirostat_tau = 3;
        o.seed = 7;
        run(f, &o, alone);
        run(f, &o, again);
        assert_memory_equal(alone, again, sizeof alone);
        sluice_sequence *first = open_sequence(f->engine), *second = open_sequence(f->engine);
        sluice_request_options other = options_of(SHORT);
        other.temperature = 1;
        sluice_request *noise = submit(first, &other);
        collected got = {.tokens = beside};
        collect(submit(second, &o), &got);
        sluice_request_release(noise);
        sluice_sequence_release(first);
        sluice_sequence_release(second);
        assert_memory_equal(alone, beside, sizeof alone);
        o.mirostat_tau = 0.01f; /* so little surprise leaves the likeliest soon */
        o.mirostat_eta = 1;
        run(f, &o, low);
        assert_memory_not_equal(alone, low, sizeof alone);
    }
}

/* ---- what is refused ---- */

static void wrong_options_are_named(void **state) {
    fixture *f = *state;
    static sluice_logit_bias many[1025];
    const sluice_logit_bias twice[] = {{5, 1}, {6, 1}, {5, 2}}, outside[] = {{f->vocabulary, 1}},
                            negative[] = {{-1, 1}}, none[] = {{5, NAN}}, infinite[] = {{5, INFINITY}};
    const struct {
        sluice_request_options options;
        const char *message;
    } cases[] = {
        {{.logit_bias = twice, .logit_bias_count = 3}, "logit_bias: token 5 is there twice"},
        {{.logit_bias = outside, .logit_bias_count = 1}, "logit_bias: token "},
        {{.logit_bias = negative, .logit_bias_count = 1}, "logit_bias: token -1 is not in the vocabulary"},
        {{.logit_bias = none, .logit_bias_count = 1}, "logit_bias: token 5: "},
        {{.logit_bias = infinite, .logit_bias_count = 1}, "logit_bias: token 5: inf"},
        {{.logit_bias = many, .logit_bias_count = 1025}, "logit_bias: 1025 tokens"},
        {{.repetition_penalty = -1}, "repetition_penalty: -1"},
        {{.presence_penalty = NAN}, "presence_penalty "},
        {{.frequency_penalty = -INFINITY}, "frequency_penalty -inf"},
        {{.penalty_tokens = -2}, "penalty_tokens: -2"},
        {{.typical_p = 1.5f}, "typical_p: 1.5"},
        {{.typical_p = NAN}, "typical_p: "},
        {{.xtc_probability = 2}, "xtc_probability: 2 is not between 0 and 1"},
        {{.xtc_threshold = NAN}, "xtc_threshold: "},
        {{.top_n_sigma = -1}, "top_n_sigma: -1"},
        {{.dynamic_temperature_range = -1}, "dynamic_temperature_range: -1"},
        {{.dry_multiplier = -1}, "dry_multiplier: -1"},
        {{.dry_base = 0.5f}, "dry_base: 0.5 is not between 1"},
        {{.dry_allowed_length = -1}, "dry_allowed_length -1"},
        {{.dry_multiplier = 1, .dry_breakers = (const char *const[]){""}, .dry_breaker_count = 1},
         "dry_breakers 0: is empty"},
        {{.mirostat = 3}, "mirostat: 3"},
        {{.mirostat = 2, .mirostat_tau = NAN}, "mirostat_tau nan"},
        {{.samplers = (const sluice_sampler[]){SLUICE_SAMPLER_XTC, SLUICE_SAMPLER_XTC}, .sampler_count = 2},
         "samplers: xtc is there twice"},
        {{.samplers = (const sluice_sampler[]){(sluice_sampler)77}, .sampler_count = 1}, "samplers 0: 77"},
    };
    sluice_sequence *sequence = open_sequence(f->engine);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_request_options o = cases[i].options;
        sluice_request *request;
        sluice_error error;
        o.size = sizeof o;
        o.tokens = prompt;
        o.token_count = PROMPT;
        o.generate = 3;
        const int result = sluice_submit(sequence, &o, &request, &error);
        sluice_request_release(request); /* else a failure would leave it running */
        assert_null(request);
        assert_int_equal(result, SLUICE_ERR_INVALID);
        if (!strstr(error.message, cases[i].message)) {
            fail_msg("\"%s\" expected, got \"%s\"", cases[i].message, error.message);
        }
        assert_int_equal(sluice_sequence_length(sequence), 0);
    }
    /* As many as there may be, on the same sequence. */
    for (int32_t i = 0; i < 1024; i++) {
        many[i] = (sluice_logit_bias){i, i == 300 ? 0 : -INFINITY};
    }
    sluice_request_options o = options_of(3);
    collected got = {0};
    o.logit_bias = many;
    o.logit_bias_count = 1024;
    assert_int_equal(collect(submit(sequence, &o), &got), 3);
    for (int i = 0; i < 3; i++) {
        const int32_t token = sluice_sequence_tokens(sequence)[PROMPT + i];
        assert_true(token == 300 || token >= 1024);
    }
    sluice_sequence_release(sequence);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_bias_forces_a_token),
        cmocka_unit_test(a_negative_bias_bans_tokens),
        cmocka_unit_test(penalties_end_a_repetition),
        cmocka_unit_test(greedy_tokens_follow_from_the_logits),
        cmocka_unit_test(no_text_ends_before_its_minimum),
        cmocka_unit_test(the_most_typical_token_is_drawn),
        cmocka_unit_test(orders_are_read_from_text),
        cmocka_unit_test(what_is_not_listed_is_not_done),
        cmocka_unit_test(xtc_follows_its_probability),
        cmocka_unit_test(dry_ends_a_repetition),
        cmocka_unit_test(mirostat_depends_on_the_seed_alone),
        cmocka_unit_test(wrong_options_are_named),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}

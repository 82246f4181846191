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

/* Of a set as small as can be the one token whose -ln p is nearest to the entropy is left, whatever is drawn.
 */
static void the_most_typical_token_is_drawn(void **state) {
    fixture *f = *state;
    sluice_sequence *sequence = open_sequence(f->engine);
    sluice_request_options o = options_of(40);
    o.temperature = 1.5f;
    o.typical_p = 1e-6f;
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
                sum += exp((double)event.logits[i] / 1.5);
                most_likely = i == 0 || event.logits[i] > event.logits[most_likely] ? i : most_likely;
            }
            for (int32_t i = 0; i < f->vocabulary; i++) {
                const double p = exp((double)event.logits[i] / 1.5) / sum;
                entropy -= p * log(p);
            }
            for (int32_t i = 0; i < f->vocabulary; i++) {
                const double distance = fabs(-log(exp((double)event.logits[i] / 1.5) / sum) - entropy);
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
    assert_true(others > 10);
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
        cmocka_unit_test(wrong_options_are_named),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}

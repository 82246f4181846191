/* Results as a table and as JSON. */
#include "client.h"

#include <string.h>

enum { QUANTILES = 4 };
static const double LEVELS[QUANTILES] = {0.5, 0.9, 0.95, 0.99};

static double per_second(const load_result *r, double count) {
    return r->seconds > 0 ? count / r->seconds : 0;
}

/* Prompts as they are known: by the usage of those answers that said it, the others like them. */
static double prompt_tokens(const load_result *r) {
    return r->by_usage > 0 ? (double)r->prompt_tokens * (double)r->done / (double)r->by_usage : 0;
}

static bool has_objective(const load_objective *o) {
    return o->first > 0 || o->gap > 0 || o->token > 0 || o->whole > 0;
}

bool load_was_late(const load_result *r, char line[LOAD_MESSAGE]) {
    const double late = load_quantile(&r->late, 0.99);
    const double share = r->wall_seconds > 0 ? r->processor_seconds / r->wall_seconds : 0;
    if (late <= 5 && share <= 0.9) {
        return false;
    }
    snprintf(line, LOAD_MESSAGE,
             "the generator itself was late: %.1f ms at the 99th percentile, %.0f %% of a processor; "
             "these figures are not the server's alone",
             late, 100 * share);
    return true;
}

/* ---- JSON ------------------------------------------------------------------------------------------------
 */

static int set_real(json_t *object, const char *prefix, const char *name, double value) {
    char key[64];
    snprintf(key, sizeof key, "%s_%s_ms", prefix, name);
    return json_object_set_new(object, key, json_real(value));
}

static int set_series(json_t *object, const char *name, const load_series *s) {
    static const char *const NAMES[QUANTILES] = {"p50", "p90", "p95", "p99"};
    int failed = set_real(object, "mean", name, load_mean(s));
    failed |= set_real(object, "median", name, load_quantile(s, 0.5));
    failed |= set_real(object, "std", name, load_deviation(s));
    for (int i = 0; i < QUANTILES; i++) {
        failed |= set_real(object, NAMES[i], name, load_quantile(s, LEVELS[i]));
    }
    return failed | set_real(object, "max", name, load_quantile(s, 1));
}

static json_t *errors_json(const load_result *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->error_count; i++) {
        const load_error *e = &r->errors[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "kind", e->kind, "count",
                                              (json_int_t)e->count, "example", e->example));
    }
    return list;
}

static json_t *rate_json(const load_result *r) {
    return r->rate > 0 ? json_real(r->rate) : json_string("inf");
}

static json_t *concurrency_json(const load_result *r) {
    return r->concurrency > 0 ? json_integer(r->concurrency) : json_null();
}

/* What vLLM's benchmark has no name for. */
static int set_own(json_t *object, const load *load, const load_result *r) {
    const double tokens = r->generated > 1 ? r->generated : 1;
    json_t *own = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:b, s:o, s:f, s:f, s:f, s:f, "
        "s:I}",
        "aborted", (json_int_t)r->aborted, "unfinished", (json_int_t)r->unfinished, "refused",
        (json_int_t)r->refused, "refused_with_retry_after", (json_int_t)r->refused_with_wait, "good",
        (json_int_t)r->good, "total_text_events", (json_int_t)r->text_events, "answer_tokens",
        (json_int_t)r->answer_tokens, "answers_with_usage", (json_int_t)r->by_usage, "answers_not_streamed",
        (json_int_t)r->not_streamed, "answers_shorter_than_asked", (json_int_t)r->short_answers,
        "cached_prompt_tokens", (json_int_t)r->cached_tokens, "prompt_tokens_wanted", r->prompt_wanted,
        "arrivals_held", r->held, "interrupted", r->interrupted, "failures", errors_json(r),
        "processor_seconds", r->processor_seconds, "wall_seconds", r->wall_seconds, "processor_us_per_token",
        1e6 * r->processor_seconds / tokens, "input_throughput", per_second(r, prompt_tokens(r)), "seed",
        (json_int_t)load->options->seed);
    int failed = own ? json_object_update(object, own) : -1;
    json_decref(own);
    failed |= set_series(object, "connect", &r->connect) | set_series(object, "first_byte", &r->first_byte);
    return failed | set_series(object, "generator_late", &r->late);
}

json_t *load_json(const load *load, const load_result *r) {
    const load_options *o = load->options;
    const bool objective = has_objective(&o->objective);
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:o, s:f, s:o, s:f, s:I, s:I, s:I, s:I, s:f, s:o, s:f, s:f, s:I}",
        "endpoint_type", o->completions ? "openai" : "openai-chat", "base_url", o->url, "model_id",
        load->model, "num_prompts", (json_int_t)r->started, "request_rate", rate_json(r), "burstiness",
        o->burstiness, "max_concurrency", concurrency_json(r), "duration", r->seconds, "completed",
        (json_int_t)r->done, "failed", (json_int_t)r->failed, "total_input_tokens",
        (json_int_t)prompt_tokens(r), "total_output_tokens", (json_int_t)(r->generated + 0.5),
        "request_throughput", per_second(r, (double)r->done), "request_goodput",
        objective ? json_real(per_second(r, (double)r->good)) : json_null(), "output_throughput",
        per_second(r, r->generated), "total_token_throughput", per_second(r, r->generated + prompt_tokens(r)),
        "max_concurrent_requests", (json_int_t)r->most_running);
    if (!object || set_series(object, "ttft", &r->first) || set_series(object, "itl", &r->gap) ||
        set_series(object, "tpot", &r->token) || set_series(object, "e2el", &r->whole) ||
        set_own(object, load, r)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* ---- the table -------------------------------------------------------------------------------------------
 */

static void print_series(FILE *out, const char *name, const load_series *s) {
    if (s->count == 0) {
        return;
    }
    fprintf(out, "%-22s %9.2f", name, load_mean(s));
    for (int i = 0; i < QUANTILES; i++) {
        fprintf(out, " %9.2f", load_quantile(s, LEVELS[i]));
    }
    fprintf(out, " %9.2f\n", load_quantile(s, 1));
}

static void print_arrival(FILE *out, const load *load, const load_result *r) {
    const load_options *o = load->options;
    const char *what = o->turns > 1 ? "conversations" : "requests";
    if (r->rate > 0) {
        fprintf(out, "%.10g %s/s, ", r->rate, what);
        if (o->burstiness == 1) {
            fprintf(out, "Poisson");
        } else {
            fprintf(out, "gamma gaps of the shape %.10g", o->burstiness);
        }
        if (r->concurrency > 0) {
            fprintf(out, ", at most %d at once", (int)r->concurrency);
        }
    } else {
        fprintf(out, "%d at once", (int)r->concurrency);
    }
    fprintf(out, "; seed %llu", (unsigned long long)o->seed);
}

static void print_counts(FILE *out, const load *load, const load_result *r) {
    const struct {
        const char *name;
        int64_t count;
    } rows[] = {{"failed", r->failed}, {"aborted", r->aborted}, {"unfinished", r->unfinished}};
    fprintf(out, "model       %s\n", load->model);
    fprintf(out, "load        ");
    print_arrival(out, load, r);
    fprintf(out, "\nmeasured    %.2f s%s\n", r->seconds, r->interrupted ? ", interrupted" : "");
    fprintf(out, "requests    %lld done", (long long)r->done);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].count > 0) {
            fprintf(out, ", %lld %s", (long long)rows[i].count, rows[i].name);
        }
    }
    fprintf(out, "; at most %lld at once\n", (long long)r->most_running);
    fprintf(out, "throughput  %.2f requests/s, %.1f prompt tokens/s, %.1f generated tokens/s\n",
            per_second(r, (double)r->done), per_second(r, prompt_tokens(r)), per_second(r, r->generated));
}

static void print_tokens(FILE *out, const load_result *r) {
    const double done = r->done > 0 ? (double)r->done : 1;
    fprintf(out, "tokens      %.1f a prompt", prompt_tokens(r) / done);
    if (r->prompt_wanted > 0) {
        fprintf(out, " (%.1f random ones sent)", r->prompt_wanted);
    }
    if (r->cached_tokens > 0) {
        fprintf(out, ", %.1f of them cached", (double)r->cached_tokens / done);
    }
    fprintf(out, ", %.1f an answer", (double)r->answer_tokens / done);
    if (r->text_events > 0 && r->answer_tokens != r->text_events) {
        fprintf(out, ", %.2f an event", (double)r->answer_tokens / (double)r->text_events);
    }
    fprintf(out, "\n");
    if (r->by_usage < r->done) {
        fprintf(out, "            %lld of %lld answers said no usage: their tokens are counted as events\n",
                (long long)(r->done - r->by_usage), (long long)r->done);
    }
    if (r->not_streamed > 0) {
        fprintf(out,
                "            %lld answers came whole, not as a stream: their first token is their last\n",
                (long long)r->not_streamed);
    }
    if (r->short_answers > 0) {
        fprintf(out,
                "            %lld answers were shorter than asked: the server does not honour ignore_eos\n",
                (long long)r->short_answers);
    }
}

static void print_good(FILE *out, const load *load, const load_result *r) {
    const load_objective *o = &load->options->objective;
    const struct {
        const char *name;
        double bound;
    } bounds[] = {{"ttft", o->first}, {"itl", o->gap}, {"tpot", o->token}, {"e2e", o->whole}};
    if (!has_objective(o)) {
        return;
    }
    fprintf(out, "goodput     %.2f requests/s: %lld of %lld within", per_second(r, (double)r->good),
            (long long)r->good, (long long)r->done);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (bounds[i].bound > 0) {
            fprintf(out, " %s %.10g", bounds[i].name, bounds[i].bound);
        }
    }
    fprintf(out, " ms\n");
}

static void print_generator(FILE *out, const load_result *r) {
    const double tokens = r->generated > 1 ? r->generated : 1;
    fprintf(out,
            "generator   late by %.2f ms at p99, %.2f ms at worst; %.1f %% of a processor, %.1f us a token\n",
            load_quantile(&r->late, 0.99), load_quantile(&r->late, 1),
            r->wall_seconds > 0 ? 100 * r->processor_seconds / r->wall_seconds : 0,
            1e6 * r->processor_seconds / tokens);
    if (r->held) {
        fprintf(out, "            arrivals waited for a free place: the rate was not reached at all times\n");
    }
}

static void print_failures(FILE *out, const load_result *r) {
    for (size_t i = 0; i < r->error_count; i++) {
        const load_error *e = &r->errors[i];
        fprintf(out, "%s%6lld  %s%s%s\n", i == 0 ? "\nfailures\n" : "", (long long)e->count, e->kind,
                *e->example ? ": " : "", e->example);
    }
    if (r->refused > 0) {
        fprintf(out, "        %lld were refused (429, 503), %lld of them with Retry-After\n",
                (long long)r->refused, (long long)r->refused_with_wait);
    }
}

void load_print(FILE *out, const load *load, const load_result *r) {
    print_counts(out, load, r);
    print_tokens(out, r);
    print_good(out, load, r);
    print_generator(out, r);
    if (r->whole.count > 0 || r->connect.count > 0) {
        fprintf(out, "\n%-22s %9s %9s %9s %9s %9s %9s\n", "milliseconds", "mean", "p50", "p90", "p95", "p99",
                "max");
    }
    print_series(out, "connect", &r->connect);
    print_series(out, "first byte", &r->first_byte);
    print_series(out, "first token", &r->first);
    print_series(out, "between tokens", &r->gap);
    print_series(out, "per output token", &r->token);
    print_series(out, "end to end", &r->whole);
    print_failures(out, r);
}

/* ---- a sweep ---------------------------------------------------------------------------------------------
 */

void load_print_sweep(FILE *out, const load *load, const load_result *results, size_t count) {
    const bool good = has_objective(&load->options->objective);
    const bool rate = count > 0 && results[0].rate > 0;
    fprintf(out, "model %s; seed %llu; milliseconds\n\n", load->model,
            (unsigned long long)load->options->seed);
    fprintf(out, "%8s %6s %6s %10s %10s %10s %9s %9s %9s %9s %9s %9s%s\n", rate ? "rate" : "at once", "done",
            "failed", "requests/s", "prompt t/s", "tokens/s", "ttft p50", "ttft p99", "itl p50", "itl p99",
            "tpot p50", "e2e p50", good ? "    good/s" : "");
    for (size_t i = 0; i < count; i++) {
        const load_result *r = &results[i];
        fprintf(out, "%8.10g %6lld %6lld %10.2f %10.1f %10.1f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f",
                rate ? r->rate : (double)r->concurrency, (long long)r->done, (long long)r->failed,
                per_second(r, (double)r->done), per_second(r, prompt_tokens(r)), per_second(r, r->generated),
                load_quantile(&r->first, 0.5), load_quantile(&r->first, 0.99), load_quantile(&r->gap, 0.5),
                load_quantile(&r->gap, 0.99), load_quantile(&r->token, 0.5), load_quantile(&r->whole, 0.5));
        if (good) {
            fprintf(out, " %9.2f", per_second(r, (double)r->good));
        }
        fprintf(out, "\n");
    }
    for (size_t i = 0; i < count; i++) {
        if (results[i].error_count > 0) {
            fprintf(out, "\n%.10g:", rate ? results[i].rate : (double)results[i].concurrency);
            print_failures(out, &results[i]);
        }
    }
}

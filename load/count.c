/* What is counted of requests that ended, and the trace's lines. */
#include "round.h"
#include "series.h"

#include <math.h>
#include <string.h>

static const char *const OUTCOMES[] = {"done", "failed", "aborted", "unfinished"};

static double since(double when, double from) {
    return when > 0 ? 1000 * (when - from) : -1;
}

/* ---- the trace -------------------------------------------------------------------------------------------
 */

/* A number, or null below 0. */
static json_t *number_or_null(double value) {
    return value >= 0 ? json_real(value) : json_null();
}

static json_t *count_or_null(int64_t value) {
    return value >= 0 ? json_integer(value) : json_null();
}

static json_t *gaps_of(const load_answer *a) {
    json_t *list = json_array();
    for (size_t i = 0; i < a->gaps.count; i++) {
        json_array_append_new(list, json_real((double)a->gaps.values[i]));
    }
    return list;
}

static int write_trace(const load_round *r, const load_client *c, load_outcome outcome) {
    const load_answer *a = &c->answer;
    json_t *line = json_pack(
        "{s:I, s:I, s:i, s:s, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:i, s:s, s:o, s:s, "
        "s:s, s:f, "
        "s:i}",
        "request", (json_int_t)c->number, "conversation", (json_int_t)c->talk.index, "turn",
        (int)c->talk.turn, "outcome", OUTCOMES[outcome], "due_ms", 1000 * (c->due - r->began), "start_ms",
        1000 * (c->begin - r->began), "connect_ms", number_or_null(c->connect), "first_byte_ms",
        number_or_null(since(c->first_byte, c->begin)), "ttft_ms", number_or_null(since(a->first, c->begin)),
        "last_token_ms", number_or_null(since(a->last, c->begin)), "end_ms",
        number_or_null(since(c->end, c->begin)), "prompt_tokens", count_or_null(a->prompt_tokens),
        "completion_tokens", count_or_null(a->answer_tokens), "text_events", (json_int_t)a->text_events,
        "itl_ms", gaps_of(a), "status", (int)c->status, "finish_reason", a->reason, "retry_after_s",
        number_or_null(c->retry_after), "error", c->kind, "message", c->why, "rate", r->result->rate,
        "concurrency", (int)r->result->concurrency);
    const int result = line ? json_dumpf(line, r->options->trace, JSON_COMPACT | JSON_REAL_PRECISION(9)) : -1;
    json_decref(line);
    return result || fputc('\n', r->options->trace) == EOF ? -1 : 0;
}

/* ---- counting --------------------------------------------------------------------------------------------
 */

static void count_error(load_result *result, const load_client *c) {
    size_t i = 0;
    while (i < result->error_count && strcmp(result->errors[i].kind, c->kind) != 0) {
        i++;
    }
    if (i == LOAD_KINDS) { /* the last one stands for all others */
        i--;
        snprintf(result->errors[i].kind, sizeof result->errors[i].kind, "others");
    } else if (i == result->error_count) {
        load_error *error = &result->errors[result->error_count++];
        *error = (load_error){0};
        snprintf(error->kind, sizeof error->kind, "%s", c->kind);
        snprintf(error->example, sizeof error->example, "%s", c->why);
    }
    result->errors[i].count++;
}

static bool meets(double value, double bound) {
    return bound <= 0 || value <= bound;
}

static double largest(const load_series *series) {
    double most = 0;
    for (size_t i = 0; i < series->count; i++) {
        most = fmax(most, (double)series->values[i]);
    }
    return most;
}

static int count_done(load_round *r, const load_client *c) {
    load_result *result = r->result;
    const load_answer *a = &c->answer;
    const load_objective *objective = &r->options->objective;
    const int64_t tokens = load_client_tokens(c);
    const double first = since(a->first, c->begin);
    const double whole = since(a->last > 0 ? a->last : c->end, c->begin);
    const double token = tokens > 1 ? (whole - first) / (double)(tokens - 1) : 0;
    int failed = 0;
    result->done++;
    result->answer_tokens += tokens;
    result->text_events += a->text_events;
    result->not_streamed += !a->streamed;
    result->by_usage += a->answer_tokens >= 0;
    result->prompt_tokens += a->prompt_tokens > 0 ? a->prompt_tokens : 0;
    result->cached_tokens += a->cached_tokens > 0 ? a->cached_tokens : 0;
    result->short_answers += r->options->ignore_eos && c->talk.most > 0 && tokens < c->talk.most;
    result->prompt_wanted += (double)c->talk.wanted; /* becomes a mean at the end */
    r->done_tokens += (double)tokens;
    r->done_events += (double)a->text_events;
    if (a->text_events > 0) {
        result->generated += (double)tokens * (double)c->counted_events / (double)a->text_events;
        failed |= load_series_add(&result->first, first) | load_series_append(&result->gap, &a->gaps);
    }
    if (a->text_events > 0 && tokens > 1 && a->streamed) {
        failed |= load_series_add(&result->token, token);
    }
    if (a->text_events == 0) {
        result->generated += (double)tokens; /* special ones, which are no text */
    }
    failed |= load_series_add(&result->whole, whole);
    failed |= load_series_add(&result->first_byte, since(c->first_byte, c->begin));
    result->good += a->first > 0 && meets(first, objective->first) &&
                    meets(largest(&a->gaps), objective->gap) && meets(token, objective->token) &&
                    meets(whole, objective->whole);
    return failed ? -1 : 0;
}

int load_count(load_round *r, load_client *c, load_outcome outcome) {
    load_result *result = r->result;
    if (r->options->trace && write_trace(r, c, outcome)) {
        return -1;
    }
    if (c->end < r->counts_from) {
        return 0;
    }
    if (c->connect >= 0 && outcome != LOAD_FAILED && load_series_add(&result->connect, c->connect)) {
        return -1;
    }
    if (outcome == LOAD_DONE) {
        return count_done(r, c);
    }
    r->cut_events += (double)c->counted_events;
    result->aborted += outcome == LOAD_ABORTED;
    result->unfinished += outcome == LOAD_UNFINISHED;
    if (outcome == LOAD_FAILED) {
        const bool refused = c->status == 429 || c->status == 503;
        result->failed++;
        result->refused += refused;
        result->refused_with_wait += refused && c->retry_after >= 0;
        count_error(result, c);
    }
    return 0;
}

void load_conclude(load_round *r, double now) {
    load_result *result = r->result;
    load_series *const all[] = {&result->connect, &result->first_byte, &result->first, &result->gap,
                                &result->token,   &result->whole,      &result->late};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        load_series_sort(all[i]);
    }
    const double end = r->ends > 0 && r->ends < now ? r->ends : now;
    result->seconds = end > r->counts_from ? end - r->counts_from : 0;
    /* Events of answers that came to no end stand for as many tokens as those of the others. */
    result->generated += r->cut_events * (r->done_events > 0 ? r->done_tokens / r->done_events : 1);
    const bool told = r->options->turns <= 1 && !r->options->prompts;
    result->prompt_wanted = told && result->done > 0 ? result->prompt_wanted / (double)result->done : 0;
}

void load_result_free(load_result *result) {
    load_series *const all[] = {&result->connect, &result->first_byte, &result->first, &result->gap,
                                &result->token,   &result->whole,      &result->late};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        load_series_free(all[i]);
    }
    *result = (load_result){0};
}

/* sluice bench: tokens a second, with llama-bench's columns, for every combination of what is asked for. */
#define _GNU_SOURCE
#include "bench.h"
#include "plot/plot.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- drafts that are known to be right, or wrong
 * ---------------------------------------------------------------------- */

/* Called by the engine's thread, which nothing is submitted to while the known text changes. */
static size_t draft_known(void *context, const int32_t *tokens, size_t count, int32_t *drafts, size_t room) {
    const bench *b = context;
    enum { EVERY = 4 }; /* of mixed ones, one is wrong */
    const bool mixed = strcmp(b->one.draft_known, "mixed") == 0;
    const bool all_wrong = strcmp(b->one.draft_known, "wrong") == 0;
    size_t written = 0;
    for (; written < room && count + written < b->known_count && tokens[count - 1] == b->known[count - 1];
         written++) {
        const bool wrong = all_wrong || (mixed && (count + written) % EVERY == 0);
        drafts[written] = (b->known[count + written] + wrong) % b->info.vocabulary;
    }
    return written;
}

static void count_run(const bench *b, measurement *m, bool begin) {
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(b->session.engine, &counters);
    m->drafted = counters.drafted - (begin ? 0 : m->drafted);
    m->accepted = counters.accepted - (begin ? 0 : m->accepted);
    count_experts(b, m, begin);
}

/* ---- measuring -------------------------------------------------------------------------------------------
 */

/* Sequences that run together. */
typedef struct crowd {
    bench *bench;
    sluice_sequence **sequences;
    sluice_request **requests; /* NULL: it has all its tokens */
    int32_t *left;             /* tokens that each has to generate yet */
    sluice_request_options work;
} crowd;

/* An answer that is held to a grammar may end before all tokens are there: another one follows, behind one
 * token more. */
static int go_on(crowd *all, int32_t i, const sluice_event *done) {
    sluice_error error;
    const bool answered = done->finish == SLUICE_FINISH_EOS && all->work.grammar;
    sluice_request_release(all->requests[i]);
    all->requests[i] = NULL;
    if (done->finish == SLUICE_FINISH_ERROR) {
        return fail_with(&done->error);
    }
    all->left[i] -= (int32_t)done->generated_tokens;
    if (done->finish == SLUICE_FINISH_LENGTH || (answered && all->left[i] == 0)) {
        return DONE;
    }
    if (!answered || done->generated_tokens == 0) {
        return fail("bench: a sequence ended early: %s", finish_name(done->finish));
    }
    sluice_request_options more = all->work;
    more.token_count = 1;
    more.generate = (size_t)all->left[i];
    return sluice_submit(all->sequences[i], &more, &all->requests[i], &error) ? fail_with(&error) : DONE;
}

/* All events that are there, of all. Waits for the first that still runs, as one step gives tokens to all. */
static int poll_crowd(crowd *all, bool *runs) {
    *runs = false;
    for (int32_t i = 0; i < all->bench->sequences; i++) {
        sluice_error error;
        sluice_event event = {.size = sizeof event};
        for (int wait = *runs ? 0 : 100; all->requests[i]; wait = 0) {
            *runs = true;
            if (sluice_poll(all->requests[i], wait, &event, &error)) {
                return fail_with(&error);
            }
            if (event.kind == SLUICE_EVENT_NONE) {
                break;
            }
            const int code = event.kind == SLUICE_EVENT_DONE ? go_on(all, i, &event) : DONE;
            if (code != DONE) {
                return code;
            }
        }
    }
    return interrupted() ? fail("cancelled") : DONE;
}

static int append(bench *b, sluice_sequence **sequences, int32_t from, int32_t count, int32_t generated,
                  double *seconds) {
    enum { MOST = 4096 };
    sluice_error error;
    sluice_request *requests[MOST] = {NULL};
    int32_t left[MOST];
    int code = DONE;
    bool runs = true;
    crowd all = {.bench = b,
                 .sequences = sequences,
                 .requests = requests,
                 .left = left,
                 .work = {.size = sizeof all.work,
                          .tokens = b->tokens + from,
                          .token_count = (size_t)count,
                          .generate = (size_t)generated,
                          .no_text = true,
                          .ignore_eos = true}};
    const sluice_request_options *options[MOST];
    if (generated > 0) {
        code = hold_to_grammar(&b->held, &b->one, b->session.model, &all.work);
    }
    if (code != DONE) {
        return code;
    }
    for (int32_t i = 0; i < b->sequences; i++) {
        options[i] = &all.work;
        left[i] = generated;
    }
    const double begin = seconds_now();
    code = sluice_submit_together(sequences, options, (size_t)b->sequences, requests, &error)
               ? fail_with(&error)
               : DONE;
    while (code == DONE && runs) {
        code = poll_crowd(&all, &runs);
    }
    *seconds = seconds_now() - begin;
    if (code == DONE && b->known && b->known_count == 0 && generated > 0) {
        b->known_count = sluice_sequence_length(sequences[0]);
        memcpy(b->known, sluice_sequence_tokens(sequences[0]), b->known_count * sizeof *b->known);
    }
    for (int32_t i = 0; i < b->sequences; i++) {
        sluice_request_release(requests[i]);
    }
    return code;
}

/* Each repetition goes on from copies of sequences that hold `depth` tokens. */
static int repeat(bench *b, sluice_sequence **deep, sluice_sequence **forks, const measurement *m,
                  double *seconds) {
    sluice_error error;
    int code = DONE;
    for (int32_t i = 0; i < b->sequences && code == DONE; i++) {
        const int result = m->depth ? sluice_sequence_fork(deep[i], &forks[i], &error)
                                    : sluice_sequence_create(b->session.engine, &forks[i], &error);
        code = result ? fail_with(&error) : DONE;
    }
    /* A generated token is one pass. The first comes from the pass of one token that is read; with a prompt
     * one comes from its last row, and m->generate passes follow. */
    const int32_t read = m->prompt ? m->prompt : 1, generated = m->generate + (m->prompt ? 1 : 0);
    code = code == DONE ? append(b, forks, m->depth, read, generated, seconds) : code;
    for (int32_t i = 0; i < b->sequences; i++) {
        sluice_sequence_release(forks[i]);
        forks[i] = NULL;
    }
    return code;
}

static int measure(bench *b, measurement *m) {
    sluice_error error;
    double ignored;
    sluice_sequence **deep = calloc((size_t)b->sequences, sizeof *deep);
    sluice_sequence **forks = calloc((size_t)b->sequences, sizeof *forks);
    int code = deep && forks ? DONE : fail("bench: out of memory");
    for (int32_t i = 0; i < b->sequences && code == DONE && m->depth; i++) {
        code = sluice_sequence_create(b->session.engine, &deep[i], &error) ? fail_with(&error) : DONE;
    }
    code = code == DONE && m->depth ? append(b, deep, 0, m->depth, 0, &ignored) : code;
    b->known_count = 0;
    code = code == DONE ? repeat(b, deep, forks, m, &ignored) : code;
    count_run(b, m, true);
    for (m->repetitions = 0; m->repetitions < b->one.repetitions && code == DONE; m->repetitions++) {
        code = repeat(b, deep, forks, m, &m->seconds[m->repetitions]);
    }
    count_run(b, m, false);
    for (int32_t i = 0; i < b->sequences && deep; i++) {
        sluice_sequence_release(deep[i]);
    }
    free(deep);
    free(forks);
    return code;
}

/* ---- profile ----
 */

/* Where the time of the last step goes, as text or as JSON; NULL when nobody asked. */
static int read_profile(const bench *b, char **profile) {
    sluice_error error;
    *profile = NULL;
    const bool text = strcmp(b->one.output, "md") == 0;
    return b->one.profile &&
                   sluice_engine_profile(b->session.engine, text ? SLUICE_TEXT : SLUICE_JSON, profile, &error)
               ? fail_with(&error)
               : DONE;
}

/* What the device can do in a second, once for each model and number of threads. Of several devices nobody
 * knows. */
static int read_rates(bench *b) {
    sluice_error error;
    sluice_rates rates = {.size = sizeof rates};
    if (b->rated_threads == b->threads) {
        return DONE;
    }
    const int code = sluice_engine_measure_rates(b->session.engine, &rates, &error);
    b->rates = rates;
    b->rated_threads = b->threads;
    return code == 0 || code == SLUICE_ERR_UNSUPPORTED ? DONE : fail_with(&error);
}

/* ---- the command -----------------------------------------------------------------------------------------
 */

static int32_t most_of(const number_list *list) {
    int32_t most = 0;
    for (int i = 0; i < list->count; i++) {
        most = list->items[i] > most ? list->items[i] : most;
    }
    return most;
}

int processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* The same numbers in every run. */
static int make_tokens(bench *b) {
    b->tokens = malloc((size_t)b->context * sizeof *b->tokens);
    uint64_t state = 1;
    for (int32_t i = 0; i < b->context && b->tokens; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->tokens[i] = (int32_t)((state >> 33) % (uint64_t)b->info.vocabulary);
    }
    b->known = b->one.draft_known ? calloc((size_t)b->context, sizeof *b->known) : NULL;
    return b->tokens && (b->known || !b->one.draft_known) ? DONE : fail("bench: out of memory");
}

/* Tokens of the longest sequence. With a grammar, each generated one may be an answer, with one in front of
 * the next. */
static int64_t context_needed(const bench *b) {
    const settings *s = &b->one;
    const int64_t each = s->json_schema || s->grammar || s->regex ? 2 : 1;
    const int64_t generate = each * most_of(&s->generates);
    int64_t most = most_of(&s->prompts) > generate ? most_of(&s->prompts) : generate;
    for (int i = 0; i < b->pair_count; i++) {
        const int64_t both = b->pairs[i].prompt + each * b->pairs[i].generate;
        most = both > most ? both : most;
    }
    return s->beside ? beside_context(s) : most + most_of(&s->depths) + 2;
}

static int open_bench_model(bench *b) {
    int code = open_model(&b->one, &b->session);
    if (code != DONE) {
        return code;
    }
    sluice_error error;
    b->info = (sluice_model_info){.size = sizeof b->info};
    sluice_model_get_info(b->session.model, &b->info);
    code = read_cost(b->session.model, &b->cost, &error) ? fail_with(&error) : DONE;
    return code == DONE ? make_tokens(b) : code;
}

static int start_engine(bench *b) {
    const settings *s = &b->one;
    sluice_engine_options options;
    b->threads = s->threads ? s->threads : processors();
    engine_options(s, 1, &options);
    options.context = b->context;
    options.sequences = b->sequences;
    options.no_prefix_reuse = true;
    if (most_of(&s->depths) > 0 && !s->cache_tokens) {
        /* The deep sequences stay; a copy takes the pages that it fills, and one that both had begun. */
        options.cache_tokens = (uint64_t)b->sequences * ((uint64_t)b->context + 256) + (uint64_t)s->kv_budget;
    }
    if (b->known) {
        options.draft = draft_known;
        options.draft_context = b;
    }
    const int code = open_engine(s, &b->session, &options);
    return code == DONE && !s->beside ? read_rates(b) : code;
}

static int measure_one(bench *b, measurement *m) {
    char *profile = NULL;
    m->begin = time(NULL);
    int code = measure(b, m);
    code = code == DONE ? read_profile(b, &profile) : code;
    code = code == DONE ? print_measurement(b, m, profile) : code;
    sluice_free(profile);
    return code;
}

/* Prompts, then generations, then both, as llama-bench orders them. */
static int measure_all(bench *b) {
    const settings *s = &b->one;
    static measurement m;
    const int prompts = s->prompts.count, singles = prompts + s->generates.count;
    int code = DONE;
    for (int d = 0; d < s->depths.count; d++) {
        for (int i = 0; i < singles + b->pair_count && code == DONE; i++) {
            m.depth = s->depths.items[d];
            m.prompt = i < prompts ? s->prompts.items[i] : i < singles ? 0 : b->pairs[i - singles].prompt;
            m.generate = i < prompts   ? 0
                         : i < singles ? s->generates.items[i - prompts]
                                       : b->pairs[i - singles].generate;
            code = m.prompt + m.generate > 0 ? measure_one(b, &m) : DONE;
        }
    }
    return code;
}

/* One model with each number of threads and of sequences. */
static int measure_model(bench *b) {
    const number_list *threads = &b->one.thread_counts, *sequences = &b->one.sequence_counts;
    int code = open_bench_model(b);
    b->rated_threads = 0;
    for (int i = 0; i < threads->count * sequences->count && code == DONE; i++) {
        const int32_t asked = sequences->items[i % sequences->count];
        b->one.threads = threads->items[i / sequences->count];
        b->sequences = b->one.beside ? b->one.beside + 1 : asked ? asked : 1;
        code = start_engine(b);
        catch_interrupt();
        code = code != DONE ? code : b->one.beside ? measure_beside(b) : measure_all(b);
        release_interrupt();
        code = code == DONE ? write_expert_stats(&b->one, &b->session) : code;
        sluice_engine_destroy(b->session.engine);
        b->session.engine = NULL;
    }
    release_grammar(&b->held);
    close_session(&b->session);
    b->session = (session){0};
    free(b->tokens);
    free(b->known);
    b->tokens = b->known = NULL;
    return code;
}

/* "512,128" */
static int read_pairs(bench *b) {
    const text_list *texts = &b->one.pairs;
    for (int i = 0; i < texts->count; i++) {
        const char *text = texts->items[i];
        char *end;
        int64_t numbers[2] = {0, 0};
        errno = 0;
        for (int k = 0; k < 2 && text; k++) {
            numbers[k] = *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : 0;
            text = numbers[k] >= 1 && numbers[k] <= INT32_MAX && *end == (k ? '\0' : ',') ? end + 1 : NULL;
        }
        if (!text || errno) {
            fail("bench: -pg wants a prompt's length and how many tokens follow, as in 512,128, not \"%s\"",
                 texts->items[i]);
            return WRONG_USAGE;
        }
        b->pairs[i] = (length_pair){(int32_t)numbers[0], (int32_t)numbers[1]};
    }
    b->pair_count = texts->count;
    return DONE;
}

/* The models that -m names: each text one, or several with commas where no file has the whole as its name.
 * The texts lie in *memory, which the caller frees. */
static int list_models(const settings *s, text_list *models, char **memory) {
    static const char *const usual[] = {DEFAULT_MODEL};
    const int count = s->models.count ? s->models.count : 1;
    const char *const *items = s->models.count ? s->models.items : usual;
    size_t size = 0;
    for (int i = 0; i < count; i++) {
        size += strlen(items[i]) + 1;
    }
    char *at = *memory = malloc(size);
    if (!at) {
        return fail("bench: out of memory");
    }
    for (int i = 0; i < count; i++) {
        const bool list = access(items[i], F_OK) != 0;
        for (char *text = at = strcpy(at, items[i]); text; at += strlen(at) + 1) {
            char *comma = list ? strchr(text, ',') : NULL;
            if (comma) {
                *comma = '\0';
            }
            if (models->count == LIST_ITEMS) {
                fail("bench: -m: at most %d models", LIST_ITEMS);
                return WRONG_USAGE;
            }
            models->items[models->count++] = text;
            text = comma ? comma + 1 : NULL;
        }
    }
    return DONE;
}

static int check_options(bench *b) {
    const settings *s = &b->one;
    const bool prompts = most_of(&s->prompts) > 0, generates = most_of(&s->generates) > 0;
    const char *wrong = NULL;
    if (s->peak && (s->plot || s->profile || s->beside || b->pair_count || s->models.count > 1)) {
        wrong = "--peak measures the device alone: one model, and no --plot, --profile, --beside or -pg";
    } else if (s->draft_known && s->speculate) {
        wrong = "--draft-known is a source of drafts: no --speculate";
    } else if (s->beside && b->pair_count) {
        wrong = "--beside measures no -pg";
    } else if (s->beside && (!prompts || s->generates.items[0] == 0)) {
        wrong = "--beside wants the prompt's tokens (-p) and how many are generated before it (-n)";
    } else if (!prompts && !generates && !b->pair_count) {
        wrong = "there is nothing to do: -p and -n are 0 and there is no -pg";
    } else if (s->profile && strcmp(s->output, "csv") == 0) {
        wrong = "--profile has no place in -o csv; md and json have one";
    } else if (s->expert_stats &&
               (s->peak || s->models.count > 1 || s->thread_counts.count * s->sequence_counts.count > 1)) {
        wrong = "--expert-stats is of one engine: one model, one -t, one --sequences, and no --peak";
    } else if (context_needed(b) > INT32_MAX) {
        return fail("bench: %lld tokens in one sequence are too many", (long long)context_needed(b));
    }
    wrong = !wrong && s->plot ? plot_refusal(s) : wrong;
    if (wrong) {
        fail("bench: %s", wrong);
        return WRONG_USAGE;
    }
    char message[PLOT_MESSAGE];
    return s->plot && plot_check(s->plot, message) ? fail("%s", message) : DONE;
}

int bench_command(const settings *settings) {
    bench b = {.one = *settings, .first = true};
    text_list models = {.count = 0};
    char *memory = NULL;
    int code = read_pairs(&b);
    code = code == DONE ? check_options(&b) : code;
    code = code == DONE ? list_models(settings, &models, &memory) : code;
    b.rows = json_array();
    code = code == DONE && !b.rows ? fail("bench: out of memory") : code;
    if (code == DONE) {
        const int64_t needed = context_needed(&b);
        b.context = settings->context > needed ? settings->context : (int32_t)needed;
        processor_name(b.processor);
    }
    for (int i = 0; i < models.count && code == DONE; i++) {
        b.one.model = models.items[i];
        b.model = i;
        if (settings->peak) {
            code = measure_peaks(&b);
            break;
        }
        b.speeds.several |= i > 0 && strcmp(models.items[i], models.items[0]) != 0;
        code = measure_model(&b);
    }
    if (code == DONE && strcmp(settings->output, "json") == 0) {
        code = print_json(json_incref(b.rows));
    }
    code = code == DONE && settings->plot ? plot_speeds(&b.speeds, settings) : code;
    free(b.speeds.points);
    json_decref(b.rows);
    free(memory);
    return code;
}

/* The scheduler and the cache's book-keeping run against a backend that remembers tokens instead of
 * computing: a page holds the ids of the tokens stored in it, a state slot the hash of all tokens before it.
 * Every row then checks that it sees exactly its sequence's own past, through page tables, copies, forks,
 * windows, snapshots and preemption; the "sampled" token is a function of that past, so that any mistake
 * changes what is generated. */
#ifndef SLUICE_TESTS_UNIT_SCHED_RIG_H
#define SLUICE_TESTS_UNIT_SCHED_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "program/adjustment.h"
#include "sched/scheduler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef RIG_SLOTS
#define RIG_SLOTS 3
#endif

enum {
    VOCABULARY = 1000,
    CONTEXT = 1024,
    SLOTS = RIG_SLOTS,
    CHUNK = 96,
    OUTPUTS = 8,
    WINDOW = 16,
    KEEP_WINDOW = 16, /* of a budget */
    TABLE = CONTEXT / SL_PAGE_TOKENS
};

/* ---- the backend that remembers
 * ------------------------------------------------------------------------------------- */

struct sl_executor {
    const sl_deployment *deployment;
    unsigned char *blocks[2]; /* of two steps in flight */
    unsigned char *block;     /* of the step that runs */
    int32_t next, in_flight;
    int32_t last_tokens[SLOTS];
    int32_t *pages[SL_CACHE_GROUPS]; /* [page][SL_PAGE_TOKENS] */
    int32_t tables[SL_CACHE_GROUPS][SLOTS + 1][TABLE];
    uint64_t *states;
    float logits[2][OUTPUTS][VOCABULARY];
    int32_t tokens[2][OUTPUTS];
    int fail_in;              /* steps until one fails; 0: never */
    int32_t broken_at[SLOTS]; /* position of a row whose logits are not finite; 0: none */
    bool none_left;           /* they are numbers, but all -infinity */
    uint64_t max_rows, steps, compactions;
};

static inline int32_t next_token(const int32_t *tokens, int32_t count, int32_t window) {
    int32_t first = window && count > window ? count - window : 0;
    uint64_t hash = sl_hash64(tokens + first, (size_t)(count - first) * sizeof *tokens, 7);
    return (int32_t)(hash % VOCABULARY);
}

/* What adjustments, in any order, make of a sampled token; none leave it as it is. */
static inline int32_t adjusted(int32_t token, const sl_adjustment *adjustments, int32_t count) {
    uint64_t all = 0;
    for (int32_t i = 0; i < count; i++) {
        all += sl_hash64(&adjustments[i], sizeof *adjustments, 11);
    }
    return (int32_t)(((uint64_t)token + all % VOCABULARY) % VOCABULARY);
}

/* The first token from there on, in a circle, that may come. */
static inline int32_t masked(int32_t token, const uint32_t *mask) {
    for (int32_t i = 0; mask && i < VOCABULARY && sl_is_masked(mask, token); i++) {
        token = (token + 1) % VOCABULARY;
    }
    return token;
}

static inline uint64_t next_state(uint64_t state, int32_t token) {
    return sl_hash64(&token, sizeof token, state + 1);
}

static inline void *fake_block(sl_executor *e) {
    return e->blocks[e->next];
}

static inline void apply_changes(sl_executor *e) {
    const sl_step_layout *layout = &e->deployment->step;
    const sl_step_header *head = sl_step_head(e->block);
    const size_t page = SL_PAGE_TOKENS * sizeof(int32_t);
    for (int32_t i = 0; i < head->page_copies; i++) {
        sl_page_copy c = sl_step_page_copies(layout, e->block)[i];
        memcpy(e->pages[c.group] + c.target * SL_PAGE_TOKENS, e->pages[c.group] + c.source * SL_PAGE_TOKENS,
               page);
    }
    for (int32_t i = 0; i < head->table_changes; i++) {
        sl_table_change c = sl_step_table_changes(layout, e->block)[i];
        e->tables[c.group][c.slot][c.index] = c.page;
    }
}

/* The tokens that a row at `index` sees in one group, oldest first. */
static inline int32_t gather(sl_executor *e, int32_t group, const sl_step_span *span, int32_t index,
                             int32_t *seen) {
    int32_t window = e->deployment->program->groups[group].window, count = 0;
    for (int32_t i = window && index >= window ? index - window + 1 : 0; i <= index; i++) {
        int32_t page = e->tables[group][span->slot][i / SL_PAGE_TOKENS];
        assert_in_range(page, 0, e->deployment->caches[group].pages - 1);
        seen[count++] = e->pages[group][page * SL_PAGE_TOKENS + i % SL_PAGE_TOKENS];
    }
    return count;
}

static inline void run_span(sl_executor *e, const sl_step_span *span, const sl_step_row *rows,
                            int32_t *sampled) {
    const sl_program *program = e->deployment->program;
    uint64_t state = span->state_read == SL_NONE ? 0 : e->states[span->state_read];
    for (int32_t r = span->first_row; r < span->first_row + span->row_count; r++) {
        const int32_t token = rows[r].source == SL_ROW_TOKEN ? rows[r].token : e->last_tokens[span->slot];
        int32_t seen[CONTEXT], results[SL_CACHE_GROUPS] = {0};
        for (int32_t g = 0; g < program->group_count; g++) {
            int32_t index = span->length[g] + r - span->first_row;
            int32_t page = e->tables[g][span->slot][index / SL_PAGE_TOKENS];
            assert_in_range(page, 0, e->deployment->caches[g].pages - 1);
            e->pages[g][page * SL_PAGE_TOKENS + index % SL_PAGE_TOKENS] = token;
            int32_t count = gather(e, g, span, index, seen);
            results[g] = next_token(seen, count, 0);
        }
        state = next_state(state, token);
        const int32_t kept = r - span->first_row - (span->row_count - span->state_count);
        if (kept >= 0 && span->state_count > 0) {
            e->states[sl_step_states(&e->deployment->step, e->block)[span->state_first + kept]] = state;
        }
        uint64_t all = program->state_count ? state : 0;
        for (int32_t g = 0; g < program->group_count; g++) {
            all = all * 31 + (uint64_t)results[g];
        }
        sampled[r] = (int32_t)(all % VOCABULARY);
    }
}

/* Which `keep` of a group's tokens stay, by all of these: their indices, in order. */
static inline void choose_kept(const int32_t *seen, int32_t count, int32_t keep, int32_t *kept) {
    const uint64_t all = sl_hash64(seen, (size_t)count * sizeof *seen, 17);
    const int32_t candidates = count - KEEP_WINDOW, wanted = keep - KEEP_WINDOW;
    uint64_t scores[CONTEXT];
    int32_t used = 0;
    for (int32_t i = 0; i < candidates; i++) {
        scores[i] = sl_hash64(&seen[i], sizeof *seen, all) % 8;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t better = 0;
        for (int32_t k = 0; k < candidates && i < candidates; k++) {
            better += scores[k] > scores[i] || (scores[k] == scores[i] && k < i);
        }
        if (i >= candidates || better < wanted) {
            kept[used++] = i;
        }
    }
    assert_int_equal(used, keep);
}

static inline void fake_compact(sl_executor *e, const sl_step_span *span) {
    const int32_t keep = e->deployment->limits.keep;
    assert_int_equal(span->row_count, KEEP_WINDOW);
    for (int32_t g = 0; g < e->deployment->program->group_count; g++) {
        int32_t seen[CONTEXT], kept[CONTEXT];
        if (e->deployment->program->groups[g].window > 0) {
            continue;
        }
        const int32_t count = gather(e, g, span, span->length[g] + span->row_count - 1, seen);
        choose_kept(seen, count, keep, kept);
        for (int32_t i = 0; i < keep; i++) {
            const int32_t page = e->tables[g][SLOTS][i / SL_PAGE_TOKENS];
            assert_in_range(page, 0, e->deployment->caches[g].pages - 1);
            e->pages[g][page * SL_PAGE_TOKENS + i % SL_PAGE_TOKENS] = seen[kept[i]];
        }
    }
}

static inline int fake_submit(sl_executor *e, int32_t bucket, sl_error *error) {
    const sl_step_layout *layout = &e->deployment->step;
    const int32_t stage = e->next;
    sl_error check;
    e->block = e->blocks[stage];
    e->next = 1 - stage;
    assert_in_range(++e->in_flight, 1, 2);
    if (sl_step_check(layout, e->deployment->program, e->block, &check)) {
        fail_msg("step block: %s", check.message);
    }
    const sl_step_header *head = sl_step_head(e->block);
    assert_int_equal(bucket, head->compact);
    e->max_rows = (uint64_t)head->rows > e->max_rows ? (uint64_t)head->rows : e->max_rows;
    e->steps++;
    if (e->fail_in && --e->fail_in == 0) {
        return sl_fail(error, SL_ERR_INTERNAL, "this step fails");
    }
    apply_changes(e);
    int32_t sampled[CHUNK];
    for (int32_t i = 0; i < head->spans; i++) {
        run_span(e, &sl_step_spans(layout, e->block)[i], sl_step_rows(layout, e->block), sampled);
    }
    if (head->compact) {
        fake_compact(e, sl_step_spans(layout, e->block));
        e->compactions++;
    }
    for (int32_t i = 0; i < head->outputs; i++) {
        const sl_step_output *output = &sl_step_outputs(layout, e->block)[i];
        const sl_adjustment *adjustments = sl_step_adjustments(layout, e->block) + output->adjustment_first;
        assert_int_equal(output->sampler.counter, sl_step_rows(layout, e->block)[output->row].position);
        e->tokens[stage][i] =
            masked(adjusted(sampled[output->row], adjustments, output->adjustment_count),
                   sl_output_mask(head, sl_step_table_changes(layout, e->block), output, VOCABULARY));
        e->logits[stage][i][0] = (float)sampled[output->row];
        const int32_t broken = e->broken_at[output->slot];
        if (broken > 0 && sl_step_rows(layout, e->block)[output->row].position == broken) {
            e->tokens[stage][i] = e->none_left ? SL_NO_TOKEN_LEFT : SL_NO_TOKEN;
        }
        e->last_tokens[output->slot] = e->tokens[stage][i] < 0 ? 0 : e->tokens[stage][i];
    }
    return 0;
}

static inline int fake_wait(sl_executor *e, sl_error *error) {
    (void)error;
    e->in_flight--;
    return 0;
}

/* Of the step waited for last. */
static inline int32_t fake_stage(const sl_executor *e) {
    return (e->next + 2 - e->in_flight - 1 + 2) % 2;
}

static inline const float *fake_logits(sl_executor *e) {
    return e->logits[fake_stage(e)][0];
}

static inline const int32_t *fake_tokens(sl_executor *e) {
    return e->tokens[fake_stage(e)];
}

static const sl_backend_functions fake_functions = {.step_block = fake_block,
                                                    .submit = fake_submit,
                                                    .wait = fake_wait,
                                                    .logits = fake_logits,
                                                    .tokens = fake_tokens};

/* ---- a rig
 * ----------------------------------------------------------------------------------------------------------
 */

typedef struct rig {
    sl_backend backend;
    sl_program program;
    sl_plan plan;
    sl_lowered buckets[2]; /* the second compacts */
    int32_t budget;        /* tokens kept; 0: all */
    sl_executor *executor;
    sl_scheduler *scheduler;
    bool under_way; /* a step is submitted and not committed */
    uint64_t commits;
    int32_t drafts;      /* of works submitted */
    int32_t prompt_rows; /* in spans of several rows, of the step committed last */
    int32_t next_rows;   /* the same of the one under way */
    int status;          /* of its submission */
    sl_error error;
} rig;

typedef struct shape {
    int32_t pages;  /* of the full group; 0: there is none */
    int32_t window; /* of a second group; 0: there is none */
    int32_t window_pages;
    int32_t state_slots; /* 0: no recurrent layers */
    bool reuse;
    int32_t steps_in_flight;
    int32_t stages; /* above 1: who generates goes in halves */
} shape;

/* What a step takes, and a prompt's row more. */
static const double PLAIN_SECONDS = 0.4, ROW_SECONDS = 0.01;

static inline void rig_fill(rig *r, const shape *s, const sl_scheduler_options *options) {
    sl_program *p = &r->program;
    p->vocabulary = VOCABULARY;
    sl_deployment *d = &r->plan.deployment;
    if (s->pages) {
        d->caches[p->group_count].pages = s->pages;
        sl_program_group(p, &(sl_cache_group){"full", 1, 1, 32, 32, 0, false, false});
    }
    if (s->window) {
        d->caches[p->group_count].pages = s->window_pages;
        sl_program_group(p, &(sl_cache_group){"window", 1, 1, 32, 32, s->window, false, false});
    }
    if (s->state_slots) {
        sl_program_state(
            p, &(sl_state_layer){.channels = 4, .taps = 4, .heads = 1, .key_size = 4, .value_size = 4});
    }
    r->backend.functions = &fake_functions;
    r->backend.steps_in_flight = s->steps_in_flight;
    r->backend.stages = s->stages;
    r->plan.backend = &r->backend;
    d->program = p;
    d->result_width = VOCABULARY;
    r->plan.options.chunk = CHUNK;
    d->limits = (sl_limits){.rows = CHUNK,
                            .outputs = OUTPUTS,
                            .sequences = SLOTS,
                            .context = CONTEXT,
                            .adjustments = OUTPUTS * SL_ADJUSTMENTS,
                            .masks = OUTPUTS,
                            .mask_tokens = VOCABULARY,
                            .keep = r->budget,
                            .states = s->state_slots ? OUTPUTS : 0};
    r->plan.options.kv_budget = r->budget;
    r->plan.options.kv_window = KEEP_WINDOW;
    d->state_slots = s->state_slots;
    for (int b = 0; b < 2; b++) {
        sl_lowered *bucket = &r->buckets[b];
        bucket->compacts = b == 1;
        bucket->rows[SL_ROWS_STEP] = bucket->span_rows = b == 1 ? KEEP_WINDOW : CHUNK;
        bucket->rows[SL_ROWS_OUTPUT] = b == 1 ? 1 : OUTPUTS;
    }
    d->buckets = r->buckets;
    d->bucket_count = r->budget > 0 ? 2 : 1;
    sl_step_layout_init(&d->step, &d->limits, p->group_count);
    sl_executor *e = r->executor = calloc(1, sizeof *e);
    e->deployment = d;
    e->blocks[0] = calloc(1, d->step.bytes);
    e->blocks[1] = calloc(1, d->step.bytes);
    for (int32_t g = 0; g < p->group_count; g++) {
        e->pages[g] = calloc((size_t)d->caches[g].pages * SL_PAGE_TOKENS, sizeof(int32_t));
        memset(e->tables[g], 0xff, sizeof e->tables[g]);
    }
    e->states = calloc((size_t)s->state_slots + 1, sizeof *e->states);
    sl_error error;
    assert_int_equal(sl_scheduler_create(&r->plan, e, options, &r->scheduler, &error), 0);
    sl_scheduler_set_halving(r->scheduler, SL_HALVING_ALWAYS);
}

static inline rig *rig_create_with(const shape *s, const sl_scheduler_options *options) {
    rig *r = calloc(1, sizeof *r);
    rig_fill(r, s, options);
    return r;
}

static inline void rig_destroy(rig *r) {
    sl_scheduler_destroy(r->scheduler);
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        free(r->executor->pages[g]);
    }
    free(r->executor->states);
    free(r->executor->blocks[0]);
    free(r->executor->blocks[1]);
    free(r->executor);
    sl_program_free(&r->program);
    free(r);
}

/* Rows of prompts in the step that was built. */
static inline int32_t rig_prompt_rows(const rig *r) {
    void *block = fake_block(r->executor);
    int32_t all = 0;
    for (int32_t i = 0; i < sl_step_head(block)->spans; i++) {
        const int32_t rows = sl_step_spans(&r->plan.deployment.step, block)[i].row_count;
        all += rows > 1 ? rows : 0;
    }
    return all;
}

/* Submits a step, and one that follows it if there can be one; commits the first. */
static inline bool rig_step(rig *r) {
    int32_t bucket;
    r->prompt_rows = r->next_rows;
    if (!r->under_way) {
        if (sl_scheduler_build(r->scheduler, &bucket) == 0) {
            return false;
        }
        r->prompt_rows = rig_prompt_rows(r);
        sl_scheduler_fill_masks(r->scheduler);
        r->status = fake_submit(r->executor, bucket, &r->error);
    }
    int next_status = 0;
    sl_error next_error = {0};
    r->under_way = r->status == 0 && sl_scheduler_follow(r->scheduler, &bucket) > 0;
    if (r->under_way) {
        r->next_rows = rig_prompt_rows(r);
        next_status = fake_submit(r->executor, bucket, &next_error);
    }
    sl_error unused;
    fake_wait(r->executor, &unused);
    r->commits++;
    sl_scheduler_measured(r->scheduler, PLAIN_SECONDS + r->prompt_rows * ROW_SECONDS, false);
    sl_scheduler_commit(r->scheduler, r->status, &r->error);
    r->status = next_status;
    r->error = next_error;
    return true;
}

/* Until the sequence is in no step, as its owner must before changing it. */
static inline void rig_settle(rig *r, const sl_sequence *sequence) {
    while (sequence->in_step) {
        assert_true(r->under_way);
        rig_step(r);
    }
}

/* What the fake model says after tokens[0, count). */
static inline int32_t expected_token(const sl_program *p, const int32_t *tokens, int32_t count) {
    uint64_t state = 0;
    for (int32_t i = 0; i < count; i++) {
        state = next_state(state, tokens[i]);
    }
    uint64_t all = p->state_count ? state : 0;
    for (int32_t g = 0; g < p->group_count; g++) {
        all = all * 31 + (uint64_t)next_token(tokens, count, p->groups[g].window);
    }
    return (int32_t)(all % VOCABULARY);
}

/* What the model says next where nothing is adjusted, but for some tokens; sometimes nothing. */
static inline int32_t rig_draft(void *context, const sl_draft_query *query, int32_t *drafts) {
    rig *r = context;
    int32_t all[CONTEXT + SL_DRAFTS];
    memcpy(all, query->tokens, (size_t)query->count * sizeof *all);
    for (int32_t i = 0; i < query->most; i++) {
        const int32_t count = query->count + i;
        const uint64_t choice = sl_hash64(all, (size_t)count * sizeof *all, 13);
        if (choice % 16 == 0) {
            return i;
        }
        all[count] = drafts[i] =
            choice % 16 < 3 ? (int32_t)(choice / 16 % VOCABULARY) : expected_token(&r->program, all, count);
    }
    return query->most;
}

/* Steps carry so many drafts for works submitted, and prompts leave so many tokens at most. */
static inline rig *rig_create_keeping(const shape *s, int32_t drafts, int32_t budget) {
    rig *r = calloc(1, sizeof *r);
    r->budget = budget;
    const sl_scheduler_options options = {
        .reuse = s->reuse, .drafts = drafts, .always = true, .source = {drafts ? rig_draft : NULL, r}};
    r->drafts = drafts;
    rig_fill(r, s, &options);
    return r;
}

static inline rig *rig_create_drafting(const shape *s, int32_t drafts) {
    return rig_create_keeping(s, drafts, 0);
}

static inline rig *rig_create(const shape *s) {
    return rig_create_drafting(s, 0);
}

/* What a work changes: nothing; what depends on its number of tokens alone; that and what depends on them. */
typedef enum adjust_kind { UNADJUSTED, BIASED, PENALISED } adjust_kind;
static const int32_t biased[] = {5, 120}; /* those of some prompts */
enum { BIASED_TOKENS = 2, END = 120, MINIMUM = 6 };
static const float repetition = 1.5f, presence = 0.25f, frequency = 0.5f, bias = -1.5f;

static inline sl_adjust *make_adjust(adjust_kind kind, int32_t prompt) {
    sl_adjust *adjust;
    sl_error error;
    const bool penalised = kind == PENALISED;
    const sl_adjust_options options = {.repetition = penalised ? repetition : 1,
                                       .presence = penalised ? presence : 0,
                                       .frequency = penalised ? frequency : 0,
                                       .window = WINDOW,
                                       .prompt = prompt,
                                       .minimum = MINIMUM,
                                       .context = CONTEXT,
                                       .vocabulary = VOCABULARY,
                                       .constants = BIASED_TOKENS + 1};
    assert_int_equal(sl_adjust_create(&options, &adjust, &error), 0);
    for (int i = 0; i < BIASED_TOKENS; i++) {
        assert_int_equal(sl_adjust_bias(adjust, biased[i], bias, &error), 0);
    }
    assert_int_equal(sl_adjust_end(adjust, END, &error), 0);
    return adjust;
}

/* The same, of the token behind tokens[count], as one would say it. Returns how many. */
static inline int32_t list_adjustments(adjust_kind kind, const int32_t *tokens, int32_t count, int32_t prompt,
                                       sl_adjustment list[VOCABULARY]) {
    int32_t listed = 0;
    for (int32_t token = 0; token < VOCABULARY && kind != UNADJUSTED; token++) {
        sl_adjustment a = {.token = token, .repetition = 1};
        int32_t generated = 0;
        for (int32_t i = count > WINDOW ? count - WINDOW : 0; i < count && kind == PENALISED; i++) {
            a.repetition = tokens[i] == token ? repetition : a.repetition;
            generated += tokens[i] == token && i >= prompt;
        }
        for (int i = 0; i < BIASED_TOKENS; i++) {
            a.before = biased[i] == token ? bias : a.before;
        }
        a.before = token == END && count - prompt < MINIMUM ? -INFINITY : a.before;
        a.after = generated ? -(presence + frequency * (float)generated) : 0;
        if (a.before != 0 || a.repetition != 1 || a.after != 0) {
            list[listed++] = a;
        }
    }
    return listed;
}

/* A work, and the timeline that it must produce. */
typedef struct job {
    sl_work work;
    const sl_program *program;
    int32_t model[CONTEXT + 64]; /* the tokens that the sequence should have */
    int32_t count;
    bool done;
    sl_finish finish;
    sl_error error; /* that it ended with */
    int32_t logits_next, logits_seen;
    bool may_end;        /* at some tokens, as at the end of a text */
    int32_t ends_at;     /* `count` after a token that is the end of a text; 0: none is */
    adjust_kind adjusts; /* works submitted from now on */
    int32_t prompt;      /* `count` when the first token was sampled */
    bool keeps_logits;   /* stays blocked when it was given some */
    int32_t priority;    /* and what else works submitted from now on have */
    uint64_t group, salt;
    bool no_reuse;
    bool released; /* the sequence lives until the work has ended */
    rig *rig;
    int32_t compacted[CONTEXT / KEEP_WINDOW]; /* behind so many tokens it was, or is to be */
    int32_t compactions;
    sl_sequence *ghost; /* or until the step after so many commits has */
    uint64_t ghost_until;
} job;

/* What the fake model says after so many of a job's tokens, of which it has seen all or what was kept. */
static inline int32_t expected_of(const job *j, int32_t count) {
    int32_t seen[CONTEXT], kept[CONTEXT], held = 0, next = 0;
    uint64_t state = 0, all;
    for (int32_t i = 0; i < count; i++) {
        if (next < j->compactions && j->compacted[next] == i) {
            choose_kept(seen, held, j->rig->budget, kept);
            for (held = 0; held < j->rig->budget; held++) {
                seen[held] = seen[kept[held]];
            }
            next++;
        }
        seen[held++] = j->model[i];
        state = next_state(state, j->model[i]);
    }
    all = j->program->state_count ? state : 0;
    for (int32_t g = 0; g < j->program->group_count; g++) {
        const int32_t window = j->program->groups[g].window;
        all = all * 31 + (uint64_t)(window ? next_token(j->model, count, window) : next_token(seen, held, 0));
    }
    return (int32_t)(all % VOCABULARY);
}

/* The sequence has lost its tokens behind `length`. */
static inline void job_cut(job *j, int32_t length) {
    j->count = length;
    while (j->compactions > 0 && j->compacted[j->compactions - 1] > length) {
        j->compactions--;
    }
}

/* By the rule: the prompt brings its own window, and leaves more than the budget. */
static inline void job_compact(job *j, int32_t count, sl_logits_wanted logits) {
    const int32_t before = j->compactions > 0 ? j->compacted[j->compactions - 1] : 0, budget = j->rig->budget;
    const int32_t held = before > 0 ? budget + j->count - before : j->count;
    if (logits == SL_LOGITS_ALL) {
        const int32_t first = count > 0 ? j->count - count : j->count - 1, all = j->count;
        job_cut(j, first);
        j->count = all;
    } else if (budget > 0 && count >= KEEP_WINDOW && held > budget) {
        j->compacted[j->compactions++] = j->count;
    }
}

static inline void job_lose(job *j, sl_sequence *sequence) {
    j->ghost = sequence->in_step ? sequence : NULL;
    j->ghost_until = j->rig->commits;
    j->work.sequence = NULL;
}

static inline sl_finish job_token(sl_work *work, int32_t token) {
    job *j = (job *)work;
    sl_adjustment list[VOCABULARY];
    const adjust_kind kind = !work->adjust                          ? UNADJUSTED
                             : sl_adjust_reads_tokens(work->adjust) ? PENALISED
                                                                    : BIASED;
    const int32_t listed = list_adjustments(kind, j->model, j->count, j->prompt, list);
    assert_false(j->done);
    assert_int_equal(token, adjusted(expected_of(j, j->count), list, listed));
    j->model[j->count++] = token;
    return (j->may_end && token % 16 == 0) || j->count == j->ends_at ? SL_FINISH_EOS : SL_FINISH_LENGTH;
}

static inline void job_logits(sl_work *work, const float *logits, int32_t rows, int32_t first) {
    job *j = (job *)work;
    if (work->logits == SL_LOGITS_ALL) {
        assert_int_equal(first, j->logits_next);
    }
    for (int32_t i = 0; i < rows; i++) {
        assert_int_equal((int32_t)logits[(size_t)i * VOCABULARY], expected_of(j, first + i + 1));
    }
    j->logits_next = first + rows;
    j->logits_seen += rows;
    assert_true(work->blocked && !j->done);
    work->blocked = j->keeps_logits;
}

static inline void job_done(sl_work *work, sl_finish finish, const sl_error *error) {
    job *j = (job *)work;
    j->error = error ? *error : (sl_error){0};
    assert_false(j->done);
    sl_adjust_destroy(work->adjust);
    work->adjust = NULL;
    j->done = true;
    j->finish = finish;
    if (j->released) {
        job_lose(j, work->sequence);
    }
}

/* Its owner forgets it, at any time. */
static inline void job_release(rig *r, job *j) {
    sl_sequence *sequence = j->work.sequence;
    if (j->done) {
        job_lose(j, sequence);
    }
    j->released = true;
    sl_sequence_release(r->scheduler, sequence);
}

static inline int job_submit(rig *r, job *j, const int32_t *tokens, int32_t count, int32_t generate,
                             sl_logits_wanted logits) {
    sl_sequence *sequence = j->work.sequence;
    j->work = (sl_work){.sequence = sequence,
                        .generate = generate,
                        .adjust = j->adjusts ? make_adjust(j->adjusts, j->count + count) : NULL,
                        .logits = logits,
                        .logits_from = j->count,
                        .priority = j->priority,
                        .group = j->group,
                        .cache_salt = j->salt,
                        .no_reuse = j->no_reuse,
                        .drafts = r->drafts,
                        .on_token = job_token,
                        .on_logits = job_logits,
                        .on_done = job_done};
    j->program = &r->program;
    j->rig = r;
    j->done = false;
    j->logits_seen = 0;
    j->logits_next = count ? j->count : j->count - 1;
    sl_error error;
    int result = sl_scheduler_submit(r->scheduler, &j->work, tokens, (size_t)count, &error);
    if (result) {
        sl_adjust_destroy(j->work.adjust);
        j->work.adjust = NULL;
    } else {
        memcpy(j->model + j->count, tokens, (size_t)count * sizeof *tokens);
        j->prompt = j->count += count;
        job_compact(j, count, logits);
    }
    return result;
}

static inline void job_check(const job *j) {
    assert_int_equal(j->work.sequence->count, j->count);
    assert_memory_equal(j->work.sequence->tokens, j->model, (size_t)j->count * sizeof *j->model);
}

static inline void count_items(unsigned char *held, const int32_t *items, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        held[items[i] < 0 ? 0 : items[i] + 1] = 1;
    }
}

static inline int32_t sum(const unsigned char *held, int32_t count) {
    int32_t all = 0;
    for (int32_t i = 0; i < count; i++) {
        all += held[i + 1];
    }
    return all;
}

/* Every page and state slot is held by a timeline of these jobs, or could be taken. */
static inline void books_balance(const rig *r, const job *jobs, int count) {
    enum { MOST = 128 };
    const sl_cache *cache = sl_scheduler_cache(r->scheduler);
    for (int32_t g = 0; g <= r->program.group_count; g++) {
        const bool states = g == r->program.group_count;
        const int32_t items = states ? r->plan.deployment.state_slots : r->plan.deployment.caches[g].pages;
        unsigned char held[MOST + 1] = {0};
        assert_in_range(items, 0, MOST);
        for (int k = 0; k < count; k++) {
            const bool ghost = jobs[k].ghost && jobs[k].ghost_until == r->commits;
            const sl_sequence *sequence = ghost ? jobs[k].ghost : jobs[k].work.sequence;
            const sl_timeline *t = sequence ? &sequence->timeline : NULL;
            if (t && states) {
                count_items(held, (int32_t[]){t->state, t->previous_state}, 2);
                count_items(held, t->write_states, t->write_count);
                assert_int_equal(t->row_count, 0);
                assert_true(t->write_count == 0 || sequence->in_step);
            } else if (t) {
                count_items(held, t->pages[g], t->page_count[g]);
                count_items(held, &t->copied_from[g], 1);
                count_items(held, t->targets[g], t->target_count[g]);
                assert_true(t->target_count[g] == 0 || sequence->in_step);
            }
        }
        const int32_t available =
            states ? sl_cache_available_states(cache) : sl_cache_available_pages(cache, g);
        assert_int_equal(sum(held, items) + available, items);
    }
}

#endif

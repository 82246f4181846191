#include "sched/scheduler.h"

#include "base/alloc.h"
#include "program/adjustment.h"
#include "program/random.h"
#include "sched/internal.h"

#include <string.h>

/* False when memory ran out. */
static bool create_budget(sl_scheduler *s) {
    const sl_deployment *deployment = &s->plan->deployment;
    sl_budget_bucket *buckets = sl_alloc_zero((size_t)deployment->bucket_count + 1, sizeof *buckets);
    if (!buckets) {
        return false;
    }
    for (int32_t b = deployment->draft_buckets; b < deployment->bucket_count; b++) { /* others have no room */
        buckets[b].rows = deployment->buckets[b].rows[SL_ROWS_STEP];
        buckets[b].outputs =
            deployment->buckets[b].compacts ? 0 : deployment->buckets[b].rows[SL_ROWS_OUTPUT];
    }
    s->budget = (sl_budget){.by_bucket = s->plan->backend->fixed_buckets,
                            .bucket_count = deployment->bucket_count,
                            .buckets = buckets};
    return true;
}

int sl_scheduler_create(const sl_plan *plan, sl_executor *executor, const sl_scheduler_options *options,
                        sl_scheduler **out, sl_error *error) {
    *out = NULL;
    sl_scheduler *s = sl_alloc_zero(1, sizeof *s);
    if (!s) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the scheduler");
    }
    s->plan = plan;
    s->program = plan->deployment.program;
    s->limits = &plan->deployment.limits;
    s->executor = executor;
    s->options = *options;
    s->builds = 1;
    s->slots = sl_alloc_zero((size_t)s->limits->sequences, sizeof(sl_sequence *));
    s->order = sl_alloc_zero((size_t)s->limits->sequences, sizeof(sl_work *));
    bool complete = s->slots && s->order && create_budget(s);
    for (int i = 0; i < SL_STEPS; i++) {
        s->steps[i].parts = sl_alloc_zero((size_t)s->limits->sequences, sizeof(sl_part));
        complete &= s->steps[i].parts != NULL;
    }
    int result = complete ? sl_cache_create(&plan->deployment, options->reuse, &s->cache, error)
                          : sl_fail(error, SL_ERR_NOMEM, "out of memory for the scheduler");
    if (result) {
        sl_scheduler_destroy(s);
        return result;
    }
    *out = s;
    return 0;
}

void sl_scheduler_destroy(sl_scheduler *s) {
    if (!s) {
        return;
    }
    while (s->oldest_sequence) {
        sl_sequence_destroy(s, s->oldest_sequence);
    }
    while (s->groups) {
        sl_group *group = s->groups;
        s->groups = group->next;
        sl_free(group);
    }
    sl_cache_destroy(s->cache);
    sl_free(s->slots);
    sl_free(s->order);
    sl_free(s->budget.buckets);
    sl_pool_destroy(s->mask_pool);
    for (int i = 0; i < SL_STEPS; i++) {
        sl_free(s->steps[i].parts);
    }
    sl_free(s);
}

const sl_scheduler_counters *sl_scheduler_counts(const sl_scheduler *s) {
    return &s->counters;
}

void sl_scheduler_set_halving(sl_scheduler *s, sl_halving halving) {
    s->halving = halving;
}

bool sl_scheduler_has_work(const sl_scheduler *s) {
    return s->first != NULL;
}

sl_cache *sl_scheduler_cache(const sl_scheduler *s) {
    return s->cache;
}

void sl_scheduler_get_load(const sl_scheduler *s, sl_scheduler_load *load) {
    *load = (sl_scheduler_load){.running = s->running, .waiting = s->waiting};
    int32_t group = 0;
    while (group < s->program->group_count && s->program->groups[group].window > 0) {
        group++;
    }
    group = group < s->program->group_count ? group : 0;
    if (s->program->group_count == 0) {
        return;
    }
    const int32_t all = sl_cache_all_pages(s->cache, group);
    const int32_t used = all - sl_cache_free_pages(s->cache, group);
    int32_t worked = 0;
    sl_cache_clear_marks(s->cache);
    for (const sl_sequence *q = s->oldest_sequence; q; q = q->newer) {
        worked += q->work || q->in_step ? sl_cache_mark(s->cache, &q->timeline, group) : 0;
    }
    load->cache_tokens = (uint64_t)all * SL_PAGE_TOKENS;
    load->used_tokens = (uint64_t)used * SL_PAGE_TOKENS;
    load->kept_tokens = (uint64_t)(used - worked) * SL_PAGE_TOKENS;
}

/* ---- sequences
 * ------------------------------------------------------------------------------------------------------ */

int sl_sequence_create(sl_scheduler *s, sl_sequence **out, sl_error *error) {
    *out = NULL;
    sl_sequence *sequence = sl_alloc_zero(1, sizeof *sequence);
    int32_t *tokens = sl_alloc((size_t)s->limits->context * sizeof *tokens);
    if (!sequence || !tokens || !sl_compact_create(s, sequence)) {
        sl_free(sequence);
        sl_free(tokens);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a sequence of %d tokens", s->limits->context);
    }
    sequence->tokens = tokens;
    sequence->slot = SL_NONE;
    int result = sl_timeline_init(s->cache, &sequence->timeline, error);
    if (result) {
        sl_free(sequence->compactions);
        sl_free(tokens);
        sl_free(sequence);
        return result;
    }
    sequence->luck = sl_luck_begin(&s->pace);
    sequence->older = s->newest_sequence;
    *(s->newest_sequence ? &s->newest_sequence->newer : &s->oldest_sequence) = sequence;
    s->newest_sequence = sequence;
    *out = sequence;
    return 0;
}

void sl_release_slot(sl_scheduler *s, sl_sequence *sequence) {
    if (sequence->slot != SL_NONE) {
        s->slots[sequence->slot] = NULL;
        sequence->slot = SL_NONE;
    }
}

void sl_sequence_destroy(sl_scheduler *s, sl_sequence *sequence) {
    sl_release_slot(s, sequence);
    sl_timeline_free(s->cache, &sequence->timeline);
    *(sequence->older ? &sequence->older->newer : &s->oldest_sequence) = sequence->newer;
    *(sequence->newer ? &sequence->newer->older : &s->newest_sequence) = sequence->older;
    sl_free(sequence->compactions);
    sl_free(sequence->tokens);
    sl_free(sequence);
}

/* Frees it if its owner is gone and nothing uses it. */
static void free_released(sl_scheduler *s, sl_sequence *sequence) {
    if (sequence->released && !sequence->work && !sequence->in_step) {
        sl_sequence_destroy(s, sequence);
    }
}

void sl_scheduler_let_go(sl_scheduler *s, sl_sequence *sequence) {
    sequence->in_step--;
    free_released(s, sequence);
}

void sl_sequence_release(sl_scheduler *s, sl_sequence *sequence) {
    sequence->released = true;
    if (sequence->work) {
        sequence->work->cancelled = true;
    }
    free_released(s, sequence);
}

int sl_sequence_fork(sl_scheduler *s, const sl_sequence *sequence, sl_sequence **fork, sl_error *error) {
    int result = sl_sequence_create(s, fork, error);
    if (result == 0) {
        memcpy((*fork)->tokens, sequence->tokens, (size_t)sequence->count * sizeof *sequence->tokens);
        (*fork)->count = sequence->count;
        (*fork)->salted = sequence->salted;
        sl_compact_fork(sequence, *fork);
        sl_timeline_fork(s->cache, &sequence->timeline, &(*fork)->timeline);
    }
    return result;
}

void sl_sequence_rollback(sl_scheduler *s, sl_sequence *sequence, int32_t length) {
    if (length < sequence->count) {
        sequence->count = length;
        sl_compact_forget(sequence, length);
        sl_timeline_truncate(s->cache, &sequence->timeline, length);
    }
}

/* ---- works
 * ----------------------------------------------------------------------------------------------------------
 */

/* Works in no step yet, beyond those for which others left a slot. */
static int32_t count_queued(const sl_scheduler *s) {
    const int32_t slots = s->limits->sequences - s->running;
    return s->waiting - (slots > 0 ? slots : 0);
}

static int check_work(const sl_scheduler *s, const sl_work *work, const int32_t *tokens, size_t count,
                      sl_error *error) {
    const sl_sequence *sequence = work->sequence;
    if (sequence->work) {
        return sl_fail(error, SL_ERR_BUSY, "the sequence has an unfinished request");
    }
    if (count > (size_t)(s->limits->context - sequence->count)) {
        return sl_fail(error, SL_ERR_LIMIT, "context: %d tokens and %zu more do not fit the limit of %d",
                       sequence->count, count, s->limits->context);
    }
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= s->program->vocabulary) {
            return sl_fail(error, SL_ERR_INVALID, "token %zu: id %d is not in the vocabulary of %d", i,
                           tokens[i], s->program->vocabulary);
        }
    }
    if (sequence->count == 0 && count == 0) {
        return sl_fail(error, SL_ERR_INVALID,
                       "tokens: an empty sequence needs at least one token to go on from");
    }
    const int32_t queued = count_queued(s);
    if (s->options.queue > 0 && queued >= s->options.queue) {
        return sl_fail(error, SL_ERR_BUSY, "queue: %d requests wait already, the limit is %d", queued,
                       s->options.queue);
    }
    return 0;
}

int sl_scheduler_submit(sl_scheduler *s, sl_work *work, const int32_t *tokens, size_t count,
                        sl_error *error) {
    sl_sequence *sequence = work->sequence;
    int result = check_work(s, work, tokens, count, error);
    if (result) {
        return result;
    }
    result = sl_mask_prepare(s, work, error);
    if (result) {
        return result;
    }
    if (!sl_join_group(s, work)) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a group of requests");
    }
    if (!sequence->salted) {
        sequence->salted = true;
        sequence->timeline.salt = work->cache_salt;
    }
    sequence->timeline.unshared |= work->no_reuse;
    if (count) {
        memcpy(sequence->tokens + sequence->count, tokens, count * sizeof *tokens);
        sequence->count += (int32_t)count;
    } else if (sequence->timeline.cached == sequence->count &&
               (work->generate > 0 || work->logits != SL_LOGITS_NONE)) {
        /* The next token follows from the last one, whose hidden state is gone: run it once more. */
        sl_timeline_truncate(s->cache, &sequence->timeline, sequence->count - 1);
    }
    if (work->logits_from > sequence->count - 1) {
        work->logits_from =
            sequence->count - 1; /* what is generated follows from the last token in any case */
    }
    sl_compact_submit(s, work, count);
    if (work->logits == SL_LOGITS_ALL && work->logits_from < sequence->timeline.cached) {
        sl_timeline_truncate(s->cache, &sequence->timeline, work->logits_from);
    }
    sl_await_loading(s, work);
    work->prompt_end = sequence->count;
    work->read = sequence->count - (int32_t)count;
    work->arrival = ++s->arrivals;
    s->waiting++;
    sequence->work = work;
    work->previous = s->last;
    work->next = NULL;
    *(s->last ? &s->last->next : &s->first) = work;
    s->last = work;
    return 0;
}

static void unlink_work(sl_scheduler *s, sl_work *work) {
    *(work->previous ? &work->previous->next : &s->first) = work->next;
    *(work->next ? &work->next->previous : &s->last) = work->previous;
    work->sequence->work = NULL;
    *(work->started ? &s->running : &s->waiting) -= 1;
    sl_share_end(s, work);
    sl_leave_group(s, work);
}

void sl_scheduler_withdraw(sl_scheduler *s, sl_work *work, int32_t count) {
    unlink_work(s, work);
    sl_sequence_rollback(s, work->sequence, count);
    if (count == 0) {
        work->sequence->salted = work->sequence->timeline.unshared = false;
    }
}

void sl_finish_work(sl_scheduler *s, sl_work *work, sl_finish reason, const sl_error *error) {
    for (int32_t i = 0; i < s->in_flight; i++) {
        sl_step *t = sl_flying(s, i);
        for (int32_t p = 0; p < sl_step_head(t->block)->spans; p++) {
            t->parts[p].work = t->parts[p].work == work ? NULL : t->parts[p].work;
        }
    }
    sl_sequence *sequence = work->sequence;
    sl_timeline_truncate(s->cache, &sequence->timeline, sequence->count); /* it may end inside its drafts */
    sl_timeline_keep(s->cache, &sequence->timeline, sequence->tokens, SL_KEEP_END);
    unlink_work(s, work);
    work->on_done(work, reason, error);
    free_released(s, sequence);
}

void sl_scheduler_fail_all(sl_scheduler *s, const sl_error *error) {
    for (sl_sequence *q = s->oldest_sequence, *newer; q; q = newer) {
        newer = q->newer;
        q->in_step = 0;
        free_released(s, q);
    }
    s->in_flight = 0;
    while (s->first) {
        sl_finish_work(s, s->first, SL_FINISH_ERROR, error);
    }
}

/* ---- after a step
 * --------------------------------------------------------------------------------------------------- */

/* What a step gave; logits NULL: nobody wants them. */
typedef struct step_results {
    void *block;
    const float *logits;
    const int32_t *tokens;
} step_results;

/* Outputs of a part that are not behind a draft. */
static int32_t sure_outputs(const sl_part *part) {
    return part->outputs - part->drafts;
}

/* Ends a work whose mask could not be made, or when a row's logits were not finite, which backends tell by
 * SL_NO_TOKEN: nothing can be said of what follows, and nobody is to go on from the end of its cache. Where a
 * grammar's text may end it does so when no token is left (bias and `minimum` can forbid those that would end
 * it). Looks at outputs [first, end) of the part. False: all is well. */
static bool refuse_rows(sl_scheduler *s, const sl_part *part, int32_t first, int32_t end,
                        const int32_t *tokens) {
    sl_timeline *t = &part->sequence->timeline;
    if (part->masked && part->mask_error.code) {
        sl_finish_work(s, part->work, SL_FINISH_ERROR, &part->mask_error);
        return true;
    }
    for (int32_t i = first; tokens && i < end; i++) {
        const int32_t token = tokens[part->first_output + i];
        if (token < 0) {
            sl_error error;
            const bool bounded = part->masked && i >= sure_outputs(part) - 1 && token == SL_NO_TOKEN_LEFT;
            if (bounded && sl_matcher_can_end(part->work->matcher)) {
                sl_finish_work(s, part->work, SL_FINISH_EOS, NULL);
                return true;
            }
            const int32_t position = part->end - part->outputs + i;
            if (bounded) {
                sl_fail(&error, SL_ERR_INVALID,
                        "position %d: all tokens that the grammar lets follow are forbidden", position);
            } else {
                sl_fail(&error, SL_ERR_INTERNAL, "position %d: logits are not finite", position);
            }
            t->unshared |= !bounded;
            sl_finish_work(s, part->work, SL_FINISH_ERROR, &error);
            return true;
        }
    }
    return false;
}

/* What mirostat makes of the part's last output. Nothing follows its step before that is known, as its work
 * wants logits. */
static int32_t draw_token(const sl_scheduler *s, const sl_part *part, const step_results *results) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    void *block = results->block;
    const int32_t index = part->first_output + part->outputs - 1;
    const sl_step_output *output = &sl_step_outputs(layout, block)[index];
    const sl_mirostat_row row = {
        .logits = results->logits + (size_t)index * (size_t)s->program->vocabulary,
        .adjustments = sl_step_adjustments(layout, block) + output->adjustment_first,
        .adjustment_count = output->adjustment_count,
        .mask = sl_output_mask(sl_step_head(block), sl_step_table_changes(layout, block), output,
                               s->program->vocabulary),
    };
    return sl_mirostat_sample(part->work->mirostat, &row,
                              (double)sl_random_uniform(&output->sampler, SL_RANDOM_DRAW));
}

/* False: the work ended with an error. */
static bool follow_grammar(sl_scheduler *s, sl_work *work, int32_t token) {
    sl_error error;
    const int result = sl_matcher_accept(work->matcher, token, &error);
    if (result == 0) {
        sl_fail(&error, SL_ERR_INTERNAL, "grammar: token %d was sampled, which cannot follow", token);
    }
    if (result <= 0) {
        sl_finish_work(s, work, SL_FINISH_ERROR, &error);
    }
    return result > 0;
}

/* The next token of a work's text; false: the work has ended. */
static bool append_token(sl_scheduler *s, sl_work *work, int32_t token) {
    sl_sequence *sequence = work->sequence;
    if (sequence->count == s->limits->context) {
        sl_finish_work(s, work, SL_FINISH_CONTEXT, NULL);
        return false;
    }
    if (work->matcher && !follow_grammar(s, work, token)) {
        return false;
    }
    sequence->tokens[sequence->count++] = token;
    work->generate--;
    sl_luck_pass(&sequence->luck);
    s->counters.generated_tokens++;
    sl_finish reason = work->on_token(work, token);
    if (reason == SL_FINISH_LENGTH && work->matcher && sl_matcher_has_ended(work->matcher)) {
        reason = SL_FINISH_EOS;
    }
    if (reason != SL_FINISH_LENGTH || work->generate == 0) {
        sl_finish_work(s, work, reason, NULL);
        return false;
    }
    if (work->forced) {
        sl_forced_take(work->forced, token, work->matcher);
    }
    return true;
}

/* Logits of outputs [first, end) of the part, for who wants them. */
static void give_logits(const sl_scheduler *s, const sl_part *part, int32_t first, int32_t end,
                        const step_results *results) {
    sl_work *work = part->work;
    if (end > first && work->logits != SL_LOGITS_NONE) {
        const int32_t position = part->end - part->outputs + first;
        work->blocked = true;
        work->logits_from = position + end - first; /* a preempted work does not deliver them again */
        work->on_logits(work,
                        results->logits +
                            (size_t)(part->first_output + first) * (size_t)s->plan->deployment.result_width,
                        end - first, position);
    }
}

/* Tokens of a part's outputs, as far as its drafts are right: `agreed` of them are what was sampled. What is
 * forced may be another token. False: the work has ended. */
static bool append_tokens(sl_scheduler *s, const sl_part *part, int32_t agreed, const step_results *results) {
    sl_work *work = part->work;
    sl_sequence *sequence = part->sequence;
    for (int32_t i = 0;; i++) {
        const int32_t index = sure_outputs(part) - 1 + i;
        const int32_t forced = sl_forced_next(work->forced);
        const int32_t sampled =
            work->mirostat ? draw_token(s, part, results) : results->tokens[part->first_output + index];
        const int32_t token = forced == SL_NONE ? sampled : forced;
        const bool right = i < agreed && token == sequence->tokens[sequence->count];
        s->counters.accepted[i < SL_DRAFTS ? i : 0] += right;
        work->accepted += right;
        if (!append_token(s, work, token)) {
            return false;
        }
        if (!right || work->blocked) {
            return true;
        }
        if (refuse_rows(s, part, index + 1, index + 2, results->tokens)) {
            return false;
        }
        give_logits(s, part, index + 1, index + 2, results);
    }
}

/* Outputs of one sequence, in order: logits first, then the sampled tokens. */
static void deliver(sl_scheduler *s, const sl_part *part, int32_t agreed, const step_results *results) {
    sl_work *work = part->work;
    sl_sequence *sequence = part->sequence;
    if (refuse_rows(s, part, 0, sure_outputs(part), results->tokens)) {
        return;
    }
    const bool last = sequence->count == part->end - part->drafts;
    give_logits(s, part, 0, sure_outputs(part), results);
    if (!last) {
        return;
    }
    if (work->generate == 0) {
        sl_finish_work(s, work, SL_FINISH_LENGTH, NULL);
        return;
    }
    const int32_t before = sequence->count, accepted = work->accepted;
    if (!append_tokens(s, part, agreed, results)) {
        return;
    }
    if (part->drafts > 0) {
        sl_pace_note(&s->pace, &sequence->luck, part->drafts, work->accepted - accepted);
        if (work->accepted - accepted < part->drafts) {
            sl_adjust_rewind(work->adjust, sequence->tokens, before);
        }
        /* The last token is in no step yet, though it may be a draft that was right. */
        sl_timeline_truncate(s->cache, &sequence->timeline, sequence->count - 1);
    }
    /* The others that are forced have no logits of their own yet. */
    int32_t forced;
    while (work->logits == SL_LOGITS_NONE && (forced = sl_forced_next(work->forced)) != SL_NONE &&
           append_token(s, work, forced)) {
    }
}

/* Drafts of the part that are what was sampled in front of them. */
static int32_t count_agreed(const sl_part *part, const int32_t *tokens) {
    if (part->drafts == 0) { /* nothing is sampled where vectors are made */
        return 0;
    }
    const int32_t *drafts = part->sequence->tokens + part->sequence->count;
    const int32_t *sampled = tokens + part->first_output + sure_outputs(part) - 1;
    int32_t agreed = 0;
    while (agreed < part->drafts && drafts[agreed] == sampled[agreed]) {
        agreed++;
    }
    return agreed;
}

void sl_advance_part(sl_scheduler *s, sl_part *part, int32_t agreed) {
    sl_timeline_advance_by(s->cache, &part->sequence->timeline, part->sequence->tokens, part->rows,
                           part->rows - part->drafts + agreed);
    part->advanced = true;
    sl_share_keep(s, part->work);
    if (part->compacts) {
        sl_timeline_compact(s->cache, &part->sequence->timeline);
    }
}

/* Tokens of its prompt that are in the cache now, however they came there. */
static void count_read(sl_scheduler *s, sl_work *work) {
    const int32_t cached = work->sequence->timeline.cached;
    const int32_t read = cached < work->prompt_end ? cached : work->prompt_end;
    if (read > work->read) {
        s->counters.prompt_tokens += (uint64_t)(read - work->read);
        work->read = read;
    }
}

void sl_scheduler_measured(sl_scheduler *s, double seconds, bool over) {
    const sl_step *done = sl_flying(s, 0);
    const sl_step_header *head = sl_step_head(done->block);
    int32_t rows = 0;
    bool generates = head->outputs == head->spans;
    for (int32_t i = 0; i < head->spans; i++) {
        const sl_part *part = &done->parts[i];
        rows += part->rows > 1 && !part->generates ? part->rows : 0;
        generates &= part->generates && part->outputs == 1;
    }
    /* A half that has nothing beside it is as slow as a whole step. */
    const sl_halves_step way = {done->works, generates && done->half == done->overlaps ? head->spans : 0,
                                done->half};
    if (s->plan->backend->stages > 1) {
        sl_halves_measured(&s->halves, way, seconds);
    }
    if (done->overlaps) {
        return;
    }
    sl_budget_measured(&s->budget, (sl_budget_step){done->bucket, rows, head->rows - rows, over}, seconds);
    if (rows == 0) {
        sl_pace_measured(&s->pace, head->rows, seconds);
    }
}

void sl_scheduler_commit(sl_scheduler *s, int status, const sl_error *error) {
    const sl_step *done = sl_flying(s, 0);
    const sl_step_header head = *sl_step_head(done->block);
    s->in_flight--;
    const step_results results = {
        .block = done->block,
        .logits = status == 0 && head.want_logits ? sl_backend_of(s)->logits(s->executor) : NULL,
        .tokens = status == 0 ? sl_backend_of(s)->tokens(s->executor) : NULL,
    };
    for (int32_t i = 0; i < head.spans; i++) {
        sl_part *part = &done->parts[i];
        sl_sequence *sequence = part->sequence;
        sequence->in_step--;
        if ((status || !part->work) && !part->advanced) {
            sl_timeline_revert(s->cache, &sequence->timeline);
        }
        if (!part->work) {
            free_released(s, sequence);
            continue;
        }
        if (status) {
            sl_finish_work(s, part->work, SL_FINISH_ERROR, error);
            continue;
        }
        const int32_t agreed = count_agreed(part, results.tokens);
        if (!part->advanced) {
            sl_advance_part(s, part, agreed);
        }
        for (int32_t k = 0; k < part->drafts; k++) {
            s->counters.drafted[k]++;
        }
        part->work->drafted += part->drafts;
        count_read(s, part->work);
        deliver(s, part, agreed, &results);
    }
    if (status == 0) {
        s->counters.steps++;
        s->counters.rows += (uint64_t)head.rows;
        s->counters.outputs += (uint64_t)head.outputs;
    }
}

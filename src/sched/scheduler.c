#include "sched/scheduler.h"

#include "base/alloc.h"
#include "sched/internal.h"

#include <string.h>

/* False when memory ran out. */
static bool create_budget(sl_scheduler *s) {
    const sl_deployment *deployment = &s->plan->deployment;
    sl_budget_bucket *buckets = sl_alloc_zero((size_t)deployment->bucket_count + 1, sizeof *buckets);
    if (!buckets) {
        return false;
    }
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        buckets[b].rows = deployment->buckets[b].rows[SL_ROWS_STEP];
        buckets[b].outputs = deployment->buckets[b].rows[SL_ROWS_OUTPUT];
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
    for (int i = 0; i < SL_STEPS; i++) {
        sl_free(s->steps[i].parts);
    }
    sl_free(s);
}

const sl_scheduler_counters *sl_scheduler_counts(const sl_scheduler *s) {
    return &s->counters;
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
    if (!sequence || !tokens) {
        sl_free(sequence);
        sl_free(tokens);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a sequence of %d tokens", s->limits->context);
    }
    sequence->tokens = tokens;
    sequence->slot = SL_NONE;
    int result = sl_timeline_init(s->cache, &sequence->timeline, error);
    if (result) {
        sl_free(tokens);
        sl_free(sequence);
        return result;
    }
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
    sl_free(sequence->tokens);
    sl_free(sequence);
}

/* Frees it if its owner is gone and nothing uses it. */
static void free_released(sl_scheduler *s, sl_sequence *sequence) {
    if (sequence->released && !sequence->work && !sequence->in_step) {
        sl_sequence_destroy(s, sequence);
    }
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
        sl_timeline_fork(s->cache, &sequence->timeline, &(*fork)->timeline);
    }
    return result;
}

void sl_sequence_rollback(sl_scheduler *s, sl_sequence *sequence, int32_t length) {
    if (length < sequence->count) {
        sequence->count = length;
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

/* Ends a work when a row's logits were not finite, which backends tell by a token below 0: nothing can be
 * said of what follows, and nobody is to go on from the end of its cache. False: all were. */
static bool refuse_rows(sl_scheduler *s, const sl_part *part, const int32_t *tokens) {
    sl_timeline *t = &part->sequence->timeline;
    for (int32_t i = 0; i < part->outputs; i++) {
        if (tokens[part->first_output + i] < 0) {
            sl_error error;
            sl_fail(&error, SL_ERR_INTERNAL, "position %d: logits are not finite",
                    t->cached - part->outputs + i);
            t->unshared = true;
            sl_finish_work(s, part->work, SL_FINISH_ERROR, &error);
            return true;
        }
    }
    return false;
}

/* Outputs of one sequence, in order: logits first, then the sampled token. */
static void deliver(sl_scheduler *s, const sl_part *part, const float *logits, const int32_t *tokens) {
    sl_work *work = part->work;
    sl_sequence *sequence = part->sequence;
    int32_t outputs = part->outputs;
    bool last = sequence->count == sequence->timeline.cached;
    if (outputs > 0 && work->logits != SL_LOGITS_NONE) {
        work->blocked = true;
        work->logits_from = sequence->timeline.cached; /* a preempted work does not deliver them again */
        work->on_logits(work, logits + (size_t)part->first_output * (size_t)s->program->vocabulary, outputs,
                        sequence->timeline.cached - outputs);
    }
    if (!last) {
        return;
    }
    if (work->generate == 0) {
        sl_finish_work(s, work, SL_FINISH_LENGTH, NULL);
        return;
    }
    if (sequence->count == s->limits->context) {
        sl_finish_work(s, work, SL_FINISH_CONTEXT, NULL);
        return;
    }
    int32_t token = tokens[part->first_output + outputs - 1];
    sequence->tokens[sequence->count++] = token;
    work->generate--;
    s->counters.generated_tokens++;
    sl_finish reason = work->on_token(work, token);
    if (reason != SL_FINISH_LENGTH || work->generate == 0) {
        sl_finish_work(s, work, reason, NULL);
    }
}

void sl_advance_part(sl_scheduler *s, sl_part *part) {
    sl_timeline_advance(s->cache, &part->sequence->timeline, part->sequence->tokens, part->rows);
    part->advanced = true;
    sl_share_keep(s, part->work);
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

void sl_scheduler_measured(sl_scheduler *s, double seconds) {
    const sl_step *done = sl_flying(s, 0);
    const int32_t spans = sl_step_head(done->block)->spans;
    int32_t rows = 0;
    for (int32_t i = 0; i < spans; i++) {
        const int32_t part = done->parts[i].rows;
        rows += part > 1 ? part : 0;
    }
    sl_budget_measured(&s->budget, done->bucket, rows, seconds);
}

void sl_scheduler_commit(sl_scheduler *s, int status, const sl_error *error) {
    const sl_step *done = sl_flying(s, 0);
    const sl_step_header head = *sl_step_head(done->block);
    s->in_flight--;
    const float *logits = status == 0 && head.want_logits ? sl_backend_of(s)->logits(s->executor) : NULL;
    const int32_t *tokens = status == 0 ? sl_backend_of(s)->tokens(s->executor) : NULL;
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
        if (!part->advanced) {
            sl_advance_part(s, part);
        }
        count_read(s, part->work);
        if (!refuse_rows(s, part, tokens)) {
            deliver(s, part, logits, tokens);
        }
    }
    if (status == 0) {
        s->counters.steps++;
        s->counters.rows += (uint64_t)head.rows;
        s->counters.outputs += (uint64_t)head.outputs;
    }
}

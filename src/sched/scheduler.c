#include "sched/scheduler.h"

#include "base/alloc.h"

#include <string.h>

struct sl_scheduler {
    const sl_plan *plan;
    const sl_program *program;
    const sl_limits *limits;
    sl_executor *executor;
    sl_cache *cache;
    bool reuse;
    sl_sequence **slots; /* [limits.sequences], who has which page-table row; NULL: free */
    sl_sequence *oldest_sequence, *newest_sequence;
    sl_work *first, *last; /* in order of admission */
    /* The step being built or in flight. */
    sl_work **step_works; /* [limits.sequences], one per span */
    void *block;
    bool memory_short; /* a work went without pages while others ran: the next step goes by age alone */
    sl_scheduler_counters counters;
};

/* Room left in the step being built. */
typedef struct step_room {
    int32_t rows, outputs, spans, table_changes;
} step_room;

static const sl_backend_functions *functions(const sl_scheduler *s) {
    return s->plan->backend->functions;
}

int sl_scheduler_create(const sl_plan *plan, sl_executor *executor, bool reuse, sl_scheduler **out,
                        sl_error *error) {
    *out = NULL;
    sl_scheduler *s = sl_alloc_zero(1, sizeof *s);
    if (!s) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the scheduler");
    }
    s->plan = plan;
    s->program = plan->deployment.program;
    s->limits = &plan->deployment.limits;
    s->executor = executor;
    s->reuse = reuse;
    s->slots = sl_alloc_zero((size_t)s->limits->sequences, sizeof(sl_sequence *));
    s->step_works = sl_alloc_zero((size_t)s->limits->sequences, sizeof(sl_work *));
    int result = s->slots && s->step_works ? sl_cache_create(&plan->deployment, reuse, &s->cache, error)
                                           : sl_fail(error, SL_ERR_NOMEM, "out of memory for the scheduler");
    if (result) {
        sl_scheduler_destroy(s);
        return result;
    }
    *out = s;
    return 0;
}

void sl_scheduler_destroy(sl_scheduler *s) {
    if (s) {
        sl_cache_destroy(s->cache);
        sl_free(s->slots);
        sl_free(s->step_works);
        sl_free(s);
    }
}

const sl_scheduler_counters *sl_scheduler_counts(const sl_scheduler *s) {
    return &s->counters;
}

bool sl_scheduler_has_work(const sl_scheduler *s) {
    return s->first != NULL;
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

static void release_slot(sl_scheduler *s, sl_sequence *sequence) {
    if (sequence->slot != SL_NONE) {
        s->slots[sequence->slot] = NULL;
        sequence->slot = SL_NONE;
    }
}

void sl_sequence_destroy(sl_scheduler *s, sl_sequence *sequence) {
    release_slot(s, sequence);
    sl_timeline_free(s->cache, &sequence->timeline);
    *(sequence->older ? &sequence->older->newer : &s->oldest_sequence) = sequence->newer;
    *(sequence->newer ? &sequence->newer->older : &s->newest_sequence) = sequence->older;
    sl_free(sequence->tokens);
    sl_free(sequence);
}

int sl_sequence_fork(sl_scheduler *s, const sl_sequence *sequence, sl_sequence **fork, sl_error *error) {
    int result = sl_sequence_create(s, fork, error);
    if (result == 0) {
        memcpy((*fork)->tokens, sequence->tokens, (size_t)sequence->count * sizeof *sequence->tokens);
        (*fork)->count = sequence->count;
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

int sl_scheduler_submit(sl_scheduler *s, sl_work *work, const int32_t *tokens, size_t count,
                        sl_error *error) {
    sl_sequence *sequence = work->sequence;
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
    sequence->work = work;
    work->previous = s->last;
    work->next = NULL;
    *(s->last ? &s->last->next : &s->first) = work;
    s->last = work;
    return 0;
}

static void finish(sl_scheduler *s, sl_work *work, sl_finish reason, const sl_error *error) {
    *(work->previous ? &work->previous->next : &s->first) = work->next;
    *(work->next ? &work->next->previous : &s->last) = work->previous;
    work->sequence->work = NULL;
    work->on_done(work, reason, error);
}

void sl_scheduler_fail_all(sl_scheduler *s, const sl_error *error) {
    while (s->first) {
        s->first->sequence->in_step = false;
        finish(s, s->first, SL_FINISH_ERROR, error);
    }
}

/* ---- building a step
 * ------------------------------------------------------------------------------------------------ */

/* A page-table row: a free one, or that of the sequence unused for longest that has no work. */
static bool take_slot(sl_scheduler *s, sl_sequence *sequence) {
    if (sequence->slot != SL_NONE) {
        return true;
    }
    int32_t best = SL_NONE;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        const sl_sequence *holder = s->slots[i];
        if (!holder) {
            best = i;
            break;
        }
        if (!holder->work && (best == SL_NONE || holder->last_used < s->slots[best]->last_used)) {
            best = i;
        }
    }
    if (best == SL_NONE) {
        return false;
    }
    if (s->slots[best]) {
        s->slots[best]->slot = SL_NONE;
    }
    s->slots[best] = sequence;
    sequence->slot = best;
    memset(sequence->timeline.dirty_from, 0, sizeof sequence->timeline.dirty_from);
    return true;
}

/* Frees the cache of somebody who can wait: of idle sequences the one unused for longest, then the work
 * admitted last, never one admitted before `work`. Their tokens stay, and are computed again when it is their
 * turn. */
static bool preempt_one(sl_scheduler *s, const sl_work *work) {
    sl_sequence *victim = NULL;
    for (sl_sequence *q = s->oldest_sequence; q; q = q->newer) {
        bool has_cache = q->timeline.cached > 0 || q->timeline.page_count[0] > 0;
        if (!q->work && !q->in_step && has_cache && (!victim || q->last_used < victim->last_used)) {
            victim = q;
        }
    }
    for (sl_work *w = s->last; !victim && w && w != work; w = w->previous) {
        bool has_cache = w->sequence->timeline.cached > 0 || w->sequence->timeline.page_count[0] > 0;
        if (!w->sequence->in_step && has_cache) {
            victim = w->sequence;
            release_slot(s, victim);
        }
    }
    if (!victim) {
        return false;
    }
    sl_timeline_reset(s->cache, &victim->timeline);
    s->counters.preemptions += victim->work != NULL;
    return true;
}

/* How many of the pending tokens go into this step, and how many outputs come with them. */
static int32_t choose_rows(const sl_scheduler *s, const sl_work *work, const step_room *room,
                           int32_t *outputs) {
    const sl_sequence *sequence = work->sequence;
    int32_t cached = sequence->timeline.cached, pending = sequence->count - cached;
    int32_t rows = pending < room->rows ? pending : room->rows;
    if (work->logits == SL_LOGITS_ALL) {
        int32_t before = work->logits_from > cached ? work->logits_from - cached : 0;
        if (rows > before + room->outputs) {
            rows = before + room->outputs;
        }
    } else if (rows == pending && (work->generate > 0 || work->logits == SL_LOGITS_LAST) &&
               room->outputs == 0) {
        rows--;
    }
    if (s->reuse && s->program->state_count) {
        /* A snapshot of recurrent state can be shared only where a page ends: stop at the last such place. */
        int32_t boundary = (cached + rows) / SL_PAGE_TOKENS * SL_PAGE_TOKENS;
        rows = boundary > cached ? boundary - cached : rows;
    }
    int32_t first_output = cached + rows; /* none */
    if (work->logits == SL_LOGITS_ALL) {
        first_output = work->logits_from > cached ? work->logits_from : cached;
    } else if (rows == pending && (work->generate > 0 || work->logits == SL_LOGITS_LAST)) {
        first_output = cached + rows - 1;
    }
    *outputs = cached + rows > first_output ? cached + rows - first_output : 0;
    return rows;
}

static int32_t count_table_changes(const sl_scheduler *s, const sl_sequence *sequence) {
    int32_t changes = 0;
    for (int32_t g = 0; g < s->program->group_count; g++) {
        changes += sequence->timeline.page_count[g] - sequence->timeline.dirty_from[g];
    }
    return changes;
}

static void write_table_changes(sl_scheduler *s, sl_sequence *sequence, sl_step_header *head) {
    sl_table_change *changes = sl_step_table_changes(&s->plan->deployment.step, s->block);
    sl_timeline *t = &sequence->timeline;
    for (int32_t g = 0; g < s->program->group_count; g++) {
        for (int32_t i = t->dirty_from[g]; i < t->page_count[g]; i++) {
            changes[head->table_changes++] = (sl_table_change){g, sequence->slot, i, t->pages[g][i]};
        }
        t->dirty_from[g] = t->page_count[g];
    }
}

static void write_outputs(sl_scheduler *s, const sl_work *work, sl_step_header *head,
                          const sl_step_span *span) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    const sl_sequence *sequence = work->sequence;
    sl_step_output *outputs = sl_step_outputs(layout, s->block);
    int32_t *history = sl_step_history(layout, s->block);
    int32_t first_row = span->first_row + span->row_count - work->step_outputs;
    for (int32_t i = 0; i < work->step_outputs; i++) {
        sl_step_output *output = &outputs[head->outputs];
        *output = (sl_step_output){.row = first_row + i, .slot = sequence->slot, .sampler = work->sampler};
        int32_t position = sequence->timeline.cached + (first_row + i - span->first_row);
        output->sampler.counter = (uint32_t)position;
        /* Only the row that a token is sampled from needs the history. */
        bool penalty = work->sampler.repetition_penalty != 0 && work->sampler.repetition_penalty != 1;
        if (penalty && i == work->step_outputs - 1) {
            int32_t most = s->plan->options.history;
            int32_t count = position + 1 < most ? position + 1 : most;
            output->history_first = head->history;
            output->history_count = count;
            memcpy(history + head->history, sequence->tokens + position + 1 - count,
                   (size_t)count * sizeof *history);
            head->history += count;
        }
        head->outputs++;
    }
}

static void write_span(sl_scheduler *s, sl_work *work, int32_t rows, int32_t outputs) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    sl_step_header *head = sl_step_head(s->block);
    sl_sequence *sequence = work->sequence;
    sl_timeline *t = &sequence->timeline;
    sl_step_span *span = &sl_step_spans(layout, s->block)[head->spans];
    *span = (sl_step_span){.slot = sequence->slot,
                           .first_row = head->rows,
                           .row_count = rows,
                           .state_read = t->state,
                           .state_write = t->write_state};
    sl_step_row *step_rows = sl_step_rows(layout, s->block);
    for (int32_t i = 0; i < rows; i++) {
        step_rows[head->rows + i] =
            (sl_step_row){SL_ROW_TOKEN, sequence->tokens[t->cached + i], t->cached + i, head->spans};
    }
    for (int32_t g = 0; g < s->program->group_count; g++) {
        span->length[g] = t->cached;
    }
    work->step_rows = rows;
    work->step_first_output = head->outputs;
    work->step_outputs = outputs;
    write_outputs(s, work, head, span);
    write_table_changes(s, sequence, head);
    s->step_works[head->spans++] = work;
    head->rows += rows;
    head->want_logits |= outputs > 0 && work->logits != SL_LOGITS_NONE;
    sequence->in_step = true;
    sequence->last_used = s->counters.steps + 1;
}

/* Adds a sequence's next rows to the step; false when it can't run now. */
static bool add_work(sl_scheduler *s, sl_work *work, step_room *room) {
    sl_sequence *sequence = work->sequence;
    sl_timeline *t = &sequence->timeline;
    sl_step_header *head = sl_step_head(s->block);
    if (room->spans == 0 || room->rows == 0 || !take_slot(s, sequence)) {
        return false;
    }
    if (t->cached == 0) {
        int32_t limit = sequence->count - 1;
        if (work->logits == SL_LOGITS_ALL && work->logits_from < limit) {
            limit = work->logits_from;
        }
        int32_t reused = sl_timeline_resume(s->cache, t, sequence->tokens, limit);
        work->reused += reused;
        s->counters.reused_tokens += (uint64_t)reused;
    }
    int32_t outputs, rows = choose_rows(s, work, room, &outputs);
    if (rows <= 0) {
        return false;
    }
    sl_copy_list copies = {sl_step_page_copies(&s->plan->deployment.step, s->block), head->page_copies,
                           s->plan->deployment.step.max_page_copies};
    int failed;
    while ((failed = sl_timeline_reserve(s->cache, t, rows, &copies)) != 0 && preempt_one(s, work)) {
    }
    if (failed) {
        s->memory_short = true;
        return false;
    }
    if (count_table_changes(s, sequence) > room->table_changes) {
        sl_timeline_revert(s->cache, t);
        return false;
    }
    head->page_copies = copies.count;
    room->table_changes -= count_table_changes(s, sequence);
    write_span(s, work, rows, outputs);
    room->rows -= rows;
    room->outputs -= outputs;
    room->spans--;
    return true;
}

/* Works with one pending token first, so that a long prompt does not hold up those that are generating; then
 * in order of admission. Only when memory is short does age alone count: those in the step cannot be
 * preempted, and the oldest must not starve. */
static void add_works(sl_scheduler *s, step_room *room) {
    bool singles_first = !s->memory_short;
    s->memory_short = false;
    for (int pass = singles_first ? 0 : 1; pass < 2; pass++) {
        for (sl_work *work = s->first; work; work = work->next) {
            bool single = work->sequence->count - work->sequence->timeline.cached == 1;
            if (!work->blocked && !work->sequence->in_step && (pass == 1 || single)) {
                add_work(s, work, room);
            }
        }
    }
}

static void finish_cancelled(sl_scheduler *s) {
    for (sl_work *work = s->first, *next; work; work = next) {
        next = work->next;
        if (work->cancelled) {
            finish(s, work, SL_FINISH_CANCELLED, NULL);
        } else if (work->sequence->count == work->sequence->timeline.cached) {
            finish(s, work, SL_FINISH_LENGTH, NULL); /* nothing was asked for that is not there already */
        }
    }
}

int32_t sl_scheduler_build(sl_scheduler *s, int32_t *bucket) {
    finish_cancelled(s);
    if (!s->first) {
        return 0;
    }
    const sl_step_layout *layout = &s->plan->deployment.step;
    s->block = functions(s)->step_block(s->executor);
    sl_step_header *head = sl_step_head(s->block);
    for (;;) {
        memset(head, 0, sizeof *head);
        step_room room = {s->limits->rows, s->limits->outputs, s->limits->sequences,
                          layout->max_table_changes};
        add_works(s, &room);
        if (head->spans > 0) {
            break;
        }
        /* Nobody could run. The oldest that waits for nothing but memory never will: everything else was
         * given up for it. */
        sl_work *stuck = s->first;
        while (stuck && stuck->blocked) {
            stuck = stuck->next;
        }
        if (!stuck || stuck != s->first) {
            return 0;
        }
        sl_error error;
        sl_fail(&error, SL_ERR_LIMIT,
                "cache: %d tokens need more pages than the cache has; raise cache_tokens",
                stuck->sequence->count);
        finish(s, stuck, SL_FINISH_ERROR, &error);
        if (!s->first) {
            return 0;
        }
    }
    *bucket = sl_plan_bucket(s->plan, head->rows, head->outputs);
    return head->rows;
}

/* ---- after a step
 * --------------------------------------------------------------------------------------------------- */

/* Outputs of one sequence, in order: logits first, then the sampled token. */
static void deliver(sl_scheduler *s, sl_work *work, const float *logits, const int32_t *tokens) {
    sl_sequence *sequence = work->sequence;
    int32_t outputs = work->step_outputs;
    bool last = sequence->count == sequence->timeline.cached;
    if (outputs > 0 && work->logits != SL_LOGITS_NONE) {
        work->blocked = true;
        work->logits_from = sequence->timeline.cached; /* a preempted work does not deliver them again */
        work->on_logits(work, logits + (size_t)work->step_first_output * (size_t)s->program->vocabulary,
                        outputs, sequence->timeline.cached - outputs);
    }
    if (!last) {
        return;
    }
    if (work->generate == 0) {
        finish(s, work, SL_FINISH_LENGTH, NULL);
        return;
    }
    if (sequence->count == s->limits->context) {
        finish(s, work, SL_FINISH_CONTEXT, NULL);
        return;
    }
    int32_t token = tokens[work->step_first_output + outputs - 1];
    sequence->tokens[sequence->count++] = token;
    work->generate--;
    sl_finish reason = work->on_token(work, token);
    if (reason != SL_FINISH_LENGTH || work->generate == 0) {
        finish(s, work, reason, NULL);
    }
}

void sl_scheduler_commit(sl_scheduler *s, int status, const sl_error *error) {
    const sl_step_header head = *sl_step_head(s->block);
    const float *logits = status == 0 && head.want_logits ? functions(s)->logits(s->executor) : NULL;
    const int32_t *tokens = status == 0 ? functions(s)->tokens(s->executor) : NULL;
    for (int32_t i = 0; i < head.spans; i++) {
        sl_work *work = s->step_works[i];
        sl_sequence *sequence = work->sequence;
        sequence->in_step = false;
        if (status) {
            sl_timeline_revert(s->cache, &sequence->timeline);
            finish(s, work, SL_FINISH_ERROR, error);
            continue;
        }
        sl_timeline_advance(s->cache, &sequence->timeline, sequence->tokens, work->step_rows);
        deliver(s, work, logits, tokens);
    }
    if (status == 0) {
        s->counters.steps++;
        s->counters.rows += (uint64_t)head.rows;
        s->counters.outputs += (uint64_t)head.outputs;
    }
}

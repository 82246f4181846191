#include "sched/scheduler.h"

#include "base/alloc.h"

#include <string.h>

/* What a step does for one sequence; as many as it has spans. */
typedef struct part {
    sl_work *work; /* NULL when it ended while the step was in flight */
    sl_sequence *sequence;
    int32_t rows, first_output, outputs;
    bool advanced; /* the timeline has taken the step's rows over already */
} part;

typedef struct step {
    part *parts; /* [limits.sequences] */
    void *block;
} step;

enum { STEPS = 2 };

struct sl_scheduler {
    const sl_plan *plan;
    const sl_program *program;
    const sl_limits *limits;
    sl_executor *executor;
    sl_cache *cache;
    bool reuse;
    bool loads;          /* see sl_scheduler_loads */
    sl_sequence **slots; /* [limits.sequences], who has which page-table row; NULL: free */
    sl_sequence *oldest_sequence, *newest_sequence;
    sl_work *first, *last; /* in order of admission */
    step steps[STEPS];
    int32_t next, in_flight; /* the one to build; how many before it are not committed */
    bool memory_short;       /* a work went without pages while others ran: the next step goes by age alone */
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
    bool complete = s->slots != NULL;
    for (int i = 0; i < STEPS; i++) {
        s->steps[i].parts = sl_alloc_zero((size_t)s->limits->sequences, sizeof(part));
        complete &= s->steps[i].parts != NULL;
    }
    int result = complete ? sl_cache_create(&plan->deployment, reuse, &s->cache, error)
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
        for (int i = 0; i < STEPS; i++) {
            sl_free(s->steps[i].parts);
        }
        sl_free(s);
    }
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

static void await_loading(const sl_scheduler *s, sl_work *work) {
    work->unread = s->loads && work->sequence->timeline.cached == 0;
    work->load_end = SL_NONE;
    work->loaded = 0;
}

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
    if (work->logits == SL_LOGITS_ALL && work->logits_from < sequence->timeline.cached) {
        sl_timeline_truncate(s->cache, &sequence->timeline, work->logits_from);
    }
    sequence->work = work;
    await_loading(s, work);
    work->previous = s->last;
    work->next = NULL;
    *(s->last ? &s->last->next : &s->first) = work;
    s->last = work;
    return 0;
}

/* Of those in flight; 0 is the oldest. */
static step *flying(sl_scheduler *s, int32_t index) {
    return &s->steps[(s->next + STEPS - s->in_flight + index) % STEPS];
}

static void unlink_work(sl_scheduler *s, sl_work *work) {
    *(work->previous ? &work->previous->next : &s->first) = work->next;
    *(work->next ? &work->next->previous : &s->last) = work->previous;
    work->sequence->work = NULL;
}

void sl_scheduler_withdraw(sl_scheduler *s, sl_work *work, int32_t count) {
    unlink_work(s, work);
    sl_sequence_rollback(s, work->sequence, count);
}

static void finish(sl_scheduler *s, sl_work *work, sl_finish reason, const sl_error *error) {
    for (int32_t i = 0; i < s->in_flight; i++) {
        step *t = flying(s, i);
        for (int32_t p = 0; p < sl_step_head(t->block)->spans; p++) {
            t->parts[p].work = t->parts[p].work == work ? NULL : t->parts[p].work;
        }
    }
    unlink_work(s, work);
    work->on_done(work, reason, error);
}

void sl_scheduler_fail_all(sl_scheduler *s, const sl_error *error) {
    for (sl_sequence *q = s->oldest_sequence; q; q = q->newer) {
        q->in_step = 0;
    }
    s->in_flight = 0;
    while (s->first) {
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
    if (victim->work) {
        await_loading(s, victim->work);
    }
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

static void *block_of(const sl_scheduler *s) {
    return s->steps[s->next].block;
}

static void write_table_changes(sl_scheduler *s, sl_sequence *sequence, sl_step_header *head) {
    sl_table_change *changes = sl_step_table_changes(&s->plan->deployment.step, block_of(s));
    sl_timeline *t = &sequence->timeline;
    for (int32_t g = 0; g < s->program->group_count; g++) {
        for (int32_t i = t->dirty_from[g]; i < t->page_count[g]; i++) {
            changes[head->table_changes++] = (sl_table_change){g, sequence->slot, i, t->pages[g][i]};
        }
        t->dirty_from[g] = t->page_count[g];
    }
}

static void write_outputs(sl_scheduler *s, const part *part, sl_step_header *head, const sl_step_span *span) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    const sl_work *work = part->work;
    const sl_sequence *sequence = part->sequence;
    sl_step_output *outputs = sl_step_outputs(layout, block_of(s));
    int32_t first_row = span->first_row + span->row_count - part->outputs;
    for (int32_t i = 0; i < part->outputs; i++) {
        sl_step_output *output = &outputs[head->outputs];
        *output = (sl_step_output){.row = first_row + i, .slot = sequence->slot, .sampler = work->sampler};
        int32_t position = sequence->timeline.cached + (first_row + i - span->first_row);
        output->sampler.counter = (uint32_t)position;
        head->outputs++;
    }
}

/* Of the outputs that tokens are sampled from, at most one for each sequence. They lie behind all table
 * changes, so the step must be complete but for them. */
static void write_adjustments(sl_scheduler *s) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    sl_step_header *head = sl_step_head(block_of(s));
    sl_adjustment *adjustments = sl_step_adjustments(layout, block_of(s));
    for (int32_t i = 0; i < head->spans; i++) {
        const part *part = &s->steps[s->next].parts[i];
        const sl_sequence *sequence = part->sequence;
        const int32_t count = sequence->timeline.cached + part->rows;
        if (part->work->adjust && part->outputs > 0 && part->work->generate > 0 && count >= sequence->count) {
            sl_step_output *output =
                &sl_step_outputs(layout, block_of(s))[part->first_output + part->outputs - 1];
            output->adjustment_first = head->adjustments;
            output->adjustment_count =
                sl_adjust_write(part->work->adjust, sequence->tokens, count, adjustments + head->adjustments);
            head->adjustments += output->adjustment_count;
        }
    }
}

/* Rows past the sequence's tokens take what is sampled last. */
static void write_span(sl_scheduler *s, sl_work *work, int32_t rows, int32_t outputs) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    sl_step_header *head = sl_step_head(block_of(s));
    sl_sequence *sequence = work->sequence;
    sl_timeline *t = &sequence->timeline;
    sl_step_span *span = &sl_step_spans(layout, block_of(s))[head->spans];
    *span = (sl_step_span){.slot = sequence->slot,
                           .first_row = head->rows,
                           .row_count = rows,
                           .state_read = t->state,
                           .state_write = t->write_state};
    sl_step_row *step_rows = sl_step_rows(layout, block_of(s));
    for (int32_t i = 0; i < rows; i++) {
        const int32_t position = t->cached + i;
        const bool known = position < sequence->count;
        step_rows[head->rows + i] =
            (sl_step_row){known ? SL_ROW_TOKEN : SL_ROW_LAST_TOKEN, known ? sequence->tokens[position] : 0,
                          position, head->spans};
    }
    for (int32_t g = 0; g < s->program->group_count; g++) {
        span->length[g] = t->cached;
    }
    part *part = &s->steps[s->next].parts[head->spans];
    part->work = work;
    part->sequence = sequence;
    part->rows = rows;
    part->first_output = head->outputs;
    part->outputs = outputs;
    part->advanced = false;
    write_outputs(s, part, head, span);
    write_table_changes(s, sequence, head);
    head->spans++;
    head->rows += rows;
    head->want_logits |= outputs > 0 && work->logits != SL_LOGITS_NONE;
    sequence->in_step++;
    sequence->last_used = s->counters.steps + 1;
}

/* Makes room for the rows in the cache and writes them; false when there is none. `work` may preempt others
 * when `pressing`. */
static bool take_rows(sl_scheduler *s, sl_work *work, int32_t rows, int32_t outputs, bool pressing,
                      step_room *room) {
    sl_timeline *t = &work->sequence->timeline;
    sl_step_header *head = sl_step_head(block_of(s));
    sl_copy_list copies = {sl_step_page_copies(&s->plan->deployment.step, block_of(s)), head->page_copies,
                           s->plan->deployment.step.max_page_copies};
    int failed;
    while ((failed = sl_timeline_reserve(s->cache, t, rows, &copies)) != 0 && pressing &&
           preempt_one(s, work)) {
    }
    if (failed) {
        s->memory_short |= pressing;
        return false;
    }
    if (count_table_changes(s, work->sequence) > room->table_changes) {
        sl_timeline_revert(s->cache, t);
        return false;
    }
    head->page_copies = copies.count;
    room->table_changes -= count_table_changes(s, work->sequence);
    write_span(s, work, rows, outputs);
    room->rows -= rows;
    room->outputs -= outputs;
    room->spans--;
    return true;
}

/* How many tokens of a sequence with nothing cached may come from elsewhere. */
static int32_t reuse_limit(const sl_work *work) {
    int32_t limit = work->sequence->count - 1;
    return work->logits == SL_LOGITS_ALL && work->logits_from < limit ? work->logits_from : limit;
}

/* Adds a sequence's next rows to the step; false when it can't run now. */
static bool add_work(sl_scheduler *s, sl_work *work, step_room *room) {
    sl_sequence *sequence = work->sequence;
    sl_timeline *t = &sequence->timeline;
    if (room->spans == 0 || room->rows == 0 || !take_slot(s, sequence)) {
        return false;
    }
    if (t->cached == 0) {
        int32_t reused = sl_timeline_resume(s->cache, t, sequence->tokens, reuse_limit(work));
        work->reused += reused;
        s->counters.reused_tokens += (uint64_t)reused;
    }
    int32_t outputs, rows = choose_rows(s, work, room, &outputs);
    if (rows <= 0) {
        return false;
    }
    return take_rows(s, work, rows, outputs, true, room);
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
            if (!work->blocked && !work->unread && !work->sequence->in_step && (pass == 1 || single)) {
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

static sl_step_header *begin_step(sl_scheduler *s, step_room *room) {
    s->steps[s->next].block = functions(s)->step_block(s->executor);
    sl_step_header *head = sl_step_head(block_of(s));
    memset(head, 0, sizeof *head);
    *room = (step_room){s->limits->rows, s->limits->outputs, s->limits->sequences,
                        s->plan->deployment.step.max_table_changes};
    return head;
}

static int32_t end_step(sl_scheduler *s, int32_t *bucket) {
    const sl_step_header *head = sl_step_head(block_of(s));
    write_adjustments(s);
    *bucket = sl_plan_bucket(s->plan, head->rows, head->outputs);
    s->next = (s->next + 1) % STEPS;
    s->in_flight++;
    return head->rows;
}

int32_t sl_scheduler_build(sl_scheduler *s, int32_t *bucket) {
    finish_cancelled(s);
    if (!s->first) {
        return 0;
    }
    sl_step_header *head;
    for (;;) {
        step_room room;
        head = begin_step(s, &room);
        add_works(s, &room);
        if (head->spans > 0) {
            break;
        }
        /* Nobody could run. The oldest that waits for nothing but memory never will: everything else was
         * given up for it. */
        sl_work *stuck = s->first;
        while (stuck && (stuck->blocked || stuck->unread)) {
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
    return end_step(s, bucket);
}

/* ---- loading
 * ------------------------------------------------------------------------------------------------------------
 */

void sl_scheduler_loads(sl_scheduler *s) {
    s->loads = true;
}

bool sl_scheduler_may_load(const sl_scheduler *s, const sl_work *work) {
    int32_t before = 0;
    for (const sl_work *w = s->first; w && w != work; w = w->next) {
        before++;
    }
    return before < s->limits->sequences;
}

sl_work *sl_scheduler_unread(sl_scheduler *s, sl_load *load) {
    sl_work *work = s->first;
    while (work && (!work->unread || work->cancelled ||
                    (work->load_end != SL_NONE && !sl_scheduler_may_load(s, work)))) {
        work = work->next;
    }
    if (work) {
        sl_timeline *t = &work->sequence->timeline;
        const int32_t *tokens = work->sequence->tokens;
        if (t->cached == 0) {
            sl_timeline_resume(s->cache, t, tokens, reuse_limit(work));
        }
        *load = (sl_load){.timeline = t,
                          .tokens = tokens,
                          .limit = reuse_limit(work),
                          .end = work->load_end,
                          .loaded = work->loaded};
    }
    return work;
}

void sl_scheduler_loaded(sl_scheduler *s, sl_work *work, const sl_load *load, bool more) {
    work->load_end = load->end;
    work->loaded = load->loaded;
    work->unread = more;
    if (load->loaded == 0 || (!more && !sl_timeline_complete(s->cache, load->timeline))) {
        /* The index gives the same or more when its turn comes; until then it holds nothing. */
        sl_timeline_reset(s->cache, load->timeline);
        work->loaded = 0;
    } else if (!more) {
        work->reused += load->timeline->cached;
        s->counters.reused_tokens += (uint64_t)load->timeline->cached;
    }
}

/* Does the step in flight leave exactly the sampled token to go on with, which must then be computed whatever
 * it is? */
static bool goes_on(const sl_scheduler *s, const part *part) {
    const sl_work *work = part->work;
    return work && !work->cancelled && work->logits == SL_LOGITS_NONE && work->generate >= 2 &&
           !sl_adjust_reads_tokens(work->adjust) &&
           part->sequence->timeline.cached + part->rows == part->sequence->count &&
           part->sequence->count < s->limits->context;
}

static bool can_follow(sl_scheduler *s) {
    if (s->plan->backend->steps_in_flight < STEPS || s->in_flight != 1) {
        return false;
    }
    step *before = flying(s, 0);
    for (int32_t i = 0; i < sl_step_head(before->block)->spans; i++) {
        if (!goes_on(s, &before->parts[i])) {
            return false;
        }
    }
    for (const sl_work *work = s->first; work; work = work->next) {
        if (!work->blocked && !work->sequence->in_step) {
            return false; /* somebody waits: the next step is for all */
        }
    }
    return true;
}

int32_t sl_scheduler_follow(sl_scheduler *s, int32_t *bucket) {
    if (!can_follow(s)) {
        return 0;
    }
    step *before = flying(s, 0);
    const int32_t spans = sl_step_head(before->block)->spans;
    step_room room;
    const sl_step_header *head = begin_step(s, &room);
    for (int32_t i = 0; i < spans; i++) {
        part *part = &before->parts[i];
        /* The rows' tokens are known, and the step that computes them ends before any that reads them. */
        sl_timeline_advance(s->cache, &part->sequence->timeline, part->sequence->tokens, part->rows);
        part->advanced = true;
        take_rows(s, part->work, 1, 1, false, &room);
    }
    if (head->spans == 0) {
        return 0;
    }
    s->counters.following_steps++;
    return end_step(s, bucket);
}

/* ---- after a step
 * --------------------------------------------------------------------------------------------------- */

/* Outputs of one sequence, in order: logits first, then the sampled token. */
static void deliver(sl_scheduler *s, const part *part, const float *logits, const int32_t *tokens) {
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
        finish(s, work, SL_FINISH_LENGTH, NULL);
        return;
    }
    if (sequence->count == s->limits->context) {
        finish(s, work, SL_FINISH_CONTEXT, NULL);
        return;
    }
    int32_t token = tokens[part->first_output + outputs - 1];
    sequence->tokens[sequence->count++] = token;
    work->generate--;
    sl_finish reason = work->on_token(work, token);
    if (reason != SL_FINISH_LENGTH || work->generate == 0) {
        finish(s, work, reason, NULL);
    }
}

void sl_scheduler_commit(sl_scheduler *s, int status, const sl_error *error) {
    const step *done = flying(s, 0);
    const sl_step_header head = *sl_step_head(done->block);
    s->in_flight--;
    const float *logits = status == 0 && head.want_logits ? functions(s)->logits(s->executor) : NULL;
    const int32_t *tokens = status == 0 ? functions(s)->tokens(s->executor) : NULL;
    for (int32_t i = 0; i < head.spans; i++) {
        const part *part = &done->parts[i];
        sl_sequence *sequence = part->sequence;
        sequence->in_step--;
        if ((status || !part->work) && !part->advanced) {
            sl_timeline_revert(s->cache, &sequence->timeline);
        }
        if (!part->work) {
            continue;
        }
        if (status) {
            finish(s, part->work, SL_FINISH_ERROR, error);
            continue;
        }
        if (!part->advanced) {
            sl_timeline_advance(s->cache, &sequence->timeline, sequence->tokens, part->rows);
        }
        deliver(s, part, logits, tokens);
    }
    if (status == 0) {
        s->counters.steps++;
        s->counters.rows += (uint64_t)head.rows;
        s->counters.outputs += (uint64_t)head.outputs;
    }
}

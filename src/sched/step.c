/* Building a step: rows of the admitted works, until the step or the memory is full.
 *
 * Works with one pending token go first, so that prompts do not hold up those that are generating. The rows
 * that are left, or that prompt_seconds allows when somebody is generating, belong to prompts: the first in
 * order has half of them, so that its turn comes to an end, and the others of its priority share the other
 * half, the shortest first, so that they are not stuck behind a long one. What one half does not need is for
 * the other. Prompts of lower priorities get what is left then. */
#include "sched/scheduler.h"

#include "sched/chunks.h"
#include "sched/internal.h"

#include <string.h>

/* Room left in the step being built. */
typedef struct step_room {
    int32_t rows, outputs, spans, table_changes;
    int32_t generating; /* works that generate */
    sl_draft_load drafts;
    bool follows; /* the works are in the step in flight too, and nobody may be preempted */
    bool beside;  /* it is for those who are not in the step in flight, or whose next tokens are known */
} step_room;

/* ---- rows of one work
 * ------------------------------------------------------------------------------------------------ */

/* How many of the pending tokens go into this step, and how many outputs come with them. */
static int32_t choose_rows(const sl_scheduler *s, const sl_work *work, int32_t most, const step_room *room,
                           int32_t *outputs) {
    const sl_sequence *sequence = work->sequence;
    int32_t cached = sequence->timeline.cached, pending = sequence->count - cached;
    int32_t rows = pending < most ? pending : most;
    if (s->program->both_sides) {
        /* Whole, or in another step. */
        *outputs = work->logits == SL_LOGITS_ALL ? pending : work->logits == SL_LOGITS_LAST;
        return pending <= room->rows && *outputs <= room->outputs ? pending : 0;
    }
    const sl_compaction *next = sl_compact_next(sequence);
    if (next && cached < next->first && rows > next->first - cached) {
        rows = next->first - cached;
    } else if (next && cached >= next->first) {
        /* Alone, and all of them. */
        rows = next->end - cached;
        *outputs = rows == pending && (work->generate > 0 || work->logits == SL_LOGITS_LAST);
        return rows;
    }
    if (work->logits == SL_LOGITS_ALL) {
        int32_t before = work->logits_from > cached ? work->logits_from - cached : 0;
        if (rows > before + room->outputs) {
            rows = before + room->outputs;
        }
    } else if (rows == pending && (work->generate > 0 || work->logits == SL_LOGITS_LAST) &&
               room->outputs == 0) {
        rows--;
    }
    rows = sl_share_cut(s, work, rows);
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
        changes += sequence->timeline.target_count[g];
    }
    return changes;
}

static void *block_of(const sl_scheduler *s) {
    return s->steps[s->next].block;
}

void sl_write_table_changes(const sl_scheduler *s, void *block, sl_sequence *sequence) {
    sl_step_header *head = sl_step_head(block);
    sl_table_change *changes = sl_step_table_changes(&s->plan->deployment.step, block);
    sl_timeline *t = &sequence->timeline;
    for (int32_t g = 0; g < s->program->group_count; g++) {
        for (int32_t i = t->dirty_from[g]; i < t->page_count[g]; i++) {
            changes[head->table_changes++] = (sl_table_change){g, sequence->slot, i, t->pages[g][i]};
        }
        t->dirty_from[g] = t->page_count[g];
        for (int32_t i = 0; i < t->target_count[g]; i++) {
            changes[head->table_changes++] = (sl_table_change){g, s->limits->sequences, i, t->targets[g][i]};
        }
    }
}

void sl_write_states(const sl_scheduler *s, void *block, const sl_timeline *t, sl_step_span *span) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    const int32_t spans = (int32_t)(span - sl_step_spans(layout, block));
    span->state_first = spans > 0 ? span[-1].state_first + span[-1].state_count : 0;
    span->state_count = t->write_count;
    memcpy(sl_step_states(layout, block) + span->state_first, t->write_states,
           (size_t)t->write_count * sizeof *t->write_states);
}

static void write_outputs(sl_scheduler *s, const sl_part *part, sl_step_header *head,
                          const sl_step_span *span) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    const sl_work *work = part->work;
    const sl_sequence *sequence = part->sequence;
    sl_step_output *outputs = sl_step_outputs(layout, block_of(s));
    int32_t first_row = span->first_row + span->row_count - part->outputs;
    for (int32_t i = 0; i < part->outputs; i++) {
        sl_step_output *output = &outputs[head->outputs];
        *output = (sl_step_output){
            .row = first_row + i, .slot = sequence->slot, .mask = SL_NONE, .sampler = work->sampler};
        int32_t position = sequence->timeline.cached + (first_row + i - span->first_row);
        output->sampler.counter = (uint32_t)position;
        head->outputs++;
    }
}

/* Rows of one work: how many, and of those the last so many with an output, and again with a draft. */
typedef struct row_choice {
    int32_t rows, outputs, drafts;
    bool compacts;
} row_choice;

/* Rows past the sequence's tokens and drafts take what is sampled last. */
static void write_span(sl_scheduler *s, sl_work *work, const row_choice *choice) {
    const int32_t rows = choice->rows, outputs = choice->outputs;
    const sl_step_layout *layout = &s->plan->deployment.step;
    sl_step_header *head = sl_step_head(block_of(s));
    sl_sequence *sequence = work->sequence;
    sl_timeline *t = &sequence->timeline;
    sl_step_span *span = &sl_step_spans(layout, block_of(s))[head->spans];
    *span = (sl_step_span){
        .slot = sequence->slot, .first_row = head->rows, .row_count = rows, .state_read = t->state};
    sl_write_states(s, block_of(s), t, span);
    sl_step_row *step_rows = sl_step_rows(layout, block_of(s));
    for (int32_t i = 0; i < rows; i++) {
        const int32_t position = t->cached + i;
        const bool known = position < sequence->count + choice->drafts;
        step_rows[head->rows + i] =
            (sl_step_row){known ? SL_ROW_TOKEN : SL_ROW_LAST_TOKEN, known ? sequence->tokens[position] : 0,
                          position, head->spans};
    }
    for (int32_t g = 0; g < s->program->group_count; g++) {
        span->length[g] = sl_timeline_length(t, g);
    }
    sl_part *part = &s->steps[s->next].parts[head->spans];
    part->work = work;
    part->sequence = sequence;
    part->rows = rows;
    part->end = t->cached + rows;
    part->first_output = head->outputs;
    part->outputs = outputs;
    part->drafts = choice->drafts;
    part->generates = sl_generates(s, work);
    part->compacts = choice->compacts;
    part->advanced = false;
    write_outputs(s, part, head, span);
    sl_write_table_changes(s, block_of(s), sequence);
    head->spans++;
    head->rows += rows;
    head->compact |= choice->compacts;
    head->want_logits |= outputs > 0 && work->logits != SL_LOGITS_NONE;
    sequence->in_step++;
    work->built_in = s->builds;
    if (!work->started) {
        work->started = true;
        s->waiting--;
        s->running++;
        if (work->on_start) {
            work->on_start(work);
        }
    }
    sl_serve(s, work, rows);
    sequence->last_used = s->counters.steps + 1;
}

/* Pages for the rows, and for what is kept behind them. */
static int reserve(sl_scheduler *s, sl_timeline *t, const row_choice *choice, sl_copy_list *copies) {
    const int32_t copies_before = copies->count;
    int failed = sl_timeline_reserve(s->cache, t, choice->rows, choice->drafts, copies);
    if (failed == 0 && choice->compacts && (failed = sl_timeline_reserve_compaction(s->cache, t)) != 0) {
        sl_timeline_revert(s->cache, t);
        copies->count = copies_before;
    }
    return failed;
}

/* Makes room for the rows in the cache and writes them; false when there is none. `work` may preempt others
 * when `pressing`, though not for drafts. */
static bool take_rows(sl_scheduler *s, sl_work *work, const row_choice *choice, bool pressing,
                      step_room *room) {
    sl_timeline *t = &work->sequence->timeline;
    sl_step_header *head = sl_step_head(block_of(s));
    sl_copy_list copies = {sl_step_page_copies(&s->plan->deployment.step, block_of(s)), head->page_copies,
                           s->plan->deployment.step.max_page_copies};
    int failed;
    pressing &= choice->drafts == 0;
    while ((failed = reserve(s, t, choice, &copies)) != 0 && pressing && sl_preempt_one(s, work)) {
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
    write_span(s, work, choice);
    room->rows -= choice->rows;
    room->outputs -= choice->outputs;
    room->spans--;
    return true;
}

/* May the step have rows of it, as far as the step in flight goes? */
static bool is_free(const sl_scheduler *s, const sl_work *work, const step_room *room) {
    const bool in_step = work->sequence->in_step > 0;
    return in_step == room->follows || (room->beside && work->ahead_in == s->builds);
}

/* Adds at most so many of a work's next rows to the step; returns how many, 0 when it can't run now. */
static int32_t add_work(sl_scheduler *s, sl_work *work, int32_t most, step_room *room) {
    const bool in_step = work->sequence->in_step > 0, compacts = sl_compact_is_due(work);
    const sl_step_header *head = sl_step_head(block_of(s));
    if (head->compact || (compacts && (head->spans > 0 || in_step))) {
        return 0; /* a step that compacts has one sequence */
    }
    most = compacts ? s->limits->rows : most < room->rows ? most : room->rows;
    if (room->spans == 0 || most <= 0 || work->sequence->slot == SL_NONE || !is_free(s, work, room)) {
        return 0;
    }
    row_choice choice = {.compacts = compacts};
    choice.rows = choose_rows(s, work, most, room, &choice.outputs);
    if (choice.rows > 0 && choice.outputs == 1 && choice.rows == sl_pending(work) && !room->follows &&
        !compacts) {
        choice.drafts = sl_draft_take(s, work, &room->drafts);
    }
    if (choice.drafts > 0) {
        row_choice with = {choice.rows + choice.drafts, 1 + choice.drafts, choice.drafts, false};
        if (take_rows(s, work, &with, true, room)) {
            return with.rows;
        }
        choice.drafts = 0;
    }
    return choice.rows > 0 && take_rows(s, work, &choice, !room->follows, room) ? choice.rows : 0;
}

/* ---- rows of all
 * -------------------------------------------------------------------------------------------------- */

/* The shortest of works[0, count) with a priority; NULL when there is none. Those that had their turn are
 * NULL. */
static sl_work **find_shortest(sl_work **works, int32_t count, int32_t priority) {
    sl_work **shortest = NULL;
    for (int32_t i = 0; i < count; i++) {
        if (works[i] && works[i]->priority == priority &&
            (!shortest || sl_pending(works[i]) < sl_pending(*shortest))) {
            shortest = &works[i];
        }
    }
    return shortest;
}

/* `rows` of the step for works[0, count), in their order; the works are taken out. */
static void add_prompts(sl_scheduler *s, sl_work **works, int32_t count, int32_t rows, step_room *room) {
    if (count == 0) {
        return;
    }
    const int32_t priority = works[0]->priority;
    int32_t others = 0;
    for (int32_t i = 1; i < count && others < rows / 2; i++) {
        others += works[i]->priority == priority ? sl_pending(works[i]) : 0;
    }
    rows -= add_work(s, works[0], rows - (others < rows / 2 ? others : rows / 2), room);
    works[0] = NULL;
    for (sl_work **next; (next = find_shortest(works, count, priority)); *next = NULL) {
        rows -= add_work(s, *next, rows, room);
    }
    for (int32_t i = 0; i < count; i++) {
        rows -= works[i] ? add_work(s, works[i], rows, room) : 0;
    }
}

/* Drafts get what those who generate leave of the rows and outputs. */
static void count_drafts_room(const sl_scheduler *s, int32_t count, step_room *room) {
    int32_t works = 0, rows = 0;
    for (int32_t i = 0; i < count; i++) {
        const bool generates = sl_generates(s, s->order[i]);
        works += generates;
        rows += generates ? sl_pending(s->order[i]) : 0;
    }
    room->drafts = (sl_draft_load){rows, sl_draft_room(s, room->rows - rows, room->outputs - works), works};
}

/* May a step be followed that has rows of it, if those that come next are known? */
static bool may_go_on(const sl_scheduler *s, const sl_work *work) {
    return !work->cancelled && !sl_draft_is_open(s, work) && work->logits == SL_LOGITS_NONE &&
           (!work->matcher || sl_backend_of(s)->resume) && sl_forced_next(work->forced) == SL_NONE;
}

/* Rows for a prompt that nobody else is beside. Its chunks are alike, but for one that had to end earlier. */
static int32_t chunk_rows(sl_scheduler *s, const sl_work *work, const step_room *room) {
    const sl_backend *backend = s->plan->backend;
    const sl_chunks chunks = {backend->stages, room->rows, s->plan->fixed_rows};
    if (!s->plan->is_usual_chunk || backend->steps_in_flight < SL_STEPS || !may_go_on(s, work)) {
        return room->rows;
    }
    const int32_t rows = sl_chunk_rows(&chunks, sl_pending(work));
    const int32_t before = room->follows ? sl_step_head(sl_flying(s, 0)->block)->rows : 0;
    const int32_t alike = (before + SL_CHUNK_ROWS - 1) / SL_CHUNK_ROWS * SL_CHUNK_ROWS;
    return rows > alike ? rows : alike;
}

/* s->order[0, count): who generates, then prompts. */
static void add_ordered(sl_scheduler *s, int32_t count, step_room *room) {
    int32_t prompts = 0;
    count_drafts_room(s, count, room);
    for (int32_t i = 0; i < count; i++) {
        sl_work *work = s->order[i];
        if (!sl_generates(s, work)) {
            s->order[prompts++] = work;
        } else if (room->generating > 0) {
            room->generating -= add_work(s, work, sl_pending(work), room) > 0;
        }
    }
    const sl_step_header *head = sl_step_head(block_of(s));
    int32_t rows = room->rows;
    if (head->spans > 0) {
        rows = sl_budget_rows(&s->budget, s->options.prompt_seconds, head->rows, head->outputs, room->rows);
    } else if (count == 1 && prompts == 1) {
        rows = chunk_rows(s, s->order[0], room);
    }
    add_prompts(s, s->order, prompts, rows, room);
}

/* The first of s->order[0, count) that is due to be compacted has the step for itself; false: there is none,
 * or no memory for it. */
static bool add_compaction(sl_scheduler *s, int32_t count, step_room *room) {
    for (int32_t i = 0; i < count; i++) {
        const sl_sequence *sequence = s->order[i]->sequence;
        if (sl_compact_is_due(s->order[i]) && sequence->slot != SL_NONE && !sequence->in_step &&
            sl_share_begin(s, s->order[i])) {
            return add_work(s, s->order[i], s->limits->rows, room) > 0;
        }
    }
    return false;
}

/* When memory is short, rank alone counts: those in the step cannot be preempted, and the first must not
 * starve.
 */
static void add_works(sl_scheduler *s, step_room *room, bool by_rank) {
    const int32_t admitted = sl_order_admitted(s, by_rank);
    int32_t prompts = 0;
    if (add_compaction(s, admitted, room)) {
        return;
    }
    for (int32_t i = 0; i < admitted; i++) {
        sl_work *work = s->order[i];
        /* One that gave its memory up for others waits for the next step. */
        if (work->sequence->slot == SL_NONE || !is_free(s, work, room) || !sl_share_begin(s, work)) {
            continue;
        }
        if (by_rank) {
            add_work(s, work, room->rows, room);
        } else {
            s->order[prompts++] = work;
        }
    }
    add_ordered(s, prompts, room);
}

static void finish_cancelled(sl_scheduler *s) {
    for (sl_work *work = s->first, *next; work; work = next) {
        next = work->next;
        if (work->cancelled) {
            sl_finish_work(s, work, SL_FINISH_CANCELLED, NULL);
        } else if (work->sequence->count == work->sequence->timeline.cached) {
            sl_finish_work(s, work, SL_FINISH_LENGTH,
                           NULL); /* nothing was asked for that is not there already */
        }
    }
}

static sl_step_header *begin_step(sl_scheduler *s, step_room *room) {
    s->steps[s->next].block = sl_backend_of(s)->step_block(s->executor);
    sl_step_header *head = sl_step_head(block_of(s));
    memset(head, 0, sizeof *head);
    *room = (step_room){.rows = s->plan->options.chunk,
                        .outputs = s->limits->outputs,
                        .spans = s->limits->sequences,
                        .generating = s->limits->sequences,
                        .table_changes = s->plan->deployment.step.max_table_changes};
    return head;
}

/* Works that generate, in a step in flight or not. */
static int32_t count_generating(const sl_scheduler *s) {
    int32_t works = 0;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        const sl_work *work = s->slots[i] ? s->slots[i]->work : NULL;
        works += work && !work->blocked && !work->unread && !work->cancelled && work->generate > 0 &&
                 sl_generates(s, work);
    }
    return works;
}

/* Of the outputs that tokens are sampled from: one for each sequence, and one for each draft, as if those
 * before it were right. They lie behind all table changes, so the step must be complete but for them. */
static void write_adjustments(sl_scheduler *s) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    sl_step_header *head = sl_step_head(block_of(s));
    sl_adjustment *adjustments = sl_step_adjustments(layout, block_of(s));
    for (int32_t i = 0; i < head->spans; i++) {
        const sl_part *part = &s->steps[s->next].parts[i];
        const sl_sequence *sequence = part->sequence;
        const bool sampled =
            part->outputs > 0 && part->work->generate > 0 && part->end - part->drafts >= sequence->count;
        for (int32_t k = part->work->adjust && sampled ? part->drafts : -1; k >= 0; k--) {
            const int32_t count = part->end - k;
            sl_step_output *output =
                &sl_step_outputs(layout, block_of(s))[part->first_output + part->outputs - 1 - k];
            output->adjustment_first = head->adjustments;
            output->adjustment_count =
                sl_adjust_write(part->work->adjust, sequence->tokens, count, adjustments + head->adjustments);
            head->adjustments += output->adjustment_count;
        }
    }
}

/* How a step stands to others. */
typedef struct step_way {
    bool waits_for_masks, overlaps, half;
} step_way;

static int32_t end_step(sl_scheduler *s, step_way way, int32_t *bucket) {
    const sl_step_header *head = sl_step_head(block_of(s));
    sl_step *step = &s->steps[s->next];
    step->overlaps = way.overlaps;
    step->half = way.half;
    step->works = count_generating(s);
    write_adjustments(s);
    sl_mask_number(s, way.waits_for_masks);
    *bucket = sl_plan_bucket(s->plan, head);
    step->bucket = *bucket;
    s->next = (s->next + 1) % SL_STEPS;
    s->in_flight++;
    return head->rows;
}

/* Of those who generate, how many the step to be built is for: of two halves the larger; 0: they are not
 * divided. */
static int32_t half_of_all(const sl_scheduler *s) {
    const sl_backend *backend = s->plan->backend;
    if (backend->stages < 2 || backend->steps_in_flight < SL_STEPS || s->options.source.draft ||
        s->halving == SL_HALVING_NEVER) {
        return 0;
    }
    const int32_t works = count_generating(s);
    const bool halved = works >= 2 && (s->halving == SL_HALVING_ALWAYS || sl_halves_pay(&s->halves, works));
    return halved ? (works + 1) / 2 : 0;
}

int32_t sl_scheduler_build(sl_scheduler *s, int32_t *bucket) {
    finish_cancelled(s);
    s->last_try = false;
    /* Where nothing could be built beside a half, the other one is not to wait again. */
    const int32_t half = s->lone_half ? 0 : half_of_all(s);
    s->lone_half = false;
    for (; s->first; s->last_try = !s->last_try) {
        const bool by_rank = s->last_try || s->memory_short;
        step_room room;
        const sl_step_header *head = begin_step(s, &room);
        s->memory_short = false;
        s->builds++;
        sl_admit(s, s->last_try);
        const bool divided = half > 0 && !by_rank;
        room.generating = divided ? half : room.generating;
        add_works(s, &room, by_rank);
        if (head->spans > 0) {
            s->lone_half = divided;
            return end_step(s, (step_way){.half = divided}, bucket);
        }
        sl_work *stuck = sl_first_in_rank(s);
        if (!stuck || (stuck->unread && sl_scheduler_may_load(stuck))) {
            return 0;
        }
        if (s->last_try) {
            /* It never will run: everything else was given up for it. */
            sl_error error;
            sl_fail(&error, SL_ERR_LIMIT,
                    "cache: %d tokens need more pages than the cache has; raise cache_tokens",
                    stuck->sequence->count);
            sl_finish_work(s, stuck, SL_FINISH_ERROR, &error);
        }
    }
    return 0;
}

/* ---- a step that follows another
 * ------------------------------------------------------------------------------------------------ */

/* Does the step in flight leave more of a prompt, or exactly the sampled token, to go on with, which must
 * then be computed whatever it is? */
static bool goes_on(const sl_scheduler *s, const sl_part *part) {
    const sl_work *work = part->work;
    if (!work || part->drafts > 0 || !may_go_on(s, work)) {
        return false;
    }
    const int32_t count = part->sequence->count;
    return part->sequence->timeline.cached + part->rows < count ||
           (work->generate >= 2 && !sl_adjust_reads_tokens(work->adjust) && count < s->limits->context);
}

static bool can_follow(sl_scheduler *s) {
    if (s->plan->backend->steps_in_flight < SL_STEPS || s->in_flight != 1) {
        return false;
    }
    const sl_step *before = sl_flying(s, 0);
    for (int32_t i = 0; i < sl_step_head(before->block)->spans; i++) {
        if (!goes_on(s, &before->parts[i])) {
            return false;
        }
    }
    /* The next step is for all who could be in it. */
    for (const sl_work *work = s->first; work; work = work->next) {
        const bool admitted = work->sequence->slot != SL_NONE;
        if (!work->sequence->in_step && (work->cancelled || (admitted && !work->blocked))) {
            return false;
        }
    }
    return !sl_could_admit(s);
}

/* Can the devices work on the step in flight and the next one at once? Not if that takes what this one
 * samples. Both are of the same sequences. */
static bool overlaps(sl_scheduler *s) {
    const sl_step *before = sl_flying(s, 0);
    bool known = s->plan->backend->stages > 1;
    for (int32_t i = 0; i < sl_step_head(before->block)->spans && known; i++) {
        const sl_part *part = &before->parts[i];
        known = part->end < part->sequence->count;
    }
    return known;
}

double sl_scheduler_follow_after(sl_scheduler *s) {
    /* For building and submitting; and for steps that turn out shorter. */
    static const double LEAD_SECONDS = 1e-3, LEAD_PART = 0.25;
    if (half_of_all(s) > 0) {
        return s->in_flight == 1 ? 0 : -1;
    }
    if (!can_follow(s)) {
        return -1;
    }
    if (overlaps(s)) {
        return 0; /* the first device waits for it already, or soon */
    }
    const double step = s->budget.buckets[sl_flying(s, 0)->bucket].least;
    const double lead = step * LEAD_PART > LEAD_SECONDS ? step * LEAD_PART : LEAD_SECONDS;
    return step > lead ? step - lead : 0;
}

/* For those who are not in the step in flight: built as if there were none, but for what that holds. What
 * would need it back is left for when nothing is in flight. So is what must be read from files first. */
static int32_t build_beside(sl_scheduler *s, int32_t half, int32_t *bucket) {
    if (s->in_flight != 1 || s->memory_short || sl_would_displace(s) || sl_scheduler_could_load(s)) {
        return 0;
    }
    const sl_step *before = sl_flying(s, 0);
    finish_cancelled(s);
    s->builds++;
    for (int32_t i = 0; i < sl_step_head(before->block)->spans; i++) {
        sl_part *part = &before->parts[i];
        if (goes_on(s, part) && part->end < part->sequence->count) {
            sl_advance_part(s, part, 0);
            part->work->ahead_in = s->builds;
        }
    }
    step_room room;
    const sl_step_header *head = begin_step(s, &room);
    room.beside = true;
    room.generating = half;
    s->last_try = false;
    sl_admit(s, false);
    add_works(s, &room, false);
    if (head->spans == 0) {
        return 0;
    }
    s->lone_half = false;
    s->counters.halved_steps++;
    return end_step(s, (step_way){.overlaps = true, .half = true}, bucket);
}

int32_t sl_scheduler_follow(sl_scheduler *s, int32_t *bucket) {
    const int32_t half = half_of_all(s);
    if (half > 0) {
        return build_beside(s, half, bucket);
    }
    if (!can_follow(s)) {
        return 0;
    }
    const sl_step *before = sl_flying(s, 0);
    const int32_t spans = sl_step_head(before->block)->spans;
    const bool at_once = overlaps(s);
    step_room room;
    const sl_step_header *head = begin_step(s, &room);
    room.follows = true;
    int32_t known = 0; /* works whose next tokens are */
    for (int32_t i = 0; i < spans; i++) {
        sl_part *part = &before->parts[i];
        /* The rows' tokens are known, and the step that computes them ends before any that reads them. */
        sl_advance_part(s, part, 0);
        if (sl_pending(part->work) > 0) {
            s->order[known++] = part->work;
        } else {
            take_rows(s, part->work, &(row_choice){.rows = 1, .outputs = 1}, false, &room);
        }
    }
    add_ordered(s, known, &room);
    if (head->spans == 0) {
        return 0;
    }
    s->counters.following_steps++;
    return end_step(s, (step_way){.waits_for_masks = true, .overlaps = at_once}, bucket);
}

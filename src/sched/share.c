/* What works take over of each other: from the index at once, or from a work that is about to compute it. */
#include "sched/scheduler.h"

#include "sched/internal.h"

#include <string.h>

static bool shares(const sl_scheduler *s, const sl_work *work) {
    return s->options.reuse && !work->sequence->timeline.unshared;
}

int32_t sl_reuse_limit(const sl_work *work) {
    const sl_sequence *sequence = work->sequence;
    if (sequence->compaction_count > 0) {
        return sequence->compactions[0].first;
    }
    const int32_t limit = sequence->count - 1;
    return work->logits == SL_LOGITS_ALL && work->logits_from < limit ? work->logits_from : limit;
}

/* The last place in a prompt where a step ends before all of it is there: in front of the last token, or of
 * those that choose what is kept. */
static int32_t last_place(const sl_work *work) {
    const sl_sequence *sequence = work->sequence;
    return sequence->compaction_count > 0 ? sequence->compactions[0].first : work->prompt_end - 1;
}

/* ---- waiting for another
 * ----------------------------------------------------------------------------------------- */

/* Is it going to compute more in the step being built, as far as one can tell? */
static bool goes_ahead(const sl_scheduler *s, const sl_work *other) {
    return other->sequence->slot != SL_NONE && !other->blocked && !other->cancelled && !other->waits_for &&
           (other->ready_in == s->builds || other->built_in + 1 >= s->builds);
}

/* How much of `work` could be taken over when `other` has computed what they have in common; 0 when that is
 * computed, or cannot be. */
static int32_t usable_after(const sl_scheduler *s, const sl_work *work, const sl_work *other) {
    const sl_sequence *mine = work->sequence, *theirs = other->sequence;
    const int32_t limit = sl_reuse_limit(work);
    const int32_t most = limit < theirs->count ? limit : theirs->count;
    int32_t common = 0;
    while (common < most && mine->tokens[common] == theirs->tokens[common]) {
        common++;
    }
    if (s->program->state_count && !(common == limit && last_place(other) == limit)) {
        common -= common % SL_PAGE_TOKENS; /* where it can be made to stop */
    }
    return theirs->timeline.cached < common ? common : 0;
}

/* A work that is about to compute more of this one's beginning than its first `usable` tokens, by a page at
 * least or up to the limit. */
static sl_work *find_leader(const sl_scheduler *s, const sl_work *work, int32_t usable, int32_t *until) {
    const sl_sequence *mine = work->sequence;
    sl_work *leader = NULL;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        sl_work *other = s->slots[i] ? s->slots[i]->work : NULL;
        if (!other || other == work || !goes_ahead(s, other) || !shares(s, other) ||
            other->sequence->timeline.salt != mine->timeline.salt || other->sequence->count <= usable ||
            other->sequence->tokens[0] != mine->tokens[0] ||
            other->sequence->tokens[usable] != mine->tokens[usable]) {
            continue;
        }
        const int32_t common = usable_after(s, work, other);
        const int32_t least = leader ? *until : usable;
        if (common > least && (common - usable >= SL_PAGE_TOKENS || common == sl_reuse_limit(work))) {
            leader = other;
            *until = common;
        }
    }
    return leader;
}

static bool still_waits(const sl_scheduler *s, const sl_work *work) {
    const sl_work *leader = work->waits_for;
    return leader && goes_ahead(s, leader) && leader->sequence->timeline.cached < work->waits_until;
}

void sl_share_end(sl_scheduler *s, const sl_work *work) {
    for (sl_work *w = s->first; w; w = w->next) {
        w->waits_for = w->waits_for == work ? NULL : w->waits_for;
    }
}

/* ---- taking over
 * ------------------------------------------------------------------------------------------------- */

static void note(sl_work *work, sl_match match) {
    const int32_t limit = sl_reuse_limit(work);
    const int32_t last = work->sequence->compaction_count > 0 ? limit : work->sequence->count - 1;
    const int32_t known = match.matched < limit ? match.matched : limit;
    work->noted = true;
    work->reused = match.usable;
    work->matched = match.matched;
    work->reuse = match.usable == last                             ? SL_REUSE_ALL
                  : match.usable < known                           ? SL_REUSE_STATE
                  : match.usable == limit && match.matched > limit ? SL_REUSE_LOGITS
                                                                   : SL_REUSE_NEW;
}

/* A sequence that goes on where it was needs nothing of others. */
static void note_own(sl_work *work) {
    work->noted = true;
    work->matched = work->sequence->timeline.cached;
    work->reuse = sl_pending(work) == 1 ? SL_REUSE_ALL : SL_REUSE_NEW;
}

void sl_share_loaded(sl_scheduler *s, sl_work *work) {
    const int32_t cached = work->sequence->timeline.cached;
    if (!work->started) {
        note(work, (sl_match){cached, cached});
    }
    s->counters.reused_tokens += (uint64_t)cached;
}

bool sl_share_begin(sl_scheduler *s, sl_work *work) {
    sl_timeline *t = &work->sequence->timeline;
    if (!shares(s, work)) {
        work->noted = true;
        work->reuse = SL_REUSE_OFF;
    } else if (t->cached > 0) {
        if (!work->noted) {
            note_own(work);
        }
    } else {
        const sl_beginning beginning = {work->sequence->tokens, work->sequence->count, sl_reuse_limit(work)};
        if (!work->started) {
            if (still_waits(s, work)) {
                return false;
            }
            const sl_match now = sl_timeline_match(s->cache, t, &beginning);
            work->waits_for = find_leader(s, work, now.usable, &work->waits_until);
            if (work->waits_for) {
                return false;
            }
        }
        const sl_match match = sl_timeline_resume(s->cache, t, &beginning);
        s->counters.reused_tokens += (uint64_t)match.usable;
        if (!work->started) {
            note(work, match);
        }
        const int32_t known = match.matched < beginning.limit ? match.matched : beginning.limit;
        work->branch = known > match.usable ? known - known % SL_PAGE_TOKENS : 0;
    }
    work->ready_in = s->builds;
    return true;
}

/* ---- leaving
 * --------------------------------------------------------------------------------------------------- */

/* Where a state is worth keeping, among those at which a step may be made to end: before the prompt's last
 * token, because that is always computed; at the last page's end before, for prompts that end a little
 * differently; where others went on differently; and where others wait for it. */
static bool is_place(const sl_scheduler *s, const sl_work *work, int32_t cached) {
    const int32_t last = last_place(work);
    bool place = cached == last || cached == last - last % SL_PAGE_TOKENS || cached == work->branch;
    for (int32_t i = 0; i < s->limits->sequences && !place; i++) {
        const sl_work *other = s->slots[i] ? s->slots[i]->work : NULL;
        place = other && other->waits_for == work && other->waits_until == cached;
    }
    return place;
}

void sl_share_keep(sl_scheduler *s, const sl_work *work) {
    const sl_sequence *sequence = work->sequence;
    const int32_t cached = sequence->timeline.cached;
    if (cached > work->prompt_end) {
        return;
    }
    if (s->program->state_count ? is_place(s, work, cached) : cached == work->prompt_end) {
        sl_timeline_keep(s->cache, &sequence->timeline, sequence->tokens, SL_KEEP_PROMPT);
    }
}

int32_t sl_share_cut(const sl_scheduler *s, const sl_work *work, int32_t rows) {
    if (!shares(s, work) || s->program->state_count == 0 || rows <= 1) {
        return rows;
    }
    const int32_t cached = work->sequence->timeline.cached, last = last_place(work);
    int32_t end = cached + rows;
    if (cached < last && last < end) {
        end = last;
    }
    /* A state can be shared within a page only by those who have all of it: stop at the last page's end, but
     * do not pass by a place. */
    const int32_t boundary = end - end % SL_PAGE_TOKENS;
    end = boundary > cached ? boundary : end;
    if (work->branch > cached && work->branch < end) {
        end = work->branch;
    }
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        const sl_work *other = s->slots[i] ? s->slots[i]->work : NULL;
        if (other && other->waits_for == work && other->waits_until > cached && other->waits_until < end) {
            end = other->waits_until;
        }
    }
    return end - cached;
}

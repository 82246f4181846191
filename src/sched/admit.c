/* Who goes next: groups, slots, and whose memory is taken. */
#include "sched/scheduler.h"

#include "base/alloc.h"
#include "sched/internal.h"

#include <string.h>

/* ---- groups
 * ------------------------------------------------------------------------------------------------------ */

/* Frees groups without works that owe nothing: had they works, all groups would have been served as much. */
static void free_settled_groups(sl_scheduler *s) {
    for (sl_group **link = &s->groups; *link;) {
        sl_group *group = *link;
        if (group->works == 0 && (s->active_groups == 0 || group->served <= s->virtual_time)) {
            *link = group->next;
            sl_free(group);
        } else {
            link = &group->next;
        }
    }
}

bool sl_join_group(sl_scheduler *s, sl_work *work) {
    sl_group *group = s->groups;
    while (group && group->id != work->group) {
        group = group->next;
    }
    if (!group) {
        group = sl_alloc_zero(1, sizeof *group);
        if (!group) {
            return false;
        }
        group->id = work->group;
        group->next = s->groups;
        s->groups = group;
    }
    if (group->works++ == 0) {
        s->active_groups++;
        group->served = group->served > s->virtual_time ? group->served : s->virtual_time;
    }
    work->owner = group;
    return true;
}

void sl_leave_group(sl_scheduler *s, sl_work *work) {
    if (--work->owner->works == 0) {
        s->active_groups--;
    }
    work->owner = NULL;
    free_settled_groups(s);
}

void sl_serve(sl_scheduler *s, sl_work *work, int32_t rows) {
    work->owner->served += rows;
    s->virtual_time += (double)rows / s->active_groups;
}

static void count_slots(sl_scheduler *s) {
    for (sl_group *group = s->groups; group; group = group->next) {
        group->slots = 0;
    }
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        if (s->slots[i] && s->slots[i]->work) {
            s->slots[i]->work->owner->slots++;
        }
    }
}

/* ---- order
 * ------------------------------------------------------------------------------------------------------ */

bool sl_outranks(const sl_work *a, const sl_work *b) {
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

sl_work *sl_first_in_rank(const sl_scheduler *s) {
    sl_work *first = NULL;
    for (sl_work *work = s->first; work; work = work->next) {
        if (!work->blocked && (!first || sl_outranks(work, first))) {
            first = work;
        }
    }
    return first;
}

static bool comes_first(const sl_work *a, const sl_work *b, bool by_rank) {
    if (by_rank || a->priority != b->priority || a->owner == b->owner) {
        return sl_outranks(a, b);
    }
    return a->owner->served != b->owner->served ? a->owner->served < b->owner->served : sl_outranks(a, b);
}

int32_t sl_order_admitted(sl_scheduler *s, bool by_rank) {
    int32_t count = 0;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        sl_work *work = s->slots[i] ? s->slots[i]->work : NULL;
        if (work && !work->blocked && !work->unread) {
            int32_t at = count++;
            for (; at > 0 && comes_first(work, s->order[at - 1], by_rank); at--) {
                s->order[at] = s->order[at - 1];
            }
            s->order[at] = work;
        }
    }
    return count;
}

/* ---- slots
 * ------------------------------------------------------------------------------------------------------ */

/* A slot that nobody needs: a free one, or that of the sequence unused for longest that has no work and is in
 * no step. SL_NONE when there is none. */
static int32_t find_slot(const sl_scheduler *s) {
    int32_t best = SL_NONE;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        const sl_sequence *holder = s->slots[i];
        if (!holder) {
            return i;
        }
        if (!holder->work && !holder->in_step &&
            (best == SL_NONE || holder->last_used < s->slots[best]->last_used)) {
            best = i;
        }
    }
    return best;
}

static void give_slot(sl_scheduler *s, sl_work *work, int32_t slot) {
    sl_sequence *sequence = work->sequence;
    if (s->slots[slot]) {
        s->slots[slot]->slot = SL_NONE;
    }
    s->slots[slot] = sequence;
    sequence->slot = slot;
    memset(sequence->timeline.dirty_from, 0, sizeof sequence->timeline.dirty_from);
    work->owner->slots++;
}

/* May `work`, which has no slot, take the one of `holder`? */
static bool displaces(const sl_work *work, const sl_work *holder, bool by_rank) {
    if (by_rank) {
        return holder->blocked || sl_outranks(work, holder);
    }
    return work->priority != holder->priority ? work->priority > holder->priority
                                              : work->owner->slots + 1 < holder->owner->slots;
}

/* Of those whose slot it may take the lowest priority, there the group with most slots, there the last come.
 */
static sl_work *find_displaced(const sl_scheduler *s, const sl_work *work, bool by_rank) {
    sl_work *worst = NULL;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        sl_work *holder = s->slots[i] ? s->slots[i]->work : NULL;
        if (!holder || !displaces(work, holder, by_rank)) {
            continue;
        }
        const bool more_slots = worst && !by_rank && holder->priority == worst->priority &&
                                holder->owner->slots != worst->owner->slots;
        const bool worse = !worst       ? true
                           : more_slots ? holder->owner->slots > worst->owner->slots
                                        : sl_outranks(worst, holder);
        worst = worse ? holder : worst;
    }
    return worst;
}

/* Who gets the next slot, of those without. */
static sl_work *find_next(const sl_scheduler *s, bool by_rank) {
    sl_work *best = NULL;
    for (sl_work *work = s->first; work; work = work->next) {
        if (work->sequence->slot != SL_NONE || work->blocked) {
            continue;
        }
        const bool fewer_slots =
            best && !by_rank && work->priority == best->priority && work->owner->slots != best->owner->slots;
        const bool better = !best         ? true
                            : fewer_slots ? work->owner->slots < best->owner->slots
                                          : comes_first(work, best, by_rank);
        best = better ? work : best;
    }
    return best;
}

void sl_admit(sl_scheduler *s, bool by_rank) {
    count_slots(s);
    sl_work *work = find_next(s, by_rank);
    /* As many as there are slots: within one step nobody gives up a slot just taken. */
    for (int32_t given = 0; work && given < s->limits->sequences; given++) {
        int32_t slot = find_slot(s);
        if (slot == SL_NONE) {
            sl_work *displaced = find_displaced(s, work, by_rank);
            if (!displaced || displaced->sequence->in_step) {
                return;
            }
            slot = displaced->sequence->slot;
            displaced->owner->slots--;
        }
        give_slot(s, work, slot);
        work = find_next(s, by_rank);
    }
}

bool sl_could_admit(sl_scheduler *s) {
    count_slots(s);
    const sl_work *work = find_next(s, false);
    return work && (find_slot(s) != SL_NONE || find_displaced(s, work, false));
}

bool sl_would_displace(sl_scheduler *s) {
    count_slots(s);
    const sl_work *work = find_next(s, false);
    return work && find_slot(s) == SL_NONE && find_displaced(s, work, false);
}

/* ---- memory
 * ------------------------------------------------------------------------------------------------------ */

static bool has_cache(const sl_sequence *sequence) {
    const sl_timeline *t = &sequence->timeline;
    bool has = t->cached > 0;
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        has |= t->page_count[g] > 0;
    }
    return has;
}

bool sl_preempt_one(sl_scheduler *s, const sl_work *work) {
    sl_sequence *victim = NULL;
    for (sl_sequence *q = s->oldest_sequence; q; q = q->newer) {
        if (!q->work && !q->in_step && has_cache(q) && (!victim || q->last_used < victim->last_used)) {
            victim = q;
        }
    }
    if (!victim) {
        const sl_work *lowest = NULL;
        for (const sl_work *w = s->last; w; w = w->previous) {
            const bool yields = sl_outranks(work, w) || (s->last_try && w->blocked);
            if (!w->sequence->in_step && has_cache(w->sequence) && yields &&
                (!lowest || sl_outranks(lowest, w))) {
                lowest = w;
            }
        }
        if (!lowest) {
            return false;
        }
        victim = lowest->sequence;
        sl_release_slot(s, victim);
        sl_share_end(s, lowest);
    }
    /* The index gives it up piece by piece, as it is needed. */
    sl_timeline_keep(s->cache, &victim->timeline, victim->tokens, SL_KEEP_PROMPT);
    sl_timeline_reset(s->cache, &victim->timeline);
    if (victim->work) {
        sl_await_loading(s, victim->work);
    }
    s->counters.preemptions += victim->work != NULL;
    return true;
}

/* Works wait for files: kv/keeper.h reads what they begin with, between steps. */
#include "sched/scheduler.h"

#include "sched/internal.h"

void sl_await_loading(const sl_scheduler *s, sl_work *work) {
    const sl_timeline *t = &work->sequence->timeline;
    work->unread = s->loads && t->cached == 0 && !t->unshared;
    work->load_end = SL_NONE;
    work->loaded = 0;
}

void sl_scheduler_loads(sl_scheduler *s) {
    s->loads = true;
}

bool sl_scheduler_may_load(const sl_work *work) {
    return work->sequence->slot != SL_NONE;
}

/* The next to be looked at. Files are looked for before it has a slot, and loaded when it has one. */
static sl_work *find_unread(const sl_scheduler *s) {
    sl_work *work = s->first;
    while (work && (!work->unread || work->cancelled ||
                    (work->load_end != SL_NONE && !sl_scheduler_may_load(work)))) {
        work = work->next;
    }
    return work;
}

bool sl_scheduler_could_load(const sl_scheduler *s) {
    return s->loads && find_unread(s) != NULL;
}

sl_work *sl_scheduler_unread(sl_scheduler *s, sl_load *load) {
    sl_admit(s, false);
    sl_work *work = find_unread(s);
    if (work) {
        sl_timeline *t = &work->sequence->timeline;
        const sl_beginning beginning = {work->sequence->tokens, work->sequence->count, sl_reuse_limit(work)};
        const int32_t known =
            t->cached == 0 ? sl_timeline_resume_pages(s->cache, t, &beginning).usable : t->cached;
        *load = (sl_load){.timeline = t,
                          .salt = t->salt,
                          .tokens = work->sequence->tokens,
                          .limit = sl_reuse_limit(work),
                          .known = known,
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
        sl_share_loaded(s, work);
    }
}

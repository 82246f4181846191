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

bool sl_scheduler_may_load(const sl_scheduler *s, const sl_work *work) {
    int32_t before = 0;
    for (const sl_work *w = s->first; w && w != work; w = w->next) {
        before++;
    }
    return before < s->limits->sequences;
}

/* Takes over whole pages of the index: files go on at a page's end. */
static void resume_pages(sl_scheduler *s, sl_work *work) {
    sl_timeline *t = &work->sequence->timeline;
    const sl_beginning beginning = {work->sequence->tokens, work->sequence->count, sl_reuse_limit(work)};
    const sl_match match = sl_timeline_resume(s->cache, t, &beginning);
    sl_timeline_truncate(s->cache, t, match.usable - match.usable % SL_PAGE_TOKENS);
    if (t->cached % SL_PAGE_TOKENS) {
        sl_timeline_reset(s->cache, t);
    }
}

sl_work *sl_scheduler_unread(sl_scheduler *s, sl_load *load) {
    sl_work *work = s->first;
    while (work && (!work->unread || work->cancelled ||
                    (work->load_end != SL_NONE && !sl_scheduler_may_load(s, work)))) {
        work = work->next;
    }
    if (work) {
        sl_timeline *t = &work->sequence->timeline;
        if (t->cached == 0) {
            resume_pages(s, work);
        }
        *load = (sl_load){.timeline = t,
                          .salt = t->salt,
                          .tokens = work->sequence->tokens,
                          .limit = sl_reuse_limit(work),
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

#include "sched/drafter.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

/* What the drafter has for one slot of the target. */
typedef struct drafting {
    sl_work work; /* first: callbacks get a pointer to it */
    const sl_tokenizer *tokenizer;
    sl_sequence *held; /* of the target, between begin and end */
    int32_t position;  /* of the first draft */
    int32_t drafts[SL_DRAFTS];
    int32_t count;
    bool runs;
} drafting;

struct sl_drafter {
    sl_drafter_options options;
    sl_scheduler *scheduler;
    drafting *slots;      /* [options.slots] */
    sl_draft_want *wants; /* [options.slots] */
    double seconds;       /* of the last run; 0: it read a prompt too */
    int32_t drafted;      /* in it */
    bool gone;
};

static sl_finish on_token(sl_work *work, int32_t token) {
    drafting *d = (drafting *)work;
    d->drafts[d->count++] = token;
    return d->tokenizer && sl_tokenizer_is_eog(d->tokenizer, token) ? SL_FINISH_EOS : SL_FINISH_LENGTH;
}

static void on_done(sl_work *work, sl_finish finish, const sl_error *error) {
    (void)finish;
    (void)error;
    ((drafting *)work)->runs = false;
}

int sl_drafter_create(const sl_drafter_options *options, sl_drafter **out, sl_error *error) {
    *out = NULL;
    sl_drafter *d = sl_alloc_zero(1, sizeof *d);
    if (!d) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for drafts");
    }
    d->options = *options;
    d->slots = sl_alloc_zero((size_t)options->slots, sizeof *d->slots);
    d->wants = sl_alloc_zero((size_t)options->slots, sizeof *d->wants);
    int result = d->slots && d->wants ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for drafts");
    const sl_scheduler_options scheduling = {.reuse = true};
    result = result
                 ? result
                 : sl_scheduler_create(options->plan, options->executor, &scheduling, &d->scheduler, error);
    for (int32_t i = 0; i < options->slots && result == 0; i++) {
        result = sl_sequence_create(d->scheduler, &d->slots[i].work.sequence, error);
        d->slots[i].tokenizer = options->tokenizer;
    }
    if (result) {
        sl_drafter_destroy(d);
        return result;
    }
    *out = d;
    return 0;
}

void sl_drafter_destroy(sl_drafter *d) {
    if (d) {
        sl_scheduler_destroy(d->scheduler);
        sl_free(d->slots);
        sl_free(d->wants);
        sl_free(d);
    }
}

/* Puts the drafter's sequence where the target's is, and asks for drafts. False: it cannot have any. */
static bool start(sl_drafter *d, drafting *slot, const sl_draft_want *want) {
    sl_sequence *mine = slot->work.sequence;
    const sl_sequence *theirs = want->sequence;
    int32_t common = 0;
    const int32_t most = mine->count < theirs->count ? mine->count : theirs->count;
    while (common < most && mine->tokens[common] == theirs->tokens[common]) {
        common++;
    }
    sl_sequence_rollback(d->scheduler, mine, common);
    const sl_timeline *theirs_at = &theirs->timeline;
    if (common == 0) {
        mine->salted = false;
    }
    slot->work = (sl_work){.sequence = mine,
                           .generate = want->most < SL_DRAFTS ? want->most : SL_DRAFTS,
                           .on_token = on_token,
                           .on_done = on_done,
                           .cache_salt = theirs_at->salt,
                           .no_reuse = theirs_at->unshared};
    slot->count = 0;
    slot->position = theirs->count;
    sl_error ignored; /* the sequence is longer than the draft model can read: no drafts */
    slot->runs = sl_scheduler_submit(d->scheduler, &slot->work, theirs->tokens + common,
                                     (size_t)(theirs->count - common), &ignored) == 0;
    return slot->runs;
}

bool sl_drafter_begin(sl_drafter *d, sl_scheduler *target) {
    const int32_t count = d->gone ? 0 : sl_scheduler_wants_drafts(target, d->wants);
    bool any = false;
    d->seconds = 0;
    d->drafted = 0;
    for (int32_t i = 0; i < count; i++) {
        const sl_draft_want *want = &d->wants[i];
        drafting *slot = &d->slots[want->sequence->slot];
        if (start(d, slot, want)) {
            slot->held = want->sequence;
            want->sequence->in_step++; /* nobody frees it, or changes its tokens */
            any = true;
        }
    }
    return any;
}

int sl_drafter_run(sl_drafter *d, sl_error *error) {
    const sl_backend_functions *functions = d->options.plan->backend->functions;
    const double begin = sl_seconds_now();
    int32_t bucket, rows, most_rows = 0;
    int result = 0;
    while (result == 0 && (rows = sl_scheduler_build(d->scheduler, &bucket)) > 0) {
        most_rows = rows > most_rows ? rows : most_rows;
        result = functions->submit(d->options.executor, bucket, error);
        result = result ? result : functions->wait(d->options.executor, error);
        sl_scheduler_commit(d->scheduler, result, error);
    }
    if (result) {
        d->gone = result == SL_ERR_DEVICE;
        sl_scheduler_fail_all(d->scheduler, error);
    }
    for (int32_t i = 0; i < d->options.slots; i++) {
        d->drafted += d->slots[i].held ? d->slots[i].count : 0;
    }
    d->seconds = most_rows <= d->options.slots * (SL_DRAFTS + 1) ? sl_seconds_now() - begin : 0;
    return result;
}

void sl_drafter_end(sl_drafter *d, sl_scheduler *target) {
    for (int32_t i = 0; i < d->options.slots; i++) {
        sl_sequence *held = d->slots[i].held;
        d->slots[i].held = NULL;
        if (held) {
            sl_scheduler_let_go(target, held);
        }
    }
    sl_scheduler_drafted(target, d->drafted, d->seconds);
}

int32_t sl_drafter_draft(void *context, const sl_draft_query *query, int32_t *drafts) {
    const sl_drafter *d = context;
    const drafting *slot = &d->slots[query->slot];
    if (slot->position != query->count || slot->work.sequence->count < query->count ||
        memcmp(slot->work.sequence->tokens, query->tokens, (size_t)query->count * sizeof *query->tokens) !=
            0) {
        return 0;
    }
    const int32_t count = slot->count < query->most ? slot->count : query->most;
    memcpy(drafts, slot->drafts, (size_t)count * sizeof *drafts);
    return count;
}

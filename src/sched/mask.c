/* Masks of a step: what the grammars of its sequences let follow. They are made by several threads side by
 * side, one sequence at a time, and without the engine's lock. */
#include "sched/scheduler.h"

#include "base/cpu.h"
#include "sched/internal.h"

#include <stdatomic.h>
#include <string.h>

enum { MOST_THREADS = 16 };

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

int sl_mask_prepare(sl_scheduler *s, const sl_work *work, sl_error *error) {
    if (!work->matcher || s->mask_pool) {
        return 0;
    }
    const int32_t threads = smaller(smaller(sl_cpu_count(), MOST_THREADS), s->limits->sequences);
    return sl_pool_create(threads, &s->mask_pool, error);
}

void sl_mask_number(sl_scheduler *s, bool later) {
    const sl_step *step = &s->steps[s->next];
    sl_step_header *head = sl_step_head(step->block);
    sl_step_output *outputs = sl_step_outputs(&s->plan->deployment.step, step->block);
    for (int32_t i = 0; i < head->spans; i++) {
        sl_part *part = &step->parts[i];
        part->mask_error.code = 0;
        part->masked = part->work->matcher && part->outputs > 0 && part->work->generate > 0 &&
                       part->end - part->drafts >= part->sequence->count;
        for (int32_t k = part->masked ? part->drafts : -1; k >= 0; k--) {
            outputs[part->first_output + part->outputs - 1 - k].mask = head->masks++;
        }
    }
    head->masks_later = later && head->masks > 0;
}

/* What the threads share. */
typedef struct filling {
    const sl_scheduler *scheduler;
    const sl_step *step;
    int32_t spans;
    _Atomic int32_t next;
} filling;

/* A work that has ended or gone further meanwhile, or whose mask cannot be made, gets one that allows all:
 * its token is not used. So does what comes behind a draft that cannot follow. */
static void fill_part(const sl_scheduler *s, const sl_step *step, sl_part *part) {
    const sl_step_layout *layout = &s->plan->deployment.step;
    const int32_t first = part->first_output + part->outputs - 1 - part->drafts;
    const size_t words = (size_t)sl_mask_words(layout->limits.mask_tokens);
    bool used = part->work && part->end - part->drafts >= part->sequence->count &&
                sl_forced_next(part->work->forced) == SL_NONE;
    sl_matcher *matcher = used ? part->work->matcher : NULL;
    int32_t taken = 0; /* drafts that the matcher stands behind */
    for (int32_t k = 0; k <= part->drafts; k++) {
        const sl_step_output *output = &sl_step_outputs(layout, step->block)[first + k];
        uint32_t *mask = sl_step_masks(layout, step->block) + (size_t)output->mask * words;
        if (used && k > 0) {
            const int32_t draft = part->sequence->tokens[part->sequence->count + k - 1];
            const int result = sl_matcher_accept(matcher, draft, &part->mask_error);
            taken += result > 0;
            used = result > 0 && !sl_matcher_has_ended(matcher);
        }
        memset(mask, 0, words * sizeof *mask);
        if (!used || sl_matcher_mask(matcher, mask, &part->mask_error)) {
            memset(mask, 255, words * sizeof *mask);
        }
    }
    if (taken > 0) {
        sl_matcher_rollback(matcher, taken, &part->mask_error);
    }
}

static void fill_some(void *context, int thread, int threads) {
    filling *f = context;
    (void)thread;
    (void)threads;
    for (int32_t i; (i = atomic_fetch_add(&f->next, 1)) < f->spans;) {
        if (f->step->parts[i].masked) {
            fill_part(f->scheduler, f->step, &f->step->parts[i]);
        }
    }
}

bool sl_scheduler_fill_masks(sl_scheduler *s) {
    const sl_step *step = sl_flying(s, s->in_flight - 1);
    const sl_step_header *head = sl_step_head(step->block);
    filling f = {.scheduler = s, .step = step, .spans = head->spans};
    if (head->masks > 1) {
        sl_pool_run(s->mask_pool, fill_some, &f);
    } else if (head->masks == 1) {
        fill_some(&f, 0, 1);
    }
    return head->masks_later != 0;
}

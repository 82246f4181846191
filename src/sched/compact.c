/* Where prompts end behind which a sequence keeps a part of its cache alone. Such a place follows from the
 * requests, and from nothing that happens to them: a sequence that lost its cache is compacted at the same
 * places when it is computed again. */
#include "sched/scheduler.h"

#include "base/alloc.h"
#include "sched/internal.h"

#include <string.h>

bool sl_compact_create(const sl_scheduler *s, sl_sequence *sequence) {
    if (s->limits->keep == 0) {
        return true;
    }
    /* Each has a window of its own. */
    const size_t most = (size_t)(s->limits->context / s->plan->options.kv_window) + 1;
    sequence->compactions = sl_alloc(most * sizeof *sequence->compactions);
    return sequence->compactions != NULL;
}

void sl_compact_fork(const sl_sequence *sequence, sl_sequence *fork) {
    fork->compaction_count = sequence->compaction_count;
    if (sequence->compaction_count > 0) {
        memcpy(fork->compactions, sequence->compactions,
               (size_t)sequence->compaction_count * sizeof *fork->compactions);
    }
}

void sl_compact_forget(sl_sequence *sequence, int32_t length) {
    while (sequence->compaction_count > 0 &&
           sequence->compactions[sequence->compaction_count - 1].end > length) {
        sequence->compaction_count--;
    }
}

void sl_compact_submit(const sl_scheduler *s, sl_work *work, size_t count) {
    sl_sequence *sequence = work->sequence;
    const int32_t keep = s->limits->keep, window = s->plan->options.kv_window, end = sequence->count;
    if (work->logits == SL_LOGITS_ALL) {
        sl_compact_forget(sequence, work->logits_from);
        return;
    }
    const int32_t before =
        sequence->compaction_count > 0 ? sequence->compactions[sequence->compaction_count - 1].end : 0;
    const int32_t held = before > 0 ? keep + end - before : end;
    if (keep > 0 && held > keep && count >= (size_t)window) {
        sequence->compactions[sequence->compaction_count++] = (sl_compaction){end - window, end};
    }
}

const sl_compaction *sl_compact_next(const sl_sequence *sequence) {
    for (int32_t i = 0; i < sequence->compaction_count; i++) {
        if (sequence->compactions[i].end > sequence->timeline.cached) {
            return &sequence->compactions[i];
        }
    }
    return NULL;
}

bool sl_compact_is_due(const sl_work *work) {
    const sl_compaction *next = sl_compact_next(work->sequence);
    return next && work->sequence->timeline.cached >= next->first;
}

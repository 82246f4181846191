/* Which drafts a step carries, and where they come from. */
#include "sched/draft.h"

#include "base/log.h"
#include "sched/internal.h"

#include <string.h>

/* ---- prompt lookup
 * ----------------------------------------------------------------------------------------------- */

/* The end of the latest place in front of the last tokens that is like the last `length`; 0: there is none.
 */
static int32_t find_latest(const int32_t *tokens, int32_t count, int32_t length) {
    const int32_t *last = tokens + count - length;
    for (int32_t at = count - length - 1; at >= 0; at--) {
        if (tokens[at] == *last && memcmp(tokens + at, last, (size_t)length * sizeof *tokens) == 0) {
            return at + length;
        }
    }
    return 0;
}

int32_t sl_ngram_draft(void *context, const sl_draft_query *query, int32_t *drafts) {
    const sl_ngram *ngram = context;
    int32_t from = 0;
    for (int32_t length = ngram->longest; length >= ngram->shortest && from == 0; length--) {
        from = length < query->count ? find_latest(query->tokens, query->count, length) : 0;
    }
    /* What repeats itself goes on repeating: behind the sequence's end come the drafts. */
    for (int32_t i = 0; i < query->most && from > 0; i++) {
        const int32_t at = from + i;
        drafts[i] = at < query->count ? query->tokens[at] : drafts[at - query->count];
    }
    return from > 0 ? query->most : 0;
}

/* ---- what a step carries
 * ----------------------------------------------------------------------------------------- */

bool sl_generates(const sl_scheduler *s, const sl_work *work) {
    const int32_t pending = sl_pending(work);
    return pending == 1 ||
           (pending <= 1 + s->options.drafts && work->sequence->timeline.cached >= work->prompt_end);
}

/* Drafts that could be kept: the last token that a work may give is not drafted, and has an output. */
static int32_t most_drafts(const sl_scheduler *s, const sl_work *work) {
    const sl_sequence *sequence = work->sequence;
    const int32_t wanted = work->drafts < s->options.drafts ? work->drafts : s->options.drafts;
    int32_t most = work->generate - 1;
    most = most < wanted ? most : wanted;
    return most < s->limits->context - sequence->count ? most : s->limits->context - sequence->count;
}

int32_t sl_draft_room(const sl_scheduler *s, int32_t rows, int32_t outputs) {
    int32_t room = rows < outputs ? rows : outputs;
    if (s->program->state_count == 0) {
        return room;
    }
    /* Each has a state, beside those of all who may be in the step. */
    int32_t written = s->limits->states, available = sl_cache_available_states(s->cache);
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        if (s->slots[i] && s->slots[i]->work) {
            written--;
            available -= sl_timeline_new_states(s->cache, &s->slots[i]->timeline);
        }
    }
    room = room < written ? room : written;
    return room < available ? room : available;
}

bool sl_draft_is_open(const sl_scheduler *s, const sl_work *work) {
    return s->options.source.draft && work->drafts > 0 && work->generate > 1 && !work->mirostat &&
           work->logits != SL_LOGITS_ALL && work->sequence->timeline.cached >= work->prompt_end &&
           work->sequence->luck.pause == 0 && sl_forced_next(work->forced) == SL_NONE;
}

/* Says when more rows cost more than they may save, and when no longer. */
static void tell_full(sl_scheduler *s, int32_t rows, bool full) {
    if (full != s->drafts_full) {
        s->drafts_full = full;
        sl_log(SL_LOG_DEBUG,
               full ? "speculation: off, a step of %d rows takes too long with more"
                    : "speculation: on again, with %d rows in a step",
               rows);
    }
}

/* What may be carried, and how much of that is worth it. */
typedef struct draft_choice {
    int32_t most, worth;
    bool full; /* nothing would be, however often it were right */
} draft_choice;

static draft_choice choose(const sl_scheduler *s, const sl_work *work, const sl_draft_load *load) {
    draft_choice choice = {.most = sl_draft_is_open(s, work) ? most_drafts(s, work) : 0};
    choice.most = choice.most < load->room ? choice.most : load->room;
    choice.worth = choice.most;
    if (choice.most > 0 && !s->options.always) {
        choice.worth = sl_pace_choose(&s->pace, &work->sequence->luck, load->rows, load->tokens, choice.most);
        choice.full = choice.worth == 0 && sl_pace_is_full(&s->pace, load->rows, load->tokens);
    }
    return choice;
}

/* A token is tried where drafts are not worth it, but might be if they were right more often. */
static int32_t wanted_of(const draft_choice *choice) {
    return choice->most <= 0 || choice->full ? 0 : choice->worth > 0 ? choice->worth : 1;
}

int32_t sl_draft_wanted(const sl_scheduler *s, const sl_work *work, const sl_draft_load *load) {
    const draft_choice choice = choose(s, work, load);
    return wanted_of(&choice);
}

int32_t sl_draft_take(sl_scheduler *s, sl_work *work, sl_draft_load *load) {
    sl_sequence *sequence = work->sequence;
    const draft_choice choice = choose(s, work, load);
    const int32_t wanted = wanted_of(&choice);
    if (choice.most > 0 && choice.worth == 0) {
        sl_luck_rest(&sequence->luck);
    }
    if (choice.most > 0) {
        tell_full(s, load->rows, choice.full);
    }
    if (wanted == 0) {
        return 0;
    }
    const sl_draft_query query = {sequence->tokens, sequence->count, sequence->slot, wanted};
    int32_t *drafts = sequence->tokens + sequence->count;
    int32_t found = s->options.source.draft(s->options.source.context, &query, drafts);
    int32_t count = 0;
    while (count < found && count < wanted && drafts[count] >= 0 && drafts[count] < s->program->vocabulary) {
        count++;
    }
    if (count == 0 || count < work->least_drafts) {
        sl_luck_miss(&sequence->luck);
        return 0;
    }
    load->rows += count;
    load->room -= count;
    load->tokens += sl_luck_gain(&sequence->luck, count);
    return count;
}

/* ---- drafts that take a while to make
 * ---------------------------------------------------------------------------- */

int32_t sl_scheduler_wants_drafts(sl_scheduler *s, sl_draft_want *wants) {
    sl_draft_load load = {0};
    int32_t count = 0, works = 0;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        const sl_work *work = s->slots[i] ? s->slots[i]->work : NULL;
        if (work && !work->blocked && !work->unread && sl_generates(s, work)) {
            load.rows += sl_pending(work);
            works++;
        }
    }
    load.room = sl_draft_room(s, s->plan->options.chunk - load.rows, s->limits->outputs - works);
    load.tokens = works;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        const sl_work *work = s->slots[i] ? s->slots[i]->work : NULL;
        if (!work || work->blocked || work->unread || work->cancelled || !sl_generates(s, work)) {
            continue;
        }
        const int32_t most = sl_draft_wanted(s, work, &load);
        if (most > 0) {
            wants[count++] = (sl_draft_want){work->sequence, most};
            load.rows += most;
            load.room -= most;
            load.tokens += sl_luck_gain(&work->sequence->luck, most);
        }
    }
    return count;
}

void sl_scheduler_drafted(sl_scheduler *s, int32_t tokens, double seconds) {
    sl_pace_drafted(&s->pace, tokens, seconds);
}

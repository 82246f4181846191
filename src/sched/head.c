#include "sched/head.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "sched/internal.h"

#include <string.h>

/* What there is for one slot. */
typedef struct heading {
    sl_sequence *held; /* between begin and end */
    const int32_t *tokens;
    int32_t position; /* of the first draft */
    int32_t wanted, count;
    int32_t drafts[SL_DRAFTS];
} heading;

struct sl_head {
    sl_scheduler *scheduler; /* between begin and end */
    const sl_tokenizer *tokenizer;
    heading *slots;       /* [slots] */
    sl_draft_want *wants; /* [slots] */
    int32_t *rows;        /* [row_count]: the slot of each row of the first pass */
    int32_t row_count;
    double seconds; /* of the last run */
    bool failed, gone, warm;
};

int sl_head_create(int32_t slots, const sl_tokenizer *tokenizer, sl_head **head, sl_error *error) {
    *head = NULL;
    sl_head *made = sl_alloc_zero(1, sizeof *made);
    if (made) {
        made->tokenizer = tokenizer;
        made->slots = sl_alloc_zero((size_t)slots, sizeof *made->slots);
        made->wants = sl_alloc_zero((size_t)slots, sizeof *made->wants);
        made->rows = sl_alloc_zero((size_t)slots, sizeof *made->rows);
    }
    if (!made || !made->slots || !made->wants || !made->rows) {
        sl_head_destroy(made);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for drafts");
    }
    *head = made;
    return 0;
}

void sl_head_destroy(sl_head *head) {
    if (head) {
        sl_free(head->slots);
        sl_free(head->wants);
        sl_free(head->rows);
        sl_free(head);
    }
}

static void *begin_block(const sl_scheduler *s) {
    void *block = sl_backend_of(s)->step_block(s->executor);
    memset(sl_step_head(block), 0, sizeof(sl_step_header));
    return block;
}

/* A row of the pass: the last token, or the last one drafted, behind what is in the cache. */
static void write_row(sl_head *head, void *block, int32_t slot) {
    const sl_scheduler *s = head->scheduler;
    const sl_step_layout *layout = &s->plan->deployment.step;
    sl_step_header *step = sl_step_head(block);
    const heading *h = &head->slots[slot];
    const sl_timeline *t = &h->held->timeline;
    const int32_t row = step->rows, position = h->position - 1 + h->count;
    sl_step_span *span = &sl_step_spans(layout, block)[row];
    *span = (sl_step_span){.slot = slot, .first_row = row, .row_count = 1, .state_read = t->state};
    sl_write_states(s, block, t, span);
    for (int32_t g = 0; g < s->program->group_count; g++) {
        span->length[g] = position;
    }
    sl_step_rows(layout, block)[row] = (sl_step_row){
        SL_ROW_TOKEN, h->count > 0 ? h->drafts[h->count - 1] : h->tokens[position], position, row};
    sl_step_outputs(layout, block)[row] = (sl_step_output){.row = row, .slot = slot, .mask = SL_NONE};
    step->rows++;
    step->spans++;
    step->outputs++;
}

static void start(sl_head *head, void *block, const sl_draft_want *want) {
    sl_scheduler *s = head->scheduler;
    sl_sequence *sequence = want->sequence;
    sl_timeline *t = &sequence->timeline;
    sl_step_header *step = sl_step_head(block);
    const int32_t wanted = want->most < SL_DRAFTS ? want->most : SL_DRAFTS;
    sl_copy_list copies = {sl_step_page_copies(&s->plan->deployment.step, block), step->page_copies,
                           s->plan->deployment.step.max_page_copies};
    /* What stands in front of the row must be there. */
    if (t->cached == 0 || sequence->count != t->cached + 1 ||
        sl_plan_draft_bucket(s->plan, step->rows + 1) < 0 ||
        sl_timeline_reserve(s->cache, t, wanted, 0, &copies) != 0) {
        return; /* it gets none */
    }
    step->page_copies = copies.count;
    heading *h = &head->slots[sequence->slot];
    h->held = sequence;
    h->tokens = sequence->tokens;
    h->position = sequence->count;
    h->wanted = wanted;
    sequence->in_step++;
    sl_write_table_changes(s, block, sequence);
    write_row(head, block, sequence->slot);
    head->rows[head->row_count++] = sequence->slot;
}

bool sl_head_begin(sl_head *head, sl_scheduler *s) {
    head->scheduler = s;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        head->slots[i].count = 0;
    }
    head->failed = false;
    head->row_count = 0;
    const int32_t count = head->gone ? 0 : sl_scheduler_wants_drafts(s, head->wants);
    void *block = count > 0 ? begin_block(s) : NULL;
    for (int32_t i = 0; i < count; i++) {
        start(head, block, &head->wants[i]);
    }
    return head->row_count > 0;
}

static int run_pass(const sl_scheduler *s, int32_t rows, sl_error *error) {
    const sl_backend_functions *functions = sl_backend_of(s);
    const int result = functions->submit(s->executor, sl_plan_draft_bucket(s->plan, rows), error);
    return result ? result : functions->wait(s->executor, error);
}

/* Does the sequence want another one? */
static bool take(const sl_head *head, heading *h, int32_t token) {
    if (token < 0) {
        return false;
    }
    h->drafts[h->count++] = token;
    return h->count < h->wanted && !(head->tokenizer && sl_tokenizer_is_eog(head->tokenizer, token));
}

int sl_head_run(sl_head *head, sl_error *error) {
    const sl_scheduler *s = head->scheduler;
    const double begin = sl_seconds_now();
    int32_t rows = head->row_count;
    int result = 0;
    while (rows > 0 && result == 0) {
        result = run_pass(s, rows, error);
        const int32_t *tokens = result ? NULL : sl_backend_of(s)->tokens(s->executor);
        int32_t left = 0;
        for (int32_t i = 0; i < rows && tokens; i++) {
            const int32_t slot = head->rows[i];
            if (take(head, &head->slots[slot], tokens[i])) {
                head->rows[left++] = slot;
            }
        }
        void *block = left > 0 ? begin_block(s) : NULL;
        for (int32_t i = 0; i < left; i++) {
            write_row(head, block, head->rows[i]);
        }
        rows = left;
    }
    head->failed = result != 0;
    head->gone = result == SL_ERR_DEVICE;
    /* Code and memory are new to the first one. */
    head->seconds = head->warm ? sl_seconds_now() - begin : 0;
    head->warm = true;
    return result;
}

void sl_head_end(sl_head *head) {
    sl_scheduler *s = head->scheduler;
    int32_t drafted = 0;
    for (int32_t i = 0; i < s->limits->sequences; i++) {
        heading *h = &head->slots[i];
        sl_sequence *held = h->held;
        h->held = NULL;
        if (!held) {
            continue;
        }
        if (head->failed) {
            sl_timeline_revert(s->cache, &held->timeline);
            h->count = 0;
        } else {
            sl_timeline_advance_by(s->cache, &held->timeline, held->tokens, h->wanted, 0);
        }
        drafted += h->count;
        sl_scheduler_let_go(s, held);
    }
    sl_scheduler_drafted(s, drafted, head->seconds);
}

int32_t sl_head_draft(void *context, const sl_draft_query *query, int32_t *drafts) {
    const sl_head *head = context;
    const heading *h = &head->slots[query->slot];
    if (h->position != query->count || h->tokens != query->tokens) {
        return 0;
    }
    const int32_t count = h->count < query->most ? h->count : query->most;
    memcpy(drafts, h->drafts, (size_t)count * sizeof *drafts);
    return count;
}

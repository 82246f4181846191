/* The step block: its layout, and the check of each rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "program/step.h"
#include "unit/program/tiny.h"

#include <math.h>

static const sl_limits LIMITS = {.rows = 16,
                                 .outputs = 4,
                                 .sequences = 3,
                                 .context = 130,
                                 .adjustments = 8,
                                 .masks = 2,
                                 .mask_tokens = 96,
                                 .states = 3};

static void layout_is_aligned_and_apart(void **state) {
    (void)state;
    for (int32_t n = 1; n < 300; n += 7) {
        const sl_limits limits = {.rows = n,
                                  .outputs = n % 5 + 1,
                                  .sequences = n % 9 + 1,
                                  .context = n * 13,
                                  .adjustments = n % 3 * 10,
                                  .masks = n % 4,
                                  .mask_tokens = n * 17,
                                  .states = n % 6 * 11};
        sl_step_layout layout;
        sl_step_layout_init(&layout, &limits, n % 5);
        const int32_t groups = n % 5;
        assert_int_equal(layout.max_page_copies, groups * limits.sequences);
        assert_int_equal(layout.max_table_changes, groups * limits.sequences * ((n * 13 + 63) / 64));
        const uint64_t changes = ((uint64_t)layout.max_table_changes + (uint64_t)limits.adjustments) * 16;
        const uint64_t masks = (uint64_t)limits.masks * (uint64_t)((n * 17 + 127) / 128) * 16;
        /* in the order in which they lie */
        const struct {
            uint64_t offset, bytes;
        } parts[] = {
            {0, sizeof(sl_step_header)},
            {layout.rows, (uint64_t)limits.rows * 16},
            {layout.spans, (uint64_t)limits.sequences * sizeof(sl_step_span)},
            {layout.states, (uint64_t)limits.states * 4},
            {layout.outputs, (uint64_t)limits.outputs * sizeof(sl_step_output)},
            {layout.tail, sizeof(sl_step_header)},
            {layout.tail_rows, (uint64_t)limits.outputs * 16},
            {layout.tail_spans, (uint64_t)limits.sequences * sizeof(sl_step_span)},
            {layout.page_copies, (uint64_t)layout.max_page_copies * 12},
            {layout.table_changes, (changes + 63) / 64 * 64 + masks},
            {layout.bytes, 0},
        };
        for (size_t i = 1; i < sizeof parts / sizeof *parts; i++) {
            assert_int_equal(parts[i].offset % 64, 0);
            assert_true(parts[i].offset >= parts[i - 1].offset + parts[i - 1].bytes);
            assert_true(parts[i].offset < parts[i - 1].offset + parts[i - 1].bytes + 64);
        }
    }
}

static void largest_limits_do_not_overflow(void **state) {
    (void)state;
    const sl_limits limits = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX - 64, INT32_MAX,
                              1 << 20,   INT32_MAX, 1,         INT32_MAX};
    sl_step_layout layout;
    sl_step_layout_init(&layout, &limits, SL_CACHE_GROUPS);
    assert_int_equal(layout.max_table_changes, INT32_MAX);
    assert_true(layout.bytes > (uint64_t)INT32_MAX * 100 && layout.bytes < (uint64_t)INT32_MAX * 200000);
}

/* Two spans of three rows and one, with one output each. */
static void fill(const sl_step_layout *layout, void *block) {
    memset(block, 0, layout->bytes);
    *sl_step_head(block) = (sl_step_header){.rows = 4,
                                            .outputs = 2,
                                            .spans = 2,
                                            .table_changes = 2,
                                            .page_copies = 2,
                                            .adjustments = 7,
                                            .masks = 1};
    sl_step_row *rows = sl_step_rows(layout, block);
    rows[0] = (sl_step_row){SL_ROW_TOKEN, 5, 0, 0};
    rows[1] = (sl_step_row){SL_ROW_TOKEN, 95, 1, 0};
    rows[2] = (sl_step_row){SL_ROW_TOKEN, 0, 2, 0};
    rows[3] = (sl_step_row){SL_ROW_LAST_TOKEN, -1, 129, 1};
    sl_step_span *spans = sl_step_spans(layout, block);
    spans[0] =
        (sl_step_span){.slot = 2, .first_row = 0, .row_count = 3, .state_read = SL_NONE, .state_count = 2};
    spans[1] = (sl_step_span){.slot = 0,
                              .first_row = 3,
                              .row_count = 1,
                              .state_read = 1,
                              .state_first = 2,
                              .state_count = 1,
                              .length = {129}};
    const int32_t states[] = {4, 0, 2};
    memcpy(sl_step_states(layout, block), states, sizeof states);
    sl_step_table_changes(layout, block)[0] = (sl_table_change){0, 2, 0, 7};
    sl_step_table_changes(layout, block)[1] = (sl_table_change){0, 0, 2, SL_NONE};
    sl_step_page_copies(layout, block)[0] = (sl_page_copy){0, 1, 2};
    sl_step_page_copies(layout, block)[1] = (sl_page_copy){0, 1, 3};
    sl_step_output *outputs = sl_step_outputs(layout, block);
    outputs[0] = (sl_step_output){.row = 2, .slot = 2, .adjustment_first = 3, .adjustment_count = 4};
    outputs[0].sampler =
        (sl_sampler){.temperature = 1, .top_p = 1, .typical_p = 0.5f, .order = {SL_STAGE_TEMPERATURE}};
    outputs[0].mask = SL_NONE;
    outputs[1] =
        (sl_step_output){.row = 3, .slot = 0, .adjustment_first = 0, .adjustment_count = 3, .mask = 0};
    for (int32_t i = 0; i < 7; i++) { /* tokens 1, 2, 3 and 1, 2, 3, 4 */
        sl_step_adjustments(layout, block)[i] = (sl_adjustment){1 + (i < 3 ? i : i - 3), -INFINITY, 1.5f, -1};
    }
}

#define RULE(message, ...)                                                                                   \
    if (n-- == 0) {                                                                                          \
        __VA_ARGS__;                                                                                         \
        return message;                                                                                      \
    }

static const char *break_rule(const sl_step_layout *layout, void *block, int n) {
    sl_step_header *head = sl_step_head(block);
    sl_step_row *rows = sl_step_rows(layout, block);
    sl_step_span *spans = sl_step_spans(layout, block);
    int32_t *states = sl_step_states(layout, block);
    sl_table_change *changes = sl_step_table_changes(layout, block);
    sl_page_copy *copies = sl_step_page_copies(layout, block);
    sl_step_output *outputs = sl_step_outputs(layout, block);
    sl_adjustment *adjustments = sl_step_adjustments(layout, block);
    RULE("rows: 17 is not in 1 to 16", head->rows = 17)
    RULE("rows: 0 is not in 1", head->rows = 0)
    RULE("outputs: 5 is not in 0 to 4", head->outputs = 5)
    RULE("spans: 4 is not in 1 to 3", head->spans = 4)
    RULE("table changes: 10 is not in 0 to 9", head->table_changes = 10)
    RULE("page copies: -1 is not in 0 to 3", head->page_copies = -1)
    RULE("want_logits: 2", head->want_logits = 2)
    RULE("span 1: slot 3 does not exist", spans[1].slot = 3)
    RULE("spans 0 and 1 have the same slot", spans[1].slot = 2)
    RULE("span 1: rows 2 and 1 more do not follow", spans[1].first_row = 2)
    RULE("span 1: rows 3 and 0 more", spans[1].row_count = 0)
    RULE("span 1: ends after the last row", spans[1].row_count = 2)
    RULE("spans hold 3 of 4 rows", head->spans = 1)
    RULE("span 1: length 192 and 1 rows exceed", spans[1].length[0] = 192)
    RULE("span 0: length -1", spans[0].length[0] = -1)
    RULE("span 1: 1 tokens of this step", spans[1].written = 1)
    RULE("span 0: state slot -1 does not exist", states[1] = SL_NONE)
    RULE("span 1: state slot -2 does not exist", spans[1].state_read = -2)
    RULE("span 0: leaves 0 states, not 1 to 3", spans[0].state_count = 0)
    RULE("span 1: leaves 2 states, not 1 to 1", spans[1].state_count = 2)
    RULE("span 1: states 1 and 1 more do not follow", spans[1].state_first = 1)
    RULE("span 1: states 2 and 1 more do not follow", spans[0].state_count = 3)
    RULE("span 1: states 3 and 1 more do not follow the span before, or are more than 3",
         spans[0].state_count = spans[1].state_first = 3)
    RULE("span 1: writes state slot 1, which span 1 reads", states[2] = 1)
    RULE("span 0: writes state slot 1, which span 1 reads", states[0] = 1)
    RULE("span 1: state slot 0 is written twice", states[2] = 0)
    RULE("span 0: state slot 4 is written twice", states[1] = 4)
    RULE("row 1: span 1, expected 0", rows[1].span = 1)
    RULE("row 3: position 130 is outside the context", rows[3].position = 130)
    RULE("row 0: position -1", rows[0].position = -1)
    RULE("row 2: positions must rise", rows[2].position = 1)
    RULE("row 3: unknown source 2", rows[3].source = 2)
    RULE("row 1: token 96 is outside the vocabulary", rows[1].token = 96)
    RULE("row 1: token -1 is outside", rows[1].token = -1)
    RULE("table change 0: group 1 does not exist", changes[0].group = 1)
    RULE("table change 1: slot 3 does not exist", changes[1].slot = 3)
    RULE("table change 1: index 3 is outside", changes[1].index = 3)
    RULE("table change 0: page -2 does not exist", changes[0].page = -2)
    RULE("page copy 0: group -1 does not exist", copies[0].group = -1)
    RULE("page copy 1: from -1 to 3", copies[1].source = -1)
    RULE("page copy 1: page 1 is also a source", copies[1].target = 1)
    RULE("page copies 0 and 1 have the same target", copies[1].target = 2)
    RULE("output 1: row 4 does not exist", outputs[1].row = 4)
    RULE("output 1: slot 2 is not the one of its row", outputs[1].slot = 2)
    RULE("adjustments: 9 is not in 0 to 8", head->adjustments = 9)
    RULE("output 0: adjustment 3 and 4 more are not in the step's 6", head->adjustments = 6)
    RULE("output 0: adjustment -1 and 4 more", outputs[0].adjustment_first = -1)
    RULE("output 1: adjustment 0 and -1 more", outputs[1].adjustment_count = -1)
    RULE("output 0: adjusted token 96 is outside", adjustments[6].token = 96)
    RULE("output 1: adjusted token -1 is outside", adjustments[0].token = -1)
    RULE("output 0: token 2 is adjusted twice", adjustments[6].token = 2)
    RULE("output 0: token 4 is adjusted by inf, 1.5, -1", adjustments[6].before = INFINITY)
    RULE("output 0: token 4 is adjusted by nan", adjustments[6].before = fabsf(NAN))
    RULE("output 1: token 1 is adjusted by -inf, 0, -1", adjustments[0].repetition = 0)
    RULE("output 1: token 1 is adjusted by -inf, inf, -1", adjustments[0].repetition = INFINITY)
    RULE("output 1: token 1 is adjusted by -inf, 1.5, -inf", adjustments[0].after = -INFINITY)
    RULE("masks: 3 is not in 0 to 2", head->masks = 3)
    RULE("masks: -1 is not in 0 to 2", head->masks = -1)
    RULE("masks_later: 2 is not in 0 to 1", head->masks_later = 2)
    RULE("output 1: mask 1 is not in the step's 1", outputs[1].mask = 1)
    RULE("output 0: mask -2 is not", outputs[0].mask = -2)
    RULE("output 0: a sampler setting", outputs[0].sampler.typical_p = NAN)
    RULE("output 0: a sampler setting", outputs[0].sampler.temperature = NAN)
    RULE("output 0: a sampler setting", outputs[0].sampler.xtc_threshold = NAN)
    RULE("output 0: a sampler setting", outputs[0].sampler.top_n_sigma = -1)
    RULE("output 0: a sampler setting", outputs[0].sampler.dynamic_range = NAN)
    RULE("output 0: a sampler setting", outputs[0].sampler.order[1] = SL_STAGE_COUNT)
    RULE("output 0: a sampler setting", outputs[0].sampler.order[1] = SL_STAGE_TEMPERATURE)
    return NULL;
}

/* Where a program has a tail, rows with outputs are the last of their spans. */
static void check_tail_rules(const sl_step_layout *layout, const sl_program *p, void *block) {
    sl_step_output *outputs = sl_step_outputs(layout, block);
    sl_error error;
    fill(layout, block);
    assert_int_equal(sl_step_check(layout, p, block, &error), 0);
    outputs[0].row = 1;
    assert_int_equal(sl_step_check(layout, p, block, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "output 0: the row behind it has none"));
    fill(layout, block);
    outputs[1].row = outputs[0].row;
    outputs[1].slot = outputs[0].slot;
    assert_int_equal(sl_step_check(layout, p, block, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "output 1: rows must rise"));
}

/* The rows with outputs are a step of their own, of rows whose places in the cache are what they were. */
static void the_tail_is_a_step(void **state) {
    (void)state;
    sl_step_layout layout;
    sl_step_layout_init(&layout, &LIMITS, 1);
    void *block = sl_alloc(layout.bytes);
    assert_non_null(block);
    fill(&layout, block);
    sl_step_outputs(&layout, block)[0].row = 1;
    sl_step_outputs(&layout, block)[1].row = 2;
    sl_step_outputs(&layout, block)[2].row = 3;
    sl_step_head(block)->outputs = 3;
    sl_step_spans(&layout, block)[0].length[0] = 10;
    sl_step_write_tail(&layout, block);
    const sl_step_header *tail = sl_step_tail(&layout, block);
    const sl_step_span *spans = sl_step_tail_spans(&layout, block);
    const sl_step_row *rows = sl_step_tail_rows(&layout, block);
    assert_int_equal(tail->rows, 3);
    assert_int_equal(tail->outputs, 3);
    assert_int_equal(tail->spans, 2);
    const int32_t expected[2][5] = {{2, 0, 2, 11, 1}, {0, 2, 1, 129, 0}};
    for (int s = 0; s < 2; s++) {
        const int32_t got[5] = {spans[s].slot, spans[s].first_row, spans[s].row_count, spans[s].length[0],
                                spans[s].written};
        assert_memory_equal(got, expected[s], sizeof got);
    }
    const sl_step_row wanted[3] = {
        {SL_ROW_TOKEN, 95, 1, 0}, {SL_ROW_TOKEN, 0, 2, 0}, {SL_ROW_LAST_TOKEN, -1, 129, 1}};
    assert_memory_equal(rows, wanted, sizeof wanted);
    sl_step_head(block)->outputs = 0;
    sl_step_write_tail(&layout, block);
    assert_int_equal(tail->rows, 0);
    assert_int_equal(tail->spans, 0);
    sl_free(block);
}

static void every_rule_is_checked(void **state) {
    (void)state;
    static const tiny_types types = {SL_QTYPE_F16, SL_QTYPE_F16, SL_QTYPE_F16, SL_QTYPE_F16};
    sl_program p = {0};
    sl_error error;
    sl_step_layout layout;
    tiny_build(&p, &types);
    sl_step_layout_init(&layout, &LIMITS, p.group_count);
    void *block = sl_alloc(layout.bytes);
    assert_non_null(block);
    fill(&layout, block);
    assert_int_equal(sl_step_check(&layout, &p, block, &error), 0);
    assert_int_equal(sl_step_used_bytes(&layout, block), layout.table_changes + (2 + 7) * 16 + 16);
    assert_int_equal((unsigned char *)sl_step_masks(&layout, block) - (unsigned char *)block,
                     layout.table_changes + (2 + 7) * 16);
    int rule = 0, wrong = 0;
    for (;; rule++) {
        fill(&layout, block);
        const char *message = break_rule(&layout, block, rule);
        if (!message) {
            break;
        }
        error.message[0] = '\0';
        if (sl_step_check(&layout, &p, block, &error) != SL_ERR_INVALID || !strstr(error.message, message)) {
            print_error("rule %d: expected \"%s\", got \"%s\"\n", rule, message, error.message);
            wrong++;
        }
    }
    p.has_tail = true;
    check_tail_rules(&layout, &p, block);
    p.state_count = 0;
    fill(&layout, block);
    assert_int_equal(sl_step_check(&layout, &p, block, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "without recurrent layers"));
    sl_free(block);
    sl_program_free(&p);
    assert_int_equal(wrong, 0);
    assert_int_equal(rule, 68);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_is_aligned_and_apart),
        cmocka_unit_test(largest_limits_do_not_overflow),
        cmocka_unit_test(the_tail_is_a_step),
        cmocka_unit_test(every_rule_is_checked),
    };
    return cmocka_run_group_tests_name("step", tests, NULL, NULL);
}

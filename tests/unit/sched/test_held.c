/* Works that are held to a grammar: what ends them when there is nothing to sample from. */
#include "unit/sched/rig.h"

enum { LETTER = 'a', LAST = 256, PROMPT = 5 };

static sl_grammar *grammar;

/* One token for every byte, and one that ends a text; at least three letters. */
static int set_up(void **state) {
    static char bytes[256];
    sl_grammar_token tokens[VOCABULARY] = {0};
    sl_error error;
    (void)state;
    for (int32_t i = 0; i < LAST; i++) {
        bytes[i] = (char)i;
        tokens[i] = (sl_grammar_token){.bytes = &bytes[i], .count = 1};
    }
    tokens[LAST] = (sl_grammar_token){.is_special = true, .is_end = true};
    sl_grammar_vocabulary *vocabulary = sl_grammar_vocabulary_create(tokens, VOCABULARY, &error);
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
    const sl_expression root = sl_expression_regex(builder, "a{3,}", 5, true, &error);
    grammar = sl_grammar_compile(builder, root, vocabulary, &error);
    sl_grammar_builder_destroy(builder);
    sl_grammar_vocabulary_release(vocabulary);
    return grammar ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_grammar_release(grammar);
    return 0;
}

static sl_finish held_token(sl_work *work, int32_t token) {
    job *j = (job *)work;
    assert_true(token == LETTER || (token == LAST && j->count >= 3));
    j->count++;
    return SL_FINISH_LENGTH;
}

/* A work whose row at that position, if it is not 0, gives no token. */
static void run_held(int32_t broken_at, bool none_left, int32_t generate, job *j, bool *shared) {
    const shape one = {64, 0, 0, 0, true, 2, 0};
    static const int32_t prompt[PROMPT] = {1, 2, 3, 4, 5};
    rig *r = rig_create(&one);
    sl_sequence *sequence;
    sl_error error;
    memset(j, 0, sizeof *j);
    assert_int_equal(sl_sequence_create(r->scheduler, &sequence, &error), 0);
    j->work = (sl_work){.sequence = sequence,
                        .generate = generate,
                        .matcher = sl_matcher_create(grammar, &error),
                        .on_token = held_token,
                        .on_done = job_done};
    j->rig = r;
    r->executor->broken_at[0] = broken_at;
    r->executor->none_left = none_left;
    assert_int_equal(sl_scheduler_submit(r->scheduler, &j->work, prompt, PROMPT, &error), 0);
    while (rig_step(r)) {
    }
    assert_true(j->done);
    *shared = !sequence->timeline.unshared;
    sl_matcher_destroy(j->work.matcher);
    sl_sequence_destroy(r->scheduler, sequence);
    rig_destroy(r);
}

/* The row at PROMPT - 1 gives the first letter, so that the text may end from the row at PROMPT + 2 on. */
static void only_an_end_that_is_forbidden_ends_a_text(void **state) {
    static const struct {
        int32_t at;
        bool none_left;
        sl_finish finish;
        int code;
        const char *message;
        int32_t count;
    } cases[] = {
        {PROMPT + 2, true, SL_FINISH_EOS, 0, "", 3},
        {PROMPT + 2, false, SL_FINISH_ERROR, SL_ERR_INTERNAL, "position 7: logits are not finite", 3},
        {PROMPT, false, SL_FINISH_ERROR, SL_ERR_INTERNAL, "position 5: logits are not finite", 1},
        {PROMPT, true, SL_FINISH_ERROR, SL_ERR_INVALID,
         "position 5: all tokens that the grammar lets follow are forbidden", 1},
        {0, false, SL_FINISH_LENGTH, 0, "", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job j;
        bool shared;
        run_held(cases[i].at, cases[i].none_left, cases[i].at ? 20 : 2, &j, &shared);
        assert_int_equal(j.finish, cases[i].finish);
        assert_int_equal(j.error.code, cases[i].code);
        assert_string_equal(j.error.message, cases[i].message);
        assert_int_equal(j.count, cases[i].at ? cases[i].count : 2);
        assert_int_equal(shared, cases[i].code != SL_ERR_INTERNAL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_an_end_that_is_forbidden_ends_a_text),
    };
    return cmocka_run_group_tests_name("held", tests, set_up, tear_down);
}

/* The load generator without a server: percentiles, random numbers, answers cut anywhere, what is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "answer.h"
#include "random.h"
#include "series.h"
#include "work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.9g, expected %.9g within %.3g", value, expected, tolerance);
    }
}

/* ---- percentiles -----------------------------------------------------------------------------------------
 */

/* What Python's statistics.quantiles(values, n=100, method="inclusive"), mean and pstdev give;
 * numpy.percentile and numpy.std have the same definitions. */
static void quantiles_are_linear(void **state) {
    (void)state;
    static const double values[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    load_series series = {0};
    assert_near(load_quantile(&series, 0.5), 0, 0);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        assert_int_equal(load_series_add(&series, values[i]), 0);
    }
    load_series_sort(&series);
    assert_near(load_quantile(&series, 0), 1, 0);
    assert_near(load_quantile(&series, 0.5), 3.5, 1e-9);
    assert_near(load_quantile(&series, 0.9), 6.3, 1e-9);
    assert_near(load_quantile(&series, 0.95), 7.65, 1e-9);
    assert_near(load_quantile(&series, 0.99), 8.73, 1e-9);
    assert_near(load_quantile(&series, 1), 9, 0);
    assert_near(load_mean(&series), 3.9, 1e-9);
    assert_near(load_deviation(&series), 2.3430749027719964, 1e-9);
    load_series_free(&series);
}

/* ---- random numbers --------------------------------------------------------------------------------------
 */

enum { DRAWS = 200000 };

/* The gamma distribution of the shape k and the scale 1 has the mean k and the variance k. */
static void gaps_have_their_moments(void **state) {
    (void)state;
    static const double shapes[] = {0.25, 0.5, 1, 2, 8, 100};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        load_random random = load_random_new(7, i);
        const double shape = shapes[i];
        double sum = 0, squares = 0;
        for (int k = 0; k < DRAWS; k++) {
            const double x = load_random_gamma(&random, shape);
            assert_true(x >= 0 && isfinite(x));
            sum += x;
            squares += x * x;
        }
        const double mean = sum / DRAWS, variance = squares / DRAWS - mean * mean;
        /* Five standard errors; the fourth central moment is 3k^2 + 6k. */
        assert_near(mean, shape, 5 * sqrt(shape / DRAWS));
        assert_near(variance, shape, 5 * sqrt((2 * shape * shape + 6 * shape) / DRAWS));
    }
}

/* Kolmogorov and Smirnov: the greatest distance to 1 - exp(-x); 1.95 / sqrt(n) is passed once in 1000 times.
 */
static void gaps_of_shape_1_are_exponential(void **state) {
    (void)state;
    load_random random = load_random_new(3, 0);
    load_series series = {0};
    for (int i = 0; i < DRAWS; i++) {
        assert_int_equal(load_series_add(&series, load_random_gamma(&random, 1)), 0);
    }
    load_series_sort(&series);
    double most = 0;
    for (int i = 0; i < DRAWS; i++) {
        const double expected = 1 - exp(-(double)series.values[i]);
        most = fmax(most, fmax(fabs(expected - (double)i / DRAWS), fabs(expected - (i + 1.0) / DRAWS)));
    }
    assert_true(most < 1.95 / sqrt(DRAWS));
    load_series_free(&series);
}

static void seeds_and_streams_differ(void **state) {
    (void)state;
    load_random a = load_random_new(1, 2), same = load_random_new(1, 2), b = load_random_new(1, 3),
                c = load_random_new(2, 2);
    const uint64_t first = load_random_next(&a);
    assert_true(first == load_random_next(&same));
    assert_true(first != load_random_next(&b) && first != load_random_next(&c));
    const load_length length = {100, 20};
    double sum = 0, squares = 0;
    for (int i = 0; i < DRAWS; i++) {
        const double n = (double)load_random_length(&a, &length);
        sum += n;
        squares += n * n;
    }
    assert_near(sum / DRAWS, 100, 0.3);
    assert_near(sqrt(squares / DRAWS - sum / DRAWS * (sum / DRAWS)), 20, 0.3);
    assert_int_equal(load_random_length(&a, &(load_length){1, 0}), 1);
}

/* ---- answers ---------------------------------------------------------------------------------------------
 */

/* As servers send them: a role first, CRLF or LF, comments, other fields, no blank behind the colon, data
 * over two lines, a thought, usage at the end. */
static const char STREAM[] =
    ": hello\r\n\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n"
    "event: x\ndata:{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n"
    "id: 3\ndata: {\"choices\":[{\"delta\":\ndata: {\"content\":\"a\\u00e9\"}}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

static void answers_may_be_cut_anywhere(void **state) {
    (void)state;
    load_answer answer = {0};
    for (size_t cut = 0; cut <= sizeof STREAM - 1; cut++) {
        load_answer_clear(&answer);
        answer.streamed = answer.keep_text = true;
        assert_int_equal(load_answer_read(&answer, STREAM, cut, 10), 0);
        assert_int_equal(load_answer_read(&answer, STREAM + cut, sizeof STREAM - 1 - cut, 10.25), 0);
        assert_int_equal(load_answer_end(&answer, 11), 0);
        assert_true(answer.ended && !answer.failed);
        assert_int_equal(answer.text_events, 3);
        assert_int_equal(answer.gaps.count, 2);
        assert_near((double)(answer.gaps.values[0] + answer.gaps.values[1]),
                    answer.first < answer.last ? 250 : 0, 0);
        assert_string_equal(answer.text.data, "a\xc3\xa9"
                                              "b");
        assert_string_equal(answer.reason, "stop");
        assert_int_equal(answer.prompt_tokens, 7);
        assert_int_equal(answer.answer_tokens, 5);
        assert_int_equal(answer.cached_tokens, 4);
    }
    load_answer_free(&answer);
}

/* Bytes that are lost, doubled or changed: any end is right that touches nothing else. */
static void answers_survive_noise(void **state) {
    (void)state;
    load_answer answer = {0};
    load_random random = load_random_new(11, 0);
    int ended = 0;
    for (int i = 0; i < 3000; i++) {
        char noisy[2 * sizeof STREAM];
        size_t length = 0;
        for (size_t k = 0; k < sizeof STREAM - 1; k++) {
            const int64_t fate = load_random_below(&random, 300);
            noisy[length] = fate == 0 ? (char)load_random_below(&random, 256) : STREAM[k];
            length += fate == 1 ? 0 : 1;
            if (fate == 2) {
                noisy[length++] = STREAM[k];
            }
        }
        load_answer_clear(&answer);
        answer.streamed = i % 4 != 0;
        answer.keep_text = true;
        const size_t cut = (size_t)load_random_below(&random, (int64_t)length);
        load_answer_read(&answer, noisy, cut, 1);
        load_answer_read(&answer, noisy + cut, length - cut, 2);
        ended += load_answer_end(&answer, 3) == 0;
        assert_true(answer.failed == (answer.error[0] != '\0'));
    }
    assert_true(ended > 100 && ended < 2900);
    load_answer_free(&answer);
}

/* What a stream's events mean when each is read by itself, and so by the JSON library. */
static void read_alone(const char *event, load_answer *sum) {
    load_answer one = {0};
    load_answer_clear(&one);
    one.streamed = one.keep_text = true;
    load_answer_read(&one, event, strlen(event), 1);
    sum->failed = sum->failed || one.failed;
    sum->text_events += one.text_events;
    assert_int_equal(one.text.length > 0 ? load_bytes_add(&sum->text, one.text.data, one.text.length) : 0, 0);
    memcpy(sum->reason, one.reason[0] ? one.reason : sum->reason, sizeof sum->reason);
    load_answer_free(&one);
}

/* Events that differ in their texts alone are not read again: they mean what they mean when they are read.
 * Texts may be those of keys, or hold what ends a string; events may be anything else, or no JSON. */
static void events_alike_mean_what_they_say(void **state) {
    (void)state;
    static const char *const frames[] = {
        "{\"id\":\"c\",\"choices\":[{\"text\":\"%s\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"finish_reason\":null}],\"model\":\"a\"}",
        "{\"model\":\"%s\",\"choices\":[{\"text\":\"a\"}]}",
        "{\"choices\":[{\"delta\":{\"reasoning\":\"%s\"}}]}",
        "{\"choices\":[{\"text\":\"%s\",\"finish_reason\":\"length\"}]}",
        "{\"choices\":[{\"text\":\"\\u0061\",\"a\":\"%s\"}]}",
        "{\"choices\":[{\"text\":\"%s\"},{\"text\":\"b\"}]}",
    };
    static const char *const texts[] = {"a",  "b",     "text",    "content",  " is",         "length", "null",
                                        "",   "\\n",   "\\u00e9", "\xc3\xa9", "\xc3",        "a\"b",   "\\",
                                        "\t", "\"}]}", "c",       "a b c",    "id\":\"c\",", "\x7f"};
    enum { FRAMES = sizeof frames / sizeof *frames, TEXTS = sizeof texts / sizeof *texts, EVENTS = 12 };
    load_random random = load_random_new(23, 0);
    load_answer answer = {0}, sum = {0};
    int fitted = 0, failed = 0;
    for (int i = 0; i < 4000; i++) {
        char event[256], line[300];
        load_answer_clear(&answer);
        load_answer_clear(&sum);
        answer.streamed = answer.keep_text = true;
        const int64_t usual = load_random_below(&random, FRAMES);
        for (int k = 0; k < EVENTS && !sum.failed; k++) {
            const bool other = load_random_below(&random, 8) == 0;
            const int64_t few = load_random_below(&random, 3) ? 7 : TEXTS;
            snprintf(event, sizeof event, frames[other ? load_random_below(&random, FRAMES) : usual],
                     texts[load_random_below(&random, few)]);
            snprintf(line, sizeof line, "data: %s\n\n", event);
            const load_bytes bytes = {event, strlen(event), 0};
            const char *text;
            size_t length;
            fitted += load_pattern_fits(&answer.pattern, &bytes, &text, &length);
            read_alone(line, &sum);
            load_answer_read(&answer, line, strlen(line), 1);
            assert_true(answer.failed == sum.failed);
            assert_int_equal(answer.text_events, sum.text_events);
            assert_string_equal(answer.reason, sum.reason);
            assert_int_equal(answer.text.length, sum.text.length);
            assert_memory_equal(answer.text.length ? answer.text.data : "",
                                sum.text.length ? sum.text.data : "", sum.text.length);
        }
        failed += sum.failed;
    }
    assert_true(fitted > 5000 && failed > 500 && failed < 3500);
    load_answer_free(&answer);
    load_answer_free(&sum);
}

static void wrong_answers_say_why(void **state) {
    (void)state;
    static const struct {
        bool streamed;
        const char *bytes, *why;
    } cases[] = {
        {true, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
         "the stream broke off before its end"},
        {true, "", "the stream broke off before its end"},
        {true, "data: {\"choices\"\n\n", "what came is no JSON"},
        {true, "data: []\n\n", "what came is no JSON object"},
        {true, "data: {\"error\":{\"message\":\"no\\nroom\"}}\n\n", "no room"},
        {true, "data: {\"error\":\"full\"}\n\n", "full"},
        {true, "data: {\"error\":{}}\n\n", "an error without a message"},
        {false, "<html>", "what came is no JSON"},
        {false, "{\"error\":{\"message\":\"later\"}}", "later"},
    };
    load_answer answer = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        load_answer_clear(&answer);
        answer.streamed = cases[i].streamed;
        load_answer_read(&answer, cases[i].bytes, strlen(cases[i].bytes), 1);
        assert_int_equal(load_answer_end(&answer, 1), -1);
        assert_string_equal(answer.error, cases[i].why);
    }
    /* null is no error, a last event may lack its empty line, and a reason ends as [DONE] does. */
    static const char fine[] =
        "data: {\"error\":null,\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}";
    load_answer_clear(&answer);
    answer.streamed = true;
    assert_int_equal(load_answer_read(&answer, fine, sizeof fine - 1, 1), 0);
    assert_int_equal(load_answer_end(&answer, 1), 0);
    assert_int_equal(answer.text_events, 1);
    /* The whole answer as one value. */
    static const char whole[] =
        "{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}";
    load_answer_clear(&answer);
    assert_int_equal(load_answer_read(&answer, whole, sizeof whole - 1, 1), 0);
    assert_int_equal(load_answer_end(&answer, 2), 0);
    assert_int_equal(answer.text_events, 1);
    assert_int_equal(answer.answer_tokens, 2);
    load_answer_free(&answer);
    char text[160];
    load_error_text("{\"message\":\"m\"}", 15, text);
    assert_string_equal(text, "m");
    load_error_text("plain\ttext\n", 11, text);
    assert_string_equal(text, "plain text ");
}

/* ---- what is asked ---------------------------------------------------------------------------------------
 */

static load_options usual(void) {
    return (load_options){
        .turns = 1, .groups = 1, .prompt = {8, 0}, .answer = {4, 0}, .temperature = -1, .seed = 5};
}

/* The body of a conversation's next request. */
static json_t *next_body(load_work *work, load_talk *talk) {
    char *text = load_talk_body(work, talk);
    assert_non_null(text);
    json_t *body = json_loads(text, 0, NULL);
    assert_non_null(body);
    free(text);
    return body;
}

static json_t *body_of(load_work *work, int64_t index) {
    load_talk talk = {0};
    assert_int_equal(load_talk_begin(work, &talk, index), 0);
    json_t *body = next_body(work, &talk);
    load_talk_end(&talk);
    return body;
}

static int words_in(const char *text) {
    int count = *text ? 1 : 0;
    for (; *text; text++) {
        count += *text == ' ';
    }
    return count;
}

static const char *content_of(const json_t *body, size_t index) {
    return json_string_value(
        json_object_get(json_array_get(json_object_get(body, "messages"), index), "content"));
}

static void prompts_depend_on_seed_and_index(void **state) {
    (void)state;
    load_options o = usual();
    char message[LOAD_MESSAGE];
    load_work work, other;
    assert_int_equal(load_work_open(&work, &o, "m", message), 0);
    json_t *first = body_of(&work, 0), *second = body_of(&work, 1), *again = body_of(&work, 0);
    assert_true(json_equal(first, again) && !json_equal(first, second));
    assert_string_equal(json_string_value(json_object_get(first, "model")), "m");
    assert_true(json_is_true(json_object_get(first, "stream")));
    assert_true(json_is_true(json_object_get(json_object_get(first, "stream_options"), "include_usage")));
    assert_null(json_object_get(first, "temperature"));
    assert_null(json_object_get(first, "ignore_eos"));
    assert_int_equal(json_integer_value(json_object_get(first, "max_tokens")), 4);
    assert_int_equal(words_in(content_of(first, 0)), 8);
    load_options seeded = o;
    seeded.seed = 6;
    assert_int_equal(load_work_open(&other, &seeded, "m", message), 0);
    json_t *third = body_of(&other, 0);
    assert_false(json_equal(first, third));
    json_decref(first);
    json_decref(second);
    json_decref(again);
    json_decref(third);
    load_work_close(&work);
    load_work_close(&other);
}

static void groups_share_their_beginnings(void **state) {
    (void)state;
    load_options o = usual();
    char message[LOAD_MESSAGE];
    load_work work;
    o.completions = true;
    o.shared = 50;
    o.groups = 2;
    o.id_least = 100;
    o.id_most = 109;
    o.ignore_eos = true;
    o.temperature = 0;
    assert_int_equal(load_work_open(&work, &o, "m", message), 0);
    json_t *bodies[4];
    for (int64_t i = 0; i < 4; i++) {
        bodies[i] = body_of(&work, i);
        const json_t *ids = json_object_get(bodies[i], "prompt");
        assert_int_equal(json_array_size(ids), 58);
        for (size_t k = 0; k < 58; k++) {
            const json_int_t id = json_integer_value(json_array_get(ids, k));
            assert_true(id >= 100 && id <= 109);
        }
        assert_true(json_is_true(json_object_get(bodies[i], "ignore_eos")));
        assert_near(json_real_value(json_object_get(bodies[i], "temperature")), 0, 0);
    }
    for (size_t k = 0; k < 50; k++) {
        const json_t *a = json_array_get(json_object_get(bodies[0], "prompt"), k);
        assert_true(json_equal(a, json_array_get(json_object_get(bodies[2], "prompt"), k)));
    }
    bool differs = false, own = false;
    for (size_t k = 0; k < 58; k++) {
        const json_t *a = json_array_get(json_object_get(bodies[0], "prompt"), k);
        differs =
            differs || (k < 50 && !json_equal(a, json_array_get(json_object_get(bodies[1], "prompt"), k)));
        own = own || (k >= 50 && !json_equal(a, json_array_get(json_object_get(bodies[2], "prompt"), k)));
    }
    assert_true(differs && own);
    for (int i = 0; i < 4; i++) {
        json_decref(bodies[i]);
    }
    load_work_close(&work);
}

static void turns_hold_all_before(void **state) {
    (void)state;
    load_options o = usual();
    char message[LOAD_MESSAGE];
    load_work work;
    load_talk talk = {0};
    load_bytes answer = {0};
    o.turns = 2;
    assert_int_equal(load_bytes_add(&answer, "yes", 3), 0);
    for (int completions = 0; completions < 2; completions++) {
        o.completions = completions;
        assert_int_equal(load_work_open(&work, &o, "m", message), 0);
        assert_int_equal(load_talk_begin(&work, &talk, 0), 0);
        json_t *first = next_body(&work, &talk);
        assert_true(load_talk_goes_on(&work, &talk));
        assert_int_equal(load_talk_answer(&work, &talk, &answer), 0);
        json_t *second = next_body(&work, &talk);
        assert_false(load_talk_goes_on(&work, &talk));
        if (completions) {
            const char *before = json_string_value(json_object_get(first, "prompt"));
            const char *after = json_string_value(json_object_get(second, "prompt"));
            assert_memory_equal(after, before, strlen(before));
            assert_memory_equal(after + strlen(before), "yes ", 4);
            assert_int_equal(words_in(after), 16);
        } else {
            assert_int_equal(json_array_size(json_object_get(second, "messages")), 3);
            assert_string_equal(content_of(second, 0), content_of(first, 0));
            assert_string_equal(content_of(second, 1), "yes");
            assert_int_equal(words_in(content_of(second, 2)), 8);
        }
        json_decref(first);
        json_decref(second);
        load_work_close(&work);
    }
    load_talk_end(&talk);
    load_bytes_free(&answer);
}

static void files_of_prompts(void **state) {
    (void)state;
    static const char lines[] = "first\r\n\n{\"prompt\": \"second\", \"max_tokens\": 9}\n"
                                "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}]}";
    static const char recorded[] =
        "[{\"conversations\": [{\"from\": \"gpt\", \"value\": \"x\"}, {\"from\": \"human\", \"value\": "
        "\"q1\"}, "
        "{\"from\": \"gpt\", \"value\": \"x\"}, {\"from\": \"human\", \"value\": \"q2\"}]}]";
    load_options o = usual();
    char message[LOAD_MESSAGE];
    load_work work;
    load_talk talk = {0};
    load_bytes answer = {0};
    o.prompts = lines;
    o.prompts_length = sizeof lines - 1;
    o.prompts_name = "f";
    assert_int_equal(load_work_open(&work, &o, "m", message), 0);
    assert_int_equal(work.count, 3);
    static const char *const contents[] = {"first", "second", "s", "first"};
    static const int most[] = {4, 9, 4, 4};
    for (int i = 0; i < 4; i++) {
        json_t *body = body_of(&work, i);
        assert_string_equal(content_of(body, 0), contents[i]);
        assert_int_equal(json_integer_value(json_object_get(body, "max_tokens")), most[i]);
        json_decref(body);
    }
    load_work_close(&work);
    o.prompts = recorded;
    o.prompts_length = sizeof recorded - 1;
    o.turns = 5;
    assert_int_equal(load_work_open(&work, &o, "m", message), 0);
    assert_int_equal(load_talk_begin(&work, &talk, 0), 0);
    json_decref(next_body(&work, &talk));
    assert_true(load_talk_goes_on(&work, &talk));
    assert_int_equal(load_talk_answer(&work, &talk, &answer), 0);
    json_t *body = next_body(&work, &talk);
    assert_string_equal(content_of(body, 0), "q1");
    assert_string_equal(content_of(body, 2), "q2");
    assert_false(load_talk_goes_on(&work, &talk)); /* the person said no more */
    json_decref(body);
    load_talk_end(&talk);
    load_work_close(&work);
}

static void wrong_files_of_prompts_say_where(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
        bool completions;
    } cases[] = {
        {"", "f:1: there are no prompts", false},
        {"\n\n", "f:1: there are no prompts", false},
        {"a\n{\"prompt\": 1}\n", "f:2: wants an object with \"prompt\", a text, or \"messages\", a list",
         false},
        {"a\n{\"prompt\"\n", "f:2: begins like JSON and is none", false},
        {"{\"prompt\": \"a\", \"max_tokens\": 0}", "f:1: \"max_tokens\" is a whole number above 0", false},
        {"a\n\xff\n", "f:2: is no UTF-8", false},
        {"{\"messages\": [{}]}", "f:1: \"messages\" are for chat, not for --endpoint completions", true},
        {"[{\"prompt\": \"a\"}, {}]",
         "f: entry 2: wants an object with \"prompt\", a text, or \"messages\", a list", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        load_options o = usual();
        load_work work;
        char message[LOAD_MESSAGE];
        o.prompts = cases[i].text;
        o.prompts_length = strlen(cases[i].text);
        o.prompts_name = "f";
        o.completions = cases[i].completions;
        assert_int_equal(load_work_open(&work, &o, "m", message), -1);
        assert_string_equal(message, cases[i].why);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_linear),
        cmocka_unit_test(gaps_have_their_moments),
        cmocka_unit_test(gaps_of_shape_1_are_exponential),
        cmocka_unit_test(seeds_and_streams_differ),
        cmocka_unit_test(answers_may_be_cut_anywhere),
        cmocka_unit_test(answers_survive_noise),
        cmocka_unit_test(events_alike_mean_what_they_say),
        cmocka_unit_test(wrong_answers_say_why),
        cmocka_unit_test(prompts_depend_on_seed_and_index),
        cmocka_unit_test(groups_share_their_beginnings),
        cmocka_unit_test(turns_hold_all_before),
        cmocka_unit_test(files_of_prompts),
        cmocka_unit_test(wrong_files_of_prompts_say_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

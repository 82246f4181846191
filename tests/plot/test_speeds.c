/* bench --plot: what is drawn over what, and the limit that rates of a device give. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#undef fail /* of cmocka; the program has its own */
#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char said[512];

int fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(said, sizeof said, format, values);
    va_end(values);
    return FAILED;
}

/* A model of 8 GB whose token takes 16 billion operations, on a device of 4 TB/s and 1000 T operations a
 * second. */
static void test_limit(void **state) {
    (void)state;
    assert_float_equal(speed_limit(8e9, 16e9, 4e12, 1e15), 500, 1e-9);
    assert_float_equal(speed_limit(8e9 / 512, 16e9, 4e12, 1e15), 62500,
                       1e-9);                                          /* 512 sequences share the bytes */
    assert_float_equal(speed_limit(0, 16e9, 4e12, 1e15), 62500, 1e-9); /* a prompt */
    assert_float_equal(speed_limit(8e9, 16e9, 0, 0), 0, 0);            /* nothing was measured */
    assert_float_equal(speed_limit(8e9, 16e9, 4e12, 0), 500, 1e-9);
}

static void test_refusals(void **state) {
    (void)state;
    const number_list one = {{0}, 1}, two = {{1, 2}, 2}, equal = {{8, 8}, 2}, zero = {{0, 8}, 2};
    settings s = {
        .prompts = one, .generates = one, .depths = one, .thread_counts = one, .sequence_counts = one};
    assert_non_null(plot_refusal(&s));
    number_list *const lists[] = {&s.prompts, &s.generates, &s.depths, &s.thread_counts, &s.sequence_counts};
    for (int i = 0; i < 5; i++) {
        *lists[i] = equal;
        assert_non_null(plot_refusal(&s)); /* the same twice */
        *lists[i] = two;
        assert_null(plot_refusal(&s));
        *lists[i] = one;
    }
    s.prompts = zero; /* one length, as 0 is none */
    assert_non_null(plot_refusal(&s));
    s.depths = two;
    s.beside = 3;
    assert_non_null(strstr(plot_refusal(&s), "--beside"));
}

/* The picture of some points as text; the caller's. */
static char *picture_of(speed_list *list) {
    char path[] = "/tmp/test_speeds.XXXXXX";
    const settings s = {.plot = path, .kv_type = "f16", .repetitions = 1};
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    assert_int_equal(plot_speeds(list, &s), DONE);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 100000);
    assert_non_null(text);
    assert_true(fread(text, 1, 99999, file) > 1000);
    fclose(file);
    unlink(path);
    return text;
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text++) {
        count++;
    }
    return count;
}

static speed_point point(const char *path, int model, int32_t depth, double mean) {
    speed_point p = {
        .generate = 8, .depth = depth, .sequences = 1, .threads = 2, .model = model, .path = path};
    const char *slash = strrchr(path, '/');
    snprintf(p.name, sizeof p.name, "%s", slash ? slash + 1 : path);
    p.mean = p.least = p.most = mean;
    return p;
}

static void test_lines(void **state) {
    (void)state;
    speed_point points[] = {point("x/a.gguf", 0, 64, 90), point("x/a.gguf", 0, 0, 100),
                            point("y/a.gguf", 1, 0, 50), point("y/a.gguf", 1, 64, 40)};
    points[0].limit = points[1].limit = 200;
    speed_list list = {.points = points, .count = 4, .several = true};
    char *text = picture_of(&list);
    assert_int_equal(count_of(text, "<g class=\"series"), 3);
    assert_int_equal(count_of(text, "class=\"limit\""), 2); /* the line and its name's */
    assert_non_null(strstr(text, "x/a.gguf: 100 at 0, 90 at 64. y/a.gguf: 50 at 0, 40 at 64. "
                                 "limit, x/a.gguf (limit): 200 at 0, 200 at 64."));
    assert_non_null(strstr(text, ">tokens in the cache before<"));
    free(text);
    list.count = 1;
    const settings s = {.plot = "/tmp/no-such-picture.svg", .kv_type = "f16"};
    assert_int_equal(plot_speeds(&list, &s), FAILED);
    assert_non_null(strstr(said, "no picture"));
    assert_int_equal(access(s.plot, F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

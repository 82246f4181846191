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

/* A device of 4 TB/s, 1000 T operations a second for BF16, 500 for f32; and a model of 8 GB whose token takes
 * 16 billion operations and 2 more in the head, all with int8, at 2000 T. */
static const sluice_rates DEVICE = {
    .read_bytes = 4e12, .quantised_products = 2e15, .bf16_products = 1e15, .f32_products = 0.5e15};
static const cost MODEL = {
    .bytes = 8e9, .operations = {[PRODUCTS_INT8] = 16e9}, .head_operations = {[PRODUCTS_INT8] = 2e9}};

#define assert_near(value, expected) assert_float_equal((value) / (expected), 1, 1e-9)

static void test_limit(void **state) {
    (void)state;
    demand d = {.generate = 100, .sequences = 1, .chunk = 512};
    assert_near(least_seconds(&MODEL, &d, &DEVICE), 100 * 2e-3); /* 8 GB a step */
    d.sequences = 512; /* 18e9 / 2e15 * 512 = 4.608 ms of products a step, which is longer */
    assert_near(least_seconds(&MODEL, &d, &DEVICE), 100 * 4.608e-3);
    /* 1000 tokens: two steps, 4 ms of reading; 8 ms + 1 us of products. */
    d = (demand){.prompt = 1000, .sequences = 1, .chunk = 512};
    assert_near(least_seconds(&MODEL, &d, &DEVICE), 8e-3 + 1e-6);
    d.chunk = 100; /* ten steps: 20 ms of reading */
    assert_near(least_seconds(&MODEL, &d, &DEVICE), 20e-3);
    d.generate = 5; /* and five more */
    assert_near(least_seconds(&MODEL, &d, &DEVICE), 20e-3 + 10e-3);
    const sluice_rates none = {0}, reading = {.read_bytes = 4e12};
    assert_true(least_seconds(&MODEL, &d, &none) == 0);
    assert_near(least_seconds(&MODEL, &d, &reading), 30e-3);
    d = (demand){.prompt = 250, .sequences = 1, .chunk = 100}; /* a part of a step reads all as well */
    assert_near(least_seconds(&MODEL, &d, &reading), 6e-3);
}

/* Weights of several types take the time of each. */
static void test_limit_of_types(void **state) {
    (void)state;
    const cost mixed = {.operations = {4e12, 3e12, 1e12}, .head_operations = {0, 2e12, 0}};
    const demand d = {.prompt = 10, .sequences = 2, .chunk = 512};
    assert_near(least_seconds(&mixed, &d, &DEVICE), 20 * (2e-3 + 3e-3 + 2e-3) + 2 * 2e-3);
    assert_near(all_products(mixed.operations), 8e12);
    /* Eight experts of which two are used: two rows reach 1 - (6/8)^2 of them. */
    const cost experts = {.bytes = 1e9, .expert_bytes = 16e9, .experts = 8, .experts_used = 2};
    assert_near(step_bytes(&experts, 1), 1e9 + 4e9);
    assert_near(step_bytes(&experts, 2), 1e9 + 7e9);
    assert_near(step_bytes(&MODEL, 2), 8e9);
}

/* A layer that sees all, of 1000 numbers a token, and one that sees 64 keys, of 100. */
static void test_limit_of_the_cache(void **state) {
    (void)state;
    const cost c = {.attention = {{0, 1000, 5e9}, {64, 100, 1e9}}, .attention_count = 2};
    const sluice_rates reading = {.read_bytes = 1e6}, computing = {.bf16_products = 1e12};
    /* Two tokens behind 100: they see 101 and 102 keys, and 64 each. */
    demand d = {.generate = 2, .depth = 100, .sequences = 1, .chunk = 512, .cache_element_bytes = 2};
    assert_near(least_seconds(&c, &d, &reading), (203 * 2000 + 128 * 200) * 1e-6);
    assert_near(least_seconds(&c, &d, &computing), (203 * 5 + 128 * 1) * 1e-3);
    d.sequences = 3;
    assert_near(least_seconds(&c, &d, &computing), 3 * (203 * 5 + 128 * 1) * 1e-3);
    /* A prompt of 30 in steps of 20 reads 120 and 130 tokens once a step; the window of its first and last
     * row together 64 + 19, and 64 + 9. Row i of 30 sees 100 + i keys: 3465 in all. */
    d = (demand){.prompt = 30, .depth = 100, .sequences = 1, .chunk = 20, .cache_element_bytes = 2};
    assert_near(least_seconds(&c, &d, &reading), (250 * 2000 + 156 * 200) * 1e-6);
    assert_near(least_seconds(&c, &d, &computing), (3465 * 5 + 30 * 64) * 1e-3);
    d.depth = 0; /* nothing in front: as many keys as there are */
    assert_near(least_seconds(&c, &d, &computing), (465 * 5 + 465 * 1) * 1e-3);
    assert_near(cache_element_bytes("q8_0") * 32, 34);
    assert_true(cache_element_bytes("fp8") == 1 && cache_element_bytes("f32") == 4);
    assert_true(cache_element_bytes("q4_k") == 0);
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
        cmocka_unit_test(test_limit_of_types),
        cmocka_unit_test(test_limit_of_the_cache),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The lowest layer: errors, checked arithmetic, arena, text, hash, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/text.h"

#include <stdlib.h>

static void errors_name_their_place(void **state) {
    (void)state;
    sl_error error;
    assert_int_equal(sl_fail(&error, SL_ERR_FORMAT, "field %d", 7), SL_ERR_FORMAT);
    assert_string_equal(error.message, "field 7");
    assert_int_equal(sl_fail_prefix(&error, "model.gguf"), SL_ERR_FORMAT);
    assert_string_equal(error.message, "model.gguf: field 7");
    /* Texts from files stand in messages: one line all the same, and nothing that a terminal obeys. */
    sl_fail(&error, SL_ERR_FORMAT, "key '%s'", "a\nb\tc\x1b[1m\x7f\xc3\xa9");
    assert_string_equal(error.message, "key 'a b c?[1m?\xc3\xa9'");
    sl_fail_prefix(&error, "two\nlines");
    assert_string_equal(error.message, "two lines: key 'a b c?[1m?\xc3\xa9'");
    assert_string_equal(sl_error_name(SL_ERR_NOMEM), "NOMEM");
    assert_string_equal(sl_error_text(12345), "unknown error");
}

static void arithmetic_refuses_overflow(void **state) {
    (void)state;
    uint64_t result;
    assert_true(sl_mul_u64(1u << 31, 2, &result) && result == (uint64_t)1 << 32);
    assert_false(sl_mul_u64(UINT64_MAX / 2, 3, &result));
    assert_false(sl_add_u64(UINT64_MAX, 1, &result));
    assert_false(sl_align_u64(UINT64_MAX - 3, 32, &result));
    assert_true(sl_align_u64(33, 32, &result) && result == 64);
    assert_true(sl_range_inside(4, 6, 10));
    assert_false(sl_range_inside(4, 7, 10));
    assert_false(sl_range_inside(11, 0, 10));
    assert_false(sl_range_inside(4, UINT64_MAX, 10));
}

static void arena_gives_zeroed_aligned_memory(void **state) {
    (void)state;
    sl_arena arena = {0};
    for (int i = 1; i < 2000; i += 37) {
        unsigned char *memory = sl_arena_alloc(&arena, (size_t)i, 17);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 16, 0);
        for (int j = 0; j < i * 17; j++) {
            assert_int_equal(memory[j], 0);
        }
        memset(memory, 0xff, (size_t)i * 17);
    }
    assert_null(sl_arena_alloc(&arena, SIZE_MAX / 2, 3));
    assert_string_equal(sl_arena_printf(&arena, "%s-%d", "blk", 3), "blk-3");
    sl_arena_free(&arena);
}

static void allocations_fail_when_told(void **state) {
    (void)state;
    uint64_t live = sl_alloc_live_bytes();
    sl_alloc_fail_at(2);
    void *first = sl_alloc(10);
    assert_non_null(first);
    assert_null(sl_alloc(10));
    void *third = sl_alloc(10);
    assert_non_null(third);
    assert_int_equal(sl_alloc_live_bytes() - live, 20);
    sl_free(first);
    sl_free(third);
    assert_int_equal(sl_alloc_live_bytes(), live);
    assert_null(sl_alloc(SIZE_MAX - 8));
    assert_null(sl_alloc_zero(SIZE_MAX, 2));
}

static void utf8_follows_the_standard(void **state) {
    (void)state;
    uint32_t c;
    assert_int_equal(sl_utf8_decode("\xe2\x82\xac", 3, &c), 3);
    assert_int_equal(c, 0x20ac);
    assert_int_equal(sl_utf8_decode("\xf0\x9f\x98\x80", 4, &c), 4);
    assert_int_equal(c, 0x1f600);
    static const char *const bad[] = {"\x80",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x80\x80",
                                      "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82",
                                      "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sl_utf8_decode(bad[i], strlen(bad[i]), &c), 0);
    }
    for (uint32_t p = 0; p <= 0x110000; p += p < 0x3000 ? 1 : 61) {
        char out[4];
        size_t size = sl_utf8_encode(p, out);
        if ((p >= 0xd800 && p <= 0xdfff) || p > 0x10ffff) {
            assert_int_equal(size, 0);
        } else {
            assert_int_equal(sl_utf8_decode(out, size, &c), size);
            assert_int_equal(c, p);
        }
    }
}

static void buffer_grows_and_reports(void **state) {
    (void)state;
    sl_buffer buffer = {0};
    for (int i = 0; i < 1000; i++) {
        sl_buffer_printf(&buffer, "%d,", i);
    }
    assert_false(buffer.failed);
    assert_int_equal(buffer.length, 3890);
    assert_memory_equal(buffer.data, "0,1,2,", 6);
    sl_alloc_fail_at(1);
    char big[8192] = {0};
    sl_buffer_append(&buffer, big, sizeof big);
    assert_true(buffer.failed);
    assert_int_equal(buffer.length, 3890);
    sl_buffer_free(&buffer);
    assert_int_not_equal(sl_hash64("a", 1, 0), sl_hash64("b", 1, 0));
    assert_int_not_equal(sl_hash64("a", 1, 0), sl_hash64("a", 1, 1));
}

typedef struct pool_case {
    sl_pool *pool;
    int rounds[8];
    int sum;
} pool_case;

static void pool_body(void *context, int thread, int threads) {
    pool_case *c = context;
    for (int round = 1; round <= 100; round++) {
        c->rounds[thread] = round;
        sl_pool_barrier(c->pool);
        for (int i = 0; i < threads; i++) {
            if (c->rounds[i] != round) {
                abort();
            }
        }
        sl_pool_barrier(c->pool);
    }
    if (thread == 0) {
        c->sum += threads;
    }
}

static void pool_threads_meet_at_the_barrier(void **state) {
    (void)state;
    sl_error error;
    assert_int_equal(sl_pool_create(0, &(sl_pool *){0}, &error), SL_ERR_INVALID);
    for (int threads = 1; threads <= 5; threads += 2) {
        pool_case c = {0};
        assert_int_equal(sl_pool_create(threads, &c.pool, &error), 0);
        assert_int_equal(sl_pool_threads(c.pool), threads);
        sl_pool_run(c.pool, pool_body, &c);
        assert_int_equal(c.sum, threads);
        for (int run = 0; run < 19; run++) {
            sl_pool_run(c.pool, pool_body, &c);
        }
        /* Later runs may have smaller teams. */
        assert_in_range(c.sum, threads + 19, 20 * threads);
        sl_pool_destroy(c.pool);
    }
}

static void maps_name_the_file_they_cannot_open(void **state) {
    (void)state;
    sl_map map = {0};
    sl_error error;
    assert_int_equal(sl_map_open(&map, "/no/such/file", &error), SL_ERR_IO);
    assert_non_null(strstr(error.message, "/no/such/file"));
    assert_int_equal(sl_map_open(&map, "/", &error), SL_ERR_IO);
    assert_int_equal(sl_map_open(&map, SLUICE_SOURCE_DIR "/LICENSE", &error), 0);
    assert_memory_equal(map.data, "MIT License", 11);
    sl_map_close(&map);
}

static void isa_names_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < SL_ISA_COUNT; i++) {
        assert_int_equal(sl_isa_parse(sl_isa_name((sl_isa)i)), i);
    }
    assert_int_equal(sl_isa_parse("sse9"), -1);
    assert_true(sl_cpu_count() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_name_their_place),
        cmocka_unit_test(arithmetic_refuses_overflow),
        cmocka_unit_test(arena_gives_zeroed_aligned_memory),
        cmocka_unit_test(allocations_fail_when_told),
        cmocka_unit_test(utf8_follows_the_standard),
        cmocka_unit_test(buffer_grows_and_reports),
        cmocka_unit_test(pool_threads_meet_at_the_barrier),
        cmocka_unit_test(maps_name_the_file_they_cannot_open),
        cmocka_unit_test(isa_names_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

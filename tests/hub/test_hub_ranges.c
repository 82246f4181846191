/* Sets of ranges against one flag for each byte. */
#include "hub/ranges.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 200, ADDITIONS = 60, ROUNDS = 300 };

static void check(const hub_ranges *set, const bool there[BYTES]) {
    uint64_t total = 0, prefix = 0, behind = 0;
    bool own[BYTES] = {false};
    for (size_t i = 0; i < set->count; i++) {
        assert_true(set->list[i].begin < set->list[i].end && set->list[i].end <= BYTES);
        assert_true(i == 0 || set->list[i].begin > behind);
        behind = set->list[i].end;
        memset(own + set->list[i].begin, 1, behind - set->list[i].begin);
    }
    assert_memory_equal(own, there, sizeof own);
    for (size_t i = 0; i < BYTES; i++) {
        total += there[i];
        prefix += prefix == i && there[i];
    }
    assert_int_equal(set->total, total);
    assert_int_equal(hub_ranges_prefix(set), prefix);
    for (uint64_t size = BYTES / 2; size <= BYTES; size += BYTES / 2) {
        for (uint64_t from = 0; from <= BYTES; from++) {
            uint64_t begin = from, end;
            hub_range gap = {0, 0};
            while (begin < size && there[begin]) {
                begin++;
            }
            for (end = begin; end < size && !there[end];) {
                end++;
            }
            assert_int_equal(hub_ranges_gap(set, from, size, &gap), begin < size);
            assert_true(begin >= size || (gap.begin == begin && gap.end == end));
        }
    }
}

static void random_ranges(void **state) {
    (void)state;
    srand(1);
    for (int round = 0; round < ROUNDS; round++) {
        hub_ranges set = {0};
        bool there[BYTES] = {false};
        check(&set, there);
        for (int i = 0; i < ADDITIONS; i++) {
            const uint64_t begin = (uint64_t)rand() % BYTES;
            const uint64_t most = round % 3 ? 8 : BYTES;
            uint64_t end = begin + (uint64_t)rand() % most;
            end = end < BYTES ? end : BYTES;
            assert_true(hub_ranges_add(&set, begin, end));
            memset(there + begin, 1, end - begin);
            check(&set, there);
        }
        hub_ranges_clear(&set);
        memset(there, 0, sizeof there);
        check(&set, there);
        hub_ranges_free(&set);
    }
}

static void ends_of_numbers(void **state) {
    (void)state;
    hub_ranges set = {0};
    hub_range gap;
    assert_true(hub_ranges_add(&set, UINT64_MAX - 10, UINT64_MAX));
    assert_true(hub_ranges_add(&set, 5, 5));
    assert_int_equal(set.total, 10);
    assert_true(hub_ranges_gap(&set, 0, UINT64_MAX, &gap));
    assert_true(gap.begin == 0 && gap.end == UINT64_MAX - 10);
    assert_true(hub_ranges_add(&set, 0, UINT64_MAX));
    assert_int_equal(set.count, 1);
    assert_false(hub_ranges_gap(&set, 0, UINT64_MAX, &gap));
    hub_ranges_free(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_ranges),
        cmocka_unit_test(ends_of_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

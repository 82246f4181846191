#include "ranges.h"

#include <stdlib.h>
#include <string.h>

/* The first range that ends at `at` or later. */
static size_t find(const hub_ranges *set, uint64_t at) {
    size_t low = 0, high = set->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (set->list[middle].end < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool hub_ranges_add(hub_ranges *set, uint64_t begin, uint64_t end) {
    if (begin >= end) {
        return true;
    }
    const size_t first = find(set, begin);
    size_t last = first; /* behind those that the new one touches */
    hub_range merged = {begin, end};
    uint64_t known = 0;
    while (last < set->count && set->list[last].begin <= end) {
        const hub_range *r = &set->list[last++];
        merged.begin = r->begin < merged.begin ? r->begin : merged.begin;
        merged.end = r->end > merged.end ? r->end : merged.end;
        known += r->end - r->begin;
    }
    if (first == last && set->count == set->room) {
        const size_t room = set->room ? 2 * set->room : 16;
        hub_range *list = realloc(set->list, room * sizeof *list);
        if (!list) {
            return false;
        }
        set->list = list;
        set->room = room;
    }
    memmove(set->list + first + 1, set->list + last, (set->count - last) * sizeof *set->list);
    set->list[first] = merged;
    set->count += 1 + first - last;
    set->total += merged.end - merged.begin - known;
    return true;
}

bool hub_ranges_gap(const hub_ranges *set, uint64_t from, uint64_t size, hub_range *gap) {
    size_t i = find(set, from);
    uint64_t begin = from;
    while (i < set->count && set->list[i].begin <= begin) {
        begin = set->list[i].end > begin ? set->list[i].end : begin;
        i++;
    }
    if (begin >= size) {
        return false;
    }
    gap->begin = begin;
    gap->end = i < set->count && set->list[i].begin < size ? set->list[i].begin : size;
    return true;
}

uint64_t hub_ranges_prefix(const hub_ranges *set) {
    return set->count && set->list[0].begin == 0 ? set->list[0].end : 0;
}

void hub_ranges_clear(hub_ranges *set) {
    set->count = 0;
    set->total = 0;
}

void hub_ranges_free(hub_ranges *set) {
    free(set->list);
    *set = (hub_ranges){0};
}

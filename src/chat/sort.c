/* Sorting: of a filter's items by keys that it made, and of a dict's entries. */
#include "chat/value.h"

#include <string.h>

int sl_jinja_sort_key(sl_jinja *state, sl_jinja_value value, bool ignore_case, sl_jinja_value *key) {
    *key = value;
    return ignore_case && value.kind == SL_JINJA_STRING
               ? sl_jinja_change_case(state, sl_jinja_view(value), SL_JINJA_LOWER, key)
               : 0;
}

/* Stable merge sort. `other` is as long as `items`. */
static int merge_sort(sl_jinja *state, sl_jinja_keyed *items, sl_jinja_keyed *other, size_t count,
                      bool reverse) {
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = start + 2 * width < count ? start + 2 * width : count;
            size_t left = start, right = middle;
            for (size_t to = start; to < end; to++) {
                bool take_right = left == middle;
                if (left < middle && right < end) {
                    int order;
                    if (sl_jinja_compare(state, items[right].key, items[left].key, &order)) {
                        return state->code;
                    }
                    take_right = order != 2 && (reverse ? order > 0 : order < 0);
                }
                other[to] = items[take_right ? right++ : left++];
            }
        }
        memcpy(items, other, count * sizeof *items);
    }
    return 0;
}

int sl_jinja_sort(sl_jinja *state, sl_jinja_keyed *items, size_t count, bool reverse) {
    sl_jinja_keyed *other = sl_jinja_alloc(state, count, sizeof *other);
    return other && !sl_jinja_spend(state, count) ? merge_sort(state, items, other, count, reverse)
                                                  : state->code;
}

int sl_jinja_sorted_entries(sl_jinja *state, const sl_jinja_dict *dict, const sl_jinja_order *order,
                            sl_jinja_entry **entries) {
    sl_jinja_keyed *keys = sl_jinja_alloc(state, dict->count, sizeof *keys);
    *entries = keys ? sl_jinja_alloc(state, dict->count, sizeof **entries) : NULL;
    if (!*entries || sl_jinja_spend(state, dict->count)) {
        return state->code;
    }
    for (size_t i = 0; i < dict->count; i++) {
        const sl_jinja_entry *entry = &dict->entries[i];
        keys[i].index = i;
        if (sl_jinja_sort_key(state, order->by_value ? entry->value : entry->key, order->ignore_case,
                              &keys[i].key)) {
            return state->code;
        }
    }
    if (sl_jinja_sort(state, keys, dict->count, order->reverse)) {
        return state->code;
    }
    for (size_t i = 0; i < dict->count; i++) {
        (*entries)[i] = dict->entries[keys[i].index];
    }
    return 0;
}

#include "chat/value.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>

/* ---- limits, memory, errors ---- */

int sl_jinja_fail(sl_jinja *state, int code, const char *format, ...) {
    char rule[SL_ERROR_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rule, sizeof rule, format, arguments);
    va_end(arguments);
    state->code = code;
    return sl_fail(state->error, code, "%s: line %u: %s", state->name, state->line, rule);
}

int sl_jinja_spend(sl_jinja *state, uint64_t steps) {
    if (steps > state->steps_left) {
        state->steps_left = 0;
        return sl_jinja_fail(state, SL_ERR_LIMIT, "the rendering takes more than %llu steps",
                             (unsigned long long)state->limits.steps);
    }
    state->steps_left -= steps;
    return 0;
}

int sl_jinja_enter(sl_jinja *state) {
    if (state->depth >= state->limits.depth) {
        return sl_jinja_fail(state, SL_ERR_LIMIT, "nested deeper than %u", state->limits.depth);
    }
    state->depth++;
    return 0;
}

void sl_jinja_leave(sl_jinja *state) {
    state->depth--;
}

void *sl_jinja_alloc(sl_jinja *state, size_t count, size_t size) {
    uint64_t bytes;
    if (!sl_mul_u64(count, size, &bytes) || !sl_align_u64(bytes, 16, &bytes) || bytes > state->memory_left) {
        sl_jinja_fail(state, SL_ERR_LIMIT, "the rendering computes more than %llu bytes",
                      (unsigned long long)state->limits.memory_bytes);
        return NULL;
    }
    void *memory = sl_arena_alloc(&state->arena, count, size);
    if (!memory) {
        sl_jinja_fail(state, SL_ERR_NOMEM, "out of memory");
        return NULL;
    }
    state->memory_left -= bytes;
    return memory;
}

int sl_jinja_emit(sl_jinja *state, const void *data, size_t length) {
    if (length > state->output_left) {
        return sl_jinja_fail(state, SL_ERR_LIMIT, "the rendering writes more than %llu bytes",
                             (unsigned long long)state->limits.output_bytes);
    }
    state->output_left -= length;
    sl_buffer_append(state->out, data, length);
    return state->out->failed ? sl_jinja_fail(state, SL_ERR_NOMEM, "out of memory") : 0;
}

int sl_jinja_emit_text(sl_jinja *state, const char *text) {
    return sl_jinja_emit(state, text, strlen(text));
}

int sl_jinja_capture(sl_jinja *state, size_t mark, sl_jinja_value *result) {
    size_t length = state->out->length - mark;
    char *copy = sl_jinja_alloc(state, length ? length : 1, 1);
    if (!copy || sl_jinja_spend(state, length / 64)) {
        return state->code;
    }
    if (length) {
        memcpy(copy, state->out->data + mark, length);
        state->out->data[mark] = 0;
    }
    state->out->length = mark;
    state->output_left += length;
    *result = sl_jinja_text(copy, length);
    return 0;
}

/* ---- making values ---- */

sl_jinja_value sl_jinja_of(sl_jinja_kind kind) {
    return (sl_jinja_value){.kind = kind};
}

sl_jinja_value sl_jinja_bool(bool value) {
    return (sl_jinja_value){.kind = SL_JINJA_BOOL, .boolean = value};
}

sl_jinja_value sl_jinja_int(int64_t value) {
    return (sl_jinja_value){.kind = SL_JINJA_INT, .integer = value};
}

sl_jinja_value sl_jinja_float(double value) {
    return (sl_jinja_value){.kind = SL_JINJA_FLOAT, .real = value};
}

sl_jinja_value sl_jinja_text(const char *text, size_t length) {
    return (sl_jinja_value){.kind = SL_JINJA_STRING, .length = (uint32_t)length, .text = text};
}

sl_jinja_value sl_jinja_undefined(sl_view name) {
    return (sl_jinja_value){.kind = SL_JINJA_UNDEFINED, .length = (uint32_t)name.length, .text = name.data};
}

int sl_jinja_list_new(sl_jinja *state, sl_jinja_kind kind, size_t count, sl_jinja_value *result) {
    sl_jinja_list *list = sl_jinja_alloc(state, 1, sizeof *list);
    sl_jinja_value *items = list ? sl_jinja_alloc(state, count, sizeof *items) : NULL;
    if (!items || sl_jinja_spend(state, count)) {
        return state->code;
    }
    list->items = items;
    list->count = count;
    *result = (sl_jinja_value){.kind = kind, .list = list};
    return 0;
}

int sl_jinja_dict_new(sl_jinja *state, sl_jinja_kind kind, sl_jinja_value *result) {
    sl_jinja_dict *dict = sl_jinja_alloc(state, 1, sizeof *dict);
    if (!dict) {
        return state->code;
    }
    *result = (sl_jinja_value){.kind = kind, .dict = dict};
    return 0;
}

static int text_from_json(sl_jinja *state, const char *text, size_t length, sl_jinja_value *result) {
    if (length > UINT32_MAX) {
        return sl_jinja_fail(state, SL_ERR_LIMIT, "a variable's text is longer than 4 GiB");
    }
    *result = sl_jinja_text(text, length);
    return 0;
}

static int object_from_json(sl_jinja *state, json_t *json, sl_jinja_value *result) {
    if (sl_jinja_dict_new(state, SL_JINJA_DICT, result)) {
        return state->code;
    }
    for (void *at = json_object_iter(json); at; at = json_object_iter_next(json, at)) {
        sl_jinja_value key, value;
        if (text_from_json(state, json_object_iter_key(at), json_object_iter_key_len(at), &key) ||
            sl_jinja_from_json(state, json_object_iter_value(at), &value) ||
            sl_jinja_dict_set(state, result->dict, key, value)) {
            return state->code;
        }
    }
    return 0;
}

static int array_from_json(sl_jinja *state, json_t *json, sl_jinja_value *result) {
    if (sl_jinja_list_new(state, SL_JINJA_LIST, json_array_size(json), result)) {
        return state->code;
    }
    for (size_t i = 0; i < result->list->count; i++) {
        if (sl_jinja_from_json(state, json_array_get(json, i), &result->list->items[i])) {
            return state->code;
        }
    }
    return 0;
}

int sl_jinja_from_json(sl_jinja *state, json_t *json, sl_jinja_value *result) {
    *result = sl_jinja_of(SL_JINJA_NONE);
    switch (json_typeof(json)) {
    case JSON_NULL:
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        *result = sl_jinja_bool(json_is_true(json));
        return 0;
    case JSON_INTEGER:
        *result = sl_jinja_int(json_integer_value(json));
        return 0;
    case JSON_REAL:
        *result = sl_jinja_float(json_real_value(json));
        return 0;
    case JSON_STRING:
        return text_from_json(state, json_string_value(json), json_string_length(json), result);
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    if (sl_jinja_enter(state)) {
        return state->code;
    }
    int code =
        json_is_array(json) ? array_from_json(state, json, result) : object_from_json(state, json, result);
    sl_jinja_leave(state);
    return code;
}

/* ---- dictionaries ---- */

/* Equal keys have equal hashes: 1, 1.0 and True are one key. */
static int hash_value(sl_jinja *state, sl_jinja_value key, uint64_t *hash) {
    int64_t integer;
    if (key.kind == SL_JINJA_STRING) {
        *hash = sl_hash64(key.text, key.length, SL_JINJA_STRING);
        return sl_jinja_spend(state, key.length / 16);
    }
    if (key.kind == SL_JINJA_FLOAT && key.real >= -9.2e18 && key.real <= 9.2e18 &&
        key.real == floor(key.real)) {
        key = sl_jinja_int((int64_t)key.real);
    }
    if (sl_jinja_as_int(key, &integer)) {
        *hash = sl_hash64(&integer, sizeof integer, SL_JINJA_INT);
        return 0;
    }
    if (key.kind == SL_JINJA_FLOAT) {
        *hash = sl_hash64(&key.real, sizeof key.real, SL_JINJA_FLOAT);
        return 0;
    }
    if (key.kind == SL_JINJA_NONE) {
        *hash = 0;
        return 0;
    }
    if (key.kind != SL_JINJA_TUPLE) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "unhashable type: '%s'", sl_jinja_type_name(key));
    }
    if (sl_jinja_enter(state)) {
        return state->code;
    }
    *hash = SL_JINJA_TUPLE;
    for (size_t i = 0; i < key.list->count; i++) {
        uint64_t part;
        if (sl_jinja_spend(state, 1) || hash_value(state, key.list->items[i], &part)) {
            return state->code;
        }
        *hash = sl_hash64(&part, sizeof part, *hash);
    }
    sl_jinja_leave(state);
    return 0;
}

/* Takes the first free slot for an entry. Keys may be chosen to collide, so what is passed over is spent. */
static int fill_slot(sl_jinja *state, uint32_t *slots, size_t slot_count, uint64_t hash, size_t entry) {
    size_t passed = 0;
    while (slots[(hash + passed) & (slot_count - 1)]) {
        passed++;
    }
    slots[(hash + passed) & (slot_count - 1)] = (uint32_t)entry + 1;
    return sl_jinja_spend(state, passed / 8);
}

static int grow(sl_jinja *state, sl_jinja_dict *dict) {
    size_t capacity = dict->capacity ? dict->capacity * 2 : 8;
    sl_jinja_entry *entries = sl_jinja_alloc(state, capacity, sizeof *entries);
    if (!entries) {
        return state->code;
    }
    uint32_t *slots = NULL;
    size_t slot_count = capacity > 8 ? capacity * 2 : 0;
    if (slot_count && !(slots = sl_jinja_alloc(state, slot_count, sizeof *slots))) {
        return state->code;
    }
    if (dict->count) {
        memcpy(entries, dict->entries, dict->count * sizeof *entries);
    }
    for (size_t i = 0; slots && i < dict->count; i++) {
        if (fill_slot(state, slots, slot_count, entries[i].hash, i)) {
            return state->code;
        }
    }
    dict->entries = entries;
    dict->capacity = capacity;
    dict->slots = slots;
    dict->slot_count = slot_count;
    return 0;
}

/* The next entry with this hash, or NULL. *at: where to go on, 0 at first. */
static sl_jinja_entry *next_candidate(const sl_jinja_dict *dict, uint64_t hash, size_t *at) {
    if (!dict->slots) {
        while (*at < dict->count) {
            sl_jinja_entry *entry = &dict->entries[(*at)++];
            if (entry->hash == hash) {
                return entry;
            }
        }
        return NULL;
    }
    for (;;) {
        uint32_t slot = dict->slots[(hash + (*at)++) & (dict->slot_count - 1)];
        if (!slot) {
            return NULL;
        }
        if (dict->entries[slot - 1].hash == hash) {
            return &dict->entries[slot - 1];
        }
    }
}

static int find_hashed(sl_jinja *state, const sl_jinja_dict *dict, sl_jinja_value key, uint64_t hash,
                       sl_jinja_value **found) {
    size_t at = 0;
    *found = NULL;
    for (sl_jinja_entry *entry; (entry = next_candidate(dict, hash, &at)) != NULL;) {
        bool equal;
        if (sl_jinja_equal(state, entry->key, key, &equal)) {
            return state->code;
        }
        if (equal) {
            *found = &entry->value;
            break;
        }
    }
    return sl_jinja_spend(state, at / 8);
}

int sl_jinja_dict_get(sl_jinja *state, const sl_jinja_dict *dict, sl_jinja_value key,
                      sl_jinja_value **found) {
    uint64_t hash;
    if (hash_value(state, key, &hash)) {
        return state->code;
    }
    return find_hashed(state, dict, key, hash, found);
}

int sl_jinja_dict_set(sl_jinja *state, sl_jinja_dict *dict, sl_jinja_value key, sl_jinja_value value) {
    uint64_t hash;
    sl_jinja_value *found;
    if (hash_value(state, key, &hash) || find_hashed(state, dict, key, hash, &found)) {
        return state->code;
    }
    if (found) {
        *found = value;
        return 0;
    }
    if (dict->count == dict->capacity && grow(state, dict)) {
        return state->code;
    }
    dict->entries[dict->count++] = (sl_jinja_entry){.key = key, .value = value, .hash = hash};
    return dict->slots ? fill_slot(state, dict->slots, dict->slot_count, hash, dict->count - 1) : 0;
}

/* ---- Python's protocols ---- */

sl_view sl_jinja_view(sl_jinja_value string) {
    return (sl_view){string.text, string.length};
}

bool sl_jinja_has_items(sl_jinja_value value) {
    return value.kind >= SL_JINJA_LIST && value.kind <= SL_JINJA_VIEW;
}

bool sl_jinja_is_number(sl_jinja_value value) {
    return value.kind == SL_JINJA_BOOL || value.kind == SL_JINJA_INT || value.kind == SL_JINJA_FLOAT;
}

bool sl_jinja_as_int(sl_jinja_value value, int64_t *result) {
    if (value.kind == SL_JINJA_INT) {
        *result = value.integer;
    } else if (value.kind == SL_JINJA_BOOL) {
        *result = value.boolean;
    } else {
        return false;
    }
    return true;
}

double sl_jinja_as_float(sl_jinja_value value) {
    int64_t integer;
    return sl_jinja_as_int(value, &integer) ? (double)integer : value.real;
}

const char *sl_jinja_type_name(sl_jinja_value value) {
    static const char *const names[] = {
        [SL_JINJA_MISSING] = "missing",  [SL_JINJA_UNDEFINED] = "Undefined",
        [SL_JINJA_NONE] = "NoneType",    [SL_JINJA_BOOL] = "bool",
        [SL_JINJA_INT] = "int",          [SL_JINJA_FLOAT] = "float",
        [SL_JINJA_STRING] = "str",       [SL_JINJA_LIST] = "list",
        [SL_JINJA_TUPLE] = "tuple",      [SL_JINJA_GENERATOR] = "generator",
        [SL_JINJA_RANGE] = "range",      [SL_JINJA_VIEW] = "dict view",
        [SL_JINJA_DICT] = "dict",        [SL_JINJA_NAMESPACE] = "Namespace",
        [SL_JINJA_LOOP] = "LoopContext", [SL_JINJA_FUNCTION] = "function",
        [SL_JINJA_METHOD] = "method",    [SL_JINJA_MACRO] = "Macro",
    };
    return names[value.kind];
}

bool sl_jinja_truthy(sl_jinja_value value) {
    switch (value.kind) {
    case SL_JINJA_MISSING:
    case SL_JINJA_UNDEFINED:
    case SL_JINJA_NONE:
        return false;
    case SL_JINJA_BOOL:
        return value.boolean;
    case SL_JINJA_INT:
        return value.integer != 0;
    case SL_JINJA_FLOAT:
        return value.real != 0;
    case SL_JINJA_STRING:
        return value.length != 0;
    case SL_JINJA_LIST:
    case SL_JINJA_TUPLE:
    case SL_JINJA_RANGE:
    case SL_JINJA_VIEW:
        return value.list->count != 0;
    case SL_JINJA_DICT:
        return value.dict->count != 0;
    default:
        return true;
    }
}

static int equal_lists(sl_jinja *state, const sl_jinja_list *a, const sl_jinja_list *b, bool *result) {
    *result = a->count == b->count;
    for (size_t i = 0; *result && i < a->count; i++) {
        if (sl_jinja_equal(state, a->items[i], b->items[i], result)) {
            return state->code;
        }
    }
    return 0;
}

static int equal_dicts(sl_jinja *state, const sl_jinja_dict *a, const sl_jinja_dict *b, bool *result) {
    *result = a->count == b->count;
    for (size_t i = 0; *result && i < a->count; i++) {
        sl_jinja_value *other;
        if (sl_jinja_dict_get(state, b, a->entries[i].key, &other)) {
            return state->code;
        }
        if (!other) {
            *result = false;
        } else if (sl_jinja_equal(state, a->entries[i].value, *other, result)) {
            return state->code;
        }
    }
    return 0;
}

static bool equal_numbers(sl_jinja_value a, sl_jinja_value b) {
    int64_t x, y;
    if (sl_jinja_as_int(a, &x) && sl_jinja_as_int(b, &y)) {
        return x == y;
    }
    return sl_jinja_as_float(a) == sl_jinja_as_float(b);
}

int sl_jinja_equal(sl_jinja *state, sl_jinja_value a, sl_jinja_value b, bool *result) {
    if (sl_jinja_spend(state, 1)) {
        return state->code;
    }
    if (sl_jinja_is_number(a) && sl_jinja_is_number(b)) {
        *result = equal_numbers(a, b);
        return 0;
    }
    *result = false;
    if (a.kind != b.kind) {
        return 0;
    }
    int code = 0;
    switch (a.kind) {
    case SL_JINJA_STRING:
        *result = sl_view_equal(sl_jinja_view(a), sl_jinja_view(b));
        return sl_jinja_spend(state, a.length == b.length ? a.length / 64 : 0);
    case SL_JINJA_LIST:
    case SL_JINJA_TUPLE:
    case SL_JINJA_RANGE:
        if (sl_jinja_enter(state)) {
            return state->code;
        }
        code = equal_lists(state, a.list, b.list, result);
        sl_jinja_leave(state);
        return code;
    case SL_JINJA_DICT:
        if (sl_jinja_enter(state)) {
            return state->code;
        }
        code = equal_dicts(state, a.dict, b.dict, result);
        sl_jinja_leave(state);
        return code;
    case SL_JINJA_MISSING:
    case SL_JINJA_UNDEFINED:
    case SL_JINJA_NONE:
        *result = true;
        return 0;
    default:
        *result = a.list == b.list; /* identity; every pointer of the union starts at the same place */
        return 0;
    }
}

static int order_of(double a, double b) {
    return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2;
}

static int compare_lists(sl_jinja *state, const sl_jinja_list *a, const sl_jinja_list *b, int *order) {
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;
        if (sl_jinja_equal(state, a->items[i], b->items[i], &equal)) {
            return state->code;
        }
        if (!equal) {
            return sl_jinja_compare(state, a->items[i], b->items[i], order);
        }
    }
    *order = a->count < b->count ? -1 : a->count > b->count;
    return 0;
}

int sl_jinja_compare(sl_jinja *state, sl_jinja_value a, sl_jinja_value b, int *order) {
    int64_t x, y;
    if (sl_jinja_spend(state, 1)) {
        return state->code;
    }
    if (sl_jinja_as_int(a, &x) && sl_jinja_as_int(b, &y)) {
        *order = x < y ? -1 : x > y;
        return 0;
    }
    if (sl_jinja_is_number(a) && sl_jinja_is_number(b)) {
        *order = order_of(sl_jinja_as_float(a), sl_jinja_as_float(b));
        return 0;
    }
    if (a.kind == SL_JINJA_STRING && b.kind == SL_JINJA_STRING) {
        size_t common = a.length < b.length ? a.length : b.length;
        int sign = common ? memcmp(a.text, b.text, common) : 0;
        *order = sign < 0 ? -1 : sign > 0 ? 1 : a.length < b.length ? -1 : a.length > b.length;
        return sl_jinja_spend(state, common / 64);
    }
    if (a.kind == b.kind && (a.kind == SL_JINJA_LIST || a.kind == SL_JINJA_TUPLE)) {
        if (sl_jinja_enter(state)) {
            return state->code;
        }
        int code = compare_lists(state, a.list, b.list, order);
        sl_jinja_leave(state);
        return code;
    }
    return sl_jinja_fail(state, SL_ERR_INVALID, "'%s' and '%s' have no order", sl_jinja_type_name(a),
                         sl_jinja_type_name(b));
}

int sl_jinja_length(sl_jinja *state, sl_jinja_value value, int64_t *length) {
    switch (value.kind) {
    case SL_JINJA_UNDEFINED:
        *length = 0;
        return 0;
    case SL_JINJA_STRING:
        *length = (int64_t)sl_jinja_count_characters(sl_jinja_view(value));
        return sl_jinja_spend(state, value.length / 16);
    case SL_JINJA_LIST:
    case SL_JINJA_TUPLE:
    case SL_JINJA_RANGE:
    case SL_JINJA_VIEW:
        *length = (int64_t)value.list->count;
        return 0;
    case SL_JINJA_DICT:
        *length = (int64_t)value.dict->count;
        return 0;
    default:
        return sl_jinja_fail(state, SL_ERR_INVALID, "object of type '%s' has no length",
                             sl_jinja_type_name(value));
    }
}

static int characters(sl_jinja *state, sl_view text, sl_jinja_list *items) {
    items->count = sl_jinja_count_characters(text);
    items->items = sl_jinja_alloc(state, items->count, sizeof *items->items);
    if (!items->items || sl_jinja_spend(state, items->count)) {
        return state->code;
    }
    for (size_t i = 0; i < items->count; i++) {
        uint32_t code_point;
        size_t size = sl_jinja_character(text, &code_point);
        items->items[i] = sl_jinja_text(text.data, size);
        text.data += size;
        text.length -= size;
    }
    return 0;
}

static int keys(sl_jinja *state, const sl_jinja_dict *dict, sl_jinja_list *items) {
    items->count = dict->count;
    items->items = sl_jinja_alloc(state, dict->count, sizeof *items->items);
    if (!items->items || sl_jinja_spend(state, dict->count)) {
        return state->code;
    }
    for (size_t i = 0; i < dict->count; i++) {
        items->items[i] = dict->entries[i].key;
    }
    return 0;
}

int sl_jinja_iterate(sl_jinja *state, sl_jinja_value value, sl_jinja_list *items) {
    memset(items, 0, sizeof *items);
    switch (value.kind) {
    case SL_JINJA_UNDEFINED:
        return 0;
    case SL_JINJA_STRING:
        return characters(state, sl_jinja_view(value), items);
    case SL_JINJA_DICT:
        return keys(state, value.dict, items);
    case SL_JINJA_LIST:
    case SL_JINJA_TUPLE:
    case SL_JINJA_RANGE:
    case SL_JINJA_VIEW:
        *items = *value.list;
        return 0;
    case SL_JINJA_GENERATOR:
        *items = *value.list;
        value.list->count = 0;
        return 0;
    default:
        return sl_jinja_fail(state, SL_ERR_INVALID, "'%s' object is not iterable", sl_jinja_type_name(value));
    }
}

int sl_jinja_contains(sl_jinja *state, sl_jinja_value container, sl_jinja_value item, bool *result) {
    *result = false;
    if (container.kind == SL_JINJA_STRING) {
        if (item.kind != SL_JINJA_STRING) {
            return sl_jinja_fail(state, SL_ERR_INVALID,
                                 "'in <string>' requires string as left operand, not %s",
                                 sl_jinja_type_name(item));
        }
        *result = sl_jinja_find(sl_jinja_view(container), sl_jinja_view(item), 0) != SIZE_MAX;
        return sl_jinja_spend(state, container.length / 8);
    }
    if (container.kind == SL_JINJA_DICT) {
        sl_jinja_value *found;
        int code = sl_jinja_dict_get(state, container.dict, item, &found);
        *result = !code && found;
        return code;
    }
    sl_jinja_list items;
    if (sl_jinja_iterate(state, container, &items)) {
        return state->code;
    }
    for (size_t i = 0; !*result && i < items.count; i++) {
        if (sl_jinja_equal(state, items.items[i], item, result)) {
            return state->code;
        }
    }
    return 0;
}

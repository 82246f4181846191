/* Which subschemas a document has, what they are called, and what $ref means (JSON Schema 2020-12, core, 8
 * and 9; URIs by RFC 3986, 5.2). */
#include "grammar/schema_internal.h"

#include <stdio.h>
#include <stdlib.h>

typedef enum position {
    ONE,  /* a schema */
    LIST, /* an array of schemas, or one */
    MAP,  /* an object of schemas */
} position;

static const struct {
    const char *keyword;
    position position;
} SUBSCHEMAS[] = {
    {"$defs", MAP},
    {"definitions", MAP},
    {"properties", MAP},
    {"patternProperties", MAP},
    {"dependentSchemas", MAP},
    {"dependencies", MAP},
    {"additionalProperties", ONE},
    {"propertyNames", ONE},
    {"unevaluatedProperties", ONE},
    {"items", LIST},
    {"prefixItems", LIST},
    {"additionalItems", ONE},
    {"unevaluatedItems", ONE},
    {"contains", ONE},
    {"not", ONE},
    {"if", ONE},
    {"then", ONE},
    {"else", ONE},
    {"allOf", LIST},
    {"anyOf", LIST},
    {"oneOf", LIST},
    {"contentSchema", ONE},
};

/* ---- entries ---- */

static uint32_t slot_of(const sl_schema_context *c, const json_t *json) {
    const uintptr_t address = (uintptr_t)json;
    return (uint32_t)sl_hash64(&address, sizeof address, 1) & (c->entry_slots - 1);
}

static bool table_grow(sl_schema_context *c) {
    if ((uint64_t)c->entry_count * 2 < c->entry_slots) {
        return true;
    }
    const uint32_t slots = c->entry_slots ? c->entry_slots * 2 : 256;
    int32_t *table = sl_schema_alloc(c, slots, sizeof *table);
    if (!table) {
        return false;
    }
    memset(table, 0xff, slots * sizeof *table);
    c->entry_table = table;
    c->entry_slots = slots;
    for (int32_t i = 0; i < c->entry_count; i++) {
        if (c->entries[i].json) {
            uint32_t at = slot_of(c, c->entries[i].json);
            while (table[at] >= 0) {
                at = (at + 1) & (slots - 1);
            }
            table[at] = i;
        }
    }
    return true;
}

static int32_t entry_add(sl_schema_context *c, const sl_schema_entry *entry) {
    if (!sl_schema_grow(c, (void **)&c->entries, c->entry_count, &c->entry_capacity, sizeof *c->entries) ||
        !table_grow(c)) {
        return -1;
    }
    c->entries[c->entry_count] = *entry;
    if (entry->json) {
        uint32_t at = slot_of(c, entry->json);
        while (c->entry_table[at] >= 0) {
            at = (at + 1) & (c->entry_slots - 1);
        }
        c->entry_table[at] = c->entry_count;
    }
    return c->entry_count++;
}

static int32_t entry_find(const sl_schema_context *c, const json_t *json) {
    for (uint32_t at = slot_of(c, json); c->entry_table[at] >= 0; at = (at + 1) & (c->entry_slots - 1)) {
        if (c->entries[c->entry_table[at]].json == json) {
            return c->entry_table[at];
        }
    }
    return -1;
}

static const sl_schema_entry ENTRY = {
    .negation_of = -1, .negation = -1, .parent = -1, .index = -1, .resource = SL_ENTRY_ROOT};

int32_t sl_schema_entry_make(sl_schema_context *c, int32_t near) {
    sl_schema_entry entry = ENTRY;
    entry.parent = near;
    entry.resource = near < 0 ? SL_ENTRY_ROOT : c->entries[near].resource;
    return entry_add(c, &entry);
}

int32_t sl_schema_child(sl_schema_context *c, int32_t parent, const char *keyword, const char *name,
                        int32_t index, const json_t *json) {
    if (json_is_boolean(json)) {
        return json_is_true(json) ? SL_ENTRY_TRUE : SL_ENTRY_FALSE;
    }
    if (!json_is_object(json)) {
        sl_schema_refuse(c, SL_ERR_INVALID, parent, keyword, "a schema must be an object or a boolean");
        return -1;
    }
    const int32_t found = entry_find(c, json);
    if (found >= 0) {
        return found;
    }
    sl_schema_entry entry = ENTRY;
    entry.json = json;
    entry.parent = parent;
    entry.keyword = keyword;
    entry.name = name;
    entry.index = index;
    entry.resource = parent < 0 ? c->entry_count : c->entries[parent].resource;
    return entry_add(c, &entry);
}

/* A name as it stands in a JSON pointer (RFC 6901). */
static void append_step(sl_buffer *out, const char *step) {
    sl_buffer_append(out, "/", 1);
    for (; *step; step++) {
        if (*step == '~' || *step == '/') {
            sl_buffer_text(out, *step == '~' ? "~0" : "~1");
        } else {
            sl_buffer_append(out, step, 1);
        }
    }
}

void sl_schema_path(const sl_schema_context *c, int32_t entry, const char *keyword, sl_buffer *out) {
    enum { DEEPEST = 256 };
    int32_t steps[DEEPEST], count = 0;
    for (int32_t at = entry; at >= 0 && count < DEEPEST; at = c->entries[at].parent) {
        steps[count++] = at;
    }
    sl_buffer_text(out, "#");
    while (count-- > 0) {
        const sl_schema_entry *at = &c->entries[steps[count]];
        if (at->keyword && *at->keyword == '/') {
            sl_buffer_text(out, at->keyword); /* a pointer as it was written */
        } else if (at->keyword) {
            append_step(out, at->keyword);
        }
        if (at->index >= 0) {
            sl_buffer_printf(out, "/%d", at->index);
        } else if (at->name) {
            append_step(out, at->name);
        }
    }
    if (keyword) {
        append_step(out, keyword);
    }
}

/* ---- URIs ---- */

/* Bytes of "scheme:", or 0. */
static size_t scheme_length(const char *uri) {
    size_t i = 0;
    while ((uri[i] >= 'a' && uri[i] <= 'z') || (uri[i] >= 'A' && uri[i] <= 'Z') ||
           (i > 0 && ((uri[i] >= '0' && uri[i] <= '9') || strchr("+-.", uri[i]) != NULL) && uri[i])) {
        i++;
    }
    return i > 0 && uri[i] == ':' ? i + 1 : 0;
}

/* Bytes of "scheme://authority". */
static size_t origin_length(const char *uri) {
    const size_t scheme = scheme_length(uri);
    if (strncmp(uri + scheme, "//", 2) != 0) {
        return scheme;
    }
    return scheme + 2 + strcspn(uri + scheme + 2, "/?#");
}

/* "." and ".." of a path, in place. */
static void remove_dots(char *path) {
    char *out = path;
    for (const char *in = path; *in;) {
        const size_t length = 1 + strcspn(in + 1, "/");
        if (*in == '/' && length == 2 && in[1] == '.') {
            in += length;
            if (!*in) {
                *out++ = '/';
            }
        } else if (*in == '/' && length == 3 && in[1] == '.' && in[2] == '.') {
            while (out > path && *--out != '/') {
            }
            in += length;
            if (!*in) {
                *out++ = '/';
            }
        } else {
            memmove(out, in, length);
            out += length;
            in += length;
        }
    }
    *out = '\0';
}

/* The reference without its fragment, against a base. */
static char *resolve_uri(sl_schema_context *c, const char *base, sl_view reference) {
    sl_buffer uri = {0};
    char *text = sl_schema_strndup(c, reference.data, reference.length);
    if (!text) {
        return NULL;
    }
    const size_t origin = origin_length(base), path = origin + strcspn(base + origin, "?#");
    if (scheme_length(text) || !*text) {
        return *text ? text : sl_schema_strndup(c, base, strlen(base));
    }
    if (strncmp(text, "//", 2) == 0) {
        sl_buffer_append(&uri, base, scheme_length(base));
        sl_buffer_text(&uri, text);
    } else {
        size_t keep = *text == '/' ? origin : path;
        while (*text != '/' && keep > origin && base[keep - 1] != '/') {
            keep--;
        }
        sl_buffer_append(&uri, base, keep);
        if (keep == origin && *text != '/' && origin > scheme_length(base)) {
            sl_buffer_text(&uri, "/");
        }
        sl_buffer_text(&uri, text);
    }
    char *result = uri.failed ? NULL : sl_schema_strndup(c, uri.data, uri.length);
    sl_buffer_free(&uri);
    if (!result) {
        sl_schema_refuse(c, SL_ERR_NOMEM, -1, NULL, "no memory for a URI");
        return NULL;
    }
    if (result[origin_length(result)] == '/') {
        remove_dots(result + origin_length(result));
    }
    return result;
}

/* ---- the document ---- */

static int add_anchor(sl_schema_context *c, int32_t entry, const char *name, bool dynamic) {
    if (!sl_schema_grow(c, (void **)&c->anchors, c->anchor_count, &c->anchor_capacity, sizeof *c->anchors)) {
        return c->code;
    }
    c->anchors[c->anchor_count++] = (sl_schema_anchor){c->entries[entry].resource, entry, name, dynamic};
    return 0;
}

static int read_identity(sl_schema_context *c, int32_t entry, const json_t *json) {
    const char *id = json_string_value(json_object_get(json, c->id_is_id ? "id" : "$id"));
    if (c->references_stand_alone && entry != SL_ENTRY_ROOT && json_object_get(json, "$ref")) {
        id = NULL;
    }
    if (id && *id && *id != '#') {
        const int32_t parent = c->entries[entry].resource;
        const char *base = parent == entry || !c->entries[parent].uri ? "" : c->entries[parent].uri;
        const char *uri = resolve_uri(c, base, (sl_view){id, strcspn(id, "#")});
        if (!uri) {
            return c->code;
        }
        c->entries[entry].uri = uri;
        c->entries[entry].resource = entry;
    } else if (id && id[0] == '#' && id[1] && add_anchor(c, entry, id + 1, false)) {
        return c->code;
    }
    static const char *const names[] = {"$anchor", "$dynamicAnchor"};
    for (int i = 0; i < 2; i++) {
        const char *name = json_string_value(json_object_get(json, names[i]));
        if (name && add_anchor(c, entry, name, i == 1)) {
            return c->code;
        }
    }
    return 0;
}

static int scan(sl_schema_context *c, int32_t entry);

static int scan_child(sl_schema_context *c, int32_t parent, const char *keyword, const char *name,
                      int32_t index) {
    const json_t *json = json_object_get(c->entries[parent].json, keyword);
    if (name) {
        json = json_object_get(json, name);
    } else if (index >= 0) {
        json = json_array_get(json, (size_t)index);
    }
    if (!json_is_object(json)) {
        return 0; /* what it is instead is said when it is read */
    }
    const int32_t child = sl_schema_child(c, parent, keyword, name, index, json);
    return child < 0 ? c->code : scan(c, child);
}

/* As deep as the reader lets JSON be. */
static int scan(sl_schema_context *c, int32_t entry) {
    const json_t *json = c->entries[entry].json;
    if (read_identity(c, entry, json)) {
        return c->code;
    }
    for (size_t i = 0; i < sizeof SUBSCHEMAS / sizeof *SUBSCHEMAS && !c->code; i++) {
        const char *keyword = SUBSCHEMAS[i].keyword, *name;
        json_t *value = json_object_get(json, keyword), *item;
        if (!value) {
            continue;
        }
        if (SUBSCHEMAS[i].position == MAP && json_is_object(value)) {
            json_object_foreach(value, name, item) {
                if (scan_child(c, entry, keyword, name, -1)) {
                    return c->code;
                }
            }
        } else if (SUBSCHEMAS[i].position == LIST && json_is_array(value)) {
            for (size_t at = 0; at < json_array_size(value); at++) {
                if (scan_child(c, entry, keyword, NULL, (int32_t)at)) {
                    return c->code;
                }
            }
        } else if (SUBSCHEMAS[i].position != MAP) {
            scan_child(c, entry, keyword, NULL, -1);
        }
    }
    return c->code;
}

int sl_schema_scan(sl_schema_context *c, const json_t *root) {
    for (int i = 0; i < 2; i++) { /* TRUE and FALSE */
        if (entry_add(c, &ENTRY) < 0) {
            return c->code;
        }
    }
    if (!json_is_object(root)) {
        return 0;
    }
    const char *draft = json_string_value(json_object_get(root, "$schema"));
    if (draft && strstr(draft, "json-schema.org/draft-0")) {
        const char digit = strstr(draft, "draft-0")[7];
        c->references_stand_alone = digit <= '7';
        c->id_is_id = digit <= '4';
    } else if (draft && *draft && !strstr(draft, "json-schema.org/") && !strstr(draft, "openapis.org/")) {
        /* A dialect may take keywords away, so that what holds here would not hold there. */
        const int32_t root_entry = sl_schema_child(c, -1, NULL, NULL, -1, root);
        return sl_schema_refuse(c, SL_ERR_UNSUPPORTED, root_entry, "$schema",
                                "'%.120s' is a dialect that is not known; leave it out", draft);
    }
    return sl_schema_child(c, -1, NULL, NULL, -1, root) < 0 ? c->code : scan(c, SL_ENTRY_ROOT);
}

/* ---- references ---- */

/* One step of a pointer, decoded in place; what follows it, or NULL at its end. */
static char *take_step(char *step) {
    char *end = strchr(step, '/'), *out = step;
    if (end) {
        *end++ = '\0';
    }
    for (const char *in = step; *in; in++) {
        if (*in == '~' && (in[1] == '0' || in[1] == '1')) {
            *out++ = *++in == '0' ? '~' : '/';
        } else {
            *out++ = *in;
        }
    }
    *out = '\0';
    return end;
}

static void decode_percent(char *text) {
    char *out = text;
    for (const char *in = text; *in; in++) {
        unsigned byte;
        if (*in == '%' && strspn(in + 1, "0123456789abcdefABCDEF") >= 2 &&
            sscanf(in + 1, "%2x", &byte) == 1 && byte) {
            *out++ = (char)byte;
            in += 2;
        } else {
            *out++ = *in;
        }
    }
    *out = '\0';
}

/* `pointer` begins with a slash, and is still encoded. */
static int32_t follow_pointer(sl_schema_context *c, int32_t from, const char *pointer) {
    char *steps = sl_schema_strndup(c, pointer + 1, strlen(pointer + 1));
    const char *written = sl_schema_strndup(c, pointer, strlen(pointer));
    const json_t *at = c->entries[from].json;
    int32_t nearest = from;
    if (!steps || !written) {
        return -1;
    }
    decode_percent(steps);
    for (char *step = steps; step && at;) {
        char *rest = take_step(step), *end;
        if (json_is_array(at)) {
            const unsigned long index = strtoul(step, &end, 10);
            at = *step && !*end ? json_array_get(at, index) : NULL;
        } else {
            at = json_object_get(at, step);
        }
        const int32_t known = json_is_object(at) ? entry_find(c, at) : -1;
        nearest = known >= 0 ? known : nearest;
        step = rest;
    }
    if (!at) {
        return -1;
    }
    if (json_is_object(at) && entry_find(c, at) < 0) {
        const int32_t made = sl_schema_child(c, nearest, written, NULL, -1, at);
        if (made >= 0) {
            c->entries[made].parent = c->entries[nearest].resource;
        }
        return made;
    }
    return sl_schema_child(c, nearest, "$ref", NULL, -1, at);
}

static int32_t find_fragment(sl_schema_context *c, int32_t resource, const char *fragment, bool *ambiguous) {
    int32_t found = -1;
    *ambiguous = false;
    if (!*fragment) {
        return resource;
    }
    if (*fragment == '/') {
        found = follow_pointer(c, resource, fragment);
        /* In documents whose $ids nobody meant as a base, pointers are from the document's root. */
        return found < 0 && !c->code ? follow_pointer(c, SL_ENTRY_ROOT, fragment) : found;
    }
    int dynamic = 0;
    for (int32_t i = 0; i < c->anchor_count; i++) {
        if (strcmp(c->anchors[i].name, fragment) == 0) {
            dynamic += c->anchors[i].dynamic;
            found = c->anchors[i].resource == resource ? c->anchors[i].entry : found;
        }
    }
    *ambiguous = dynamic > 1;
    return found;
}

int32_t sl_schema_resolve(sl_schema_context *c, int32_t entry, const char *keyword, const char *reference) {
    const size_t length = strcspn(reference, "#");
    const char *fragment = reference[length] ? reference + length + 1 : "";
    int32_t resource = c->entries[entry].resource;
    bool ambiguous;
    if (length > 0) {
        const char *base = c->entries[resource].uri ? c->entries[resource].uri : "";
        const char *uri = resolve_uri(c, base, (sl_view){reference, length});
        resource = -1;
        for (int32_t i = SL_ENTRY_ROOT; uri && i < c->entry_count; i++) {
            if (c->entries[i].uri && strcmp(c->entries[i].uri, uri) == 0) {
                resource = i;
                break;
            }
        }
        if (resource < 0) {
            return sl_schema_refuse(c, SL_ERR_UNSUPPORTED, entry, keyword,
                                    "'%.120s' is outside this document; put it under $defs", reference);
        }
    }
    const int32_t found = find_fragment(c, resource, fragment, &ambiguous);
    if (found < 0) {
        return c->code
                   ? c->code
                   : sl_schema_refuse(c, SL_ERR_INVALID, entry, keyword, "there is no '%.120s'", reference);
    }
    if (ambiguous && strcmp(keyword, "$ref") != 0) {
        return sl_schema_refuse(c, SL_ERR_UNSUPPORTED, entry, keyword,
                                "more than one $dynamicAnchor has this name");
    }
    return found;
}

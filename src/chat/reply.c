#include "chat/reply.h"

#include "base/alloc.h"
#include "chat/reply_internal.h"
#include "chat/reply_literal.h"

/* A call's beginning is looked at again with every piece until it is complete. */
enum { HEADER_BYTES = 16384, NAME_BYTES = 256 };

typedef enum phase {
    IN_CONTENT,
    IN_THOUGHT,
    IN_LITERAL_START, /* before the arguments' first byte */
    IN_LITERAL,
    IN_QUOTED, /* arguments that are a JSON text of JSON */
    IN_KEYS,   /* before a tag or the end of the call */
    IN_KEY,
    IN_TEXT,   /* a value that is a text */
    IN_VALUE,  /* another */
    IN_CLOSE,  /* behind the arguments */
    IN_LOST,   /* behind arguments that cannot be read */
    IN_BETWEEN /* behind a call, in a section */
} phase;

struct sl_reply {
    sl_reply_options options;
    const sl_reply_format *format;
    phase phase;
    sl_buffer held, out, value;
    sl_literal literal;
    int32_t calls;
    bool begun;      /* something came that is not blank */
    bool has_text;   /* content came that is not blank */
    bool drop_blank; /* of what comes next */
    bool thought;    /* the thought has text */
    bool has_keys, has_value;
    bool closed; /* the object around the call was read to its end */
    bool is_final, cut;
    char name[NAME_BYTES + 1];
    char key[NAME_BYTES + 1];
    unsigned kinds; /* of values that `key` may have */
};

/* What a step found out. */
typedef enum outcome {
    AGAIN, /* something was done: look again */
    WAIT,  /* more must come */
} outcome;

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static size_t blanks_at(sl_view b) {
    size_t count = 0;
    while (count < b.length && is_blank(b.data[count])) {
        count++;
    }
    return count;
}

static sl_view skip(sl_view b, size_t count) {
    return (sl_view){count ? b.data + count : b.data, b.length - count};
}

static sl_view held(const sl_reply *r) {
    return (sl_view){r->held.data, r->held.length};
}

static void drop(sl_reply *r, size_t count) {
    memmove(r->held.data, r->held.data + count, r->held.length - count);
    r->held.length -= count;
    r->held.data[r->held.length] = '\0';
}

static void tell(sl_reply *r, sl_reply_kind kind, sl_view text) {
    const int32_t call = kind == SL_REPLY_REASONING || kind == SL_REPLY_CONTENT ? -1 : r->calls - 1;
    r->options.event(r->options.context, &(sl_reply_event){kind, call, text.data, text.length});
}

/* Content or thought without special tokens, which are no text. A frame that is not closed is cut. True if
 * there was any text. */
static bool tell_text(sl_reply *r, sl_reply_kind kind, sl_view b) {
    bool any = false;
    while (b.length > 0) {
        const char *open = memchr(b.data, SL_REPLY_FRAME_OPEN, b.length);
        const size_t plain = open ? (size_t)(open - b.data) : b.length;
        if (plain > 0) {
            tell(r, kind, (sl_view){b.data, plain});
            any = true;
        }
        b = skip(b, plain);
        const char *close = b.length ? memchr(b.data, SL_REPLY_FRAME_CLOSE, b.length) : NULL;
        b = skip(b, close ? (size_t)(close + 1 - b.data) : b.length);
    }
    return any;
}

static void tell_out(sl_reply *r) {
    if (r->out.length > 0 && !r->out.failed) {
        tell(r, SL_REPLY_ARGUMENT, (sl_view){r->out.data, r->out.length});
    }
    sl_buffer_clear(&r->out);
}

static const char *mark(const sl_reply *r, int which) {
    return r->format->marks[which];
}

/* As sl_mark_match, which sees no more than this of a mark's end once nothing follows. */
static long match(const sl_reply *r, int which, sl_view b) {
    return mark(r, which) ? sl_mark_match(mark(r, which), b) : 0;
}

/* How much of the end may be the beginning of the mark. */
static size_t possible_end(const char *text, sl_view b) {
    const char *at = b.data;
    while (b.length > 0 && (at = memchr(at, text[0], (size_t)(b.data + b.length - at)))) {
        const sl_view rest = {at, (size_t)(b.data + b.length - at)};
        if (sl_mark_match(text, rest) < 0) {
            return rest.length;
        }
        at++;
    }
    return 0;
}

/* ---- a call's beginning ---- */

typedef struct header {
    size_t size;    /* up to the arguments */
    sl_view name;   /* within the bytes */
    sl_view object; /* arguments that stood before the name, or none if `whole` */
    bool whole;     /* the object was read to its end */
} header;

/* 1: there it is; 0: it is not; -1: it may be. */
typedef int verdict;

/* A JSON text that begins with a quotation mark; *inner is what stands between both. */
static verdict read_string(sl_view *b, sl_view *inner) {
    if (b->length == 0) {
        return -1;
    }
    if (b->data[0] != '"') {
        return 0;
    }
    for (size_t i = 1; i < b->length; i++) {
        if ((unsigned char)b->data[i] >= SL_REPLY_FRAME_CLOSE) {
            return 0;
        }
        if (b->data[i] == '"') {
            *inner = (sl_view){b->data + 1, i - 1};
            *b = skip(*b, i + 1);
            return 1;
        }
        i += b->data[i] == '\\';
    }
    return -1;
}

/* Any JSON value, roughly: brackets and texts. */
static verdict skip_value(sl_view *b) {
    sl_view inner;
    int depth = 0;
    while (b->length > 0) {
        const char c = b->data[0];
        if (c == '"') {
            const verdict v = read_string(b, &inner);
            if (v <= 0 || depth == 0) {
                return v;
            }
            continue;
        }
        if ((unsigned char)c >= SL_REPLY_FRAME_CLOSE) {
            return 0;
        }
        if (depth == 0 && (c == ',' || c == '}')) {
            return 1;
        }
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        *b = skip(*b, 1);
        if (depth == 0 && (c == '}' || c == ']')) {
            return 1;
        }
    }
    return -1;
}

static verdict expect(sl_view *b, char c) {
    *b = skip(*b, blanks_at(*b));
    if (b->length == 0) {
        return -1;
    }
    if (b->data[0] != c) {
        return 0;
    }
    *b = skip(*b, 1);
    return 1;
}

static bool is_known(const sl_reply *r, sl_view name) {
    size_t index;
    json_t *tool;
    json_array_foreach(r->options.tools, index, tool) {
        const char *known = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (known && sl_view_is(name, known)) {
            return true;
        }
    }
    return false;
}

static bool is_arguments_key(const sl_reply *r, sl_view key) {
    return sl_view_is(key, r->format->arguments_key) ||
           (!r->format->at_start && (sl_view_is(key, "arguments") || sl_view_is(key, "parameters")));
}

/* A member of the object around a call; 2: the arguments begin. */
static verdict read_member(const sl_reply *r, sl_view *b, header *h) {
    sl_view key;
    verdict v;
    *b = skip(*b, blanks_at(*b));
    if ((v = read_string(b, &key)) <= 0 || (v = expect(b, ':')) <= 0) {
        return v;
    }
    *b = skip(*b, blanks_at(*b));
    if (sl_view_is(key, r->format->name_key)) {
        return read_string(b, &h->name);
    }
    if (r->format->at_start && !h->name.data) {
        return 0; /* a JSON answer begins as well with an object */
    }
    if (is_arguments_key(r, key)) {
        if (h->name.data) {
            return b->length ? 2 : -1;
        }
        h->object.data = b->data;
        v = skip_value(b);
        h->object.length = (size_t)(b->data - h->object.data);
        return v;
    }
    return skip_value(b);
}

static verdict read_object(const sl_reply *r, sl_view b, header *h) {
    const size_t total = b.length;
    verdict v = expect(&b, '{');
    while (v > 0) {
        v = read_member(r, &b, h);
        if (v == 2) {
            h->object = (sl_view){NULL, 0};
            break;
        }
        if (v <= 0) {
            return v;
        }
        b = skip(b, blanks_at(b));
        if (b.length == 0) {
            return -1;
        }
        if (b.data[0] == '}') {
            b = skip(b, 1);
            h->whole = true;
            break;
        }
        v = expect(&b, ',');
    }
    h->size = total - b.length;
    return v <= 0 ? v : h->name.data != NULL;
}

static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("_-./", c ? c : ' ') ||
           ((unsigned char)c >= 0x80 && (unsigned char)c < SL_REPLY_FRAME_CLOSE);
}

/* One of alternatives; *size of the first that is there. An earlier one that may still come is waited for. */
static verdict match_any(const sl_reply *r, int first, int count, sl_view b, size_t *size) {
    size_t longest = 0;
    bool may = false;
    for (int i = first; i < first + count; i++) {
        const long found = match(r, i, b);
        may |= found < 0;
        longest = found > 0 && (size_t)found > longest ? (size_t)found : longest;
    }
    *size = longest;
    return may ? -1 : longest > 0;
}

static verdict read_name(const sl_reply *r, sl_view b, header *h) {
    size_t length = 0, size = 0;
    while (length < b.length && in_name(b.data[length])) {
        length++;
    }
    if (length == b.length) {
        return -1;
    }
    if (length == 0) {
        return 0;
    }
    h->name = (sl_view){b.data, length};
    h->size = length;
    const verdict v = match_any(r, SL_REPLY_NAME_CLOSE, SL_REPLY_NAME_CLOSES, skip(b, length), &size);
    h->size += size;
    /* Where only white space follows the name, none may be there. */
    return v != 0 ? v : is_blank(mark(r, SL_REPLY_NAME_CLOSE)[0]) && !mark(r, SL_REPLY_NAME_CLOSE)[1];
}

/* Behind the name of a tagged call stands a parameter or the end. */
static verdict check_tag(const sl_reply *r, sl_view b) {
    b = skip(b, blanks_at(b));
    const long key = match(r, SL_REPLY_KEY_OPEN, b), close = match(r, SL_REPLY_CALL_CLOSE, b);
    return key > 0 || close > 0 ? 1 : key < 0 || close < 0 ? -1 : 0;
}

/* A call, with the section's opening before it unless `inside` one. */
static verdict read_header(const sl_reply *r, sl_view b, bool inside, header *h) {
    const size_t total = b.length;
    const bool named = r->format->name_key != NULL;
    *h = (header){0};
    if (!inside && mark(r, SL_REPLY_SECTION_OPEN)) {
        const long size = match(r, SL_REPLY_SECTION_OPEN, b);
        if (size <= 0) {
            return (verdict)size;
        }
        b = skip(b, (size_t)size);
        b = skip(b, blanks_at(b));
    }
    if (mark(r, SL_REPLY_CALL_OPEN)) {
        size_t size;
        const verdict v = match_any(r, SL_REPLY_CALL_OPEN, SL_REPLY_CALL_OPENS, b, &size);
        if (v <= 0) {
            return v;
        }
        b = skip(b, size);
        b = skip(b, blanks_at(b));
    }
    const size_t before = total - b.length;
    if (b.length == 0) {
        return -1;
    }
    verdict v = named ? read_object(r, b, h) : read_name(r, b, h);
    if (v > 0 && r->format->arguments == SL_REPLY_TAGGED) {
        v = check_tag(r, skip(b, h->size));
    }
    if (v < 0 && r->format->at_start && h->name.data && !is_known(r, h->name)) {
        v = 0;
    }
    h->size += before;
    return v > 0 && (h->name.length == 0 || h->name.length > NAME_BYTES ||
                     memchr(h->name.data, '\\', h->name.length) ||
                     (r->format->at_start && !is_known(r, h->name)))
               ? 0
           : v < 0 && b.length > HEADER_BYTES ? 0
                                              : v;
}

/* ---- calls ---- */

static void end_call(sl_reply *r) {
    tell_out(r);
    tell(r, SL_REPLY_CALL_END, (sl_view){"", 0});
    r->phase = IN_CLOSE;
}

static void literal_of(sl_reply *r, bool inside) {
    const char *close = mark(r, SL_REPLY_CALL_CLOSE);
    while (close && is_blank(*close)) {
        close++;
    }
    r->literal = (sl_literal){.quote = mark(r, SL_REPLY_QUOTE),
                              .stop = close && !strchr("{}[]()`", *close) ? close : NULL,
                              .assigns = r->format->arguments == SL_REPLY_PYTHONIC};
    sl_literal_begin(&r->literal, inside, &r->out);
}

/* Arguments that are there as a whole; "{}" for what is no object. */
static void whole_arguments(sl_reply *r, sl_view object) {
    size_t used;
    literal_of(r, false);
    if (object.length > 0 && object.data[0] == '{') {
        sl_literal_feed(&r->literal, object, &used, &r->out);
        sl_literal_close(&r->literal, &r->out);
    } else {
        sl_buffer_text(&r->out, "{}");
    }
}

/* Takes the header from the beginning of what is held. */
static void begin_call(sl_reply *r, const header *h) {
    memcpy(r->name, h->name.data, h->name.length);
    r->name[h->name.length] = '\0';
    r->calls++;
    r->begun = true;
    tell(r, SL_REPLY_CALL, sl_view_of(r->name));
    r->has_keys = r->closed = false;
    if (h->whole) {
        whole_arguments(r, h->object);
        end_call(r);
        r->closed = true;
    } else if (r->format->arguments == SL_REPLY_TAGGED) {
        r->phase = IN_KEYS;
        sl_buffer_text(&r->out, "{");
    } else if (r->format->arguments == SL_REPLY_JSON) {
        r->phase = IN_LITERAL_START;
    } else {
        literal_of(r, true);
        r->phase = IN_LITERAL;
    }
    drop(r, h->size);
    tell_out(r);
}

static outcome step_literal_start(sl_reply *r) {
    drop(r, blanks_at(held(r)));
    if (r->held.length == 0) {
        return WAIT;
    }
    const char c = r->held.data[0];
    sl_buffer_clear(&r->value);
    if (c == '"') {
        drop(r, 1);
        r->phase = IN_QUOTED;
        return AGAIN;
    }
    literal_of(r, false);
    if (c == '{') {
        r->phase = IN_LITERAL;
        return AGAIN;
    }
    sl_view rest = held(r);
    if (r->format->name_key) { /* null and the like */
        if (skip_value(&rest) < 0 && !r->is_final) {
            return WAIT;
        }
        drop(r, (size_t)(rest.data - r->held.data));
    }
    sl_buffer_text(&r->out, "{}");
    end_call(r);
    return AGAIN;
}

static outcome step_literal(sl_reply *r) {
    size_t used;
    const sl_literal_state state = sl_literal_feed(&r->literal, held(r), &used, &r->out);
    drop(r, used);
    if (state == SL_LITERAL_MORE) {
        tell_out(r);
        return WAIT;
    }
    if (state == SL_LITERAL_BROKEN) {
        sl_literal_close(&r->literal, &r->out);
    }
    end_call(r);
    r->phase = state == SL_LITERAL_BROKEN ? IN_LOST : IN_CLOSE;
    return AGAIN;
}

/* Everything up to a mark that ends the call, or its section. */
static outcome step_lost(sl_reply *r) {
    const sl_view b = held(r);
    size_t at = 0;
    for (; at < b.length; at++) {
        const sl_view rest = skip(b, at);
        const long call = match(r, SL_REPLY_CALL_CLOSE, rest),
                   section = match(r, SL_REPLY_SECTION_CLOSE, rest);
        if (call > 0 || section > 0) {
            drop(r, at);
            r->closed = true;
            r->phase = IN_CLOSE;
            return AGAIN;
        }
        if (call < 0 || section < 0) {
            break;
        }
    }
    drop(r, r->is_final ? r->held.length : at);
    return WAIT;
}

/* The text inside a JSON string; jansson undoes the escapes. */
static outcome step_quoted(sl_reply *r) {
    size_t end = 0;
    while (end < r->held.length && r->held.data[end] != '"') {
        end += r->held.data[end] == '\\' ? 2 : 1;
    }
    if (end >= r->held.length) {
        return WAIT;
    }
    sl_buffer_text(&r->value, "\"");
    sl_buffer_append(&r->value, r->held.data, end);
    sl_buffer_text(&r->value, "\"");
    json_t *text = r->value.failed ? NULL : json_loadb(r->value.data, r->value.length, JSON_DECODE_ANY, NULL);
    sl_view inner = {json_string_value(text), json_string_length(text)};
    inner = text ? skip(inner, blanks_at(inner)) : inner;
    whole_arguments(r, inner);
    json_decref(text);
    drop(r, end + 1);
    end_call(r);
    return AGAIN;
}

/* Members behind the arguments, the object's end and the call's closing mark. Returns the verdict, and the
 * size of what is there. */
static verdict read_close(const sl_reply *r, sl_view b, size_t *size) {
    const sl_view all = b;
    const size_t total = b.length;
    verdict v = 1;
    *size = 0;
    while (r->format->name_key && !r->closed && v > 0) {
        header ignored = {.name = {"", 0}};
        b = skip(b, blanks_at(b));
        if (b.length == 0) {
            return -1;
        }
        if (b.data[0] == '}') {
            b = skip(b, 1);
            break;
        }
        if ((v = expect(&b, ',')) > 0) {
            v = read_member(r, &b, &ignored);
            v = v == 2 ? skip_value(&b) : v;
        }
        if (v == 0) {
            b = all;
            break;
        }
    }
    *size = total - b.length;
    if (v < 0 || !mark(r, SL_REPLY_CALL_CLOSE)) {
        return v;
    }
    const size_t blanks = blanks_at(b);
    const long close = match(r, SL_REPLY_CALL_CLOSE, skip(b, blanks));
    *size += close > 0 ? blanks + (size_t)close : 0;
    return close < 0 ? -1 : 1;
}

static void leave_call(sl_reply *r) {
    const bool more = mark(r, SL_REPLY_SECTION_OPEN) || mark(r, SL_REPLY_SEPARATOR);
    r->phase = more ? IN_BETWEEN : IN_CONTENT;
    r->drop_blank = true;
}

static outcome step_close(sl_reply *r) {
    size_t size;
    const verdict v = read_close(r, held(r), &size);
    if (v < 0 && !r->is_final && r->held.length < HEADER_BYTES) {
        return WAIT;
    }
    drop(r, v < 0 && r->is_final ? r->held.length : size);
    leave_call(r);
    return AGAIN;
}

static outcome step_between(sl_reply *r) {
    const size_t blanks = blanks_at(held(r));
    const sl_view b = skip(held(r), blanks);
    header h = {0};
    if (b.length == 0) {
        return WAIT;
    }
    const verdict call = read_header(r, b, true, &h);
    const long close = match(r, SL_REPLY_SECTION_CLOSE, b), separator = match(r, SL_REPLY_SEPARATOR, b);
    if (call > 0) {
        drop(r, blanks);
        /* Names point into what was held. */
        const sl_view again = held(r);
        read_header(r, again, true, &h);
        begin_call(r, &h);
        return AGAIN;
    }
    if ((call < 0 || close < 0 || separator < 0) && (!r->is_final || r->cut)) {
        drop(r, r->is_final ? r->held.length : 0);
        return WAIT;
    }
    if (close <= 0 && separator > 0) {
        drop(r, blanks + (size_t)separator);
        return AGAIN;
    }
    drop(r, blanks + (size_t)(close > 0 ? close : 0));
    r->phase = IN_CONTENT;
    return AGAIN;
}

/* ---- tagged arguments ---- */

static unsigned kinds_of(const sl_reply *r) {
    size_t index;
    json_t *tool;
    json_array_foreach(r->options.tools, index, tool) {
        json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (name && strcmp(name, r->name) == 0) {
            return sl_reply_kinds(json_object_get(function, "parameters"), r->key);
        }
    }
    return SL_ARGUMENT_ANY;
}

/* Closes the arguments. */
static void end_keys(sl_reply *r) {
    sl_buffer_text(&r->out, "}");
    end_call(r);
}

static outcome step_keys(sl_reply *r) {
    const size_t blanks = blanks_at(held(r));
    const sl_view b = skip(held(r), blanks);
    if (b.length == 0) {
        return WAIT;
    }
    const long key = match(r, SL_REPLY_KEY_OPEN, b), close = match(r, SL_REPLY_CALL_CLOSE, b);
    if (key > 0) {
        drop(r, blanks + (size_t)key);
        r->phase = IN_KEY;
        return AGAIN;
    }
    if (close <= 0 && (key < 0 || close < 0) && !r->is_final) {
        return WAIT;
    }
    if (close > 0 || (unsigned char)b.data[0] >= SL_REPLY_FRAME_CLOSE) {
        end_keys(r);
        return AGAIN;
    }
    drop(r, blanks + 1); /* what stands between tags and is none */
    return AGAIN;
}

static outcome step_key(sl_reply *r) {
    const sl_view b = held(r);
    for (size_t i = 0; i < b.length && i <= NAME_BYTES; i++) {
        const sl_view rest = skip(b, i);
        const long text = match(r, SL_REPLY_KEY_CLOSE, rest), json = match(r, SL_REPLY_KEY_CLOSE_JSON, rest);
        if (text > 0 || json > 0) {
            memcpy(r->key, b.data, i);
            r->key[i] = '\0';
            r->kinds = !mark(r, SL_REPLY_KEY_CLOSE_JSON) ? kinds_of(r)
                       : text > 0                        ? SL_ARGUMENT_TEXT
                                                         : SL_ARGUMENT_ANY & ~SL_ARGUMENT_TEXT;
            const bool is_text = r->kinds == SL_ARGUMENT_TEXT;
            sl_buffer_text(&r->out, r->has_keys ? ", \"" : "\"");
            sl_literal_escape((sl_view){r->key, i}, &r->out);
            sl_buffer_text(&r->out, is_text ? "\": \"" : "\": ");
            r->has_keys = true;
            r->has_value = false;
            r->phase = is_text ? IN_TEXT : IN_VALUE;
            drop(r, i + (size_t)(text > 0 ? text : json));
            return AGAIN;
        }
        if (text < 0 || json < 0) {
            return WAIT;
        }
    }
    if (b.length <= NAME_BYTES) {
        return WAIT;
    }
    drop(r, NAME_BYTES + 1);
    r->phase = IN_KEYS;
    return AGAIN;
}

/* A line break that belongs to the marks: the first and the last of a value. Returns the bytes that are
 * certain to be the value's; *end: behind its closing mark, 0 while that is not there. */
static size_t value_bytes(sl_reply *r, size_t *end) {
    const char *close = mark(r, SL_REPLY_VALUE_CLOSE);
    if (r->format->line_breaks && !r->has_value && r->held.length > 0) {
        drop(r, r->held.data[0] == '\n');
        r->has_value = true;
    }
    const sl_view b = held(r);
    size_t sure = b.length;
    *end = 0;
    for (const char *at = b.data; at < b.data + b.length; at++) {
        at = memchr(at, close[0], (size_t)(b.data + b.length - at));
        if (!at) {
            break;
        }
        const size_t i = (size_t)(at - b.data);
        const long found = sl_mark_match(close, skip(b, i));
        *end = found > 0 ? i + (size_t)found : 0;
        if (found != 0) {
            sure = i;
            break;
        }
    }
    return sure - (r->format->line_breaks && sure > 0 && b.data[sure - 1] == '\n');
}

/* Special tokens inside a value are no text. */
static void add_text(sl_reply *r, sl_view b) {
    for (size_t i = 0; i < b.length;) {
        const char *open = memchr(b.data + i, SL_REPLY_FRAME_OPEN, b.length - i);
        const size_t plain = open ? (size_t)(open - b.data) : b.length;
        sl_literal_escape((sl_view){b.data + i, plain - i}, &r->out);
        const char *close = open ? memchr(open, SL_REPLY_FRAME_CLOSE, b.length - plain) : NULL;
        i = close ? (size_t)(close + 1 - b.data) : b.length;
    }
}

/* So that a frame is never cut in two. */
static size_t before_open_frame(sl_view b) {
    for (size_t i = b.length; i > 0; i--) {
        const unsigned char c = (unsigned char)b.data[i - 1];
        if (c == SL_REPLY_FRAME_CLOSE) {
            break;
        }
        if (c == SL_REPLY_FRAME_OPEN) {
            return i - 1;
        }
    }
    return b.length;
}

static outcome step_text(sl_reply *r) {
    size_t end, sure = value_bytes(r, &end);
    const sl_view b = {r->held.data, sure};
    sure = end ? sure : before_open_frame(b);
    add_text(r, (sl_view){b.data, sure});
    drop(r, end ? end : sure);
    if (!end) {
        tell_out(r);
        return WAIT;
    }
    sl_buffer_text(&r->out, "\"");
    r->phase = IN_KEYS;
    return AGAIN;
}

/* Of JSON's text. */
static unsigned kind_of(char first) {
    return first == '"'                   ? SL_ARGUMENT_TEXT
           : first == '{'                 ? SL_ARGUMENT_OBJECT
           : first == '['                 ? SL_ARGUMENT_ARRAY
           : first == 'n'                 ? SL_ARGUMENT_NULL
           : first == 't' || first == 'f' ? SL_ARGUMENT_BOOLEAN
                                          : SL_ARGUMENT_NUMBER;
}

/* A value as JSON, if it is one, of the kinds that the parameter allows; else a text. */
static void write_value(sl_reply *r, sl_view b) {
    const bool may_be_text = r->kinds & SL_ARGUMENT_TEXT;
    sl_buffer json = {0};
    sl_literal literal = {0};
    size_t used = 0, end = b.length;
    while (end > 0 && is_blank(b.data[end - 1])) {
        end--;
    }
    const sl_view trimmed = {b.data, end};
    const bool quoted = trimmed.length > 0 && (trimmed.data[0] == '"' || trimmed.data[0] == '\'');
    sl_buffer line = {0};
    sl_buffer_append(&line, trimmed.data, trimmed.length);
    sl_buffer_text(&line, "\n"); /* where a number ends */
    sl_literal_begin(&literal, false, &json);
    sl_literal_state state = SL_LITERAL_BROKEN;
    if (!line.failed) {
        state = sl_literal_feed(&literal, (sl_view){line.data, line.length}, &used, &json);
    }
    /* A word that is no value of JSON comes out in quotation marks. */
    const bool is_text = json.length > 0 && json.data[0] == '"' && !quoted;
    const bool other = !may_be_text || (json.length > 0 && r->kinds & kind_of(json.data[0]));
    if (state == SL_LITERAL_DONE && used >= trimmed.length && !is_text && !(quoted && may_be_text) && other) {
        sl_buffer_append(&r->out, json.data, json.length);
    } else {
        sl_buffer_text(&r->out, "\"");
        add_text(r, b);
        sl_buffer_text(&r->out, "\"");
    }
    r->out.failed |= json.failed || line.failed;
    sl_buffer_free(&json);
    sl_buffer_free(&line);
}

static outcome step_value(sl_reply *r) {
    size_t end;
    const size_t sure = value_bytes(r, &end);
    if (!end) {
        return WAIT;
    }
    write_value(r, (sl_view){r->held.data, sure});
    drop(r, end);
    r->phase = IN_KEYS;
    return AGAIN;
}

/* ---- content and thought ---- */

typedef struct opening {
    enum { OPENS_NOTHING, OPENS_CALL, OPENS_THOUGHT, OPENS_SILENCE } what;
    size_t size;
    header header;
} opening;

static bool may_call(const sl_reply *r) {
    return r->options.tools && sl_reply_format_has_calls(r->format) && (!r->format->at_start || !r->has_text);
}

static bool may_think(const sl_reply *r) {
    return mark(r, SL_REPLY_THINK_OPEN) && !r->options.keeps_thoughts &&
           (r->format->thinks_again || !r->begun);
}

/* What the bytes begin with. */
static verdict look(const sl_reply *r, sl_view b, opening *o) {
    verdict call = may_call(r) ? read_header(r, b, false, &o->header) : 0;
    long think = may_think(r) ? match(r, SL_REPLY_THINK_OPEN, b) : 0;
    size_t silent;
    verdict silence = match_any(r, SL_REPLY_SILENT, SL_REPLY_SILENTS, b, &silent);
    if (r->is_final && !r->cut) { /* what might have become another mark is none */
        call = call > 0;
        think = think > 0 ? think : 0;
        silence = silent > 0;
    }
    if (call < 0 || think < 0 || silence < 0) {
        return -1;
    }
    o->what = call ? OPENS_CALL : think ? OPENS_THOUGHT : silence ? OPENS_SILENCE : OPENS_NOTHING;
    o->size = call ? o->header.size : think ? (size_t)think : silent;
    return o->what != OPENS_NOTHING;
}

/* Blanks wait for what follows them, which may be a mark. */
static void content(sl_reply *r, size_t count) {
    if (count > 0 && tell_text(r, SL_REPLY_CONTENT, (sl_view){r->held.data, count})) {
        r->begun = r->has_text = true;
        r->drop_blank = false;
    }
    drop(r, count);
}

static bool may_open(const sl_reply *r) {
    return may_call(r) || may_think(r) || mark(r, SL_REPLY_SILENT);
}

static outcome open_up(sl_reply *r, const opening *found) {
    opening o = *found;
    if (o.what == OPENS_CALL) {
        read_header(r, held(r), false, &o.header); /* its name points to where it now stands */
        begin_call(r, &o.header);
        return AGAIN;
    }
    drop(r, o.size);
    r->drop_blank = true;
    if (o.what == OPENS_THOUGHT) {
        r->phase = IN_THOUGHT;
        r->begun = true;
        r->thought = false;
    }
    return AGAIN;
}

static outcome step_content(sl_reply *r) {
    if (r->drop_blank) {
        drop(r, blanks_at(held(r)));
    }
    if (!may_open(r)) {
        const size_t sure = r->is_final ? r->held.length : before_open_frame(held(r));
        content(r, sure);
        return WAIT;
    }
    size_t blank = 0; /* where the blanks before `at` begin */
    for (size_t at = 0; at < r->held.length; at++) {
        opening o = {0};
        if (is_blank(r->held.data[at])) {
            continue;
        }
        const verdict v = look(r, skip(held(r), at), &o);
        const bool partial = v < 0 && (!r->is_final || r->cut);
        if (v > 0 || partial) {
            content(r, blank);
            if (v < 0) {
                if (r->is_final) {
                    drop(r, r->held.length);
                }
                return WAIT;
            }
            drop(r, at - blank);
            return open_up(r, &o);
        }
        /* One that is no mark is skipped as a whole. */
        if ((unsigned char)r->held.data[at] == SL_REPLY_FRAME_OPEN) {
            const char *close = memchr(r->held.data + at, SL_REPLY_FRAME_CLOSE, r->held.length - at);
            if (!close) {
                at = r->held.length;
                break;
            }
            at = (size_t)(close - r->held.data);
        } else {
            r->begun = r->has_text = true;
        }
        blank = at + 1;
    }
    content(r, r->is_final ? r->held.length : blank);
    return WAIT;
}

static outcome step_thought(sl_reply *r) {
    const char *close = mark(r, SL_REPLY_THINK_CLOSE);
    if (!r->thought) {
        drop(r, blanks_at(held(r)));
        const long again = match(r, SL_REPLY_THINK_OPEN, held(r));
        if (again < 0 && r->held.length > 0 && !r->is_final) {
            return WAIT;
        }
        drop(r, again > 0 ? (size_t)again : 0);
        if (again > 0) {
            return AGAIN;
        }
    }
    const sl_view b = held(r);
    size_t sure = b.length, end = 0;
    for (size_t i = 0; i < b.length && !end; i++) {
        const long found = b.data[i] == close[0] ? sl_mark_match(close, skip(b, i)) : 0;
        if (found > 0) {
            sure = i;
            end = i + (size_t)found;
        }
    }
    if (!end && (!r->is_final || r->cut)) {
        sure -= possible_end(close, b);
        sure = before_open_frame((sl_view){b.data, sure});
    }
    while (!r->is_final && sure > 0 && is_blank(b.data[sure - 1])) {
        sure--;
    }
    while (end && sure > 0 && is_blank(b.data[sure - 1])) {
        sure--;
    }
    r->thought |= sure > 0;
    tell_text(r, SL_REPLY_REASONING, (sl_view){b.data, sure});
    drop(r, end ? end : r->is_final ? r->held.length : sure);
    if (!end) {
        return WAIT;
    }
    r->phase = IN_CONTENT;
    r->drop_blank = true;
    return AGAIN;
}

/* ---- the whole ---- */

static outcome step(sl_reply *r) {
    switch (r->phase) {
    case IN_THOUGHT:
        return step_thought(r);
    case IN_LITERAL_START:
        return step_literal_start(r);
    case IN_LITERAL:
        return step_literal(r);
    case IN_QUOTED:
        return step_quoted(r);
    case IN_KEYS:
        return step_keys(r);
    case IN_KEY:
        return step_key(r);
    case IN_TEXT:
        return step_text(r);
    case IN_VALUE:
        return step_value(r);
    case IN_CLOSE:
        return step_close(r);
    case IN_LOST:
        return step_lost(r);
    case IN_BETWEEN:
        return step_between(r);
    default:
        return step_content(r);
    }
}

int sl_reply_create(const sl_reply_options *options, sl_reply **out, sl_error *error) {
    sl_reply *r = *out = sl_alloc_zero(1, sizeof *r);
    if (!r) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a reply");
    }
    r->options = *options;
    r->format = options->format;
    json_incref(r->options.tools);
    const bool thinks = mark(r, SL_REPLY_THINK_CLOSE) && !options->keeps_thoughts;
    r->phase = options->opened && thinks ? IN_THOUGHT : IN_CONTENT;
    r->begun = r->phase == IN_THOUGHT;
    sl_buffer_text(&r->held, "");
    if (r->held.failed) {
        sl_reply_free(r);
        *out = NULL;
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a reply");
    }
    return 0;
}

void sl_reply_free(sl_reply *r) {
    if (r) {
        json_decref(r->options.tools);
        sl_buffer_free(&r->held);
        sl_buffer_free(&r->out);
        sl_buffer_free(&r->value);
        sl_free(r);
    }
}

static int run(sl_reply *r, sl_error *error) {
    bool failed = r->held.failed;
    while (!failed && r->held.length > 0 && step(r) == AGAIN) {
        failed = r->held.failed || r->out.failed || r->value.failed;
    }
    failed |= r->held.failed || r->out.failed || r->value.failed;
    tell_out(r);
    return failed ? sl_fail(error, SL_ERR_NOMEM, "out of memory for a reply") : 0;
}

int sl_reply_feed(sl_reply *r, const char *bytes, size_t count, sl_error *error) {
    sl_buffer_append(&r->held, bytes, count);
    return run(r, error);
}

/* A call that the model itself ended in the middle of its arguments. */
static void close_arguments(sl_reply *r) {
    switch (r->phase) {
    case IN_LITERAL_START:
    case IN_QUOTED:
        sl_buffer_text(&r->out, "{}");
        break;
    case IN_LITERAL:
        sl_literal_close(&r->literal, &r->out);
        break;
    case IN_TEXT:
        add_text(r, held(r));
        sl_buffer_text(&r->out, "\"}");
        break;
    case IN_VALUE:
        write_value(r, held(r));
        sl_buffer_text(&r->out, "}");
        break;
    default:
        sl_buffer_text(&r->out, "}");
    }
    end_call(r);
}

static bool in_arguments(const sl_reply *r) {
    return r->phase >= IN_LITERAL_START && r->phase <= IN_VALUE;
}

int sl_reply_finish(sl_reply *r, bool cut, sl_error *error) {
    r->is_final = true;
    r->cut = cut;
    int code = run(r, error);
    if (code == 0 && in_arguments(r)) {
        if (cut && r->phase == IN_TEXT) {
            size_t end;
            const size_t sure = value_bytes(r, &end);
            add_text(r, (sl_view){r->held.data, sure});
            tell_out(r);
        } else if (!cut) {
            close_arguments(r);
        }
        code = r->out.failed ? sl_fail(error, SL_ERR_NOMEM, "out of memory for a reply") : 0;
    }
    return code;
}

sl_reply_kind sl_reply_stands_in(const sl_reply *r) {
    return r->phase == IN_CONTENT   ? SL_REPLY_CONTENT
           : r->phase == IN_THOUGHT ? SL_REPLY_REASONING
                                    : SL_REPLY_ARGUMENT;
}

bool sl_reply_is_undecided(const sl_reply *r) {
    return !r->begun;
}

int32_t sl_reply_calls(const sl_reply *r) {
    return r->calls;
}

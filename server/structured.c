#include "structured.h"

#include "convert.h"
#include "generation.h"
#include "text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A grammar's source. */
typedef struct source {
    sluice_grammar_kind kind;
    char *text; /* [length], owned; NULL: none was given, or the kind has none */
    size_t length;
    char *tools, *function; /* owned; NULL: none */
    sluice_tool_choice tool_choice;
    sluice_thought thought;
    bool given, compact, single_call;
    const char *path; /* of the field in messages */
} source;

static void free_source(source *s) {
    free(s->text);
    free(s->tools);
    free(s->function);
}

/* ---- grammars that were compiled ---- */

/* Of a model; the bytes are those of compiled grammars and of their sources. The one used last always stays.
 */
enum { MOST_GRAMMARS = 64, MOST_BYTES = 256 << 20 };

typedef struct entry {
    source from;
    sluice_grammar *grammar; /* NULL while a thread compiles it */
    uint64_t used;
    int waiting; /* callers that look at it */
    bool failed;
    sluice_error error;
    struct entry *next;
} entry;

struct grammar_cache {
    sluice_model *model;
    pthread_mutex_t mutex;
    pthread_cond_t compiled;
    entry *entries;
    size_t count;
    uint64_t uses;
};

grammar_cache *grammar_cache_create(sluice_model *model) {
    grammar_cache *c = calloc(1, sizeof *c);
    if (c) {
        c->model = model;
        pthread_mutex_init(&c->mutex, NULL);
        pthread_cond_init(&c->compiled, NULL);
    }
    return c;
}

static void free_entry(entry *e) {
    sluice_grammar_release(e->grammar);
    free_source(&e->from);
    free(e);
}

void grammar_cache_destroy(grammar_cache *c) {
    if (!c) {
        return;
    }
    for (entry *e = c->entries, *next; e; e = next) {
        next = e->next;
        free_entry(e);
    }
    pthread_cond_destroy(&c->compiled);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

static bool same_text(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_source(const source *a, const source *b) {
    return a->kind == b->kind && a->compact == b->compact && a->thought == b->thought &&
           a->tool_choice == b->tool_choice && a->single_call == b->single_call && a->length == b->length &&
           (a->length == 0 || memcmp(a->text, b->text, a->length) == 0) && same_text(a->tools, b->tools) &&
           same_text(a->function, b->function);
}

static size_t source_bytes(const source *s) {
    return s->length + (s->tools ? strlen(s->tools) : 0);
}

static entry *find(const grammar_cache *c, const source *from) {
    entry *e = c->entries;
    while (e && !same_source(&e->from, from)) {
        e = e->next;
    }
    return e;
}

static void take_out(grammar_cache *c, entry *gone) {
    entry **at = &c->entries;
    while (*at != gone) {
        at = &(*at)->next;
    }
    *at = gone->next;
    c->count--;
    free_entry(gone);
}

static uint64_t bytes_of(const grammar_cache *c) {
    uint64_t bytes = 0;
    for (const entry *e = c->entries; e; e = e->next) {
        bytes += source_bytes(&e->from) + sluice_grammar_bytes(e->grammar);
    }
    return bytes;
}

/* The least recently used go, but none that somebody looks at. Grammars grow while they are used, so all are
 * asked. */
static void make_room(grammar_cache *c) {
    while (c->count > MOST_GRAMMARS || (c->count > 1 && bytes_of(c) > MOST_BYTES)) {
        entry *oldest = NULL;
        for (entry *e = c->entries; e; e = e->next) {
            const bool idle = e->waiting == 0 && e->used != c->uses;
            oldest = idle && (!oldest || e->used < oldest->used) ? e : oldest;
        }
        if (!oldest) {
            return;
        }
        take_out(c, oldest);
    }
}

/* Under the mutex, which is let go meanwhile. */
static void compile(grammar_cache *c, entry *e) {
    const sluice_grammar_options options = {.size = sizeof options,
                                            .kind = e->from.kind,
                                            .text = e->from.text,
                                            .length = e->from.length,
                                            .compact = e->from.compact,
                                            .thought = e->from.thought,
                                            .tools = e->from.tools,
                                            .tool_choice = e->from.tool_choice,
                                            .function = e->from.function,
                                            .single_call = e->from.single_call};
    sluice_grammar *made = NULL;
    pthread_mutex_unlock(&c->mutex);
    const bool failed = sluice_grammar_create(c->model, &options, &made, &e->error) != 0;
    pthread_mutex_lock(&c->mutex);
    e->grammar = made;
    e->failed = failed;
    pthread_cond_broadcast(&c->compiled);
}

/* Takes over the source's texts. One that fails is not kept: what it lacks may be memory. */
static int get(grammar_cache *c, source *from, sluice_grammar **grammar, sluice_error *error) {
    pthread_mutex_lock(&c->mutex);
    entry *e = find(c, from);
    if (e) {
        free_source(from);
        e->waiting++;
        while (!e->grammar && !e->failed) {
            pthread_cond_wait(&c->compiled, &c->mutex);
        }
    } else if ((e = calloc(1, sizeof *e))) {
        *e = (entry){.from = *from, .waiting = 1, .next = c->entries};
        c->entries = e;
        c->count++;
        compile(c, e);
    } else {
        free_source(from);
        *error = (sluice_error){.code = SLUICE_ERR_NOMEM, .message = "out of memory for a grammar"};
    }
    int code = SLUICE_ERR_NOMEM;
    if (e) {
        code = e->failed ? e->error.code : 0;
        *error = e->error;
        *grammar = e->failed ? NULL : sluice_grammar_retain(e->grammar);
        e->used = ++c->uses;
        e->waiting--;
        if (e->failed && e->waiting == 0) {
            take_out(c, e);
        }
        make_room(c);
    }
    pthread_mutex_unlock(&c->mutex);
    return code;
}

/* ---- what the fields say ---- */

static bool is(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* Sets the source; a second one is an error. Takes over `text`, where NULL is no memory. */
static int set(source *s, sluice_grammar_kind kind, char *text, size_t length, const char *path,
               http_error *error) {
    if (s->given) {
        free(text);
        return body_refuse_as(error, path, "%s and %s: an answer is held to one of them, not to both",
                              s->path, path);
    }
    if (!text && kind != SLUICE_GRAMMAR_JSON_OBJECT) {
        return error_no_memory(error);
    }
    s->kind = kind;
    s->text = text;
    s->length = length;
    s->path = path;
    s->given = true;
    return 0;
}

static int set_text(source *s, sluice_grammar_kind kind, const char *text, const char *path,
                    http_error *error) {
    return set(s, kind, strdup(text), strlen(text), path, error);
}

/* As JSON text, members in the order in which they came; numbers mean what they did. */
static int set_schema(source *s, const json_t *schema, const char *path, http_error *error) {
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        return body_refuse_as(error, path, "%s must be a JSON schema, an object, not %s", path,
                              schema ? body_type(schema) : "missing");
    }
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    return set(s, SLUICE_GRAMMAR_JSON_SCHEMA, text, text ? strlen(text) : 0, path, error);
}

/* vLLM's fields may hold the schema as text. */
static int set_any_schema(source *s, const json_t *schema, const char *path, http_error *error) {
    return json_is_string(schema)
               ? set_text(s, SLUICE_GRAMMAR_JSON_SCHEMA, json_string_value(schema), path, error)
               : set_schema(s, schema, path, error);
}

/* One of several texts, as a grammar. */
static int set_choice(source *s, const json_t *choices, const char *path, http_error *error) {
    text grammar = {0};
    size_t length;
    text_put(&grammar, "root ::= ");
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        if (!json_is_string(choice)) {
            text_free(&grammar);
            return body_refuse_as(error, path, "%s[%zu] must be a string, not %s", path, i,
                                  body_type(choice));
        }
        text_put(&grammar, i ? " | \"" : "\"");
        for (const char *at = json_string_value(choice); *at; at++) {
            const bool control = (unsigned char)*at < 0x20 || *at == 0x7f;
            if (control) {
                text_format(&grammar, "\\x%02X", (unsigned)*at);
            } else {
                text_format(&grammar, "%s", *at == '"' || *at == '\\' ? "\\" : "");
                text_add(&grammar, at, 1);
            }
        }
        text_put(&grammar, "\"");
    }
    if (json_array_size(choices) == 0) {
        text_free(&grammar);
        return body_refuse_as(error, path, "%s must be an array of at least one string", path);
    }
    char *made = text_take(&grammar, &length);
    return set(s, SLUICE_GRAMMAR_GBNF, made, length, path, error);
}

/* The path of a schema inside a format, of which there are few. */
static const char *schema_path(const char *path, bool named) {
    static const struct {
        const char *path, *named, *plain;
    } PATHS[] = {
        {"response_format", "response_format.json_schema.schema", "response_format.schema"},
        {"text.format", "text.format.json_schema.schema", "text.format.schema"},
        {"output_format", "output_format.json_schema.schema", "output_format.schema"},
        {"output_config.format", "output_config.format.json_schema.schema", "output_config.format.schema"},
    };
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        if (strcmp(PATHS[i].path, path) == 0) {
            return named ? PATHS[i].named : PATHS[i].plain;
        }
    }
    return path;
}

static int read_format(source *s, const json_t *format, const char *path, http_error *error) {
    const json_t *type = json_object_get(format, "type"), *named = json_object_get(format, "json_schema");
    const json_t *schema = json_object_get(named ? named : format, "schema");
    if (!json_is_object(format)) {
        return body_refuse_as(error, path, "%s must be an object, not %s", path, body_type(format));
    }
    if (is(type, "text")) {
        return 0;
    }
    if (is(type, "json_object")) {
        return schema && !json_is_null(schema) ? set_schema(s, schema, schema_path(path, named), error)
                                               : set(s, SLUICE_GRAMMAR_JSON_OBJECT, NULL, 0, path, error);
    }
    if (is(type, "json_schema")) {
        /* OpenAI's chat completions name the schema; the APIs after it have it beside the type. */
        const bool outer = !named && strcmp(path, "response_format") == 0 && !schema;
        return set_schema(s, schema, schema_path(path, named || outer), error);
    }
    return body_refuse_as(error, path, "%s.type must be text, json_object or json_schema", path);
}

/* Ollama's: "json", or the schema itself. */
static int read_ollama(source *s, const json_t *format, http_error *error) {
    if (is(format, "")) {
        return 0;
    }
    if (is(format, "json")) {
        return set(s, SLUICE_GRAMMAR_JSON_OBJECT, NULL, 0, "format", error);
    }
    return json_is_object(format)
               ? set_schema(s, format, "format", error)
               : body_refuse_as(error, "format", "format must be \"json\" or a JSON schema");
}

typedef struct outputs {
    const json_t *json, *choice;
    const char *regex, *grammar;
    bool json_object, disable_whitespace;
} outputs;

/* vLLM's structured_outputs. */
static int read_outputs(source *s, const json_t *given, http_error *error) {
    static const field FIELDS[] = {
        {"json", FIELD_ANY, offsetof(outputs, json), 0, 0, NULL},
        {"regex", FIELD_TEXT, offsetof(outputs, regex), 0, 0, NULL},
        {"choice", FIELD_ARRAY, offsetof(outputs, choice), 0, 0, NULL},
        {"grammar", FIELD_TEXT, offsetof(outputs, grammar), 0, 0, NULL},
        {"json_object", FIELD_BOOL, offsetof(outputs, json_object), 0, 0, NULL},
        {"disable_any_whitespace", FIELD_BOOL, offsetof(outputs, disable_whitespace), 0, 0, NULL},
        {"structural_tag", FIELD_UNSUPPORTED, 0, 0, 0, ""},
        {"whitespace_pattern", FIELD_UNSUPPORTED, 0, 0, 0, ""},
        {"disable_additional_properties", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    };
    outputs o = {0};
    if (body_fields(given, "structured_outputs.", FIELDS, sizeof FIELDS / sizeof *FIELDS, &o, error) ||
        (o.json && set_any_schema(s, o.json, "structured_outputs.json", error)) ||
        (o.regex && set_text(s, SLUICE_GRAMMAR_REGEX, o.regex, "structured_outputs.regex", error)) ||
        (o.choice && set_choice(s, o.choice, "structured_outputs.choice", error)) ||
        (o.grammar && set_text(s, SLUICE_GRAMMAR_GBNF, o.grammar, "structured_outputs.grammar", error)) ||
        (o.json_object &&
         set(s, SLUICE_GRAMMAR_JSON_OBJECT, NULL, 0, "structured_outputs.json_object", error))) {
        return -1;
    }
    s->compact = o.disable_whitespace;
    return 0;
}

static int read_fields(source *s, const structured_fields *f, http_error *error) {
    const char *path = f->format_path ? f->format_path : "response_format";
    int code = 0;
    if (f->format) {
        code = strcmp(path, "format") == 0 ? read_ollama(s, f->format, error)
                                           : read_format(s, f->format, path, error);
    }
    if (!code && f->json_schema) {
        code = set_schema(s, f->json_schema, "json_schema", error);
    }
    if (!code && f->grammar && *f->grammar) {
        code = set_text(s, SLUICE_GRAMMAR_GBNF, f->grammar, "grammar", error);
    }
    if (!code && f->guided_json) {
        code = set_any_schema(s, f->guided_json, "guided_json", error);
    }
    if (!code && f->guided_regex) {
        code = set_text(s, SLUICE_GRAMMAR_REGEX, f->guided_regex, "guided_regex", error);
    }
    if (!code && json_array_size(f->guided_choice) > 0) {
        code = set_choice(s, f->guided_choice, "guided_choice", error);
    }
    if (!code && f->guided_grammar) {
        code = set_text(s, SLUICE_GRAMMAR_GBNF, f->guided_grammar, "guided_grammar", error);
    }
    if (!code && f->outputs) {
        code = read_outputs(s, f->outputs, error);
    }
    return code;
}

/* Calls are held to their format, or forbidden. */
static int add_tools(source *s, const structured_request *r, http_error *error) {
    s->tools = strdup(r->tools);
    s->function = r->function ? strdup(r->function) : NULL;
    s->tool_choice = r->tool_choice;
    s->single_call = r->single_call;
    if (!s->given) {
        s->kind = SLUICE_GRAMMAR_TEXT;
        s->path = "tools";
        s->given = true;
    }
    return s->tools && (s->function || !r->function) ? 0 : error_no_memory(error);
}

int structured_grammar(const structured_request *request, grammar_cache *cache, sluice_grammar **grammar,
                       http_error *error) {
    source s = {.thought = request->thought};
    sluice_error inner = {0};
    *grammar = NULL;
    if (read_fields(&s, &request->fields, error) || (request->tools && add_tools(&s, request, error))) {
        free_source(&s);
        return -1;
    }
    if (!s.given) {
        return 0;
    }
    const char *path = s.path;
    const int code = get(cache, &s, grammar, &inner);
    if (code == SLUICE_ERR_INVALID || code == SLUICE_ERR_UNSUPPORTED || code == SLUICE_ERR_LIMIT ||
        code == SLUICE_ERR_FORMAT) {
        const bool of_tools = strncmp(inner.message, "tools[", strlen("tools[")) == 0;
        return of_tools ? body_refuse(error, "%s", inner.message)
                        : body_refuse_as(error, path, "%s: %s", path, inner.message);
    }
    if (code) {
        error_from_sluice(&inner, error);
    }
    return code ? -1 : 0;
}

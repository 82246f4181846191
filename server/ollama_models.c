/* Ollama's routes that tell of models and of the server. */
#include "ollama.h"

#include "convert.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *ollama_name(const char *name) {
    static const char TAG[] = ":latest";
    char *copy = strdup(name);
    const size_t length = strlen(name), tag = sizeof TAG - 1;
    if (copy && length > tag && strcmp(copy + length - tag, TAG) == 0) {
        copy[length - tag] = '\0';
    }
    return copy;
}

/* Clients compare it with the version in which what they need came: VS Code's Copilot wants 0.6.4, Codex
 * 0.13.4 for /v1/responses, and those of Anthropic's API 0.14. It says which of Ollama's routes work, not
 * what runs here. */
void ollama_version(exchange *x, void *context) {
    (void)context;
    reply_json(x, json_pack("{s:s}", "version", "0.14.2"));
}

/* ---- what is known of a model ---- */

typedef struct facts {
    const char *id;
    double created;
    uint64_t bytes;
    json_t *description; /* of sluice_model_describe; NULL: not opened */
} facts;

static const char *word(const json_t *description, const char *name) {
    const char *found = json_string_value(json_object_get(description, name));
    return found ? found : "";
}

static json_int_t number(const json_t *description, const char *name) {
    return json_integer_value(json_object_get(description, name));
}

/* NULL: it cannot be described. */
static json_t *describe(const sluice_model *model) {
    char *text = NULL;
    if (sluice_model_describe(model, SLUICE_JSON, &text, NULL)) {
        return NULL;
    }
    json_t *description = json_loads(text, 0, NULL);
    sluice_free(text);
    return description;
}

static uint64_t file_bytes(const char *path) {
    struct stat file;
    return stat(path, &file) == 0 && S_ISREG(file.st_mode) ? (uint64_t)file.st_size : 0;
}

/* 64 hexadecimal digits that change when the file does. Ollama's are a hash of all its bytes, which nobody
 * here has read; clients only compare them. */
static void write_digest(text *out, const facts *f) {
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    text facts_text = {0};
    text_format(&facts_text, "%s %.0f %llu", f->id, f->created, (unsigned long long)f->bytes);
    for (int part = 0; part < 4; part++) {
        for (size_t i = 0; i < facts_text.length; i++) {
            hash = (hash ^ (unsigned char)facts_text.data[i]) * 1099511628211u;
        }
        text_format(out, "%016llx", (unsigned long long)hash);
    }
    out->failed |= facts_text.failed;
    text_free(&facts_text);
}

/* The type of most of a model's bytes, as Ollama writes it ("Q4_K"). */
static void write_quantization(text *out, const json_t *description) {
    const json_t *types = json_object_get(description, "types");
    const char *name = "";
    json_int_t most = 0;
    char upper[32] = "";
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *type = json_array_get(types, i);
        if (number(type, "bytes") > most) {
            most = number(type, "bytes");
            name = word(type, "type");
        }
    }
    for (size_t i = 0; name[i] && i + 1 < sizeof upper; i++) {
        upper[i] = (char)toupper((unsigned char)name[i]);
    }
    text_string(out, upper, strlen(upper));
}

static void write_size(text *out, double parameters) {
    if (parameters >= 1e9) {
        text_format(out, "\"%.1fB\"", parameters * 1e-9);
    } else if (parameters >= 1e6) {
        text_format(out, "\"%.2fM\"", parameters * 1e-6);
    } else if (parameters > 0) {
        text_format(out, "\"%.0fK\"", parameters * 1e-3);
    } else {
        text_put(out, "\"\"");
    }
}

static void write_details(text *out, const json_t *description) {
    const char *family = word(description, "family"), *format = word(description, "format");
    text_format(out, "{\"parent_model\":\"\",\"format\":\"%s\",\"family\":",
                strcmp(format, "safetensors") == 0 ? "safetensors" : "gguf");
    text_string(out, family, strlen(family));
    text_put(out, ",\"families\":[");
    if (*family) {
        text_string(out, family, strlen(family));
    }
    text_put(out, "],\"parameter_size\":");
    write_size(out, (double)number(description, "parameters"));
    text_put(out, ",\"quantization_level\":");
    write_quantization(out, description);
    text_put(out, "}");
}

/* What lists have of every model, without the closing brace. */
static void write_listed(text *out, const facts *f) {
    text_put(out, "{\"name\":");
    text_string(out, f->id, strlen(f->id));
    text_put(out, ",\"model\":");
    text_string(out, f->id, strlen(f->id));
    text_put(out, ",\"modified_at\":");
    ollama_write_time(out, f->created);
    text_format(out, ",\"size\":%llu,\"digest\":\"", (unsigned long long)f->bytes);
    write_digest(out, f);
    text_put(out, "\",\"details\":");
    write_details(out, f->description);
}

/* ---- lists ---- */

static void write_capabilities(text *out, const sluice_chat_facts *chat) {
    text_put(out, ",\"capabilities\":[\"completion\"");
    text_put(out, chat->think_open ? ",\"thinking\"]" : "]");
}

static void write_model(text *out, server *s, const model_status *status, bool running) {
    http_error ignored;
    facts f = {.id = status->id, .created = status->created, .bytes = file_bytes(status->path)};
    served_model *m = status->loaded ? models_acquire(s->models, status->id, &ignored) : NULL;
    f.bytes = f.bytes || !m ? f.bytes : m->info.bytes;
    f.description = m ? describe(m->model) : NULL;
    write_listed(out, &f);
    if (m && running) {
        /* It stays until another one needs its memory: Ollama gives such a model a year far away. */
        text_format(out, ",\"expires_at\":\"2318-01-01T00:00:00Z\",\"size_vram\":%llu,\"context_length\":%d",
                    strncmp(sluice_engine_device(m->engine), "cpu", 3) == 0
                        ? 0ull
                        : (unsigned long long)m->info.bytes,
                    m->context);
    } else if (m) {
        write_capabilities(out, &m->facts);
    }
    text_put(out, "}");
    json_decref(f.description);
    models_release(s->models, m);
}

static void reply_models(exchange *x, server *s, bool running) {
    text out = {0};
    const char *comma = "";
    text_put(&out, "{\"models\":[");
    for (size_t i = 0; i < models_count(s->models); i++) {
        model_status status;
        models_get_status(s->models, i, &status);
        if (status.loaded || !running) {
            text_put(&out, comma);
            write_model(&out, s, &status, running);
            comma = ",";
        }
    }
    text_put(&out, "]}");
    reply_text(x, &out);
}

void ollama_tags(exchange *x, void *context) {
    reply_models(x, context, false);
}

void ollama_running(exchange *x, void *context) {
    reply_models(x, context, true);
}

/* ---- one model ---- */

/* Members of the model's file that clients read, under the names that GGUF files give them. The context is
 * the one that requests have here, as soon as that is known: clients make their prompts as long as it. */
static void write_info(text *out, const model_status *status, const json_t *description,
                       const sluice_model_info *info) {
    static const struct {
        const char *ours, *theirs;
    } MEMBERS[] = {
        {"width", "embedding_length"},     {"layers", "block_count"},
        {"heads", "attention.head_count"}, {"kv_heads", "attention.head_count_kv"},
        {"vocabulary", "vocab_size"},      {"head_size", "attention.key_length"},
    };
    const char *family = word(description, "family");
    text_put(out, "{\"general.architecture\":");
    text_string(out, family, strlen(family));
    text_put(out, ",\"general.basename\":");
    text_string(out, status->id, strlen(status->id));
    text_format(out, ",\"general.parameter_count\":%llu,\"%s.context_length\":%d",
                (unsigned long long)info->parameters, family,
                status->context > 0 ? status->context : info->context);
    for (size_t i = 0; i < sizeof MEMBERS / sizeof *MEMBERS; i++) {
        text_format(out, ",\"%s.%s\":%" JSON_INTEGER_FORMAT, family, MEMBERS[i].theirs,
                    number(description, MEMBERS[i].ours));
    }
    text_format(out, ",\"tokenizer.ggml.bos_token_id\":%d,\"tokenizer.ggml.eos_token_id\":%d}", info->bos,
                info->eos);
}

static void reply_shown(exchange *x, const model_status *status, const sluice_model *model) {
    text out = {0};
    sluice_model_info info = {.size = sizeof info};
    sluice_chat_facts chat = {.size = sizeof chat};
    json_t *description = describe(model);
    sluice_model_get_info(model, &info);
    sluice_chat_get_facts(model, &chat, NULL); /* without facts nothing is said of them */
    const char *template = info.chat_template ? info.chat_template : "";
    text_put(&out, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"");
    text_format(&out, status->context > 0 ? "num_ctx                        %d\"" : "\"", status->context);
    text_put(&out, ",\"template\":");
    text_string(&out, template, strlen(template));
    text_put(&out, ",\"details\":");
    write_details(&out, description);
    text_put(&out, ",\"model_info\":");
    write_info(&out, status, description, &info);
    write_capabilities(&out, &chat);
    text_put(&out, ",\"modified_at\":");
    ollama_write_time(&out, status->created);
    text_put(&out, "}");
    json_decref(description);
    reply_text(x, &out);
}

/* A name that nobody has is nobody's here, also where it would be answered by the default: clients ask
 * whether there is such a model. */
static bool find_status(server *s, const char *name, model_status *status) {
    for (size_t i = 0; i < models_count(s->models); i++) {
        models_get_status(s->models, i, status);
        if (strcmp(status->id, name) == 0) {
            return true;
        }
    }
    return false;
}

typedef struct show_fields {
    const char *model, *name; /* the second is an older word for the first */
} show_fields;

/* The file is opened for this alone, so that a client that asks after every model of the list loads none of
 * them. */
static int show(server *s, exchange *x, const json_t *body, http_error *error) {
    static const field FIELDS[] = {{"name", FIELD_TEXT, offsetof(show_fields, name), 0, 0, NULL},
                                   {"model", FIELD_TEXT, offsetof(show_fields, model), 0, 0, NULL}};
    show_fields f = {0};
    model_status status;
    sluice_model *model;
    sluice_error inner;
    if (body_fields(body, "", FIELDS, 2, &f, error)) {
        return -1;
    }
    const char *given = f.model ? f.model : f.name;
    if (!given || !*given) {
        return body_refuse(error, "model is required");
    }
    char *name = ollama_name(given);
    const bool found = name && find_status(s, name, &status);
    free(name);
    if (!found) {
        *error = (http_error){
            .status = 404, .type = "not_found_error", .code = "model_not_found", .param = "model"};
        strcpy(error->message, "model not found; see /api/tags");
        return -1;
    }
    if (sluice_model_open_with(status.path, status.options, &model, &inner)) {
        error_from_sluice(&inner, error);
        error->status = 500;
        return -1;
    }
    reply_shown(x, &status, model);
    sluice_model_release(model);
    return 0;
}

void ollama_show(exchange *x, void *context) {
    http_error error;
    json_t *body = NULL;
    size_t length;
    const char *bytes = exchange_body(x, &length);
    if (body_parse(bytes, length, &body, &error) || show(context, x, body, &error)) {
        exchange_fail(x, &error);
    }
    json_decref(body);
}

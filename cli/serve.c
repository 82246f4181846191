/* sluice serve: what the command line says, as the server wants it. */
#define _GNU_SOURCE
#include "cli.h"

#include "server/serve.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEYS = 1024, CONNECTIONS = 16384, WORKERS = 4 };

typedef struct key_list {
    const char *items[KEYS];
    size_t count;
} key_list;

/* Keys between separators; cut in place. */
static int add_keys(key_list *keys, char *text, const char *separators) {
    char *state = NULL;
    for (char *key = strtok_r(text, separators, &state); key; key = strtok_r(NULL, separators, &state)) {
        if (keys->count == KEYS) {
            return fail("serve: more than %d keys", KEYS);
        }
        keys->items[keys->count++] = key;
    }
    return DONE;
}

static int read_keys(const settings *s, key_list *keys) {
    int code = DONE;
    for (int i = 0; code == DONE && i < s->api_keys.count; i++) {
        char *copy = strdup(s->api_keys.items[i]);
        code = copy ? add_keys(keys, copy, ",") : fail("out of memory");
    }
    if (code == DONE && s->api_key_file) {
        size_t length;
        char *text = read_all(s->api_key_file, &length);
        char *whole = text ? realloc(text, length + 1) : NULL;
        if (!whole) {
            free(text);
            return FAILED;
        }
        whole[length] = '\0';
        code = add_keys(keys, whole, " \t\r\n");
    }
    if (code == DONE && (s->api_keys.count || s->api_key_file) && keys->count == 0) {
        return fail("serve: --api-key or --api-key-file is given, and there is no key in it");
    }
    return code;
}

/* "folder/name.gguf" and "folder/name" to "name"; `name` has room for it. */
static void name_of(const char *path, char name[256]) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    size_t first = length;
    while (first > 0 && path[first - 1] != '/') {
        first--;
    }
    snprintf(name, 256, "%.*s", (int)(length - first), path + first);
    char *ending = strrchr(name, '.');
    if (ending && strcmp(ending, ".gguf") == 0) {
        *ending = '\0';
    }
}

typedef struct model_names {
    char paths[LIST_ITEMS][DATA_PATH_SIZE], names[LIST_ITEMS][256];
    const char *path_pointers[LIST_ITEMS], *name_pointers[LIST_ITEMS];
    size_t count;
} model_names;

static int name_models(const settings *s, model_names *m) {
    m->count = s->models.count ? (size_t)s->models.count : 1;
    for (size_t i = 0; i < m->count; i++) {
        const char *given = s->models.count ? s->models.items[i] : DEFAULT_MODEL;
        m->path_pointers[i] = model_path(given, m->paths[i]);
        name_of(m->path_pointers[i], m->names[i]);
        m->name_pointers[i] = (int)i < s->aliases.count ? s->aliases.items[i] : m->names[i];
        if (access(m->path_pointers[i], R_OK)) {
            return fail("serve: -m %s: there is no such file, folder or built-in model", given);
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(m->name_pointers[k], m->name_pointers[i]) == 0) {
                return fail("serve: two models are named %s; give them names with --alias",
                            m->name_pointers[i]);
            }
        }
    }
    if (s->aliases.count > (int)m->count) {
        return fail("serve: --alias is given %d times for %zu models", s->aliases.count, m->count);
    }
    return DONE;
}

static void http_options_of(const settings *s, const key_list *keys, http_options *o) {
    *o = (http_options){
        .host = s->unix_path && s->port == 8080 ? NULL : s->host,
        .port = s->port,
        .unix_path = s->unix_path,
        .tls_certificate = s->tls_certificate,
        .tls_key = s->tls_key,
        .keys = keys->items,
        .key_count = keys->count,
        .origins = s->origins.items,
        .origin_count = (size_t)s->origins.count,
        .hosts = s->hosts.items,
        .host_count = (size_t)s->hosts.count,
        .max_body = s->max_body,
        .header_seconds = 30,
        .stall_seconds = 60,
        .idle_seconds = 600,
        .connections = CONNECTIONS,
        .workers = WORKERS,
    };
}

static int serve_models(const settings *s, const key_list *keys, const model_names *models,
                        const sluice_model_options *model, const json_t *variables) {
    sluice_engine_options engine;
    engine_options(s, 0, &engine);
    sluice_model *draft = NULL;
    if (draft_options(s, &draft, &engine) != DONE) {
        return FAILED;
    }
    engine.queue = s->max_queue;
    engine.embeddings = s->embeddings;
    engine.prompt_seconds = s->max_step_time > 0 ? s->max_step_time * 1e-3 : -1;
    serve_options options = {
        .expert_stats = s->expert_stats,
        .model_paths = models->path_pointers,
        .model_names = models->name_pointers,
        .model_count = models->count,
        .strict_model = s->strict_model,
        .engine = &engine,
        .model = model,
        .template_options = variables,
        .thought_tokens = s->reasoning_budget,
        .no_model_sampling = s->no_model_sampling,
        .leave_seconds = s->drain_delay,
        .drain_seconds = s->drain_timeout,
        .open_metrics = s->open_metrics,
        .json_log = strcmp(s->log_format, "json") == 0,
        .metrics_prefix = s->metrics_prefix,
        .heartbeat_seconds = 15,
    };
    http_options_of(s, keys, &options.http);
    const int code = serve(&options) ? FAILED : DONE;
    sluice_model_release(draft);
    return code;
}

int serve_command(const settings *s) {
    static key_list keys;
    static model_names models;
    int code = read_keys(s, &keys);
    code = code == DONE ? name_models(s, &models) : code;
    if (code == DONE && !s->tls_certificate != !s->tls_key) {
        code = fail("serve: --tls-cert and --tls-key belong together");
    }
    if (code == DONE && s->expert_stats && models.count > 1) {
        fail("serve: --expert-stats is of one model");
        code = WRONG_USAGE;
    }
    if (code != DONE) {
        return code;
    }
    sluice_model_options model;
    char *text = NULL;
    json_t *variables = template_options(s);
    code = variables ? model_options(s, &model, &text) : WRONG_USAGE;
    code = code == DONE ? serve_models(s, &keys, &models, &model, variables) : code;
    json_decref(variables);
    free(text);
    return code;
}

/* Ollama's registry: a manifest of Docker's kind names layers, each a blob by its SHA-256. */
#include "hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST "https://registry.ollama.ai"
#define MANIFEST "application/vnd.docker.distribution.manifest.v2+json"
#define LAYER "application/vnd.ollama.image."

/* Layers that are kept, and the names they get. The template is Go's, not Jinja: it is for people. */
static const struct {
    const char *kind, *file;
} KEPT[] = {{"model", NULL},
            {"template", "template.txt"},
            {"params", "params.json"},
            {"system", "system.txt"},
            {"license", "license.txt"}};

typedef struct place {
    const char *base, *folder, *model;
    const hub_name *name;
} place;

static void leave_out(hub_listing *listing, const char *what) {
    const size_t used = strlen(listing->left_out);
    if (!strstr(listing->left_out, what)) {
        snprintf(listing->left_out + used, sizeof listing->left_out - used, "%s%s", used ? ", " : "", what);
    }
}

static int add_layer(const place *at, const json_t *layer, int *models, hub_listing *listing,
                     char message[HUB_MESSAGE]) {
    const char *type = json_string_value(json_object_get(layer, "mediaType"));
    const char *digest = json_string_value(json_object_get(layer, "digest"));
    const json_int_t size = json_integer_value(json_object_get(layer, "size"));
    if (!type || !digest || strncmp(digest, "sha256:", 7) != 0 || !hub_is_hex(digest + 7, 64) || size <= 0) {
        return hub_fail(message, HUB_ERR_CONTENT,
                        "%s: a layer of the manifest lacks its mediaType, digest or size", listing->name);
    }
    const char *kind = strncmp(type, LAYER, sizeof LAYER - 1) == 0 ? type + sizeof LAYER - 1 : type;
    size_t k = 0;
    while (k < sizeof KEPT / sizeof *KEPT && strcmp(KEPT[k].kind, kind) != 0) {
        k++;
    }
    char word[64], url[HUB_NAME], file[128];
    if (k == sizeof KEPT / sizeof *KEPT) {
        snprintf(word, sizeof word, "%.60s", kind);
        for (char *c = word; *c; c++) {
            *c = *c > 32 && *c < 127 ? *c : '?';
        }
        leave_out(listing, word);
        return HUB_OK;
    }
    if (k == 0 && ++*models > 1) {
        return hub_fail(message, HUB_ERR_CONTENT, "%s: the manifest names more than one model file",
                        listing->name);
    }
    if (KEPT[k].file) { /* there may be several licences */
        int same = 0;
        for (size_t i = 0; i < listing->count; i++) {
            same += hub_ends_with(strrchr(listing->parts[i].path, '/'), KEPT[k].file);
        }
        if (same) {
            snprintf(file, sizeof file, "%d-%s", same + 1, KEPT[k].file);
        } else {
            snprintf(file, sizeof file, "%s", KEPT[k].file);
        }
    } else {
        snprintf(file, sizeof file, "%.120s", at->model);
    }
    snprintf(url, sizeof url, "%s/v2/%s/blobs/%s", at->base, at->name->repo, digest);
    const hub_remote remote = {
        .folder = at->folder, .file = file, .url = url, .sha256 = digest + 7, .size = (uint64_t)size};
    return hub_listing_add(listing, &remote, message);
}

/* The model first: its digest is the version that the folder is named after. */
static const char *model_digest(const json_t *layers) {
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        if (type && digest && strcmp(type, LAYER "model") == 0 && strncmp(digest, "sha256:", 7) == 0 &&
            hub_is_hex(digest + 7, 64)) {
            return digest + 7;
        }
    }
    return NULL;
}

static int read_manifest(const char *base, const hub_name *name, const json_t *manifest, hub_listing *listing,
                         char message[HUB_MESSAGE]) {
    const json_t *layers = json_object_get(manifest, "layers");
    const char *version = model_digest(layers);
    char folder[HUB_NAME], model[384];
    if (!version) {
        return hub_fail(message, HUB_ERR_CONTENT, "%s: the manifest names no layer of the kind %smodel",
                        listing->name, LAYER);
    }
    const char *slash = strchr(name->repo, '/');
    snprintf(listing->version, sizeof listing->version, "%s", version);
    snprintf(folder, sizeof folder, "ollama/%s/%s/%.12s", name->repo, name->revision, version);
    snprintf(model, sizeof model, "%.80s-%.30s.gguf", slash ? slash + 1 : name->repo, name->revision);
    snprintf(listing->model, sizeof listing->model, "%s/%s", folder, model);
    const place at = {base, folder, model, name};
    int code = HUB_OK, models = 0;
    for (size_t i = 0; code == HUB_OK && i < json_array_size(layers); i++) {
        code = add_layer(&at, json_array_get(layers, i), &models, listing, message);
    }
    return code;
}

int hub_list_ollama(const hub_options *options, const hub_name *name, hub_listing *listing,
                    char message[HUB_MESSAGE]) {
    const hub_transfer transfer = hub_transfer_of(options, HUB_KIND_OLLAMA);
    const char *base = options->mirror ? options->mirror : HOST;
    const char *bare = strncmp(name->repo, "library/", 8) == 0 ? name->repo + 8 : name->repo;
    char url[HUB_NAME];
    json_t *manifest;
    snprintf(listing->name, sizeof listing->name, "ollama:%s:%s", bare, name->revision);
    snprintf(listing->repo, sizeof listing->repo, "%s", name->repo);
    snprintf(listing->revision, sizeof listing->revision, "%s", name->revision);
    snprintf(listing->label, sizeof listing->label, "%s", name->revision);
    snprintf(url, sizeof url, "%s/v2/%s/manifests/%s", base, name->repo, name->revision);
    snprintf(listing->source, sizeof listing->source, "%s", url);
    listing->is_default = strcmp(name->revision, "latest") == 0;
    int code = hub_fetch_object(&transfer, url, MANIFEST, &manifest, message);
    if (code == HUB_ERR_NOT_FOUND) {
        return hub_fail(message, code, "%s: Ollama's library has no such model or tag (%s)", listing->name,
                        url);
    }
    code = code ? code : read_manifest(base, name, manifest, listing, message);
    json_decref(manifest);
    return code;
}

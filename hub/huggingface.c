/* Repositories of Hugging Face: GET /api/models/OWNER/REPO/revision/REVISION?blobs=true says the commit and
 * its files, /OWNER/REPO/resolve/COMMIT/FILE gives one, often from another host. */
#include "hosts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST "https://huggingface.co"

/* What is taken where a name says no type, the first that is there. Four to five bits first; then what is
 * nearest, larger ones before smaller ones. */
static const char *const CHOICES[] = {"Q4_K_M", "UD-Q4_K_XL", "UD-Q4_K_M", "Q4_K_XL", "Q4_K_L", "Q4_K_S",
                                      "MXFP4",  "MXFP4_MOE",  "Q4_0",      "IQ4_XS",  "IQ4_NL", "Q5_K_M",
                                      "Q5_K_S", "Q5_0",       "Q6_K",      "Q8_0",    "Q4_1",   "Q3_K_M",
                                      "BF16",   "F16",        "FP16",      "F32"};

typedef struct repository {
    const hub_options *options;
    const hub_name *name;
    const char *base, *commit;
    const json_t *siblings;
    char folder[HUB_NAME];
} repository;

static const char *path_at(const repository *r, size_t index) {
    const char *path = json_string_value(json_object_get(json_array_get(r->siblings, index), "rfilename"));
    return path ? path : "";
}

static uint64_t size_at(const repository *r, size_t index) {
    const json_t *file = json_array_get(r->siblings, index), *lfs = json_object_get(file, "lfs");
    json_int_t size = json_integer_value(json_object_get(file, "size"));
    size = size ? size : json_integer_value(json_object_get(lfs, "size"));
    return size > 0 ? (uint64_t)size : 0;
}

/* Bytes that are no plain ones of a URL's path as %XX. */
static void escape(const char *path, char escaped[3 * HUB_NAME]) {
    size_t used = 0;
    for (; *path && used + 4 < 3 * HUB_NAME; path++) {
        const unsigned char c = (unsigned char)*path;
        if (c < 128 && (isalnum(c) || strchr("-._~/", c))) {
            escaped[used++] = (char)c;
        } else {
            used += (size_t)snprintf(escaped + used, 4, "%%%02X", c);
        }
    }
    escaped[used] = '\0';
}

static int add(const repository *r, size_t index, const char *folder, hub_listing *listing,
               char message[HUB_MESSAGE]) {
    char escaped[3 * HUB_NAME], url[4 * HUB_NAME];
    const json_t *lfs = json_object_get(json_array_get(r->siblings, index), "lfs");
    escape(path_at(r, index), escaped);
    snprintf(url, sizeof url, "%s/%s/resolve/%s/%s", r->base, r->name->repo, r->commit, escaped);
    const hub_remote remote = {.folder = folder,
                               .file = path_at(r, index),
                               .url = url,
                               .sha256 = json_string_value(json_object_get(lfs, "sha256")),
                               .size = size_at(r, index)};
    return hub_listing_add(listing, &remote, message);
}

/* ---- GGUF ------------------------------------------------------------------------------------------------
 */

/* The first file of a model: not split, or part 1. */
static bool is_first(const char *path) {
    int part, parts;
    hub_gguf_stem(path, &part, &parts);
    return hub_ends_with(path, ".gguf") && !hub_gguf_is_other(path) && (parts == 0 || part == 1);
}

static uint64_t model_bytes(const repository *r, size_t first) {
    int part, parts, other, others;
    const size_t stem = hub_gguf_stem(path_at(r, first), &part, &parts);
    uint64_t bytes = size_at(r, first);
    for (size_t i = 0; parts && i < json_array_size(r->siblings); i++) {
        const char *path = path_at(r, i);
        const bool same = hub_gguf_stem(path, &other, &others) == stem && others == parts && i != first;
        bytes += same && strncmp(path, path_at(r, first), stem) == 0 ? size_at(r, i) : 0;
    }
    return bytes;
}

/* "Q4_K_M 4.9 GB, Q8_0 8.5 GB" of all models there, as far as there is room. */
static void tell_choices(const repository *r, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < json_array_size(r->siblings); i++) {
        char label[128], bytes[16], one[160];
        if (!is_first(path_at(r, i))) {
            continue;
        }
        hub_quant_label(path_at(r, i), label);
        snprintf(one, sizeof one, "%s%s %s", used ? ", " : "", label,
                 hub_size_text(model_bytes(r, i), bytes));
        if (used + strlen(one) + 6 > size) {
            snprintf(text + used, size - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text + used, size - used, "%s", one);
    }
}

enum { NONE = -1, SEVERAL = -2 };

/* The model that QUANT means. */
static int find_quant(const repository *r, const char *quant) {
    int best = 0, found = NONE;
    for (size_t i = 0; i < json_array_size(r->siblings); i++) {
        const int how = is_first(path_at(r, i)) ? hub_quant_matches(path_at(r, i), quant) : 0;
        if (how > best) {
            best = how;
            found = (int)i;
        } else if (how && how == best) {
            found = SEVERAL;
        }
    }
    return found;
}

static int find_default(const repository *r) {
    int only = NONE;
    for (size_t c = 0; c < sizeof CHOICES / sizeof *CHOICES; c++) {
        const int found = find_quant(r, CHOICES[c]);
        if (found != NONE) {
            return found;
        }
    }
    for (size_t i = 0; i < json_array_size(r->siblings); i++) {
        only = !is_first(path_at(r, i)) ? only : only == NONE ? (int)i : SEVERAL;
    }
    return only;
}

static int find_file(const repository *r) {
    int part, parts, other, others;
    const size_t stem = hub_gguf_stem(r->name->file, &part, &parts);
    for (size_t i = 0; i < json_array_size(r->siblings); i++) {
        const bool same = hub_gguf_stem(path_at(r, i), &other, &others) == stem && others == parts;
        if (same && strncmp(path_at(r, i), r->name->file, stem) == 0 && (parts == 0 || other == 1)) {
            return (int)i;
        }
    }
    return NONE;
}

static int no_choice(const repository *r, int found, char message[HUB_MESSAGE]) {
    char choices[360];
    const hub_name *n = r->name;
    tell_choices(r, choices, sizeof choices);
    if (n->file[0]) {
        return hub_fail(message, HUB_ERR_NOT_FOUND, "hf:%s has no file %.80s; there are %s", n->repo, n->file,
                        choices);
    }
    if (found == SEVERAL) {
        return hub_fail(message, HUB_ERR_NAME, "hf:%s: several files are %s, name one as hf:%s/FILE: %s",
                        n->repo, n->quant[0] ? n->quant : "alike", n->repo, choices);
    }
    return hub_fail(message, HUB_ERR_NOT_FOUND, "hf:%s has no %s; there are %s", n->repo, n->quant, choices);
}

/* All parts of the model that begins with file `first`, which the model's path in the cache is. */
static int add_parts(const repository *r, size_t first, hub_listing *listing, char message[HUB_MESSAGE]) {
    int part, parts, other, others;
    const size_t stem = hub_gguf_stem(path_at(r, first), &part, &parts);
    int code = add(r, first, r->folder, listing, message);
    for (int k = 2; code == HUB_OK && k <= parts; k++) {
        size_t i = 0;
        while (i < json_array_size(r->siblings) &&
               !(hub_gguf_stem(path_at(r, i), &other, &others) == stem && other == k && others == parts &&
                 strncmp(path_at(r, i), path_at(r, first), stem) == 0)) {
            i++;
        }
        code = i < json_array_size(r->siblings)
                   ? add(r, i, r->folder, listing, message)
                   : hub_fail(message, HUB_ERR_CONTENT, "hf:%s: part %d of %d of %.200s is not there",
                              r->name->repo, k, parts, path_at(r, first));
    }
    return code;
}

static int list_gguf(const repository *r, hub_listing *listing, char message[HUB_MESSAGE]) {
    const hub_name *n = r->name;
    const int usual = find_default(r);
    const int found = n->file[0] ? find_file(r) : n->quant[0] ? find_quant(r, n->quant) : usual;
    if (found < 0) {
        return no_choice(r, found, message);
    }
    const char *path = path_at(r, (size_t)found), *shown = n->given_revision ? n->revision : "";
    hub_quant_label(path, listing->label);
    snprintf(listing->file, sizeof listing->file, "%s", path);
    listing->is_default = found == usual;
    /* By its type where that says which one it is. */
    if (find_quant(r, listing->label) == found) {
        snprintf(listing->name, sizeof listing->name, "hf:%s%s%s:%s", n->repo, *shown ? "@" : "", shown,
                 listing->label);
    } else {
        snprintf(listing->name, sizeof listing->name, "hf:%s%s%s/%.500s", n->repo, *shown ? "@" : "", shown,
                 path);
    }
    const int code = add_parts(r, (size_t)found, listing, message);
    if (code == HUB_OK) {
        snprintf(listing->model, sizeof listing->model, "%s", listing->parts[0].path);
    }
    return code;
}

/* ---- folders ---------------------------------------------------------------------------------------------
 */

/* "1_Pooling/config.json" of sentence-transformers. */
static bool is_module(const char *path) {
    size_t at = strspn(path, "0123456789");
    if (at == 0 || path[at] != '_') {
        return false;
    }
    at += strcspn(path + at, "/");
    return strcmp(path + at, "/config.json") == 0 || strcmp(path + at, "/model.safetensors") == 0;
}

/* What the loader opens of a folder besides its weights. */
static bool is_of_folder(const char *path) {
    static const char *const FILES[] = {
        "config.json",           "generation_config.json", "hf_quant_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja",    "chat_template.json",   "modules.json"};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        if (strcmp(path, FILES[i]) == 0) {
            return true;
        }
    }
    const char *templates = "additional_chat_templates/";
    const char *more = strncmp(path, templates, strlen(templates)) == 0 ? path + strlen(templates) : NULL;
    return (more && !strchr(more, '/') && hub_ends_with(more, ".jinja")) || is_module(path);
}

static size_t index_of(const repository *r, const char *path) {
    size_t i = 0;
    while (i < json_array_size(r->siblings) && strcmp(path_at(r, i), path) != 0) {
        i++;
    }
    return i;
}

/* The files that an index names, each once. */
static int add_shards(const repository *r, size_t index, const char *folder, hub_listing *listing,
                      char message[HUB_MESSAGE]) {
    const hub_transfer transfer = hub_transfer_of(r->options, HUB_KIND_HF);
    const char *tensor;
    json_t *root, *value, *seen = json_object();
    int code = add(r, index, folder, listing, message);
    code = code ? code
                : hub_fetch_object(&transfer, listing->parts[listing->count - 1].url, NULL, &root, message);
    if (code) {
        json_decref(seen);
        return code;
    }
    json_object_foreach(json_object_get(root, "weight_map"), tensor, value) {
        const char *shard = json_string_value(value);
        const size_t i = shard ? index_of(r, shard) : json_array_size(r->siblings);
        if (code || (shard && json_object_get(seen, shard))) {
            continue;
        }
        code = i < json_array_size(r->siblings) && !strchr(shard, '/')
                   ? add(r, i, folder, listing, message)
                   : hub_fail(message, HUB_ERR_CONTENT,
                              "hf:%s: the index of its weights names %.100s, which is not there",
                              r->name->repo, shard ? shard : "no file");
        if (code == HUB_OK && json_object_set_new(seen, shard, json_true())) {
            code = hub_fail(message, HUB_ERR_NOMEM, "hf:%s: out of memory", r->name->repo);
        }
    }
    json_decref(root);
    json_decref(seen);
    return code;
}

static int no_model(const repository *r, char message[HUB_MESSAGE]) {
    const char *other = NULL;
    for (size_t i = 0; i < json_array_size(r->siblings); i++) {
        const char *path = path_at(r, i);
        other = hub_ends_with(path, ".bin") || hub_ends_with(path, ".pth") ||
                        hub_ends_with(path, ".safetensors") || hub_ends_with(path, ".gguf")
                    ? path
                    : other;
    }
    return hub_fail(
        message, HUB_ERR_NOT_FOUND,
        "hf:%s has no model that sluice reads: no GGUF file, and no config.json with model.safetensors"
        "%s%.100s%s",
        r->name->repo, other ? " (there is " : "", other ? other : "", other ? ")" : "");
}

static int list_folder(const repository *r, hub_listing *listing, char message[HUB_MESSAGE]) {
    const size_t count = json_array_size(r->siblings);
    const size_t single = index_of(r, "model.safetensors"),
                 index = index_of(r, "model.safetensors.index.json");
    const hub_name *n = r->name;
    if (n->quant[0] || n->file[0]) {
        return hub_fail(message, HUB_ERR_NOT_FOUND, "hf:%s has no GGUF files, so no %s: hf:%s is the folder",
                        n->repo, n->quant[0] ? n->quant : n->file, n->repo);
    }
    if (index_of(r, "config.json") == count || (single == count && index == count)) {
        return no_model(r, message);
    }
    char folder[HUB_NAME];
    snprintf(folder, sizeof folder, "%.700s/%s", r->folder, strchr(n->repo, '/') + 1);
    snprintf(listing->model, sizeof listing->model, "%s", folder);
    snprintf(listing->name, sizeof listing->name, "hf:%s%s%s", n->repo, n->given_revision ? "@" : "",
             n->given_revision ? n->revision : "");
    listing->is_folder = listing->is_default = true;
    int code = HUB_OK;
    for (size_t i = 0; code == HUB_OK && i < count; i++) {
        code = is_of_folder(path_at(r, i)) ? add(r, i, folder, listing, message) : HUB_OK;
    }
    if (code == HUB_OK) {
        code = single < count ? add(r, single, folder, listing, message)
                              : add_shards(r, index, folder, listing, message);
    }
    return code;
}

/* ---- the repository --------------------------------------------------------------------------------------
 */

static int list_files(repository *r, const json_t *answer, hub_listing *listing, char message[HUB_MESSAGE]) {
    const hub_name *n = r->name;
    r->commit = json_string_value(json_object_get(answer, "sha"));
    r->siblings = json_object_get(answer, "siblings");
    if (!hub_is_hex(r->commit, 40) || !json_is_array(r->siblings)) {
        return hub_fail(message, HUB_ERR_CONTENT,
                        "hf:%s: the answer lacks the commit (sha) or its files (siblings)", n->repo);
    }
    const json_t *gated = json_object_get(answer, "gated");
    listing->gated = gated && !json_is_false(gated) && !json_is_null(gated);
    snprintf(r->folder, sizeof r->folder, "hf/%s/%.12s", n->repo, r->commit);
    snprintf(listing->version, sizeof listing->version, "%s", r->commit);
    snprintf(listing->source, sizeof listing->source, "%.600s/%s/tree/%s", r->base, n->repo, r->commit);
    for (size_t i = 0; i < json_array_size(r->siblings); i++) {
        const char *path = path_at(r, i);
        if (is_first(path)) {
            return list_gguf(r, listing, message);
        }
    }
    return list_folder(r, listing, message);
}

static bool is_local(const char *url) {
    static const char *const LOCAL[] = {"http://127.0.0.1", "http://localhost", "http://[::1]"};
    for (size_t i = 0; i < sizeof LOCAL / sizeof *LOCAL; i++) {
        const size_t length = strlen(LOCAL[i]);
        if (strncmp(url, LOCAL[i], length) == 0 && (!url[length] || strchr(":/", url[length]))) {
            return true;
        }
    }
    return false;
}

int hub_list_hf(const hub_options *options, const hub_name *name, hub_listing *listing,
                char message[HUB_MESSAGE]) {
    const hub_transfer transfer = hub_transfer_of(options, HUB_KIND_HF);
    repository r = {.options = options, .name = name, .base = options->mirror ? options->mirror : HOST};
    char url[2 * HUB_NAME];
    json_t *answer;
    snprintf(listing->repo, sizeof listing->repo, "%s", name->repo);
    snprintf(listing->revision, sizeof listing->revision, "%s", name->revision);
    snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", r.base, name->repo, name->revision);
    if (transfer.token && strncmp(r.base, "https://", 8) != 0 && !is_local(r.base)) {
        return hub_fail(message, HUB_ERR_DENIED,
                        "%.300s: a token is not sent over http://, where others can read it: use https://",
                        r.base);
    }
    int code = hub_fetch_object(&transfer, url, NULL, &answer, message);
    if (code == HUB_ERR_NOT_FOUND) {
        return hub_fail(message, code, "hf:%s: there is no such repository, or no revision %s in it",
                        name->repo, name->revision);
    }
    if (code == HUB_ERR_DENIED) {
        return hub_fail(message, code, "hf:%s: refused: %s", name->repo,
                        transfer.token
                            ? "the token of --token-file has no access to it, or there is no such repository"
                            : "there is no such repository, or it is private and needs a token that may "
                              "read it: --token-file FILE");
    }
    code = code ? code : list_files(&r, answer, listing, message);
    json_decref(answer);
    return code;
}

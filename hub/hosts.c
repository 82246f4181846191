/* What the hosts have in common, and files that are named by their URL. */
#include "hosts.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hub_fail(char message[HUB_MESSAGE], int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, HUB_MESSAGE, format, arguments);
    va_end(arguments);
    for (char *c = message; *c; c++) { /* what a server says may hold anything */
        *c = iscntrl((unsigned char)*c) ? '?' : *c;
    }
    return code;
}

bool hub_is_hex(const char *text, size_t length) {
    size_t i = 0;
    while (text && i < length && isxdigit((unsigned char)text[i]) && !isupper((unsigned char)text[i])) {
        i++;
    }
    return text && i == length && !text[i];
}

char *hub_size_text(uint64_t bytes, char text[16]) {
    static const char UNITS[] = "kMGT";
    double value = (double)bytes / 1000;
    int unit = 0;
    while (value >= 999.95 && unit < 3) {
        value /= 1000;
        unit++;
    }
    snprintf(text, 16, "%.1f %cB", value, UNITS[unit]);
    return text;
}

hub_transfer hub_transfer_of(const hub_options *options, hub_kind kind) {
    hub_transfer transfer = options->transfer;
    if (kind != HUB_KIND_HF) {
        transfer.token = NULL;
    }
    return transfer;
}

int hub_fetch_object(const hub_transfer *transfer, const char *url, const char *accept, json_t **object,
                     char message[HUB_MESSAGE]) {
    enum { MOST = 32 << 20 };
    char *text;
    json_error_t error;
    *object = NULL;
    const int code = hub_fetch_text(transfer, url, accept, MOST, &text, message);
    if (code) {
        return code;
    }
    *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!json_is_object(*object)) {
        json_decref(*object);
        *object = NULL;
        return hub_fail(message, HUB_ERR_CONTENT, "%s: the answer is no JSON object", url);
    }
    return HUB_OK;
}

int hub_listing_add(hub_listing *listing, const hub_remote *remote, char message[HUB_MESSAGE]) {
    enum { MOST_PARTS = 10000 };
    const uint64_t most = (uint64_t)1 << 50;
    if (!hub_path_is_safe(remote->file)) {
        return hub_fail(message, HUB_ERR_CONTENT,
                        "%s: the server names a file \"%.100s\", which is no plain path", listing->repo,
                        remote->file);
    }
    if (remote->size > most || listing->bytes > most || listing->count == MOST_PARTS) {
        return hub_fail(message, HUB_ERR_CONTENT, "%s: %.100s: the server says %llu bytes", listing->repo,
                        remote->file, (unsigned long long)remote->size);
    }
    hub_part *parts = realloc(listing->parts, (listing->count + 1) * sizeof *parts);
    if (!parts) {
        return hub_fail(message, HUB_ERR_NOMEM, "%s: out of memory", listing->repo);
    }
    listing->parts = parts;
    hub_part *part = &parts[listing->count];
    memset(part, 0, sizeof *part);
    const size_t size = strlen(remote->folder) + strlen(remote->file) + 2;
    part->path = malloc(size);
    part->url = strdup(remote->url);
    part->size = remote->size;
    listing->count++;
    listing->bytes += remote->size;
    if (!part->path || !part->url) {
        return hub_fail(message, HUB_ERR_NOMEM, "%s: out of memory", listing->repo);
    }
    snprintf(part->path, size, "%s/%s", remote->folder, remote->file);
    if (remote->sha256 && *remote->sha256) {
        if (!hub_is_hex(remote->sha256, 64)) {
            return hub_fail(message, HUB_ERR_CONTENT,
                            "%s: %.100s: the server's SHA-256 is no 64 hexadecimal digits", listing->repo,
                            remote->file);
        }
        memcpy(part->sha256, remote->sha256, 65);
    }
    return HUB_OK;
}

void hub_listing_release(hub_listing *listing) {
    for (size_t i = 0; i < listing->count; i++) {
        free(listing->parts[i].path);
        free(listing->parts[i].url);
    }
    free(listing->parts);
    memset(listing, 0, sizeof *listing);
}

/* ---- files by their URL ----------------------------------------------------------------------------------
 */

int hub_list_url(const hub_options *options, const hub_name *name, hub_listing *listing,
                 char message[HUB_MESSAGE]) {
    const hub_transfer transfer = hub_transfer_of(options, HUB_KIND_URL);
    int part, parts, code = HUB_OK;
    const size_t stem = hub_gguf_stem(name->file, &part, &parts);
    const size_t root = strlen(name->url) - strlen(name->file);
    char folder[HUB_NAME];
    snprintf(listing->name, sizeof listing->name, "%s", name->url);
    snprintf(listing->source, sizeof listing->source, "%s", name->url);
    snprintf(listing->repo, sizeof listing->repo, "%s", name->repo);
    snprintf(listing->file, sizeof listing->file, "%s", name->file);
    snprintf(folder, sizeof folder, "url/%s", name->repo);
    hub_quant_label(name->file, listing->label);
    for (int i = 1; code == HUB_OK && i <= (parts ? parts : 1); i++) {
        char file[HUB_NAME], url[2 * HUB_NAME];
        if (parts) {
            snprintf(file, sizeof file, "%.*s-%05d-of-%05d.gguf", (int)stem, name->file, i, parts);
        } else {
            snprintf(file, sizeof file, "%s", name->file);
        }
        snprintf(url, sizeof url, "%.*s%s", (int)root, name->url, file);
        hub_head head = {0};
        code = hub_fetch_head(&transfer, url, 4, &head, message);
        if (code == HUB_OK && (head.length < 4 || memcmp(head.bytes, "GGUF", 4) != 0)) {
            code = hub_fail(message, HUB_ERR_CONTENT, "%s: what comes from there is no GGUF file", url);
        }
        const hub_remote remote = {.folder = folder, .file = file, .url = url, .size = head.total};
        code = code ? code : hub_listing_add(listing, &remote, message);
        if (code == HUB_OK && i == 1) {
            snprintf(listing->model, sizeof listing->model, "%s", listing->parts[0].path);
        }
        free(head.bytes);
    }
    return code;
}

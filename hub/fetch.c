/* From a name to what lies in the cache folder. */
#include "cache.h"
#include "hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int hub_look_up(const hub_options *options, const char *text, hub_listing *listing,
                char message[HUB_MESSAGE]) {
    static int (*const HOSTS[])(const hub_options *, const hub_name *, hub_listing *,
                                char *) = {hub_list_hf, hub_list_ollama, hub_list_url};
    hub_name name;
    memset(listing, 0, sizeof *listing);
    int code = hub_name_parse(text, &name, message);
    if (code == HUB_OK && options->offline) {
        code = hub_fail(message, HUB_ERR_NOT_FOUND, "%s: no host is asked with --offline", text);
    }
    code = code ? code : HOSTS[name.kind](options, &name, listing, message);
    if (code) {
        hub_listing_release(listing);
    }
    return code;
}

/* ---- fetching --------------------------------------------------------------------------------------------
 */

static bool is_there(const char *root, const hub_part *part) {
    char path[HUB_PATH];
    struct stat status;
    return hub_join(root, part->path, path) && stat(path, &status) == 0 && S_ISREG(status.st_mode) &&
           (part->size == 0 || (uint64_t)status.st_size == part->size);
}

/* The same bytes under another name of the cache, as an older commit has them. */
static void link_known(const hub_record *record, const char *root, const hub_part *part) {
    const json_t *files = json_object_get(record->json, "files");
    for (size_t i = 0; record->complete && i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *hash = json_string_value(json_object_get(file, "sha256"));
        const char *path = json_string_value(json_object_get(file, "path"));
        char from[HUB_PATH], to[HUB_PATH];
        if (hash && strcmp(hash, part->sha256) == 0 && hub_join(root, path, from) &&
            hub_join(root, part->path, to) && link(from, to) == 0) {
            return;
        }
    }
}

static void link_what_is_known(const hub_options *options, const char *root, const hub_listing *listing) {
    char ignored[HUB_MESSAGE];
    hub_record *records;
    size_t count;
    if (hub_cache_records(options, &records, &count, ignored)) {
        return;
    }
    for (size_t i = 0; i < listing->count; i++) {
        for (size_t k = 0; listing->parts[i].sha256[0] && k < count && !is_there(root, &listing->parts[i]);
             k++) {
            link_known(&records[k], root, &listing->parts[i]);
        }
    }
    hub_cache_release(records, count);
}

static int check_room(const char *root, const hub_listing *listing, char message[HUB_MESSAGE]) {
    struct statvfs disk;
    uint64_t needed = 0;
    char wanted[16], has[16];
    for (size_t i = 0; i < listing->count; i++) {
        char part[HUB_PATH + 32];
        struct stat status;
        snprintf(part, sizeof part, "%s/%s.part", root, listing->parts[i].path);
        const uint64_t begun = stat(part, &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
        const uint64_t size = is_there(root, &listing->parts[i]) ? 0 : listing->parts[i].size;
        needed += size > begun ? size - begun : 0;
    }
    if (statvfs(root, &disk) != 0 || (double)disk.f_bavail * (double)disk.f_frsize >= (double)needed) {
        return HUB_OK;
    }
    return hub_fail(message, HUB_ERR_DISK, "%s needs %s more, and %.200s has room for %s", listing->name,
                    hub_size_text(needed, wanted), root,
                    hub_size_text((uint64_t)disk.f_bavail * disk.f_frsize, has));
}

/* A file of another size under that name is not what the host has: it goes. */
static int download(const hub_options *options, const char *root, const hub_listing *listing,
                    char message[HUB_MESSAGE]) {
    char(*paths)[HUB_PATH] = malloc(listing->count * sizeof *paths);
    hub_file *files = calloc(listing->count, sizeof *files);
    const hub_transfer transfer =
        hub_transfer_of(options, strncmp(listing->model, "hf/", 3) == 0 ? HUB_KIND_HF : HUB_KIND_URL);
    int code = paths && files ? HUB_OK : hub_fail(message, HUB_ERR_NOMEM, "%s: out of memory", listing->name);
    size_t count = 0;
    for (size_t i = 0; code == HUB_OK && i < listing->count; i++) {
        const hub_part *part = &listing->parts[i];
        code = hub_make_folders(root, part->path, message);
        if (code || is_there(root, part)) {
            continue;
        }
        hub_join(root, part->path, paths[i]);
        unlink(paths[i]);
        files[count++] = (hub_file){part->url, paths[i], part->size, part->sha256[0] ? part->sha256 : NULL};
    }
    code = code || count == 0 ? code : hub_download(&transfer, files, count, message);
    free(paths);
    free(files);
    if (code == HUB_ERR_DENIED) {
        char why[HUB_MESSAGE];
        snprintf(why, sizeof why, "%s", message);
        hub_fail(message, code, "%s: refused%s%s (%.200s)", listing->name,
                 listing->gated ? ": it is gated: ask for access on its page" : "",
                 transfer.token ? "; the token of --token-file has no access to it"
                                : "; give a token that may read it with --token-file FILE",
                 why);
    }
    return code;
}

static int pull(const hub_options *options, const char *root, const hub_listing *listing,
                char message[HUB_MESSAGE]) {
    bool all = true;
    for (size_t i = 0; i < listing->count; i++) {
        all = all && is_there(root, &listing->parts[i]);
    }
    if (all) {
        return hub_write_record(root, listing, true, message);
    }
    int code = check_room(root, listing, message);
    code = code ? code : hub_write_record(root, listing, false, message);
    if (code) {
        return code;
    }
    link_what_is_known(options, root, listing);
    code = download(options, root, listing, message);
    return code ? code : hub_write_record(root, listing, true, message);
}

int hub_pull(const hub_options *options, const hub_listing *listing, char **path, char message[HUB_MESSAGE]) {
    enum { TRIES = 3 };
    char root[HUB_PATH], whole[HUB_PATH];
    hub_lock lock = {.file = -1};
    *path = NULL;
    int code = hub_cache_folder(options, root, message);
    for (int i = 0; i < TRIES && code == HUB_OK && lock.file < 0;
         i++) { /* who removes takes empty folders away */
        char last[HUB_MESSAGE];
        code = hub_make_folders(root, listing->model, message);
        const int locked =
            code ? code : hub_lock_model(root, listing->model, &options->transfer, &lock, last);
        if (code == HUB_OK && locked && (locked != HUB_ERR_DISK || i == TRIES - 1)) {
            code = hub_fail(message, locked, "%s", last);
        }
    }
    if (code) {
        return code;
    }
    code = pull(options, root, listing, message);
    hub_unlock(&lock);
    if (code == HUB_OK && !(hub_join(root, listing->model, whole) && (*path = strdup(whole)))) {
        code = hub_fail(message, HUB_ERR_NOMEM, "%s: out of memory", listing->name);
    }
    return code;
}

/* ---- the whole way ---------------------------------------------------------------------------------------
 */

/* The model of that name in the cache that was pulled last; *path is NULL without one. `others`: names of
 * what else is there of the same repository. */
static int find(const hub_options *options, const char *name, char **path, char others[160],
                char message[HUB_MESSAGE]) {
    char root[HUB_PATH];
    hub_record *records;
    size_t count, used = 0;
    const hub_record *best = NULL;
    int code = hub_cache_records(options, &records, &count, message);
    *path = NULL;
    others[0] = '\0';
    for (size_t i = 0; code == HUB_OK && i < count; i++) {
        if (records[i].complete && hub_cache_matches(&records[i], name, true)) {
            best = !best || records[i].pulled > best->pulled ? &records[i] : best;
        } else if (records[i].complete && hub_cache_matches(&records[i], name, false) && used < 100) {
            used +=
                (size_t)snprintf(others + used, 160 - used, "%s%.100s", used ? ", " : "", records[i].name);
            used = used < 160 ? used : 159;
        }
    }
    if (best) {
        *path = strdup(best->path);
        code = *path ? hub_cache_folder(options, root, message)
                     : hub_fail(message, HUB_ERR_NOMEM, "%s: out of memory", name);
    }
    if (best && code == HUB_OK) {
        hub_touch_record(root, best->model);
    }
    hub_cache_release(records, count);
    return code;
}

int hub_resolve(const hub_options *options, const char *text, char **path, char message[HUB_MESSAGE]) {
    hub_name name;
    hub_listing listing;
    char others[160];
    *path = NULL;
    if (!hub_is_name(text)) {
        *path = strdup(text);
        return *path ? HUB_OK : hub_fail(message, HUB_ERR_NOMEM, "%.100s: out of memory", text);
    }
    int code = hub_name_parse(text, &name, message);
    code = code ? code : find(options, text, path, others, message);
    if (code || *path) {
        return code;
    }
    if (options->offline) {
        return hub_fail(message, HUB_ERR_NOT_FOUND,
                        "%.200s is not in the cache, and --offline fetches nothing%s%s: sluice pull %.200s",
                        text, *others ? "; there is " : "", others, text);
    }
    code = hub_look_up(options, text, &listing, message);
    if (code == HUB_OK) {
        code = hub_pull(options, &listing, path, message);
        hub_listing_release(&listing);
    }
    return code;
}

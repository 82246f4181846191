/* sluice pull: models by name into the cache. */
#define _GNU_SOURCE
#include "models.h"

#include <stdlib.h>
#include <string.h>

typedef struct pulling {
    const settings *settings;
    hub_options options;
    fetch_bar bar;
    machine_rates rates;
    json_t *results; /* of -o json */
} pulling;

static bool as_json(const pulling *p) {
    return strcmp(p->settings->output, "json") == 0;
}

static json_t *files_json(const hub_listing *listing) {
    json_t *files = json_array();
    for (size_t i = 0; i < listing->count; i++) {
        const hub_part *part = &listing->parts[i];
        json_array_append_new(files, json_pack("{s:s, s:I, s:s*}", "path", part->path, "bytes",
                                               (json_int_t)part->size, "sha256",
                                               part->sha256[0] ? part->sha256 : NULL));
    }
    return files;
}

/* What would come, whether it fits and how fast it would be. */
static int dry_run(pulling *p, const char *name, const hub_listing *listing) {
    char message[HUB_MESSAGE], size[16];
    model_row row;
    measure_machine(&p->rates);
    const int code = judge_remote(&p->options, listing, &p->rates, &row, message);
    fetch_end(&p->bar);
    if (code) {
        return fail_fetch(p->settings, code, name, message);
    }
    if (as_json(p)) {
        json_t *result =
            json_pack("{s:s, s:s, s:b, s:I, s:o}", "name", listing->name, "source", listing->source,
                      "dry_run", 1, "bytes", (json_int_t)listing->bytes, "files", files_json(listing));
        json_t *more = fit_json(&row.fit);
        json_object_update(result, more);
        json_decref(more);
        return json_array_append_new(p->results, result) ? fail("out of memory") : DONE;
    }
    for (size_t i = 0; i < listing->count; i++) {
        printf("%9s  %s\n", size_text(listing->parts[i].size, size), listing->parts[i].path);
    }
    return print_rows(p->settings, &row, 1, &p->rates);
}

static int fetch(pulling *p, const char *name, const hub_listing *listing) {
    char message[HUB_MESSAGE], size[16], *path;
    const int code = hub_pull(&p->options, listing, &path, message);
    fetch_end(&p->bar);
    if (code) {
        return fail_fetch(p->settings, code, name, message);
    }
    if (as_json(p)) {
        json_t *result = json_pack("{s:s, s:s, s:s, s:b, s:I, s:o}", "name", listing->name, "source",
                                   listing->source, "path", path, "dry_run", 0, "bytes",
                                   (json_int_t)listing->bytes, "files", files_json(listing));
        free(path);
        return json_array_append_new(p->results, result) ? fail("out of memory") : DONE;
    }
    printf("%s: %s in %s\n", listing->name, size_text(listing->bytes, size), path);
    free(path);
    return DONE;
}

static int pull_one(pulling *p, const char *name) {
    char message[HUB_MESSAGE];
    hub_listing listing;
    if (!hub_is_name(name)) {
        fail("pull: %s is no model's name: hf:OWNER/REPO[:QUANT], ollama:NAME[:TAG] and "
             "https://HOST/PATH.gguf are",
             name);
        return WRONG_USAGE;
    }
    p->bar = (fetch_bar){.label = name};
    int code = hub_look_up(&p->options, name, &listing, message);
    fetch_end(&p->bar);
    if (code) {
        return fail_fetch(p->settings, code, name, message);
    }
    p->bar.label = listing.name;
    if (listing.left_out[0]) {
        fail("%s: left out, as sluice does not read it: %s", listing.name, listing.left_out);
    }
    code = p->settings->dry_run ? dry_run(p, name, &listing) : fetch(p, name, &listing);
    hub_listing_release(&listing);
    return code;
}

int pull_command(const settings *s) {
    static char token[TOKEN_SIZE];
    pulling p = {.settings = s, .results = json_array()};
    int code = hub_settings(s, &p.bar, token, &p.options);
    catch_ending();
    for (int i = 0; code == DONE && i < s->argument_count; i++) {
        code = pull_one(&p, s->arguments[i]);
    }
    if (code == DONE && as_json(&p)) {
        return print_json(p.results);
    }
    json_decref(p.results);
    return code;
}

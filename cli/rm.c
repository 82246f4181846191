/* sluice rm: models out of the cache. */
#define _GNU_SOURCE
#include "models.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct removal {
    const settings *settings;
    hub_options options;
    hub_record *records;
    size_t count;
    bool *chosen; /* [count] */
} removal;

/* Marks what the names mean; each must mean something. */
static int choose(removal *r) {
    const settings *s = r->settings;
    for (int i = 0; i < s->argument_count; i++) {
        const char *name = s->arguments[i];
        bool found = false;
        if (!hub_is_name(name)) {
            fail("rm: %s is no model's name; rm removes models that `sluice list` shows, and no other file",
                 name);
            return WRONG_USAGE;
        }
        for (size_t k = 0; k < r->count; k++) {
            const bool means = hub_cache_matches(&r->records[k], name, false);
            found |= means;
            r->chosen[k] |= means;
        }
        if (!found) {
            return fail("rm: %s is not in the cache (sluice list shows what is)", name);
        }
    }
    for (size_t k = 0; is_given(s, "--unused") && k < r->count; k++) {
        const double days = ((double)time(NULL) - r->records[k].used) / 86400;
        r->chosen[k] |= !r->records[k].busy && days >= s->unused && s->argument_count == 0;
        r->chosen[k] &= days >= s->unused;
    }
    return DONE;
}

static bool agreed(const removal *r) {
    char size[16], answer[16] = "";
    uint64_t bytes = 0;
    for (size_t k = 0; k < r->count; k++) {
        if (r->chosen[k]) {
            bytes += r->records[k].there;
            fprintf(stderr, "  %s  %s\n", r->records[k].name, size_text(r->records[k].there, size));
        }
    }
    fprintf(stderr, "Remove %s? [y/N] ", size_text(bytes, size));
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int remove_chosen(const removal *r) {
    char message[HUB_MESSAGE], size[16];
    uint64_t freed, all = 0;
    int code = DONE;
    size_t removed = 0;
    for (size_t k = 0; k < r->count; k++) {
        if (!r->chosen[k]) {
            continue;
        }
        if (hub_cache_remove(&r->options, &r->records[k], &freed, message)) {
            code = fail("rm: %s", message);
            continue;
        }
        removed++;
        all += freed;
        printf("%s: removed\n", r->records[k].name);
    }
    printf("%zu model%s, %llu bytes came free (%s)\n", removed, removed == 1 ? "" : "s",
           (unsigned long long)all, size_text(all, size));
    return code;
}

int rm_command(const settings *s) {
    removal r = {.settings = s};
    fetch_bar bar = {.label = "rm"};
    char message[HUB_MESSAGE], token[TOKEN_SIZE];
    if (s->argument_count == 0 && !is_given(s, "--unused")) {
        fail("rm wants NAME... or --unused DAYS (see sluice rm --help)");
        return WRONG_USAGE;
    }
    int code = hub_settings(s, &bar, token, &r.options);
    if (code != DONE) {
        return code;
    }
    if (hub_cache_records(&r.options, &r.records, &r.count, message)) {
        return fail("%s", message);
    }
    r.chosen = calloc(r.count + 1, sizeof *r.chosen);
    code = r.chosen ? choose(&r) : fail("rm: out of memory");
    if (code == DONE && !s->yes && isatty(STDIN_FILENO) && !agreed(&r)) {
        code = fail("rm: nothing was removed");
    }
    code = code == DONE ? remove_chosen(&r) : code;
    free(r.chosen);
    hub_cache_release(r.records, r.count);
    return code;
}

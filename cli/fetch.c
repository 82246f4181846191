/* Models by name in place of files: options of the hub, progress, and names that become paths. */
#define _GNU_SOURCE
#include "models.h"
#include "options.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- progress --------------------------------------------------------------------------------------------
 */

char *size_text(uint64_t bytes, char text[16]) {
    static const char UNITS[] = "kMGT";
    double value = (double)bytes / 1000;
    int unit = 0;
    if (bytes < 1000) {
        snprintf(text, 16, "%d B", (int)bytes);
        return text;
    }
    while (value >= 999.95 && unit < 3) {
        value /= 1000;
        unit++;
    }
    snprintf(text, 16, "%.1f %cB", value, UNITS[unit]);
    return text;
}

static void describe(const hub_progress *p, char text[160]) {
    char done[16], total[16], rate[16];
    int used = p->total
                   ? snprintf(text, 160, "%3d %% %s of %s", (int)((double)p->done / (double)p->total * 100),
                              size_text(p->done, done), size_text(p->total, total))
                   : snprintf(text, 160, "%s", size_text(p->done, done));
    if (p->bytes_a_second > 0) {
        used +=
            snprintf(text + used, 160 - (size_t)used, ", %s/s", size_text((uint64_t)p->bytes_a_second, rate));
    }
    if (p->seconds_left > 0 && p->seconds_left < 360000) {
        const int left = (int)(p->seconds_left + 0.5);
        used += snprintf(text + used, 160 - (size_t)used, ", %d:%02d:%02d left", left / 3600, left / 60 % 60,
                         left % 60);
    }
    if (p->doing && strcmp(p->doing, "fetching") != 0) {
        snprintf(text + used, 160 - (size_t)used, ", %.20s", p->doing);
    }
}

/* hub_progress_function. */
static bool show(void *context, const hub_progress *p) {
    enum { WIDTH = 24 };
    fetch_bar *bar = context;
    const bool terminal = isatty(STDERR_FILENO), waits = p->doing && strcmp(p->doing, "locked") == 0;
    const double now = seconds_now();
    char text[160];
    if (!bar->began) {
        bar->began = true;
        bar->drawn = terminal ? 0 : now;
    }
    if (now - bar->drawn < (terminal ? 0.1 : 10)) {
        return !interrupted();
    }
    bar->drawn = now;
    describe(p, text);
    if (waits) {
        snprintf(text, sizeof text, "waiting for another process that fetches it");
    }
    if (!terminal) {
        fprintf(stderr, "sluice: %s: %s\n", bar->label, text + strspn(text, " "));
        return !interrupted();
    }
    const int filled = p->total ? (int)((double)p->done / (double)p->total * WIDTH) : 0;
    fprintf(stderr, "\r%.60s [%.*s%*s] %s\033[K", bar->label, filled, "########################",
            WIDTH - filled, "", text);
    fflush(stderr);
    bar->visible = true;
    return !interrupted();
}

void fetch_end(fetch_bar *bar) {
    if (bar->visible) {
        fprintf(stderr, "\r\033[K");
    }
    bar->visible = bar->began = false;
}

/* ---- options ---------------------------------------------------------------------------------------------
 */

/* The file's only word, which is never printed. */
static int read_token(const char *path, char token[TOKEN_SIZE]) {
    struct stat status;
    size_t length;
    char *text = read_all(path, &length);
    if (!text) {
        return FAILED;
    }
    size_t begin = 0;
    while (begin < length && strchr(" \t\r\n", text[begin])) {
        begin++;
    }
    size_t end = begin;
    while (end < length && text[end] > 32 && text[end] < 127) {
        end++;
    }
    size_t rest = end;
    while (rest < length && text[rest] && strchr(" \t\r\n", text[rest])) {
        rest++;
    }
    const bool good = rest == length && end > begin && end - begin < TOKEN_SIZE;
    snprintf(token, TOKEN_SIZE, "%.*s", good ? (int)(end - begin) : 0, text + begin);
    free(text);
    if (!good) {
        return fail("%s: --token-file must hold one token of printable characters, at most %d", path,
                    TOKEN_SIZE - 1);
    }
    if (stat(path, &status) == 0 && (status.st_mode & 077)) {
        fail("%s: others can read this token: chmod 600 %s", path, path);
    }
    return DONE;
}

static int check_mirror(const char *mirror) {
    const char *host = strncmp(mirror, "http://", 7) == 0    ? mirror + 7
                       : strncmp(mirror, "https://", 8) == 0 ? mirror + 8
                                                             : "";
    if (!*host || strlen(mirror) > 256 || strpbrk(mirror, " \t\r\n?#@") ||
        mirror[strlen(mirror) - 1] == '/') {
        fail("--mirror wants http://HOST[:PORT] or https://HOST[:PORT], with or without a path and no / at "
             "its end, not "
             "\"%.300s\"",
             mirror);
        return WRONG_USAGE;
    }
    return DONE;
}

int hub_settings(const settings *s, fetch_bar *bar, char token[TOKEN_SIZE], hub_options *options) {
    int code = s->mirror ? check_mirror(s->mirror) : DONE;
    code = code == DONE && s->token_file ? read_token(s->token_file, token) : code;
    *options = (hub_options){
        .cache = s->cache_folder,
        .mirror = s->mirror,
        .offline = s->offline,
        .transfer = {.token = s->token_file ? token : NULL,
                     .connections = s->connections,
                     .progress = show,
                     .context = bar},
    };
    return code;
}

int fail_fetch(const settings *s, int code, const char *name, const char *message) {
    (void)s;
    if (code == HUB_ERR_STOPPED) {
        return fail("%s: stopped; what was fetched is kept: run it again to go on", name);
    }
    fail("%s%s", message, code == HUB_ERR_NETWORK ? " (run it again to go on)" : "");
    return code == HUB_ERR_NAME ? WRONG_USAGE : FAILED;
}

/* ---- names in place of paths -----------------------------------------------------------------------------
 */

/* *text: becomes the path if it is a name. */
static int resolve(settings *s, const char **text) {
    static char token[TOKEN_SIZE];
    fetch_bar bar = {.label = *text};
    hub_options options;
    char message[HUB_MESSAGE], *path;
    if (!*text || !hub_is_name(*text)) {
        return DONE;
    }
    int code = hub_settings(s, &bar, token, &options);
    if (code != DONE) {
        return code;
    }
    catch_interrupt();
    const int status = hub_resolve(&options, *text, &path, message);
    release_interrupt();
    fetch_end(&bar);
    if (status) {
        return fail_fetch(s, status, *text, message);
    }
    *text = keep_text(s, path);
    free(path);
    return *text ? DONE : fail("out of memory");
}

/* llama.cpp's -hf REPO[:QUANT] and --hf-file as one name. */
static const char *name_of_repo(settings *s, const char *repo, const char *file) {
    char name[HUB_NAME];
    const int length = file ? (int)strcspn(repo, ":") : (int)strlen(repo);
    snprintf(name, sizeof name, "hf:%.*s%s%s", length, repo, file ? "/" : "", file ? file : "");
    return keep_text(s, name);
}

static int take_model(const command *command, settings *s, const char *option, const char *name) {
    if (!name) {
        return fail("out of memory");
    }
    if (!(command->bit & (IN_SERVE | IN_BENCH)) && is_given(s, "-m")) {
        fail("%s: the model is given twice: with -m and with %s", command->name, option);
        return WRONG_USAGE;
    }
    return set_option(command, "-m", name, s);
}

static int take_llama_names(const command *command, settings *s) {
    int code = DONE;
    if (s->hf_file && !s->hf_repo) {
        fail("%s: --hf-file needs --hf-repo OWNER/REPO", command->name);
        return WRONG_USAGE;
    }
    if (s->hf_repo) {
        code = take_model(command, s, "--hf-repo", name_of_repo(s, s->hf_repo, s->hf_file));
    }
    if (code == DONE && s->model_url) {
        code = take_model(command, s, "--model-url", s->model_url);
    }
    if (code == DONE && s->hf_draft && !(s->draft = name_of_repo(s, s->hf_draft, NULL))) {
        code = fail("out of memory");
    }
    return code;
}

int resolve_models(const command *command, settings *s) {
    int code = take_llama_names(command, s);
    code = code == DONE && (command->bit & IN_NAMES) ? resolve(s, &s->model) : code;
    code = code == DONE ? resolve(s, &s->draft) : code;
    for (int i = 0; code == DONE && i < s->models.count; i++) {
        code = resolve(s, &s->models.items[i]);
    }
    if (code == DONE && command->bit == IN_QUANTIZE && s->argument_count > 0) {
        code = resolve(s, &s->arguments[0]);
    }
    return code;
}

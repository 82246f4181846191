/* sluice load: what the command line says, as the load generator wants it. */
#define _GNU_SOURCE
#include "cli.h"

#include "load/load.h"
#include "plot/plot.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_REQUESTS = 200, DEFAULT_SECONDS = 60, DEFAULT_PROMPT = 128 };

typedef struct sweep {
    double rates[LIST_ITEMS]; /* 0: none */
    int32_t concurrencies[LIST_ITEMS];
    size_t count;
} sweep;

/* What the options point into, and what comes of them. */
typedef struct job {
    load_options options;
    sweep sweep;
    char *key, *prompts;
    json_t *extra;
    double drawn; /* when the line of progress was */
    load_result results[LIST_ITEMS];
    size_t done;
} job;

static int wrong(const char *option, const char *wants, const char *text) {
    fail("load: %s wants %s, not \"%s\"", option, wants, text);
    return WRONG_USAGE;
}

/* ---- values ----------------------------------------------------------------------------------------------
 */

/* "1,2.5,4" of numbers from `least`; the count, or 0: it is none. */
static size_t parse_numbers(const char *text, double least, double most, double numbers[LIST_ITEMS]) {
    size_t count = 0;
    for (const char *at = text; count < LIST_ITEMS; at++) {
        char *end;
        const double value = strtod(at, &end);
        if (end == at || !(value >= least && value <= most)) {
            return 0;
        }
        numbers[count++] = value;
        at = end;
        if (*at != ',') {
            return *at ? 0 : count;
        }
    }
    return 0;
}

static int parse_sweep(const settings *s, sweep *sweep) {
    double rates[LIST_ITEMS] = {0}, places[LIST_ITEMS] = {s->rates ? 0 : 1};
    const size_t rate_count = s->rates ? parse_numbers(s->rates, 1e-6, 1e6, rates) : 1;
    size_t place_count = s->concurrencies ? parse_numbers(s->concurrencies, 1, LOAD_RUNNING, places) : 1;
    for (size_t i = 0; i < place_count; i++) {
        place_count = places[i] == floor(places[i]) ? place_count : 0;
    }
    if (rate_count == 0) {
        return wrong("--rate", "numbers above 0, at most 32 with commas", s->rates);
    }
    if (place_count == 0) {
        return wrong("--concurrency", "whole numbers from 1 to 16000, at most 32 with commas",
                     s->concurrencies);
    }
    if (rate_count > 1 && place_count > 1) {
        fail("load: --rate and --concurrency both have several values; one of them can be a sweep");
        return WRONG_USAGE;
    }
    sweep->count = rate_count > place_count ? rate_count : place_count;
    for (size_t i = 0; i < sweep->count; i++) {
        sweep->rates[i] = rates[rate_count > 1 ? i : 0];
        sweep->concurrencies[i] = (int32_t)places[place_count > 1 ? i : 0];
    }
    return DONE;
}

/* "128" or "128:32". */
static int parse_length(const char *option, const char *text, double least, load_length *length) {
    char *end;
    length->mean = strtod(text, &end);
    bool right = end != text && length->mean >= least && length->mean <= 1e7;
    length->deviation = 0;
    if (right && *end == ':') {
        const char *deviation = end + 1;
        length->deviation = strtod(deviation, &end);
        right = end != deviation && length->deviation >= 0 && length->deviation <= 1e7;
    }
    return right && !*end ? DONE
                          : wrong(option, "tokens as in 128, or 128:32 with a standard deviation", text);
}

static int parse_ids(const settings *s, load_options *o) {
    const char *text = s->token_ids;
    char *end = NULL;
    if (!text) {
        return DONE;
    }
    const long least = strtol(text, &end, 10);
    const char *second = end + 1;
    if (end == text || *end != '-' || least < 0) {
        return wrong("--token-ids", "the least and the greatest id, as in 1000-30000", text);
    }
    const long most = strtol(second, &end, 10);
    if (end == second || *end || most < least || most < 1 || most > INT32_MAX) {
        return wrong("--token-ids", "the least and the greatest id, as in 1000-30000", text);
    }
    if (!o->completions || s->prompts_file || o->turns > 1) {
        fail("load: --token-ids goes with --endpoint completions, and without --prompts and --turns");
        return WRONG_USAGE;
    }
    o->id_least = (int32_t)least;
    o->id_most = (int32_t)most;
    return DONE;
}

static int parse_objective(const char *text, load_objective *objective) {
    static const char WANTS[] = "ttft, itl, tpot or e2e with milliseconds, as in ttft:200,e2e:5000";
    const struct {
        const char *name;
        double *bound;
    } bounds[] = {{"ttft:", &objective->first},
                  {"itl:", &objective->gap},
                  {"tpot:", &objective->token},
                  {"e2e:", &objective->whole},
                  {"e2el:", &objective->whole}};
    for (const char *at = text; at;) {
        double *bound = NULL;
        for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
            bound = strncmp(at, bounds[i].name, strlen(bounds[i].name)) == 0 ? bounds[i].bound : bound;
        }
        const char *number = strchr(at, ':');
        char *end = NULL;
        const double value = bound ? strtod(number + 1, &end) : 0;
        if (!bound || end == number + 1 || !(value > 0 && value < 1e9) || (*end && *end != ',')) {
            return wrong("--objective", WANTS, text);
        }
        *bound = value;
        at = *end ? end + 1 : NULL;
    }
    return DONE;
}

static int parse_body(const char *text, json_t **extra) {
    json_error_t error;
    *extra = text ? json_loads(text, 0, &error) : NULL;
    return !text || json_is_object(*extra) ? DONE : wrong("--body", "a JSON object", text);
}

/* The first line of a file, without blanks at its ends. */
static int read_key(const char *path, char **key) {
    size_t length;
    *key = NULL;
    if (!path) {
        return DONE;
    }
    char *text = read_all(path, &length);
    char *copy = text ? strndup(text, length) : NULL;
    free(text);
    if (!copy) {
        return FAILED;
    }
    const char *begin = copy + strspn(copy, " \t\r\n");
    *key = strndup(begin, strcspn(begin, " \t\r\n"));
    free(copy);
    if (!*key || !**key) {
        return fail("load: %s: there is no key in it", path);
    }
    return DONE;
}

static int read_prompt_file(const settings *s, job *job) {
    load_options *o = &job->options;
    if (s->prompts_file && s->prompt_tokens) {
        fail("load: --prompts and --prompt-tokens both say what is asked; give one of them");
        return WRONG_USAGE;
    }
    if (!s->prompts_file) {
        o->prompt.mean = DEFAULT_PROMPT;
        return s->prompt_tokens ? parse_length("--prompt-tokens", s->prompt_tokens, 1, &o->prompt) : DONE;
    }
    job->prompts = read_all(s->prompts_file, &o->prompts_length);
    o->prompts = job->prompts;
    o->prompts_name = s->prompts_file;
    return job->prompts ? DONE : FAILED;
}

static int check_headers(const text_list *headers) {
    for (int i = 0; i < headers->count; i++) {
        const char *colon = strchr(headers->items[i], ':');
        if (!colon || colon == headers->items[i] || strpbrk(headers->items[i], "\r\n")) {
            return wrong("--header", "a name, a colon and a value", headers->items[i]);
        }
    }
    return DONE;
}

/* ---- progress --------------------------------------------------------------------------------------------
 */

static bool show(void *context, const load_progress *p) {
    job *job = context;
    if (isatty(STDERR_FILENO) && p->seconds - job->drawn > 0.5) {
        job->drawn = p->seconds;
        fprintf(stderr, "\r%4.0f s: %lld done, %lld running", p->seconds, (long long)p->done,
                (long long)p->running);
        if (p->failed > 0) {
            fprintf(stderr, ", %lld failed", (long long)p->failed);
        }
        fprintf(stderr, ", %.0f tokens%s\033[K", p->tokens, p->warm ? "" : " (warming up)");
    }
    return !interrupted();
}

static void end_progress(const job *job) {
    if (job->drawn > 0) {
        fprintf(stderr, "\r\033[K");
    }
}

/* ---- the command -----------------------------------------------------------------------------------------
 */

static int fill_options(const settings *s, job *job) {
    const bool unbounded = s->requests == 0 && s->seconds <= 0;
    job->options = (load_options){
        .url = s->arguments[0],
        .model = s->model,
        .completions = strcmp(s->endpoint, "completions") == 0,
        .headers = s->headers.items,
        .header_count = (size_t)s->headers.count,
        .ca_file = s->ca_file,
        .requests = unbounded ? DEFAULT_REQUESTS : s->requests,
        .seconds = unbounded ? DEFAULT_SECONDS : s->seconds,
        .warmup = s->warmup,
        .timeout = s->timeout,
        .burstiness = s->burstiness,
        .shared = s->shared,
        .groups = s->groups,
        .turns = s->turns,
        .think = s->think,
        .ignore_eos = s->ignore_eos,
        .temperature = s->sent_temperature,
        .abort_share = s->abort_share,
        .seed = s->seed,
        .progress = show,
        .progress_context = job,
    };
    load_options *o = &job->options;
    int code = parse_sweep(s, &job->sweep);
    code = code == DONE ? parse_length("--max-tokens", s->max_tokens, 0, &o->answer) : code;
    code = code == DONE ? parse_ids(s, o) : code;
    code = code == DONE && s->objective ? parse_objective(s->objective, &o->objective) : code;
    code = code == DONE ? parse_body(s->body, &job->extra) : code;
    code = code == DONE ? check_headers(&s->headers) : code;
    code = code == DONE ? read_prompt_file(s, job) : code;
    code = code == DONE ? read_key(s->api_key_file, &job->key) : code;
    o->key = job->key;
    o->extra = job->extra;
    return code;
}

static FILE *open_trace(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        fail("load: --trace %s: is there, and is no regular file", path);
        return NULL;
    }
    FILE *trace = fopen(path, "we");
    if (!trace) {
        fail("load: --trace %s: %s", path, strerror(errno));
    }
    return trace;
}

static int print_results(const settings *s, const load *load, const job *job) {
    if (strcmp(s->output, "json") != 0) {
        if (job->sweep.count == 1) {
            load_print(stdout, load, &job->results[0]);
        } else {
            load_print_sweep(stdout, load, job->results, job->done);
        }
        return DONE;
    }
    json_t *list = json_array();
    for (size_t i = 0; list && i < job->done; i++) {
        if (json_array_append_new(list, load_json(load, &job->results[i]))) {
            json_decref(list);
            list = NULL;
        }
    }
    if (list && job->sweep.count == 1) {
        json_t *only = json_incref(json_array_get(list, 0));
        json_decref(list);
        list = only;
    }
    return print_json(list);
}

/* What a reader of the figures must know; the exit code that follows from them. */
static int warn(const job *job) {
    char line[LOAD_MESSAGE];
    int code = DONE;
    bool measured = job->done > 0;
    for (size_t i = 0; i < job->done; i++) {
        const load_result *r = &job->results[i];
        if (load_was_late(r, line)) {
            fprintf(stderr, "sluice: load: warning: ");
            if (job->sweep.count > 1) {
                fprintf(stderr, "at %.10g: ", r->rate > 0 ? r->rate : (double)r->concurrency);
            }
            fprintf(stderr, "%s\n", line);
        }
        code = r->failed > 0 ? FAILED : code;
        measured = measured && r->done + r->failed + r->aborted > 0;
    }
    return measured ? code : fail("load: no request ended in the time that counts");
}

static int run_sweep(const settings *s, load *load, job *job) {
    char message[LOAD_MESSAGE];
    int code = DONE;
    for (size_t i = 0; i < job->sweep.count && code == DONE && !interrupted(); i++) {
        job->drawn = 0;
        if (load_run(load, job->sweep.rates[i], job->sweep.concurrencies[i], &job->results[i], message)) {
            code = fail("load: %s", message);
        } else {
            job->done++;
        }
        end_progress(job);
    }
    if (job->done == 0) {
        return code;
    }
    int printed = print_results(s, load, job);
    if (s->plot && load_plot(s->plot, load, job->results, job->done, message)) {
        printed = fail("load: %s", message);
    }
    const int warned = warn(job);
    return code != DONE ? code : printed != DONE ? printed : warned;
}

static int open_and_run(const settings *s, job *job) {
    char message[LOAD_MESSAGE];
    load *load;
    if (s->plot && plot_check(s->plot, message)) {
        return fail("load: --plot %s", message);
    }
    if (s->trace && !(job->options.trace = open_trace(s->trace))) {
        return FAILED;
    }
    int code = load_open(&job->options, &load, message) ? fail("load: %s", message) : DONE;
    if (code == DONE) {
        code = run_sweep(s, load, job);
        load_close(load);
    }
    if (job->options.trace && fclose(job->options.trace)) {
        code = fail("load: --trace %s: cannot write: %s", s->trace, strerror(errno));
    }
    return code;
}

int load_command(const settings *s) {
    static job job;
    struct rlimit files;
    int code = fill_options(s, &job);
    if (code == DONE) {
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
            files.rlim_cur = files.rlim_max; /* one for each client */
            setrlimit(RLIMIT_NOFILE, &files);
        }
        signal(SIGPIPE, SIG_IGN); /* a server that hangs up is a failed request */
        catch_interrupt();
        code = open_and_run(s, &job);
        release_interrupt();
    }
    for (size_t i = 0; i < job.done; i++) {
        load_result_free(&job.results[i]);
    }
    json_decref(job.extra);
    free(job.prompts);
    free(job.key);
    return code;
}

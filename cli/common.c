/* Errors, input, progress, sessions and requests: what several commands do alike. */
#define _GNU_SOURCE
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- errors and time -------------------------------------------------------------------------------------
 */

int fail(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (char *at = line; *at; at++) {
        *at = *at == '\n' || *at == '\r' ? ' ' : *at; /* a text from the command line may have some */
    }
    fprintf(stderr, "sluice: %s\n", line);
    return FAILED;
}

int fail_with(const sluice_error *error) {
    return fail("%s", error->message);
}

void notice(const settings *settings, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (settings->verbose || isatty(STDERR_FILENO)) {
        fail("%s", line);
    }
}

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- input and output ------------------------------------------------------------------------------------
 */

static char *read_stream(FILE *stream, const char *name, size_t *length) {
    enum { MOST = 256 << 20 }; /* bytes: more than any model reads, and a pipe may have no end */
    size_t capacity = 1 << 16, used = 0, got;
    char *data = malloc(capacity);
    while (data && (got = fread(data + used, 1, capacity - used, stream)) > 0) {
        used += got;
        if (used > MOST) {
            fail("%s: more than %d MiB of text", name, MOST >> 20);
            free(data);
            return NULL;
        }
        if (used == capacity) {
            char *larger = capacity <= SIZE_MAX / 2 ? realloc(data, capacity *= 2) : NULL;
            if (!larger) {
                free(data);
            }
            data = larger;
        }
    }
    if (!data) {
        fail("%s: out of memory", name);
    } else if (ferror(stream)) {
        fail("%s: cannot read: %s", name, strerror(errno));
        free(data);
        data = NULL;
    }
    *length = used;
    return data;
}

/* A regular file; a pipe or a device might never answer, nor end. NULL after a message. */
static FILE *open_regular(const char *path) {
    struct stat status = {0};
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
        fail("%s: %s", path, strerror(errno));
    } else if (S_ISFIFO(status.st_mode)) {
        fail("%s: a pipe; to read one, give it on standard input and `-` as the file", path);
    } else if (!S_ISREG(status.st_mode)) {
        fail("%s: %s, not a regular file", path, S_ISDIR(status.st_mode) ? "a folder" : "a device or socket");
    } else {
        FILE *file = fdopen(descriptor, "rb");
        if (file) {
            return file;
        }
        fail("%s: %s", path, strerror(errno));
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    return NULL;
}

char *read_all(const char *path, size_t *length) {
    if (!path || strcmp(path, "-") == 0) {
        return read_stream(stdin, "standard input", length);
    }
    FILE *file = open_regular(path);
    if (!file) {
        return NULL;
    }
    char *data = read_stream(file, path, length);
    fclose(file);
    return data;
}

int print_json(json_t *value) {
    char *text = value ? json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(value);
    if (!text) {
        return fail("out of memory for JSON");
    }
    puts(text);
    free(text);
    return DONE;
}

/* ---- interrupts and progress -----------------------------------------------------------------------------
 */

static volatile sig_atomic_t interrupt_flag;

static void on_interrupt(int signal) {
    (void)signal;
    interrupt_flag = 1;
}

void catch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_interrupt};
    interrupt_flag = 0;
    sigaction(SIGINT, &action, NULL);
}

void catch_ending(void) {
    static const int signals[] = {SIGTERM, SIGHUP};
    catch_interrupt();
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_handler = on_interrupt}, before;
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            sigaction(signals[i], &action, NULL);
        }
    }
}

void release_interrupt(void) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(SIGINT, &action, NULL);
}

bool interrupted(void) {
    return interrupt_flag != 0;
}

bool progress_step(void *context, uint64_t done, uint64_t total) {
    enum { WIDTH = 30 };
    progress_bar *bar = context;
    const double now = seconds_now();
    if (isatty(STDERR_FILENO) && total > 0 && (now - bar->drawn > 0.1 || done == total)) {
        const int filled = (int)((double)done / (double)total * WIDTH);
        fprintf(stderr, "\r%s [%.*s%*s] %3d %%", bar->label, filled, "##############################",
                WIDTH - filled, "", (int)((double)done / (double)total * 100));
        if (bar->bytes) {
            fprintf(stderr, " %.1f of %.1f MB", (double)done * 1e-6, (double)total * 1e-6);
        }
        fflush(stderr);
        bar->drawn = now;
        bar->visible = true;
    }
    return !interrupted();
}

void progress_end(progress_bar *bar) {
    if (bar->visible) {
        fprintf(stderr, "\r\033[K");
    }
    bar->visible = false;
}

/* ---- sessions --------------------------------------------------------------------------------------------
 */

static sluice_prompt_precision precision_of(const char *name) {
    static const char *const names[] = {"auto", "bf16", "int8", "fp8"};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            return (sluice_prompt_precision)i;
        }
    }
    return SLUICE_PROMPT_AUTO;
}

static sluice_weight_copies copies_of(const char *name) {
    return !name || strcmp(name, "auto") == 0 ? SLUICE_COPIES_AUTO
           : strcmp(name, "never") == 0       ? SLUICE_COPIES_NEVER
                                              : SLUICE_COPIES_ALWAYS;
}

static sluice_split split_of(const char *name) {
    return !name || strcmp(name, "auto") == 0 ? SLUICE_SPLIT_AUTO
           : strcmp(name, "tensors") == 0     ? SLUICE_SPLIT_TENSORS
                                              : SLUICE_SPLIT_LAYERS;
}

void engine_options(const settings *s, int32_t sequences, sluice_engine_options *options) {
    *options = (sluice_engine_options){
        .size = sizeof *options,
        .device = s->device,
        .isa = s->isa,
        .threads = s->threads,
        .chunk = s->chunk,
        .sequences = s->sequences ? s->sequences : sequences,
        .context = s->context,
        .kv_type = s->kv_type,
        .cache_tokens = s->cache_tokens,
        .memory_limit = s->memory_limit.all,
        .host_memory_limit = s->host_memory_limit,
        .gpu_layers = s->gpu_layers == 0  ? SLUICE_NO_LAYERS
                      : s->gpu_layers < 0 ? 0
                                          : s->gpu_layers,
        .cpu_experts = s->cpu_moe ? INT32_MAX : s->cpu_experts,
        .expert_cache = s->expert_cache,
        .no_prefix_reuse = s->no_prefix_reuse,
        .cache_folder = s->cache_disk,
        .cache_folder_bytes = s->cache_disk_bytes,
        .no_graphs = s->no_graphs,
        .no_fusion = s->no_fusion,
        .no_repack = s->no_repack,
        .deterministic = s->deterministic,
        .kernels = s->kernels,
        .prompt_precision = precision_of(s->prompt_precision),
        .kv_budget = s->kv_budget,
        .kv_window = s->kv_window,
        .kv_pool = s->kv_pool,
        .expert_pin = s->expert_pin,
        .split = split_of(s->split),
        .weight_copies = copies_of(s->weight_copies),
    };
    memcpy(options->memory_limits, s->memory_limit.by_device, sizeof options->memory_limits);
}

static int open_with(const settings *settings, bool text_only, session *session) {
    sluice_error error;
    char path[DATA_PATH_SIZE], *text = NULL;
    sluice_model_options options;
    int code = model_options(settings, &options, &text);
    options.text_only = text_only;
    if (code == DONE &&
        sluice_model_open_with(model_path(settings->model, path), &options, &session->model, &error)) {
        code = fail_with(&error);
    }
    free(text);
    return code;
}

int open_model(const settings *settings, session *session) {
    return open_with(settings, false, session);
}

int open_model_text(const settings *settings, session *session) {
    return open_with(settings, true, session);
}

/* What --speculate says; a draft model alone says it too. */
static sluice_speculate speculation_of(const settings *s) {
    static const struct {
        const char *name;
        sluice_speculate kind;
    } KINDS[] = {{"off", SLUICE_SPECULATE_OFF},
                 {"auto", SLUICE_SPECULATE_AUTO},
                 {"ngram", SLUICE_SPECULATE_NGRAM},
                 {"draft", SLUICE_SPECULATE_DRAFT},
                 {"mtp", SLUICE_SPECULATE_MTP}};
    for (size_t i = 0; s->speculate && i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strcmp(s->speculate, KINDS[i].name) == 0) {
            return KINDS[i].kind;
        }
    }
    return s->draft_known ? SLUICE_SPECULATE_CALLER
           : s->draft     ? SLUICE_SPECULATE_DRAFT
                          : SLUICE_SPECULATE_OFF;
}

int draft_options(const settings *s, sluice_model **draft, sluice_engine_options *options) {
    sluice_error error;
    char path[DATA_PATH_SIZE];
    options->speculate = speculation_of(s);
    options->drafts = s->drafts;
    options->draft_always = s->draft_always;
    options->ngram_longest = s->ngram_longest;
    options->ngram_shortest = s->ngram_shortest;
    if (options->speculate == SLUICE_SPECULATE_OFF || options->speculate == SLUICE_SPECULATE_NGRAM ||
        !s->draft) {
        return DONE; /* off: an option of a file that the command line takes back */
    }
    if (!*draft && sluice_model_open(model_path(s->draft, path), draft, &error)) {
        return fail_with(&error);
    }
    options->draft_model = *draft;
    return DONE;
}

int open_engine(const settings *settings, session *session, sluice_engine_options *options) {
    progress_bar bar = {.label = "loading"};
    sluice_error error;
    if (draft_options(settings, &session->draft, options) != DONE) {
        return FAILED;
    }
    options->progress = progress_step;
    options->progress_context = &bar;
    catch_interrupt();
    int result = sluice_engine_create(session->model, options, &session->engine, &error);
    release_interrupt();
    progress_end(&bar);
    if (!result && settings->expert_stats) {
        result = sluice_engine_write_expert_stats(session->engine, settings->expert_stats, true, &error);
    }
    return result ? fail_with(&error) : DONE;
}

int write_expert_stats(const settings *settings, session *session) {
    sluice_error error;
    return settings->expert_stats && session->engine &&
                   sluice_engine_write_expert_stats(session->engine, settings->expert_stats, false, &error)
               ? fail_with(&error)
               : DONE;
}

void close_session(session *session) {
    sluice_engine_destroy(session->engine);
    sluice_model_release(session->draft);
    sluice_model_release(session->model);
}

/* ---- requests --------------------------------------------------------------------------------------------
 */

static void dry_options(const settings *s, sluice_request_options *options) {
    options->dry_multiplier = s->dry_last ? (float)s->dry_multiplier : 0;
    options->dry_base = (float)s->dry_base;
    options->dry_allowed_length = s->dry_allowed;
    options->dry_tokens = s->dry_last > 0 ? s->dry_last : 0;
    static const char *breakers[LIST_ITEMS]; /* a line's end and a tab can be written as in C */
    for (int i = 0; i < s->dry_breakers.count; i++) {
        const char *text = s->dry_breakers.items[i];
        breakers[i] = strcmp(text, "\\n") == 0 ? "\n" : strcmp(text, "\\t") == 0 ? "\t" : text;
        options->dry_breakers = breakers;
        options->dry_breaker_count = strcmp(text, "none") == 0 ? 0 : options->dry_breaker_count + 1;
    }
}

void sampling_options(const settings *s, sluice_request_options *options) {
    options->temperature = (float)s->temperature;
    options->top_k = s->top_k;
    options->top_p = (float)s->top_p;
    options->min_p = (float)s->min_p;
    options->typical_p = (float)s->typical;
    if (s->repeat_last != 0) { /* which to the library means the usual number */
        options->repetition_penalty = (float)s->repeat_penalty;
        options->presence_penalty = (float)s->presence_penalty;
        options->frequency_penalty = (float)s->frequency_penalty;
        options->penalty_tokens = s->repeat_last;
    }
    options->samplers = s->samplers.items;
    options->sampler_count = s->samplers.count;
    options->top_n_sigma = s->top_n_sigma > 0 ? (float)s->top_n_sigma : 0;
    options->xtc_probability = (float)s->xtc_probability;
    options->xtc_threshold = (float)s->xtc_threshold;
    options->dynamic_temperature_range = (float)s->dynatemp_range;
    options->dynamic_temperature_exponent = (float)s->dynatemp_exponent;
    dry_options(s, options);
    options->mirostat = s->mirostat;
    options->mirostat_tau = (float)s->mirostat_tau;
    options->mirostat_eta = (float)s->mirostat_eta;
    options->logit_bias = s->biases.items;
    options->logit_bias_count = (size_t)s->biases.count;
    options->seed = s->seed;
    options->stops = s->stops.items;
    options->stop_count = (size_t)s->stops.count;
    options->ignore_eos = s->ignore_eos;
    options->least_drafts = s->least_drafts;
}

size_t most_tokens(const settings *settings) {
    return settings->predict < 0 ? SIZE_MAX : (size_t)settings->predict;
}

void explain_silence(const settings *settings, const sluice_event *done) {
    switch (done->finish) {
    case SLUICE_FINISH_EOS:
        fail("no text: the model ended the text at once%s",
             settings->ignore_eos ? "" : " (--ignore-eos goes on; so may other words, or another --seed)");
        break;
    case SLUICE_FINISH_STOP:
        fail("no text: what came first was a text of --stop");
        break;
    case SLUICE_FINISH_CONTEXT:
        fail("no text: the prompt fills the context, so there is no room for an answer (-c asks for more)");
        break;
    case SLUICE_FINISH_LENGTH:
        if (settings->predict == 0) {
            fail("no text: -n 0 asks for none");
        } else {
            fail("no text: the %zu tokens that came have none (-n asks for more)", done->generated_tokens);
        }
        break;
    default:
        break;
    }
}

int generate(sluice_sequence *sequence, const sluice_request_options *options, token_sink token,
             void *context, sluice_event *done) {
    sluice_error error;
    sluice_request *request;
    if (sluice_submit(sequence, options, &request, &error)) {
        return fail_with(&error);
    }
    /* Long enough to cost nothing, short enough for a hand on Ctrl-C. */
    enum { WAIT = 100 };
    bool cancelled = false;
    int result = DONE;
    catch_interrupt();
    do {
        *done = (sluice_event){.size = sizeof *done};
        if (sluice_poll(request, WAIT, done, &error)) {
            result = fail_with(&error);
            break;
        }
        if (interrupted() && !cancelled) {
            cancelled = true;
            sluice_cancel(request);
        }
        if (token && (done->kind == SLUICE_EVENT_TOKEN || done->kind == SLUICE_EVENT_DONE)) {
            token(context, done);
        }
    } while (done->kind != SLUICE_EVENT_DONE);
    release_interrupt();
    if (result == DONE && done->finish == SLUICE_FINISH_ERROR) {
        result = fail_with(&done->error);
    }
    done->text = "";
    done->text_length = 0;
    sluice_request_release(request);
    return result;
}

const char *finish_name(sluice_finish finish) {
    static const char *const names[] = {"length", "eos", "stop", "context", "cancelled", "error"};
    return names[finish];
}

void print_timings(const sluice_event *done) {
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    const double read = (double)(done->prompt_tokens - done->reused_tokens);
    fprintf(stderr, "\nprompt: %zu tokens (%zu reused), %.1f tokens/s; generated: %zu tokens",
            done->prompt_tokens, done->reused_tokens,
            done->prompt_seconds > 0 ? read / done->prompt_seconds : 0, done->generated_tokens);
    if (done->generated_tokens > 1 && done->generate_seconds > 0) {
        fprintf(stderr, ", %.1f tokens/s", (double)(done->generated_tokens - 1) / done->generate_seconds);
    }
    if (done->drafted_tokens > 0) {
        fprintf(stderr, "; drafted: %zu, right: %zu", done->drafted_tokens, done->accepted_tokens);
    }
    fprintf(stderr, "; %s\n", finish_name(done->finish));
}

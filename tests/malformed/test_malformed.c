/* Runs the cases: a process for each, forked before there is an engine in this one.
 *
 * test_malformed [--program PATH] [--only TEXT] [--every N]: with PATH, "PATH inspect -m FILE" is run in place
 * of the library. TEXT: only the cases whose name holds it, all of them. N: one case of N is run, the same ones
 * each time; 1 runs all, which takes minutes. */
#define _GNU_SOURCE
#include "cases.h"
#include "support/sanitized.h"

#include "base/alloc.h"
#include "sluice.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if SANITIZED
enum { EVERY = 40, PROGRAM_EVERY = 800, CPU_LIMIT_MS = 20000, MEASURED = 0 };
const char *__asan_default_options(void);
/* Leaks are seen by the library's own count of live bytes; a search of all memory per case would take
 * minutes. */
const char *__asan_default_options(void) {
    return "exitcode=99:detect_leaks=0:allocator_may_return_null=1";
}
#else
enum { EVERY = 20, PROGRAM_EVERY = 101, CPU_LIMIT_MS = 5000, MEASURED = 1 };
#endif
enum { WORKERS = 2, GROWTH_LIMIT_KIB = 64 << 10, WALL_LIMIT_SECONDS = 60 };

typedef struct totals {
    _Atomic uint64_t known, cases, refused, accepted, failed;
    _Atomic uint64_t slowest_ms, most_kib;
} totals;

struct suite {
    uint64_t index;
    unsigned worker, every;
    const char *program, *only;
    long valid_kib;
    totals *totals;
};

bool wanted(suite *s, unsigned sampling) {
    const uint64_t index = s->index++;
    if (index % WORKERS != s->worker) {
        return false;
    }
    /* Mixed, so that the sample does not beat with the order of the cases. */
    const uint64_t mixed = (index * 0x9e3779b97f4a7c15u) >> 32;
    return mixed % (s->only ? 1 : sampling * s->every) == 0;
}

void put_file(const char *path, const void *data, size_t size) {
    unlink(path);
    write_file(path, data, size);
}

/* ---- what a process does with the file ---- */

static int generate(sluice_model *model, sluice_error *error) {
    sluice_engine *engine = NULL;
    sluice_sequence *sequence = NULL;
    sluice_request *request = NULL;
    static const int32_t tokens[] = {1, 5, 9};
    const sluice_engine_options options = {
        .size = sizeof options, .device = "cpu", .threads = 1, .sequences = 1, .chunk = 16};
    const sluice_request_options work = {
        .size = sizeof work, .tokens = tokens, .token_count = 3, .generate = 2, .ignore_eos = true};
    int result = sluice_engine_create(model, &options, &engine, error);
    result = result ? result : sluice_sequence_create(engine, &sequence, error);
    result = result ? result : sluice_submit(sequence, &work, &request, error);
    sluice_event event = {.size = sizeof event};
    while (result == 0 && event.kind != SLUICE_EVENT_DONE) {
        result = sluice_poll(request, -1, &event, error);
    }
    if (result == 0 && event.finish == SLUICE_FINISH_ERROR) {
        *error = event.error;
        result = event.error.code;
    }
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    return result;
}

/* What a model that cannot generate is for. */
static int embed(sluice_model *model, sluice_error *error) {
    sluice_engine *engine = NULL;
    sluice_embedding *embedding = NULL;
    static const int32_t tokens[] = {1, 5, 9};
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .threads = 1,
                                           .sequences = 1,
                                           .chunk = 16,
                                           .embeddings = true};
    const sluice_embed_options asked = {.size = sizeof asked};
    const sluice_embed_input input = {.tokens = tokens, .token_count = 3};
    size_t done;
    int result = sluice_engine_create(model, &options, &engine, error);
    result = result ? result : sluice_embed(engine, &input, 1, &asked, &embedding, error);
    result = result ? result : sluice_embedding_wait(embedding, -1, &done, error);
    sluice_embedding_release(embedding);
    sluice_engine_destroy(engine);
    return result;
}

/* What a front end does with text. Refusals are fine here (a template may be broken while the model runs), as
 * long as they are one line. */
static bool text_refusals_are_lines(sluice_model *model) {
    sluice_error error = {0};
    char *text = NULL;
    int32_t *tokens = NULL;
    size_t count = 0, length = 0;
    bool fine = true;
    static const char said[] = "abc a\n<|im_end|> \xc3\xa9\xff 12";
    int result = sluice_tokenize(model, said, sizeof said - 1, SLUICE_TOKENIZE_SPECIAL | SLUICE_TOKENIZE_BOS,
                                 &tokens, &count, &error);
    fine &= result == 0 || (error.message[0] && !strchr(error.message, '\n'));
    if (result == 0) {
        result = sluice_detokenize(model, tokens, count, SLUICE_TOKENIZE_SPECIAL, &text, &length, &error);
        fine &= result == 0 || (error.message[0] && !strchr(error.message, '\n'));
        sluice_free(text);
    }
    sluice_free(tokens);
    text = NULL;
    result = sluice_chat_render(model, "[{\"role\":\"user\",\"content\":\"hello\"}]", NULL, &text, &error);
    fine &= result == 0 || (error.message[0] && !strchr(error.message, '\n'));
    sluice_free(text);
    tokens = NULL;
    result = sluice_chat_tokens(model, "[{\"role\":\"user\",\"content\":\"abc<\"}]", NULL, &tokens, &count,
                                &error);
    fine &= result == 0 || (error.message[0] && !strchr(error.message, '\n'));
    sluice_free(tokens);
    return fine;
}

static int live(const char *path) {
    const uint64_t held = sl_alloc_live_bytes();
    sluice_model *model;
    sluice_error error = {0};
    char *text = NULL;
    int result = sluice_model_open(path, &model, &error);
    if (result == 0) {
        result = sluice_model_describe(model, SLUICE_TEXT, &text, &error);
        sluice_free(text);
        text = NULL;
        if (result == 0 && (result = sluice_model_describe(model, SLUICE_JSON, &text, &error)) == 0) {
            sluice_free(text);
        }
    }
    if (result == 0 && !text_refusals_are_lines(model)) {
        fprintf(stderr, "%s: a refusal of text is not one line\n%s\n", path, error.message);
    }
    sluice_model_info info = {.size = sizeof info};
    if (result == 0) {
        sluice_model_get_info(model, &info);
    }
    if (result == 0 && info.context >= 8 && info.vocabulary > 9) { /* a smaller one is no fault of the file */
        sluice_embedding_facts facts = {.size = sizeof facts};
        sluice_model_get_embedding(model, &facts);
        result = facts.generates ? generate(model, &error) : embed(model, &error);
    }
    if (result) {
        fprintf(stderr, "%s\n", error.message);
    }
    sluice_model_release(model);
    if (sl_alloc_live_bytes() != held) {
        fprintf(stderr, "%llu bytes are still held\n", (unsigned long long)(sl_alloc_live_bytes() - held));
    }
    return result ? 1 : 0;
}

/* ---- judging ---- */

typedef struct outcome {
    int status;
    char text[4096]; /* of stderr, its beginning */
    size_t length;   /* all of it */
    uint64_t cpu_ms;
    long kib;
} outcome;

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void run_process(const suite *s, const char *path, outcome *o) {
    int ends[2];
    if (pipe(ends) != 0) {
        die("pipe");
    }
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) {
        die("fork");
    }
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        alarm(WALL_LIMIT_SECONDS);
        if (s->program) {
            dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
            execl(s->program, s->program, "inspect", "-m", path, (char *)NULL);
            _exit(98);
        }
        _exit(live(path));
    }
    close(ends[1]);
    o->length = 0;
    for (;;) {
        char chunk[4096];
        const ssize_t got = read(ends[0], chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        for (ssize_t i = 0; i < got; i++, o->length++) {
            if (o->length + 1 < sizeof o->text) {
                o->text[o->length] = chunk[i];
            }
        }
    }
    o->text[o->length < sizeof o->text ? o->length : sizeof o->text - 1] = 0;
    close(ends[0]);
    struct rusage usage;
    while (wait4(pid, &o->status, 0, &usage) < 0) {
        if (errno != EINTR) {
            die("wait4");
        }
    }
    o->cpu_ms = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
                (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
    o->kib = usage.ru_maxrss;
}

static bool one_line(const outcome *o) {
    if (o->length < 2 || o->length + 1 >= sizeof o->text || o->text[o->length - 1] != '\n') {
        return false;
    }
    for (size_t i = 0; i + 1 < o->length; i++) {
        const unsigned char c = (unsigned char)o->text[i];
        if (c < 0x20 || c == 0x7f) {
            return false;
        }
    }
    return true;
}

/* NULL when the promise is kept. */
static const char *broken_promise(const suite *s, const char *path, const outcome *o) {
    if (WIFSIGNALED(o->status)) {
        return WTERMSIG(o->status) == SIGALRM ? "hangs" : "ended by a signal";
    }
    const int code = WEXITSTATUS(o->status);
    if (code != 0 && code != 1) {
        return "ended with another code than 0 or 1";
    }
    if (code == 0 && o->length != 0 && !s->program) {
        return "accepted, but with words on stderr";
    }
    if (code == 1 && !one_line(o)) {
        return "not exactly one line on stderr";
    }
    /* What comes of NaN weights is an error of the request, which says where in the text. */
    if (code == 1 && !strstr(o->text, path) && !strstr(o->text, "logits are not finite")) {
        return "the line does not name the file";
    }
    if (o->cpu_ms > CPU_LIMIT_MS) {
        return "took more than five seconds";
    }
    if (MEASURED && !s->program && s->valid_kib && o->kib > s->valid_kib + GROWTH_LIMIT_KIB) {
        return "took more than 64 MiB above the valid file";
    }
    return NULL;
}

static void raise_to(_Atomic uint64_t *most, uint64_t value) {
    uint64_t old = atomic_load(most);
    while (value > old && !atomic_compare_exchange_weak(most, &old, value)) {
    }
}

static void count(const suite *s, const outcome *o) {
    atomic_fetch_add(&s->totals->cases, 1);
    atomic_fetch_add(
        WIFEXITED(o->status) && WEXITSTATUS(o->status) == 0 ? &s->totals->accepted : &s->totals->refused, 1);
    raise_to(&s->totals->slowest_ms, o->cpu_ms);
    raise_to(&s->totals->most_kib, (uint64_t)(o->kib > s->valid_kib ? o->kib - s->valid_kib : 0));
}

void run_case(suite *s, const char *path, const char *name) {
    if (s->only && !strstr(name, s->only)) {
        return;
    }
    outcome o;
    run_process(s, path, &o);
    count(s, &o);
    const char *why = broken_promise(s, path, &o);
    if (why) {
        atomic_fetch_add(&s->totals->failed, 1);
        printf("FAIL %s: %s (status 0x%x, %llu ms, %+ld KiB)\n     %.600s\n", name, why, (unsigned)o.status,
               (unsigned long long)o.cpu_ms, o.kib - s->valid_kib, o.text);
    } else if (s->only) {
        printf("%s: status 0x%x %s", name, (unsigned)o.status, o.length ? o.text : "\n");
    }
}

void run_valid(suite *s, const char *path, const char *name) {
    outcome o;
    s->valid_kib = 0;
    run_process(s, path, &o);
    count(s, &o);
    const char *why = broken_promise(s, path, &o);
    why = !why && WEXITSTATUS(o.status) != 0 ? "the valid file is refused" : why;
    s->valid_kib = o.kib;
    if (why) {
        atomic_fetch_add(&s->totals->failed, 1);
        printf("FAIL %s: %s (status 0x%x)\n     %.600s\n", name, why, (unsigned)o.status, o.text);
    }
}

static void work(suite *s) {
    char folder[64];
    snprintf(folder, sizeof folder, "malformed%s.%u", s->program ? ".program" : "", s->worker);
    mkdir(folder, 0777);
    if (chdir(folder) != 0) {
        die(folder);
    }
    gguf_cases(s);
    folder_cases(s);
    atomic_store(&s->totals->known, s->index);
}

int main(int count_of_arguments, char **arguments) {
    suite s = {0};
    struct timespec begin, end;
    for (int i = 1; i + 1 < count_of_arguments; i += 2) {
        if (strcmp(arguments[i], "--every") == 0) {
            s.every = (unsigned)strtoul(arguments[i + 1], NULL, 10);
        } else {
            *(strcmp(arguments[i], "--program") == 0 ? &s.program : &s.only) = arguments[i + 1];
        }
    }
    s.every = s.every ? s.every : s.program ? PROGRAM_EVERY : EVERY;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    setvbuf(stdout, NULL, _IOLBF, 0);
    s.totals = mmap(NULL, sizeof *s.totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s.totals == MAP_FAILED || chdir(SLUICE_BINARY_DIR) != 0) {
        die("malformed");
    }
    pid_t workers[WORKERS];
    int worst = 0;
    for (s.worker = 0; s.worker < WORKERS; s.worker++) {
        if ((workers[s.worker] = fork()) == 0) {
            work(&s);
            fflush(NULL);
            _exit(0);
        }
    }
    for (int i = 0; i < WORKERS; i++) {
        int status;
        waitpid(workers[i], &status, 0);
        worst |= status;
        if (status) {
            printf("FAIL worker %d ended early (status 0x%x): cases were not run\n", i, (unsigned)status);
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    const totals *t = s.totals;
    printf("%llu cases of %llu in %.1f s: %llu refused, %llu accepted; slowest %llu ms of processor time, at "
           "most %.1f MiB more "
           "than the valid file\n",
           (unsigned long long)t->cases, (unsigned long long)t->known,
           (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9,
           (unsigned long long)t->refused, (unsigned long long)t->accepted, (unsigned long long)t->slowest_ms,
           (double)t->most_kib / 1024);
    printf("%llu passed, %llu failed\n", (unsigned long long)(t->cases - t->failed),
           (unsigned long long)t->failed);
    return worst || t->failed || (t->cases == 0 && !s.only);
}

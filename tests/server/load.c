/* Load on `sluice serve` (or another server with OpenAI's API) for tests: streams over keep-alive
 * connections, one thread with epoll, so that the generator costs little beside what it measures. `load
 * --help` tells the options.
 *
 * Tokens are counted as events with text in them as they arrive; a time between two tokens of one read is 0,
 * as a client sees it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE_SIZE = 16384, KINDS = 2, RETRY_MS = 100 };

typedef struct options {
    const char *host, *key, *model, *output;
    int port;
    long connections, requests, prompt_tokens, shared_tokens, max_tokens, vocabulary;
    long idle, probe_ms, probe_tokens, probe_max_tokens;
    double seconds, warmup, abort_share;
    bool chat;
    unsigned seed;
} options;

typedef struct samples {
    float *values;
    size_t count, capacity;
} samples;

/* Figures of one class of requests. */
typedef struct figures {
    long done, aborted, refused, failed, tokens, told_tokens;
    samples first, between, whole; /* ms */
} figures;

typedef enum state { WAITING, CONNECTING, SENDING, READING } state;

typedef struct client {
    int fd, kind; /* kind: 0 the load, 1 the probe */
    state state;
    bool reused;               /* the connection carried a request before */
    double wake;               /* WAITING: when to go on; negative: when somebody says so */
    double begin, first, last; /* 0: not yet */
    long events, abort_after;  /* events with text; -1: to the end */
    char *request;
    size_t request_length, sent;
    /* The answer. */
    int status;
    bool in_head, chunked, ended, saw_done;
    char size[24]; /* the line in front of a chunk, as far as it came */
    size_t size_length;
    size_t left; /* of the chunk, or of the body */
    char line[LINE_SIZE];
    size_t line_length;
} client;

static options o = {
    .host = "127.0.0.1",
    .model = "mini",
    .output = "text",
    .connections = 8,
    .prompt_tokens = 32,
    .max_tokens = 64,
    .vocabulary = 2000,
    .probe_tokens = 512,
    .probe_max_tokens = 1,
    .seconds = 10,
    .seed = 1,
};
static figures all[KINDS];
static client *clients;
static size_t client_count;
static int events_fd;
static double began, measured; /* when the load began, and from when on it counts */
static long started;
static bool over;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(2);
}

static void add(samples *s, double value) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 1024;
        s->values = realloc(s->values, s->capacity * sizeof *s->values);
        if (s->values == NULL) {
            die("no memory");
        }
    }
    s->values[s->count++] = (float)value;
}

static uint32_t draw(void) { /* xorshift: texts need no better */
    static uint32_t x;
    if (x == 0) {
        x = o.seed * 2654435761u + 1;
    }
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return x;
}

/* ---- requests
 * ------------------------------------------------------------------------------------------------ */

/* A prompt that nobody sent before but for its first `shared_tokens`. Completions take ids, so its length is
 * exact; chat takes words, each of about one token. */
static void write_prompt(FILE *out, long tokens) {
    for (long i = 0; i < tokens; i++) {
        uint32_t id = 260 + (i < o.shared_tokens ? (uint32_t)(i * 7919) : draw()) % (uint32_t)o.vocabulary;
        if (o.chat) {
            fprintf(out, "%s%u", i ? " " : "", id % 1000);
        } else {
            fprintf(out, "%s%u", i ? "," : "", id);
        }
    }
}

static void write_request(client *c) {
    free(c->request);
    char *body = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&body, &length);
    if (out == NULL) {
        die("no memory");
    }
    long tokens = c->kind ? o.probe_tokens : o.prompt_tokens;
    fprintf(out, "{\"model\":\"%s\",\"stream\":true,\"stream_options\":{\"include_usage\":true},", o.model);
    fprintf(out, "\"ignore_eos\":true,\"max_tokens\":%ld,", c->kind ? o.probe_max_tokens : o.max_tokens);
    fputs(o.chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":[", out);
    write_prompt(out, tokens);
    fputs(o.chat ? "\"}]}" : "]}", out);
    fclose(out);
    c->request = NULL;
    int size = asprintf(&c->request,
                        "POST /v1/%s HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\n%s%s%s\r\n%s",
                        o.chat ? "chat/completions" : "completions", o.host, o.port, length,
                        o.key ? "Authorization: Bearer " : "", o.key ? o.key : "", o.key ? "\r\n" : "", body);
    free(body);
    if (size < 0) {
        die("no memory");
    }
    c->request_length = (size_t)size;
}

/* ---- connections
 * --------------------------------------------------------------------------------------------- */

static void watch(client *c, uint32_t what, int operation) {
    struct epoll_event event = {.events = what, .data.ptr = c};
    if (epoll_ctl(events_fd, operation, c->fd, &event)) {
        die("epoll_ctl");
    }
}

static int dial(bool wait) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK), 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o.port)};
    if (fd < 0 || inet_pton(AF_INET, o.host, &address.sin_addr) != 1) {
        die("socket");
    }
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    return fd;
}

static void hang_up(client *c) {
    if (c->fd >= 0) {
        close(c->fd); /* leaves the epoll set with it */
    }
    c->fd = -1;
    c->reused = false;
}

static void begin_request(client *c) {
    write_request(c);
    c->sent = 0;
    c->begin = now();
    c->first = c->last = 0;
    c->events = 0;
    c->status = 0;
    c->in_head = true;
    c->chunked = c->ended = c->saw_done = false;
    c->left = c->line_length = c->size_length = 0;
    c->abort_after = -1;
    if (c->kind == 0 && o.abort_share > 0 && draw() % 10000 < o.abort_share * 10000) {
        c->abort_after = (long)(draw() % (uint32_t)o.max_tokens);
    }
    if (c->fd >= 0) {
        c->state = SENDING;
        watch(c, EPOLLOUT, EPOLL_CTL_MOD);
        return;
    }
    c->fd = dial(false);
    if (c->fd < 0) {
        all[c->kind].failed++;
        c->state = WAITING;
        c->wake = now() + RETRY_MS / 1000.0;
        return;
    }
    c->state = CONNECTING;
    watch(c, EPOLLOUT, EPOLL_CTL_ADD);
}

/* What comes after a request: the next one, at once for the load, at its time for a probe. */
static void next(client *c, double pause) {
    c->state = WAITING;
    c->wake = c->kind ? -1 : now() + pause;
}

typedef enum outcome { DONE, ABORTED, REFUSED, FAILED } outcome;

static void finish(client *c, outcome outcome) {
    double t = now();
    figures *f = &all[c->kind];
    bool counts = t >= measured && !over;
    bool keep = outcome == DONE || (outcome == REFUSED && c->ended);
    if (!keep) {
        hang_up(c);
    } else {
        c->reused = true;
        watch(c, EPOLLRDHUP, EPOLL_CTL_MOD);
    }
    if (counts) {
        f->done += outcome == DONE;
        f->aborted += outcome == ABORTED;
        f->refused += outcome == REFUSED;
        f->failed += outcome == FAILED;
        if (outcome == DONE) {
            add(&f->whole, 1000 * (t - c->begin));
        }
    }
    next(c, outcome == REFUSED || outcome == FAILED ? RETRY_MS / 1000.0 : 0);
}

/* ---- answers
 * ------------------------------------------------------------------------------------------------- */

static void on_event(client *c, char *data) {
    if (strcmp(data, "[DONE]") == 0) {
        c->saw_done = true;
        return;
    }
    double t = now();
    bool counts = t >= measured && !over;
    const char *told = strstr(data, "\"completion_tokens\":");
    if (told && counts) {
        all[c->kind].told_tokens += strtol(told + 20, NULL, 10);
    }
    const char *text = strstr(data, o.chat ? "\"content\":\"" : "\"text\":\"");
    if (text == NULL || text[o.chat ? 11 : 8] == '"') {
        return;
    }
    figures *f = &all[c->kind];
    if (counts) {
        f->tokens++;
        add(c->first ? &f->between : &f->first, 1000 * (t - (c->first ? c->last : c->begin)));
    }
    if (!c->first) {
        c->first = t;
    }
    c->last = t;
    c->events++;
}

/* One line of the head, or of the events in the body. */
static void on_line(client *c) {
    c->line[c->line_length] = 0;
    if (c->in_head) {
        if (c->status == 0 && c->line_length == 0) {
            return; /* what was left of the last answer's end */
        }
        if (c->status == 0) {
            c->status = strncmp(c->line, "HTTP/1.", 7) == 0 ? atoi(c->line + 9) : -1;
        } else if (strncasecmp(c->line, "Transfer-Encoding: chunked", 26) == 0) {
            c->chunked = true;
        } else if (strncasecmp(c->line, "Content-Length:", 15) == 0) {
            c->left = strtoul(c->line + 15, NULL, 10);
        } else if (c->line_length == 0) {
            c->in_head = false;
            c->ended = !c->chunked && c->left == 0;
        }
    } else if (c->status == 200 && strncmp(c->line, "data: ", 6) == 0) {
        on_event(c, c->line + 6);
    }
    c->line_length = 0;
}

/* Appends to the line up to its end; gives how many bytes were taken. */
static size_t take_line(client *c, const char *bytes, size_t count, bool *whole) {
    const char *end = memchr(bytes, '\n', count);
    size_t length = end ? (size_t)(end - bytes) : count;
    size_t room = LINE_SIZE - 1 - c->line_length, copied = length < room ? length : room;
    memcpy(c->line + c->line_length, bytes, copied);
    c->line_length += copied;
    *whole = end != NULL;
    if (end) {
        if (c->line_length && c->line[c->line_length - 1] == '\r') {
            c->line_length--;
        }
        return length + 1;
    }
    return length;
}

/* Bytes of a chunk or of a body with a length: lines of events. */
static void take_body(client *c, const char *bytes, size_t count) {
    while (count > 0) {
        bool whole;
        size_t taken = take_line(c, bytes, count, &whole);
        if (whole) {
            on_line(c);
        }
        bytes += taken;
        count -= taken;
    }
}

/* The end of a chunk, an empty line, or the line with the next one's size. An event may go on in the next
 * chunk, so this is no line of its. */
static size_t take_size(client *c, const char *bytes, size_t count) {
    size_t taken = 0;
    while (taken < count) {
        char byte = bytes[taken++];
        if (byte != '\n') {
            c->size[c->size_length] = byte;
            c->size_length += c->size_length + 1 < sizeof c->size;
            continue;
        }
        c->size[c->size_length] = 0;
        bool empty = c->size_length == 0 || c->size[0] == '\r';
        c->size_length = 0;
        if (!empty) {
            c->left = strtoul(c->size, NULL, 16);
            c->ended = c->left == 0;
            break;
        }
    }
    return taken;
}

static void take(client *c, const char *bytes, size_t count) {
    while (count > 0 && !c->ended) {
        bool whole;
        size_t taken;
        if (c->in_head) {
            taken = take_line(c, bytes, count, &whole);
            if (whole) {
                on_line(c);
            }
        } else if (c->left > 0) {
            taken = count < c->left ? count : c->left;
            take_body(c, bytes, taken);
            c->left -= taken;
            c->ended = !c->chunked && c->left == 0;
        } else {
            taken = take_size(c, bytes, count);
        }
        bytes += taken;
        count -= taken;
    }
}

static void on_readable(client *c) {
    static char bytes[65536];
    for (;;) {
        ssize_t got = recv(c->fd, bytes, sizeof bytes, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (got <= 0) {
            /* A kept connection may have been closed before the request came: it is sent again over a new
             * one. */
            if (c->reused && c->status == 0) {
                hang_up(c);
                begin_request(c);
                return;
            }
            finish(c, c->status == 503 || c->status == 429 ? REFUSED : FAILED);
            return;
        }
        take(c, bytes, (size_t)got);
        if (c->ended) {
            bool refused = c->status == 503 || c->status == 429;
            finish(c, refused ? REFUSED : c->status == 200 && c->saw_done ? DONE : FAILED);
            return;
        }
        if (c->abort_after >= 0 && c->events > c->abort_after) {
            finish(c, ABORTED);
            return;
        }
        if ((size_t)got < sizeof bytes) {
            return;
        }
    }
}

static void on_writable(client *c) {
    if (c->state == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) {
            finish(c, FAILED);
            return;
        }
        c->state = SENDING;
    }
    ssize_t count = send(c->fd, c->request + c->sent, c->request_length - c->sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
        if (c->reused) {
            hang_up(c);
            begin_request(c);
        } else {
            finish(c, FAILED);
        }
        return;
    }
    c->sent += count > 0 ? (size_t)count : 0;
    if (c->sent == c->request_length) {
        if (c->abort_after == 0) {
            finish(c, ABORTED);
            return;
        }
        c->state = READING;
        watch(c, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
    }
}

static void on_ready(client *c, uint32_t what) {
    if (c->fd < 0) {
        return; /* closed by an earlier event of this round */
    }
    if (c->state == WAITING) {
        hang_up(c); /* the server closed an idle connection */
    } else if (c->state == READING) {
        on_readable(c);
    } else if (what & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
        on_writable(c);
    }
}

/* ---- the run
 * ------------------------------------------------------------------------------------------------- */

static bool may_start(void) {
    return !over && (o.requests == 0 || started < o.requests);
}

static long count_done(void) {
    return all[0].done + all[0].aborted + all[0].failed;
}

/* Begins what is due; gives the milliseconds until the next is. */
static int begin_due(double *next_probe) {
    double t = now(), soonest = t + 1;
    size_t free_probe = client_count;
    for (size_t i = 0; i < client_count; i++) {
        client *c = &clients[i];
        if (c->state != WAITING) {
            continue;
        }
        if (c->kind == 1) {
            free_probe = i;
        } else if (may_start()) {
            if (c->wake <= t) {
                started++;
                begin_request(c);
            } else if (c->wake < soonest) {
                soonest = c->wake;
            }
        }
    }
    if (o.probe_ms > 0 && !over) {
        if (t >= *next_probe) {
            *next_probe += o.probe_ms / 1000.0;
            if (free_probe < client_count) {
                begin_request(&clients[free_probe]);
            } else {
                all[1].failed++; /* as many as there are wait still: the server does not keep up at all */
            }
        }
        soonest = *next_probe < soonest ? *next_probe : soonest;
    }
    double wait = soonest - now();
    return wait <= 0 ? 0 : (int)(wait * 1000) + 1;
}

static void run(void) {
    double next_probe = now();
    struct epoll_event ready[256];
    while (!over) {
        int wait = begin_due(&next_probe);
        double left = o.seconds > 0 ? began + o.seconds - now() : 1;
        if (o.requests > 0 ? count_done() >= o.requests : left <= 0) {
            break;
        }
        if (o.requests == 0 && left * 1000 < wait) {
            wait = (int)(left * 1000) + 1;
        }
        int count = epoll_wait(events_fd, ready, 256, wait);
        if (count < 0 && errno != EINTR) {
            die("epoll_wait");
        }
        for (int i = 0; i < count; i++) {
            on_ready(ready[i].data.ptr, ready[i].events);
        }
    }
}

/* Connections that send nothing. Gives how many of them are still open at the end. */
static int *hold_idle(void) {
    int *fds = calloc((size_t)o.idle + 1, sizeof *fds);
    for (long i = 0; fds && i < o.idle; i++) {
        fds[i] = dial(true);
        if (fds[i] < 0) {
            die("an idle connection");
        }
    }
    return fds;
}

static long count_open(const int *fds) {
    long open = 0;
    char byte;
    for (long i = 0; i < o.idle; i++) {
        open += recv(fds[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
    }
    return open;
}

/* ---- figures
 * ------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double quantile(const samples *s, double q) {
    return s->count ? s->values[(size_t)(q * (double)(s->count - 1) + 0.5)] : 0;
}

static void print_samples(const char *name, samples *s, bool json) {
    if (s->count) {
        qsort(s->values, s->count, sizeof *s->values, compare);
    }
    printf(json ? ",\"%s_ms\":{\"count\":%zu,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"max\":%.3f}"
                : "  %-12s %9zu   p50 %9.3f   p90 %9.3f   p99 %9.3f   max %9.3f ms\n",
           name, s->count, quantile(s, 0.5), quantile(s, 0.9), quantile(s, 0.99), quantile(s, 1));
}

static void print_figures(const char *name, figures *f, double seconds, bool json) {
    printf(json ? ",\"%s\":{\"requests\":%ld,\"aborted\":%ld,\"refused\":%ld,\"errors\":%ld,\"tokens\":%ld,"
                  "\"told_tokens\":%ld,\"requests_per_second\":%.3f,\"tokens_per_second\":%.3f"
                : "%s: %ld requests, %ld aborted, %ld refused, %ld errors, %ld tokens (%ld by usage), %.2f "
                  "requests/s, "
                  "%.1f tokens/s\n",
           name, f->done, f->aborted, f->refused, f->failed, f->tokens, f->told_tokens,
           (double)f->done / seconds, (double)f->tokens / seconds);
    print_samples("ttft", &f->first, json);
    print_samples("inter_token", &f->between, json);
    print_samples("request", &f->whole, json);
    if (json) {
        printf("}");
    }
}

static void print_all(double seconds, long idle_open) {
    bool json = strcmp(o.output, "json") == 0;
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    double processor = (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
                       1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
    printf(json ? "{\"connections\":%ld,\"seconds\":%.3f,\"processor_seconds\":%.3f,\"idle\":%ld,\"idle_"
                  "open\":%ld"
                : "%ld connections, %.2f s, %.2f s of a processor, %ld idle connections, %ld of them open at "
                  "the end\n",
           o.connections, seconds, processor, o.idle, idle_open);
    print_figures("load", &all[0], seconds, json);
    if (o.probe_ms > 0) {
        print_figures("probe", &all[1], seconds, json);
    }
    if (json) {
        printf("}\n");
    }
}

/* ---- options
 * ------------------------------------------------------------------------------------------------- */

static const char HELP[] =
    "usage: load HOST:PORT [options]     (HOST: an IPv4 address)\n"
    "  -c N               connections that send one request after the other [8]\n"
    "  -s SECONDS         how long [10]\n"
    "  -r N               instead: until N requests have ended\n"
    "  --warmup SECONDS   at the beginning, that do not count [0]\n"
    "  --chat             chat with words instead of completions with token ids\n"
    "  --prompt N         tokens of a prompt [32]; each prompt is new but for its first --shared N [0]\n"
    "  --max-tokens N     to generate, exactly [64]\n"
    "  --vocabulary N     ids of prompts are 260 to 259 + N [2000]\n"
    "  --abort SHARE      of requests given up at a random token [0]\n"
    "  --idle N           connections held open that send nothing [0]\n"
    "  --probe MS         a second class: a request every MS milliseconds [0: none], of\n"
    "  --probe-prompt N   tokens [512] and\n"
    "  --probe-tokens N   tokens to generate [1]\n"
    "  --model NAME       [mini]\n"
    "  --key KEY\n"
    "  --seed N           of prompts [1]\n"
    "  -o text|json\n"
    "Exits with 0 when no request failed (429 and 503 are refusals, no failures).\n";

static long *long_option(const char *name) {
    static const struct {
        const char *name;
        long *value;
    } NUMBERS[] = {
        {"-c", &o.connections},
        {"-r", &o.requests},
        {"--prompt", &o.prompt_tokens},
        {"--shared", &o.shared_tokens},
        {"--max-tokens", &o.max_tokens},
        {"--vocabulary", &o.vocabulary},
        {"--idle", &o.idle},
        {"--probe", &o.probe_ms},
        {"--probe-prompt", &o.probe_tokens},
        {"--probe-tokens", &o.probe_max_tokens},
    };
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        if (strcmp(NUMBERS[i].name, name) == 0) {
            return NUMBERS[i].value;
        }
    }
    return NULL;
}

static bool read_option(const char *name, const char *value) {
    if (value == NULL) {
        return false;
    }
    char *end = "";
    long *number = long_option(name);
    if (number) {
        *number = strtol(value, &end, 10);
    } else if (strcmp(name, "-s") == 0) {
        o.seconds = strtod(value, &end);
    } else if (strcmp(name, "--warmup") == 0) {
        o.warmup = strtod(value, &end);
    } else if (strcmp(name, "--abort") == 0) {
        o.abort_share = strtod(value, &end);
    } else if (strcmp(name, "--seed") == 0) {
        o.seed = (unsigned)strtoul(value, &end, 10);
    } else if (strcmp(name, "--model") == 0) {
        o.model = value;
    } else if (strcmp(name, "--key") == 0) {
        o.key = value;
    } else if (strcmp(name, "-o") == 0) {
        o.output = value;
    } else {
        return false;
    }
    return *end == 0 && (number == NULL || *number >= 0);
}

static void read_options(int count, char **words) {
    bool target = false;
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0) {
            fputs(HELP, stdout);
            exit(0);
        }
        char *colon = strrchr(words[i], ':');
        if (strcmp(words[i], "--chat") == 0) {
            o.chat = true;
        } else if (words[i][0] != '-' && colon && !target) {
            *colon = 0;
            o.host = words[i];
            o.port = atoi(colon + 1);
            target = true;
        } else if (read_option(words[i], i + 1 < count ? words[i + 1] : NULL)) {
            i++;
        } else {
            fprintf(stderr, "load: %s: no option, or a wrong value (see load --help)\n", words[i]);
            exit(2);
        }
    }
    if (!target || o.connections < 1 || o.max_tokens < 1 || o.vocabulary < 1) {
        fputs(HELP, stderr);
        exit(2);
    }
}

int main(int count, char **words) {
    read_options(count, words);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    long probes = o.probe_ms > 0 ? 64 : 0; /* probes that may wait at once */
    client_count = (size_t)(o.connections + probes);
    clients = calloc(client_count, sizeof *clients);
    events_fd = epoll_create1(EPOLL_CLOEXEC);
    int *idle = hold_idle();
    if (clients == NULL || idle == NULL || events_fd < 0) {
        die("no memory");
    }
    for (size_t i = 0; i < client_count; i++) {
        clients[i].fd = -1;
        clients[i].kind = i >= (size_t)o.connections;
        next(&clients[i], 0);
    }
    began = now();
    measured = began + o.warmup;
    run();
    over = true;
    double seconds = now() - measured;
    for (size_t i = 0; i < client_count; i++) {
        hang_up(&clients[i]);
        free(clients[i].request);
    }
    print_all(seconds, count_open(idle));
    free(clients);
    free(idle);
    long failed = all[0].failed + all[1].failed;
    for (int i = 0; i < KINDS; i++) {
        free(all[i].first.values);
        free(all[i].between.values);
        free(all[i].whole.values);
    }
    return failed ? 1 : 0;
}

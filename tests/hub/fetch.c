/* Calls hub/download.h as the command line says, and prints what came of it as one JSON object.
 *
 *   fetch [OPTIONS] file URL PATH SIZE SHA256 [URL PATH SIZE SHA256...]      SIZE 0, SHA256 -: none
 *   fetch [OPTIONS] text URL ACCEPT MOST                                    ACCEPT -: any
 *   fetch [OPTIONS] head URL SIZE
 *
 *   --token TEXT  --connections N  --retries N  --stall SECONDS  --ca FILE
 *   --stop N      the progress function says stop once N bytes are there
 *   --slow N      the progress function takes N seconds
 *   --limit N     this process may write files of N bytes (RLIMIT_FSIZE)
 *   --threads N   the same call from N threads at once; the results of all, in a list
 *   --tell        progress on stderr as it comes
 *   --control FILE  --place N  the Nth allocation of the call fails, by tests/server/fail.c, whose control
 * FILE is */
#include "hub/download.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FILES = 256, MOST_THREADS = 16 };

/* As in tests/server/fail.c. */
typedef struct control {
    uint32_t mask, fired;
    int64_t remaining;
} control;

typedef struct task {
    hub_transfer transfer;
    char **words;
    int count;
    uint64_t stop;
    bool tell;
    double slow;
    const char *control;
    int64_t place;
    int calls;
    hub_progress last;
    double begun, seconds; /* when the call began, and how long it took */
    char doing[256];       /* every word of `doing`, in order, without repetitions in a row */
    json_t *result;
} task;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool on_progress(void *context, const hub_progress *p) {
    task *t = context;
    const size_t length = strlen(t->doing);
    const size_t word = strlen(p->doing);
    if ((length < word || strcmp(t->doing + length - word, p->doing) != 0) &&
        length + word + 2 < sizeof t->doing) {
        snprintf(t->doing + length, sizeof t->doing - length, "%s%s", length ? " " : "", p->doing);
    }
    t->calls++;
    usleep((useconds_t)(1e6 * t->slow));
    t->last = *p;
    if (t->tell) {
        fprintf(stderr,
                "%s %s %" PRIu64 " of %" PRIu64 ", resumed %" PRIu64 ", checked %" PRIu64
                ", %.0f/s, %.1f s, at %.4f s\n",
                p->doing, p->name, p->done, p->total, p->resumed, p->checked, p->bytes_a_second,
                p->seconds_left, now() - t->begun);
    }
    return !t->stop || p->done < t->stop;
}

static int get_files(task *t, char message[HUB_MESSAGE]) {
    hub_file files[MOST_FILES];
    size_t count = 0;
    for (int i = 0; i + 4 <= t->count && count < MOST_FILES; i += 4) {
        files[count++] = (hub_file){.url = t->words[i],
                                    .path = t->words[i + 1],
                                    .size = strtoull(t->words[i + 2], NULL, 10),
                                    .sha256 = strcmp(t->words[i + 3], "-") ? t->words[i + 3] : NULL};
    }
    return hub_download(&t->transfer, files, count, message);
}

/* From here on the allocation that is due fails; with place 0, none does. */
static control arm(const task *t, int64_t place) {
    control c = {.mask = place != 0, .remaining = place}, before = {0};
    const int fd = t->control ? open(t->control, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 &&
        (pread(fd, &before, sizeof before, 0) != sizeof before ||
         (c.mask && pwrite(fd, (char *)&c + 4, sizeof c - 4, 4) < 0) || pwrite(fd, &c.mask, 4, 0) < 0)) {
        perror(t->control);
    }
    if (fd >= 0) {
        close(fd);
    }
    return before;
}

static void *work(void *argument) {
    task *t = argument;
    char message[HUB_MESSAGE] = "";
    int code = HUB_ERR_NAME;
    json_t *result = json_object();
    t->transfer.progress = on_progress;
    t->transfer.context = t;
    const char *verb = t->words[0];
    t->words++;
    t->count--;
    t->begun = now();
    arm(t, t->place);
    if (!strcmp(verb, "file")) {
        code = get_files(t, message);
    } else if (!strcmp(verb, "text") && t->count == 3) {
        char *text = NULL;
        code = hub_fetch_text(&t->transfer, t->words[0], strcmp(t->words[1], "-") ? t->words[1] : NULL,
                              strtoull(t->words[2], NULL, 10), &text, message);
        json_object_set_new(result, "text", text ? json_string(text) : json_null());
        free(text);
    } else if (!strcmp(verb, "head") && t->count == 2) {
        hub_head head;
        code = hub_fetch_head(&t->transfer, t->words[0], strtoull(t->words[1], NULL, 10), &head, message);
        json_object_set_new(result, "text", head.bytes ? json_stringn(head.bytes, head.length) : json_null());
        json_object_set_new(result, "length", json_integer((json_int_t)head.length));
        json_object_set_new(result, "total", json_integer((json_int_t)head.total));
        free(head.bytes);
    } else {
        snprintf(message, sizeof message, "a command line that says nothing");
    }
    const control counted = arm(t, 0);
    t->seconds = now() - t->begun;
    json_object_set_new(result, "fired", json_integer(counted.fired));
    json_object_set_new(result, "allocations", json_integer(t->place - counted.remaining));
    json_object_set_new(result, "code", json_integer(code));
    json_object_set_new(result, "message", json_string(message));
    json_object_set_new(result, "calls", json_integer(t->calls));
    json_object_set_new(result, "done", json_integer((json_int_t)t->last.done));
    json_object_set_new(result, "total_bytes", json_integer((json_int_t)t->last.total));
    json_object_set_new(result, "resumed", json_integer((json_int_t)t->last.resumed));
    json_object_set_new(result, "checked", json_integer((json_int_t)t->last.checked));
    json_object_set_new(result, "seconds", json_real(t->seconds));
    json_object_set_new(result, "rate", json_real(t->last.bytes_a_second));
    json_object_set_new(result, "left", json_real(t->last.seconds_left));
    json_object_set_new(result, "doing", json_string(t->doing));
    t->result = result;
    return NULL;
}

static void limit_files(const char *bytes) {
    const rlim_t most = strtoull(bytes, NULL, 10);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = most, .rlim_max = most});
}

/* Returns the number of words read. */
static int read_options(int argc, char **argv, task *t, int *threads) {
    int i = 1;
    for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i++) {
        const char *name = argv[i] + 2;
        if (!strcmp(name, "tell")) {
            t->tell = true;
            continue;
        }
        const char *value = argv[++i];
        if (!strcmp(name, "token")) {
            t->transfer.token = value;
        } else if (!strcmp(name, "connections")) {
            t->transfer.connections = atoi(value);
        } else if (!strcmp(name, "retries")) {
            t->transfer.retries = atoi(value);
        } else if (!strcmp(name, "stall")) {
            t->transfer.stall_seconds = atof(value);
        } else if (!strcmp(name, "ca")) {
            t->transfer.ca_file = value;
        } else if (!strcmp(name, "stop")) {
            t->stop = strtoull(value, NULL, 10);
        } else if (!strcmp(name, "slow")) {
            t->slow = atof(value);
        } else if (!strcmp(name, "control")) {
            t->control = value;
        } else if (!strcmp(name, "place")) {
            t->place = strtoll(value, NULL, 10);
        } else if (!strcmp(name, "limit")) {
            limit_files(value);
        } else if (!strcmp(name, "threads")) {
            *threads = atoi(value);
        } else {
            fprintf(stderr, "fetch: no option --%s\n", name);
            return argc;
        }
    }
    return i;
}

int main(int argc, char **argv) {
    static task tasks[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    int threads = 0;
    const int first = read_options(argc, argv, &tasks[0], &threads);
    if (first >= argc || threads > MOST_THREADS) {
        fprintf(stderr, "fetch: nothing to fetch\n");
        return 2;
    }
    tasks[0].words = argv + first;
    tasks[0].count = argc - first;
    if (!threads) {
        work(&tasks[0]);
        json_dumpf(tasks[0].result, stdout, JSON_COMPACT);
        json_decref(tasks[0].result);
        puts("");
        return 0;
    }
    json_t *all = json_array();
    for (int i = 0; i < threads; i++) {
        tasks[i] = tasks[0];
    }
    for (int i = 0; i < threads; i++) {
        pthread_create(&ids[i], NULL, work, &tasks[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        json_array_append_new(all, tasks[i].result);
    }
    json_dumpf(all, stdout, JSON_COMPACT);
    json_decref(all);
    puts("");
    return 0;
}

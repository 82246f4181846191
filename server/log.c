#include "log.h"

#include "text.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Lines beyond are dropped, and counted. */
enum { WAITING_BYTES = 1 << 20, LINE_BYTES = 1024 };

struct log {
    int descriptor;
    bool json, stop;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    text waiting;
    unsigned long long dropped;
};

/* False: it takes nothing, or is closed. */
static bool write_all(log_writer *l, const char *bytes, size_t length, bool hurry) {
    while (length > 0) {
        struct pollfd ready = {.fd = l->descriptor, .events = POLLOUT};
        if (poll(&ready, 1, hurry ? 1000 : 60000) <= 0) {
            return false;
        }
        const ssize_t written = write(l->descriptor, bytes, length < LINE_BYTES ? length : LINE_BYTES);
        if (written < 0 && errno != EINTR && errno != EAGAIN) {
            return false;
        }
        bytes += written > 0 ? written : 0;
        length -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

static void *write_lines(void *argument) {
    log_writer *l = argument;
    text taken = {0};
    pthread_mutex_lock(&l->mutex);
    while (!l->stop || l->waiting.length) {
        while (!l->stop && !l->waiting.length) {
            pthread_cond_wait(&l->wake, &l->mutex);
        }
        const text swap = taken;
        taken = l->waiting;
        l->waiting = swap;
        text_clear(&l->waiting);
        const unsigned long long dropped = l->dropped;
        const bool hurry = l->stop;
        l->dropped = 0;
        pthread_mutex_unlock(&l->mutex);
        if (dropped) {
            text_format(&taken, "sluice: %llu lines of the log were dropped, nobody read them\n", dropped);
        }
        const bool written = write_all(l, taken.data ? taken.data : "", taken.length, hurry);
        pthread_mutex_lock(&l->mutex);
        if (!written && l->stop) {
            break;
        }
    }
    pthread_mutex_unlock(&l->mutex);
    text_free(&taken);
    return NULL;
}

log_writer *log_create(int descriptor, bool json) {
    log_writer *l = calloc(1, sizeof *l);
    if (!l) {
        return NULL;
    }
    l->descriptor = descriptor;
    l->json = json;
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->wake, NULL);
    if (pthread_create(&l->thread, NULL, write_lines, l)) {
        pthread_mutex_destroy(&l->mutex);
        pthread_cond_destroy(&l->wake);
        free(l);
        return NULL;
    }
    return l;
}

void log_destroy(log_writer *l) {
    if (!l) {
        return;
    }
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->wake);
    text_free(&l->waiting);
    free(l);
}

static void add_line(log_writer *l, const text *line) {
    pthread_mutex_lock(&l->mutex);
    if (line->failed || l->waiting.length + line->length > WAITING_BYTES) {
        l->dropped++;
    } else {
        text_add(&l->waiting, line->data, line->length);
        if (l->waiting.failed) {
            text_free(&l->waiting);
            l->dropped++;
        }
    }
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->mutex);
}

static void add_time(text *line) {
    char stamp[40];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    text_format(line, "%s.%03ldZ", stamp, now.tv_nsec / 1000000);
}

void log_message(log_writer *l, const char *format, ...) {
    char message[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    text line = {0};
    if (l->json) {
        text_put(&line, "{\"time\":\"");
        add_time(&line);
        text_put(&line, "\",\"message\":");
        text_string(&line, message, strlen(message));
        text_put(&line, "}\n");
    } else {
        text_format(&line, "sluice: %s\n", message);
    }
    add_line(l, &line);
    text_free(&line);
}

void log_request(log_writer *l, const http_record *r) {
    text line = {0};
    text_put(&line, l->json ? "{\"time\":\"" : "");
    add_time(&line);
    text_format(
        &line,
        l->json ? "\",\"id\":\"%s\",\"method\":\"%s\",\"route\":\"%s\",\"status\":%d,\"prompt_tokens\":%llu,"
                  "\"cached_tokens\":%llu,\"generated_tokens\":%llu,\"queue_ms\":%.1f,\"prefill_ms\":%.1f,"
                  "\"decode_ms\":%.1f,\"total_ms\":%.1f}\n"
                : " %s %s %s %d prompt=%llu cached=%llu generated=%llu queue=%.1fms prefill=%.1fms "
                  "decode=%.1fms total=%.1fms\n",
        r->id, r->method, *r->route ? r->route : "-", r->status, (unsigned long long)r->prompt_tokens,
        (unsigned long long)r->cached_tokens, (unsigned long long)r->generated_tokens, r->queue_seconds * 1e3,
        r->prompt_seconds * 1e3, r->generate_seconds * 1e3, r->total_seconds * 1e3);
    add_line(l, &line);
    text_free(&line);
}

#include "job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    HASH_BYTES = 256 << 10, /* read at once */
    HASH_STEP = 4 << 20,    /* before connections are looked after again */
    MOST_ANEW = 3,
    SHOWN_DIGITS = 12,
};

bool hub_job_failed(hub_call *call, hub_job *job, int code) {
    if (!call->status) {
        call->status = code;
        call->failed = job;
    }
    return false;
}

bool hub_job_fail(hub_call *call, hub_job *job, int code, const char *rule) {
    if (!call->status) {
        hub_report(call->message, code, "%s: %s", job->part.shown, rule);
    }
    return hub_job_failed(call, job, code);
}

uint64_t hub_job_size(const hub_job *job) {
    return job->part.sized ? job->part.size : job->file->size;
}

uint64_t hub_job_bytes(const hub_job *job) {
    return job->state == HUB_JOB_DONE ? job->part.size : job->part.have.total;
}

/* ---- the beginning ----------------------------------------------------------------------------------------
 */

static void opened(hub_call *call, hub_job *job) {
    job->state = HUB_JOB_MOVING;
    job->resumed = job->part.have.total;
    job->saved = hub_now();
    job->pause = 0.25; /* soon: then it is known whose bytes they are */
    if (job->part.sha256[0] && !job->hashing) {
        job->hashing = gnutls_hash_init(&job->hash, GNUTLS_DIG_SHA256) == 0;
        if (!job->hashing) {
            hub_job_fail(call, job, HUB_ERR_NOMEM, "SHA-256 could not begin: out of memory");
        }
    }
    if (job->part.sized) {
        hub_job_room(call, job);
    }
}

/* Nobody who works on a file leaves it untouched for long. */
static void look_at_other(hub_call *call, hub_job *job) {
    const double now = hub_now(), touched = hub_part_touched(&job->part);
    const double most = 4 * hub_web_stall(call->transfer);
    if (job->state != HUB_JOB_LOCKED || touched != job->touched) {
        job->state = HUB_JOB_LOCKED;
        job->touched = touched;
        job->sign = now;
    } else if (now - job->sign > most && !call->status) {
        hub_report(
            call->message, HUB_ERR_BUSY,
            "%s: another process has %s open and has done nothing with it for %.3g s; end that one, then run "
            "it again",
            job->part.shown, job->part.bytes, now - job->sign);
        hub_job_failed(call, job, HUB_ERR_BUSY);
    }
}

void hub_job_open(hub_call *call, hub_job *job) {
    struct stat facts;
    char message[HUB_MESSAGE];
    job->looked = hub_now();
    const int place = hub_part_open(&job->part, message);
    if (place < 0 && !call->status) {
        snprintf(call->message, HUB_MESSAGE, "%s", message);
        hub_job_failed(call, job, place);
    } else if (place == HUB_PLACE_OPEN) {
        opened(call, job);
    } else if (place == HUB_PLACE_LOCKED) {
        look_at_other(call, job);
    } else if (place == HUB_PLACE_COMPLETE) {
        job->part.size = stat(job->file->path, &facts) ? 0 : (uint64_t)facts.st_size;
        job->part.sized = true;
        job->resumed = job->part.size;
        job->state = HUB_JOB_DONE;
    }
}

static void write_size(char text[32], uint64_t bytes) {
    if (bytes < 1000000) {
        snprintf(text, 32, "%llu bytes", (unsigned long long)bytes);
    } else if (bytes < 1000000000) {
        snprintf(text, 32, "%.1f MB", (double)bytes / 1e6);
    } else {
        snprintf(text, 32, "%.1f GB", (double)bytes / 1e9);
    }
}

/* The device of a file's folder; false: not to be had. */
static bool device_of(const char *path, dev_t *device, struct statvfs *space) {
    struct stat facts;
    char *folder = strdup(path);
    char *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) {
        slash[slash == folder] = '\0';
    }
    const bool good = folder && stat(slash ? folder : ".", &facts) == 0 &&
                      (!space || statvfs(slash ? folder : ".", space) == 0);
    *device = good ? facts.st_dev : 0;
    free(folder);
    return good;
}

bool hub_job_room(hub_call *call, hub_job *job) {
    struct statvfs space;
    dev_t own, other;
    uint64_t needed = 0;
    if (hub_part_fits(&job->part, job->part.size, call->message)) {
        return hub_job_failed(call, job, HUB_ERR_DISK);
    }
    if (!device_of(job->file->path, &own, &space) || space.f_blocks == 0) {
        return true; /* some systems do not tell */
    }
    for (size_t i = 0; i < call->count; i++) {
        const hub_job *j = &call->jobs[i];
        if (j->state != HUB_JOB_DONE && hub_job_size(j) > j->part.have.total &&
            (j == job || (device_of(j->file->path, &other, NULL) && other == own))) {
            needed += hub_job_size(j) - j->part.have.total;
        }
    }
    const uint64_t available = (uint64_t)space.f_bavail * space.f_frsize;
    if (needed <= available) {
        return true;
    }
    char lacking[32], wanted[32], there[32];
    write_size(lacking, needed - available);
    write_size(wanted, needed);
    write_size(there, available);
    if (!call->status) {
        hub_report(call->message, HUB_ERR_DISK, "%s: %s of room are missing: %s to fetch, %s available",
                   job->file->path, lacking, wanted, there);
    }
    return hub_job_failed(call, job, HUB_ERR_DISK);
}

bool hub_job_anew(hub_call *call, hub_job *job) {
    char message[HUB_MESSAGE];
    unsigned char digest[32];
    if (job->hashing && job->hashed) {
        gnutls_hash_output(job->hash, digest); /* begins anew as well */
    }
    job->hashed = 0;
    job->resumed = 0;
    job->known = false;
    const int code = hub_part_clear(&job->part, job->file->size, message);
    if (code && !call->status) {
        snprintf(call->message, HUB_MESSAGE, "%s", message);
        hub_job_failed(call, job, code);
    } else if (++job->anew > MOST_ANEW) {
        hub_job_fail(call, job, HUB_ERR_CONTENT, "the file changes all the time while it is being fetched");
    }
    return call->status == 0;
}

/* ---- the end ----------------------------------------------------------------------------------------------
 */

/* Hashes what is there without a gap, a step of it. False: a failure. */
static bool hash_more(hub_call *call, hub_job *job, uint64_t end) {
    call->buffer = call->buffer ? call->buffer : malloc(HASH_BYTES);
    if (!call->buffer) {
        return hub_job_fail(call, job, HUB_ERR_NOMEM, "out of memory");
    }
    uint64_t most = job->hashed + HASH_STEP;
    most = most < end ? most : end;
    while (job->hashed < most) {
        const uint64_t rest = most - job->hashed;
        const ssize_t length = pread(job->part.fd, call->buffer,
                                     rest < HASH_BYTES ? (size_t)rest : HASH_BYTES, (off_t)job->hashed);
        if (length < 0 && errno == EINTR) {
            continue;
        }
        if (length <= 0) {
            if (!call->status) {
                hub_report(call->message, HUB_ERR_DISK, "%s: cannot be read: %s", job->part.bytes,
                           length ? strerror(errno) : "it became shorter");
            }
            return hub_job_failed(call, job, HUB_ERR_DISK);
        }
        if (gnutls_hash(job->hash, call->buffer, (size_t)length)) {
            return hub_job_fail(call, job, HUB_ERR_NOMEM, "SHA-256 could not go on");
        }
        job->hashed += (uint64_t)length;
    }
    return true;
}

static bool hash_is_right(hub_call *call, hub_job *job) {
    unsigned char digest[32];
    char text[65];
    gnutls_hash_output(job->hash, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
    if (!strcmp(text, job->part.sha256)) {
        return true;
    }
    if (!call->status) {
        hub_report(
            call->message, HUB_ERR_CONTENT,
            "%s: SHA-256 begins with %.*s, promised is %.*s: what came of %s is damaged and was removed; run "
            "it again to fetch it anew",
            job->part.shown, SHOWN_DIGITS, text, SHOWN_DIGITS, job->part.sha256, job->name);
        call->damaged = true;
    }
    hub_part_remove(&job->part);
    return hub_job_failed(call, job, HUB_ERR_CONTENT);
}

static void finish(hub_call *call, hub_job *job) {
    char message[HUB_MESSAGE];
    if (job->hashing && !hash_is_right(call, job)) {
        return;
    }
    const int code = hub_part_finish(&job->part, message);
    if (code) {
        if (!call->status) {
            snprintf(call->message, HUB_MESSAGE, "%s", message);
        }
        hub_job_failed(call, job, code);
        return;
    }
    job->state = HUB_JOB_DONE;
    hub_job_close(job);
}

/* The record, once a second, or less often where a flush takes long. */
static void save(hub_call *call, hub_job *job, double now) {
    char message[HUB_MESSAGE];
    if (now - job->saved < job->pause) {
        return;
    }
    const int code = hub_part_save(&job->part, message);
    /* A disk that has no room for the record says so at the next byte too; without memory the old one stays.
     */
    if (code == HUB_ERR_DISK && !call->status) {
        snprintf(call->message, HUB_MESSAGE, "%s", message);
        hub_job_failed(call, job, code);
    }
    hub_part_touch(&job->part);
    job->saved = hub_now();
    const double pause = 10 * (job->saved - now);
    job->pause = pause < 1 ? 1 : pause < 5 ? pause : 5;
}

bool hub_job_step(hub_call *call, hub_job *job, double now) {
    if (job->part.fd < 0 || call->status) {
        return false;
    }
    save(call, job, now);
    const bool complete = job->part.sized && job->part.have.total == job->part.size;
    job->state = complete ? HUB_JOB_CHECKING : HUB_JOB_MOVING;
    const uint64_t there = job->hashing ? hub_ranges_prefix(&job->part.have) : 0;
    if (there - job->hashed >= (complete ? 1 : HASH_STEP) && !hash_more(call, job, there)) {
        return false;
    }
    const bool more = there - job->hashed >= (complete ? 1 : HASH_STEP);
    if (complete && !more && !call->status) {
        finish(call, job);
    }
    return more;
}

void hub_job_close(hub_job *job) {
    if (job->hashing) {
        gnutls_hash_deinit(job->hash, NULL);
        job->hashing = false;
    }
    hub_part_close(&job->part);
    free(job->direct);
    job->direct = NULL;
}

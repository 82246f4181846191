#include "download.h"

#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONNECTIONS = 4,
    LEAST_PIECE = 4 << 20,
    MOST_PIECE = 256 << 20,
    PIECES_EACH = 2, /* for each connection of what is left: pieces become smaller towards the end */
};

static const double POLL_SECONDS = 0.1, TELL_SECONDS = 0.1, SAMPLE_SECONDS = 0.25, LOCK_SECONDS = 0.25;

/* ---- who does what ----------------------------------------------------------------------------------------
 */

/* The first bytes that are neither there nor being fetched, at most a piece of them. */
static bool pick(const hub_call *call, const hub_job *job, hub_range *piece) {
    const hub_partial *part = &job->part;
    uint64_t from = 0, assigned = 0;
    for (int i = 0; i < call->slot_count; i++) {
        const hub_slot *s = &call->slots[i];
        assigned += s->job == job && !s->cancelled ? s->end - s->at : 0;
    }
    const uint64_t missing = part->sized ? part->size - part->have.total : 0;
    uint64_t most = missing > assigned ? (missing - assigned) / (uint64_t)(PIECES_EACH * job->most) : 0;
    most = most < LEAST_PIECE ? LEAST_PIECE : most < MOST_PIECE ? most : MOST_PIECE;
    while (hub_ranges_gap(&part->have, from, part->sized ? part->size : LEAST_PIECE, piece)) {
        bool taken = false;
        for (int i = 0; i < call->slot_count && !taken; i++) {
            const hub_slot *s = &call->slots[i];
            if (s->job != job || s->cancelled) {
                continue;
            }
            taken = s->at <= piece->begin && piece->begin < s->end;
            if (taken) {
                from = s->end;
            } else if (s->at > piece->begin && s->at < piece->end) {
                piece->end = s->at;
            }
        }
        if (!taken) {
            piece->end = piece->end - piece->begin > most ? piece->begin + most : piece->end;
            return true;
        }
    }
    return false;
}

/* Gives a free slot to a job; false: the job has no use for it. */
static bool employ(hub_call *call, hub_slot *slot, hub_job *job) {
    hub_range piece = {0, UINT64_MAX};
    const int busy = hub_slots_of(call, job);
    if (job->state != HUB_JOB_MOVING || busy >= (job->plain || !job->known ? 1 : job->most) ||
        (job->part.sized && job->part.have.total == job->part.size)) {
        return false;
    }
    if (!job->plain && !pick(call, job, &piece)) {
        return false;
    }
    hub_slot_begin(call, slot, job, !job->plain, piece);
    return true;
}

/* Files in their order; the next one begins when those before it leave a connection free. */
static void employ_all(hub_call *call) {
    for (int i = 0; i < call->slot_count; i++) {
        hub_slot *slot = &call->slots[i];
        for (size_t j = 0; j < call->count && !slot->job && !call->status; j++) {
            hub_job *job = &call->jobs[j];
            if (job->state == HUB_JOB_NEW) {
                hub_job_open(call, job);
            }
            if (!call->status) {
                employ(call, slot, job);
            }
        }
    }
}

/* ---- progress ---------------------------------------------------------------------------------------------
 */

/* Bytes a second over the samples, which reach 5 s back. */
static double rate(hub_call *call, double now) {
    if (!call->sample_count || now - call->sample_times[call->sample_count - 1] >= SAMPLE_SECONDS) {
        if (call->sample_count == HUB_SAMPLES) {
            call->sample_count--;
            memmove(call->samples, call->samples + 1, call->sample_count * sizeof *call->samples);
            memmove(call->sample_times, call->sample_times + 1,
                    call->sample_count * sizeof *call->sample_times);
        }
        call->sample_times[call->sample_count] = now;
        call->samples[call->sample_count++] = call->fresh;
    }
    const double seconds = now - call->sample_times[0];
    return seconds >= SAMPLE_SECONDS ? (double)(call->fresh - call->samples[0]) / seconds : 0;
}

static bool waits(const hub_call *call, const hub_job *job) {
    int waiting = 0;
    for (int i = 0; i < call->slot_count; i++) {
        waiting += call->slots[i].job == job && call->slots[i].wake > 0;
    }
    return waiting > 0 && waiting == hub_slots_of(call, job);
}

/* The file that the line is about: one that moves rather than one that waits. */
static const hub_job *shown_job(const hub_call *call) {
    const hub_job *shown = NULL;
    static const int RANK[] = {[HUB_JOB_NEW] = 1,
                               [HUB_JOB_LOCKED] = 2,
                               [HUB_JOB_MOVING] = 4,
                               [HUB_JOB_CHECKING] = 3,
                               [HUB_JOB_DONE] = 0};
    for (size_t i = 0; i < call->count; i++) {
        if (!shown || RANK[call->jobs[i].state] > RANK[shown->state]) {
            shown = &call->jobs[i];
        }
    }
    return shown;
}

/* False: the caller wants no more. */
static bool tell(hub_call *call, double now) {
    if (!call->transfer->progress || now - call->told < TELL_SECONDS) {
        return true;
    }
    call->told = now;
    const hub_job *job = shown_job(call);
    hub_progress p = {.name = job->name, .checked = job->hashed};
    p.doing = job->state == HUB_JOB_DONE       ? "complete"
              : job->state == HUB_JOB_LOCKED   ? "locked"
              : job->state == HUB_JOB_CHECKING ? "checking"
              : waits(call, job)               ? "waiting"
                                               : "fetching";
    bool all = true;
    for (size_t i = 0; i < call->count; i++) {
        const hub_job *j = &call->jobs[i];
        p.done += hub_job_bytes(j);
        p.resumed += j->resumed;
        p.total += hub_job_size(j);
        all = all && (hub_job_size(j) || j->state == HUB_JOB_DONE);
    }
    p.total = all ? p.total : 0;
    p.bytes_a_second = rate(call, now);
    p.seconds_left = all && p.bytes_a_second > 0 ? (double)(p.total - p.done) / p.bytes_a_second : 0;
    return call->transfer->progress(call->transfer->context, &p);
}

/* ---- the loop ---------------------------------------------------------------------------------------------
 */

static void take_messages(hub_call *call) {
    int left, running;
    if (curl_multi_perform(call->multi, &running) != CURLM_OK && !call->status) {
        hub_report(call->message, HUB_ERR_NOMEM, "libcurl could not go on: out of memory");
        hub_job_failed(call, NULL, HUB_ERR_NOMEM);
    }
    for (CURLMsg *m; (m = curl_multi_info_read(call->multi, &left));) {
        if (m->msg != CURLMSG_DONE) {
            continue;
        }
        for (int i = 0; i < call->slot_count; i++) {
            hub_slot *slot = &call->slots[i];
            if (slot->job && slot->web.running && slot->web.easy == m->easy_handle) {
                hub_slot_ended(call, slot, m->data.result);
                break;
            }
        }
    }
}

/* One round; true: there is more to do without waiting. */
static bool round_of(hub_call *call) {
    const double now = hub_now();
    bool more = false;
    take_messages(call);
    for (int i = 0; i < call->slot_count && !call->status; i++) {
        if (call->slots[i].job) {
            hub_slot_tick(call, &call->slots[i], now);
        }
    }
    for (size_t i = 0; i < call->count && !call->status; i++) {
        hub_job *job = &call->jobs[i];
        if (job->state == HUB_JOB_LOCKED && now - job->looked >= LOCK_SECONDS) {
            hub_job_open(call, job);
        }
        more = hub_job_step(call, job, now) || more;
    }
    if (!call->status) {
        employ_all(call); /* last: what became free goes on without a wait */
    }
    return more;
}

static bool all_done(const hub_call *call) {
    for (size_t i = 0; i < call->count; i++) {
        if (call->jobs[i].state != HUB_JOB_DONE) {
            return false;
        }
    }
    return true;
}

/* Milliseconds until somebody's waiting ends, or progress is due. */
static int wait_of(const hub_call *call, double now) {
    double wait = POLL_SECONDS;
    for (int i = 0; i < call->slot_count; i++) {
        const hub_slot *s = &call->slots[i];
        if (s->job && s->wake && s->wake - now < wait) {
            wait = s->wake > now ? s->wake - now : 0;
        }
    }
    return (int)(wait * 1000);
}

/* Time that this thread was away, in a flush or in the caller's function, is no stall of a server. */
static void excuse(hub_call *call, double seconds) {
    for (int i = 0; i < call->slot_count && seconds > 0.5; i++) {
        call->slots[i].web.heard += seconds;
    }
}

static void move(hub_call *call) {
    double heard = hub_now();
    while (!call->status && !all_done(call)) {
        const bool more = round_of(call);
        double now = hub_now();
        if (!call->status && !tell(call, now)) {
            hub_report(call->message, HUB_ERR_STOPPED, "%s: stopped", call->jobs[0].part.shown);
            hub_job_failed(call, (hub_job *)shown_job(call), HUB_ERR_STOPPED);
        }
        now = hub_now();
        excuse(call, now - heard);
        if (!call->status && !all_done(call)) {
            curl_multi_poll(call->multi, NULL, 0, more ? 0 : wait_of(call, now), NULL);
        }
        heard = hub_now();
    }
    if (!call->status) {
        call->told = 0;
        tell(call, heard); /* that all is there; nothing is left to stop */
    }
}

/* ---- the beginning and the end ----------------------------------------------------------------------------
 */

static bool is_hash(const char *text) {
    return strlen(text) == 64 && strspn(text, "0123456789abcdefABCDEF") == 64;
}

static int begin_job(hub_job *job, const hub_file *file, int connections, char message[HUB_MESSAGE]) {
    char shown[HUB_SHOWN];
    const char *slash = file->path ? strrchr(file->path, '/') : NULL;
    job->file = file;
    job->most = connections;
    if (!file->url || !hub_web_shown(file->url, shown)) {
        return hub_web_no_url(file->url ? file->url : "", message);
    }
    if (!file->path || !*file->path || (slash && !slash[1])) {
        return hub_report(message, HUB_ERR_NAME, "%s: no path to write it to", shown);
    }
    if (file->sha256 && !is_hash(file->sha256)) {
        return hub_report(message, HUB_ERR_NAME,
                          "%s: what is promised as SHA-256 has not 64 hexadecimal digits", shown);
    }
    if (file->size > INT64_MAX / 2) {
        return hub_report(message, HUB_ERR_NAME, "%s: the size that is promised is none", shown);
    }
    job->name = slash ? slash + 1 : file->path;
    return hub_part_begin(&job->part, file, shown, message);
}

/* What to do next, behind the reason. */
static void advise(hub_call *call) {
    char *message = call->message;
    const size_t length = strlen(message);
    const hub_job *job = call->failed;
    if (!job || call->damaged || call->status == HUB_ERR_BUSY || call->status == HUB_ERR_NAME) {
        return;
    }
    const uint64_t size = hub_job_size(job), there = job->part.have.total;
    const bool kept = job->part.sized && size && there;
    const bool again = call->status == HUB_ERR_NETWORK || call->status == HUB_ERR_STOPPED ||
                       call->status == HUB_ERR_DISK || call->status == HUB_ERR_NOMEM;
    if (kept) {
        snprintf(message + length, HUB_MESSAGE - length, "; run it again to go on from %d %% of %s",
                 (int)(100 * ((double)there / (double)size)), job->name);
    } else if (again) {
        snprintf(message + length, HUB_MESSAGE - length, "; nothing of %s is kept, run it again", job->name);
    } else {
        snprintf(message + length, HUB_MESSAGE - length, "; %s was not fetched", job->name);
    }
}

static void end(hub_call *call) {
    char message[HUB_MESSAGE];
    for (int i = 0; i < call->slot_count; i++) {
        hub_slot_free(&call->slots[i]);
    }
    if (call->status) {
        advise(call);
    }
    for (size_t i = 0; call->jobs && i < call->count; i++) {
        hub_job *job = &call->jobs[i];
        if (job->part.path) {
            hub_part_save(&job->part, message); /* what led here says more than a failure of this */
            hub_job_close(job);
            hub_part_free(&job->part);
        }
    }
    curl_multi_cleanup(call->multi);
    free(call->jobs);
    free(call->buffer);
}

int hub_download(const hub_transfer *transfer, const hub_file *files, size_t count,
                 char message[HUB_MESSAGE]) {
    message[0] = '\0';
    const int code = hub_web_begin(message);
    if (code || count == 0) {
        return code;
    }
    const int wanted = transfer->connections > 0 ? transfer->connections : CONNECTIONS;
    hub_call *call = calloc(1, sizeof *call);
    if (!call) {
        return hub_report(message, HUB_ERR_NOMEM, "out of memory");
    }
    call->transfer = transfer;
    call->message = message;
    call->slot_count = wanted < HUB_MOST_SLOTS ? wanted : HUB_MOST_SLOTS;
    call->jobs = calloc(count, sizeof *call->jobs);
    call->multi = call->jobs ? curl_multi_init() : NULL;
    if (!call->multi) {
        call->status = hub_report(message, HUB_ERR_NOMEM, "out of memory");
    } else {
        for (; call->count < count && !call->status; call->count++) {
            call->status =
                begin_job(&call->jobs[call->count], &files[call->count], call->slot_count, message);
        }
        move(call);
    }
    end(call);
    const int status = call->status;
    free(call);
    return status;
}

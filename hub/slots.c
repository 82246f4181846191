#include "job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what an answer says before its body ------------------------------------------------------------------
 */

static bool fail(hub_slot *slot, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool fail(hub_slot *slot, int code, const char *format, ...) {
    char rule[HUB_RULE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rule, sizeof rule, format, arguments);
    va_end(arguments);
    return hub_job_fail(slot->call, slot->job, code, rule);
}

static bool other_total(hub_slot *slot, uint64_t total) {
    return fail(slot, HUB_ERR_CONTENT, "the server's file has %llu bytes, %llu were promised",
                (unsigned long long)total, (unsigned long long)slot->job->file->size);
}

/* Whose bytes come from now on. */
static bool adopt(hub_slot *slot, const hub_answer *answer, bool sized, uint64_t size) {
    hub_partial *part = &slot->job->part;
    if (!part->etag[0] && !part->modified[0]) {
        snprintf(part->etag, sizeof part->etag, "%s", answer->etag);
        snprintf(part->modified, sizeof part->modified, "%s", answer->modified);
    }
    if (sized) {
        part->sized = true;
        part->size = size;
    }
    const bool first = !slot->job->known;
    slot->job->known = true;
    return !first || !part->sized || hub_job_room(slot->call, slot->job);
}

static bool part_begins(hub_slot *slot, const hub_answer *answer) {
    hub_job *job = slot->job;
    hub_partial *part = &job->part;
    const uint64_t size = job->file->size;
    if (!slot->ranged) {
        return fail(slot, HUB_ERR_CONTENT, "the server answered 206 though the whole was asked for");
    }
    if (!answer->part) {
        return fail(slot, HUB_ERR_CONTENT,
                    "the server answered 206 without saying which bytes (Content-Range)");
    }
    if (answer->begin != slot->at || answer->end > slot->end) {
        return fail(slot, HUB_ERR_CONTENT,
                    "bytes %llu to %llu were asked for, Content-Range says %llu to %llu",
                    (unsigned long long)slot->at, (unsigned long long)slot->end - 1,
                    (unsigned long long)answer->begin, (unsigned long long)answer->end - 1);
    }
    if ((answer->sized && answer->length != answer->end - answer->begin) ||
        (answer->part_total && answer->end > answer->total)) {
        return fail(slot, HUB_ERR_CONTENT, "Content-Range and Content-Length do not fit");
    }
    if (!answer->part_total && !part->sized) {
        slot->whole_only = true; /* of unknown size: nobody could tell what is missing */
        return false;
    }
    if (answer->part_total && size && answer->total != size) {
        return other_total(slot, answer->total);
    }
    if ((answer->part_total && part->sized && answer->total != part->size) ||
        !hub_part_same(part, answer->etag, answer->modified)) {
        slot->changed = true;
        return false;
    }
    slot->end = answer->end;
    return adopt(slot, answer, answer->part_total, answer->total);
}

/* The whole, whatever was asked for: the file has changed, or the server knows no ranges. */
static bool whole_begins(hub_slot *slot, const hub_answer *answer) {
    hub_call *call = slot->call;
    hub_job *job = slot->job;
    hub_partial *part = &job->part;
    const uint64_t size = job->file->size;
    if (answer->sized && size && answer->length != size) {
        return other_total(slot, answer->length);
    }
    if (!answer->sized && !answer->chunked && !size && !part->sha256[0]) {
        return fail(
            slot, HUB_ERR_CONTENT,
            "the server says no length, and no size and no SHA-256 is promised: nothing tells a whole file "
            "from a broken one");
    }
    const bool other = !hub_part_same(part, answer->etag, answer->modified) ||
                       (answer->sized && part->sized && answer->length != part->size) ||
                       (!answer->sized && part->sized && !size);
    if (other) {
        slot->changed = true; /* asked for again, in ranges */
        return false;
    }
    for (int i = 0; i < call->slot_count; i++) {
        hub_slot *s = &call->slots[i];
        s->cancelled = s->cancelled || (s != slot && s->job == job);
    }
    job->plain = true;
    slot->at = 0;
    slot->end = answer->sized ? answer->length : size ? size : UINT64_MAX;
    return adopt(slot, answer, answer->sized, answer->length);
}

static bool begins(void *context, const hub_answer *answer) {
    hub_slot *slot = context;
    if (slot->cancelled || slot->call->status) {
        return false;
    }
    return answer->status == 206 ? part_begins(slot, answer) : whole_begins(slot, answer);
}

static bool bytes(void *context, const char *from, size_t length) {
    hub_slot *slot = context;
    hub_call *call = slot->call;
    char message[HUB_MESSAGE];
    uint64_t fresh = 0;
    if (slot->cancelled || call->status) {
        return false;
    }
    if (length > slot->end - slot->at) {
        return fail(slot, HUB_ERR_CONTENT,
                    "the server sends more bytes than it was asked for or than it said");
    }
    const int code = hub_part_write(&slot->job->part, slot->at, from, length, &fresh, message);
    if (code) {
        if (!call->status) {
            snprintf(call->message, HUB_MESSAGE, "%s", message);
        }
        return hub_job_failed(call, slot->job, code);
    }
    slot->at += length;
    call->fresh += fresh;
    if (fresh) {
        slot->web.tries = 0;
    }
    return true;
}

/* ---- requests ---------------------------------------------------------------------------------------------
 */

void hub_slot_free(hub_slot *slot) {
    if (slot->job) {
        hub_web_close(&slot->web);
        slot->job = NULL;
        slot->wake = 0;
        slot->cancelled = slot->changed = slot->whole_only = false;
    }
}

int hub_slots_of(const hub_call *call, const hub_job *job) {
    int count = 0;
    for (int i = 0; i < call->slot_count; i++) {
        count += call->slots[i].job == job && !call->slots[i].cancelled;
    }
    return count;
}

static void ask(hub_call *call, hub_slot *slot) {
    char message[HUB_MESSAGE];
    const hub_partial *part = &slot->job->part;
    const hub_question question = {
        .ranged = slot->ranged, .begin = slot->at, .end = slot->end, .if_range = hub_part_validator(part)};
    slot->wake = 0;
    const int code = hub_web_ask(&slot->web, call->multi, &question, message);
    if (code && !call->status) {
        snprintf(call->message, HUB_MESSAGE, "%s", message);
        hub_job_failed(call, slot->job, code);
    }
}

void hub_slot_begin(hub_call *call, hub_slot *slot, hub_job *job, bool ranged, hub_range piece) {
    char message[HUB_MESSAGE];
    slot->call = call;
    const int code = hub_web_open(&slot->web, call->transfer, job->file->url, job->direct, message);
    if (code) {
        if (!call->status) {
            snprintf(call->message, HUB_MESSAGE, "%s", message);
        }
        hub_job_failed(call, job, code);
        return;
    }
    slot->web.sink = (hub_sink){.begins = begins, .bytes = bytes, .context = slot};
    slot->job = job;
    slot->ranged = ranged;
    slot->at = piece.begin;
    slot->end = piece.end;
    slot->cancelled = slot->changed = slot->whole_only = false;
    ask(call, slot);
}

static void cancel_all(hub_call *call, const hub_job *job) {
    for (int i = 0; i < call->slot_count; i++) {
        if (call->slots[i].job == job) {
            hub_slot_free(&call->slots[i]);
        }
    }
}

/* Everything of the file is asked for again. */
static void begin_anew(hub_call *call, hub_job *job, bool plain) {
    cancel_all(call, job);
    job->plain = job->plain || plain;
    hub_job_anew(call, job);
}

/* 416: the file is empty, or shorter than what is there, or its server knows no ranges. */
static void no_such_range(hub_call *call, hub_slot *slot) {
    hub_job *job = slot->job;
    const hub_answer *answer = &slot->web.answer;
    if (!slot->ranged) {
        fail(slot, HUB_ERR_CONTENT, "the server answered 416 though the whole was asked for");
    } else if (answer->part_total && answer->total == 0 && job->part.have.total == 0 && !job->file->size) {
        job->part.sized = true;
        job->part.size = 0;
        hub_slot_free(slot);
    } else {
        begin_anew(call, job,
                   !job->part.have.total || !answer->part_total || answer->total == job->part.size);
    }
}

static void try_later(hub_call *call, hub_slot *slot, const hub_verdict *verdict);

/* An answer that ended early though nothing broke. */
static void ended_early(hub_call *call, hub_slot *slot, uint64_t at, uint64_t end) {
    hub_verdict verdict;
    char what[100];
    snprintf(what, sizeof what, "the answer ended at byte %llu, not at %llu", (unsigned long long)at,
             (unsigned long long)end);
    hub_web_again(&slot->web, what, &verdict);
    if (verdict.next == HUB_NEXT_FAILED) {
        fail(slot, verdict.code, "%s", verdict.rule);
    } else {
        try_later(call, slot, &verdict);
    }
}

/* The end of the whole: true when it is right. */
static bool whole_ended(hub_call *call, hub_slot *slot) {
    hub_job *job = slot->job;
    hub_partial *part = &job->part;
    if (!part->sized && part->have.total > slot->at) {
        begin_anew(call, job, true); /* an earlier answer, which broke, was longer */
        return false;
    }
    if (!part->sized) {
        part->sized = true;
        part->size = slot->at;
    }
    if (slot->at == part->size) {
        return true;
    }
    if (slot->web.answer.chunked) { /* its end was said, so it is no broken connection */
        return fail(slot, HUB_ERR_CONTENT, "the server's file has %llu bytes, %llu were promised",
                    (unsigned long long)slot->at, (unsigned long long)part->size);
    }
    ended_early(call, slot, slot->at, part->size);
    return false;
}

/* A body that came to its end. */
static void body_ended(hub_call *call, hub_slot *slot) {
    hub_job *job = slot->job;
    if (slot->web.hops && !job->direct) {
        job->direct = strdup(slot->web.url); /* without it, the way is only longer */
    }
    if (slot->web.answer.status == 200) {
        if (whole_ended(call, slot)) {
            hub_slot_free(slot);
        }
    } else if (slot->at < slot->end) {
        ended_early(call, slot, slot->at, slot->end);
    } else {
        hub_slot_free(slot);
    }
}

static void try_later(hub_call *call, hub_slot *slot, const hub_verdict *verdict) {
    hub_job *job = slot->job;
    const long status = slot->web.answer.status;
    const int others = hub_slots_of(call, job) - 1;
    free(job->direct);
    job->direct = NULL;
    if (others > 0 && job->known && (status == 429 || status == 503)) {
        job->most = others; /* so many connections the server bears */
        hub_slot_free(slot);
        return;
    }
    if (!slot->ranged || status == 200) {
        slot->ranged = false;
        slot->at = 0;
        slot->end = UINT64_MAX;
    }
    slot->wake = hub_now() + verdict->wait;
}

static void follow(hub_call *call, hub_slot *slot, const hub_verdict *verdict) {
    hub_job *job = slot->job;
    switch (verdict->next) {
    case HUB_NEXT_DONE:
        body_ended(call, slot);
        break;
    case HUB_NEXT_NOW:
        if (!slot->web.hops) { /* the way there has expired */
            free(job->direct);
            job->direct = NULL;
        }
        ask(call, slot);
        break;
    case HUB_NEXT_LATER:
        try_later(call, slot, verdict);
        break;
    case HUB_NEXT_RANGE:
        no_such_range(call, slot);
        break;
    case HUB_NEXT_FAILED:
        fail(slot, verdict->code, "%s", verdict->rule);
        break;
    case HUB_NEXT_SINK:
        if (slot->changed || slot->whole_only) {
            begin_anew(call, job, slot->whole_only);
        } else {
            hub_slot_free(slot);
        }
        break;
    }
}

void hub_slot_ended(hub_call *call, hub_slot *slot, CURLcode code) {
    hub_verdict verdict;
    if (slot->cancelled) {
        hub_slot_free(slot);
        return;
    }
    hub_web_judge(&slot->web, code, &verdict);
    follow(call, slot, &verdict);
}

void hub_slot_tick(hub_call *call, hub_slot *slot, double now) {
    hub_verdict verdict;
    if (slot->cancelled) {
        hub_slot_free(slot);
    } else if (slot->wake) {
        if (now >= slot->wake) {
            ask(call, slot);
        }
    } else if (slot->web.running && now - slot->web.heard > hub_web_stall(call->transfer)) {
        hub_web_stalled(&slot->web, &verdict);
        follow(call, slot, &verdict);
    }
}

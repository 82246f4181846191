/* Small answers, in memory. */
#include "web.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct receiver {
    char *bytes; /* NUL-terminated */
    size_t length, room, most;
    bool cut; /* only the first `most` bytes are wanted; else more is an error */
    bool full, nomem, too_long, wrong;
    uint64_t total; /* 0: not known */
    bool ended, whole;
} receiver;

static bool begins(void *context, const hub_answer *answer) {
    receiver *r = context;
    r->whole = answer->status == 200;
    r->length = 0; /* a try before this one may have brought something */
    if (answer->status == 206) {
        r->wrong = !r->cut || !answer->part || answer->begin != 0 || answer->end > r->most;
        r->total = answer->part_total ? answer->total : 0;
        return !r->wrong;
    }
    r->total = answer->sized ? answer->length : 0;
    r->too_long = !r->cut && answer->sized && answer->length > r->most;
    return !r->too_long;
}

static bool bytes(void *context, const char *from, size_t length) {
    receiver *r = context;
    const size_t taken = length < r->most - r->length ? length : r->most - r->length;
    if (r->length + taken + 1 > r->room) {
        const size_t room = 2 * (r->length + taken) + 1024;
        char *more = realloc(r->bytes, room);
        if (!more) {
            r->nomem = true;
            return false;
        }
        r->bytes = more;
        r->room = room;
    }
    memcpy(r->bytes + r->length, from, taken);
    r->length += taken;
    r->bytes[r->length] = '\0';
    r->too_long = !r->cut && taken < length;
    r->full = r->cut && r->length == r->most;
    return !r->too_long && !r->full;
}

static bool tell(const hub_transfer *transfer, const hub_web *web, const receiver *r, bool waiting) {
    const char *name = strrchr(web->shown, '/');
    const hub_progress p = {.name = name && name[1] ? name + 1 : web->shown,
                            .done = r->length,
                            .total = r->total,
                            .doing = waiting ? "waiting" : "fetching"};
    return !transfer->progress || transfer->progress(transfer->context, &p);
}

/* Until the request has ended, or is stopped, or has stalled. */
static int wait_for_end(hub_web *web, CURLM *multi, const receiver *r, hub_verdict *verdict,
                        char message[HUB_MESSAGE]) {
    double told = 0;
    for (;;) {
        int running, left;
        if (curl_multi_perform(multi, &running) != CURLM_OK) {
            return hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", web->shown);
        }
        const CURLMsg *m = curl_multi_info_read(multi, &left);
        if (m && m->msg == CURLMSG_DONE) {
            hub_web_judge(web, m->data.result, verdict);
            return 0;
        }
        const double now = hub_now();
        if (now - web->heard > hub_web_stall(web->transfer)) {
            hub_web_stalled(web, verdict);
            return 0;
        }
        if (now - told >= 0.1) {
            told = now;
            if (!tell(web->transfer, web, r, false)) {
                return hub_report(message, HUB_ERR_STOPPED, "%s: stopped", web->shown);
            }
        }
        curl_multi_poll(multi, NULL, 0, 100, NULL);
    }
}

static int wait_to_retry(hub_web *web, CURLM *multi, const receiver *r, double seconds,
                         char message[HUB_MESSAGE]) {
    for (const double until = hub_now() + seconds; hub_now() < until;) {
        if (!tell(web->transfer, web, r, true)) {
            return hub_report(message, HUB_ERR_STOPPED, "%s: stopped", web->shown);
        }
        const double rest = (until - hub_now()) * 1000;
        curl_multi_poll(multi, NULL, 0, rest > 100 ? 100 : rest > 1 ? (int)rest : 1, NULL);
    }
    return 0;
}

/* A refusal by the receiver. */
static int refused(const hub_web *web, const receiver *r, char message[HUB_MESSAGE]) {
    if (r->nomem) {
        return hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", web->shown);
    }
    if (r->too_long) {
        return hub_report(message, HUB_ERR_CONTENT, "%s: the answer has more than %zu bytes", web->shown,
                          r->most);
    }
    return hub_report(message, HUB_ERR_CONTENT,
                      "%s: the server answered with other bytes than were asked for", web->shown);
}

static int run(hub_web *web, CURLM *multi, const hub_question *asked, receiver *r,
               char message[HUB_MESSAGE]) {
    hub_question question = *asked;
    for (;;) {
        hub_verdict verdict;
        int code = hub_web_ask(web, multi, &question, message);
        code = code ? code : wait_for_end(web, multi, r, &verdict, message);
        if (code) {
            return code;
        }
        switch (verdict.next) {
        case HUB_NEXT_DONE:
            r->ended = true;
            return 0;
        case HUB_NEXT_SINK:
            return r->full ? 0 : refused(web, r, message);
        case HUB_NEXT_FAILED:
            return hub_report(message, verdict.code, "%s: %s", web->shown, verdict.rule);
        case HUB_NEXT_RANGE:
            if (!question.ranged) {
                return refused(web, r, message);
            }
            question.ranged = false;
            break;
        case HUB_NEXT_NOW:
            break;
        case HUB_NEXT_LATER:
            code = wait_to_retry(web, multi, r, verdict.wait, message);
            if (code) {
                return code;
            }
            break;
        }
    }
}

static int fetch(const hub_transfer *transfer, const char *url, const hub_question *question, receiver *r,
                 char message[HUB_MESSAGE]) {
    hub_web web;
    message[0] = '\0';
    int code = hub_web_begin(message);
    code = code ? code : hub_web_open(&web, transfer, url, NULL, message);
    if (code) {
        return code;
    }
    web.sink = (hub_sink){.begins = begins, .bytes = bytes, .context = r};
    CURLM *multi = curl_multi_init();
    r->bytes = calloc(1, 1);
    r->room = 1;
    if (!multi || !r->bytes) {
        code = hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", web.shown);
    } else {
        code = run(&web, multi, question, r, message);
    }
    hub_web_close(&web);
    curl_multi_cleanup(multi);
    if (code) {
        free(r->bytes);
        r->bytes = NULL;
    }
    return code;
}

int hub_fetch_text(const hub_transfer *transfer, const char *url, const char *accept, size_t most,
                   char **text, char message[HUB_MESSAGE]) {
    receiver r = {.most = most};
    const hub_question question = {.accept = accept};
    const int code = fetch(transfer, url, &question, &r, message);
    *text = r.bytes;
    return code;
}

int hub_fetch_head(const hub_transfer *transfer, const char *url, size_t size, hub_head *head,
                   char message[HUB_MESSAGE]) {
    receiver r = {.most = size, .cut = true};
    const hub_question question = {.ranged = size > 0, .begin = 0, .end = size};
    const int code = fetch(transfer, url, &question, &r, message);
    *head = (hub_head){.bytes = r.bytes, .length = r.length, .total = r.total};
    if (!code && !r.total && r.ended && r.whole) {
        head->total = r.length;
    }
    return code;
}

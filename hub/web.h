/* One request over libcurl, as all of hub/ makes it: redirects followed step by step, the token kept to its
 * host, and every end of a request judged in one place. Nothing here comes from environment variables: no
 * proxy, no .netrc, no cookies. One thread at a time. */
#ifndef SLUICE_HUB_WEB_H
#define SLUICE_HUB_WEB_H

#include "download.h"

#include <curl/curl.h>

enum { HUB_SHOWN = 200, HUB_RULE = 200, HUB_TAG = 256 };

/* The fields of an answer that matter here. */
typedef struct hub_answer {
    long status;
    bool chunked;                     /* the body tells its own end */
    bool sized;                       /* `length` is known */
    bool part, part_total;            /* there is a Content-Range with a range; with a total */
    uint64_t length;                  /* of the body */
    uint64_t begin, end, total;       /* of Content-Range; `end` lies behind the last byte */
    char etag[HUB_TAG], modified[64]; /* empty: none, or too long to keep */
    char coding[32];                  /* Content-Encoding; empty: none */
    char *location;                   /* owned; NULL: none */
    size_t bytes;                     /* of all fields */
    bool complete;
} hub_answer;

/* Who takes what a 200 or 206 brings. Each may return false, which ends the request; why is its own affair.
 */
typedef struct hub_sink {
    bool (*begins)(void *context, const hub_answer *answer);
    bool (*bytes)(void *context, const char *bytes, size_t length);
    void *context;
} hub_sink;

typedef struct hub_question {
    const char *accept; /* a media type; NULL: any */
    bool ranged;        /* asks for the bytes from begin to before end */
    uint64_t begin, end;
    const char *if_range; /* NULL: none */
} hub_question;

typedef struct hub_web {
    const hub_transfer *transfer;
    hub_sink sink;
    CURL *easy;
    struct curl_slist *fields;
    char *url;    /* what is asked now */
    char *own;    /* the URL that was given */
    char *origin; /* scheme, host and port of that */
    int hops;     /* redirects since `own` */
    int tries;    /* failed in a row, without a byte that was new */
    bool direct;  /* `url` is where an earlier request was led: it may have expired */
    bool running; /* in `multi` */
    bool refused; /* the sink ended it */
    bool starved; /* no memory for a field */
    CURLM *multi;
    double heard;  /* when the last byte came */
    size_t wasted; /* bytes of a body that nobody takes */
    hub_answer answer;
    char shown[HUB_SHOWN]; /* `own` without query, fragment and keys */
    char error[CURL_ERROR_SIZE];
} hub_web;

typedef enum hub_next {
    HUB_NEXT_DONE,   /* 200 or 206, to its end */
    HUB_NEXT_NOW,    /* ask again at once */
    HUB_NEXT_LATER,  /* ask again after `wait` */
    HUB_NEXT_RANGE,  /* 416: there is no such range */
    HUB_NEXT_FAILED, /* for good: `code`, and `rule` that says why */
    HUB_NEXT_SINK,   /* the sink ended it */
} hub_next;

typedef struct hub_verdict {
    hub_next next;
    double wait; /* seconds */
    bool asked;  /* the server asked for the wait */
    int code;
    char rule[HUB_RULE];
} hub_verdict;

double hub_now(void); /* seconds of a clock that never goes back */

/* Writes the message, cut to its room; returns `code`. */
int hub_report(char message[HUB_MESSAGE], int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* libcurl made ready, once for the process. */
int hub_web_begin(char message[HUB_MESSAGE]);

/* What messages call a URL: without query, fragment, user and password. False: no URL that can be asked. */
bool hub_web_shown(const char *url, char shown[HUB_SHOWN]);

/* The error of a URL that cannot be asked. */
int hub_web_no_url(const char *url, char message[HUB_MESSAGE]);

/* A request to `url`, or to where it led before (`direct`, NULL: not known). On failure there is nothing to
 * close, but closing is harmless. */
int hub_web_open(hub_web *web, const hub_transfer *transfer, const char *url, const char *direct,
                 char message[HUB_MESSAGE]);
void hub_web_close(hub_web *web);

/* Puts the request into `multi`. */
int hub_web_ask(hub_web *web, CURLM *multi, const hub_question *question, char message[HUB_MESSAGE]);

/* Takes it out again, wherever it stands. */
void hub_web_stop(hub_web *web);

/* After the end of a request, which this takes out of `multi`: what to do next. */
void hub_web_judge(hub_web *web, CURLcode code, hub_verdict *verdict);

/* The same for one that brought no byte for stall_seconds, and for one whose end is wrong though the
 * connection did not break. */
void hub_web_stalled(hub_web *web, hub_verdict *verdict);
void hub_web_again(hub_web *web, const char *what, hub_verdict *verdict);

/* What lies behind defaults. */
double hub_web_stall(const hub_transfer *transfer);
int hub_web_retries(const hub_transfer *transfer);

#endif

#include "web.h"

#include "sluice.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum {
    MOST_REDIRECTS = 5,
    MOST_FIELD_BYTES = 256 << 10, /* of one answer */
    MOST_WASTED_BYTES = 64 << 10, /* of an error's page, read so that its connection can be used again */
    READ_BYTES = 512 << 10,
    MOST_WAIT = 120,   /* seconds, that a server may ask for */
    MOST_PAUSE = 30,   /* seconds between tries on our own account */
    TRIES_UNHEARD = 2, /* at a host that cannot be reached at all */
};

double hub_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int hub_report(char message[HUB_MESSAGE], int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, HUB_MESSAGE, format, arguments);
    va_end(arguments);
    return code;
}

int hub_web_begin(char message[HUB_MESSAGE]) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static bool ready;
    pthread_mutex_lock(&mutex);
    ready = ready || curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    const bool done = ready;
    pthread_mutex_unlock(&mutex);
    return done ? 0 : hub_report(message, HUB_ERR_NOMEM, "libcurl could not be started: out of memory");
}

double hub_web_stall(const hub_transfer *transfer) {
    return transfer->stall_seconds > 0 ? transfer->stall_seconds : 30;
}

int hub_web_retries(const hub_transfer *transfer) {
    return transfer->retries < 0 ? 0 : transfer->retries > 0 ? transfer->retries : 5;
}

/* ---- URLs -------------------------------------------------------------------------------------------------
 */

static bool is_web(const char *scheme) {
    return !strcasecmp(scheme, "http") || !strcasecmp(scheme, "https");
}

/* Parses a URL that may be asked: http or https, a host, no user and no password. */
static CURLU *parse(const char *url) {
    CURLU *parts = curl_url();
    char *scheme = NULL, *user = NULL, *password = NULL;
    bool good = parts && curl_url_set(parts, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK &&
                curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK && is_web(scheme) &&
                curl_url_get(parts, CURLUPART_USER, &user, 0) == CURLUE_NO_USER &&
                curl_url_get(parts, CURLUPART_PASSWORD, &password, 0) == CURLUE_NO_PASSWORD;
    curl_free(scheme);
    curl_free(user);
    curl_free(password);
    if (!good) {
        curl_url_cleanup(parts);
        return NULL;
    }
    return parts;
}

/* "scheme://host:port" of a URL; the caller frees it. NULL: none, or no memory. */
static char *origin_of(CURLU *parts) {
    char *scheme = NULL, *host = NULL, *port = NULL, *origin = NULL;
    if (curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK) {
        const size_t room = strlen(scheme) + strlen(host) + strlen(port) + 5;
        origin = malloc(room);
        if (origin) {
            snprintf(origin, room, "%s://%s:%s", scheme, host, port);
            for (char *c = origin; *c; c++) {
                *c = (char)tolower((unsigned char)*c);
            }
        }
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    return origin;
}

static bool same_origin(const char *url, const char *origin) {
    CURLU *parts = parse(url);
    char *own = parts ? origin_of(parts) : NULL;
    const bool same = own && !strcmp(own, origin);
    free(own);
    curl_url_cleanup(parts);
    return same;
}

bool hub_web_shown(const char *url, char shown[HUB_SHOWN]) {
    CURLU *parts = parse(url);
    char *whole = NULL;
    shown[0] = '\0';
    if (parts && curl_url_set(parts, CURLUPART_QUERY, NULL, 0) == CURLUE_OK &&
        curl_url_set(parts, CURLUPART_FRAGMENT, NULL, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_URL, &whole, 0) == CURLUE_OK) {
        snprintf(shown, HUB_SHOWN, "%s%s", strlen(whole) < HUB_SHOWN ? whole : "...",
                 strlen(whole) < HUB_SHOWN ? "" : whole + strlen(whole) - (HUB_SHOWN - 4));
    }
    curl_free(whole);
    curl_url_cleanup(parts);
    return shown[0] != '\0';
}

int hub_web_no_url(const char *url, char message[HUB_MESSAGE]) {
    const char *at = strrchr(url, '@'); /* what stands before it may be a password */
    at = at ? at : url;
    return hub_report(message, HUB_ERR_NAME,
                      "%.*s: no URL of the form https://HOST/PATH, without a user and a password",
                      (int)strcspn(at, "?#"), at);
}

/* ---- an answer as it comes --------------------------------------------------------------------------------
 */

static bool read_number(const char **text, uint64_t *number) {
    const char *at = *text;
    uint64_t value = 0;
    while (*at >= '0' && *at <= '9') {
        if (value > (UINT64_MAX >> 1) / 10 - 9) {
            return false;
        }
        value = 10 * value + (uint64_t)(*at++ - '0');
    }
    if (at == *text) {
        return false;
    }
    *number = value;
    *text = at;
    return true;
}

/* "bytes 0-99/200", "bytes 0-99/ *" or, with 416, "bytes * /200" (without the blanks). */
static void read_content_range(hub_answer *answer, const char *text) {
    uint64_t last = 0;
    answer->part = answer->part_total = false;
    if (strncasecmp(text, "bytes ", 6)) {
        return;
    }
    text += 6;
    if (*text == '*') {
        text++;
    } else if (read_number(&text, &answer->begin) && *text++ == '-' && read_number(&text, &last) &&
               last >= answer->begin) {
        answer->end = last + 1;
        answer->part = true;
    } else {
        return;
    }
    if (*text++ != '/') {
        answer->part = false;
        return;
    }
    answer->part_total = read_number(&text, &answer->total) && *text == '\0';
}

static void keep_text(char *to, size_t room, const char *value) {
    snprintf(to, room, "%s", strlen(value) < room ? value : "");
}

/* False: no memory. */
static bool read_field(hub_answer *answer, const char *name, const char *value) {
    if (!strcasecmp(name, "Content-Length")) {
        answer->sized = read_number(&value, &answer->length) && *value == '\0';
    } else if (!strcasecmp(name, "Transfer-Encoding")) {
        answer->chunked = strcasestr(value, "chunked") != NULL;
    } else if (!strcasecmp(name, "Content-Range")) {
        read_content_range(answer, value);
    } else if (!strcasecmp(name, "Content-Encoding")) {
        keep_text(answer->coding, sizeof answer->coding, strcasecmp(value, "identity") ? value : "");
    } else if (!strcasecmp(name, "ETag")) {
        keep_text(answer->etag, sizeof answer->etag, value);
    } else if (!strcasecmp(name, "Last-Modified")) {
        keep_text(answer->modified, sizeof answer->modified, value);
    } else if (!strcasecmp(name, "Location")) {
        free(answer->location);
        answer->location = strdup(value);
        return answer->location != NULL;
    }
    return true;
}

static void clear_answer(hub_answer *answer) {
    free(answer->location);
    *answer = (hub_answer){0};
}

static bool is_body(long status) {
    return status == 200 || status == 206;
}

/* Nothing of the body was taken yet, and all fields are here. */
static bool answer_begins(hub_web *web) {
    hub_answer *answer = &web->answer;
    curl_easy_getinfo(web->easy, CURLINFO_RESPONSE_CODE, &answer->status);
    if (answer->status < 200) {
        return true; /* the answer is still to come */
    }
    answer->complete = true;
    answer->sized = answer->sized && !answer->chunked;
    if (is_body(answer->status) && !answer->coding[0] && !web->sink.begins(web->sink.context, answer)) {
        web->refused = true;
        return false;
    }
    return true;
}

static size_t on_field(char *line, size_t size, size_t count, void *context) {
    hub_web *web = context;
    hub_answer *answer = &web->answer;
    const size_t length = size * count;
    char text[8192];
    web->heard = hub_now();
    if (length >= 5 && !strncmp(line, "HTTP/", 5)) {
        const size_t bytes = answer->bytes;
        clear_answer(answer);
        answer->bytes = bytes;
    }
    answer->bytes += length;
    if (answer->bytes > MOST_FIELD_BYTES) {
        return 0;
    }
    if (answer->complete || length >= sizeof text) {
        return length; /* trailers, and fields too long to be one of ours */
    }
    memcpy(text, line, length);
    text[length] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    if (text[0] == '\0') {
        return answer_begins(web) ? length : 0;
    }
    char *value = strchr(text, ':');
    if (value) {
        *value++ = '\0';
        value += strspn(value, " \t");
        for (size_t end = strlen(value); end && (value[end - 1] == ' ' || value[end - 1] == '\t'); end--) {
            value[end - 1] = '\0';
        }
        web->starved = !read_field(answer, text, value);
        return web->starved ? 0 : length;
    }
    return length;
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *context) {
    hub_web *web = context;
    const size_t length = size * count;
    web->heard = hub_now();
    if (is_body(web->answer.status) && !web->answer.coding[0]) {
        web->refused = !web->sink.bytes(web->sink.context, bytes, length);
        return web->refused ? 0 : length;
    }
    web->wasted += length;
    return web->wasted > MOST_WASTED_BYTES ? 0 : length;
}

/* ---- a request --------------------------------------------------------------------------------------------
 */

#define SET(option, value) (curl_easy_setopt(web->easy, option, value) == CURLE_OK)

static bool set_up(hub_web *web) {
    const hub_transfer *transfer = web->transfer;
    char agent[64];
    snprintf(agent, sizeof agent, "sluice/%s", sluice_version());
    return SET(CURLOPT_PROTOCOLS_STR, "http,https") && SET(CURLOPT_FOLLOWLOCATION, 0L) &&
           SET(CURLOPT_PROXY, "") && SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED) &&
           SET(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L) && SET(CURLOPT_USERAGENT, agent) &&
           SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) && SET(CURLOPT_NOSIGNAL, 1L) &&
           SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) && SET(CURLOPT_SSL_VERIFYPEER, 1L) &&
           SET(CURLOPT_SSL_VERIFYHOST, 2L) &&
           (!transfer->ca_file || SET(CURLOPT_CAINFO, transfer->ca_file)) &&
           SET(CURLOPT_BUFFERSIZE, (long)READ_BYTES) && SET(CURLOPT_TCP_KEEPALIVE, 1L) &&
           SET(CURLOPT_ERRORBUFFER, web->error) && SET(CURLOPT_HEADERFUNCTION, on_field) &&
           SET(CURLOPT_HEADERDATA, (void *)web) && SET(CURLOPT_WRITEFUNCTION, on_bytes) &&
           SET(CURLOPT_WRITEDATA, (void *)web) &&
           SET(CURLOPT_QUICK_EXIT, 1L); /* a name server that is silent must not hold up the end */
}

int hub_web_open(hub_web *web, const hub_transfer *transfer, const char *url, const char *direct,
                 char message[HUB_MESSAGE]) {
    *web = (hub_web){.transfer = transfer};
    if (!hub_web_shown(url, web->shown)) {
        return hub_web_no_url(url, message);
    }
    CURLU *parts = parse(url);
    web->origin = parts ? origin_of(parts) : NULL;
    curl_url_cleanup(parts);
    web->own = strdup(url);
    web->url = strdup(direct ? direct : url);
    web->direct = direct != NULL;
    web->easy = curl_easy_init();
    if (!web->origin || !web->own || !web->url || !web->easy || !set_up(web)) {
        hub_web_close(web);
        return hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", web->shown);
    }
    return 0;
}

void hub_web_stop(hub_web *web) {
    if (web->running) {
        curl_multi_remove_handle(web->multi, web->easy);
        web->running = false;
    }
}

void hub_web_close(hub_web *web) {
    hub_web_stop(web);
    curl_easy_cleanup(web->easy);
    curl_slist_free_all(web->fields);
    free(web->url);
    free(web->own);
    free(web->origin);
    clear_answer(&web->answer);
    web->easy = NULL;
    web->fields = NULL;
    web->url = web->own = web->origin = NULL;
}

static bool add_field(hub_web *web, const char *name, const char *value) {
    const size_t room = strlen(name) + strlen(value) + 3;
    char *line = malloc(room);
    if (!line) {
        return false;
    }
    snprintf(line, room, "%s: %s", name, value);
    struct curl_slist *more = curl_slist_append(web->fields, line);
    free(line);
    web->fields = more ? more : web->fields;
    return more != NULL;
}

static bool set_fields(hub_web *web, const hub_question *question) {
    curl_slist_free_all(web->fields);
    web->fields = NULL;
    char *bearer = NULL, range[64];
    const char *token = web->transfer->token;
    bool good = add_field(web, "Accept-Encoding", "identity") &&
                (!question->accept || add_field(web, "Accept", question->accept));
    if (question->ranged) {
        snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)question->begin,
                 (unsigned long long)question->end - 1);
        good = good && add_field(web, "Range", range) &&
               (!question->if_range || add_field(web, "If-Range", question->if_range));
    }
    if (token && *token && same_origin(web->url, web->origin)) {
        const size_t room = strlen(token) + 8;
        bearer = malloc(room);
        if (bearer) {
            snprintf(bearer, room, "Bearer %s", token);
        }
        good = good && bearer && add_field(web, "Authorization", bearer);
    }
    free(bearer);
    return good && SET(CURLOPT_HTTPHEADER, web->fields) && SET(CURLOPT_URL, web->url);
}

int hub_web_ask(hub_web *web, CURLM *multi, const hub_question *question, char message[HUB_MESSAGE]) {
    const char *token = web->transfer->token;
    for (const char *c = token ? token : ""; *c; c++) {
        if (*c <= ' ' || *c > '~') {
            return hub_report(message, HUB_ERR_NAME, "%s: the token has a character that no token has",
                              web->shown);
        }
    }
    clear_answer(&web->answer);
    web->error[0] = '\0';
    web->wasted = 0;
    web->refused = web->starved = false;
    web->heard = hub_now();
    web->multi = multi;
    if (!set_fields(web, question) || curl_multi_add_handle(multi, web->easy) != CURLM_OK) {
        return hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", web->shown);
    }
    web->running = true;
    return 0;
}

/* ---- what an end means ------------------------------------------------------------------------------------
 */

static void fail(hub_verdict *verdict, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(hub_verdict *verdict, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->rule, sizeof verdict->rule, format, arguments);
    va_end(arguments);
    verdict->next = HUB_NEXT_FAILED;
    verdict->code = code;
}

/* The next request begins at the URL that was given. */
static bool go_home(hub_web *web) {
    char *url = strdup(web->own);
    if (!url) {
        return false;
    }
    free(web->url);
    web->url = url;
    web->direct = false;
    web->hops = 0;
    return true;
}

/* Once more after a while, unless that was tried often enough: then `what` is why it failed. */
static void later(hub_web *web, hub_verdict *verdict, int most, const char *what) {
    const int retries = hub_web_retries(web->transfer);
    if (web->tries >= (most < retries ? most : retries)) {
        fail(verdict, HUB_ERR_NETWORK, "%s (tries without a byte of progress: %d)", what, web->tries + 1);
    } else if (!go_home(web)) {
        fail(verdict, HUB_ERR_NOMEM, "out of memory");
    } else {
        const double pause = 0.5 * (double)(1 << (web->tries < 10 ? web->tries : 10));
        verdict->next = HUB_NEXT_LATER;
        verdict->wait = pause < MOST_PAUSE ? pause : MOST_PAUSE;
        web->tries++;
    }
}

static void redirect(hub_web *web, hub_verdict *verdict) {
    char *next = NULL, *scheme = NULL;
    CURLU *parts = curl_url();
    if (web->hops >= MOST_REDIRECTS) {
        fail(verdict, HUB_ERR_CONTENT, "more than %d redirects", MOST_REDIRECTS);
    } else if (!web->answer.location) {
        fail(verdict, HUB_ERR_CONTENT, "a redirect (%ld) to nowhere", web->answer.status);
    } else if (!parts || curl_url_set(parts, CURLUPART_URL, web->url, 0) != CURLUE_OK) {
        fail(verdict, HUB_ERR_NOMEM, "out of memory");
    } else if (curl_url_set(parts, CURLUPART_URL, web->answer.location,
                            CURLU_NON_SUPPORT_SCHEME | CURLU_URLENCODE) != CURLUE_OK ||
               curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
               curl_url_get(parts, CURLUPART_URL, &next, 0) != CURLUE_OK) {
        fail(verdict, HUB_ERR_CONTENT, "a redirect (%ld) to what is no URL", web->answer.status);
    } else if (!is_web(scheme) || (!strncasecmp(web->url, "https:", 6) && strcasecmp(scheme, "https"))) {
        fail(verdict, HUB_ERR_CONTENT, "a redirect to another scheme, from %.*s to %.20s",
             (int)strcspn(web->url, ":"), web->url, scheme);
    } else {
        CURLU *good = parse(next);
        char *copy = good ? strdup(next) : NULL;
        if (copy) {
            free(web->url);
            web->url = copy;
            web->hops++;
            verdict->next = HUB_NEXT_NOW;
        } else if (good) {
            fail(verdict, HUB_ERR_NOMEM, "out of memory");
        } else {
            fail(verdict, HUB_ERR_CONTENT, "a redirect (%ld) to a URL with a user or a password",
                 web->answer.status);
        }
        curl_url_cleanup(good);
    }
    curl_free(next);
    curl_free(scheme);
    curl_url_cleanup(parts);
}

/* A busy server: it may say how long. */
static void busy(hub_web *web, hub_verdict *verdict) {
    char what[64];
    curl_off_t seconds = 0;
    curl_easy_getinfo(web->easy, CURLINFO_RETRY_AFTER, &seconds);
    snprintf(what, sizeof what, "the server answered %ld", web->answer.status);
    if (seconds > MOST_WAIT) {
        fail(verdict, HUB_ERR_NETWORK, "the server answered %ld and asks to wait %lld s, more than %d",
             web->answer.status, (long long)seconds, MOST_WAIT);
        return;
    }
    later(web, verdict, INT32_MAX, what);
    if (verdict->next == HUB_NEXT_LATER && seconds > 0) {
        verdict->wait = (double)seconds;
        verdict->asked = true;
    }
}

static void judge_status(hub_web *web, hub_verdict *verdict) {
    const long status = web->answer.status;
    const bool token = web->transfer->token && *web->transfer->token;
    if (web->answer.coding[0] && is_body(status)) {
        fail(verdict, HUB_ERR_CONTENT, "the answer is compressed (%s), which was not asked for",
             web->answer.coding);
    } else if (is_body(status)) {
        verdict->next = HUB_NEXT_DONE;
    } else if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) {
        redirect(web, verdict);
    } else if (status == 408 || status == 425 || status == 429 || status >= 500) {
        busy(web, verdict);
    } else if (status == 416) {
        verdict->next = HUB_NEXT_RANGE;
    } else if (web->direct && status >= 400) { /* a signed URL that has expired: its source signs another */
        if (go_home(web)) {
            verdict->next = HUB_NEXT_NOW;
        } else {
            fail(verdict, HUB_ERR_NOMEM, "out of memory");
        }
    } else if (status == 401 || status == 403) {
        fail(verdict, HUB_ERR_DENIED, "the server answered %ld: %s", status,
             token ? "the token gives no access to it" : "it needs a token, and none was given");
    } else if (status == 404 || status == 410) {
        fail(verdict, HUB_ERR_NOT_FOUND, "the server answered %ld: there is no such file", status);
    } else {
        fail(verdict, HUB_ERR_CONTENT, "the server answered %ld, of which nothing is known here", status);
    }
}

void hub_web_judge(hub_web *web, CURLcode code, hub_verdict *verdict) {
    *verdict = (hub_verdict){0};
    hub_web_stop(web);
    char what[160];
    snprintf(what, sizeof what, "%s%.120s", web->answer.complete ? "the connection broke: " : "",
             web->error[0] ? web->error : curl_easy_strerror(code));
    what[strcspn(what, "\r\n")] = '\0';
    if (web->refused) {
        verdict->next = HUB_NEXT_SINK;
    } else if (code == CURLE_OK || (web->answer.complete && !is_body(web->answer.status)) ||
               web->answer.coding[0]) {
        judge_status(web, verdict);
    } else if (code == CURLE_OUT_OF_MEMORY || web->starved) {
        fail(verdict, HUB_ERR_NOMEM, "out of memory");
    } else if (code == CURLE_URL_MALFORMAT) {
        fail(verdict, HUB_ERR_NAME, "%s", what);
    } else if (code == CURLE_UNSUPPORTED_PROTOCOL) {
        fail(verdict, HUB_ERR_CONTENT, "what answers speaks no HTTP: %s", what);
    } else if (code == CURLE_SSL_CACERT_BADFILE) {
        fail(verdict, HUB_ERR_NETWORK, "%.120s: no file of certificates that can be read",
             web->transfer->ca_file ? web->transfer->ca_file : "the system's certificates");
    } else if (code == CURLE_PEER_FAILED_VERIFICATION) {
        fail(verdict, HUB_ERR_NETWORK, "the server's certificate is not trusted: %s", what);
    } else if (code == CURLE_WRITE_ERROR) { /* our own function */
        fail(verdict, HUB_ERR_CONTENT, "the answer's fields are too long");
    } else {
        later(web, verdict,
              code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT ? TRIES_UNHEARD : INT32_MAX,
              what);
    }
}

void hub_web_stalled(hub_web *web, hub_verdict *verdict) {
    char what[64];
    *verdict = (hub_verdict){0};
    hub_web_stop(web);
    snprintf(what, sizeof what, "no byte came for %.3g s", hub_web_stall(web->transfer));
    later(web, verdict, INT32_MAX, what);
}

void hub_web_again(hub_web *web, const char *what, hub_verdict *verdict) {
    *verdict = (hub_verdict){0};
    hub_web_stop(web);
    later(web, verdict, INT32_MAX, what);
}

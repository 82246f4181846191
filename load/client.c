#include "client.h"

#include "series.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- libcurl's callbacks ---------------------------------------------------------------------------------
 */

static size_t on_header(char *line, size_t size, size_t count, void *context) {
    load_client *c = context;
    const size_t length = size * count;
    static const char RETRY[] = "retry-after:";
    if (c->first_byte <= 0) {
        c->first_byte = *c->stamp;
    }
    if (length > sizeof RETRY && strncasecmp(line, RETRY, sizeof RETRY - 1) == 0) {
        char text[32] = "";
        const size_t rest = length - (sizeof RETRY - 1);
        memcpy(text, line + sizeof RETRY - 1, rest < sizeof text - 1 ? rest : sizeof text - 1);
        const double seconds = strtod(text, NULL); /* a date reads as 0: it was said, and is not waited for */
        c->retry_after = seconds > 0 ? seconds : 0;
    }
    return length;
}

static void judge_kind(load_client *c) {
    const char *type = NULL;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &c->status);
    curl_easy_getinfo(c->easy, CURLINFO_CONTENT_TYPE, &type);
    c->answer.streamed = c->status == 200 && !(type && strncasecmp(type, "application/json", 16) == 0);
    c->judged = true;
}

static void count_events(load_client *c, int64_t before, double now) {
    if (now >= c->counts_from) {
        c->counted_events += c->answer.text_events - before;
        *c->live += (double)(c->answer.text_events - before);
    }
}

/* Fewer bytes taken than came end the transfer. */
static size_t on_body(char *bytes, size_t size, size_t count, void *context) {
    load_client *c = context;
    const size_t length = size * count;
    const int64_t before = c->answer.text_events;
    if (!c->judged) {
        judge_kind(c);
    }
    const int result = load_answer_read(&c->answer, bytes, length, *c->stamp);
    count_events(c, before, *c->stamp);
    c->left = c->left || (c->talk.leave_after > 0 && c->answer.text_events >= c->talk.leave_after);
    return result == 0 && !c->left ? length : 0;
}

/* For clients that leave as soon as they have asked. */
static int on_progress(void *context, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                       curl_off_t up) {
    load_client *c = context;
    (void)down_total;
    (void)down;
    (void)up_total;
    c->left = c->left || (c->talk.leave_after == 0 && up >= (curl_off_t)strlen(c->body));
    return c->left;
}

/* ---- requests --------------------------------------------------------------------------------------------
 */

CURL *load_easy(const load *load, const char *address, char *curl_error) {
    const load_options *o = load->options;
    CURL *easy = curl_easy_init();
    if (!easy) {
        return NULL;
    }
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* else the environment says one */
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, load->headers);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, curl_error);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, 30000L);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(1000 * o->timeout));
    CURLcode code = curl_easy_setopt(easy, CURLOPT_URL, address);
    if (code == CURLE_OK && o->ca_file) {
        code = curl_easy_setopt(easy, CURLOPT_CAINFO, o->ca_file);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    }
    if (code != CURLE_OK) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    return easy;
}

int load_client_open(const load *load, load_client *c) {
    *c = (load_client){0};
    c->easy = load_easy(load, load->address, c->curl_error);
    if (!c->easy) {
        return -1;
    }
    curl_easy_setopt(c->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(c->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c->easy, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    c->answer.keep_text = load->options->turns > 1;
    return 0;
}

void load_client_close(load_client *c) {
    curl_easy_cleanup(c->easy);
    load_talk_end(&c->talk);
    load_answer_free(&c->answer);
    free(c->body);
    *c = (load_client){0};
}

int load_client_prepare(load *load, load_client *c, double now) {
    const bool keep_text = c->answer.keep_text;
    free(c->body);
    c->body = load_talk_body(&load->work, &c->talk);
    if (!c->body) {
        return -1;
    }
    load_answer_clear(&c->answer);
    c->answer.keep_text = keep_text;
    c->begin = now;
    c->first_byte = c->end = 0;
    c->counted_events = 0;
    c->status = 0;
    c->judged = c->left = false;
    c->retry_after = c->connect = -1;
    c->kind[0] = c->why[0] = c->curl_error[0] = '\0';
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, c->body);
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(c->body));
    curl_easy_setopt(c->easy, CURLOPT_NOPROGRESS, c->talk.leave_after == 0 ? 0L : 1L);
    return 0;
}

int64_t load_client_tokens(const load_client *c) {
    return c->answer.answer_tokens >= 0 ? c->answer.answer_tokens : c->answer.text_events;
}

static void take_connect(load_client *c) {
    long connects = 0;
    curl_off_t plain = 0, safe = 0;
    curl_easy_getinfo(c->easy, CURLINFO_NUM_CONNECTS, &connects);
    curl_easy_getinfo(c->easy, CURLINFO_CONNECT_TIME_T, &plain);
    curl_easy_getinfo(c->easy, CURLINFO_APPCONNECT_TIME_T, &safe);
    if (connects > 0 && plain > 0) {
        c->connect = 1e-3 * (double)(safe > plain ? safe : plain);
    }
}

static load_outcome failed(load_client *c, const char *kind, const char *why) {
    snprintf(c->kind, sizeof c->kind, "%s", kind);
    snprintf(c->why, sizeof c->why, "%s", why);
    return LOAD_FAILED;
}

load_outcome load_client_judge(load_client *c, CURLcode code, double now) {
    char text[160];
    c->end = now;
    take_connect(c);
    if (c->left) {
        return LOAD_ABORTED;
    }
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &c->status);
    if (code == CURLE_OK && c->status != 200) {
        snprintf(text, sizeof text, "HTTP %ld", c->status);
        char told[160];
        load_error_text(c->answer.body.data ? c->answer.body.data : "", c->answer.body.length, told);
        return failed(c, text, told);
    }
    if (!c->answer.failed && code == CURLE_OPERATION_TIMEDOUT) {
        return failed(c, "timed out", c->curl_error);
    }
    if (!c->answer.failed && code != CURLE_OK) {
        return failed(c, curl_easy_strerror(code), c->curl_error);
    }
    const int64_t before = c->answer.text_events;
    const int result = load_answer_end(&c->answer, now);
    count_events(c, before, now);
    if (result) {
        return failed(c, c->answer.told ? "an error in the answer" : c->answer.error, c->answer.error);
    }
    return LOAD_DONE;
}

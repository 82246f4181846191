/* A load's address, headers and model. */
#include "client.h"

#include "sluice.h"

#include <stdlib.h>
#include <string.h>

/* http://HOST:PORT to http://HOST:PORT/v1/NAME; what ends in /v1 is that already. NULL: no memory, or no such
 * URL, which `message` says. */
static char *address_of(const char *url, const char *name, char message[LOAD_MESSAGE]) {
    CURLU *parts = curl_url();
    char *path = NULL, *scheme = NULL, *whole = NULL, *address = NULL;
    snprintf(message, LOAD_MESSAGE, "%s: no URL as in http://127.0.0.1:8080 or https://HOST/v1", url);
    const unsigned flags = CURLU_NON_SUPPORT_SCHEME | CURLU_DEFAULT_SCHEME;
    const char *http = strstr(url, "://") ? "" : "http://"; /* curl would guess by the host's name */
    char full[4096];
    const int length = snprintf(full, sizeof full, "%s%s", http, url);
    if (parts && length < (int)sizeof full && curl_url_set(parts, CURLUPART_URL, full, flags) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_PATH, &path, 0) == CURLUE_OK &&
        (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0)) {
        char text[4096 + 64];
        size_t end = strlen(path);
        while (end > 0 && path[end - 1] == '/') {
            end--;
        }
        const bool versioned = end >= 3 && memcmp(path + end - 3, "/v1", 3) == 0;
        snprintf(text, sizeof text, "%.*s%s/%s", (int)end, path, versioned ? "" : "/v1", name);
        if (curl_url_set(parts, CURLUPART_PATH, text, 0) == CURLUE_OK &&
            curl_url_get(parts, CURLUPART_URL, &whole, 0) == CURLUE_OK) {
            address = strdup(whole);
        }
    }
    curl_free(whole);
    curl_free(path);
    curl_free(scheme);
    curl_url_cleanup(parts);
    return address;
}

static int add_header(load *load, const char *line) {
    struct curl_slist *longer = curl_slist_append(load->headers, line);
    load->headers = longer ? longer : load->headers;
    return longer ? 0 : -1;
}

static int make_headers(load *load) {
    const load_options *o = load->options;
    char agent[64], key[4096];
    snprintf(agent, sizeof agent, "User-Agent: sluice-load/%s", sluice_version());
    /* "Expect:" without a value: a large body is sent without asking first. */
    int result = add_header(load, "Content-Type: application/json") | add_header(load, "Expect:") |
                 add_header(load, agent);
    if (result == 0 && o->key) {
        result = snprintf(key, sizeof key, "Authorization: Bearer %s", o->key) < (int)sizeof key
                     ? add_header(load, key)
                     : -1;
    }
    for (size_t i = 0; i < o->header_count && result == 0; i++) {
        result = add_header(load, o->headers[i]);
    }
    return result;
}

/* ---- the server's first model ----------------------------------------------------------------------------
 */

enum { MODELS_MOST = 16 << 20 };

static size_t on_bytes(char *bytes, size_t size, size_t count, void *context) {
    load_bytes *all = context;
    const bool fits = size * count <= MODELS_MOST - all->length;
    return fits && load_bytes_add(all, bytes, size * count) == 0 ? size * count : 0;
}

static int on_wait(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    const load_options *o = context;
    const load_progress none = {0};
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    return o->progress && !o->progress(o->progress_context, &none);
}

static char *first_model(const load_bytes *body) {
    json_error_t error;
    json_t *value = json_loadb(body->data ? body->data : "", body->length, 0, &error);
    const json_t *first = json_array_get(json_object_get(value, "data"), 0);
    const char *name = json_string_value(json_object_get(first, "id"));
    char *copy = name ? strdup(name) : NULL;
    json_decref(value);
    return copy;
}

static int ask_model(load *load, char message[LOAD_MESSAGE]) {
    char *address = address_of(load->options->url, "models", message);
    char curl_error[CURL_ERROR_SIZE] = "", told[160];
    load_bytes body = {0};
    CURL *easy = address ? load_easy(load, address, curl_error) : NULL;
    long status = 0;
    if (easy) {
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
        curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, 30000L);
        curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_wait);
        curl_easy_setopt(easy, CURLOPT_XFERINFODATA, load->options);
        const CURLcode code = curl_easy_perform(easy);
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
        load->model = code == CURLE_OK && status == 200 ? first_model(&body) : NULL;
        if (code != CURLE_OK) {
            snprintf(message, LOAD_MESSAGE, "%s: %s", address,
                     *curl_error ? curl_error : curl_easy_strerror(code));
        } else if (status != 200) {
            load_error_text(body.data ? body.data : "", body.length, told);
            snprintf(message, LOAD_MESSAGE, "%s: HTTP %ld: %s (or name a model with --model)", address,
                     status, told);
        } else {
            snprintf(message, LOAD_MESSAGE, "%s: names no model; give one with --model", address);
        }
    }
    curl_easy_cleanup(easy);
    load_bytes_free(&body);
    free(address);
    return load->model ? 0 : -1;
}

int load_open(const load_options *options, load **opened, char message[LOAD_MESSAGE]) {
    *opened = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        snprintf(message, LOAD_MESSAGE, "libcurl does not start");
        return -1;
    }
    load *load = calloc(1, sizeof *load);
    if (!load) {
        curl_global_cleanup();
        snprintf(message, LOAD_MESSAGE, "out of memory");
        return -1;
    }
    load->options = options;
    load->address =
        address_of(options->url, options->completions ? "completions" : "chat/completions", message);
    int result = load->address ? 0 : -1;
    if (result == 0 && make_headers(load)) {
        snprintf(message, LOAD_MESSAGE, "headers: no memory, or a key of more than 4000 bytes");
        result = -1;
    }
    if (result == 0 && options->model) {
        load->model = strdup(options->model);
        snprintf(message, LOAD_MESSAGE, "out of memory");
        result = load->model ? 0 : -1;
    } else if (result == 0) {
        result = ask_model(load, message);
    }
    result = result == 0 ? load_work_open(&load->work, options, load->model, message) : result;
    if (result) {
        load_close(load);
        return -1;
    }
    *opened = load;
    return 0;
}

void load_close(load *load) {
    if (!load) {
        return;
    }
    load_work_close(&load->work);
    curl_slist_free_all(load->headers);
    free(load->model);
    free(load->address);
    free(load);
    curl_global_cleanup();
}

const char *load_model(const load *load) {
    return load->model;
}

/* The HTTP side of the server, over real sockets. What is expected is what RFC 9110 and 9112 say, and http.h.
 */
#include "http_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ---- requests and answers ---- */

static void answers_requests(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    assert_int_equal(ask_simple(server, "GET /quick", "", ""), 200);
    assert_true(answer_has("\r\nContent-Length: 5\r\n"));
    assert_true(answer_has("\r\nContent-Type: text/plain\r\n"));
    assert_true(answer_has("\r\nx-request-id: req_"));
    assert_true(answer_has("\r\n\r\nquick"));
    /* The client's own id is not taken over. */
    assert_int_equal(ask_simple(server, "GET /quick", "x-request-id: mine\r\n", ""), 200);
    assert_false(answer_has("mine"));
    assert_int_equal(ask_simple(server, "HEAD /quick", "", ""), 200);
    assert_true(answer_has("\r\nContent-Length: 5\r\n"));
    assert_false(answer_has("quick"));
    assert_int_equal(ask_simple(server, "HEAD /count", "", ""), 200);
    assert_false(answer_has("line"));
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    assert_int_equal(ask_simple(server, "POST /echo", "Content-Length: 5\r\n", "hello"), 200);
    assert_true(answer_has("\r\n\r\nhello"));
    assert_int_equal(ask_simple(server, "POST /echo", "Content-Length: 0\r\n", ""), 200);
    assert_int_equal(ask_simple(server, "GET /count", "", ""), 200);
    assert_true(answer_has("\r\nTransfer-Encoding: chunked\r\n"));
    assert_true(answer_has("line 4\n\r\n0\r\n\r\n"));
    assert_int_equal(ask_simple(server, "GET /forget", "", ""), 500);
    assert_true(answer_has("\"type\":\"server_error\""));
    assert_int_equal(ask_simple(server, "GET /fail", "", ""), 503);
    assert_true(answer_has("\r\nRetry-After: 3\r\n"));
    assert_true(answer_has(
        "\r\n\r\n{\"error\":{\"message\":\"not \\\"now\\\"\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":\"busy\"}}"));
    http_server_stop(server);
}

static void gives_what_a_request_says(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    assert_int_equal(
        ask_simple(server, "GET /items/a%2Fb%20c/d+e/?beta=1&q=1+2%41&q=3", "User-Agent: me \t\r\n", ""),
        200);
    assert_true(answer_has("\r\n\r\n[a/b c/d+e][1 2A][me][-1]"));
    assert_true(answer_has("\r\nx-extra: 1\r\n"));
    pthread_mutex_lock(&record_lock);
    const bool same_id = last_record.id[0] && strstr(text, last_record.id);
    assert_true(same_id);
    assert_string_equal(last_record.method, "GET");
    assert_string_equal(last_record.route, "/items/{}");
    assert_int_equal(last_record.status, 200);
    assert_int_equal(last_record.generated, 7);
    pthread_mutex_unlock(&record_lock);
    assert_int_equal(ask_simple(server, "GET http://localhost/items/x?q", "", ""), 200);
    assert_true(answer_has("\r\n\r\n[x][][-][-1]"));
    assert_int_equal(ask_simple(server, "GET /items/", "", ""), 404); /* {} takes at least one byte */
    assert_int_equal(ask_simple(server, "GET /items/%zz", "", ""), 400);
    assert_int_equal(ask_simple(server, "GET /items/%00", "", ""), 400);
    http_server_stop(server);
}

static void knows_its_routes(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    assert_int_equal(ask_simple(server, "GET /quick/", "", ""), 200);
    assert_int_equal(ask_simple(server, "GET /quick?x=1", "", ""), 200);
    assert_int_equal(ask_simple(server, "GET /qui%63k", "", ""), 200);
    assert_int_equal(ask_simple(server, "GET /quic", "", ""), 404);
    assert_true(answer_has("\r\nContent-Type: application/json\r\n"));
    assert_true(answer_has("\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"not_found\""));
    assert_int_equal(ask_simple(server, "HEAD /quic", "", ""), 404);
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    assert_int_equal(ask_simple(server, "GET /", "", ""), 404);
    assert_int_equal(ask_simple(server, "DELETE /quick", "", ""), 405);
    assert_true(answer_has("\r\nAllow: GET, HEAD, OPTIONS\r\n"));
    assert_int_equal(ask_simple(server, "BREW /echo", "", ""), 405);
    assert_true(answer_has("\r\nAllow: POST, OPTIONS\r\n"));
    assert_int_equal(ask_simple(server, "OPTIONS /echo", "", ""), 204);
    assert_true(answer_has("\r\nAllow: POST, OPTIONS\r\n"));
    assert_int_equal(ask_simple(server, "OPTIONS *", "", ""), 204);
    assert_int_equal(ask_simple(server, "POST /own", "Content-Encoding: gzip\r\nContent-Length: 1\r\n", "x"),
                     415);
    assert_true(answer_has("\r\n\r\n{\"own\":415,\"id\":\"req_"));
    http_server_stop(server);
}

static void keeps_connections(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    const int fd = connect_server(server);
    for (int i = 0; i < 20; i++) {
        send_text(fd, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_true(read_until(fd, "\r\n\r\nquick"));
        send_text(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
        assert_true(read_until(fd, "\r\n\r\nabc"));
        send_text(fd, "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_true(read_until(fd, "}}"));
    }
    /* In order, though a stream and a worker's answer stand between quick ones. */
    static const char FOUR[] = "GET /count HTTP/1.1\r\nHost: localhost\r\n\r\n"
                               "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nfirst"
                               "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n"
                               "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nlast";
    for (int i = 0; i < 5; i++) {
        send_text(fd, FOUR);
    }
    char all[TEXT] = "";
    size_t length = 0;
    for (double end = now() + PATIENCE; now() < end && length < TEXT - 4096;) {
        const ssize_t got = recv(fd, all + length, 4096, MSG_DONTWAIT);
        length += got > 0 ? (size_t)got : 0;
        all[length] = '\0';
        int lasts = 0;
        for (const char *at = all; (at = strstr(at, "\r\n\r\nlast")); at++) {
            lasts++;
        }
        if (lasts == 5) {
            break;
        }
        pause_for(0.001);
    }
    const char *at = all;
    for (int i = 0; i < 5; i++) {
        static const char *const IN_ORDER[] = {"line 4\n", "\r\n\r\nfirst", "\r\n\r\nquick", "\r\n\r\nlast"};
        for (int j = 0; j < 4; j++) {
            at = strstr(at, IN_ORDER[j]);
            assert_non_null(at);
        }
    }
    close(fd);
    /* HTTP/1.0 keeps only what it asks to keep, and a stream ends with its connection. */
    assert_int_equal(ask(server, "GET /quick HTTP/1.0\r\n\r\n"), 200);
    assert_int_equal(ask(server, "GET /count HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), 200);
    assert_false(answer_has("chunked"));
    assert_true(answer_has("\r\n\r\nline 0\nline 1\n"));
    const int old = connect_server(server);
    for (int i = 0; i < 2; i++) {
        send_text(old, "GET /quick HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_true(read_until(old, "\r\n\r\nquick"));
    }
    close(old);
    http_server_stop(server);
}

static void takes_bytes_one_by_one(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    static const char REQUESTS[] =
        "\r\nPOST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\nA;name=\"v\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        "Connection: close\r\n\r\nlast";
    const int fd = connect_server(server);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof on);
    for (size_t i = 0; i + 1 < sizeof REQUESTS; i++) {
        assert_true(send_bytes(fd, REQUESTS + i, 1));
        pause_for(0.0002);
    }
    assert_true(read_until(fd, NULL));
    assert_true(answer_has("\r\n\r\nabc0123456789HTTP/1.1 200"));
    assert_true(answer_has("\r\n\r\nlast"));
    close(fd);
    http_server_stop(server);
}

static void continues_when_asked(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    const int fd = connect_server(server);
    send_text(fd,
              "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_true(read_until(fd, "HTTP/1.1 100 Continue\r\n\r\n"));
    send_text(fd, "abc");
    assert_true(read_until(fd, "\r\n\r\nabc"));
    close(fd);
    assert_int_equal(ask(server, "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                                 "Content-Length: 1048577\r\n\r\n"),
                     413);
    http_server_stop(server);
}

/* ---- what is refused ---- */

/* RFC 9112: sections 2.2, 3, 3.2, 5.1, 5.2, 6.1, 6.3 and 7.1. */
static const struct {
    const char *request;
    int status;
    bool library; /* answered by libmicrohttpd, in words of its own */
} MALFORMED[] = {
    {"GARBAGE\r\n\r\n", 400, false},
    {"\x16\x03\x01\x02", 400, false},
    {"GET /quick\r\n\r\n", 400, false},
    {"GET  /quick HTTP/1.1\r\nHost: a\r\n\r\n", 400, false},
    {"GET /qu ick HTTP/1.1\r\nHost: a\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1 \r\nHost: a\r\n\r\n", 400, false},
    {"GET /quick HTTP/x.1\r\nHost: a\r\n\r\n", 400, false},
    {"G(T /quick HTTP/1.1\r\nHost: a\r\n\r\n", 400, false},
    {"GET quick HTTP/1.1\r\nHost: a\r\n\r\n", 400, false},
    {"GET /quick HTTP/2.0\r\nHost: a\r\n\r\n", 505, false},
    {"GET /quick HTTP/1.1\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1\r\nHost : a\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1\r\nHost: a\r\nx : 1\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1\r\nHost: a\r\nx: 1\r\n 2\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400, false},
    {"GET /quick HTTP/1.1\r\nHost: a\r\nx: \x01\r\n\r\n", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, false},
    {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1,1\r\n\r\nab", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\nab", 400, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413, false},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n", 400,
     true},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", 400, true},
    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400, true},
};

static void refuses_malformed_requests(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    atomic_store(&handled_count, 0);
    for (size_t i = 0; i < sizeof MALFORMED / sizeof *MALFORMED; i++) {
        const int status = ask(server, MALFORMED[i].request); /* read to the end: it is closed */
        if (status != MALFORMED[i].status) {
            fail_msg("%d for: %s", status, MALFORMED[i].request);
        }
        assert_true(answer_has("\r\nConnection: close\r\n"));
        if (!MALFORMED[i].library) {
            assert_true(answer_has("\r\nx-request-id: req_"));
            assert_true(answer_has("\r\n\r\n{\"error\":{\"message\":"));
        }
    }
    assert_int_equal(atomic_load(&handled_count), 0);
    /* Behind another request on the same connection they are refused as well. */
    static const char *const LATER[] = {
        "GET /quick HTTP/1.1\r\nHost: a\r\nx : 1\r\n\r\n",
        "GET /quick HTTP/1.1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof LATER / sizeof *LATER; i++) {
        const int fd = connect_server(server);
        send_text(fd, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_true(read_until(fd, "\r\n\r\nquick"));
        send_text(fd, LATER[i]);
        assert_true(read_until(fd, NULL));
        assert_int_equal(strncmp(text, "HTTP/1.1 400", 12), 0);
        close(fd);
    }
    assert_int_equal(atomic_load(&handled_count), 0);
    http_server_stop(server);
}

static char *filled(const char *before, size_t count, const char *after) {
    const size_t head = strlen(before), tail = strlen(after);
    char *made = malloc(head + count + tail + 1);
    assert_non_null(made);
    memcpy(made, before, head);
    memset(made + head, 'x', count);
    memcpy(made + head + count, after, tail + 1);
    return made;
}

static void keeps_its_limits(void **state) {
    (void)state;
    http_options options = defaults();
    options.max_body = 100000;
    http_server *server = start(&options);
    static const struct {
        const char *before;
        size_t count;
        const char *after;
        int status;
    } CASES[] = {
        {"GET /quick?", 9000, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200},
        {"GET /quick?", 40000, " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
        {"GET /quick?", 400000, "", 414},
        {"GET /quick HTTP/1.1\r\nHost: a\r\nConnection: close\r\nx: ", 60000, "\r\n\r\n", 200},
        {"GET /quick HTTP/1.1\r\nHost: a\r\nx: ", 70000, "\r\n\r\n", 431},
        {"GET /quick HTTP/1.1\r\nHost: a\r\nx: ", 1000000, "\r\n\r\n", 431},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n", 100000, "",
         200},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n", 0, "", 413},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n", 3000000, "", 413},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n",
         100000, "\r\n0\r\n\r\n", 200},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n186a1\r\n", 100001, "", 413},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 3000000, "", 413},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n", 1, "", 415},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Encoding: identity\r\n"
         "Content-Length: 1\r\n\r\n",
         1, "", 200},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\n"
         "Content-Length: 1\r\n\r\n",
         1, "", 415},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
         "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1\r\n\r\n",
         1, "", 200},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: text/whatever\r\n"
         "Content-Length: 1\r\n\r\n",
         1, "", 200},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char *request = filled(CASES[i].before, CASES[i].count, CASES[i].after);
        const int fd = connect_server(server);
        send_bytes(fd, request, strlen(request)); /* a refused client may see a closed connection here */
        read_until(fd, CASES[i].status == 200 ? NULL : "\r\n\r\n");
        close(fd);
        free(request);
        const int status = strncmp(text, "HTTP/1.1 ", 9) == 0 ? atoi(text + 9) : -1;
        if (status != CASES[i].status) {
            fail_msg("case %zu: %d instead of %d: %.200s", i, status, CASES[i].status, text);
        }
    }
    assert_true(all_closed(server, 0));
    http_server_stop(server);
}

static void asks_for_keys(void **state) {
    (void)state;
    static const char *const KEYS[] = {"first-key", "k2"};
    http_options options = defaults();
    options.keys = KEYS;
    options.key_count = 2;
    http_server *server = start(&options);
    static const struct {
        const char *header;
        int key; /* -1: refused */
    } CASES[] = {
        {"Authorization: Bearer first-key\r\n", 0},
        {"authorization: bEARER \t k2  \r\n", 1},
        {"X-Api-Key: first-key\r\n", 0},
        {"Authorization: Bearer wrong\r\nx-api-key: k2\r\n", 1},
        {"", -1},
        {"Authorization: Bearer first-ke\r\n", -1},
        {"Authorization: Bearer first-keyy\r\n", -1},
        {"Authorization: Bearer first-kez\r\n", -1},
        {"Authorization: Bearer k2k2\r\n", -1},
        {"Authorization: Bearer\r\n", -1},
        {"Authorization: Bearer \r\n", -1},
        {"Authorization: Basic first-key\r\n", -1},
        {"Authorization: first-key\r\n", -1},
        {"x-api-key:\r\n", -1},
        {"x-api-key: Bearer k2\r\n", -1},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const int status = ask_simple(server, "GET /items/x", CASES[i].header, "");
        char expected[32];
        snprintf(expected, sizeof expected, "[%d]", CASES[i].key);
        if (status != (CASES[i].key < 0 ? 401 : 200) || (CASES[i].key >= 0 && !answer_has(expected))) {
            fail_msg("%d for %s", status, CASES[i].header);
        }
    }
    assert_int_equal(ask(server, "GET /key HTTP/1.1\r\nHost: localhost\r\n\r\n"), 401); /* and closed */
    assert_true(answer_has("\"type\":\"authentication_error\",\"param\":null,\"code\":\"invalid_api_key\""));
    assert_int_equal(ask_simple(server, "GET /unknown", "", ""), 401);
    assert_int_equal(ask_simple(server, "GET /quick", "", ""), 200);
    assert_int_equal(ask_simple(server, "OPTIONS /echo", "", ""), 204);
    /* Before the body: none of it is sent here. */
    assert_int_equal(ask(server, "POST /own HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"),
                     401);
    assert_true(answer_has("{\"own\":401,"));
    http_server_stop(server);
}

static void guards_against_pages(void **state) {
    (void)state;
    static const char *const ORIGINS[] = {"https://app.example"};
    static const char *const HOSTS[] = {"model.example"};
    http_options options = defaults();
    options.origins = ORIGINS;
    options.origin_count = 1;
    options.hosts = HOSTS;
    options.host_count = 1;
    http_server *server = start(&options);
    static const struct {
        const char *origin;
        bool allowed;
    } CASES[] = {
        {"http://localhost", true},
        {"http://localhost:3000", true},
        {"https://127.0.0.1:1", true},
        {"http://[::1]:8080", true},
        {"https://app.example", true},
        {"http://app.example", false},
        {"http://localhost.evil.net", false},
        {"http://evil.net", false},
        {"http://localhost:80@evil.net", false},
        {"null", false},
        {"file://", false},
        {"http://localhost:", false},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char header[256], expected[256];
        snprintf(header, sizeof header, "Origin: %s\r\n", CASES[i].origin);
        snprintf(expected, sizeof expected, "\r\nAccess-Control-Allow-Origin: %s\r\n", CASES[i].origin);
        assert_int_equal(ask_simple(server, "GET /quick", header, ""), 200);
        if (answer_has(expected) != CASES[i].allowed ||
            answer_has("Access-Control-Allow-Origin") != CASES[i].allowed) {
            fail_msg("%s: %s", CASES[i].origin, text);
        }
        assert_int_equal(answer_has("\r\nVary: Origin\r\n"), CASES[i].allowed);
        assert_false(answer_has("Allow-Credentials"));
    }
    assert_int_equal(ask_simple(server, "OPTIONS /echo",
                                "Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n"
                                "Access-Control-Request-Headers: x-stainless-os,b@d, x-two\r\n",
                                ""),
                     204);
    assert_true(answer_has("\r\nAccess-Control-Allow-Methods: POST, OPTIONS\r\n"));
    assert_true(answer_has("\r\nAccess-Control-Allow-Headers: authorization, content-type, x-api-key, "
                           "anthropic-version, anthropic-beta, x-stainless-os, x-two\r\n"));
    assert_int_equal(ask_simple(server, "OPTIONS /echo",
                                "Origin: http://evil.net\r\nAccess-Control-Request-Method: POST\r\n", ""),
                     204);
    assert_false(answer_has("Access-Control"));
    /* A foreign name for this machine, sent by a page. */
    static const struct {
        const char *host, *origin;
        int status;
    } NAMES[] = {
        {"evil.net", "Origin: http://evil.net\r\n", 403},
        {"evil.net:8080", "Origin: http://evil.net:8080\r\n", 403},
        {"127.0.0.1.evil.net", "Origin: http://evil.net\r\n", 403},
        {"[::1].evil.net", "Origin: http://evil.net\r\n", 403},
        {"evil.net", "", 200},
        {"model.example:99", "Origin: http://evil.net\r\n", 200},
        {"127.1.2.3:80", "Origin: http://evil.net\r\n", 200},
        {"LOCALHOST:80", "Origin: http://evil.net\r\n", 200},
        {"[::1]:80", "Origin: http://evil.net\r\n", 200},
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char request[512];
        snprintf(request, sizeof request, "GET /quick HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n",
                 NAMES[i].host, NAMES[i].origin);
        const int status = ask(server, request);
        if (status != NAMES[i].status) {
            fail_msg("%d for %s", status, NAMES[i].host);
        }
    }
    http_server_stop(server);
}

/* ---- streams, and clients that leave ---- */

static exchange *open_feed(const http_server *server, int *fd) {
    *fd = connect_server(server);
    send_text(*fd, "GET /feed HTTP/1.1\r\nHost: localhost\r\n\r\n");
    exchange *taken = take_held();
    assert_non_null(taken);
    return taken;
}

static void streams(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    int fd;
    exchange *taken = open_feed(server, &fd);
    assert_true(read_until(fd, "\r\n\r\n")); /* before anything is written */
    assert_true(answer_has("\r\nContent-Type: text/event-stream\r\n"));
    assert_true(answer_has("\r\nCache-Control: no-cache\r\n"));
    assert_true(answer_has("\r\nX-Accel-Buffering: no\r\n"));
    int quick = 0;
    for (int i = 0; i < 50; i++) {
        char event[32];
        const int length = snprintf(event, sizeof event, "data: %d\n\n", i);
        const double before = now();
        assert_true(exchange_write(taken, event, (size_t)length));
        assert_true(read_until(fd, event));
        quick += now() - before < 0.15;
    }
    assert_true(quick > 25); /* not held back by a cork: that is 200 ms, each */
    for (double end = now() + PATIENCE; exchange_pending(taken) && now() < end;) {
        pause_for(0.001);
    }
    assert_int_equal(exchange_pending(taken), 0);
    exchange_end(taken, false);
    assert_true(read_until(fd, "0\r\n\r\n"));
    exchange_release(taken);
    send_text(fd, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(read_until(fd, "\r\n\r\nquick"));
    close(fd);

    taken = open_feed(server, &fd);
    assert_true(exchange_write(taken, "half", 4));
    exchange_end(taken, true);
    exchange_release(taken);
    assert_true(read_until(fd, NULL));
    assert_true(answer_has("4\r\nhalf\r\n"));
    assert_false(answer_has("\r\n0\r\n"));
    close(fd);

    /* Released without an end: broken as well. */
    taken = open_feed(server, &fd);
    exchange_release(taken);
    assert_true(read_until(fd, NULL));
    assert_false(answer_has("\r\n0\r\n"));
    close(fd);
    http_server_stop(server);
}

static void reset(int fd) {
    const struct linger at_once = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

static void says_when_a_client_leaves(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    int gone = 0;
    atomic_store(&gone_count, 0);
    for (int i = 0; i < 3; i++) { /* FIN, RST, half-closed */
        int fd = connect_server(server);
        send_text(fd, "POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
        exchange *taken = take_held();
        assert_non_null(taken);
        pause_for(0.02);
        assert_int_equal(atomic_load(&gone_count), gone);
        assert_int_equal(http_server_open(server), 1);
        i == 0 ? (void)close(fd) : i == 1 ? reset(fd) : (void)shutdown(fd, SHUT_WR);
        assert_true(reaches(&gone_count, ++gone)); /* long before a deadline */
        assert_true(all_closed(server, 0));
        assert_int_equal(http_server_open(server), 0);
        reply_text(taken, "too late");
        exchange_release(taken);
        if (i == 2) {
            close(fd);
        }
        pthread_mutex_lock(&record_lock);
        assert_int_equal(last_record.status, 499);
        pthread_mutex_unlock(&record_lock);

        taken = open_feed(server, &fd);
        assert_true(read_until(fd, "\r\n\r\n"));
        assert_true(exchange_write(taken, "data: 1\n\n", 9));
        assert_true(read_until(fd, "data: 1\n\n"));
        i == 0 ? (void)close(fd) : i == 1 ? reset(fd) : (void)shutdown(fd, SHUT_WR);
        assert_true(reaches(&gone_count, ++gone)); /* long before a deadline */
        assert_false(exchange_write(taken, "data: 2\n\n", 9));
        exchange_end(taken, false);
        exchange_release(taken);
        if (i == 2) {
            close(fd);
        }
    }
    /* It left in the middle of a pipeline: the request in hand is what it left. */
    int fd = connect_server(server);
    send_text(fd, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /hold HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Length: 0\r\n\r\nGET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
    exchange *taken = take_held();
    assert_non_null(taken);
    close(fd);
    assert_true(reaches(&gone_count, ++gone));
    exchange_release(taken);
    /* Who asks late is told at once; who was answered is not. */
    fd = connect_server(server);
    send_text(fd, "GET /feed HTTP/1.1\r\nHost: localhost\r\n\r\n");
    taken = take_held();
    assert_non_null(taken);
    exchange_end(taken, false);
    assert_true(read_until(fd, "0\r\n\r\n"));
    close(fd);
    assert_true(all_closed(server, 0));
    exchange_release(taken);
    http_server_stop(server);
    assert_int_equal(atomic_load(&gone_count), gone);
}

static void waits_for_slow_readers_within_limits(void **state) {
    (void)state;
    http_options options = defaults();
    options.stall_seconds = 2; /* a loaded machine takes a while over the 16 MiB */
    http_server *server = start(&options);
    atomic_store(&gone_count, 0);
    static char block[1 << 16];
    memset(block, '.', sizeof block);
    int fd;
    exchange *taken = open_feed(server, &fd);
    for (int i = 0; i < 256; i++) { /* 16 MiB: more than sockets hold */
        assert_true(exchange_write(taken, block, sizeof block));
    }
    assert_true(exchange_pending(taken) > 1 << 20);
    /* Others do not wait for it. */
    assert_int_equal(ask_simple(server, "GET /quick", "", ""), 200);
    assert_int_equal(atomic_load(&gone_count), 0);
    /* It reads a little now and then: it stays. */
    for (int i = 0; i < 15; i++) {
        pause_for(0.2);
        for (int j = 0; j < 8; j++) {
            (void)!recv(fd, text, TEXT, MSG_DONTWAIT);
        }
    }
    assert_int_equal(atomic_load(&gone_count), 0);
    /* Then nothing: it is dropped. */
    assert_true(reaches(&gone_count, 1));
    assert_true(all_closed(server, 0));
    assert_false(exchange_write(taken, "x", 1));
    exchange_release(taken);
    close(fd);
    /* A stream that has nothing to say is not stalled. */
    taken = open_feed(server, &fd);
    assert_true(read_until(fd, "\r\n\r\n"));
    pause_for(2.5);
    assert_true(exchange_write(taken, "still here", 10));
    assert_true(read_until(fd, "still here"));
    exchange_release(taken);
    close(fd);
    http_server_stop(server);
    assert_int_equal(atomic_load(&gone_count), 1);
}

/* ---- deadlines ---- */

/* Seconds until the server closes a connection that gets one of `bytes` every 50 ms, or nothing when it is
 * NULL. */
static double seconds_open(int fd, const char *bytes) {
    const double begin = now();
    while (now() < begin + PATIENCE) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, 50) > 0 && recv(fd, text, TEXT, 0) <= 0) {
            break;
        }
        if (bytes && *bytes) {
            (void)!send(fd, bytes++, 1, MSG_NOSIGNAL);
        }
    }
    close(fd);
    return now() - begin;
}

static const char LONG_HEAD[] =
    "GET /quick HTTP/1.1\r\nHost: localhost\r\nA: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

static int after_a_request(int fd) {
    send_text(fd, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(read_until(fd, "quick"));
    return fd;
}

/* One deadline is short at a time: what ends early has met that one. */
static void assert_soon(double seconds, double deadline) {
    assert_true(seconds > deadline - 0.1 && seconds < PATIENCE);
}

static void keeps_its_deadlines(void **state) {
    (void)state;
    http_options options = defaults();
    options.unix_path = "test_http.deadlines";
    options.header_seconds = 0.5;
    http_server *server = start(&options);
    assert_soon(seconds_open(connect_server(server), LONG_HEAD), 0.5);
    assert_soon(seconds_open(after_a_request(connect_server(server)), LONG_HEAD), 0.5);
    /* And on a socket file. */
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "test_http.deadlines"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_soon(seconds_open(after_a_request(fd), LONG_HEAD), 0.5);
    http_server_stop(server);

    options = defaults();
    options.idle_seconds = 1;
    server = start(&options);
    assert_soon(seconds_open(connect_server(server), NULL), 1);
    assert_soon(seconds_open(after_a_request(connect_server(server)), NULL), 1);
    http_server_stop(server);

    /* A body that stops, and one that goes on slowly. */
    options = defaults();
    options.stall_seconds = 2;
    server = start(&options);
    fd = connect_server(server);
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\nabc");
    assert_soon(seconds_open(fd, NULL), 2);
    fd = connect_server(server);
    send_text(fd,
              "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60\r\nConnection: close\r\n\r\n");
    assert_soon(seconds_open(fd, "012345678901234567890123456789012345678901234567890123456789"), 2.5);
    assert_int_equal(strncmp(text, "HTTP/1.1 200", 12), 0);
    http_server_stop(server);
}

/* ---- many ---- */

static double processor_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void holds_many_idle_connections(void **state) {
    (void)state;
    enum { MANY = 2000 };
    static int fds[MANY];
    http_options options = defaults();
    options.connections = MANY + 100;
    http_server *server = start(&options); /* raises the limit of descriptors: two are needed for each */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    const int count = limit.rlim_cur > 2 * MANY + 200 ? MANY : ((int)limit.rlim_cur - 200) / 2;
    for (int i = 0; i < count; i++) {
        fds[i] = connect_server(server);
        if (i % 2) {
            send_text(fds[i], "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_true(read_until(fds[i], "quick"));
        }
    }
    double least = PATIENCE;
    for (int i = 0; i < 10; i++) {
        const double before = now();
        assert_int_equal(ask_simple(server, "GET /quick", "", ""), 200);
        const double took = now() - before;
        least = took < least ? took : least;
    }
    assert_true(least < 0.1);
    assert_true(all_closed(server, (size_t)count));
    const double used = processor_seconds();
    pause_for(0.3);
    assert_true(processor_seconds() - used < 0.15);
    const double before = now();
    http_server_stop(server);
    assert_true(now() - before < PATIENCE);
    for (int i = 0; i < count; i++) {
        close(fds[i]);
    }
}

static void makes_room_at_its_limit(void **state) {
    (void)state;
    enum { LIMIT = 8 };
    int fds[LIMIT], more[LIMIT];
    http_options options = defaults();
    options.connections = LIMIT;
    http_server *server = start(&options);
    for (int i = 0; i < LIMIT; i++) {
        fds[i] = connect_server(server);
        if (i % 2) {
            send_text(fds[i], "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_true(read_until(fds[i], "quick"));
        }
    }
    for (int i = 0; i < 4; i++) { /* idle ones give way */
        assert_int_equal(ask_simple(server, "GET /quick", "", ""), 200);
    }
    exchange *taken[LIMIT];
    for (int i = 0; i < LIMIT; i++) { /* busy ones do not */
        more[i] = connect_server(server);
        send_text(more[i], "POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        taken[i] = take_held();
        assert_non_null(taken[i]);
    }
    const int waiting = connect_server(server);
    send_text(waiting, "GET /quick HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    const double used = processor_seconds();
    pause_for(0.4);
    assert_true(processor_seconds() - used < 0.2); /* it does not turn in circles */
    assert_true(recv(waiting, text, TEXT, MSG_DONTWAIT) < 0);
    reply_text(taken[0], "done");
    assert_true(read_until(more[0], "done"));
    assert_true(read_until(waiting, NULL));
    assert_true(answer_has("quick"));
    close(waiting);
    for (int i = 0; i < LIMIT; i++) {
        exchange_release(taken[i]);
        close(fds[i]);
        close(more[i]);
    }
    http_server_stop(server);
}

/* With no descriptor left for the process, what is connected is served, and nothing spins. */
static void lives_without_descriptors(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    const int fd = connect_server(server);
    send_text(fd, "POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    exchange *taken = take_held();
    assert_non_null(taken);
    const int next = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)http_server_port(server))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = (rlim_t)next + 1;
    const int last = dup(0); /* whatever is free below */
    setrlimit(RLIMIT_NOFILE, &none);
    int filler[64], fillers = 0;
    while (fillers < 64 && (filler[fillers] = dup(0)) >= 0) {
        fillers++;
    }
    assert_int_equal(connect(next, (struct sockaddr *)&address, sizeof address), 0);
    send_text(next, "GET /quick HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    const double used = processor_seconds();
    pause_for(0.5);
    const double spent = processor_seconds() - used;
    reply_text(taken, "served");
    const bool served = read_until(fd, "served");
    setrlimit(RLIMIT_NOFILE, &before);
    for (int i = 0; i < fillers; i++) {
        close(filler[i]);
    }
    assert_true(fillers < 64);
    assert_true(served);
    assert_true(spent < 0.2);
    assert_true(read_until(next, NULL));
    assert_true(answer_has("quick"));
    exchange_release(taken);
    close(last);
    close(next);
    close(fd);
    http_server_stop(server);
}

/* ---- the end ---- */

static void drains(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    const int port = http_server_port(server);
    const int idle = connect_server(server), used = connect_server(server), busy = connect_server(server);
    send_text(used, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(read_until(used, "quick"));
    send_text(busy, "POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    exchange *taken = take_held();
    assert_non_null(taken);
    const int refused = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (!http_server_drain(server)) {
        usleep(100);
    }
    assert_int_equal(connect(refused, (struct sockaddr *)&address, sizeof address), -1);
    assert_int_equal(errno, ECONNREFUSED); /* true was told when it was so, not when it was asked for */
    assert_int_equal(http_server_open(server), 1);
    assert_true(read_until(idle, NULL));
    assert_true(read_until(used, NULL)); /* long before a deadline */
    reply_text(taken, "finished");
    exchange_release(taken);
    assert_true(read_until(busy, NULL)); /* closed behind it */
    assert_true(answer_has("\r\nConnection: close\r\n"));
    assert_true(answer_has("finished"));
    assert_true(all_closed(server, 0));
    assert_int_equal(http_server_open(server), 0);
    close(idle);
    close(used);
    close(busy);
    close(refused);
    http_server_stop(server);
    http_options again = defaults(); /* the port is free at once */
    again.port = port;
    server = start(&again);
    assert_int_equal(http_server_port(server), port);
    http_server_stop(server);
}

static void stops_in_the_middle(void **state) {
    (void)state;
    const http_options options = defaults();
    http_server *server = start(&options);
    atomic_store(&gone_count, 0);
    int waiting = connect_server(server), feed, half = connect_server(server);
    send_text(half, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc");
    send_text(waiting, "POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    exchange *first = take_held();
    exchange *second = open_feed(server, &feed);
    assert_non_null(first);
    assert_true(read_until(feed, "\r\n\r\n"));
    const int port = http_server_port(server);
    const double before = now();
    http_server_stop(server);
    assert_true(now() - before < PATIENCE);
    assert_int_equal(atomic_load(&gone_count), 2);
    /* What others still have of it may be used and given back. */
    assert_false(exchange_write(second, "late", 4));
    exchange_end(second, false);
    reply_text(first, "late");
    assert_string_equal(exchange_argument(first), "");
    assert_int_equal(exchange_pending(second), 0);
    exchange_release(first);
    exchange_release(second);
    close(waiting);
    close(feed);
    close(half);
    http_options again = defaults(); /* connections of the last one are still in TIME_WAIT */
    again.port = port;
    server = start(&again);
    http_server_stop(server);
    http_server_stop(NULL);
}

/* ---- where it listens ---- */

static const char *start_error(const http_options *options) {
    static char message[256];
    http_server *server = (http_server *)&message;
    message[0] = '\0';
    assert_true(http_server_start(options, &server, message, sizeof message) < 0);
    assert_null(server);
    assert_null(strchr(message, '\n'));
    return message;
}

static int connect_file(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void listens_on_socket_files(void **state) {
    (void)state;
    static const char PATH[] = "test_http.socket";
    unlink(PATH);
    http_options options = defaults();
    options.host = NULL;
    options.unix_path = PATH;
    http_server *server = start(&options);
    assert_int_equal(http_server_port(server), 0);
    struct stat status;
    assert_int_equal(stat(PATH, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0660);
    const int fd = connect_file(PATH);
    assert_true(fd >= 0);
    send_text(fd, "GET /quick HTTP/1.1\r\nHost: whatever\r\n\r\n");
    assert_true(read_until(fd, "quick"));
    send_text(fd, "POST /hold HTTP/1.1\r\nHost: whatever\r\nContent-Length: 0\r\n\r\n");
    exchange *taken = take_held();
    assert_non_null(taken);
    atomic_store(&gone_count, 0);
    close(fd);
    assert_true(reaches(&gone_count, 1));
    exchange_release(taken);
    assert_non_null(strstr(start_error(&options), "test_http.socket: address already in use"));
    http_server_stop(server);
    assert_int_equal(stat(PATH, &status), -1);
    /* A killed server's file is taken over, anybody else's is not. */
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "test_http.socket"};
    const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(dead, (struct sockaddr *)&address, sizeof address), 0);
    close(dead);
    server = start(&options);
    http_server_stop(server);
    FILE *file = fopen(PATH, "w");
    assert_non_null(file);
    fclose(file);
    assert_non_null(strstr(start_error(&options), "file exists"));
    assert_int_equal(stat(PATH, &status), 0);
    unlink(PATH);
}

static void names_what_it_cannot_bind(void **state) {
    (void)state;
    http_options options = defaults();
    http_server *server = start(&options);
    options.port = http_server_port(server);
    char expected[128];
    snprintf(expected, sizeof expected, "port %d on 127.0.0.1: address already in use", options.port);
    assert_string_equal(start_error(&options), expected);
    http_server_stop(server);
    options.port = 99999;
    assert_non_null(strstr(start_error(&options), "port 99999"));
    options.port = -1;
    assert_non_null(strstr(start_error(&options), "port -1"));
    options.port = 0;
    options.host = "203.0.113.7"; /* RFC 5737: nobody's */
    assert_non_null(strstr(start_error(&options), "203.0.113.7"));
    options.host = "no-such-host.invalid";
    assert_non_null(strstr(start_error(&options), "no-such-host.invalid"));
    options.host = NULL;
    start_error(&options);
    options.inherited_socket = 987;
    assert_non_null(strstr(start_error(&options), "987"));
    options = defaults();
    options.tls_certificate = "no-such.pem";
    options.tls_key = "no-such.pem";
    assert_non_null(strstr(start_error(&options), "no-such.pem"));
    options.tls_key = NULL;
    start_error(&options);
    options.tls_certificate = options.tls_key = SLUICE_SOURCE_DIR "/LICENSE";
    assert_non_null(strstr(start_error(&options), "LICENSE"));
}

static void takes_over_a_socket(void **state) {
    (void)state;
    http_options options = defaults();
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 5), 0);
    options.host = NULL;
    options.inherited_socket = fd;
    http_server *server = start(&options);
    assert_int_equal(ask_simple(server, "GET /quick", "", ""), 200);
    http_server_stop(server);
    options = defaults();
    options.host = "localhost"; /* IPv4, IPv6 or both: what this machine has */
    server = start(&options);
    assert_int_equal(ask_simple(server, "GET /quick", "", ""), 200);
    http_server_stop(server);
}

/* ---- TLS ---- */

static void write_file(const char *path, const gnutls_datum_t *data) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data->data, 1, data->size, file), data->size);
    fclose(file);
}

/* A key and a certificate for it that it signed itself. */
static void make_certificate(const char *certificate_path, const char *key_path) {
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t certificate;
    gnutls_datum_t data;
    assert_int_equal(gnutls_x509_privkey_init(&key), 0);
    assert_int_equal(gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
                                                  GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
                     0);
    assert_int_equal(gnutls_x509_crt_init(&certificate), 0);
    gnutls_x509_crt_set_version(certificate, 3);
    gnutls_x509_crt_set_serial(certificate, "\x01", 1);
    gnutls_x509_crt_set_activation_time(certificate, time(NULL) - 60);
    gnutls_x509_crt_set_expiration_time(certificate, time(NULL) + 3600);
    gnutls_x509_crt_set_dn(certificate, "CN=localhost", NULL);
    gnutls_x509_crt_set_key(certificate, key);
    assert_int_equal(gnutls_x509_crt_sign2(certificate, certificate, key, GNUTLS_DIG_SHA256, 0), 0);
    assert_int_equal(gnutls_x509_crt_export2(certificate, GNUTLS_X509_FMT_PEM, &data), 0);
    write_file(certificate_path, &data);
    gnutls_free(data.data);
    assert_int_equal(gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &data), 0);
    write_file(key_path, &data);
    gnutls_free(data.data);
    gnutls_x509_crt_deinit(certificate);
    gnutls_x509_privkey_deinit(key);
}

static void speaks_tls(void **state) {
    (void)state;
    http_options options = defaults();
    options.tls_certificate = "test_http.certificate";
    options.tls_key = "test_http.key";
    options.header_seconds = 3;
    make_certificate(options.tls_certificate, options.tls_key);
    http_server *server = start(&options);
    unlink(options.tls_certificate);
    unlink(options.tls_key);
    gnutls_certificate_credentials_t credentials;
    gnutls_session_t session;
    gnutls_certificate_allocate_credentials(&credentials);
    assert_int_equal(gnutls_init(&session, GNUTLS_CLIENT), 0);
    gnutls_set_default_priority(session);
    gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials);
    const int fd = connect_server(server);
    gnutls_transport_set_int(session, fd);
    gnutls_handshake_set_timeout(session, (unsigned)(PATIENCE * 1000));
    gnutls_record_set_timeout(session, (unsigned)(PATIENCE * 1000));
    assert_int_equal(gnutls_handshake(session), 0);
    static const char *const PAIRS[][2] = {
        {"GET /quick HTTP/1.1\r\nHost: a\r\n\r\n", "quick"},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nsame", "\r\n\r\nsame"},
        {"GET /count HTTP/1.1\r\nHost: a\r\n\r\n", "line 4\n\r\n0\r\n\r\n"},
        {"POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", NULL},
    };
    for (int i = 0; i < 4; i++) {
        size_t length = 0;
        const size_t size = strlen(PAIRS[i][0]);
        assert_int_equal(gnutls_record_send(session, PAIRS[i][0], size), size);
        for (text[0] = '\0'; PAIRS[i][1] && !answer_has(PAIRS[i][1]); text[length] = '\0') {
            const ssize_t got = gnutls_record_recv(session, text + length, TEXT - length);
            assert_true(got > 0);
            length += (size_t)got;
        }
    }
    exchange *taken = take_held();
    assert_non_null(taken);
    atomic_store(&gone_count, 0);
    close(fd);
    assert_true(reaches(&gone_count, 1));
    exchange_release(taken);
    gnutls_deinit(session);
    gnutls_certificate_free_credentials(credentials);
    /* Who does not get on with the handshake is dropped like one who does not with headers. */
    const int slow = connect_server(server);
    assert_true(send_bytes(slow, "\x16", 1));
    const double seconds = seconds_open(slow, NULL);
    assert_true(seconds > 2.9 && seconds < PATIENCE);
    assert_true(all_closed(server, 0));
    http_server_stop(server);
}

/* ---- races ---- */

typedef struct feeder {
    pthread_t thread;
    exchange *exchange;
    unsigned kind;
} feeder;

/* Answers in one of several ways, while the client leaves or reads. */
static void *feed(void *context) {
    feeder *feeder = context;
    switch (feeder->kind % 4) {
    case 0:
        reply_text(feeder->exchange, "reply");
        break;
    case 1:
        exchange_stream(feeder->exchange, 200, "text/plain");
        for (int i = 0; i < 100 && exchange_write(feeder->exchange, "0123456789", 10); i++) {
        }
        exchange_end(feeder->exchange, false);
        break;
    case 2:
        exchange_stream(feeder->exchange, 200, "text/plain");
        exchange_write(feeder->exchange, "x", 1);
        exchange_end(feeder->exchange, true);
        break;
    default:
        break; /* the last release answers 500 */
    }
    exchange_release(feeder->exchange);
    return NULL;
}

static void survives_races(void **state) {
    (void)state;
    enum { ROUNDS = 25, CLIENTS = 12 };
    const http_options options = defaults();
    http_server *server = start(&options);
    atomic_store(&gone_count, 0);
    for (int round = 0; round < ROUNDS; round++) {
        int fds[CLIENTS];
        feeder feeders[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            fds[i] = connect_server(server);
            send_text(fds[i], "POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
            feeders[i] = (feeder){.exchange = take_held(), .kind = (unsigned)(i + round)};
            assert_non_null(feeders[i].exchange);
        }
        for (int i = 0; i < CLIENTS; i++) {
            pthread_create(&feeders[i].thread, NULL, feed, &feeders[i]);
            if (i % 3 == 0) {
                close(fds[i]);
            } else if (i % 3 == 1) {
                reset(fds[i]);
            }
        }
        if (round == ROUNDS - 1) { /* and the server stops under all of them */
            http_server_stop(server);
        }
        for (int i = 0; i < CLIENTS; i++) {
            pthread_join(feeders[i].thread, NULL);
            if (i % 3 == 2) {
                if (round < ROUNDS - 1) {
                    assert_true(read_until(fds[i], feeders[i].kind % 4 == 2 ? NULL : "\r\n\r\n"));
                    assert_int_equal(
                        strncmp(text, feeders[i].kind % 4 == 3 ? "HTTP/1.1 500" : "HTTP/1.1 200", 12), 0);
                }
                close(fds[i]);
            }
        }
        if (round < ROUNDS - 1) {
            assert_true(all_closed(server, 0));
            assert_int_equal(http_server_open(server), 0);
        }
    }
}

int main(void) {
    signal(SIGPIPE, SIG_DFL); /* it would end this program if it came */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_requests),
        cmocka_unit_test(gives_what_a_request_says),
        cmocka_unit_test(knows_its_routes),
        cmocka_unit_test(keeps_connections),
        cmocka_unit_test(takes_bytes_one_by_one),
        cmocka_unit_test(continues_when_asked),
        cmocka_unit_test(refuses_malformed_requests),
        cmocka_unit_test(keeps_its_limits),
        cmocka_unit_test(asks_for_keys),
        cmocka_unit_test(guards_against_pages),
        cmocka_unit_test(streams),
        cmocka_unit_test(says_when_a_client_leaves),
        cmocka_unit_test(waits_for_slow_readers_within_limits),
        cmocka_unit_test(keeps_its_deadlines),
        cmocka_unit_test(holds_many_idle_connections),
        cmocka_unit_test(makes_room_at_its_limit),
        cmocka_unit_test(lives_without_descriptors),
        cmocka_unit_test(drains),
        cmocka_unit_test(stops_in_the_middle),
        cmocka_unit_test(listens_on_socket_files),
        cmocka_unit_test(names_what_it_cannot_bind),
        cmocka_unit_test(takes_over_a_socket),
        cmocka_unit_test(speaks_tls),
        cmocka_unit_test(survives_races),
    };
    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}

/* One request at a time: what is sent, and what a client sees of the answer. */
#ifndef SLUICE_LOAD_CLIENT_H
#define SLUICE_LOAD_CLIENT_H

#include "answer.h"
#include "work.h"

#include <curl/curl.h>

struct load {
    const load_options *options;
    load_work work;
    char *model, *address; /* of the endpoint */
    struct curl_slist *headers;
    int64_t next_talk; /* index of the next conversation */
};

typedef enum load_outcome { LOAD_DONE, LOAD_FAILED, LOAD_ABORTED, LOAD_UNFINISHED } load_outcome;

typedef struct load_client {
    struct load_client *next; /* in a list of those that wait */
    CURL *easy;
    load_talk talk;
    load_answer answer;
    char *body;
    bool running;
    double wake; /* when it goes on; 0: it does not */
    /* of the request */
    int64_t number;
    double due, begin, first_byte, end;
    double counts_from;     /* when events begin to count */
    int64_t counted_events; /* with text */
    const double *stamp;    /* when what is being read came */
    double *live;           /* counts such events of all clients */
    long status;
    bool judged;             /* the answer's kind is known */
    bool left;               /* the client went away on purpose */
    double retry_after;      /* seconds; -1: not said */
    double connect;          /* ms; -1: the connection was there */
    char kind[80], why[160]; /* why it failed */
    char curl_error[CURL_ERROR_SIZE];
} load_client;

/* A transfer with all options that do not change. NULL: no memory. */
CURL *load_easy(const load *load, const char *address, char *curl_error);
/* 0; -1: no memory. */
int load_client_open(const load *load, load_client *client);
void load_client_close(load_client *client);
/* The conversation's next request, ready to be run at `now`. 0; -1: no memory. */
int load_client_prepare(load *load, load_client *client, double now);
/* What came of it, libcurl saying `code`. */
load_outcome load_client_judge(load_client *client, CURLcode code, double now);
/* Tokens of a done answer: by usage, else by events. */
int64_t load_client_tokens(const load_client *client);

#endif

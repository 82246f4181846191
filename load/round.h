/* One run: who asks when, and what is counted. */
#ifndef SLUICE_LOAD_ROUND_H
#define SLUICE_LOAD_ROUND_H

#include "client.h"
#include "wire.h"

typedef struct load_round {
    load *load;
    const load_options *options;
    load_result *result;
    load_wire wire;
    load_client **clients; /* [count], all that were made */
    size_t count, most;
    load_client *idle;  /* without a conversation */
    load_client *ready; /* go on now, in this order */
    load_client **ready_end;
    load_client *resting;            /* go on at their time */
    double soonest;                  /* of those; 0: none */
    int64_t running, busy;           /* busy: with a conversation, thinking ones too */
    double began, counts_from, ends; /* ends 0: by requests */
    /* arrivals */
    load_random arrivals;
    double next_arrival;
    bool next_waited;   /* for a free place */
    double places_from; /* when the last one that waited got its place */
    double live;        /* events with text that count, of all clients */
    double cut_events, done_tokens,
        done_events; /* that count: of answers that came to no end; of those that did */
    double next_progress;
    bool failed;
} load_round;

/* Counts a request that ended, and writes its line of the trace. 0; -1: no memory, or the trace. */
int load_count(load_round *round, load_client *client, load_outcome outcome);
/* What follows from all of them. */
void load_conclude(load_round *round, double now);

#endif

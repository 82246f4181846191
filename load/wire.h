/* libcurl's transfers over epoll, and the clocks beside them: one for what is due, one that ticks only to
 * show how late the generator itself is. */
#ifndef SLUICE_LOAD_WIRE_H
#define SLUICE_LOAD_WIRE_H

#include "load.h"

#include <curl/curl.h>

typedef struct load_wire {
    CURLM *multi;
    int poll, timer, clock; /* descriptors; -1: none */
    double curl_due;        /* when libcurl wants to be called; 0: not */
    double armed;           /* what the timer is set to; 0: not */
    double next_tick;
    double stamp; /* when what is being read came */
    bool failed;
} load_wire;

/* Seconds of a clock that is never set. */
double load_now(void);

int load_wire_open(load_wire *wire, char message[LOAD_MESSAGE]);
void load_wire_close(load_wire *wire);
/* Until something came, was sent or is due, at most until the next tick; the transfers' callbacks run in
 * here. `late` gets how late ticks were, in ms. 0; -1: the wire or memory failed. */
int load_wire_wait(load_wire *wire, double due, load_series *late);

#endif

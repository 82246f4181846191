/* Inside hub_download: one call, its files, its connections. */
#ifndef SLUICE_HUB_JOB_H
#define SLUICE_HUB_JOB_H

#include "part.h"
#include "web.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

enum { HUB_MOST_SLOTS = 16, HUB_SAMPLES = 20 };

typedef enum hub_job_state {
    HUB_JOB_NEW,
    HUB_JOB_LOCKED,   /* elsewhere */
    HUB_JOB_MOVING,   /* bytes are missing */
    HUB_JOB_CHECKING, /* none is; the hash is being made */
    HUB_JOB_DONE,
} hub_job_state;

/* One file. */
typedef struct hub_job {
    const hub_file *file;
    const char *name; /* the last part of the path */
    hub_job_state state;
    hub_partial part;
    bool known;   /* an answer told the size, and whether there are ranges */
    bool plain;   /* there are none: the whole comes over one connection */
    char *direct; /* where the last redirect led; NULL: nowhere */
    int most;     /* connections that the server bears */
    int anew;     /* how often it began anew in this call */
    bool hashing;
    gnutls_hash_hd_t hash;
    uint64_t hashed;  /* bytes from the beginning */
    uint64_t resumed; /* bytes that were there before */
    double saved;     /* when the record was written */
    double pause;     /* until it is written again */
    double looked;    /* at the lock of another */
    double touched;   /* what the other's file said then, */
    double sign;      /* and when that last changed */
} hub_job;

/* One connection, or rather one request after the other for one piece of a file. */
typedef struct hub_slot {
    struct hub_call *call;
    hub_job *job; /* NULL: free */
    hub_web web;
    bool ranged;      /* a range was asked for */
    uint64_t at, end; /* where the next byte goes, and behind the last one; UINT64_MAX: not known */
    double wake;      /* waits until then; 0: does not wait */
    bool cancelled;   /* what comes is not wanted any more */
    bool changed;     /* the answer is of another file than what is there */
    bool whole_only;  /* the answer shows that ranges cannot be had */
} hub_slot;

typedef struct hub_call {
    const hub_transfer *transfer;
    hub_job *jobs; /* [count] */
    size_t count;
    hub_slot slots[HUB_MOST_SLOTS];
    int slot_count;
    CURLM *multi;
    int status;      /* of the first failure */
    hub_job *failed; /* whose; NULL: nobody's */
    bool damaged;    /* it was removed: a wrong hash */
    char *message;
    void *buffer;   /* to hash from; owned */
    uint64_t fresh; /* bytes that came in this call */
    double told;    /* when progress was told last */
    double sample_times[HUB_SAMPLES];
    uint64_t samples[HUB_SAMPLES]; /* `fresh` at those times */
    size_t sample_count;
} hub_call;

/* ---- job.c: one file from its beginning to its end ---- */

/* The first failure of a call stays. Both return false. */
bool hub_job_fail(hub_call *call, hub_job *job, int code, const char *rule);
bool hub_job_failed(hub_call *call, hub_job *job, int code); /* `message` is written */

/* Opens what is there, or sees that another has it. */
void hub_job_open(hub_call *call, hub_job *job);
/* Is there room for what is missing of all files on the same disk? */
bool hub_job_room(hub_call *call, hub_job *job);
/* Begins anew; false: that was too often. */
bool hub_job_anew(hub_call *call, hub_job *job);
/* Makes a little more of the hash; finishes the file when all is there. True: there is more to do at once. */
bool hub_job_step(hub_call *call, hub_job *job, double now);
void hub_job_close(hub_job *job);
uint64_t hub_job_size(const hub_job *job); /* 0: not known */
uint64_t hub_job_bytes(const hub_job *job);

/* ---- slots.c: one piece of a file ---- */

/* Asks for the bytes from at to before end. */
void hub_slot_begin(hub_call *call, hub_slot *slot, hub_job *job, bool ranged, hub_range piece);
void hub_slot_ended(hub_call *call, hub_slot *slot, CURLcode code);
/* What time brings: an end of waiting, a stall. */
void hub_slot_tick(hub_call *call, hub_slot *slot, double now);
void hub_slot_free(hub_slot *slot);
/* How many are at work for a job. */
int hub_slots_of(const hub_call *call, const hub_job *job);

#endif

/* What is asked: prompts, and conversations that grow by the server's answers. What the conversation of an
 * index asks depends on the seed alone, not on when it begins. */
#ifndef SLUICE_LOAD_WORK_H
#define SLUICE_LOAD_WORK_H

#include "bytes.h"
#include "load.h"
#include "random.h"

typedef struct load_prompt {
    json_t *content; /* a text, or an array of messages */
    json_t *more;    /* NULL, or an array of texts: the next turns of a recorded conversation */
    int64_t most;    /* tokens of an answer; 0: not said */
} load_prompt;

typedef struct load_work {
    const load_options *options;
    json_t *base;         /* the fields that all requests share, the model too */
    load_prompt *prompts; /* [count], of the file */
    size_t count, next;
} load_work;

typedef struct load_talk {
    int64_t index;
    int32_t turn; /* of the next request, from 0 */
    load_random random;
    const load_prompt *prompt; /* of the file */
    json_t *messages;          /* chat */
    json_t *ids;               /* completions with token ids */
    load_bytes text;           /* completions with text */
    int64_t wanted;            /* tokens of the random prompts so far */
    int64_t most;              /* tokens of the next answer at most; 0: the server's own bound */
    int64_t leave_after;       /* events with text after which the client leaves; -1: never */
} load_talk;

int load_work_open(load_work *work, const load_options *options, const char *model,
                   char message[LOAD_MESSAGE]);
void load_work_close(load_work *work);

/* 0; -1: no memory. What the talk held before is freed. */
int load_talk_begin(load_work *work, load_talk *talk, int64_t index);
/* Has the conversation another turn? */
bool load_talk_goes_on(const load_work *work, const load_talk *talk);
/* The body of the next request; the caller frees it. NULL: no memory. */
char *load_talk_body(load_work *work, load_talk *talk);
/* What the server answered, before the next turn. 0; -1: no memory. */
int load_talk_answer(load_work *work, load_talk *talk, const load_bytes *answer);
void load_talk_end(load_talk *talk);

#endif

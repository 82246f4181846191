/* Helpers of the tests that go through the public interface. Every failure ends the test with the library's
 * own message. */
#ifndef SLUICE_TESTS_SUPPORT_ENGINE_H
#define SLUICE_TESTS_SUPPORT_ENGINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sluice.h"

#include <stdlib.h>
#include <string.h>

static inline void must(int result, const sluice_error *error, const char *what) {
    if (result) {
        fail_msg("%s: %s", what, error->message);
    }
}

static inline sluice_model *open_model(const char *path) {
    sluice_error error;
    sluice_model *model;
    must(sluice_model_open(path, &model, &error), &error, path);
    return model;
}

static inline sluice_engine *open_engine(sluice_model *model, const sluice_engine_options *options) {
    sluice_error error;
    sluice_engine *engine;
    must(sluice_engine_create(model, options, &engine, &error), &error, "engine");
    return engine;
}

static inline sluice_sequence *open_sequence(sluice_engine *engine) {
    sluice_error error;
    sluice_sequence *sequence;
    must(sluice_sequence_create(engine, &sequence, &error), &error, "sequence");
    return sequence;
}

static inline sluice_request *submit(sluice_sequence *sequence, const sluice_request_options *options) {
    sluice_error error;
    sluice_request *request;
    must(sluice_submit(sequence, options, &request, &error), &error, "submit");
    return request;
}

/* Polls to the end and releases. Logits rows go to logits[position - first][vocabulary] when `logits` is not
 * NULL; generated tokens to `tokens` when that is not NULL. Returns how many tokens were generated. */
typedef struct collected {
    float *logits;
    size_t vocabulary, first, room;
    int32_t *tokens;
    sluice_finish finish;
    size_t reused;
} collected;

static inline size_t collect(sluice_request *request, collected *into) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    size_t count = 0;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        if (event.kind == SLUICE_EVENT_TOKEN) {
            if (into->tokens) {
                into->tokens[count] = event.token;
            }
            count++;
        } else if (event.kind == SLUICE_EVENT_LOGITS && into->logits) {
            assert_true(event.first_position >= into->first);
            assert_true(event.first_position - into->first + event.rows <= into->room);
            memcpy(into->logits + (event.first_position - into->first) * into->vocabulary, event.logits,
                   event.rows * into->vocabulary * sizeof(float));
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    if (event.finish == SLUICE_FINISH_ERROR) {
        fail_msg("request: %s", event.error.message);
    }
    into->finish = event.finish;
    into->reused = event.reused_tokens;
    sluice_request_release(request);
    return count;
}

#endif

/* What the files of the C API share. */
#ifndef SL_API_H
#define SL_API_H

#include "backend/backend.h"
#include "base/error.h"
#include "chat/chat.h"
#include "model/model.h"
#include "plan/plan.h"
#include "sluice.h"

#include <stdatomic.h>

struct sluice_model {
    _Atomic int references;
    sl_model *model;
    sl_chat *chat; /* compiled at open; NULL: the template does not compile, and chat_error says why */
    sl_error chat_error;
};

/* Copies an internal error out; returns its code. `to` may be NULL. */
int sl_api_error(sluice_error *to, const sl_error *from);
int sl_api_fail(sluice_error *to, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Copies a caller's option struct, whose first member is its size, over a zeroed one of `size` bytes. NULL
 * gives all zeroes. SL_ERR_INVALID when it has no size or is larger than this library knows with something
 * set there. */
int sl_api_options(void *options, size_t size, const void *given, const char *name, sluice_error *error);

/* The backend that the options ask for, and a plan of the model on it. */
typedef struct sl_api_plan {
    sl_backend *backend;
    sl_plan *plan;
} sl_api_plan;
int sl_api_plan_open(const sl_model *model, const sluice_engine_options *options, sl_api_plan *plan,
                     sl_error *error);
void sl_api_plan_close(sl_api_plan *plan);

/* api_profile.c: as a table for people, or JSON. */
int sl_api_profile_text(const sl_plan_profile *profile, sluice_text_format format, char **text,
                        sluice_error *error);

#endif

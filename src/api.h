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
    sl_chat *chat_tools;       /* of the model's template tool_use; NULL: none, or another was asked for */
    const char *chat_template; /* in use; NULL: the model has none, and none was asked for */
    const char *chat_template_name; /* NULL: the caller gave its text */
    char *chat_text;                /* the caller's, copied */
};

/* api_chat.c: compiles the template that the options ask for, else the model's own. A template of the model
 * that does not compile is kept for those who want to chat (chat_error); one that was asked for is an error.
 */
int sl_api_open_chat(sluice_model *model, const sluice_model_options *options, sl_error *error);
void sl_api_close_chat(sluice_model *model);

/* Copies an internal error out; returns its code. `to` may be NULL. */
int sl_api_error(sluice_error *to, const sl_error *from);
int sl_api_fail(sluice_error *to, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* True, with an SL_ERR_INVALID that names the argument, when a caller gave NULL where there must be
 * something. */
bool sl_api_lacks(const void *given, const char *name, sluice_error *error);
/* The same for an array that may be NULL when it has no elements. */
bool sl_api_lacks_array(const void *given, size_t count, const char *name, sluice_error *error);
/* SL_ERR_INVALID unless `size`, which a caller set, is that of a struct of this library or of an earlier or
 * later one: not 0, a multiple of what such structs are aligned to, and not beyond what one can become. */
int sl_api_check_size(size_t size, const char *name, sluice_error *error);

/* Copies a caller's option struct, whose first member is its size, over a zeroed one of `size` bytes. NULL
 * gives all zeroes. SL_ERR_INVALID when it has no possible size or is larger than this library knows with
 * something set there. */
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

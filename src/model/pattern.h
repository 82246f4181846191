/* Regular expressions (PCRE2's) for names of tensors. */
#ifndef SL_MODEL_PATTERN_H
#define SL_MODEL_PATTERN_H

#include "base/error.h"

#include <stdbool.h>

typedef struct sl_pattern sl_pattern;

/* SL_ERR_INVALID says what is wrong with the expression, and where. */
int sl_pattern_compile(const char *text, sl_pattern **pattern, sl_error *error);
/* Whether it is found anywhere in `name`; SL_ERR_LIMIT when that takes too many steps. */
int sl_pattern_find(const sl_pattern *pattern, const char *name, bool *found, sl_error *error);
void sl_pattern_free(sl_pattern *pattern); /* NULL is fine */

#endif

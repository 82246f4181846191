/* What people have instead of a model's file, and what to do then. */
#ifndef SL_FORMAT_RECOGNIZE_H
#define SL_FORMAT_RECOGNIZE_H

#include <stddef.h>

/* What the first bytes of a file that cannot be read show it to be, with what to do next, or NULL. Static. */
const char *sl_recognize(const void *data, size_t size);
/* Of a path that ends as unfinished downloads do: the words that go into a message, or NULL. Static. */
const char *sl_recognize_path(const char *path);

#endif

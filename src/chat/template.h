/* Chat templates: the core of the Jinja2 language as Hugging Face's chat_template strings use it. The
 * environment is the one transformers compiles with: immutable sandbox, trim_blocks and lstrip_blocks on, one
 * trailing newline dropped, loop controls, {% generation %} blocks (rendered transparently), tojson as
 * json.dumps(ensure_ascii=False), raise_exception and strftime_now. The reference is Python's jinja2 3.1.
 *
 * A template comes with a downloaded model and is not trusted: parsing is depth-limited, and a rendering that
 * takes too many steps, too much memory or too much output ends with SL_ERR_LIMIT. Known differences from
 * Python: integers have 64 bits (overflow is an error); `escape` gives a plain string; letters change case by
 * Unicode's simple mappings (and sharp s); a slice of a range is a list. There is no include, import,
 * extends, block or recursive loop, no filter batch, center, groupby, slice, truncate, urlencode, wordcount
 * and the like, no str.format. What is not there is refused by name, never skipped. */
#ifndef SL_CHAT_TEMPLATE_H
#define SL_CHAT_TEMPLATE_H

#include "base/error.h"
#include "base/text.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Immutable once compiled: any number of threads may render it at once. */
typedef struct sl_template sl_template;

/* Zero in any field means its default. */
typedef struct sl_template_limits {
    uint64_t output_bytes; /* text written, also into macros and block sets; default 16 MiB */
    uint64_t memory_bytes; /* everything one rendering computes; default 128 MiB, at most 2 GiB */
    uint64_t steps; /* nodes evaluated, plus the length of what linear operations touch; default 20 million */
    uint32_t depth; /* nested evaluations, macro calls and data; default and most: 1000 */
    int64_t now;    /* what strftime_now formats, seconds since 1970 in UTC; default 26 Jul 2024 00:00 */
} sl_template_limits;

/* source: UTF-8, at most 1 MiB, copied. name: for messages, may be NULL. On failure *out is NULL; a syntax
 * error is SL_ERR_FORMAT, a statement that is known but not supported SL_ERR_UNSUPPORTED. */
int sl_template_compile(const char *source, size_t length, const char *name, sl_template **out,
                        sl_error *error);
void sl_template_free(sl_template *compiled);

/* Appends the text to `out`; on failure `out` is as it was. variables: an object (messages, tools, bos_token,
 * ...), only read, and not copied: it must not change meanwhile. limits may be NULL. What the template
 * refuses (raise_exception, a type error) is SL_ERR_INVALID with the template's line. */
int sl_template_render(const sl_template *compiled, json_t *variables, const sl_template_limits *limits,
                       sl_buffer *out, sl_error *error);

#endif

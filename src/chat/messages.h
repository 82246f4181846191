/* Messages as clients write them, to messages as a template reads them. */
#ifndef SL_CHAT_MESSAGES_H
#define SL_CHAT_MESSAGES_H

#include "base/error.h"
#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>

/* What a template takes; found by rendering probes (probe.c). */
typedef struct sl_chat_format {
    bool parts;            /* content of system, user and assistant as a list of parts */
    bool only_parts;       /* a string as content is lost or refused, a list is not */
    bool null_content;     /* content null beside tool_calls */
    bool object_arguments; /* arguments of calls as objects, not as JSON text */
    bool text_arguments;   /* the other way round */
} sl_chat_format;

/* A new list for the template, the given one untouched:
 * - role "developer" is "system"; members that are null are left out, and tool_calls without any;
 * - `reasoning` is passed as reasoning_content too;
 * - content as parts stays so where the template reads parts, else their texts are joined by newlines;
 *   content that is null or missing is "" (null only beside tool calls, where the template knows that);
 * - arguments of tool calls are an object or JSON text, whichever the template wants.
 * SL_ERR_INVALID names the message and member that are wrong, such as a part that is no text. */
int sl_chat_prepare_messages(json_t *messages, const sl_chat_format *format, json_t **prepared,
                             sl_error *error);

/* Appends `text` to the content of the last of prepared messages. SL_ERR_INVALID when there is none. */
int sl_chat_extend_last(json_t *prepared, sl_view text, sl_error *error);

#endif

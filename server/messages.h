/* Lists of chat messages in OpenAI's form. */
#ifndef SLUICE_SERVER_MESSAGES_H
#define SLUICE_SERVER_MESSAGES_H

#include "body.h"

/* See server.h. */
int check_messages(const json_t *messages, const char *param, http_error *error);

/* A checked list as templates take it: developer is system, contents are strings (parts are joined by
 * newlines) or null, arguments of tool calls are objects, and thinking is `reasoning_content`. A new list;
 * NULL without memory.
 */
json_t *uniform_messages(const json_t *messages);

#endif

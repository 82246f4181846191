/* A list of OpenAI's messages while it is being made; for the files that convert. Contents and reasoning are
 * arrays of texts until the list is finished, so that adding to a message takes the same time whatever it
 * holds. */
#ifndef SLUICE_SERVER_MESSAGE_LIST_H
#define SLUICE_SERVER_MESSAGE_LIST_H

#include "convert.h"

typedef struct message_list {
    json_t *messages;
    bool failed; /* no memory; noticed when it is finished */
} message_list;

void list_begin(message_list *list);
/* The message that is to be added to; borrowed. Adjacent system messages are one; `joins`: so is any other
 * role. */
json_t *list_message(message_list *list, const char *role, bool joins);
/* The last message when it has that role, else NULL. */
json_t *list_last(const message_list *list, const char *role);
/* One more text of a message's content; `string` is shared. Empty ones are dropped. */
void list_text(message_list *list, json_t *message, json_t *string);
void list_reasoning(message_list *list, json_t *message, json_t *string);
/* One more call; `arguments`: a string, or any value that becomes one. */
void list_call(message_list *list, json_t *message, json_t *id, json_t *name, json_t *arguments);
/* A tool's answer, a new message. */
json_t *list_result(message_list *list, json_t *id);
size_t list_call_count(const json_t *message);
/* Gives *messages to the caller, or -1 with *error; the list is empty afterwards. */
int list_finish(message_list *list, json_t **messages, http_error *error);
void list_discard(message_list *list);

/* Appends one chat tool to an array; description and parameters may be NULL. False: no memory. */
bool tools_add(json_t *functions, json_t *name, json_t *description, json_t *parameters);

/* The entry of a NULL-terminated list that equals `name`, NULL when there is none. Messages name types with
 * these, not with words of the body. */
const char *known_name(const char *const *names, const char *name);
/* 400 for a member that is missing or of a wrong type. */
int refuse_member(http_error *error, const char *path, const char *name, const char *wanted,
                  const json_t *value);

#endif

/* Marks in a rendered text: noncharacters (U+FDD0 to U+FDEF), which Unicode keeps for such use inside
 * programs. */
#ifndef SL_CHAT_MARKS_H
#define SL_CHAT_MARKS_H

#include "token/tokenizer.h"

#include <jansson.h>
#include <stdint.h>

enum { SL_CHAT_MARK_SIZE = 3 };

/* Bit i: U+FDD0 + i is in use. */
typedef uint32_t sl_chat_marks;

sl_chat_marks sl_chat_marks_in(sl_view text);
/* In all strings and names of a value, which may be NULL. */
sl_chat_marks sl_chat_marks_in_json(const json_t *value);
/* A mark that is not in use, which it then is: SL_CHAT_MARK_SIZE bytes. False when there is none left. */
bool sl_chat_take_mark(sl_chat_marks *used, char mark[SL_CHAT_MARK_SIZE]);

/* The value with special tokens marked in all its strings and names (sl_tokenizer_mark_special). What need
 * not change is shared. A new reference; NULL when memory ran out. */
json_t *sl_chat_mark_json(const sl_tokenizer *tokenizer, json_t *value, sl_view mark);

#endif

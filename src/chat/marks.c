#include "chat/marks.h"

#include <string.h>

/* U+FDD0 + i is EF B7 90 + i. */
static const char lead[] = {(char)0xef, (char)0xb7};
enum { LAST_BYTE = 0x90, MARKS = 32 };

sl_chat_marks sl_chat_marks_in(sl_view text) {
    sl_chat_marks used = 0;
    const char *at = text.data, *end = text.data + text.length;
    while (text.length > 0 && (at = memchr(at, lead[0], (size_t)(end - at))) != NULL) {
        if (end - at >= SL_CHAT_MARK_SIZE && at[1] == lead[1]) {
            const unsigned number = (unsigned char)at[2] - (unsigned)LAST_BYTE;
            used |= number < MARKS ? (sl_chat_marks)1 << number : 0;
        }
        at++;
    }
    return used;
}

sl_chat_marks sl_chat_marks_in_json(const json_t *value) {
    sl_chat_marks used = 0;
    if (json_is_string(value)) {
        return sl_chat_marks_in((sl_view){json_string_value(value), json_string_length(value)});
    }
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            used |= sl_chat_marks_in_json(json_array_get(value, i));
        }
        return used;
    }
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)value, name, member) {
        used |= sl_chat_marks_in(sl_view_of(name)) | sl_chat_marks_in_json(member);
    }
    return used;
}

bool sl_chat_take_mark(sl_chat_marks *used, char mark[SL_CHAT_MARK_SIZE]) {
    for (unsigned number = 0; number < MARKS; number++) {
        if (!(*used >> number & 1)) {
            *used |= (sl_chat_marks)1 << number;
            mark[0] = lead[0];
            mark[1] = lead[1];
            mark[2] = (char)(LAST_BYTE + number);
            return true;
        }
    }
    return false;
}

static json_t *mark_array(const sl_tokenizer *tokenizer, json_t *value, sl_view mark) {
    json_t *result = json_array();
    for (size_t i = 0; result && i < json_array_size(value); i++) {
        if (json_array_append_new(result, sl_chat_mark_json(tokenizer, json_array_get(value, i), mark))) {
            json_decref(result);
            result = NULL;
        }
    }
    return result;
}

static json_t *mark_object(const sl_tokenizer *tokenizer, json_t *value, sl_view mark) {
    json_t *result = json_object(), *member;
    const char *name;
    sl_buffer marked = {0};
    json_object_foreach(value, name, member) {
        sl_buffer_clear(&marked);
        sl_tokenizer_mark_special(tokenizer, sl_view_of(name), mark, &marked);
        if (!result || marked.failed ||
            json_object_set_new_nocheck(result, marked.data, sl_chat_mark_json(tokenizer, member, mark))) {
            json_decref(result);
            result = NULL;
            break;
        }
    }
    sl_buffer_free(&marked);
    return result;
}

json_t *sl_chat_mark_json(const sl_tokenizer *tokenizer, json_t *value, sl_view mark) {
    if (json_is_array(value)) {
        return mark_array(tokenizer, value, mark);
    }
    if (json_is_object(value)) {
        return mark_object(tokenizer, value, mark);
    }
    if (!json_is_string(value)) {
        return json_incref(value);
    }
    sl_buffer marked = {0};
    const sl_view text = {json_string_value(value), json_string_length(value)};
    sl_tokenizer_mark_special(tokenizer, text, mark, &marked);
    json_t *result = marked.failed                  ? NULL
                     : marked.length == text.length ? json_incref(value)
                                                    : json_stringn_nocheck(marked.data, marked.length);
    sl_buffer_free(&marked);
    return result;
}

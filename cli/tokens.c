/* sluice tokenize, sluice detokenize. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How many bytes of a character begin here; 0 when it is no UTF-8: many tokens are parts of characters.
 * Shortest forms and surrogates are not looked at: a terminal shows those as it likes. */
static size_t character_size(const char *text, size_t length) {
    const unsigned char c = (unsigned char)text[0];
    const size_t size = c < 0x80                ? 1
                        : c >= 0xc2 && c < 0xe0 ? 2
                        : c >= 0xe0 && c < 0xf0 ? 3
                        : c >= 0xf0 && c < 0xf5 ? 4
                                                : 0;
    for (size_t i = 1; i < size; i++) {
        if (i >= length || ((unsigned char)text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return size;
}

/* In quotes, with C's escapes for what a terminal should not get. */
static void print_quoted(const char *text, size_t length) {
    putchar('"');
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        const size_t size = character_size(text + i, length - i);
        if (size > 1) {
            printf("%.*s", (int)size, text + i);
            i += size - 1;
            continue;
        }
        if (c == '\n') {
            printf("\\n");
        } else if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else if (c < 32 || c >= 127) {
            printf("\\x%02x", c);
        } else {
            putchar(c);
        }
    }
    printf("\"\n");
}

static int print_tokens(const settings *settings, const sluice_model *model, const int32_t *tokens,
                        size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (settings->ids) {
            printf("%s%d", i ? " " : "", tokens[i]);
            continue;
        }
        sluice_error error;
        const char *text; /* with the space that a text's first piece would lose */
        size_t length;
        if (sluice_token_bytes(model, tokens[i], &text, &length, &error)) {
            return fail_with(&error);
        }
        printf("%8d  ", tokens[i]);
        print_quoted(text, length);
    }
    if (settings->ids) {
        printf("\n");
    }
    return DONE;
}

/* With --ids the ids alone. The text of a token that is a part of a character is null. */
static int print_tokens_json(const settings *settings, const sluice_model *model, const int32_t *tokens,
                             size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++) {
        sluice_error error;
        const char *bytes;
        size_t length;
        if (settings->ids) {
            json_array_append_new(list, json_integer(tokens[i]));
            continue;
        }
        if (sluice_token_bytes(model, tokens[i], &bytes, &length, &error)) {
            json_decref(list);
            return fail_with(&error);
        }
        json_t *text = json_stringn(bytes, length);
        json_array_append_new(list,
                              json_pack("{s:i, s:o}", "id", tokens[i], "text", text ? text : json_null()));
    }
    if (json_array_size(list) != count) {
        json_decref(list);
        list = NULL;
    }
    return print_json(list ? json_pack("{s:s, s:o}", "model", settings->model, "tokens", list) : NULL);
}

static int open_text(const settings *settings, session *session) {
    sluice_error error;
    char path[DATA_PATH_SIZE];
    return sluice_model_open_text(model_path(settings->model, path), &session->model, &error)
               ? fail_with(&error)
               : DONE;
}

int tokenize_command(const settings *settings) {
    session session = {0};
    sluice_error error;
    size_t length, count = 0;
    int32_t *tokens = NULL;
    int code;
    char *text = read_prompt("tokenize", settings, &length, &code);
    code = code == DONE ? open_text(settings, &session) : code;
    const unsigned flags =
        (settings->special ? SLUICE_TOKENIZE_SPECIAL : 0) | (settings->bos ? SLUICE_TOKENIZE_BOS : 0);
    if (code == DONE && sluice_tokenize(session.model, text, length, flags, &tokens, &count, &error)) {
        code = fail_with(&error);
    }
    if (code == DONE) {
        code = strcmp(settings->output, "json") == 0
                   ? print_tokens_json(settings, session.model, tokens, count)
                   : print_tokens(settings, session.model, tokens, count);
    }
    sluice_free(tokens);
    free(text);
    close_session(&session);
    return code;
}

/* Numbers with white space or commas between them; owned by the caller. */
static int32_t *parse_ids(const char *text, size_t length, size_t *count) {
    int32_t *ids = malloc((length / 2 + 1) * sizeof *ids);
    *count = 0;
    for (size_t at = 0; ids && at < length;) {
        if (isspace((unsigned char)text[at]) || text[at] == ',') {
            at++;
            continue;
        }
        int64_t value = 0;
        const size_t begin = at;
        while (at < length && isdigit((unsigned char)text[at]) && value <= INT32_MAX) {
            value = value * 10 + (text[at++] - '0');
        }
        if (at == begin || value > INT32_MAX) {
            fail("detokenize: byte %zu of the input is no token id", begin);
            free(ids);
            return NULL;
        }
        ids[(*count)++] = (int32_t)value;
    }
    if (!ids) {
        fail("detokenize: out of memory");
    }
    return ids;
}

int detokenize_command(const settings *settings) {
    session session = {0};
    sluice_error error;
    size_t length, count, written;
    int code;
    char *input = read_prompt("detokenize", settings, &length, &code), *text = NULL;
    code = code == DONE ? open_text(settings, &session) : code;
    int32_t *ids = code == DONE ? parse_ids(input, length, &count) : NULL;
    code = code == DONE && !ids ? FAILED : code;
    const unsigned flags = settings->special ? SLUICE_TOKENIZE_SPECIAL : 0;
    if (code == DONE && sluice_detokenize(session.model, ids, count, flags, &text, &written, &error)) {
        code = fail_with(&error);
    }
    if (code == DONE) {
        fwrite(text, 1, written, stdout);
    }
    sluice_free(text);
    free(ids);
    free(input);
    close_session(&session);
    return code;
}

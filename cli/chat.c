/* sluice chat: a conversation. The messages are rendered anew with each turn; what the sequence holds already
 * is not read again. */
#define _GNU_SOURCE
#include "cli.h"

#include <editline/readline.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat {
    const settings *settings;
    session session;
    sluice_sequence *sequence;
    json_t *messages;
    bool terminal;
    char *reply; /* of the turn; an open memory stream */
    size_t reply_length;
    FILE *reply_stream;
} chat;

static int add_message(chat *c, const char *role, const char *text, size_t length) {
    json_t *content = json_stringn(text, length);
    if (!content) {
        return fail("chat: a message must be UTF-8");
    }
    json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", role, "content", content));
    return DONE;
}

static int reset(chat *c) {
    json_array_clear(c->messages);
    sluice_error error;
    if (sluice_sequence_rollback(c->sequence, 0, &error)) {
        return fail_with(&error);
    }
    const char *system = c->settings->system;
    return system ? add_message(c, "system", system, strlen(system)) : DONE;
}

static void take_token(void *context, const sluice_event *event) {
    chat *c = context;
    fwrite(event->text, 1, event->text_length, stdout);
    fflush(stdout);
    fwrite(event->text, 1, event->text_length, c->reply_stream);
}

/* The rendered conversation's tokens; freed with sluice_free. */
static int render(chat *c, int32_t **tokens, size_t *count) {
    sluice_error error;
    char *messages = json_dumps(c->messages, 0);
    if (!messages) {
        return fail("chat: out of memory");
    }
    int result = sluice_chat_tokens(c->session.model, messages, NULL, tokens, count, &error);
    free(messages);
    return result ? fail_with(&error) : DONE;
}

/* Rolls the sequence back to what it has in common with the tokens, at least one of which stays to be read.
 */
static int keep_common(chat *c, const int32_t *tokens, size_t count, size_t *common) {
    const size_t length = sluice_sequence_length(c->sequence);
    const int32_t *held = sluice_sequence_tokens(c->sequence);
    size_t same = 0;
    while (same < length && same + 1 < count && held[same] == tokens[same]) {
        same++;
    }
    *common = same;
    sluice_error error;
    return sluice_sequence_rollback(c->sequence, same, &error) ? fail_with(&error) : DONE;
}

static int answer(chat *c) {
    int32_t *tokens = NULL;
    size_t count = 0, common = 0;
    sluice_event done;
    int code = render(c, &tokens, &count);
    code = code == DONE && count == 0 ? fail("chat: the template renders to nothing") : code;
    code = code == DONE ? keep_common(c, tokens, count, &common) : code;
    c->reply_stream = code == DONE ? open_memstream(&c->reply, &c->reply_length) : NULL;
    if (code == DONE && !c->reply_stream) {
        code = fail("chat: out of memory");
    }
    if (code == DONE) {
        sluice_request_options options = {.size = sizeof options,
                                          .tokens = tokens + common,
                                          .token_count = count - common,
                                          .generate = (size_t)c->settings->predict};
        sampling_options(c->settings, &options);
        code = generate(c->sequence, &options, take_token, c, &done);
        printf("\n");
        fflush(stdout);
        fclose(c->reply_stream);
        code = code == DONE ? add_message(c, "assistant", c->reply, c->reply_length) : code;
        free(c->reply);
    }
    if (code == DONE) {
        print_timings(&done);
    }
    if (code == DONE && done.finish == SLUICE_FINISH_CONTEXT) {
        fail("chat: the context is full: /reset begins anew, -c asks for more");
    }
    sluice_free(tokens);
    return code;
}

/* One line without its newline, owned by the caller; NULL at the end of input. */
static char *read_turn(const chat *c) {
    if (c->terminal) {
        char *line = readline("> ");
        if (line && *line) {
            add_history(line);
        }
        return line;
    }
    char *line = NULL;
    size_t capacity = 0;
    const ssize_t length = getline(&line, &capacity, stdin);
    if (length < 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = '\0';
    return line;
}

static int converse(chat *c) {
    int code = reset(c);
    while (code == DONE) {
        char *line = read_turn(c);
        if (!line || strcmp(line, "/exit") == 0) {
            free(line);
            break;
        }
        if (strcmp(line, "/reset") == 0) {
            code = reset(c);
        } else if (*line) {
            const size_t before = json_array_size(c->messages);
            code = add_message(c, "user", line, strlen(line));
            code = code == DONE ? answer(c) : code;
            if (code != DONE && c->terminal) { /* said; the turn is forgotten, the conversation goes on */
                while (json_array_size(c->messages) > before) {
                    json_array_remove(c->messages, json_array_size(c->messages) - 1);
                }
                code = DONE;
            }
        }
        free(line);
    }
    return code;
}

int chat_command(const settings *settings) {
    chat c = {.settings = settings, .messages = json_array()};
    sluice_error error;
    sluice_engine_options options;
    c.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    int code = open_model(settings, &c.session);
    engine_options(settings, 1, &options);
    code = code == DONE ? open_engine(&c.session, &options) : code;
    if (code == DONE && sluice_sequence_create(c.session.engine, &c.sequence, &error)) {
        code = fail_with(&error);
    }
    code = code == DONE ? converse(&c) : code;
    sluice_sequence_release(c.sequence);
    json_decref(c.messages);
    close_session(&c.session);
    return code;
}

/* sluice chat: a conversation. The messages are rendered anew with each turn; what the sequence holds already
 * is not read again. */
#define _GNU_SOURCE
#include "cli.h"

#include <ctype.h>
#include <editline/readline.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct chat {
    settings *settings; /* with the model's sampling */
    session session;
    sluice_sequence *sequence;
    json_t *messages;
    bool terminal, failed, ended;
    uint64_t again; /* times that an answer was asked for again: each draws with another seed */
    char *reply;    /* of the turn; an open memory stream */
    size_t reply_length;
    FILE *reply_stream;
    held_grammar held;
    bool faint; /* thinking was printed last */
    reply_reader reader;
} chat;

/* ---- messages --------------------------------------------------------------------------------------------
 */

static void keep_messages(chat *c, size_t count) {
    while (json_array_size(c->messages) > count) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
}

static bool has_role(const json_t *message, const char *role) {
    const char *text = json_string_value(json_object_get(message, "role"));
    return text && strcmp(text, role) == 0;
}

/* The system message in front; "" takes it away. */
static int set_system(chat *c, const char *text) {
    json_t *content = json_string(text);
    json_t *message = content ? json_pack("{s:s, s:o}", "role", "system", "content", content) : NULL;
    if (!message) {
        return fail("chat: a message must be UTF-8");
    }
    if (has_role(json_array_get(c->messages, 0), "system")) {
        json_array_remove(c->messages, 0);
    }
    if (*text) {
        json_array_insert(c->messages, 0, message);
    }
    json_decref(message);
    return DONE;
}

static int reset(chat *c) {
    json_array_clear(c->messages);
    return c->settings->system ? set_system(c, c->settings->system) : DONE;
}

/* ---- an answer -------------------------------------------------------------------------------------------
 */

static void take_text(void *context, const char *text, size_t length, bool thought) {
    chat *c = context;
    print_reply_text(&c->faint, text, length, thought);
    if (!thought) {
        fwrite(text, 1, length, c->reply_stream);
    }
}

static void take_token(void *context, const sluice_event *event) {
    read_reply_text(&((chat *)context)->reader, event);
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

/* What goes on behind the tokens, into c->reply. */
static int read_reply(chat *c, const int32_t *tokens, size_t count, sluice_event *done) {
    size_t common = 0;
    int code = keep_common(c, tokens, count, &common);
    c->reply_stream = code == DONE ? open_memstream(&c->reply, &c->reply_length) : NULL;
    if (!c->reply_stream) {
        return code == DONE ? fail("chat: out of memory") : code;
    }
    sluice_request_options options = {
        .size = sizeof options, .tokens = tokens, .token_count = count, .generate = most_tokens(c->settings)};
    sampling_options(c->settings, &options);
    options.seed += c->again;
    c->reader = (reply_reader){.take = take_text, .context = c};
    code = hold_to_grammar(&c->held, c->settings, c->session.model, &options);
    code = code == DONE ? begin_reply(&c->reader, c->session.model, &options) : code;
    options.tokens += common;
    options.token_count -= common;
    code = code != DONE ? code : generate(c->sequence, &options, take_token, c, done);
    end_faint(&c->faint);
    end_reply(&c->reader);
    code = code == DONE && c->reader.failed ? fail("chat: out of memory") : code;
    fclose(c->reply_stream);
    return code;
}

static int answer(chat *c) {
    int32_t *tokens = NULL;
    size_t count = 0;
    sluice_event done;
    int code = render_tokens(c->session.model, c->settings, c->messages, &tokens, &count);
    if (code == DONE) {
        code = read_reply(c, tokens, count, &done);
        if (code == DONE || c->reply_length > 0) {
            printf("\n");
            fflush(stdout);
        }
        code = code == DONE ? add_message(c->messages, "assistant", c->reply, c->reply_length) : code;
    }
    if (code == DONE) {
        if (c->reply_length == 0) {
            if (!explain_thinking(&c->reader, &done)) {
                explain_silence(c->settings, &done);
            }
        } else if (done.finish == SLUICE_FINISH_CONTEXT) {
            fail("chat: the context is full: /reset begins anew, -c asks for more");
        } else if (done.finish == SLUICE_FINISH_LENGTH) {
            notice(c->settings, "chat: the answer ends at -n %d tokens (-n -1: it ends by itself)",
                   c->settings->predict);
        }
        print_timings(&done);
        if (done.finish == SLUICE_FINISH_CANCELLED && !c->terminal) {
            c->ended = true; /* who stops a script's chat means all of it */
            code = fail("cancelled");
        }
    }
    free(c->reply);
    c->reply = NULL;
    c->reply_length = 0;
    sluice_free(tokens);
    return code;
}

/* Adds a question and its answer; when either fails the conversation is as it was. */
static int ask(chat *c, const char *text, size_t length) {
    const size_t before = json_array_size(c->messages);
    int code = add_message(c->messages, "user", text, length);
    code = code == DONE ? answer(c) : code;
    if (code != DONE) {
        keep_messages(c, before);
    }
    return code;
}

/* ---- commands --------------------------------------------------------------------------------------------
 */

static int command_reset(chat *c, const char *argument) {
    (void)argument;
    return reset(c);
}

static int command_exit(chat *c, const char *argument) {
    (void)argument;
    c->ended = true;
    return DONE;
}

static int command_system(chat *c, const char *argument) {
    return set_system(c, argument);
}

static int command_regen(chat *c, const char *argument) {
    (void)argument;
    size_t count = json_array_size(c->messages);
    while (count > 0 && !has_role(json_array_get(c->messages, count - 1), "user")) {
        count--;
    }
    if (count == 0) {
        return fail("chat: /regen: there is no question yet");
    }
    json_t *before = json_copy(c->messages);
    keep_messages(c, count);
    c->again++;
    const int code = before ? answer(c) : fail("chat: out of memory");
    if (code != DONE && before) {
        json_decref(c->messages);
        c->messages = before;
        return code;
    }
    json_decref(before);
    return code;
}

/* Written beside and moved over, so that a conversation saved before stays whole until then. */
static int command_save(chat *c, const char *argument) {
    char path[DATA_PATH_SIZE];
    struct stat status;
    if (!*argument) {
        return fail("chat: /save wants the name of a file");
    }
    if (stat(argument, &status) == 0 && !S_ISREG(status.st_mode)) {
        return fail("chat: /save: %s: not a regular file", argument);
    }
    if (snprintf(path, sizeof path, "%s.new", argument) >= (int)sizeof path) {
        return fail("chat: /save: the name is too long");
    }
    FILE *file = fopen(path, "wxe");
    if (!file) {
        return fail("chat: /save: %s: %s", path, strerror(errno));
    }
    const bool written = json_dumpf(c->messages, file, JSON_INDENT(2)) == 0 && fputc('\n', file) != EOF;
    if (fclose(file) != 0 || !written || rename(path, argument) != 0) {
        const int reason = errno;
        unlink(path);
        return fail("chat: /save: %s: %s", argument, strerror(reason));
    }
    return DONE;
}

static int command_load(chat *c, const char *argument) {
    size_t length;
    json_error_t error;
    char *text = *argument ? read_all(argument, &length) : NULL;
    if (!text) {
        return *argument ? FAILED : fail("chat: /load wants the name of a file");
    }
    json_t *messages = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error), *message;
    free(text);
    size_t index;
    bool whole = json_is_array(messages);
    json_array_foreach(messages, index, message) {
        whole = whole && json_is_string(json_object_get(message, "role")) &&
                json_is_string(json_object_get(message, "content"));
    }
    if (!whole) {
        json_decref(messages);
        return fail("chat: /load: %s: not a JSON list of messages, each with role and content", argument);
    }
    json_decref(c->messages);
    c->messages = messages;
    return DONE;
}

static int command_help(chat *c, const char *argument);

static const struct {
    const char *name, *about;
    int (*run)(chat *c, const char *argument);
} COMMANDS_OF_CHAT[] = {
    {"/help", "this list", command_help},
    {"/regen", "answer the last question again, with another seed", command_regen},
    {"/system TEXT", "another system message; without a text: none", command_system},
    {"/save FILE", "write the conversation as a JSON list of messages", command_save},
    {"/load FILE", "go on from such a list", command_load},
    {"/reset", "begin anew", command_reset},
    {"/clear", "the same", command_reset},
    {"/exit", "end; so does the end of input", command_exit},
    {"/quit", "the same", command_exit},
};
enum { CHAT_COMMANDS = sizeof COMMANDS_OF_CHAT / sizeof *COMMANDS_OF_CHAT };

static int command_help(chat *c, const char *argument) {
    (void)c;
    (void)argument;
    for (int i = 0; i < CHAT_COMMANDS; i++) {
        fprintf(stderr, "  %-14s %s\n", COMMANDS_OF_CHAT[i].name, COMMANDS_OF_CHAT[i].about);
    }
    fprintf(stderr, "  %-14s %s\n  %-14s %s\n", "... \\", "a line that ends so goes on in the next",
            "\"\"\" ... \"\"\"", "several lines as one message");
    return DONE;
}

/* "/word" or "/word argument": another slash, as in a path, makes it a message. */
static bool is_command(const char *line) {
    size_t length = 1;
    while (isalpha((unsigned char)line[length])) {
        length++;
    }
    return line[0] == '/' && length > 1 && (!line[length] || line[length] == ' ');
}

static int run_chat_command(chat *c, const char *line) {
    const size_t length = strcspn(line, " ");
    const char *argument = line + length + strspn(line + length, " ");
    for (int i = 0; i < CHAT_COMMANDS; i++) {
        const char *name = COMMANDS_OF_CHAT[i].name;
        if (strcspn(name, " ") == length && memcmp(name, line, length) == 0) {
            return COMMANDS_OF_CHAT[i].run(c, argument);
        }
    }
    return fail("chat: there is no command %.*s (/help lists them)", (int)length, line);
}

/* ---- turns -----------------------------------------------------------------------------------------------
 */

/* One line without its newline, owned by the caller; NULL at the end of input. */
static char *read_line(const chat *c, const char *prompt) {
    if (c->terminal) {
        char *line = readline(prompt);
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

/* Appends a line to a text, both of which it takes over; NULL when memory ran out. */
static char *join(char *text, char *line) {
    char *joined = NULL;
    if (asprintf(&joined, "%s\n%s", text, line) < 0) {
        joined = NULL;
        fail("chat: out of memory");
    }
    free(text);
    free(line);
    return joined;
}

/* Takes `ending` off the end; false when the text does not end so. */
static bool cut_ending(char *text, const char *ending) {
    const size_t length = strlen(text), cut = strlen(ending);
    if (length < cut || strcmp(text + length - cut, ending) != 0) {
        return false;
    }
    text[length - cut] = '\0';
    return true;
}

/* Lines up to the quotes that close them; what stands behind the opening ones is the first. */
static char *read_block(const chat *c, char *first) {
    memmove(first, first + 3, strlen(first + 3) + 1);
    char *text = first;
    while (text && !cut_ending(text, "\"\"\"")) {
        char *line = read_line(c, "... ");
        if (!line) {
            break;
        }
        text = join(text, line);
    }
    if (text) { /* the quotes may stand on lines of their own */
        memmove(text, text + (*text == '\n'), strlen(text + (*text == '\n')) + 1);
        cut_ending(text, "\n");
    }
    return text;
}

static char *read_turn(const chat *c) {
    char *text = read_line(c, "> ");
    if (text && strncmp(text, "\"\"\"", 3) == 0) {
        return read_block(c, text);
    }
    while (text && cut_ending(text, "\\")) {
        char *line = read_line(c, "... ");
        if (!line) {
            break;
        }
        text = join(text, line);
    }
    return text;
}

/* What fails is said, and ends neither a conversation nor a script's; the exit status remembers it. */
static int converse(chat *c) {
    while (!c->ended) {
        char *text = read_turn(c);
        if (!text) {
            break;
        }
        int code = DONE;
        if (is_command(text)) {
            code = run_chat_command(c, text);
        } else if (*text) {
            code = ask(c, text, strlen(text));
        }
        c->failed |= code != DONE;
        free(text);
    }
    return c->failed && !c->terminal ? FAILED : DONE;
}

/* -p and -f: one answer. */
static int answer_once(chat *c) {
    size_t length;
    int code;
    char *text = read_prompt("chat", c->settings, &length, &code);
    if (code == DONE && c->settings->file && length > 0 && text[length - 1] == '\n') {
        length -= length > 1 && text[length - 2] == '\r' ? 2 : 1;
    }
    code = code == DONE ? ask(c, text, length) : code;
    free(text);
    return code;
}

static int begin(chat *c) {
    sluice_error error;
    sluice_chat_facts facts = {.size = sizeof facts};
    sluice_engine_options options;
    int code = open_model(c->settings, &c->session);
    if (code == DONE && sluice_chat_get_facts(c->session.model, &facts, &error)) {
        code = fail("%s (--chat-template takes another)", error.message);
    }
    if (code == DONE && facts.builtin) {
        fail("chat: the model has no chat template: ChatML is used (--chat-template NAME takes another)");
    }
    if (code == DONE) {
        take_model_sampling(c->settings, c->session.model);
    }
    engine_options(c->settings, 1, &options);
    code = code == DONE ? open_engine(c->settings, &c->session, &options) : code;
    if (code == DONE && sluice_sequence_create(c->session.engine, &c->sequence, &error)) {
        code = fail_with(&error);
    }
    return code == DONE ? reset(c) : code;
}

int chat_command(const settings *given) {
    settings own = *given, *settings = &own;
    const bool once = settings->prompt || settings->file;
    chat c = {.settings = settings, .messages = json_array(), .held = {.answers = true}};
    c.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !once;
    if (settings->prompt && settings->file) {
        json_decref(c.messages);
        fail("chat: -p and -f exclude each other");
        return WRONG_USAGE;
    }
    int code = begin(&c);
    if (code == DONE) {
        code = once ? answer_once(&c) : converse(&c);
    }
    sluice_sequence_release(c.sequence);
    code = code == DONE ? write_expert_stats(settings, &c.session) : code;
    release_grammar(&c.held);
    json_decref(c.messages);
    close_session(&c.session);
    return code;
}

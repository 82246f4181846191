#include "chat/chat.h"

#include "base/alloc.h"
#include "chat/formats.h"
#include "chat/marks.h"
#include "chat/messages.h"
#include "chat/probe.h"

struct sl_chat {
    sl_template *compiled;
    char *bos_token, *eos_token;
    sl_chat_format format;
    sl_chat_facts facts;
    bool leaves_bos;
    sl_chat_marks used; /* in the template and the special tokens */
};

/* Variables of a template are UTF-8. */
static int check_token(const char *name, const char *text, sl_error *error) {
    uint32_t character;
    for (size_t left = strlen(text), size; left > 0; left -= size, text += size) {
        size = sl_utf8_decode(text, left, &character);
        if (size == 0) {
            return sl_fail(error, SL_ERR_UNSUPPORTED, "chat template: the text of %s is not UTF-8", name);
        }
    }
    return 0;
}

static int compile(sl_chat *chat, const sl_chat_config *config, sl_error *error) {
    chat->facts.builtin = !config->source || !config->source[0];
    chat->leaves_bos = chat->facts.builtin || config->leaves_bos;
    /* Most models without a template of their own were trained on ChatML. */
    const sl_view source = sl_view_of(chat->facts.builtin ? sl_chat_format_source("chatml") : config->source);
    int code = sl_template_compile(source.data, source.length,
                                   chat->facts.builtin ? "built-in ChatML template" : config->name,
                                   &chat->compiled, error);
    if (code) {
        return code;
    }
    chat->bos_token = sl_strdup(config->bos_token ? config->bos_token : "");
    chat->eos_token = sl_strdup(config->eos_token ? config->eos_token : "");
    if (!chat->bos_token || !chat->eos_token) {
        return sl_fail(error, SL_ERR_NOMEM, "chat template: out of memory");
    }
    code = check_token("bos_token", chat->bos_token, error);
    code = code ? code : check_token("eos_token", chat->eos_token, error);
    if (code) {
        return code;
    }
    chat->used = sl_chat_marks_in(source) | sl_chat_marks_in(sl_view_of(chat->bos_token)) |
                 sl_chat_marks_in(sl_view_of(chat->eos_token));
    const sl_chat_probe probe = {.compiled = chat->compiled,
                                 .bos_token = chat->bos_token,
                                 .eos_token = chat->eos_token,
                                 .source = source,
                                 .tokenizer = config->tokenizer};
    return sl_chat_run_probes(&probe, &chat->format, &chat->facts, error);
}

int sl_chat_create(const sl_chat_config *config, sl_chat **out, sl_error *error) {
    *out = NULL;
    sl_chat *chat = sl_alloc_zero(1, sizeof *chat);
    if (!chat) {
        return sl_fail(error, SL_ERR_NOMEM, "chat template: out of memory");
    }
    const int code = compile(chat, config, error);
    if (code) {
        sl_chat_free(chat);
        return code;
    }
    *out = chat;
    return 0;
}

void sl_chat_free(sl_chat *chat) {
    if (chat) {
        sl_template_free(chat->compiled);
        sl_free(chat->bos_token);
        sl_free(chat->eos_token);
        sl_free(chat);
    }
}

const sl_chat_facts *sl_chat_get_facts(const sl_chat *chat) {
    return &chat->facts;
}

/* ---- options
 * ------------------------------------------------------------------------------------------------------------
 */

/* A boolean member, taken out; null is as if it were not there. */
static int take_flag(json_t *options, const char *name, bool usual, bool *value, sl_error *error) {
    const json_t *member = json_object_get(options, name);
    if (member && !json_is_boolean(member) && !json_is_null(member)) {
        return sl_fail(error, SL_ERR_INVALID, "options.%s: not true or false", name);
    }
    *value = json_is_boolean(member) ? json_is_true(member) : usual;
    json_object_del(options, name);
    return 0;
}

/* What the template is given otherwise. A variable of that name would stand in its place (CVE-2025-62426 was
 * such a hole). */
static int refuse_reserved(const json_t *options, sl_error *error) {
    static const char *const reserved[] = {
        "messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "continue_final_message"};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        if (json_object_get(options, reserved[i])) {
            return sl_fail(error, SL_ERR_INVALID, "options.%s: the name belongs to the template",
                           reserved[i]);
        }
    }
    return 0;
}

static int read_options(json_t *options, sl_chat_request *request, sl_error *error) {
    int code = take_flag(options, "continue_final_message", false, &request->continue_final_message, error);
    code = code ? code
                : take_flag(options, "add_generation_prompt", !request->continue_final_message,
                            &request->add_generation_prompt, error);
    if (code) {
        return code;
    }
    json_t *tools = json_object_get(options, "tools");
    if (tools && !json_is_array(tools) && !json_is_null(tools)) {
        return sl_fail(error, SL_ERR_INVALID, "options.tools: not a list");
    }
    request->tools = json_is_array(tools) ? tools : NULL; /* the caller's object still holds it */
    json_object_del(options, "tools");
    return refuse_reserved(options, error);
}

int sl_chat_read_options(json_t *options, sl_chat_request *request, json_t **extra, sl_error *error) {
    *extra = NULL;
    request->tools = request->extra = NULL;
    request->add_generation_prompt = true;
    request->continue_final_message = false;
    if (!options) {
        return 0;
    }
    if (!json_is_object(options)) {
        return sl_fail(error, SL_ERR_INVALID, "options: not an object");
    }
    json_t *copy = json_copy(options);
    if (!copy) {
        return sl_fail(error, SL_ERR_NOMEM, "options: out of memory");
    }
    const int code = read_options(copy, request, error);
    if (code) {
        json_decref(copy);
        return code;
    }
    *extra = request->extra = copy;
    return 0;
}

/* ---- rendering
 * ----------------------------------------------------------------------------------------------------------
 */

/* What one rendering holds. */
typedef struct rendering {
    const sl_chat *chat;
    const sl_chat_request *request;
    const sl_tokenizer *tokenizer; /* whose special tokens are marked in strings; NULL: none are */
    json_t *messages, *tools, *extra;
    char end[SL_CHAT_MARK_SIZE + 1]; /* of the final message, and a space: see cut_open */
    char special[SL_CHAT_MARK_SIZE];
} rendering;

static void end_rendering(rendering *r) {
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->extra);
}

static int check_request(const sl_chat_request *request, sl_error *error) {
    if (!json_is_array(request->messages)) {
        return sl_fail(error, SL_ERR_INVALID, "messages: not a list");
    }
    if ((request->tools && !json_is_array(request->tools)) ||
        (request->extra && !json_is_object(request->extra))) {
        return sl_fail(error, SL_ERR_INVALID, "chat: tools must be a list, extra an object");
    }
    if (request->add_generation_prompt && request->continue_final_message) {
        return sl_fail(
            error, SL_ERR_INVALID,
            "continue_final_message: excludes add_generation_prompt, which opens a message of its own");
    }
    return refuse_reserved(request->extra, error);
}

static int take_marks(rendering *r, sl_error *error) {
    const sl_chat_request *request = r->request;
    sl_chat_marks used = r->chat->used | sl_chat_marks_in_json(request->messages) |
                         sl_chat_marks_in_json(request->tools) | sl_chat_marks_in_json(request->extra);
    if (!sl_chat_take_mark(&used, r->end) || !sl_chat_take_mark(&used, r->special)) {
        return sl_fail(error, SL_ERR_INVALID, "messages: they use up the noncharacters U+FDD0 to U+FDEF");
    }
    r->end[SL_CHAT_MARK_SIZE] = ' ';
    return 0;
}

static json_t *marked(const rendering *r, json_t *value) {
    return r->tokenizer ? sl_chat_mark_json(r->tokenizer, value, (sl_view){r->special, sizeof r->special})
                        : json_incref(value);
}

/* Copies of the request's values as the template gets them. */
static int prepare(rendering *r, sl_error *error) {
    const sl_chat_request *request = r->request;
    json_t *prepared;
    int code = check_request(request, error);
    code = code ? code : take_marks(r, error);
    code = code ? code : sl_chat_prepare_messages(request->messages, &r->chat->format, &prepared, error);
    if (code) {
        return code;
    }
    r->messages = marked(r, prepared);
    json_decref(prepared);
    r->tools = request->tools ? marked(r, request->tools) : NULL;
    r->extra = request->extra ? marked(r, request->extra) : NULL;
    if (!r->messages || (request->tools && !r->tools) || (request->extra && !r->extra)) {
        return sl_fail(error, SL_ERR_NOMEM, "chat: out of memory");
    }
    /* Behind the marks, and so never inside what they mark. */
    return request->continue_final_message
               ? sl_chat_extend_last(r->messages, (sl_view){r->end, sizeof r->end}, error)
               : 0;
}

/* Ends the text where the final message's content ends. A template that trims contents drops the space behind
 * the mark: then white space in front of the mark would have gone too. */
static int cut_open(const rendering *r, size_t start, sl_buffer *out, sl_error *error) {
    size_t behind = out->length;
    while (behind >= start + SL_CHAT_MARK_SIZE &&
           memcmp(out->data + behind - SL_CHAT_MARK_SIZE, r->end, SL_CHAT_MARK_SIZE) != 0) {
        behind--;
    }
    if (behind < start + SL_CHAT_MARK_SIZE) {
        return sl_fail(error, SL_ERR_INVALID,
                       "continue_final_message: the template does not write the final message's content");
    }
    size_t at = behind - SL_CHAT_MARK_SIZE;
    const bool trims = behind == out->length || out->data[behind] != ' ';
    while (trims && at > start && strchr(" \t\r\n", out->data[at - 1])) {
        at--;
    }
    out->length = at;
    out->data[at] = 0;
    return 0;
}

/* Appends to `out`; on failure it is as it was. */
static int render(rendering *r, sl_buffer *out, sl_error *error) {
    const size_t start = out->length;
    int code = prepare(r, error);
    json_t *variables = NULL;
    if (code == 0) {
        variables = sl_chat_make_variables(
            &(sl_chat_variables){.messages = r->messages,
                                 .tools = r->tools,
                                 .bos_token = r->chat->bos_token,
                                 .eos_token = r->chat->eos_token,
                                 .add_generation_prompt = r->request->add_generation_prompt});
        if (!variables || (r->extra && json_object_update(variables, r->extra))) {
            code = sl_fail(error, SL_ERR_NOMEM, "chat: out of memory");
        }
    }
    code = code ? code : sl_template_render(r->chat->compiled, variables, r->request->limits, out, error);
    json_decref(variables);
    if (code == 0 && r->request->continue_final_message) {
        code = cut_open(r, start, out, error);
        if (code) {
            out->length = start;
            out->data[start] = 0;
        }
    }
    return code;
}

int sl_chat_render(const sl_chat *chat, const sl_chat_request *request, sl_buffer *out, sl_error *error) {
    rendering r = {.chat = chat, .request = request};
    const int code = render(&r, out, error);
    end_rendering(&r);
    return code;
}

int sl_chat_encode(const sl_chat *chat, const sl_tokenizer *tokenizer, const sl_chat_request *request,
                   sl_tokens *out, sl_error *error) {
    rendering r = {.chat = chat, .request = request, .tokenizer = tokenizer};
    sl_buffer text = {0};
    int code = render(&r, &text, error);
    end_rendering(&r);
    if (code == 0) {
        const unsigned flags = SL_TOKENIZE_SPECIAL | (chat->leaves_bos ? SL_TOKENIZE_BOS : 0);
        code = sl_tokenizer_encode_marked(tokenizer, (sl_view){text.data, text.length},
                                          (sl_view){r.special, sizeof r.special}, flags, out, error);
    }
    sl_buffer_free(&text);
    return code;
}

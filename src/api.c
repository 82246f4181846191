/* The C API: errors, models, text, plans and files. Engines, sequences and requests are in api_engine.c. */
#include "api.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/map.h"
#include "format/describe.h"
#include "format/json.h"
#include "token/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define SL_ERROR(name, value, message)                                                                       \
    _Static_assert((int)SLUICE_ERR_##name == (int)SL_ERR_##name, "sluice.h and err.def must agree");
#include "base/err.def"
#undef SL_ERROR

/* ---- errors, log, memory
 * -------------------------------------------------------------------------------------------- */

int sl_api_error(sluice_error *to, const sl_error *from) {
    if (to) {
        to->code = from->code;
        snprintf(to->message, sizeof to->message, "%s", from->message);
    }
    return from->code;
}

int sl_api_fail(sluice_error *to, int code, const char *format, ...) {
    sl_error error;
    va_list arguments;
    va_start(arguments, format);
    sl_fail_va(&error, code, format, arguments);
    va_end(arguments);
    return sl_api_error(to, &error);
}

bool sl_api_lacks(const void *given, const char *name, sluice_error *error) {
    if (!given) {
        sl_api_fail(error, SL_ERR_INVALID, "%s: NULL", name);
    }
    return !given;
}

bool sl_api_lacks_array(const void *given, size_t count, const char *name, sluice_error *error) {
    if (!given && count > 0) {
        sl_api_fail(error, SL_ERR_INVALID, "%s: NULL, but %zu are announced", name, count);
    }
    return !given && count > 0;
}

int sl_api_check_size(size_t size, const char *name, sluice_error *error) {
    enum { MOST = 4096 };
    if (size == 0) {
        return sl_api_fail(error, SL_ERR_INVALID, "%s: `size` is not set", name);
    }
    if (size % sizeof size != 0 || size > MOST) {
        return sl_api_fail(error, SL_ERR_INVALID, "%s: `size` %zu is not that of the struct", name, size);
    }
    return 0;
}

int sl_api_options(void *options, size_t size, const void *given, const char *name, sluice_error *error) {
    memset(options, 0, size);
    if (!given) {
        return 0;
    }
    size_t given_size;
    memcpy(&given_size, given, sizeof given_size);
    const int result = sl_api_check_size(given_size, name, error);
    if (result) {
        return result;
    }
    for (size_t i = size; i < given_size; i++) {
        if (((const unsigned char *)given)[i]) {
            return sl_api_fail(error, SL_ERR_INVALID, "%s: an option that this library does not know is set",
                               name);
        }
    }
    memcpy(options, given, given_size < size ? given_size : size);
    return 0;
}

const char *sluice_status_name(int code) {
    return sl_error_name(code);
}

const char *sluice_version(void) {
    return SLUICE_VERSION;
}

static struct {
    void (*function)(void *context, sluice_log_level level, const char *line);
    void *context;
} log_target;

static void forward_log(void *context, sl_log_level level, const char *line) {
    (void)context;
    log_target.function(log_target.context, (sluice_log_level)level, line);
}

void sluice_log_set(void (*function)(void *, sluice_log_level, const char *), void *context) {
    sl_log_set(NULL, NULL);
    log_target.function = function;
    log_target.context = context;
    sl_log_set(function ? forward_log : NULL, NULL);
}

int sluice_handle_truncation(sluice_error *error) {
    sl_error inner;
    const int result = sl_map_handle_loss(&inner);
    return result ? sl_api_error(error, &inner) : 0;
}

void sluice_free(void *memory) {
    sl_free(memory);
}

/* Hands a buffer's text to the caller. */
static int give_text(sl_buffer *buffer, char **text, size_t *length, sluice_error *error) {
    if (!buffer->failed && !buffer->data) {
        sl_buffer_append(buffer, "", 0);
    }
    if (buffer->failed) {
        sl_buffer_free(buffer);
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for text");
    }
    *text = buffer->data;
    if (length) {
        *length = buffer->length;
    }
    return 0;
}

/* Hands a JSON value to the caller as text; takes the value over. */
static int give_json(json_t *value, char **text, sluice_error *error) {
    char *dumped = value ? json_dumps(value, JSON_INDENT(2)) : NULL;
    json_decref(value);
    sl_buffer buffer = {0};
    if (dumped) {
        sl_buffer_text(&buffer, dumped);
        sl_buffer_text(&buffer, "\n");
    }
    buffer.failed |= dumped == NULL;
    free(dumped);
    return give_text(&buffer, text, NULL, error);
}

/* ---- model
 * ----------------------------------------------------------------------------------------------------------
 */

static int open_with(const char *path, const sluice_model_options *options, sluice_model **out,
                     sluice_error *error) {
    if (sl_api_lacks(out, "model", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    if (sl_api_lacks(path, "path", error)) {
        return SL_ERR_INVALID;
    }
    sluice_model *model = sl_alloc_zero(1, sizeof *model);
    if (!model) {
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for a model");
    }
    model->references = 1;
    sl_error inner;
    int result = options->text_only ? sl_model_load_tokenizer(path, &model->model, &inner)
                                    : sl_model_load(path, &model->model, &inner);
    if (result) {
        sl_free(model);
        return sl_api_error(error, &inner);
    }
    result = sl_api_open_chat(model, options, &inner);
    if (result) {
        sluice_model_release(model);
        return sl_api_error(error, &inner);
    }
    *out = model;
    return 0;
}

int sluice_model_open(const char *path, sluice_model **out, sluice_error *error) {
    return open_with(path, &(sluice_model_options){.size = sizeof(sluice_model_options)}, out, error);
}

int sluice_model_open_text(const char *path, sluice_model **out, sluice_error *error) {
    return open_with(path, &(sluice_model_options){.size = sizeof(sluice_model_options), .text_only = true},
                     out, error);
}

int sluice_model_open_with(const char *path, const sluice_model_options *given, sluice_model **out,
                           sluice_error *error) {
    sluice_model_options options;
    if (sl_api_lacks(out, "model", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    const int result = sl_api_options(&options, sizeof options, given, "model options", error);
    return result ? result : open_with(path, &options, out, error);
}

static bool has_weights(const sl_model *model) {
    return model->program.op_count > 0;
}

static int no_weights(sl_error *error) {
    return sl_fail(error, SL_ERR_INVALID, "model: it was opened for its text alone, without weights");
}

sluice_model *sluice_model_retain(sluice_model *model) {
    if (model) {
        atomic_fetch_add(&model->references, 1);
    }
    return model;
}

void sluice_model_release(sluice_model *model) {
    if (model && atomic_fetch_sub(&model->references, 1) == 1) {
        sl_api_close_chat(model);
        sl_model_free(model->model);
        sl_free(model);
    }
}

static int no_tokenizer(sluice_error *error) {
    return sl_api_fail(error, SL_ERR_UNSUPPORTED, "this model has no tokenizer");
}

void sluice_model_get_info(const sluice_model *m, sluice_model_info *out) {
    if (!m || !out) {
        return;
    }
    const sl_model *model = m->model;
    const sl_tokenizer *tokenizer = model->tokenizer;
    sluice_model_info all = {
        .size = out->size,
        .name = model->description.name,
        .family = model->description.family,
        .parameters = model->description.parameters,
        .bytes = model->description.bytes,
        .layers = model->config.layers,
        .width = model->program.width,
        .vocabulary = model->program.vocabulary,
        .context = model->config.context,
        .bos = tokenizer ? sl_tokenizer_bos(tokenizer) : -1,
        .eos = tokenizer ? sl_tokenizer_eos(tokenizer) : -1,
        .has_tokenizer = tokenizer != NULL,
        .chat_template = m->chat_template,
    };
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

static float sampling_value(const sl_sampling *sampling, sl_sampling_fact fact) {
    return (float)sampling->values[fact];
}

#define SAME_BIT(name)                                                                                       \
    _Static_assert((int)SLUICE_SAMPLING_##name == 1 << SL_SAMPLING_##name, "bits are positions of facts");
SAME_BIT(DO_SAMPLE)
SAME_BIT(TEMPERATURE)
SAME_BIT(TOP_K)
SAME_BIT(TOP_P)
SAME_BIT(MIN_P)
SAME_BIT(TYPICAL_P)
SAME_BIT(REPETITION_PENALTY)
SAME_BIT(PENALTY_TOKENS)
SAME_BIT(XTC_PROBABILITY)
SAME_BIT(XTC_THRESHOLD)
SAME_BIT(MIROSTAT)
SAME_BIT(MIROSTAT_TAU)
SAME_BIT(MIROSTAT_ETA)

void sluice_model_get_sampling(const sluice_model *model, sluice_sampling_facts *out) {
    if (!model || !out) {
        return;
    }
    const sl_sampling *from = &model->model->sampling;
    const sluice_sampling_facts all = {
        .size = out->size,
        .present = from->present,
        .file = from->file,
        .samplers = from->samplers[0] ? from->samplers : NULL,
        .do_sample = from->values[SL_SAMPLING_DO_SAMPLE] != 0,
        .temperature = sampling_value(from, SL_SAMPLING_TEMPERATURE),
        .top_k = (int32_t)from->values[SL_SAMPLING_TOP_K],
        .top_p = sampling_value(from, SL_SAMPLING_TOP_P),
        .min_p = sampling_value(from, SL_SAMPLING_MIN_P),
        .typical_p = sampling_value(from, SL_SAMPLING_TYPICAL_P),
        .repetition_penalty = sampling_value(from, SL_SAMPLING_REPETITION_PENALTY),
        .penalty_tokens = (int32_t)from->values[SL_SAMPLING_PENALTY_TOKENS],
        .xtc_probability = sampling_value(from, SL_SAMPLING_XTC_PROBABILITY),
        .xtc_threshold = sampling_value(from, SL_SAMPLING_XTC_THRESHOLD),
        .mirostat = (int32_t)from->values[SL_SAMPLING_MIROSTAT],
        .mirostat_tau = sampling_value(from, SL_SAMPLING_MIROSTAT_TAU),
        .mirostat_eta = sampling_value(from, SL_SAMPLING_MIROSTAT_ETA),
    };
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

static json_t *describe_types(const sl_model_description *d) {
    json_t *types = json_array();
    for (int t = 0; types && t < SL_QTYPE_COUNT; t++) {
        if (d->types[t].tensors) {
            json_array_append_new(
                types, json_pack("{s:s, s:I, s:I, s:I}", "type", sl_qtype_get((sl_qtype)t)->name, "tensors",
                                 (json_int_t)d->types[t].tensors, "elements",
                                 (json_int_t)d->types[t].elements, "bytes", (json_int_t)d->types[t].bytes));
        }
    }
    return types;
}

static json_t *describe_weights(const sl_program *program) {
    json_t *weights = json_array();
    for (int32_t i = 0; weights && i < program->weight_count; i++) {
        const sl_weight *w = &program->weights[i];
        json_array_append_new(weights,
                              json_pack("{s:s, s:s, s:i, s:i, s:i, s:I}", "name", w->name, "type",
                                        sl_qtype_get(w->type)->name, "experts", w->experts, "rows", w->rows,
                                        "columns", w->columns, "bytes", (json_int_t)w->bytes));
    }
    return weights;
}

static json_t *describe_json(const sl_model *model) {
    const sl_model_description *d = &model->description;
    const sl_config *c = &model->config;
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "name",
        d->name, "family", d->family, "format", d->format, "parameters", (json_int_t)d->parameters, "bytes",
        (json_int_t)d->bytes, "tensors", (json_int_t)d->tensors, "file_tensors", (json_int_t)d->file_tensors,
        "layers", c->layers, "width", model->program.width, "heads", c->heads, "kv_heads", c->kv_heads,
        "head_size", c->head_size, "vocabulary", model->program.vocabulary, "context", c->context, "experts",
        model->program.experts, "experts_used", model->program.experts_used, "types", describe_types(d),
        "weights", describe_weights(&model->program));
}

static void describe_text(const sl_model *model, sl_buffer *out) {
    const sl_model_description *d = &model->description;
    const sl_config *c = &model->config;
    sl_buffer_printf(out, "name        %s\nfamily      %s (%s)\n", d->name, d->family, d->format);
    sl_buffer_printf(out, "parameters  %llu (%.2f B)\n", (unsigned long long)d->parameters,
                     (double)d->parameters * 1e-9);
    sl_buffer_printf(out, "weights     %llu bytes in %llu tensors\n", (unsigned long long)d->bytes,
                     (unsigned long long)d->tensors);
    sl_buffer_printf(out, "layers      %d, %d wide\n", c->layers, model->program.width);
    sl_buffer_printf(out, "heads       %d over %d of keys and values, size %d\n", c->heads, c->kv_heads,
                     c->head_size);
    if (model->program.experts) {
        sl_buffer_printf(out, "experts     %d, %d used\n", model->program.experts,
                         model->program.experts_used);
    }
    sl_buffer_printf(out, "vocabulary  %d\ncontext     %d\n", model->program.vocabulary, c->context);
    sl_buffer_printf(out, "tokenizer   %s\ntemplate    %s\n", model->tokenizer ? "yes" : "none",
                     model->chat_template.data ? "yes" : "none (ChatML is used)");
    for (int t = 0; t < SL_QTYPE_COUNT; t++) {
        if (d->types[t].tensors) {
            sl_buffer_printf(out, "%-11s %llu tensors, %llu elements, %llu bytes\n",
                             sl_qtype_get((sl_qtype)t)->name, (unsigned long long)d->types[t].tensors,
                             (unsigned long long)d->types[t].elements, (unsigned long long)d->types[t].bytes);
        }
    }
    sl_buffer_text(out, "\n");
    for (int32_t i = 0; i < model->program.weight_count; i++) {
        const sl_weight *w = &model->program.weights[i];
        sl_buffer_printf(out, "%-40s %-5s ", w->name, sl_qtype_get(w->type)->name);
        if (w->experts > 1) {
            sl_buffer_printf(out, "%d x ", w->experts);
        }
        sl_buffer_printf(out, "%d x %d  %llu bytes\n", w->rows, w->columns, (unsigned long long)w->bytes);
    }
}

/* What all functions need that describe something as text; *text is NULL then. */
static bool lacks_text(const void *object, sluice_text_format format, char **text, sluice_error *error) {
    if (sl_api_lacks(text, "text", error)) {
        return true;
    }
    *text = NULL;
    if (sl_api_lacks(object, "model", error)) {
        return true;
    }
    if ((unsigned)format > SLUICE_JSON) {
        sl_api_fail(error, SL_ERR_INVALID, "format: %d is no sluice_text_format", (int)format);
        return true;
    }
    return false;
}

int sluice_model_describe(const sluice_model *model, sluice_text_format format, char **text,
                          sluice_error *error) {
    if (lacks_text(model, format, text, error)) {
        return SL_ERR_INVALID;
    }
    sl_error inner;
    if (!has_weights(model->model)) {
        return no_weights(&inner), sl_api_error(error, &inner);
    }
    if (format == SLUICE_JSON) {
        return give_json(describe_json(model->model), text, error);
    }
    sl_buffer buffer = {0};
    describe_text(model->model, &buffer);
    return give_text(&buffer, text, NULL, error);
}

int sluice_file_describe(const char *path, char **json, sluice_error *error) {
    *json = NULL;
    json_t *description;
    sl_error inner;
    const int code = sl_describe(path, &description, &inner);
    return code ? sl_api_error(error, &inner) : give_json(description, json, error);
}

/* ---- text and tokens
 * ------------------------------------------------------------------------------------------------ */

/* Hands a list to the caller. */
static int give_tokens(const sl_tokens *list, int32_t **tokens, size_t *count, sluice_error *error) {
    *tokens = list->data ? list->data : sl_alloc(0);
    *count = list->count;
    return *tokens ? 0 : sl_api_fail(error, SL_ERR_NOMEM, "out of memory for tokens");
}

/* What functions need that give tokens; the list is empty then. */
static bool lacks_list(const sluice_model *model, int32_t **tokens, size_t *count, sluice_error *error) {
    if (sl_api_lacks(tokens, "tokens", error) || sl_api_lacks(count, "count", error)) {
        return true;
    }
    *tokens = NULL;
    *count = 0;
    return sl_api_lacks(model, "model", error);
}

int sluice_tokenize(const sluice_model *model, const char *text, size_t length, unsigned flags,
                    int32_t **tokens, size_t *count, sluice_error *error) {
    if (lacks_list(model, tokens, count, error) || sl_api_lacks_array(text, length, "text", error)) {
        return SL_ERR_INVALID;
    }
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    if (!tokenizer) {
        return no_tokenizer(error);
    }
    unsigned inner_flags = (flags & SLUICE_TOKENIZE_SPECIAL ? SL_TOKENIZE_SPECIAL : 0) |
                           (flags & SLUICE_TOKENIZE_BOS ? SL_TOKENIZE_BOS : 0);
    sl_tokens list = {0};
    sl_error inner;
    int result = sl_tokenizer_encode(tokenizer, text, length, inner_flags, &list, &inner);
    if (result) {
        sl_tokens_free(&list);
        return sl_api_error(error, &inner);
    }
    return give_tokens(&list, tokens, count, error);
}

int sluice_detokenize(const sluice_model *model, const int32_t *tokens, size_t count, unsigned flags,
                      char **text, size_t *length, sluice_error *error) {
    if (sl_api_lacks(length, "length", error)) {
        return SL_ERR_INVALID;
    }
    *length = 0;
    if (lacks_text(model, SLUICE_TEXT, text, error) || sl_api_lacks_array(tokens, count, "tokens", error)) {
        return SL_ERR_INVALID;
    }
    if (!model->model->tokenizer) {
        return no_tokenizer(error);
    }
    sl_buffer buffer = {0};
    sl_error inner;
    unsigned inner_flags = flags & SLUICE_TOKENIZE_SPECIAL ? 0 : SL_DETOKENIZE_SKIP_SPECIAL;
    int result = sl_tokenizer_decode(model->model->tokenizer, tokens, count, inner_flags, &buffer, &inner);
    if (result) {
        sl_buffer_free(&buffer);
        return sl_api_error(error, &inner);
    }
    return give_text(&buffer, text, length, error);
}

int sluice_token_bytes(const sluice_model *model, int32_t token, const char **bytes, size_t *length,
                       sluice_error *error) {
    if (sl_api_lacks(model, "model", error) || sl_api_lacks(bytes, "bytes", error) ||
        sl_api_lacks(length, "length", error)) {
        return SL_ERR_INVALID;
    }
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    if (!tokenizer) {
        return sl_api_fail(error, SL_ERR_INVALID, "this model has no tokenizer");
    }
    if (token < 0 || token >= sl_tokenizer_size(tokenizer)) {
        return sl_api_fail(error, SL_ERR_INVALID, "token id %d is outside the vocabulary of %d", token,
                           sl_tokenizer_size(tokenizer));
    }
    sl_view piece = sl_tokenizer_decode_piece(tokenizer, token);
    *bytes = piece.data ? piece.data : "";
    *length = piece.length;
    return 0;
}

static json_t *parse_json(const char *text, const char *name, bool (*is_kind)(const json_t *),
                          sluice_error *error) {
    json_t *value;
    sl_error inner;
    const int code = sl_json_parse(text, strlen(text), name, &value, &inner);
    if (code) {
        inner.code = code == SL_ERR_FORMAT ? SL_ERR_INVALID : code;
        sl_api_error(error, &inner);
        return NULL;
    }
    if (!is_kind(value)) {
        sl_api_fail(error, SL_ERR_INVALID, "%s: not of the expected kind", name);
        json_decref(value);
        return NULL;
    }
    return value;
}

static bool is_array(const json_t *value) {
    return json_is_array(value);
}

static bool is_object(const json_t *value) {
    return json_is_object(value);
}

/* A conversation as it came in, parsed; free_chat after success and failure alike. */
typedef struct chat_input {
    json_t *messages, *options, *extra;
    sl_chat_request request;
} chat_input;

static void free_chat(chat_input *input) {
    json_decref(input->messages);
    json_decref(input->options);
    json_decref(input->extra);
}

static int read_chat(const sluice_model *model, const char *messages, const char *options, chat_input *input,
                     sluice_error *error) {
    *input = (chat_input){0};
    if (sl_api_lacks(messages, "messages", error)) {
        return SL_ERR_INVALID;
    }
    if (!model->chat) {
        return sl_api_error(error, &model->chat_error);
    }
    input->messages = parse_json(messages, "messages", is_array, error);
    if (!input->messages) {
        return SL_ERR_INVALID;
    }
    input->options = options ? parse_json(options, "options", is_object, error) : NULL;
    if (options && !input->options) {
        return SL_ERR_INVALID;
    }
    sl_error inner;
    input->request.messages = input->messages;
    int result = sl_chat_read_options(input->options, &input->request, &input->extra, &inner);
    return result ? sl_api_error(error, &inner) : 0;
}

/* A template of its own for conversations with tools, as transformers takes it. */
static const sl_chat *chat_for(const sluice_model *model, const sl_chat_request *request) {
    return model->chat_tools && json_array_size(request->tools) > 0 ? model->chat_tools : model->chat;
}

int sluice_chat_render(const sluice_model *model, const char *messages, const char *options, char **text,
                       sluice_error *error) {
    if (lacks_text(model, SLUICE_TEXT, text, error)) {
        return SL_ERR_INVALID;
    }
    chat_input input;
    sl_buffer buffer = {0};
    sl_error inner;
    int result = read_chat(model, messages, options, &input, error);
    if (result == 0 &&
        (result = sl_chat_render(chat_for(model, &input.request), &input.request, &buffer, &inner)) != 0) {
        sl_buffer_free(&buffer);
        sl_api_error(error, &inner);
    }
    free_chat(&input);
    return result ? result : give_text(&buffer, text, NULL, error);
}

int sluice_chat_tokens(const sluice_model *model, const char *messages, const char *options, int32_t **tokens,
                       size_t *count, sluice_error *error) {
    if (lacks_list(model, tokens, count, error)) {
        return SL_ERR_INVALID;
    }
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    if (!tokenizer) {
        return no_tokenizer(error);
    }
    chat_input input;
    sl_tokens list = {0};
    sl_error inner;
    int result = read_chat(model, messages, options, &input, error);
    if (result == 0 && (result = sl_chat_encode(chat_for(model, &input.request), tokenizer, &input.request,
                                                &list, &inner)) != 0) {
        sl_tokens_free(&list);
        sl_api_error(error, &inner);
    }
    free_chat(&input);
    return result ? result : give_tokens(&list, tokens, count, error);
}

int sluice_chat_get_facts(const sluice_model *model, sluice_chat_facts *out, sluice_error *error) {
    if (sl_api_lacks(model, "model", error) || sl_api_lacks(out, "facts", error) ||
        sl_api_check_size(out->size, "sluice_chat_facts", error)) {
        return SL_ERR_INVALID;
    }
    if (!model->chat) {
        return sl_api_error(error, &model->chat_error);
    }
    const sl_chat_facts *facts = sl_chat_get_facts(model->chat);
    sluice_chat_facts all = {
        .size = out->size,
        .builtin = facts->builtin,
        .tools = facts->tools || (model->chat_tools && sl_chat_get_facts(model->chat_tools)->tools),
        .parts = facts->parts,
        .enable_thinking = facts->enable_thinking,
        .thinks = facts->thinks,
        .think_open = facts->think_open,
        .think_close = facts->think_close,
        .template_name = model->chat_template_name,
    };
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
    return 0;
}

/* ---- plans
 * ----------------------------------------------------------------------------------------------------------
 */

static int parse_cache_type(const char *name, sl_qtype *type, sl_error *error) {
    int parsed = name ? sl_qtype_parse_cache(name) : SL_QTYPE_F16;
    if (parsed < 0) {
        return sl_fail(error, SL_ERR_INVALID, "kv type: \"%s\" is not one of %s", name, sl_qtype_cache_names);
    }
    *type = (sl_qtype)parsed;
    return 0;
}

static int backend_options(const sluice_engine_options *o, sl_backend_options *out, sl_error *error) {
    int isa = o->isa ? sl_isa_parse(o->isa) : (int)sl_cpu_isa();
    if (isa < 0) {
        return sl_fail(error, SL_ERR_INVALID, "isa: \"%s\" is not one of plain, avx2, avx512", o->isa);
    }
    if (isa > (int)sl_cpu_isa()) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "isa: this machine has %s, not %s",
                       sl_isa_name(sl_cpu_isa()), o->isa);
    }
    *out = (sl_backend_options){.threads = o->threads,
                                .isa = (sl_isa)isa,
                                .no_graphs = o->no_graphs,
                                .no_fusion = o->no_fusion,
                                .deterministic = o->deterministic};
    return 0;
}

int sl_api_plan_open(const sl_model *model, const sluice_engine_options *o, sl_api_plan *planned,
                     sl_error *error) {
    memset(planned, 0, sizeof *planned);
    if (!has_weights(model)) {
        return no_weights(error);
    }
    sl_backend_options options;
    int result = backend_options(o, &options, error);
    enum { USUAL_CONTEXT = 4096 };
    int32_t most = model->config.context > 0 ? model->config.context : USUAL_CONTEXT;
    sl_plan_options plan_options = {
        .chunk = o->chunk,
        .sequences = o->sequences,
        .context = o->context             ? o->context
                   : most < USUAL_CONTEXT ? most
                                          : USUAL_CONTEXT,
        .outputs = o->outputs,
        .cache_tokens = o->cache_tokens,
        .state_slots = o->state_slots,
        .memory_limit = o->memory_limit,
        .prefer = o->kernels,
        .observe = o->observe,
    };
    if (result == 0 &&
        (o->chunk < 0 || o->sequences < 0 || o->context < 0 || o->outputs < 0 || o->state_slots < 0)) {
        result =
            sl_fail(error, SL_ERR_INVALID,
                    "chunk %d, sequences %d, context %d, outputs %d, state slots %d: none may be negative",
                    o->chunk, o->sequences, o->context, o->outputs, o->state_slots);
    }
    if (result == 0 && o->context > most) {
        sl_log(SL_LOG_WARNING, "context: %d tokens are more than the %d that the model was made for",
               o->context, most);
    }
    if (result == 0) {
        result = parse_cache_type(o->kv_type, &plan_options.cache_type, error);
    }
    if (result == 0) {
        result = sl_backend_open(o->device ? o->device : "auto", &options, &planned->backend, error);
    }
    if (result == 0) {
        result = sl_plan_create(&model->program, planned->backend, &plan_options, &planned->plan, error);
    }
    if (result) {
        sl_api_plan_close(planned);
    }
    return result;
}

void sl_api_plan_close(sl_api_plan *planned) {
    sl_plan_destroy(planned->plan);
    sl_backend_close(planned->backend);
    memset(planned, 0, sizeof *planned);
}

static json_t *memory_json(const sl_plan *plan) {
    json_t *rows = json_array();
    for (int32_t i = 0; rows && i < plan->memory_count; i++) {
        const sl_memory_row *row = &plan->memory[i];
        json_array_append_new(rows, json_pack("{s:s, s:I, s:s}", "name", row->name, "bytes",
                                              (json_int_t)row->bytes, "detail", row->detail));
    }
    return json_pack("{s:s, s:o, s:I}", "device", plan->backend->description, "memory", rows, "mapped_bytes",
                     (json_int_t)plan->mapped_bytes);
}

/* Lines of text as a JSON array. */
static json_t *lines_json(const sl_buffer *text) {
    json_t *lines = json_array();
    for (const char *at = text->data; lines && at && *at;) {
        size_t length = strcspn(at, "\n");
        json_array_append_new(lines, json_stringn(at, length));
        at += length + (at[length] == '\n');
    }
    return lines;
}

int sluice_plan_describe(const sluice_model *model, const sluice_engine_options *given, sluice_plan_view view,
                         sluice_text_format format, char **text, sluice_error *error) {
    if (lacks_text(model, format, text, error)) {
        return SL_ERR_INVALID;
    }
    if ((unsigned)view > SLUICE_PLAN_EXPLAIN) {
        return sl_api_fail(error, SL_ERR_INVALID, "view: %d is no sluice_plan_view", (int)view);
    }
    sluice_engine_options options;
    int result = sl_api_options(&options, sizeof options, given, "sluice_engine_options", error);
    if (result) {
        return result;
    }
    sl_error inner;
    sl_api_plan planned;
    result = sl_api_plan_open(model->model, &options, &planned, &inner);
    if (result) {
        return sl_api_error(error, &inner);
    }
    sl_buffer buffer = {0};
    if (view == SLUICE_PLAN_OPS) {
        sl_plan_print_ops(planned.plan, planned.plan->deployment.bucket_count - 1, &buffer);
    } else if (view == SLUICE_PLAN_EXPLAIN) {
        sl_plan_explain(planned.plan, &buffer);
    } else if (format == SLUICE_TEXT) {
        sl_plan_print_memory(planned.plan, &buffer);
    }
    if (format == SLUICE_TEXT) {
        result = give_text(&buffer, text, NULL, error);
    } else {
        json_t *value = view == SLUICE_PLAN_MEMORY ? memory_json(planned.plan) : lines_json(&buffer);
        sl_buffer_free(&buffer);
        result = give_json(value, text, error);
    }
    sl_api_plan_close(&planned);
    return result;
}

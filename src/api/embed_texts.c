/* The C API: the tokens of texts to embed, and of queries with documents. */
#include "api/embed.h"

#include "api/models.h"
#include "base/alloc.h"

#include <string.h>

/* A noncharacter: no text of others can hold it and mean anything. */
static const sl_view MARK = {"\xef\xb7\x90", 3};

void sl_api_texts_free(sl_api_texts *texts) {
    sl_free(texts->tokens);
    sl_free(texts->ends);
    *texts = (sl_api_texts){0};
}

sl_pooling sl_api_pooling(const sl_embedding *embedding, sluice_pooling asked, bool rank) {
    static const sl_pooling poolings[] = {[SLUICE_POOLING_NONE] = SL_POOLING_NONE,
                                          [SLUICE_POOLING_MEAN] = SL_POOLING_MEAN,
                                          [SLUICE_POOLING_CLS] = SL_POOLING_CLS,
                                          [SLUICE_POOLING_LAST] = SL_POOLING_LAST};
    const sl_pooling own = embedding->pooling == SL_POOLING_RANK ? embedding->ranked : embedding->pooling;
    if (rank) {
        return embedding->ranked;
    }
    return asked == SLUICE_POOLING_MODEL ? own : poolings[asked];
}

/* All texts' tokens in one list. */
typedef struct collection {
    const sluice_model *model;
    const sl_api_text_limits *limits;
    sl_tokens list;
    sl_api_texts *texts;
    sl_error *error;
} collection;

static int no_memory(const collection *c) {
    return sl_fail(c->error, SL_ERR_NOMEM, "out of memory for texts' tokens");
}

static int name_text(const collection *c, int code) {
    if (code) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "text %zu", c->texts->count);
        sl_fail_prefix(c->error, prefix);
    }
    return code;
}

/* The end of a text that began at list.data[first]: it must have tokens, and no more than the context. `kept`
 * tokens at its end stay when it is cut. */
static int end_text(collection *c, size_t first, size_t kept) {
    const size_t count = c->list.count - first, most = (size_t)c->limits->context;
    if (count == 0) {
        return name_text(c, sl_fail(c->error, SL_ERR_INVALID, "it has no tokens"));
    }
    if (count > most && (!c->limits->truncate || kept >= most)) {
        return name_text(c, sl_fail(c->error, SL_ERR_LIMIT, "context: %zu tokens do not fit the limit of %zu",
                                    count, most));
    }
    if (count > most) {
        memmove(c->list.data + first + most - kept, c->list.data + c->list.count - kept,
                kept * sizeof *c->list.data);
        c->list.count = first + most;
    }
    c->texts->ends[++c->texts->count] = c->list.count;
    return 0;
}

static int add_tokens(collection *c, const sluice_embed_input *input) {
    for (size_t i = 0; i < input->token_count; i++) {
        if (input->tokens[i] < 0 || input->tokens[i] >= c->model->model->program.vocabulary) {
            return name_text(c, sl_fail(c->error, SL_ERR_INVALID,
                                        "token %zu: id %d is not in the vocabulary of %d", i,
                                        input->tokens[i], c->model->model->program.vocabulary));
        }
        if (sl_tokens_append(&c->list, input->tokens[i])) {
            return no_memory(c);
        }
    }
    return 0;
}

/* The text's tokens or those that are given, in a text that is not ended. */
static int add_input(collection *c, const sluice_embed_input *input, unsigned flags) {
    const sl_tokenizer *tokenizer = c->model->model->tokenizer;
    if (!input->text) {
        return add_tokens(c, input);
    }
    if (!tokenizer) {
        return sl_fail(c->error, SL_ERR_UNSUPPORTED, "this model has no tokenizer");
    }
    return name_text(c,
                     sl_tokenizer_encode(tokenizer, input->text, input->length, flags, &c->list, c->error));
}

static int begin_collection(collection *c, size_t count) {
    c->texts->ends = sl_alloc_zero(count + 1, sizeof *c->texts->ends);
    return c->texts->ends ? 0 : no_memory(c);
}

static void end_collection(collection *c) {
    c->texts->tokens = c->list.data;
}

int sl_api_texts_read(const sluice_model *model, const sluice_embed_input *inputs, size_t count,
                      const sl_api_text_limits *limits, sl_api_texts *texts, sl_error *error) {
    collection c = {.model = model, .limits = limits, .texts = texts, .error = error};
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const bool closes = tokenizer && sl_tokenizer_closing(tokenizer) >= 0;
    int code = begin_collection(&c, count);
    for (size_t i = 0; i < count && code == 0; i++) {
        const size_t first = c.list.count;
        code = add_input(&c, &inputs[i], SL_TOKENIZE_BOS | SL_TOKENIZE_END);
        code = code ? code : end_text(&c, first, inputs[i].text && closes ? 1 : 0);
    }
    end_collection(&c);
    return code;
}

/* ---- a query with a document ---- */

/* Qwen3-Reranker's prompt, from its model card. {instruction}, {query} and {document} stand for the texts. */
static const char PROMPT[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    "Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char INSTRUCTION[] =
    "Given a web search query, retrieve relevant passages that answer the query";

/* What stands at `at` for a text: its name's length, and the text; 0: nothing. */
typedef struct place {
    const char *name;
    sl_view text;
} place;

static const place *place_at(const place *places, size_t count, sl_view template, size_t at) {
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(places[i].name);
        if (template.length - at >= length && memcmp(template.data + at, places[i].name, length) == 0) {
            return &places[i];
        }
    }
    return NULL;
}

/* The template with the texts in their places, which write no special tokens. */
static int fill_template(collection *c, sl_view template, const place *places, size_t count) {
    const sl_tokenizer *tokenizer = c->model->model->tokenizer;
    sl_buffer prompt = {0};
    for (size_t at = 0; at < template.length;) {
        const place *found = place_at(places, count, template, at);
        if (found) {
            sl_tokenizer_mark_special(tokenizer, found->text, MARK, &prompt);
            at += strlen(found->name);
        } else {
            sl_buffer_append(&prompt, template.data + at++, 1);
        }
    }
    const int code = prompt.failed
                         ? no_memory(c)
                         : sl_tokenizer_encode_marked(tokenizer, (sl_view){prompt.data, prompt.length}, MARK,
                                                      SL_TOKENIZE_SPECIAL, &c->list, c->error);
    sl_buffer_free(&prompt);
    return code;
}

/* Tokens of the template behind the document, which stay when a text is cut. */
static int count_behind(const collection *c, sl_view template, size_t *kept) {
    static const char name[] = "{document}";
    sl_tokens behind = {0};
    size_t at = template.length;
    for (size_t i = 0; i + sizeof name - 1 <= template.length; i++) {
        at = memcmp(template.data + i, name, sizeof name - 1) == 0 ? i + sizeof name - 1 : at;
    }
    const int code = sl_tokenizer_encode(c->model->model->tokenizer, template.data + at, template.length - at,
                                         SL_TOKENIZE_SPECIAL, &behind, c->error);
    *kept = behind.count;
    sl_tokens_free(&behind);
    return code;
}

static int add_prompts(collection *c, sl_view template, const sl_api_query *query,
                       const sluice_embed_input *documents, size_t count) {
    size_t kept = 0;
    int code = count_behind(c, template, &kept);
    for (size_t i = 0; i < count && code == 0; i++) {
        const size_t first = c->list.count;
        const place places[] = {
            {"{instruction}", sl_view_of(query->instruction ? query->instruction : INSTRUCTION)},
            {"{query}", {query->text.text, query->text.length}},
            {"{document}", {documents[i].text, documents[i].length}}};
        code = name_text(c, fill_template(c, template, places, sizeof places / sizeof *places));
        code = code ? code : end_text(c, first, kept);
    }
    return code;
}

/* bos query closing (as often as the model wants) document closing. */
static int add_pairs(collection *c, const sl_api_query *query, const sluice_embed_input *documents,
                     size_t count) {
    const sl_tokenizer *tokenizer = c->model->model->tokenizer;
    int code = 0;
    for (size_t i = 0; i < count && code == 0; i++) {
        const size_t first = c->list.count;
        code = add_input(c, &query->text, SL_TOKENIZE_BOS | SL_TOKENIZE_END);
        for (int32_t more = 1; more < sl_tokenizer_pair_gap(tokenizer) && code == 0; more++) {
            code = sl_tokens_append(&c->list, sl_tokenizer_closing(tokenizer)) ? no_memory(c) : 0;
        }
        code = code ? code : add_input(c, &documents[i], SL_TOKENIZE_END);
        code = code ? code : end_text(c, first, sl_tokenizer_closing(tokenizer) >= 0 ? 1 : 0);
    }
    return code;
}

static int check_pair(const sluice_model *model, const sl_api_query *query,
                      const sluice_embed_input *documents, size_t count, sl_error *error) {
    if (!model->model->tokenizer) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "this model has no tokenizer");
    }
    bool text = query->text.text != NULL;
    for (size_t i = 0; i < count; i++) {
        text &= documents[i].text != NULL;
    }
    return text ? 0 : sl_fail(error, SL_ERR_INVALID, "a query and its documents are given as texts");
}

int sl_api_texts_pair(const sluice_model *model, const sl_api_query *query,
                      const sluice_embed_input *documents, size_t count, sl_api_texts *texts,
                      sl_error *error) {
    collection c = {.model = model, .limits = &query->limits, .texts = texts, .error = error};
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const bool own = model->model->embedding.from_head;
    int code = check_pair(model, query, documents, count, error);
    if (code) {
        return code;
    }
    const sl_view given = sl_tokenizer_chat_template(tokenizer, "rerank");
    const sl_view template = given.data ? given : own ? sl_view_of(PROMPT) : (sl_view){NULL, 0};
    if (query->instruction && (given.data || !template.data)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "instruction: the model's own way to rank has no room for one");
    }
    code = begin_collection(&c, count);
    if (code == 0) {
        code = template.data ? add_prompts(&c, template, query, documents, count)
                             : add_pairs(&c, query, documents, count);
    }
    end_collection(&c);
    return code;
}

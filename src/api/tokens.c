/* The C API: text to tokens and back. */
#include "api/models.h"

#include "base/alloc.h"
#include "token/tokenizer.h"

int sl_api_no_tokenizer(sluice_error *error) {
    return sl_api_fail(error, SL_ERR_UNSUPPORTED, "this model has no tokenizer");
}

int sl_api_give_tokens(const sl_tokens *list, int32_t **tokens, size_t *count, sluice_error *error) {
    *tokens = list->data ? list->data : sl_alloc(0);
    *count = list->count;
    return *tokens ? 0 : sl_api_fail(error, SL_ERR_NOMEM, "out of memory for tokens");
}

bool sl_api_lacks_list(const sluice_model *model, int32_t **tokens, size_t *count, sluice_error *error) {
    if (sl_api_lacks(tokens, "tokens", error) || sl_api_lacks(count, "count", error)) {
        return true;
    }
    *tokens = NULL;
    *count = 0;
    return sl_api_lacks(model, "model", error);
}

int sluice_tokenize(const sluice_model *model, const char *text, size_t length, unsigned flags,
                    int32_t **tokens, size_t *count, sluice_error *error) {
    if (sl_api_lacks_list(model, tokens, count, error) || sl_api_lacks_array(text, length, "text", error)) {
        return SL_ERR_INVALID;
    }
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    if (!tokenizer) {
        return sl_api_no_tokenizer(error);
    }
    unsigned inner_flags = (flags & SLUICE_TOKENIZE_SPECIAL ? SL_TOKENIZE_SPECIAL : 0) |
                           (flags & SLUICE_TOKENIZE_BOS ? SL_TOKENIZE_BOS : 0) |
                           (flags & SLUICE_TOKENIZE_END ? SL_TOKENIZE_END : 0);
    sl_tokens list = {0};
    sl_error inner;
    int result = sl_tokenizer_encode(tokenizer, text, length, inner_flags, &list, &inner);
    if (result) {
        sl_tokens_free(&list);
        return sl_api_error(error, &inner);
    }
    return sl_api_give_tokens(&list, tokens, count, error);
}

int sluice_detokenize(const sluice_model *model, const int32_t *tokens, size_t count, unsigned flags,
                      char **text, size_t *length, sluice_error *error) {
    if (sl_api_lacks(length, "length", error)) {
        return SL_ERR_INVALID;
    }
    *length = 0;
    if (sl_api_lacks_text(model, SLUICE_TEXT, text, error) ||
        sl_api_lacks_array(tokens, count, "tokens", error)) {
        return SL_ERR_INVALID;
    }
    if (!model->model->tokenizer) {
        return sl_api_no_tokenizer(error);
    }
    sl_buffer buffer = {0};
    sl_error inner;
    unsigned inner_flags = flags & SLUICE_TOKENIZE_SPECIAL ? 0 : SL_DETOKENIZE_SKIP_SPECIAL;
    int result = sl_tokenizer_decode(model->model->tokenizer, tokens, count, inner_flags, &buffer, &inner);
    if (result) {
        sl_buffer_free(&buffer);
        return sl_api_error(error, &inner);
    }
    return sl_api_give_text(&buffer, text, length, error);
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

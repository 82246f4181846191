/* What the files of the C API share of grammars. */
#ifndef SL_API_GRAMMARS_H
#define SL_API_GRAMMARS_H

#include "api/models.h"
#include "grammar/grammar.h"

struct sluice_grammar {
    _Atomic int references;
    sluice_model *model; /* a reference */
    sl_grammar *grammar;
};

/* What tokens stand for, made at the first call; the model's. */
int sl_api_vocabulary(sluice_model *model, sl_grammar_vocabulary **vocabulary, sl_error *error);
/* Is it no text to grammars? Control tokens, ends, and added tokens that the chat template writes. */
bool sl_api_is_special(const sluice_model *model, int32_t id);

#endif

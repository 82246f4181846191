/* Request fields that mean the same in several APIs. The names are OpenAI's, vLLM's and llama.cpp's; of two
 * names for one thing the later row wins.
 *
 * A name that is known and not done is refused rather than ignored, but for values that change nothing. Two
 * kinds of names are not here and so are ignored like unknown ones: what describes the request (metadata,
 * user, store, service_tier, safety_identifier, request_id, ...), and hints on how to work that no answer
 * depends on (id_slot, n_keep, speculative.p_min, n_cache_reuse, backend_sampling, prompt_cache_key, ...). */
#include "generation.h"

#include <stddef.h>

#define AT(member) offsetof(generation_options, member)
#define ANY_NUMBER -1e19, 1e19
#define AT_LEAST(least) least, 1e19

const field GENERATION_FIELDS[] = {
    {"temperature", FIELD_REAL, AT(temperature), 0, 1e6, NULL},
    {"top_p", FIELD_REAL, AT(top_p), 0, 1, NULL},
    {"top_k", FIELD_WHOLE, AT(top_k), -1, INT32_MAX, NULL},
    {"min_p", FIELD_REAL, AT(min_p), 0, 1, NULL},
    {"typical_p", FIELD_REAL, AT(typical_p), 0, 1, NULL},
    {"presence_penalty", FIELD_REAL, AT(presence_penalty), -2, 2, NULL},
    {"frequency_penalty", FIELD_REAL, AT(frequency_penalty), -2, 2, NULL},
    {"repeat_penalty", FIELD_REAL, AT(repetition_penalty), 0.001, 1000, NULL},
    {"repetition_penalty", FIELD_REAL, AT(repetition_penalty), 0.001, 1000, NULL},
    {"repeat_last_n", FIELD_WHOLE, AT(penalty_tokens), -1, INT32_MAX, NULL},
    {"seed", FIELD_WHOLE, AT(seed), ANY_NUMBER, NULL},
    {"n_predict", FIELD_WHOLE, AT(max_tokens), AT_LEAST(-1), NULL},
    {"max_tokens", FIELD_WHOLE, AT(max_tokens), AT_LEAST(0), NULL},
    {"max_completion_tokens", FIELD_WHOLE, AT(max_tokens), AT_LEAST(1), NULL},
    {"min_tokens", FIELD_WHOLE, AT(min_tokens), AT_LEAST(0), NULL},
    {"n_cmpl", FIELD_WHOLE, AT(n), 1, BODY_CHOICES, NULL},
    {"n", FIELD_WHOLE, AT(n), 1, BODY_CHOICES, NULL},
    {"stop", FIELD_ANY, AT(stop), 0, 0, NULL},
    {"stop_token_ids", FIELD_ARRAY, AT(stop_tokens), 0, 0, NULL},
    {"logit_bias", FIELD_ANY, AT(logit_bias), 0, 0, NULL},
    {"ignore_eos", FIELD_BOOL, AT(ignore_eos), 0, 0, NULL},
    {"stream", FIELD_BOOL, AT(stream), 0, 0, NULL},
    {"cache_prompt", FIELD_BOOL, AT(cache_prompt), 0, 0, NULL},
    {"cache_salt", FIELD_TEXT, AT(cache_salt), 1, 1024, NULL},
    {"speculative.n_max", FIELD_WHOLE, AT(drafts), -1, INT32_MAX, NULL},
    {"speculative.n_min", FIELD_WHOLE, AT(least_drafts), 0, INT32_MAX, NULL},
    {"timings_per_token", FIELD_BOOL, AT(timings_per_token), 0, 0, NULL},
    {"return_progress", FIELD_BOOL, AT(return_progress), 0, 0, NULL},
    /* Samplers of llama.cpp. */
    {"samplers", FIELD_ANY, AT(samplers), 0, 0, NULL},
    {"top_n_sigma", FIELD_REAL, AT(top_n_sigma), -1, 1e6, NULL},
    {"xtc_probability", FIELD_REAL, AT(xtc_probability), 0, 1, NULL},
    {"xtc_threshold", FIELD_REAL, AT(xtc_threshold), 0, 1, NULL},
    {"dynatemp_range", FIELD_REAL, AT(dynatemp_range), 0, 1e6, NULL},
    {"dynatemp_exponent", FIELD_REAL, AT(dynatemp_exponent), 0.001, 1000, NULL},
    {"dry_multiplier", FIELD_REAL, AT(dry_multiplier), 0, 1e6, NULL},
    {"dry_base", FIELD_REAL, AT(dry_base), 1, 1000, NULL},
    {"dry_allowed_length", FIELD_WHOLE, AT(dry_allowed_length), 1, INT32_MAX, NULL},
    {"dry_penalty_last_n", FIELD_WHOLE, AT(dry_penalty_last_n), -1, INT32_MAX, NULL},
    {"dry_sequence_breakers", FIELD_ARRAY, AT(dry_breakers), 0, 0, NULL},
    {"mirostat", FIELD_WHOLE, AT(mirostat), 0, 2, NULL},
    {"mirostat_tau", FIELD_REAL, AT(mirostat_tau), 0.001, 1000, NULL},
    {"mirostat_eta", FIELD_REAL, AT(mirostat_eta), 0.000001, 1000, NULL},
    {"adaptive_target", FIELD_UNSUPPORTED, 0, 0, 0, "-1"},
    {"min_keep", FIELD_UNSUPPORTED, 0, 0, 0, "0|1"},
    /* What limits or changes the output otherwise. */
    {"grammar", FIELD_TEXT, AT(structured.grammar), 0, 0, NULL},
    {"json_schema", FIELD_ANY, AT(structured.json_schema), 0, 0, NULL},
    {"structured_outputs", FIELD_OBJECT, AT(structured.outputs), 0, 0, NULL},
    {"guided_json", FIELD_ANY, AT(structured.guided_json), 0, 0, NULL},
    {"guided_regex", FIELD_TEXT, AT(structured.guided_regex), 0, 0, NULL},
    {"guided_choice", FIELD_ARRAY, AT(structured.guided_choice), 0, 0, NULL},
    {"guided_grammar", FIELD_TEXT, AT(structured.guided_grammar), 0, 0, NULL},
    {"guided_whitespace_pattern", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"grammar_lazy", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"grammar_triggers", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"structural_tag", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"allowed_token_ids", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"bad_words", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"use_beam_search", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"length_penalty", FIELD_UNSUPPORTED, 0, 0, 0, "0|1"},
    {"watermarking", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"repetition_detection", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"logits_processors", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"vllm_xargs", FIELD_UNSUPPORTED, 0, 0, 0, "{}"},
    {"truncate_prompt_tokens", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"include_stop_str_in_output", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"skip_special_tokens", FIELD_UNSUPPORTED, 0, 0, 0, "true"},
    {"t_max_predict_ms", FIELD_UNSUPPORTED, 0, 0, 0, "0|-1"},
    {"n_indent", FIELD_UNSUPPORTED, 0, 0, 0, "0"},
    {"lora", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"thinking_token_budget", FIELD_WHOLE, AT(thought_tokens), AT_LEAST(-1), NULL},
    {"reasoning_budget_tokens", FIELD_WHOLE, AT(thought_tokens), AT_LEAST(-1), NULL},
    {"thinking_budget_tokens", FIELD_WHOLE, AT(thought_tokens), AT_LEAST(-1), NULL},
    /* What answers would have more of. */
    {"n_probs", FIELD_UNSUPPORTED, 0, 0, 0, "0"},
    {"post_sampling_probs", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"prompt_logprobs", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"logprob_token_ids", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"return_tokens_as_token_ids", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"return_token_ids", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"return_tokens", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"return_prompt_text", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"response_fields", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"kv_transfer_params", FIELD_UNSUPPORTED, 0, 0, 0, "{}"},
    {"ec_transfer_params", FIELD_UNSUPPORTED, 0, 0, 0, "{}"},
};

const size_t GENERATION_FIELD_COUNT = sizeof GENERATION_FIELDS / sizeof *GENERATION_FIELDS;

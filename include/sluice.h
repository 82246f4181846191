/* sluice: an LLM inference engine. This is the whole interface of libsluice.
 *
 * Four objects. A *model* is an opened file or folder: immutable, reference-counted, shared by engines. An
 * *engine* owns a plan of the model for a device, the memory pools and one thread that steps. A *sequence* is
 * one timeline of tokens with its cached state; it can be forked and rolled back. A *request* is work given
 * to a sequence: tokens to append and how many to generate.
 *
 * Functions that can fail return 0 or a negative code (sluice_status) and, when `error` is not NULL, one line
 * that names file, field and rule. Out-parameters are set to NULL (or left alone, for plain values) on
 * failure, and nothing is left to free.
 *
 * Option structs: zero-initialise, set `size` to sizeof the struct, then only what you need; zero means the
 * documented default. Passing NULL for options means all defaults. A later library accepts the smaller struct
 * of an earlier header. NULL for what must be given, an array that is NULL with a count, and a `size` that no
 * struct has are SLUICE_ERR_INVALID; functions that return nothing do nothing then.
 *
 * Threads: models, engines and requests may be used from any thread. Calls on one sequence must not overlap
 * each other. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

/* ---- errors and log
 * ------------------------------------------------------------------------------------------------- */

typedef enum sluice_status {
    SLUICE_OK = 0,
    SLUICE_ERR_NOMEM = -1,
    SLUICE_ERR_IO = -2,     /* of a request: a file of the model's is gone in part; the engine has ended */
    SLUICE_ERR_FORMAT = -3, /* a file breaks a rule of its format */
    SLUICE_ERR_UNSUPPORTED = -4, /* well formed, but not something this build runs */
    SLUICE_ERR_INVALID = -5,     /* an argument */
    SLUICE_ERR_LIMIT = -6,       /* does not fit a limit, memory included */
    SLUICE_ERR_NOT_FOUND = -7,
    SLUICE_ERR_CANCELLED = -8,
    SLUICE_ERR_BUSY = -9,
    SLUICE_ERR_DEVICE = -10, /* the device failed; the engine has ended */
    SLUICE_ERR_INTERNAL = -11,
} sluice_status;

typedef struct sluice_error {
    int code;
    char message[512];
} sluice_error;

/* "FORMAT", "NOMEM", ...; never NULL. */
SLUICE_API const char *sluice_status_name(int code);
SLUICE_API const char *sluice_version(void);

typedef enum sluice_log_level {
    SLUICE_LOG_ERROR,
    SLUICE_LOG_WARNING,
    SLUICE_LOG_INFO,
    SLUICE_LOG_DEBUG
} sluice_log_level;
/* One callback for the process; NULL (the default) is silence. Set it before engines run; it may be called
 * from any thread. */
SLUICE_API void sluice_log_set(void (*function)(void *context, sluice_log_level level, const char *line),
                               void *context);

/* Installs a handler of SIGBUS, once for the process. Models are read in place from mapped files, and a file
 * that somebody truncates meanwhile raises that signal, which ends a process without a word. With the handler
 * it is SLUICE_ERR_IO and a line that names the file: of the function that opens the model or makes the
 * engine, or of all requests of an engine that needs the file, which has then ended. A SIGBUS that has to do
 * with no file of the library goes to the handler that was there before. The library never calls this by
 * itself: a program that handles the signal in its own way leaves it out, or installs its handler first. */
SLUICE_API int sluice_handle_truncation(sluice_error *error);

/* Frees text and arrays that functions below return as owned by the caller. NULL is fine. */
SLUICE_API void sluice_free(void *memory);

/* done of total units (bytes when loading or writing); return false to stop with SLUICE_ERR_CANCELLED. */
typedef bool (*sluice_progress)(void *context, uint64_t done, uint64_t total);

/* ---- model
 * ----------------------------------------------------------------------------------------------------------
 */

typedef struct sluice_model sluice_model;

typedef struct sluice_model_info {
    size_t size;
    const char
        *name; /* as the file calls itself; "" when it does not. Borrowed from the model, as all text here */
    const char *family; /* "llama", "qwen3moe", ... */
    uint64_t parameters;
    uint64_t bytes; /* of all weights, in the file */
    int32_t layers, width, vocabulary, context;
    int32_t bos, eos; /* token ids; -1 when there are none */
    bool has_tokenizer;
    const char *chat_template; /* in use; NULL when the model has none and none was asked for */
} sluice_model_info;

/* `path`: a GGUF file, or a Hugging Face folder. Weights stay in the mapped file, which must not change while
 * the model lives. */
SLUICE_API int sluice_model_open(const char *path, sluice_model **model, sluice_error *error);
typedef struct sluice_model_options {
    size_t size;
    bool text_only; /* as sluice_model_open_text */
    /* The chat template to use in place of the model's: its Jinja text, or the name of one that the model
     * brings or of a well-known format (below); not both. One that is not there or does not compile is an
     * error of opening, where the model's own is one of the functions that need it. */
    const char *chat_template, *chat_template_name;
    bool for_plan; /* what must be copied out of the files (FP8, a tensor per expert) waits for the first
                      engine */
} sluice_model_options;
/* NULL for options is sluice_model_open. Copies what it needs of the options. */
SLUICE_API int sluice_model_open_with(const char *path, const sluice_model_options *options,
                                      sluice_model **model, sluice_error *error);
/* The names of the templates that a model brings, one by one: "default", "tool_use", ...; NULL past the end.
 * Borrowed from the model. */
SLUICE_API const char *sluice_chat_template_name(const sluice_model *model, int index);
/* The names of the chat formats that need no file: "chatml", "llama3", "gemma", ...; NULL past the end. They
 * write roles and contents, and no tools. */
SLUICE_API const char *sluice_chat_format_name(int index);
/* A model's tokenizer and chat template alone, for the functions of text and tokens below; opens
 * vocabulary-only files too. Plans and engines of it are refused. */
SLUICE_API int sluice_model_open_text(const char *path, sluice_model **model, sluice_error *error);
/* One more reference / one less; the last one closes the file. Engines hold a reference of their own. */
SLUICE_API sluice_model *sluice_model_retain(sluice_model *model);
SLUICE_API void sluice_model_release(sluice_model *model);
/* `info->size` must be set. */
SLUICE_API void sluice_model_get_info(const sluice_model *model, sluice_model_info *info);

/* Which members of sluice_sampling_facts a model's files give. */
enum {
    SLUICE_SAMPLING_DO_SAMPLE = 1,
    SLUICE_SAMPLING_TEMPERATURE = 2,
    SLUICE_SAMPLING_TOP_K = 4,
    SLUICE_SAMPLING_TOP_P = 8,
    SLUICE_SAMPLING_MIN_P = 16,
    SLUICE_SAMPLING_TYPICAL_P = 32,
    SLUICE_SAMPLING_REPETITION_PENALTY = 64,
    SLUICE_SAMPLING_PENALTY_TOKENS = 128,
    SLUICE_SAMPLING_XTC_PROBABILITY = 256,
    SLUICE_SAMPLING_XTC_THRESHOLD = 512,
    SLUICE_SAMPLING_MIROSTAT = 1024,
    SLUICE_SAMPLING_MIROSTAT_TAU = 2048,
    SLUICE_SAMPLING_MIROSTAT_ETA = 4096,
};

/* How those who made the model would sample from it: generation_config.json of a Hugging Face folder, or
 * general.sampling.* of a GGUF file. The library itself uses none of it. */
typedef struct sluice_sampling_facts {
    size_t size;
    unsigned present;     /* SLUICE_SAMPLING_... of what follows; members that are not there are 0 */
    const char *file;     /* that gives them, borrowed from the model; NULL: no file gives any */
    const char *samplers; /* order of samplers as llama.cpp writes it, borrowed; NULL: not given */
    bool do_sample;       /* false: the likeliest token always (transformers then ignores the rest) */
    float temperature;
    int32_t top_k;            /* 0: all */
    float top_p;              /* 1: all */
    float min_p;              /* 0: all */
    float typical_p;          /* 1: all */
    float repetition_penalty; /* 1: none */
    int32_t penalty_tokens;   /* that it looks at; 0: none, -1: all */
    float xtc_probability, xtc_threshold;
    int32_t mirostat; /* 0: none, or version 1 or 2 */
    float mirostat_tau, mirostat_eta;
} sluice_sampling_facts;
/* `facts->size` must be set. */
SLUICE_API void sluice_model_get_sampling(const sluice_model *model, sluice_sampling_facts *facts);

typedef enum sluice_text_format { SLUICE_TEXT, SLUICE_JSON } sluice_text_format;
/* Hyper-parameters, types and tensors, for people or programs. *text is owned by the caller (sluice_free). */
SLUICE_API int sluice_model_describe(const sluice_model *model, sluice_text_format format, char **text,
                                     sluice_error *error);

/* What a file or folder holds, as JSON, whether a model of it can run or not: adapters, vision parts,
 * families and weight types that are not supported, and one part of a split GGUF file whose others are
 * missing. Members: "path", "format", "type", "family", "name", "tensor_count", "bytes", "types", "keys"
 * (each with "key", "type", "count" and "value", of arrays the first 16 items) and "tensors" ("name", "type",
 * "shape" as the format has it, "bytes"); GGUF: "parts", "version", "alignment". *json is owned by the caller
 * (sluice_free). */
SLUICE_API int sluice_file_describe(const char *path, char **json, sluice_error *error);

/* ---- text and tokens
 * ------------------------------------------------------------------------------------------------ */

enum {
    SLUICE_TOKENIZE_SPECIAL =
        1, /* special tokens written out in the text become those tokens; otherwise they stay text */
    SLUICE_TOKENIZE_BOS = 2, /* the beginning-of-text token comes first, if the model wants one */
    SLUICE_TOKENIZE_END = 4, /* the token that closes a text comes last, if the model wants one */
};
/* *tokens is owned by the caller (sluice_free). Any bytes are accepted. */
SLUICE_API int sluice_tokenize(const sluice_model *model, const char *text, size_t length, unsigned flags,
                               int32_t **tokens, size_t *count, sluice_error *error);
/* *text is owned by the caller and NUL-terminated; *length does not count the NUL. Special tokens are written
 * out only with SLUICE_TOKENIZE_SPECIAL. */
SLUICE_API int sluice_detokenize(const sluice_model *model, const int32_t *tokens, size_t count,
                                 unsigned flags, char **text, size_t *length, sluice_error *error);
/* The text of one token as its bytes are, special tokens written out; *length 0 for a token without bytes.
 * Borrowed from the model. SLUICE_ERR_INVALID for an id outside the vocabulary, or without a tokenizer. */
SLUICE_API int sluice_token_bytes(const sluice_model *model, int32_t token, const char **bytes,
                                  size_t *length, sluice_error *error);
/* Renders a conversation with the model's template (ChatML when it has none).
 *
 * `messages` is a JSON array of objects as in the chat completions API: "role" ("developer" is "system"),
 * "content" (text, null, or a list of {"type": "text", "text"}; parts of other types are refused by name),
 * "tool_calls", "reasoning_content" (or "reasoning"), and what the template knows besides. Members that are
 * null are as if they were not there. What the template does not take is written as it does: parts are joined
 * by newlines, content that is missing is "", and a call's "arguments" are JSON text or an object.
 * With tools, the model's template named tool_use is used if it brings one and no other was asked for.
 *
 * `options` is a JSON object of further template variables ("enable_thinking", ...), or NULL. "tools" is an
 * array. "add_generation_prompt" is true by default: the text ends with the opening of an assistant message.
 * With "continue_final_message": true the last message is left open behind its content instead, so that the
 * model goes on with it; both are SLUICE_ERR_INVALID, as are names that belong to the template ("messages",
 * "bos_token", "eos_token"). What the template itself refuses is SLUICE_ERR_INVALID with its own words.
 *
 * *text is owned by the caller. To run it, use sluice_chat_tokens: in this text a special token that somebody
 * wrote into a message cannot be told from the template's own. */
SLUICE_API int sluice_chat_render(const sluice_model *model, const char *messages, const char *options,
                                  char **text, sluice_error *error);
/* The same as tokens. Special tokens of the template are those tokens; written out in a message, or in the
 * strings of options, they stay text. Tokens that are not special, such as <think> of many vocabularies, are
 * found in messages too. A beginning-of-text token comes first if the template writes it, as with
 * transformers, and with the built-in template if the tokenizer adds it: do not add another. *tokens is owned
 * by the caller (sluice_free). */
SLUICE_API int sluice_chat_tokens(const sluice_model *model, const char *messages, const char *options,
                                  int32_t **tokens, size_t *count, sluice_error *error);

/* What the model's template takes, found by rendering some short conversations when the model was opened. */
typedef struct sluice_chat_facts {
    size_t size;
    bool builtin;         /* ChatML, because the model has no template */
    bool tools;           /* it writes "tools" */
    bool parts;           /* it reads content as a list of parts; others get them joined */
    bool enable_thinking; /* the option of that name changes the prompt */
    bool thinks;          /* the prompt ends with think_open, so that what is generated begins inside */
    const char *think_open,
        *think_close; /* "<think>", "</think>"; NULL: neither template nor vocabulary has any. Static */
    const char
        *template_name; /* in use: "default", "chatml", ...; NULL: its text was given at open. Borrowed */
    /* How the model writes calls of tools: "hermes", "harmony", ...; "plain": no way is known, and no calls
     * are found in its replies. Static. */
    const char *reply_format;
    int32_t call_id_length; /* what the template wants of a call's id, in letters and digits; 0: any */
    bool marks_thoughts;    /* its replies have marks around thinking: these, or the reply format's own */
} sluice_chat_facts;
/* `facts->size` must be set. Fails when the template does not compile, as the functions above. */
SLUICE_API int sluice_chat_get_facts(const sluice_model *model, sluice_chat_facts *facts,
                                     sluice_error *error);

/* ---- replies
 * ---------------------------------------------------------------------------------------------------------
 */

/* Where a prompt leaves a model that thinks before it answers: does a thought come first? */
typedef enum sluice_thought {
    SLUICE_THOUGHT_NONE,
    SLUICE_THOUGHT_MAY,  /* it may be opened, or left out */
    SLUICE_THOUGHT_OPEN, /* the prompt ends inside it */
} sluice_thought;

/* What the prompt's end says: OPEN behind a mark that opens a thought, NONE behind one that closes it and for
 * models that do not think. `tools`: it was rendered with tools. */
SLUICE_API int sluice_prompt_thought(const sluice_model *model, const int32_t *tokens, size_t count,
                                     bool tools, sluice_thought *thought, sluice_error *error);

/* A reply of a model, read as it comes: thinking, answer and calls of tools apart, whatever the model's
 * format. Marks of the format never come out as text, and calls' arguments come out as JSON always. What
 * comes in pieces gives the same, joined, as what comes at once. One thread at a time. */
typedef struct sluice_reply sluice_reply;

typedef enum sluice_reply_kind {
    SLUICE_REPLY_NONE,      /* nothing more by now */
    SLUICE_REPLY_REASONING, /* text goes on the thought */
    SLUICE_REPLY_CONTENT,   /* text goes on the answer */
    SLUICE_REPLY_CALL,      /* a call begins: text is the function's name */
    SLUICE_REPLY_ARGUMENTS, /* text goes on the call's arguments, a JSON object */
    SLUICE_REPLY_CALL_END,  /* the arguments are complete; without it a limit cut them */
} sluice_reply_kind;

typedef struct sluice_reply_event {
    size_t size;
    sluice_reply_kind kind;
    int32_t call;     /* from 0; CALL, ARGUMENTS, CALL_END */
    const char *text; /* not NUL-terminated; borrowed until the next feed */
    size_t text_length;
} sluice_reply_event;

typedef struct sluice_reply_options {
    size_t size;
    const char
        *tools;  /* a JSON array as in the chat completions API; NULL: no calls are looked for. Copied */
    bool opened; /* the prompt ends inside a thought (SLUICE_THOUGHT_OPEN) */
    bool keeps_thoughts; /* thinking stays in the content, marks and all */
} sluice_reply_options;

SLUICE_API int sluice_reply_create(sluice_model *model, const sluice_reply_options *options,
                                   sluice_reply **reply, sluice_error *error);
/* The next text, of requests with special_text; then sluice_reply_next until there is nothing. */
SLUICE_API int sluice_reply_feed(sluice_reply *reply, const char *text, size_t length, sluice_error *error);
/* No more comes. `cut`: by a limit or the caller, not by the model's own end. */
SLUICE_API int sluice_reply_finish(sluice_reply *reply, bool cut, sluice_error *error);
/* `event->size` must be set. */
SLUICE_API void sluice_reply_next(sluice_reply *reply, sluice_reply_event *event);
/* Where the reply stands: REASONING, CONTENT or, inside a call, ARGUMENTS. */
SLUICE_API sluice_reply_kind sluice_reply_stands_in(const sluice_reply *reply);
SLUICE_API void sluice_reply_release(sluice_reply *reply);

/* ---- grammars
 * ---------------------------------------------------------------------------------------------------------
 */

/* What texts a request may generate. Immutable and reference-counted: made once, used by any number of
 * requests to engines of its model, from any thread. */
typedef struct sluice_grammar sluice_grammar;

typedef enum sluice_grammar_kind {
    /* JSON that a schema (draft 2020-12, and what of draft 7 people still write) accepts, with properties in
     * the schema's order and whitespace bounded. A keyword that is not held is refused by its name and path,
     * and so is a schema that nothing satisfies. */
    SLUICE_GRAMMAR_JSON_SCHEMA,
    SLUICE_GRAMMAR_JSON_OBJECT, /* any JSON object; no text */
    SLUICE_GRAMMAR_GBNF,        /* llama.cpp's grammars; the rule `root` */
    SLUICE_GRAMMAR_REGEX,       /* a regular expression that the whole text matches */
    SLUICE_GRAMMAR_TEXT,        /* any text; with tools */
} sluice_grammar_kind;

/* May or must functions be called? */
typedef enum sluice_tool_choice {
    SLUICE_TOOLS_AUTO,     /* a call may come; once begun, it is held to its format, function and schema */
    SLUICE_TOOLS_NONE,     /* none may: nothing that would be read as a call */
    SLUICE_TOOLS_REQUIRED, /* at least one, from the first token behind a thought on */
} sluice_tool_choice;

typedef struct sluice_grammar_options {
    size_t size;
    sluice_grammar_kind kind;
    const char *text; /* [length], UTF-8 */
    size_t length;
    bool compact;           /* JSON without any whitespace */
    sluice_thought thought; /* any text up to the mark that closes it, and then the grammar's */
    /* Functions, a JSON array as in the chat completions API: what the grammar says is an answer, or calls
     * come in its place (of text, behind it too). They are written as the model's template writes them.
     * Arguments are held to "parameters"; where those list properties and say nothing of others there are no
     * others, and without "parameters" there are no arguments. NULL: none. */
    const char *tools;
    sluice_tool_choice tool_choice;
    const char *function; /* REQUIRED: the one that is called; NULL: any */
    bool single_call;     /* no more than one */
} sluice_grammar_options;

/* Compiles it, which may take a while for a large one. Errors say what is wrong with the text and where. */
SLUICE_API int sluice_grammar_create(sluice_model *model, const sluice_grammar_options *options,
                                     sluice_grammar **grammar, sluice_error *error);
/* One more reference / one less. */
SLUICE_API sluice_grammar *sluice_grammar_retain(sluice_grammar *grammar);
SLUICE_API void sluice_grammar_release(sluice_grammar *grammar);
/* Memory that it holds now, for who keeps many: it grows with the texts that are held to it, up to a bound.
 */
SLUICE_API uint64_t sluice_grammar_bytes(const sluice_grammar *grammar);

/* ---- engine
 * ---------------------------------------------------------------------------------------------------------
 */

typedef struct sluice_engine sluice_engine;

enum { SLUICE_THREADS = 1024 }; /* at most */

/* Where drafts come from: tokens that are likely to come next. A step computes them all at once, and those
 * that the model then says itself are kept. Texts are the same as without, token for token: always on the
 * CPU, on a GPU with `deterministic`, and otherwise as far as rounding goes, which there depends on a step's
 * rows. */
typedef enum sluice_speculate {
    SLUICE_SPECULATE_OFF,
    SLUICE_SPECULATE_AUTO,  /* DRAFT where there is a draft_model, MTP where the model has a head, else NGRAM
                             */
    SLUICE_SPECULATE_NGRAM, /* what came behind the last tokens where they came before, in the sequence itself
                             */
    SLUICE_SPECULATE_DRAFT, /* what draft_model says */
    SLUICE_SPECULATE_MTP,   /* what the model's own head says, on one device; SLUICE_ERR_UNSUPPORTED where it
                               has none */
    SLUICE_SPECULATE_CALLER, /* the function `draft` */
} sluice_speculate;

/* What products of prompts are computed with on a GPU: of steps with more rows than kernels for few rows
 * take, 128 to 256 by weight type. AUTO: FP8 for FP8 weights, INT8 for Q4_K, else BF16. INT8 and FP8 round
 * quantised weights and activations once more, to eight bits with a scale for 256 or 128 columns; weights
 * that these do not take, and experts, stay with BF16, and sluice_plan_describe says why. On a CPU
 * the choice holds whatever the rows, and is faster for many and slower for one: INT8 for Q4_K, Q5_K and Q6_K
 * with AVX-512 or AMX, BF16 for some quantised types with AMX. AUTO is neither there. */
typedef enum sluice_prompt_precision {
    SLUICE_PROMPT_AUTO,
    SLUICE_PROMPT_BF16,
    SLUICE_PROMPT_INT8,
    SLUICE_PROMPT_FP8
} sluice_prompt_precision;

/* CUDA: second copies of quantised weights, decoded for prompts and hundreds of sequences: int8 of Q4_K, and
 * of what SLUICE_PROMPT_INT8 says, one byte a weight; BF16 of others, two. Steps of 129 rows or more are then
 * faster, as they decode nothing. AUTO: where all that the engine has on the device takes half of its memory
 * limit or less with them; never where weights lie in host memory. ALWAYS: creating an engine fails where they
 * do not fit. */
typedef enum sluice_weight_copies {
    SLUICE_COPIES_AUTO,
    SLUICE_COPIES_NEVER,
    SLUICE_COPIES_ALWAYS
} sluice_weight_copies;

/* How a model lies on several devices. LAYERS: each has some of the layers, and they work on different steps
 * at once. TENSORS: each has a share of the heads and columns of every layer, and they compute each step
 * together, meeting twice a layer; devices of one kind that reach each other's memory, such as
 * "cuda:0+cuda:1". What does not divide evenly every device computes whole (sluice_plan_describe says what).
 * Logits are those of one device but for rounding. AUTO: beside a CPU, the GPU alone where all fits; else
 * LAYERS. */
typedef enum sluice_split { SLUICE_SPLIT_AUTO, SLUICE_SPLIT_LAYERS, SLUICE_SPLIT_TENSORS } sluice_split;

enum { SLUICE_DRAFTS = 32 }; /* of one sequence in a step, at most */

/* Bytes that an engine may take of a device: "cpu", "cuda:N", or "cuda", which is each GPU that has no limit
 * under its own name. 0: what it has. Names are each given once. */
typedef struct sluice_memory_limit {
    char device[16]; /* "": the list ends in front of it */
    uint64_t bytes;
} sluice_memory_limit;
enum { SLUICE_MEMORY_LIMITS = 8 };

typedef struct sluice_engine_options {
    size_t size;
    /* "auto" (default), "cpu", "cuda", "cuda:N"; several with + between, "cuda+cpu": the first layers on the
     * CPU, the others on the GPU, one part of each step after the other. With "cuda", of what does not fit
     * the GPU, it fetches experts, or else layers' weights, from host memory. With "auto" everything is on
     * the GPU where it fits; else it is as "cuda", as "cuda+cpu" or as "cpu", whatever is estimated to be the
     * fastest. */
    const char *device;
    const char *isa;       /* CPU: plain, avx2, avxvnni, avx512, amx: the best allowed; NULL: the machine's */
    int32_t threads;       /* CPU; 0: one for each core that the process may use */
    int32_t chunk;         /* rows of a step; 0: 512 on the CPU, 2048 on a GPU; over several devices that have
                              layers each, fewer for a prompt that is alone, so that they work at once */
    int32_t sequences;     /* that run at once; 0: 8 */
    int32_t context;       /* tokens of one sequence; 0: the model's own, at most 4096 */
    int32_t outputs;       /* rows of a step whose logits can be asked for; 0: `sequences` */
    const char *kv_type;   /* "f16" (default), "bf16", "f32", "q8_0", "fp8" (OCP E4M3) */
    uint64_t cache_tokens; /* tokens in all cache pages; 0: sequences * context, less when memory is short */
    uint64_t memory_limit; /* bytes; 0: what the device has. See memory_limits too */
    int32_t state_slots;   /* recurrent models: 0: 2 per sequence, 16 for snapshots, and one for each draft */
    bool no_prefix_reuse;  /* do not share cached pages of equal beginnings between sequences */
    bool no_graphs;        /* CUDA: run steps eagerly */
    bool no_fusion;        /* every op by its own kernel: results differ where a run has a numeric class */
    bool no_repack;        /* CPU: no packed copy of the weights; they are read where the file is mapped */
    bool deterministic;    /* CUDA: results do not depend on how steps were cut; the CPU's never do */
    sluice_progress progress; /* of loading; NULL: none */
    void *progress_context;
    int32_t queue; /* requests that may wait for their first step; one more is SLUICE_ERR_BUSY. 0: no bound */
    /* Seconds that the rows of prompts may make a step last while others generate. 0: no bound; negative:
     * about as long as a step without prompts lasts, which makes twice as long in all. */
    double prompt_seconds;
    /* Keeps beginnings of sequences there over restarts, a file for each page of 64 tokens, for engines with
     * the same model, cache type and kernels; NULL: none. Made if only the last part of the path is missing.
     * Files are written while the engine is idle, and the rest by sluice_engine_destroy. Engines and
     * processes may share it. */
    const char *cache_folder;
    uint64_t cache_folder_bytes; /* of files in it at most; 0: 8 GiB */
    const char *kernels; /* beginnings of kernels' names ("attention/cuda-mma-rows64,linear/q8_0"), tried
                            before all others, each for the ops that it can do; NULL: the usual order */
    bool observe;        /* add up what matrices read, for sluice_engine_get_observations; the CPU only */
    sluice_speculate speculate;
    int32_t drafts; /* of one sequence in a step, at most; 0: 8 */
    /* Drafts are carried as far as they are worth their time, by what steps took and how often drafts were
     * right lately; this carries all. */
    bool draft_always;
    int32_t ngram_longest, ngram_shortest; /* NGRAM: last tokens that are looked for; 0: 4 and 2 */
    /* DRAFT: a smaller model of the same vocabulary, which is checked. The engine holds a reference, and has
     * a cache for it, on the same devices: gpu_layers and the limits are for both. */
    sluice_model *draft_model;
    /* CALLER: writes at most `room` tokens that may follow tokens[0 .. count - 1], and returns how many.
     * Called from the stepping thread with its lock held: it must return at once and call nothing of sluice.
     */
    size_t (*draft)(void *context, const int32_t *tokens, size_t count, int32_t *drafts, size_t room);
    void *draft_context;
    /* For sluice_embed and sluice_rerank alone: no head is computed and nothing can be generated. Defaults
     * are then 64 sequences, as many outputs as rows of a step, and a cache for the texts of a step. Models
     * that cannot generate always get such an engine. */
    bool embeddings;
    int32_t gpu_layers; /* of the model's last layers, on the GPU, the others on the CPU; fewer, with a
                           warning, where layers on both sides would share a cache. With "cuda" and "cuda:N",
                           of a model without experts, the GPU computes all layers: weights of so many stay
                           there, those of the others, spread over the depth, lie in host memory and are
                           fetched in each step. 0: as many as fit; SLUICE_NO_LAYERS: none */
    uint64_t host_memory_limit; /* with layers on the CPU beside a GPU, or weights in host memory: bytes
                                   there, memory_limit being the GPU's; 0: what is free */
    int32_t cpu_experts; /* experts of the model's first layers, so many, apart from the rest of these layers,
                            which is where gpu_layers says. With "cuda" and "auto" they lie in host memory,
                            and the GPU fetches and uses them; with "cuda+cpu" they are computed there. 0: as
                            few as must be */
    sluice_prompt_precision prompt_precision;
    /* SnapKV: behind a request's prompt that leaves more than kv_budget tokens in a sequence's cache, so many
     * stay for each key head: those that the prompt's last kv_window tokens attend to most, and these. Layers
     * with a window keep theirs. The prompt is computed with all tokens, and its last token's logits are
     * those without a budget. Requests that bring less than kv_window tokens, and SLUICE_LOGITS_ALL, drop
     * nothing. 0: all stay. */
    int32_t kv_budget;
    int32_t kv_window;     /* less than kv_budget; 0: 64 */
    int32_t kv_pool;       /* a token counts as the best of so many around it, an odd number; 0: 7 */
    uint64_t expert_cache; /* with experts in host memory: bytes of those that the GPU keeps at hand besides;
                              0: as many as fit */
    /* By device, ahead of memory_limit. "cpu" is host_memory_limit under another name, and on the CPU alone
     * memory_limit: only one of them may be given. */
    sluice_memory_limit memory_limits[SLUICE_MEMORY_LIMITS];
    /* A file of sluice_engine_write_expert_stats, of a model with as many layers and experts: of experts in
     * host memory the GPU has the most used ones at hand from the start. NULL: the first uses decide. */
    const char *expert_pin;
    sluice_split split;
    sluice_weight_copies weight_copies;
} sluice_engine_options;
enum { SLUICE_NO_LAYERS = -1 };

/* Plans, loads and starts. Holds its own reference to the model. */
SLUICE_API int sluice_engine_create(sluice_model *model, const sluice_engine_options *options,
                                    sluice_engine **engine, sluice_error *error);
/* Cancels what runs, waits for the step in flight and frees all. Its sequences and requests must have been
 * released. */
SLUICE_API void sluice_engine_destroy(sluice_engine *engine);

typedef enum sluice_plan_view {
    SLUICE_PLAN_MEMORY,  /* bytes per pool */
    SLUICE_PLAN_OPS,     /* the op list of the largest bucket */
    SLUICE_PLAN_EXPLAIN, /* the kernel of every op and bucket, and why not a faster one */
} sluice_plan_view;
/* What an engine with these options would do, without loading anything. *text is owned by the caller. As JSON
 * the memory has "device", "memory" (rows with "name", "bytes", "detail"), "total_bytes" of these,
 * "mapped_bytes" that are read in the file, "host_weights_bytes" in host memory beside a GPU, "memory_limit",
 * "token": the "weight_bytes" that one token of one sequence reads and its "operations", with an empty cache,
 * and "places": what was tried in order ("devices", "outcome", "taken"), of which the last one is taken. */
SLUICE_API int sluice_plan_describe(const sluice_model *model, const sluice_engine_options *options,
                                    sluice_plan_view view, sluice_text_format format, char **text,
                                    sluice_error *error);

/* What other engines leave of limits when they have taken so much (memory_on of their counters, added up by
 * device): at least a byte, as 0 is no limit. Of a name for several GPUs that which the fullest leaves. */
SLUICE_API void sluice_memory_limits_leave(sluice_memory_limit limits[SLUICE_MEMORY_LIMITS],
                                           const sluice_memory_limit taken[SLUICE_MEMORY_LIMITS]);

typedef struct sluice_counters {
    size_t size;
    uint64_t steps, rows;   /* done so far */
    uint64_t outputs;       /* logits rows computed */
    uint64_t reused_tokens; /* taken from the prefix index instead of being computed */
    uint64_t preemptions;   /* sequences that gave up their pages and were resumed */
    uint64_t eager_steps, replayed_steps, captured_buckets, failed_captures; /* CUDA graphs */
    uint64_t device_allocations, synchronisations; /* since start; steady steps add none */
    double step_seconds;                           /* time spent in steps */
    uint64_t batched_calls,
        batched_rows; /* calls of linear kernels that take many rows in one pass, and the rows they took */
    uint64_t prompt_tokens, generated_tokens; /* read (reused ones included) / sampled */
    uint64_t running, waiting;                /* now: requests that had a step / that had none yet */
    uint64_t cache_tokens,
        cache_tokens_used;      /* now: room of the cache / of it held by sequences or kept for reuse */
    uint64_t cache_tokens_kept; /* now: of those used, what would be given up for others */
    uint64_t stored_pages, loaded_pages; /* cache_folder: written / read since start */
    uint64_t memory; /* bytes that the engine was planned to take of memory_limit; weights that are read in
                        the file are not in it */
    uint64_t drafted, accepted; /* tokens drafted / of those, that were right */
    uint64_t drafted_at[SLUICE_DRAFTS],
        accepted_at[SLUICE_DRAFTS]; /* the same, the n-th of a step's drafts */
    uint64_t page_tokens;           /* of one page of the cache: beginnings are found again page by page */
    /* Weights in host memory: chosen experts that the GPU had at hand or not, counted once for each layer and
     * step; bytes that were brought, all experts for many rows or layers without experts, and chosen ones. */
    uint64_t expert_hits, expert_misses, streamed_bytes, fetched_bytes;
    uint64_t expert_promotions; /* experts used again for the first time since they came, which now stay
                                   longer than others */
    sluice_memory_limit memory_on[SLUICE_MEMORY_LIMITS]; /* bytes that the engine was planned to take of each
                                                            device's memory_limits */
} sluice_counters;
SLUICE_API void sluice_engine_get_counters(sluice_engine *engine, sluice_counters *counters);
/* The same of one layer whose experts, or all weights, are in host memory. */
typedef struct sluice_expert_counters {
    size_t size;
    int32_t layer,
        experts;     /* experts 0: all weights of a layer without experts; only streamed_bytes counts */
    int32_t at_hand; /* experts that the GPU has room for besides */
    uint64_t hits, misses, promotions, streamed_bytes, fetched_bytes;
} sluice_expert_counters;
/* One call for each such layer, in their order, as of the last step. Returns how many there are. `layer` may
 * be NULL. */
SLUICE_API int32_t sluice_engine_get_expert_counters(sluice_engine *engine,
                                                     void (*layer)(void *context,
                                                                   const sluice_expert_counters *counters),
                                                     void *context);
/* Writes a JSON object: "sluice_expert_stats": 1, "layers", "experts" and "experts_used" of the model, and
 * "chosen": for each layer an array with how many rows have chosen each expert, or null where experts were
 * not in host memory, and so not counted. With expert_pin the counts go on from those of that file. A step
 * that is run twice, as the first of a captured bucket, counts twice. `path` may be missing or such a file,
 * which the new one replaces when it is complete. SLUICE_ERR_UNSUPPORTED for an engine that counts no layer,
 * SLUICE_ERR_BUSY while a request is unfinished. dry_run: writes nothing, and says whether it may be written.
 */
SLUICE_API int sluice_engine_write_expert_stats(sluice_engine *engine, const char *path, bool dry_run,
                                                sluice_error *error);
/* Runs the engine's last step again, in parts, and says where its time goes: per kernel and shape the calls,
 * microseconds, bytes and operations a second, and how near that is to the device's limits where those are
 * known. The sequences that were in that step hold nothing of use afterwards: release them. *text is owned by
 * the caller. SLUICE_ERR_BUSY while a request is unfinished; SLUICE_ERR_INVALID before the first step, and
 * for an engine that shares cached pages (`no_prefix_reuse` not set). */
SLUICE_API int sluice_engine_profile(sluice_engine *engine, sluice_text_format format, char **text,
                                     sluice_error *error);
/* What a device can do at most in a second, as loops measure it that do nothing else. 0: not known. A
 * multiplication and an addition are two operations. */
typedef struct sluice_rates {
    size_t size;
    int32_t threads;   /* of the CPU, which measured together; 0: a GPU */
    double read_bytes; /* from memory. On a GPU the weights are read: few of them lie in its caches */
    /* Of the arithmetic itself, as the engine's kernels use it. On a GPU only BF16 is measured. */
    double int8_operations, bf16_operations, f32_operations;
    /* Of products with weights of such types, by the arithmetic that is known for them: that of BF16 may also
     * be f32, where that is faster. */
    double quantised_products, bf16_products, f32_products;
} sluice_rates;
/* Measures now, with the engine's threads: for less than a second, on a CPU with up to 512 MiB of memory;
 * where twice that is not free, read_bytes is not known. Changes nothing that requests see. SLUICE_ERR_BUSY
 * while a request is unfinished, SLUICE_ERR_UNSUPPORTED for an engine on several devices, SLUICE_ERR_NOMEM.
 */
SLUICE_API int sluice_engine_measure_rates(sluice_engine *engine, sluice_rates *rates, sluice_error *error);
/* What the rows computed so far had in the columns that a matrix of the model reads. Borrowed. */
typedef struct sluice_observation {
    size_t size;
    const char *name; /* of the tensor in the model's file */
    int32_t columns, experts;
    const double *sums;   /* of squares: [experts][columns] */
    const double *counts; /* rows added up: [experts]; the head reads those alone whose logits were wanted */
} sluice_observation;
/* One call for each matrix, in the model's order, of an engine with `observe`. Rows that are computed again
 * (after a preemption, for a profile) count again, and those taken from the prefix index do not: set
 * no_prefix_reuse where each is to count once. SLUICE_ERR_BUSY while a request is unfinished. */
SLUICE_API int sluice_engine_get_observations(sluice_engine *engine,
                                              void (*observation)(void *context,
                                                                  const sluice_observation *observation),
                                              void *context, sluice_error *error);
typedef struct sluice_importance_options {
    size_t size;
    const char *dataset;       /* name or path of the text that was run, for people; NULL: "" */
    uint32_t chunks;           /* pieces of text that were run */
    uint32_t chunk_size;       /* tokens of one */
    const char *const *inputs; /* files that were read and must not be replaced, besides the model's */
    size_t input_count;
    bool replace; /* an existing file may go */
    bool dry_run; /* writes nothing: says whether `path` may be written, before any request too */
} sluice_importance_options;
/* Writes the observations as an importance matrix in llama-imatrix's GGUF format, which sluice_quantize_file
 * and llama-quantize read. Matrices that no row reached are left out. SLUICE_ERR_UNSUPPORTED for the model of
 * a Hugging Face folder, whose tensors have other names. Rules of outputs: see "files" below. */
SLUICE_API int sluice_engine_write_importance(sluice_engine *engine, const char *path,
                                              const sluice_importance_options *options, sluice_error *error);
/* Tokens of one sequence, and sequences that run at once, as the options came out. */
SLUICE_API int32_t sluice_engine_context(const sluice_engine *engine);
SLUICE_API int32_t sluice_engine_sequences(const sluice_engine *engine);
/* "cpu: avx512, 2 threads"; borrowed from the engine. */
SLUICE_API const char *sluice_engine_device(const sluice_engine *engine);

/* ---- sequence
 * ------------------------------------------------------------------------------------------------------- */

typedef struct sluice_sequence sluice_sequence;

/* An empty timeline. There may be more sequences than the engine runs at once: they wait, or take turns. */
SLUICE_API int sluice_sequence_create(sluice_engine *engine, sluice_sequence **sequence, sluice_error *error);
/* A second timeline with the same tokens; cached pages and state are shared, not copied. SLUICE_ERR_BUSY
 * while a request runs. */
SLUICE_API int sluice_sequence_fork(sluice_sequence *sequence, sluice_sequence **fork, sluice_error *error);
/* Forgets all tokens from `length` on. SLUICE_ERR_BUSY while a request runs. What the cache can no longer
 * give back (windows, recurrent state) is recomputed with the next request, with the same result. */
SLUICE_API int sluice_sequence_rollback(sluice_sequence *sequence, size_t length, sluice_error *error);
SLUICE_API size_t sluice_sequence_length(const sluice_sequence *sequence);
/* The tokens so far; borrowed until the next call on this sequence or the next step of its request. */
SLUICE_API const int32_t *sluice_sequence_tokens(const sluice_sequence *sequence);
/* Cancels its request, if one runs. */
SLUICE_API void sluice_sequence_release(sluice_sequence *sequence);

/* ---- request
 * -------------------------------------------------------------------------------------------------------- */

typedef struct sluice_request sluice_request;

typedef enum sluice_logits {
    SLUICE_LOGITS_NONE,
    SLUICE_LOGITS_LAST, /* of each row that a token is sampled from */
    SLUICE_LOGITS_ALL,  /* of every row of the appended tokens too */
} sluice_logits;

typedef struct sluice_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY: never */
} sluice_logit_bias;

/* What the model gave, before penalties, bias and temperature. */
typedef struct sluice_logprob {
    int32_t token;
    float logprob; /* natural logarithm of the probability */
} sluice_logprob;

enum { SLUICE_TOP_LOGPROBS = 32 }; /* at most */

/* What is done about the candidates of a token, in any order, each on what the one before it left. The names
 * in comments are those of sluice_samplers_parse, the letters llama.cpp's. */
typedef enum sluice_sampler {
    SLUICE_SAMPLER_TOP_N_SIGMA = 1, /* top_n_sigma, s */
    SLUICE_SAMPLER_TOP_K,           /* top_k, k */
    SLUICE_SAMPLER_TYPICAL_P,       /* typ_p, y */
    SLUICE_SAMPLER_TOP_P,           /* top_p, p */
    SLUICE_SAMPLER_MIN_P,           /* min_p, m */
    SLUICE_SAMPLER_XTC,             /* xtc, x */
    SLUICE_SAMPLER_TEMPERATURE,     /* temperature, t */
    SLUICE_SAMPLER_PENALTIES,       /* penalties, e */
    SLUICE_SAMPLER_DRY,             /* dry, d */
} sluice_sampler;

enum { SLUICE_SAMPLERS = 9 }; /* at most, each once */

/* An order of samplers from its text: names with semicolons between ("top_k;top_p;temperature"), or letters
 * ("kpt"). samplers[SLUICE_SAMPLERS] is the caller's. SLUICE_ERR_INVALID names what is no sampler, is there
 * twice, or may not stand where it does: penalties and dry come before all others. */
SLUICE_API int sluice_samplers_parse(const char *text, sluice_sampler *samplers, size_t *count,
                                     sluice_error *error);

/* In this order, unless `samplers` has another: logit bias, repetition, presence and frequency penalties,
 * DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature, draw; llama.cpp's order. So top-p and
 * the others look at the model's own probabilities, and the temperature at what they left. */
typedef struct sluice_request_options {
    size_t size;
    const int32_t *tokens; /* appended to the sequence; copied */
    size_t token_count;
    size_t generate;   /* tokens to generate at most; 0: only read the tokens */
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: all */
    float top_p;       /* 0 or 1: all */
    float min_p;       /* 0: all */
    float
        repetition_penalty; /* divides positive and multiplies negative logits of tokens seen; 0 or 1: none */
    uint64_t seed;          /* the draw depends on it and on the position only */
    /* Generation ends before any of these texts, which must be UTF-8; copied. The first to be complete
     * counts, byte by byte; of several that end with the same byte the longest, of equal ones the first
     * given. */
    const char *const *stops;
    size_t stop_count;
    bool ignore_eos; /* do not stop at end-of-text tokens; `stop_tokens` still count */
    bool no_text;    /* tokens only: no detokenizing */
    sluice_logits logits;
    float typical_p; /* 0 or 1: all */
    float presence_penalty,
        frequency_penalty; /* taken from logits of generated tokens: once / for each time */
    /* Last tokens that penalties look at; 0: 64, -1: all. If more than 1024 of them are different, those that
     * came last are penalised. */
    int32_t penalty_tokens;
    const sluice_logit_bias *logit_bias; /* copied; at most 1024, no token twice */
    size_t logit_bias_count;
    size_t minimum; /* tokens before an end-of-text or stop token may come; of those at most 1024 then */
    const int32_t
        *stop_tokens; /* generation ends with any of these, which are not part of the text; copied */
    size_t stop_token_count;
    bool logprobs;        /* of each generated token */
    int32_t top_logprobs; /* and of as many of the likeliest; at most SLUICE_TOP_LOGPROBS */
    /* The same of each appended token, given those in front of it, also the sequence's earlier ones; an event
     * each, in order, before the first token. All of them are computed, whatever is cached. */
    bool prompt_logprobs;
    int32_t priority; /* higher runs first, and is preempted last */
    uint64_t group; /* whose request it is: groups share steps evenly, whatever number of requests each has */
    bool no_reuse;  /* compute all tokens, whatever is cached, and leave nothing for others */
    uint64_t cache_salt; /* only sequences with the same salt share; of a sequence's first request */
    /* Called when events may have come: once for the first event, once for the next after each poll that gave
     * SLUICE_EVENT_NONE, and once more when DONE is there, whatever was polled. So a caller that is told
     * polls until NONE comes, or DONE; and one that is told again before it has polled knows that the request
     * ended. From the stepping thread and with its lock held: it must return at once and call nothing of
     * sluice. It may come before sluice_submit has returned, and not after sluice_request_release has. NULL:
     * none. */
    void (*notify)(void *context);
    void *notify_context;
    /* Those that are done, and their order; what is missing in a list that is not empty is not done, whatever
     * its options say (a temperature of 0 and a bias always count). Penalties and DRY come before the others.
     * Copied. */
    const sluice_sampler *samplers;
    size_t sampler_count; /* 0: all, in the order above */
    /* Only logits within so many standard deviations of the largest; 0: all (arXiv 2411.07641). */
    float top_n_sigma;
    /* XTC: with this probability, of several tokens that have at least the probability xtc_threshold only the
     * least likely stays, and all below it. 0: never. */
    float xtc_probability, xtc_threshold;
    /* Above 0: temperatures from `temperature` - this to `temperature` + this, by how even the candidates
     * are: their entropy over the largest that so many can have, to the power of dynamic_temperature_exponent
     * (0: 1). */
    float dynamic_temperature_range, dynamic_temperature_exponent;
    /* DRY: a token that would go on a repetition of at least dry_allowed_length (0: 2) tokens loses
     * dry_multiplier * dry_base (0: 1.75) to the power of what the repetition is longer. 0: none. Looks at
     * the last dry_tokens (0: all). A repetition ends at any of the breakers' texts, which are copied; no
     * list (NULL): a line's end, a colon, a quotation mark and an asterisk. */
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_tokens;
    const char *const *dry_breakers;
    size_t dry_breaker_count;
    /* Mirostat (arXiv 2007.14966), 1 or 2; 0: none. In place of all samplers between DRY and the temperature,
     * which then comes first: candidates are cut so that what is drawn has the surprise mirostat_tau (0: 5
     * bits) on average, learnt at the rate mirostat_eta (0: 0.1). */
    int32_t mirostat;
    float mirostat_tau, mirostat_eta;
    /* What is generated is a text of this grammar, made for the engine's model; the request holds a reference
     * of its own. Log-probabilities and logits are those of all tokens, as without it. Where the text may
     * end, end-of-text tokens may come, and where nothing else may, the request ends (SLUICE_FINISH_EOS),
     * also with ignore_eos and before `minimum`. A limit cuts it anywhere. NULL: any text. */
    sluice_grammar *grammar;
    /* Of a model that thinks before it answers: where the prompt leaves it. If it may think or does so, it
     * writes at most thought_tokens tokens of thoughts, later ones of the same reply counted too; what closes
     * one then comes in place of what would come, is generated like other tokens, and belongs to the
     * thought's text. SLUICE_THOUGHT_NONE: no bound. */
    sluice_thought thought;
    size_t thought_tokens;
    /* The text has control tokens too, each between the bytes 0xFF and 0xFE, which are no UTF-8: what
     * sluice_reply_feed reads. Stop texts do not reach into them. */
    bool special_text;
    int32_t drafts;       /* in a step at most; 0: as many as the engine's, negative: none */
    int32_t least_drafts; /* fewer are left out */
} sluice_request_options;

/* SLUICE_ERR_BUSY when the sequence has an unfinished request. On success the request is released with
 * sluice_request_release. */
SLUICE_API int sluice_submit(sluice_sequence *sequence, const sluice_request_options *options,
                             sluice_request **request, sluice_error *error);
/* The same for `count` different sequences of one engine, options for each: all are accepted or none, and
 * they start in one step as far as it has room, where requests submitted in turn start while others run
 * already. On failure requests[0 .. count - 1] are NULL. */
SLUICE_API int sluice_submit_together(sluice_sequence *const *sequences,
                                      const sluice_request_options *const *options, size_t count,
                                      sluice_request **requests, sluice_error *error);

typedef enum sluice_event_kind {
    SLUICE_EVENT_NONE,   /* nothing within the time given */
    SLUICE_EVENT_TOKEN,  /* one generated token */
    SLUICE_EVENT_LOGITS, /* logits rows; the sequence steps on only at the next poll */
    SLUICE_EVENT_DONE,   /* the last event of a request, `finish` says why */
    SLUICE_EVENT_PROMPT, /* one appended token with its log-probabilities (prompt_logprobs) */
} sluice_event_kind;

typedef enum sluice_finish {
    SLUICE_FINISH_LENGTH,  /* `generate` tokens, or the tokens were read */
    SLUICE_FINISH_EOS,     /* an end-of-text or stop token, which is not part of the text */
    SLUICE_FINISH_STOP,    /* a stop text */
    SLUICE_FINISH_CONTEXT, /* the sequence is full */
    SLUICE_FINISH_CANCELLED,
    SLUICE_FINISH_ERROR, /* event->error */
} sluice_finish;

/* Why no more of a prompt was taken from the cache. */
typedef enum sluice_reuse {
    SLUICE_REUSE_ALL,    /* all but the last token, which is always computed */
    SLUICE_REUSE_NEW,    /* what is cached goes on differently, or was given up for others */
    SLUICE_REUSE_STATE,  /* more was cached, but no recurrent state or window for its end */
    SLUICE_REUSE_LOGITS, /* logits or log-probabilities of the prompt were asked for */
    SLUICE_REUSE_OFF,    /* no_reuse, or the engine's no_prefix_reuse */
} sluice_reuse;

/* Borrowed contents live until the next poll of the same request. */
typedef struct sluice_event {
    size_t size;
    sluice_event_kind kind;
    int32_t token; /* TOKEN, PROMPT */
    const char
        *text; /* TOKEN, DONE: text that is complete now: whole UTF-8 characters, no part of a stop
                  text. "" where a token's text waits for what follows; then it comes with a later one */
    size_t text_length;
    const float *logits; /* LOGITS: [rows][vocabulary], of sequence positions first_position onwards */
    size_t rows, first_position;
    sluice_finish finish; /* DONE */
    sluice_error error;   /* DONE with SLUICE_FINISH_ERROR */
    /* DONE: appended / all that were sampled, an end-of-text or stop token and those of a stop text included
     * / of the sequence's tokens, taken from the cache. TOKEN: the first and the last of these */
    size_t prompt_tokens, generated_tokens, reused_tokens;
    double prompt_seconds, generate_seconds; /* DONE: to the first token; from then on */
    double queue_seconds;                    /* DONE: of prompt_seconds, before the first step */
    float logprob;             /* TOKEN with `logprobs`, PROMPT; NAN for the first token of a sequence */
    const sluice_logprob *top; /* [top_count], the likeliest first, of equals the lower id; none where NAN */
    size_t top_count;
    int32_t stop;         /* DONE with SLUICE_FINISH_STOP: which of `stops`; else -1 */
    int32_t stop_token;   /* DONE with SLUICE_FINISH_EOS: the token; else -1 */
    sluice_reuse reuse;   /* DONE: why no more was reused */
    size_t reuse_matched; /* DONE: tokens at the beginning that the cache had seen, reusable or not */
    size_t drafted_tokens, accepted_tokens; /* DONE: drafts that steps carried / that were right */
} sluice_event;

/* The next event of a request. timeout in milliseconds; 0: do not wait, negative: without limit. Returns 0
 * also for SLUICE_EVENT_NONE. One thread at a time may poll a request. `event->size` must be set. */
SLUICE_API int sluice_poll(sluice_request *request, int timeout, sluice_event *event, sluice_error *error);
/* How many of the request's tokens have been read or reused, and of how many. */
SLUICE_API void sluice_request_progress(sluice_request *request, size_t *read, size_t *total);
/* Ends the request between steps; its last event is DONE with SLUICE_FINISH_CANCELLED. Safe from any thread.
 */
SLUICE_API void sluice_cancel(sluice_request *request);
/* Cancels if unfinished. Logits borrowed from it end here. */
SLUICE_API void sluice_request_release(sluice_request *request);

/* ---- embeddings and scores
 * ------------------------------------------------------------------------------------------
 * Texts to vectors, and documents to how well they answer a query. What a text gives depends neither on the
 * texts beside it nor on how the work was cut into steps. */

/* How the rows of a text's tokens become its vector. */
typedef enum sluice_pooling {
    SLUICE_POOLING_MODEL, /* as the model's files say; without a word of theirs the last token's row */
    SLUICE_POOLING_NONE,  /* a vector for each token */
    SLUICE_POOLING_MEAN,
    SLUICE_POOLING_CLS, /* the first token's row */
    SLUICE_POOLING_LAST,
} sluice_pooling;

typedef struct sluice_embedding_facts {
    size_t size;
    bool embeds;    /* the model's files say that it was made for this */
    bool generates; /* it can generate text too */
    bool ranks; /* sluice_rerank can run: there is a classifier, or a head with the tokens "yes" and "no" */
    sluice_pooling pooling; /* of SLUICE_POOLING_MODEL */
    bool normalise;         /* vectors get the length 1 unless no_normalise is set */
    int32_t width;          /* of a vector */
} sluice_embedding_facts;
/* `facts->size` must be set. */
SLUICE_API void sluice_model_get_embedding(const sluice_model *model, sluice_embedding_facts *facts);

/* A text, or its tokens; both stay the caller's. Text gets the tokens in front and behind that the model
 * wants, and special tokens written out in it stay text; tokens are taken as they are. */
typedef struct sluice_embed_input {
    const char *text; /* [length]; NULL: tokens are given */
    size_t length;
    const int32_t *tokens;
    size_t token_count;
} sluice_embed_input;

typedef struct sluice_embed_options {
    size_t size;
    sluice_pooling pooling;
    bool no_normalise;  /* vectors as they are; no effect on scores */
    int32_t dimensions; /* keep the first so many, before the length becomes 1; 0: all */
    bool truncate;      /* cut texts that are longer than the context, instead of SLUICE_ERR_LIMIT */
    int32_t priority;   /* as of requests */
    uint64_t group;
    /* sluice_rerank: what documents are to answer, and the task, where the model's prompt has room for one
     * (NULL: a search). */
    const char *query, *instruction;
    /* Called once, when all is done, with the stepping thread's lock held: it must return at once and call
     * nothing of sluice. NULL: none. */
    void (*notify)(void *context);
    void *notify_context;
} sluice_embed_options;

/* Texts on their way to vectors, or documents to scores. */
typedef struct sluice_embedding sluice_embedding;

/* Begins to turn `count` texts into vectors, as many at once as the engine has room for. Inputs are copied.
 * SLUICE_ERR_UNSUPPORTED for an engine that was not made with `embeddings`; errors name the text by its
 * number, from 0. On success the caller releases *embedding. */
SLUICE_API int sluice_embed(sluice_engine *engine, const sluice_embed_input *inputs, size_t count,
                            const sluice_embed_options *options, sluice_embedding **embedding,
                            sluice_error *error);
/* Scores documents by how well they answer options->query, each in its own prompt or pair with it: a number
 * of 0 to 1, to be read with sluice_embedding_vector as a vector of one element. With a classifier of one row
 * its sigmoid, of two rows ("yes", "no") the first one's probability. */
SLUICE_API int sluice_rerank(sluice_engine *engine, const sluice_embed_input *documents, size_t count,
                             const sluice_embed_options *options, sluice_embedding **embedding,
                             sluice_error *error);
/* Waits up to `timeout` milliseconds (negative: as long as it takes) until all is done; *done is how many
 * texts are. Fails with the first error that came, and nothing is to be read then. */
SLUICE_API int sluice_embedding_wait(sluice_embedding *embedding, int timeout, size_t *done,
                                     sluice_error *error);
/* When all is done: the vectors of text `index`, [*rows][*width]; one row unless the pooling is NONE.
 * Borrowed until the release; NULL before, and for an index there is none of. */
SLUICE_API const float *sluice_embedding_vector(const sluice_embedding *embedding, size_t index, size_t *rows,
                                                size_t *width);
/* Tokens that were computed for text `index`. */
SLUICE_API size_t sluice_embedding_tokens(const sluice_embedding *embedding, size_t index);
/* Cancels what is not done. Before the engine is destroyed. */
SLUICE_API void sluice_embedding_release(sluice_embedding *embedding);

/* ---- files
 * ----------------------------------------------------------------------------------------------------------
 */

/* What is written appears under its name when it is complete, and nothing is left behind on failure. A
 * device, FIFO, socket, folder or symbolic link is never written to, nor is a file that is read, by whatever
 * name. */

/* One tensor of a file that is written; borrowed, as all text in it. */
typedef struct sluice_quantized_tensor {
    size_t size;
    const char *name;
    const char *from, *to; /* weight types */
    const char *wanted;    /* differs from `to` where rows are no whole number of that type's blocks */
    uint64_t elements, columns;
    uint64_t from_bytes, to_bytes;
} sluice_quantized_tensor;

/* `pattern`: a regular expression that is looked for in the names that tensors have in GGUF files. */
typedef struct sluice_type_pattern {
    const char *pattern, *type;
} sluice_type_pattern;

typedef struct sluice_quantize_options {
    size_t size;
    const char *type; /* a name of sluice_quantize_type, in any case; NULL: "q8_0". Most are mixtures: some
                         tensors take more bits, by llama-quantize's rules */
    bool pure;        /* no mixture: the type for every matrix */
    const char *output_type, *embedding_type; /* of the head and of the token embedding; NULL: by `type` */
    const sluice_type_pattern *patterns;      /* for the other matrices; the first that is found decides */
    size_t pattern_count;
    const char *importance; /* path of an importance matrix of llama-imatrix's formats; NULL: none */
    bool replace;           /* an existing file may go */
    bool dry_run;           /* writes nothing, and reads no weights; `output` may be NULL */
    void (*tensor)(void *context,
                   const sluice_quantized_tensor *tensor); /* for each, before anything is written */
    sluice_progress progress;
    void *context;        /* of both */
    uint64_t *file_bytes; /* receives the size of the file; NULL: not wanted */
} sluice_quantize_options;
/* Writes a GGUF copy of a GGUF file or a Hugging Face folder with its matrices in other weight types; norms
 * and other small tensors become F32. A weight that is no finite number is an error that names its tensor. */
SLUICE_API int sluice_quantize_file(const char *input, const char *output,
                                    const sluice_quantize_options *options, sluice_error *error);
/* The same with a type and else all defaults. */
SLUICE_API int sluice_quantize(const char *input, const char *output, const char *type,
                               sluice_progress progress, void *context, sluice_error *error);
/* Names of types, those of fewer bits first; NULL past the end. `bits` (may be NULL) receives the bits per
 * weight of the matrices of Llama 3 8B, for people to compare by. */
SLUICE_API const char *sluice_quantize_type(int index, double *bits);

/* Of a head that drafts, in families that may have one. */
typedef enum sluice_synth_head {
    SLUICE_SYNTH_HEAD_PRESET, /* a random one where the preset says so */
    SLUICE_SYNTH_HEAD_NONE,
    SLUICE_SYNTH_HEAD_RANDOM,   /* it is mostly wrong */
    SLUICE_SYNTH_HEAD_AGREEING, /* it is right: all layers leave 0, so that each token follows from the last
                                 */
} sluice_synth_head;

typedef struct sluice_synth_options {
    size_t size;
    const char *preset; /* "qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", or a family with its default small sizes
                           ("qwen3", "gemma3", ...) */
    const char *type;   /* weight type of the matrices; NULL: "q8_0" */
    uint64_t seed;
    int32_t layers, width, heads, kv_heads, head_size, feed_forward, vocabulary, experts, experts_used,
        expert_width;        /* 0: the preset's */
    bool replace;            /* an existing file may go */
    const char *expert_type; /* of the experts' matrices; NULL: type */
    double expert_skew; /* share of all choices, below 1, that a fifth of the experts gets; 0: as it comes */
    sluice_synth_head head;
} sluice_synth_options;
/* A model of true shape with random blocks, for measuring; any GGUF engine reads it. */
SLUICE_API int sluice_synth(const char *output, const sluice_synth_options *options, sluice_progress progress,
                            void *context, sluice_error *error);

#ifdef __cplusplus
}
#endif
#endif

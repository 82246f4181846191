#include "chat/reply_formats.h"

#include "base/alloc.h"

#define BAR "\xef\xbd\x9c" /* U+FF5C, and U+2581 between words: DeepSeek's special tokens */
#define GAP "\xe2\x96\x81"
#define DSML BAR "DSML" BAR

#define THINK(open, close) [SL_REPLY_THINK_OPEN] = (open), [SL_REPLY_THINK_CLOSE] = (close)
#define SECTION(open, close) [SL_REPLY_SECTION_OPEN] = (open), [SL_REPLY_SECTION_CLOSE] = (close)
#define CALL(open, close) [SL_REPLY_CALL_OPEN] = (open), [SL_REPLY_CALL_CLOSE] = (close)
#define NAME(close) [SL_REPLY_NAME_CLOSE] = (close)
#define VALUE(open, key_close, close)                                                                        \
    [SL_REPLY_KEY_OPEN] = (open), [SL_REPLY_KEY_CLOSE] = (key_close), [SL_REPLY_VALUE_CLOSE] = (close)
#define NAMED_OBJECT .name_key = "name", .arguments_key = "arguments"
#define NAMED_OBJECT_OF_PARAMETERS .name_key = "name", .arguments_key = "parameters"
/* DeepSeek V3.2 and V4 differ in the section's word. */
#define DSML_FORMAT(word)                                                                                    \
    .marks = {SECTION("<" DSML word ">", "</" DSML word ">"),                                                \
              CALL("<" DSML "invoke name=\"", "</" DSML "invoke>"), NAME("\">"),                             \
              VALUE("<" DSML "parameter name=\"", "\" string=\"true\">", "</" DSML "parameter>"),            \
              [SL_REPLY_KEY_CLOSE_JSON] = "\" string=\"false\">"},                                           \
    .arguments = SL_REPLY_TAGGED

/* Sources: the chat_template of each publisher's model, and where it leaves something open the tool parser
 * that vLLM (vllm/tool_parsers) and llama.cpp (common/chat.cpp) have for it. */
static const sl_reply_format FORMATS[] = {
    /* gpt-oss: OpenAI's harmony (openai/harmony, docs/format.md). The prompt ends with <|start|>assistant. */
    {.name = "harmony",
     .marks = {THINK("<|channel|>analysis<|message|>", "<|end|>"),
               CALL("<|channel|>commentary to=functions.", "<|call|>"),
               [SL_REPLY_CALL_OPEN + 1] = "<|channel|>analysis to=functions.",
               [SL_REPLY_CALL_OPEN + 2] = "<|start|>assistant to=functions.",
               [SL_REPLY_CALL_OPEN + 3] = "to=functions.", NAME(" <|constrain|>json<|message|>"),
               [SL_REPLY_NAME_CLOSE + 1] = "<|channel|>commentary <|constrain|>json<|message|>",
               [SL_REPLY_NAME_CLOSE + 2] = " <|message|>", [SL_REPLY_NAME_CLOSE + 3] = " json<|message|>",
               [SL_REPLY_NAME_CLOSE + 4] = "<|channel|>commentary json<|message|>",
               [SL_REPLY_NAME_CLOSE + 5] = "<|channel|>commentary<|message|>",
               [SL_REPLY_SILENT] = "<|channel|>final<|message|>",
               [SL_REPLY_SILENT + 1] = "<|start|>assistant",
               [SL_REPLY_SILENT + 2] = "<|channel|>commentary<|message|>",
               [SL_REPLY_SILENT + 3] = "<|channel|>final <|constrain|>json<|message|>",
               [SL_REPLY_SILENT + 4] = "<|end|>", [SL_REPLY_SILENT + 5] = "<|return|>"},
     .thinks_again = true},
    /* Gemma 4 and FunctionGemma. */
    {.name = "gemma4",
     .marks = {THINK("<|channel>thought ", "<channel|>"), CALL("<|tool_call>call:", "<tool_call|>"),
               NAME("{"), [SL_REPLY_QUOTE] = "<|\"|>"},
     .arguments = SL_REPLY_BARE,
     .thinks_again = true},
    {.name = "functiongemma",
     .marks = {CALL("<start_function_call>call:", "<end_function_call>"),
               NAME("{"), [SL_REPLY_QUOTE] = "<escape>"},
     .arguments = SL_REPLY_BARE},
    {.name = "deepseek-v3.2", DSML_FORMAT("function_calls")},
    {.name = "deepseek-v4", DSML_FORMAT("tool_calls")},
    /* DeepSeek R1 and V3; V3.1. */
    {.name = "deepseek-v3",
     .marks = {SECTION("<" BAR "tool" GAP "calls" GAP "begin" BAR ">",
                       "<" BAR "tool" GAP "calls" GAP "end" BAR ">"),
               CALL("<" BAR "tool" GAP "call" GAP "begin" BAR ">function<" BAR "tool" GAP "sep" BAR ">",
                    "\n```<" BAR "tool" GAP "call" GAP "end" BAR ">"),
               NAME("\n```json\n"), [SL_REPLY_SEPARATOR] = "\n"}},
    {.name = "deepseek-v3.1",
     .marks = {SECTION("<" BAR "tool" GAP "calls" GAP "begin" BAR ">",
                       "<" BAR "tool" GAP "calls" GAP "end" BAR ">"),
               CALL("<" BAR "tool" GAP "call" GAP "begin" BAR ">",
                    "<" BAR "tool" GAP "call" GAP "end" BAR ">"),
               NAME("<" BAR "tool" GAP "sep" BAR ">")}},
    {.name = "kimi-k2",
     .marks = {SECTION("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
               CALL("<|tool_call_begin|>\3functions.", "<|tool_call_end|>"),
               [SL_REPLY_CALL_OPEN + 1] = "<|tool_call_begin|>\3", NAME(":\1 <|tool_call_argument_begin|>")}},
    /* Mistral from tokenizer v11 on; before. Ids have nine letters or digits. */
    {.name = "mistral",
     .marks = {THINK("[THINK]", "[/THINK]"), CALL("[TOOL_CALLS]", NULL), NAME("[ARGS]"),
               [SL_REPLY_NAME_CLOSE + 1] = "[CALL_ID]\2[ARGS]"},
     .id_length = 9},
    {.name = "mistral-list",
     .marks = {SECTION("[TOOL_CALLS] [", "]"), [SL_REPLY_SEPARATOR] = ", "},
     NAMED_OBJECT,
     .id_length = 9},
    /* Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5. */
    {.name = "qwen3-coder",
     .marks = {CALL("<tool_call>\n<function=", "</function>\n</tool_call>"), NAME(">\n"),
               VALUE("<parameter=", ">", "</parameter>")},
     .arguments = SL_REPLY_TAGGED,
     .line_breaks = true},
    {.name = "seed-oss",
     .marks = {THINK("<seed:think>", "</seed:think>"),
               CALL("<seed:tool_call>\n<function=", "</function>\n</seed:tool_call>"), NAME(">\n"),
               VALUE("<parameter=", ">", "</parameter>")},
     .arguments = SL_REPLY_TAGGED},
    {.name = "glm-4.5",
     .marks = {CALL("<tool_call>", "</tool_call>"), NAME("\n"),
               VALUE("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")},
     .arguments = SL_REPLY_TAGGED},
    {.name = "minimax-m2",
     .marks = {SECTION("<minimax:tool_call>", "</minimax:tool_call>"), CALL("<invoke name=\"", "</invoke>"),
               NAME("\">\n"), VALUE("<parameter name=\"", "\">", "</parameter>")},
     .arguments = SL_REPLY_TAGGED},
    {.name = "lfm2",
     .marks = {SECTION("<|tool_call_start|>[", "]<|tool_call_end|>"), NAME("("), [SL_REPLY_SEPARATOR] = ", "},
     .arguments = SL_REPLY_PYTHONIC},
    /* Llama 3.1 to 4: an object and nothing else, or Python's notation where the template asks for it. */
    {.name = "llama3-json",
     .marks = {[SL_REPLY_SEPARATOR] = "; ",
               [SL_REPLY_SILENT] = "<|python_tag|>",
               [SL_REPLY_SILENT + 1] = "<|python_start|>",
               [SL_REPLY_SILENT + 2] = "<|python_end|>"},
     NAMED_OBJECT_OF_PARAMETERS,
     .at_start = true},
    {.name = "llama-pythonic",
     .marks = {SECTION("[", "]"),
               NAME("("), [SL_REPLY_SEPARATOR] = ", ", [SL_REPLY_SILENT] = "<|python_tag|>",
               [SL_REPLY_SILENT + 1] = "<|python_start|>", [SL_REPLY_SILENT + 2] = "<|python_end|>"},
     .arguments = SL_REPLY_PYTHONIC,
     .at_start = true},
    {.name = "olmo3",
     .marks = {SECTION("<function_calls>\n", "</function_calls>"), NAME("("), [SL_REPLY_SEPARATOR] = "\n"},
     .arguments = SL_REPLY_PYTHONIC},
    {.name = "command-r",
     .marks = {THINK("<|START_THINKING|>", "<|END_THINKING|>"),
               SECTION("<|START_ACTION|> [\n", "\n]<|END_ACTION|>"), [SL_REPLY_SEPARATOR] = ",\n",
               [SL_REPLY_SILENT] = "<|START_RESPONSE|>", [SL_REPLY_SILENT + 1] = "<|END_RESPONSE|>",
               [SL_REPLY_SILENT + 2] = "<|START_TEXT|>", [SL_REPLY_SILENT + 3] = "<|END_TEXT|>"},
     .id_key = "tool_call_id",
     .name_key = "tool_name",
     .arguments_key = "parameters"},
    {.name = "apertus",
     .marks = {THINK("<|inner_prefix|>", "<|inner_suffix|>"),
               SECTION("<|tools_prefix|>[", "]<|tools_suffix|>"), CALL("{\"", "}"),
               NAME("\": "), [SL_REPLY_SEPARATOR] = ", "}},
    /* Granite 3, Phi-4-mini. */
    {.name = "tool-call-list",
     .marks =
         {SECTION("<|tool_call|>[", "]"), [SL_REPLY_SEPARATOR] = ", ", [SL_REPLY_SILENT] = "<|/tool_call|>"},
     NAMED_OBJECT},
    {.name = "internlm",
     .marks = {CALL("<|action_start|><|plugin|>\n", "<|action_end|>")},
     NAMED_OBJECT_OF_PARAMETERS},
    /* Hunyuan, Jamba; Nemotron 2. */
    {.name = "tool-calls-list",
     .marks = {SECTION("<tool_calls>[", "]</tool_calls>"), [SL_REPLY_SEPARATOR] = ", "},
     NAMED_OBJECT},
    {.name = "nemotron",
     .marks = {SECTION("<TOOLCALL>[", "]</TOOLCALL>"), [SL_REPLY_SEPARATOR] = ", "},
     NAMED_OBJECT},
    /* Functionary 3.1, and what Llama 3.1's card calls custom functions. */
    {.name = "function-tag", .marks = {CALL("<function=", "</function>"), NAME(">")}},
    /* Hermes 2 and 3, Qwen 2.5 and 3, Granite 4, EXAONE 4, SmolLM3, MiMo and many others. */
    {.name = "hermes", .marks = {CALL("<tool_call>\n", "\n</tool_call>")}, NAMED_OBJECT},
};

const sl_reply_format SL_REPLY_PLAIN = {.name = "plain"};

/* The first row whose texts all occur in a template. Formats that share a mark stand from the more particular
 * to the more general. */
static const struct {
    const char *format, *texts[3];
} SIGNS[] = {
    {"harmony", {"<|channel|>", "<|start|>assistant"}},
    {"gemma4", {"<|tool_call>"}},
    {"functiongemma", {"<start_function_call>"}},
    {"deepseek-v3.2", {DSML, "function_calls"}},
    {"deepseek-v4", {DSML}},
    {"deepseek-v3", {"<" BAR "tool" GAP "calls" GAP "begin" BAR ">", "```json"}},
    {"deepseek-v3.1", {"<" BAR "tool" GAP "calls" GAP "begin" BAR ">"}},
    {"kimi-k2", {"<|tool_call_argument_begin|>"}},
    {"mistral", {"[TOOL_CALLS]", "[ARGS]"}},
    {"mistral-list", {"[TOOL_CALLS]"}},
    {"seed-oss", {"<seed:tool_call>"}},
    {"qwen3-coder", {"<tool_call>", "<function=", "<parameter="}},
    {"glm-4.5", {"<tool_call>", "<arg_key>"}},
    {"minimax-m2", {"<minimax:tool_call>"}},
    {"lfm2", {"<|tool_call_start|>"}},
    {"lfm2", {"<|tool_list_start|>"}},
    {"lfm2", {"\"List of tools: [\"", "keep_past_thinking"}},
    {"llama-pythonic", {"tool_call.name + '('"}},
    {"llama3-json", {"\"parameters\": ", "<|start_header_id|>", "\"name\": "}},
    {"llama3-json", {"\"parameters\": ", "<|header_start|>", "\"name\": "}},
    {"command-r", {"<|START_ACTION|>"}},
    {"apertus", {"<|tools_prefix|>"}},
    {"internlm", {"<|action_start|>", "<|plugin|>"}},
    {"tool-call-list", {"<|tool_call|>"}},
    {"nemotron", {"<TOOLCALL>"}},
    {"hermes", {"<tool_call>"}},
    {"tool-calls-list", {"<tool_calls>["}},
    {"olmo3", {"<function_calls>"}},
    {"function-tag", {"<function="}},
};

static bool contains(sl_view text, const char *part) {
    const size_t length = strlen(part);
    if (text.length < length) { /* also where there is no text */
        return false;
    }
    const char *at = text.data, *end = text.data + text.length;
    while ((size_t)(end - at) >= length && (at = memchr(at, part[0], (size_t)(end - at) - length + 1))) {
        if (memcmp(at, part, length) == 0) {
            return true;
        }
        at++;
    }
    return false;
}

const sl_reply_format *sl_reply_format_of_template(sl_view text) {
    for (size_t i = 0; i < sizeof SIGNS / sizeof *SIGNS; i++) {
        bool all = true;
        for (size_t k = 0; k < 3 && SIGNS[i].texts[k]; k++) {
            all = all && contains(text, SIGNS[i].texts[k]);
        }
        if (all) {
            return sl_reply_format_named(SIGNS[i].format);
        }
    }
    return NULL;
}

const sl_reply_format *sl_reply_format_named(const char *name) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (strcmp(FORMATS[i].name, name) == 0) {
            return &FORMATS[i];
        }
    }
    return NULL;
}

const sl_reply_format *sl_reply_format_at(int index) {
    return index >= 0 && (size_t)index < sizeof FORMATS / sizeof *FORMATS ? &FORMATS[index] : NULL;
}

bool sl_reply_format_has_calls(const sl_reply_format *format) {
    return format->name_key || format->marks[SL_REPLY_NAME_CLOSE];
}

/* The longest special token that the text begins with; 0: none. */
static size_t special_at(const sl_tokenizer *tokenizer, const char *text, size_t left) {
    enum { LONGEST = 64 };
    for (size_t length = left < LONGEST ? left : LONGEST; tokenizer && length > 1; length--) {
        const int32_t id = sl_tokenizer_find(tokenizer, (sl_view){text, length});
        if (id >= 0 && sl_tokenizer_token_type(tokenizer, id) == SL_TOKEN_CONTROL) {
            return length;
        }
    }
    return 0;
}

/* Writes the mark with frames, if `to` is there; the length with its NUL. */
static size_t frame(const sl_tokenizer *tokenizer, const char *mark, char *to) {
    size_t at = 0;
    for (size_t left = strlen(mark), step; left > 0; left -= step, mark += step) {
        const size_t special = special_at(tokenizer, mark, left);
        step = special ? special : 1;
        if (to) {
            to[at] = (char)SL_REPLY_FRAME_OPEN;
            memcpy(to + at + (special > 0), mark, step);
            to[at + 1 + step] = (char)SL_REPLY_FRAME_CLOSE;
        }
        at += special ? special + 2 : 1;
    }
    if (to) {
        to[at] = '\0';
    }
    return at + 1;
}

sl_reply_format *sl_reply_format_bind(const sl_reply_format *format, const sl_tokenizer *tokenizer,
                                      const char *think_open, const char *think_close) {
    sl_reply_format with = *format;
    if (!with.marks[SL_REPLY_THINK_OPEN] && think_open && think_close) {
        with.marks[SL_REPLY_THINK_OPEN] = think_open;
        with.marks[SL_REPLY_THINK_CLOSE] = think_close;
    }
    size_t bytes = 3; /* what frame writes past its own end */
    for (int i = 0; i < SL_REPLY_MARKS; i++) {
        bytes += with.marks[i] ? frame(tokenizer, with.marks[i], NULL) : 0;
    }
    sl_reply_format *bound = sl_alloc(sizeof *bound + bytes);
    if (!bound) {
        return NULL;
    }
    *bound = with;
    char *to = (char *)(bound + 1);
    for (int i = 0; i < SL_REPLY_MARKS; i++) {
        if (with.marks[i]) {
            const size_t length = frame(tokenizer, with.marks[i], to);
            bound->marks[i] = to;
            to += length;
        }
    }
    return bound;
}

/* Which chat template a model talks in, through the public interface: files of a Hugging Face folder, names,
 * and formats that need no file. Files and their order: transformers' PreTrainedTokenizerBase. What the
 * formats write: llama.cpp's tests/test-chat-template.cpp for the conversation there, or the model's
 * publisher. */
#include "support/engine.h"
#include "unit/format/bytes.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER SLUICE_BINARY_DIR "/test_chat_templates"
#define MORE FOLDER "/additional_chat_templates"

static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":3,\"content\":\"</s>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
    "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
#define TOKENS "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\""

static void put(const char *name, const char *text) {
    char path[600];
    mkdir(FOLDER, 0777);
    snprintf(path, sizeof path, "%s/%s", FOLDER, name);
    if (text) {
        write_file(path, text, strlen(text));
    } else {
        remove(path);
    }
}

/* A folder with a tokenizer, and nothing else but its configuration (NULL: without templates). */
static void begin_folder(const char *config) {
    put("tokenizer.json", tokenizer_json);
    put("config.json", "{}");
    put("tokenizer_config.json", config ? config : "{" TOKENS "}");
    put("chat_template.jinja", NULL);
    put("chat_template.json", NULL);
    put("additional_chat_templates/tool_use.jinja", NULL);
    put("additional_chat_templates/rag.jinja", NULL);
    put("additional_chat_templates/notes.txt", NULL);
}

static int open_with(const char *name, const char *text, sluice_model **model, sluice_error *error) {
    const sluice_model_options options = {
        .size = sizeof options, .text_only = true, .chat_template = text, .chat_template_name = name};
    return sluice_model_open_with(FOLDER, &options, model, error);
}

/* What a conversation of one message "hi" becomes; freed with sluice_free. */
static char *hi(const sluice_model *model, const char *options) {
    char *text;
    sluice_error error;
    must(sluice_chat_render(model, "[{\"role\":\"user\",\"content\":\"hi\"}]", options, &text, &error),
         &error, "render");
    return text;
}

static void writes(const char *name, const char *options, const char *expected) {
    sluice_model *model;
    sluice_error error;
    must(open_with(name, NULL, &model, &error), &error, "open");
    char *text = hi(model, options);
    assert_string_equal(text, expected);
    sluice_free(text);
    sluice_model_release(model);
}

static void template_files_of_a_folder(void **state) {
    (void)state;
    begin_folder(NULL);
    writes(NULL, NULL, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    put("chat_template.json", "{\"chat_template\":\"processor {{ messages[0].content }}\"}");
    writes(NULL, NULL, "processor hi");
    put("tokenizer_config.json", "{" TOKENS ",\"chat_template\":\"config {{ messages[0].content }}\"}");
    writes(NULL, NULL, "config hi");
    put("chat_template.jinja", "\xef\xbb\xbf{{ bos_token }}file {{ messages[0].content }}");
    writes(NULL, NULL, "<s>file hi");
    put("tokenizer_config.json", NULL);
    writes(NULL, NULL, "file hi");
}

static void named_templates(void **state) {
    (void)state;
    begin_folder("{" TOKENS ",\"chat_template\":[{\"name\":\"default\",\"template\":\"usual\"},"
                 "{\"name\":\"rag\",\"template\":\"with documents\"}]}");
    writes(NULL, NULL, "usual");
    writes("rag", NULL, "with documents");
    mkdir(MORE, 0777);
    put("additional_chat_templates/tool_use.jinja", "{{ (tools or [])|length }} tools");
    put("additional_chat_templates/notes.txt", "no template");
    writes("tool_use", NULL, "0 tools");

    sluice_model *model;
    sluice_error error;
    must(open_with(NULL, NULL, &model, &error), &error, "open");
    assert_string_equal(sluice_chat_template_name(model, 0), "default");
    assert_string_equal(sluice_chat_template_name(model, 1), "rag");
    assert_string_equal(sluice_chat_template_name(model, 2), "tool_use");
    assert_null(sluice_chat_template_name(model, 3));
    assert_null(sluice_chat_template_name(model, -1));
    /* transformers: the one named tool_use when there are tools, and only then. */
    char *text = hi(model, "{\"tools\":[{\"type\":\"function\"}]}");
    assert_string_equal(text, "1 tools");
    sluice_free(text);
    text = hi(model, "{\"tools\":[]}");
    assert_string_equal(text, "usual");
    sluice_free(text);
    sluice_chat_facts facts = {.size = sizeof facts};
    must(sluice_chat_get_facts(model, &facts, &error), &error, "facts");
    assert_string_equal(facts.template_name, "default");
    sluice_model_release(model);
    /* ... and no other was asked for. */
    writes("rag", "{\"tools\":[{\"type\":\"function\"}]}", "with documents");
    begin_folder(NULL);
    rmdir(MORE);
}

static void a_template_of_the_caller(void **state) {
    (void)state;
    begin_folder("{" TOKENS ",\"chat_template\":\"own\"}");
    sluice_model *model;
    sluice_error error;
    char given[] = "{{ bos_token }}given {{ messages[0].content }}";
    must(open_with(NULL, given, &model, &error), &error, "open");
    memset(given, 'x', sizeof given - 1); /* it was copied */
    char *text = hi(model, NULL);
    assert_string_equal(text, "<s>given hi");
    sluice_free(text);
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    assert_string_equal(info.chat_template, "{{ bos_token }}given {{ messages[0].content }}");
    sluice_chat_facts facts = {.size = sizeof facts};
    must(sluice_chat_get_facts(model, &facts, &error), &error, "facts");
    assert_false(facts.builtin);
    assert_null(facts.template_name);
    sluice_model_release(model);
}

static void refuse(const char *name, const char *text, int code, const char *part) {
    sluice_model *model = (sluice_model *)&model;
    sluice_error error;
    assert_int_equal(open_with(name, text, &model, &error), code);
    assert_null(model);
    if (!strstr(error.message, part)) {
        fail_msg("\"%s\" does not say \"%s\"", error.message, part);
    }
}

static void what_is_refused(void **state) {
    (void)state;
    sluice_model *model;
    sluice_error error;
    begin_folder("{" TOKENS ",\"chat_template\":\"{% if %}\"}");
    refuse("nonsense", NULL, SLUICE_ERR_NOT_FOUND,
           "\"nonsense\": the model has default; known formats are chatml, ");
    refuse(NULL, "{% for %}", SLUICE_ERR_FORMAT, "chat template");
    refuse("default", NULL, SLUICE_ERR_FORMAT, "line 1");
    refuse("chatml", "{{ x }}", SLUICE_ERR_INVALID, "exclude each other");
    /* The model's own broken template is an error only of those who chat, and can be replaced. */
    must(open_with(NULL, NULL, &model, &error), &error, "open");
    char *text;
    assert_int_not_equal(sluice_chat_render(model, "[]", NULL, &text, &error), 0);
    sluice_model_release(model);
    writes("zephyr", NULL, "<|user|>\nhi</s>\n<|assistant|>\n");
    put("chat_template.jinja", "\xff");
    refuse(NULL, NULL, SLUICE_ERR_FORMAT, "chat_template.jinja: byte 0 is not UTF-8");
    remove(FOLDER "/chat_template.jinja");
    assert_int_equal(mkfifo(FOLDER "/chat_template.jinja", 0600), 0);
    const int writer = open(FOLDER "/chat_template.jinja", O_RDWR); /* or opening it would wait */
    refuse(NULL, NULL, SLUICE_ERR_IO, "chat_template.jinja");
    close(writer);
    put("chat_template.jinja", NULL);
}

#define SYSTEM "You are a helpful assistant"
static const struct {
    const char *name, *expected;
} FORMATS[] = {
    {"chatml", "<|im_start|>system\n" SYSTEM "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
               "<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nWho are you<|im_end|>\n"
               "<|im_start|>assistant\n   I am an assistant   <|im_end|>\n<|im_start|>user\nAnother "
               "question<|im_end|>\n<|im_start|>assistant\n"},
    {"llama2", "[INST] " SYSTEM "\nHello [/INST]Hi there</s>[INST] Who are you [/INST]   I am an assistant   "
               "</s>[INST] Another question [/INST]"},
    {"llama2-sys-bos", "[INST] <<SYS>>\n" SYSTEM
                       "\n<</SYS>>\n\nHello [/INST] Hi there </s><s>[INST] Who are you [/INST]    I am an "
                       "assistant    </s><s>[INST] Another question [/INST]"},
    {"llama2-sys-strip",
     "[INST] <<SYS>>\n" SYSTEM
     "\n<</SYS>>\n\nHello [/INST] Hi there </s>[INST] Who are you [/INST] I am an assistant "
     "</s>[INST] Another question [/INST]"},
    {"llama3",
     "<|start_header_id|>system<|end_header_id|>\n\n" SYSTEM "<|eot_id|><|start_header_id|>user"
     "<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHi there<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nWho are you<|eot_id|><|start_header_id|>assistant"
     "<|end_header_id|>\n\nI am an assistant<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnother "
     "question<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"mistral-v1",
     " [INST] " SYSTEM "\n\nHello [/INST] Hi there</s> [INST] Who are you [/INST]    I am an assistant   "
     "</s> [INST] Another question [/INST]"},
    {"mistral-v3",
     "[INST] " SYSTEM "\n\nHello[/INST] Hi there</s>[INST] Who are you[/INST] I am an assistant</s>"
     "[INST] Another question[/INST]"},
    {"mistral-v3-tekken",
     "[INST]" SYSTEM "\n\nHello[/INST]Hi there</s>[INST]Who are you[/INST]   I am an assistant   "
     "</s>[INST]Another question[/INST]"},
    {"mistral-v7",
     "[SYSTEM_PROMPT] " SYSTEM "[/SYSTEM_PROMPT][INST] Hello[/INST] Hi there</s>[INST] Who are you[/INST] "
     "   I am an assistant   </s>[INST] Another question[/INST]"},
    {"mistral-v7-tekken",
     "[SYSTEM_PROMPT]" SYSTEM "[/SYSTEM_PROMPT][INST]Hello[/INST]Hi there</s>[INST]Who are "
     "you[/INST]   I am an assistant   </s>[INST]Another question[/INST]"},
    {"gemma",
     "<start_of_turn>user\n" SYSTEM "\n\nHello<end_of_turn>\n<start_of_turn>model\nHi there<end_of_turn>\n"
     "<start_of_turn>user\nWho are you<end_of_turn>\n<start_of_turn>model\nI am an assistant<end_of_turn>\n"
     "<start_of_turn>user\nAnother question<end_of_turn>\n<start_of_turn>model\n"},
    {"phi3", "<|system|>\n" SYSTEM
             "<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\nHi there<|end|>\n<|user|>\nWho are "
             "you<|end|>\n<|assistant|>\n   I am an assistant   <|end|>\n<|user|>\nAnother question<|end|>\n"
             "<|assistant|>\n"},
    {"vicuna",
     SYSTEM "\n\nUSER: Hello\nASSISTANT: Hi there</s>\nUSER: Who are you\nASSISTANT:    I am an assistant   "
            "</s>\nUSER: Another question\nASSISTANT:"},
    {"deepseek",
     SYSTEM "### Instruction:\nHello\n### Response:\nHi there\n<|EOT|>\n### Instruction:\nWho are you\n"
            "### Response:\n   I am an assistant   \n<|EOT|>\n### Instruction:\nAnother question\n"
            "### Response:\n"},
    {"deepseek2",
     SYSTEM "\n\nUser: Hello\n\nAssistant: Hi there</s>User: Who are you\n\nAssistant:    I am an "
            "assistant   </s>User: Another question\n\nAssistant:"},
    {"command-r",
     "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>" SYSTEM "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
     "<|USER_TOKEN|>Hello<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hi there"
     "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Who are you<|END_OF_TURN_TOKEN|>"
     "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>I am an assistant<|END_OF_TURN_TOKEN|>"
     "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Another question<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
     "<|CHATBOT_TOKEN|>"},
    {"granite",
     "<|start_of_role|>system<|end_of_role|>" SYSTEM "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>"
     "Hello<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>Hi there<|end_of_text|>\n"
     "<|start_of_role|>user<|end_of_role|>Who are you<|end_of_text|>\n<|start_of_role|>assistant"
     "<|end_of_role|>   I am an assistant   <|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Another "
     "question<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"},
};

static void well_known_formats(void **state) {
    (void)state;
    static const char conversation[] =
        "[{\"role\":\"system\",\"content\":\"" SYSTEM "\"},{\"role\":\"user\",\"content\":\"Hello\"},"
        "{\"role\":\"assistant\",\"content\":\"Hi there\"},{\"role\":\"user\",\"content\":\"Who are you\"},"
        "{\"role\":\"assistant\",\"content\":\"   I am an assistant   \"},"
        "{\"role\":\"user\",\"content\":\"Another question\"}]";
    begin_folder("{" TOKENS ",\"chat_template\":\"own\"}");
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        sluice_model *model;
        sluice_error error;
        char *text;
        must(open_with(FORMATS[i].name, NULL, &model, &error), &error, FORMATS[i].name);
        must(sluice_chat_render(model, conversation, NULL, &text, &error), &error, FORMATS[i].name);
        if (strcmp(text, FORMATS[i].expected) != 0) {
            fail_msg("%s: \"%s\", not \"%s\"", FORMATS[i].name, text, FORMATS[i].expected);
        }
        sluice_free(text);
        sluice_model_release(model);
    }
    /* All of them compile, and write what they are given. */
    for (int i = 0; sluice_chat_format_name(i); i++) {
        sluice_model *model;
        sluice_error error;
        must(open_with(sluice_chat_format_name(i), NULL, &model, &error), &error, sluice_chat_format_name(i));
        char *text = hi(model, NULL);
        assert_non_null(strstr(text, "hi"));
        sluice_free(text);
        sluice_chat_facts facts = {.size = sizeof facts};
        must(sluice_chat_get_facts(model, &facts, &error), &error, "facts");
        assert_string_equal(facts.template_name, sluice_chat_format_name(i));
        assert_false(facts.builtin);
        sluice_model_release(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(template_files_of_a_folder), cmocka_unit_test(named_templates),
        cmocka_unit_test(a_template_of_the_caller),   cmocka_unit_test(what_is_refused),
        cmocka_unit_test(well_known_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

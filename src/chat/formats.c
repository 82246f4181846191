#include "chat/formats.h"

#include <stddef.h>
#include <string.h>

#define EACH "{%- for m in messages %}"
#define END "{%- endfor %}"
#define IF_OPEN "{%- if add_generation_prompt %}"
#define END_IF "{%- endif %}"

/* Mistral's turns, which begin with [INST] and end with the answer: mistral-common's instruct tokenizers 1
 * to 7. A system message of versions 1 to 3 stands in front of the first question. */
#define MISTRAL(before, behind, close, answer)                                                               \
    "{%- set turn = namespace(open=false) %}" EACH "{%- if not turn.open %}{{- '" before "[INST]" behind     \
    "' }}{%- set turn.open = true %}{%- endif %}"                                                            \
    "{%- if m.role == 'system' %}{{- m.content + '\\n\\n' }}"                                                \
    "{%- elif m.role == 'user' %}{{- m.content + '" close "' }}"                                             \
    "{%- else %}{{- '" behind "' + " answer " + eos_token }}{%- set turn.open = false %}{%- endif %}" END
#define MISTRAL_7(space)                                                                                     \
    EACH "{%- if m.role == 'system' %}{{- '[SYSTEM_PROMPT]" space "' + m.content + '[/SYSTEM_PROMPT]' }}"    \
         "{%- elif m.role == 'user' %}{{- '[INST]" space "' + m.content + '[/INST]' }}"                      \
         "{%- else %}{{- '" space "' + m.content + eos_token }}{%- endif %}" END

/* Llama 2's turns. A system message stands inside the first question; turns after the first begin with
 * `again`.
 */
#define LLAMA_2(again, system, content, around)                                                              \
    "{%- set turn = namespace(open=true) %}{{- '[INST] ' }}" EACH "{%- if not turn.open %}{{- " again        \
    "'[INST] ' }}{%- set turn.open = true %}{%- endif %}"                                                    \
    "{%- if m.role == 'system' %}{{- " system " }}"                                                          \
    "{%- elif m.role == 'user' %}{{- " content " + ' [/INST]' }}"                                            \
    "{%- else %}{{- '" around "' + " content " + '" around "' + eos_token }}"                                \
    "{%- set turn.open = false %}{%- endif %}" END

/* Each as the model's publisher describes it; the names are llama.cpp's (llama_chat_builtin_templates). */
static const struct {
    const char *name, *source;
} formats[] = {
    {"chatml", EACH "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}" END IF_OPEN
                    "{{- '<|im_start|>assistant\\n' }}" END_IF},
    {"llama2", LLAMA_2("", "'' + m.content + '\\n'", "m.content", "")},
    {"llama2-sys-bos",
     LLAMA_2("bos_token + ", "'<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n'", "m.content", " ")},
    {"llama2-sys-strip",
     LLAMA_2("", "'<<SYS>>\\n' + m.content | trim + '\\n<</SYS>>\\n\\n'", "m.content | trim", " ")},
    {"llama3", EACH "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + "
                    "'<|eot_id|>' }}" END IF_OPEN
                    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}" END_IF},
    {"mistral-v1", MISTRAL(" ", " ", " [/INST]", "m.content")},
    {"mistral-v3", MISTRAL("", " ", "[/INST]", "m.content | trim")},
    {"mistral-v3-tekken", MISTRAL("", "", "[/INST]", "m.content")},
    {"mistral-v7", MISTRAL_7(" ")},
    {"mistral-v7-tekken", MISTRAL_7("")},
    {"gemma", "{%- set system = namespace(text='') %}" EACH
              "{%- if m.role == 'system' %}{%- set system.text = m.content | trim + '\\n\\n' %}"
              "{%- else %}{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + "
              "system.text + "
              "m.content | trim + '<end_of_turn>\\n' }}{%- set system.text = '' %}{%- endif %}" END IF_OPEN
              "{{- '<start_of_turn>model\\n' }}" END_IF},
    {"phi3", EACH "{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}" END IF_OPEN
                  "{{- '<|assistant|>\\n' }}" END_IF},
    {"phi4", EACH "{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}" END IF_OPEN
                  "{{- '<|im_start|>assistant<|im_sep|>' }}" END_IF},
    {"falcon3", EACH "{{- '<|' + m.role + '|>\\n' + m.content + '\\n' }}" END IF_OPEN
                     "{{- '<|assistant|>\\n' }}" END_IF},
    {"zephyr", EACH "{{- '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}" END IF_OPEN
                    "{{- '<|assistant|>\\n' }}" END_IF},
    {"vicuna", EACH "{%- if m.role == 'system' %}{{- m.content + '\\n\\n' }}"
                    "{%- elif m.role == 'user' %}{{- 'USER: ' + m.content + '\\n' }}"
                    "{%- else %}{{- 'ASSISTANT: ' + m.content + eos_token + '\\n' }}{%- endif %}" END IF_OPEN
                    "{{- 'ASSISTANT:' }}" END_IF},
    {"deepseek",
     EACH "{%- if m.role == 'system' %}{{- m.content }}"
          "{%- elif m.role == 'user' %}{{- '### Instruction:\\n' + m.content + '\\n' }}"
          "{%- else %}{{- '### Response:\\n' + m.content + '\\n<|EOT|>\\n' }}{%- endif %}" END IF_OPEN
          "{{- '### Response:\\n' }}" END_IF},
    {"deepseek2", EACH "{%- if m.role == 'system' %}{{- m.content + '\\n\\n' }}"
                       "{%- elif m.role == 'user' %}{{- 'User: ' + m.content + '\\n\\n' }}"
                       "{%- else %}{{- 'Assistant: ' + m.content + eos_token }}{%- endif %}" END IF_OPEN
                       "{{- 'Assistant:' }}" END_IF},
    {"deepseek3",
     EACH "{%- if m.role == 'system' %}{{- m.content }}"
          "{%- elif m.role == 'user' %}{{- '<\xef\xbd\x9cUser\xef\xbd\x9c>' + m.content }}"
          "{%- else %}{{- '<\xef\xbd\x9c"
          "Assistant\xef\xbd\x9c>' + m.content + eos_token }}{%- endif %}" END IF_OPEN "{{- '<\xef\xbd\x9c"
          "Assistant\xef\xbd\x9c>' }}" END_IF},
    {"command-r", EACH "{{- '<|START_OF_TURN_TOKEN|><|' + {'system': 'SYSTEM', 'user': 'USER', 'assistant': "
                       "'CHATBOT'}[m.role] + "
                       "'_TOKEN|>' + m.content | trim + '<|END_OF_TURN_TOKEN|>' }}" END IF_OPEN
                       "{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}" END_IF},
    {"granite", EACH
     "{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' }}" END IF_OPEN
     "{{- '<|start_of_role|>assistant<|end_of_role|>' }}" END_IF},
};

const char *sl_chat_format_source(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) == 0) {
            return formats[i].source;
        }
    }
    return NULL;
}

const char *sl_chat_format_name(int index) {
    return index >= 0 && (size_t)index < sizeof formats / sizeof *formats ? formats[index].name : NULL;
}

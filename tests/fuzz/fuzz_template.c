/* Chat templates: any bytes as a template, rendered with a fixed conversation under small limits. */
#include "chat/template.h"

#include <stdio.h>
#include <stdlib.h>

static json_t *variables(void) {
    static json_t *made;
    if (!made) {
        made = json_loads(
            "{\"messages\":[{\"role\":\"system\",\"content\":\" s\\n\"},{\"role\":\"user\",\"content\":"
            "\"Gr\\u00f6\\u00dfe \\ud83d\\ude00\"},{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\","
            "\"arguments\":{\"a\":[1,2.5,null,true]}}]}],\"tools\":null,\"i\":7,\"s\":\"Hello World\","
            "\"l\":[3,1,2],\"d\":{\"b\":1,\"a\":2},\"bos_token\":\"<s>\",\"add_generation_prompt\":true}",
            0, NULL);
    }
    return made;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    sl_template_limits limits = {.output_bytes = 1 << 16, .memory_bytes = 1 << 22, .steps = 100000};
    sl_template *compiled;
    sl_error error;
    if (sl_template_compile((const char *)data, size, "fuzz", &compiled, &error) == 0) {
        sl_buffer out = {0};
        int code = sl_template_render(compiled, variables(), &limits, &out, &error);
        if (code && out.length) { /* a failed rendering leaves nothing behind */
            fprintf(stderr, "%zu bytes are left after: %s\n", out.length, error.message);
            abort();
        }
        sl_buffer_free(&out);
        sl_template_free(compiled);
    }
    return 0;
}

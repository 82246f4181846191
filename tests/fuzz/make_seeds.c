/* Writes one small valid file for each fuzzer into FOLDER/<fuzzer>/: make_seeds FOLDER. */
#include "format/gguf_writer.h"
#include "unit/format/bytes.h"

#include <sys/stat.h>

static void write_seed(const char *folder, const char *fuzzer, const void *data, size_t size) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, fuzzer);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/valid", folder, fuzzer);
    write_file(path, data, size);
}

static int write_gguf(const char *folder) {
    char path[1024];
    sl_gguf_writer *writer = NULL;
    sl_error error = {0};
    const float values[32] = {1};
    const sl_view words[] = {sl_view_of("a"), sl_view_of("bc")};
    const sl_gguf_items items = {SL_GGUF_STRING, words, 2};
    const sl_gguf_shape shape = {SL_QTYPE_F32, 2, {8, 4}};
    write_seed(folder, "fuzz_gguf", "", 0);
    snprintf(path, sizeof path, "%s/fuzz_gguf/valid", folder);
    int code = sl_gguf_writer_create(path, &writer, &error);
    code = code ? code : sl_gguf_writer_string(writer, "general.architecture", sl_view_of("llama"), &error);
    code = code ? code : sl_gguf_writer_unsigned(writer, "llama.block_count", SL_GGUF_U32, 2, &error);
    code = code ? code : sl_gguf_writer_float(writer, "llama.rope.freq_base", SL_GGUF_F32, 10000, &error);
    code = code ? code : sl_gguf_writer_array(writer, "tokenizer.ggml.tokens", &items, &error);
    code = code ? code : sl_gguf_writer_tensor(writer, "token_embd.weight", &shape, &error);
    code = code ? code : sl_gguf_writer_begin(writer, NULL, &error);
    code = code ? code : sl_gguf_writer_data(writer, values, sizeof values, &error);
    code = code ? code : sl_gguf_writer_finish(writer, &error);
    sl_gguf_writer_free(writer);
    if (code) {
        fprintf(stderr, "%s\n", error.message);
    }
    return code;
}

int main(int count, char **arguments) {
    static const char tokenizer[] =
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<e>\",\"special\":true}],\"normalizer\":{\"type\":"
        "\"NFC\"},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":"
        "2,\"c\":3},"
        "\"merges\":[\"a b\"]}}\0abc<e>";
    static const char template[] =
        "{%- for m in messages if m.role != 'system' %}{{ loop.index0 ~ m['content'] | trim }}{% else %}-{% "
        "endfor %}"
        "{% macro f(x, y=2) %}{{ x + y }}{% endmacro %}{% set n = namespace(a=1) %}{{ f(i)[::-1] }}";
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"\\ud83e\\udd17\"}]},"
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":"
        "\"f\","
        "\"arguments\":\"{}\"}}]}],\"temperature\":0.5,\"max_tokens\":3,\"stop\":[\"x\"],\"a\":-1e-7}";
    static const float values[8] = {1};
    if (count != 2) {
        return 2;
    }
    const char *folder = arguments[1];
    mkdir(folder, 0777);
    bytes file = {0};
    put_safetensors(
        &file,
        "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":"
        "[0,24]},\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}",
        values, sizeof values);
    write_seed(folder, "fuzz_safetensors", file.data, file.size);
    write_seed(folder, "fuzz_tokenizer", tokenizer, sizeof tokenizer - 1);
    write_seed(folder, "fuzz_template", template, sizeof template - 1);
    write_seed(folder, "fuzz_body", body, sizeof body - 1);
    free(file.data);
    return write_gguf(folder) ? 1 : 0;
}

/* Writes small files to begin with for each fuzzer into FOLDER/<fuzzer>/: make_seeds FOLDER. */
#include "format/gguf_writer.h"
#include "unit/format/bytes.h"

#include <sys/stat.h>

static void write_named(const char *folder, const char *fuzzer, const char *name, sl_view seed) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, fuzzer);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", folder, fuzzer, name);
    write_file(path, seed.data, seed.length);
}

static void write_seed(const char *folder, const char *fuzzer, const void *data, size_t size) {
    write_named(folder, fuzzer, "valid", (sl_view){data, size});
}

#define SEED(name, bytes)                                                                                    \
    {                                                                                                        \
        name, {                                                                                              \
            bytes, sizeof bytes - 1                                                                          \
        }                                                                                                    \
    }

/* What servers are told apart by. Flags and cuts in front, see fuzz_http.c. */
static void write_http(const char *folder) {
#define H "Host: localhost\r\n"
    static const struct {
        const char *name;
        sl_view bytes;
    } SEEDS[] = {
        SEED("valid", "\0\0GET /health HTTP/1.1\r\n" H "\r\n"),
        SEED("pipelined", "\1\1\x30\x80GET /health HTTP/1.1\r\n" H "\r\nGET /items/a%20b?q=1&r HTTP/1.1\r\n" H
                          "User-Agent: x\r\n\r\nGET /stream?q=two HTTP/1.1\r\n" H "\r\n"),
        SEED("length",
             "\0\2\x20\0\x60\x80POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhelloGET /health "
             "HTTP/1.1\r\n" H "\r\n"),
        SEED("chunked",
             "\1\1\x60\x80POST /echo HTTP/1.1\r\n" H
             "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /health HTTP/1.1\r\n" H "\r\n"),
        SEED("chunk_extension",
             "\0\0POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello"
             "\r\n0\r\nTrailer: x\r\n\r\n"),
        SEED("chunk_sizes", "\0\0POST /echo HTTP/1.1\r\n" H
                            "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhello\r\n-1\r\n\r\n"),
        SEED("expect",
             "\0\1\x50\x80POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi"),
        SEED("head", "\0\0HEAD /health HTTP/1.1\r\n" H "\r\nHEAD /stream HTTP/1.1\r\n" H "\r\n"),
        SEED("options", "\0\0OPTIONS * HTTP/1.1\r\n" H "\r\nOPTIONS /echo HTTP/1.1\r\n" H
                        "Origin: http://localhost\r\nAccess-Control-Request-Method: POST\r\n\r\n"),
        SEED("old", "\1\0GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /stream HTTP/1.0\r\n\r\n"),
        SEED("bare_lf", "\0\0GET /health HTTP/1.1\nHost: localhost\n\nGET /health HTTP/1.1\n" H "\n"),
        SEED("folded", "\0\0GET /health HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H
                       "Content-Length:\r\n 4\r\n\r\nbody"),
        SEED("two_lengths", "\0\0GET /health HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H
                            "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody"),
        SEED("length_and_coding", "\0\0GET /health HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H
                                  "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        SEED("lengths_in_one", "\0\0GET /health HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H
                               "Content-Length: 4, 4\r\n\r\nbody"),
        SEED("blank_colon", "\0\0GET /health HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H
                            "Content-Length : 4\r\n\r\nbody"),
        SEED("other_coding", "\0\0GET /health HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H
                             "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        SEED("nul", "\0\0GET /hea\0lth HTTP/1.1\r\n" H "X: a\0b\r\n\r\nGET /health HTTP/1.1\r\n" H
                    "X: a\0b\r\n\r\n"),
        SEED("tls", "\0\0\x16\3\1\0\x45\1\0\0\x41\3\3\0\0\0\0\0\0\0\0\0\0"),
        SEED("http2", "\0\0PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        SEED("leaves", "\3\0POST /echo HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\nbody"),
        SEED("too_large", "\0\0POST /echo HTTP/1.1\r\n" H "Content-Length: 99999999\r\n\r\nbody"),
    };
#undef H
    for (size_t i = 0; i < sizeof SEEDS / sizeof *SEEDS; i++) {
        write_named(folder, "fuzz_http", SEEDS[i].name, SEEDS[i].bytes);
    }
    static char large[30000];
    size_t at = 2 + (size_t)sprintf(large + 2, "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
    memset(large + at, 'a', sizeof large - at - 4);
    memcpy(large + sizeof large - 4, "\r\n\r\n", 4);
    write_named(folder, "fuzz_http", "large_head", (sl_view){large, sizeof large});
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

/* The format's number, flags, the size of pieces and the reply: fuzz_reply.c. */
static void write_replies(const char *folder) {
    static const struct {
        const char *name;
        sl_view bytes;
    } SEEDS[] = {
        SEED("valid", "\x19\1\2<think>a</think>b\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": "
                      "\"x\", \"n\": [1, {}]}}\n</tool_call>"),
        SEED("tagged", "\xa\1\3<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=n>\n1\n"
                       "</parameter>\n</function>\n</tool_call>"),
        SEED("pythonic", "\xe\1\1<|tool_call_start|>[f(s='a\\'', n=None, m={'k': [True]})]<|tool_call_end|>"),
        SEED("bare", "\1\1\1<|tool_call>call:f{s:<|\"|>x<|\"|>,n:[1,{a:true}]}<tool_call|>"),
        SEED("harmony", "\0\1\1<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
                        "to=functions.f <|constrain|>json<|message|>{\"n\":1}<|call|>"),
    };
    for (size_t i = 0; i < sizeof SEEDS / sizeof *SEEDS; i++) {
        write_named(folder, "fuzz_reply", SEEDS[i].name, SEEDS[i].bytes);
    }
}

/* A schema for each of the standard's groups of keywords. */
static void write_schemas(const char *folder) {
    static const struct {
        const char *name;
        sl_view bytes;
    } SEEDS[] = {
        SEED("object", "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3,"
                       "\"multipleOf\":2},\"b\":{\"enum\":[1,\"x\",[2],null]}},\"required\":[\"a\"],"
                       "\"patternProperties\":{\"^p\":{\"maxLength\":2}},\"minProperties\":1}"),
        SEED("array", "{\"prefixItems\":[{\"type\":\"string\",\"format\":\"ipv4\"}],\"items\":{\"type\":["
                      "\"number\",\"null\"],\"exclusiveMaximum\":0.5},\"minItems\":1,\"maxItems\":99}"),
        SEED("combined",
             "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"oneOf\":[{\"required\":[\"x\"]},{"
             "\"not\":{\"type\":\"object\"}},{\"properties\":{\"x\":{\"$ref\":\"#\"}},"
             "\"additionalProperties\":false}]}},\"if\":{\"const\":3},\"then\":{\"allOf\":[true]}}"),
        SEED("names",
             "{\"type\":\"object\",\"minProperties\":3,\"maxProperties\":5,\"properties\":{\"aa\":true},"
             "\"propertyNames\":{\"pattern\":\"^[ab\\\\n/]{1,2}$\"},\"additionalProperties\":{\"const\":1}}"),
        SEED("unique", "{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"uniqueItems\":true,\"contains\":{},"
                       "\"dependentRequired\":{\"a\":[\"b\"]},\"unevaluatedProperties\":false}"),
    };
    for (size_t i = 0; i < sizeof SEEDS / sizeof *SEEDS; i++) {
        write_named(folder, "fuzz_schema", SEEDS[i].name, SEEDS[i].bytes);
    }
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
    static const char gbnf[] =
        "\1\2root ::= (\"a\" b{1,3} | [^a-c\\n]*) root? # c\nb ::= \"x\\x41\" | .+ | <[256]>";
    static const char regex[] = "\1\2^(?:a|[^b-d\\\\]{2,5}?)*(\\d+|\\x41)+.$";
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
    write_seed(folder, "fuzz_gbnf", gbnf, sizeof gbnf - 1);
    write_seed(folder, "fuzz_regex", regex, sizeof regex - 1);
    write_replies(folder);
    write_schemas(folder);
    write_http(folder);
    free(file.data);
    return write_gguf(folder) ? 1 : 0;
}

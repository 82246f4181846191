/* GGUF files of every family, written here, taken apart, and put together again with one thing wrong. */
#include "cases.h"

#include "model/config_fields.h"
#include "quant/qtype.h"

#include <math.h>
#include <stdio.h>

#define FILE_NAME "broken.gguf"
#define VALID_NAME "valid.gguf"

static void must(int result, const sl_error *error, const char *what) {
    if (result) {
        fprintf(stderr, "%s: %s\n", what, error->message);
        exit(2);
    }
}

/* ---- valid files ---- */

static size_t put_utf8(char *to, uint32_t c) {
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    to[0] = (char)(0xc0 | c >> 6);
    to[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* The character that stands for a byte in byte-level vocabularies (GPT-2's bytes_to_unicode). */
static uint32_t byte_character(int byte) {
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174) {
        return (uint32_t)byte;
    }
    return 256 + (uint32_t)(byte <= 32 ? byte : byte <= 160 ? byte - 127 + 33 : 67);
}

enum { TOKENS = 264 };

typedef struct vocabulary {
    char text[TOKENS][16];
    sl_view view[TOKENS];
    float score[TOKENS];
    int32_t type[TOKENS];
} vocabulary;

static void name_token(vocabulary *v, int id, const char *text, int type) {
    snprintf(v->text[id], sizeof v->text[id], "%s", text);
    v->type[id] = type;
    v->score[id] = (float)-id;
}

static void make_vocabulary(vocabulary *v, bool byte_level) {
    memset(v, 0, sizeof *v);
    if (byte_level) {
        for (int byte = 0; byte < 256; byte++) {
            v->text[byte][put_utf8(v->text[byte], byte_character(byte))] = 0;
            v->type[byte] = 1;
        }
        static const char *const more[] = {"ab", "abc", "\304\240a", "xy", "yz"};
        for (int i = 0; i < 5; i++) {
            name_token(v, 256 + i, more[i], 1);
        }
        name_token(v, 261, "<|im_start|>", 3);
        name_token(v, 262, "<|im_end|>", 3);
        name_token(v, 263, "<|endoftext|>", 3);
    } else {
        name_token(v, 0, "<unk>", 2);
        name_token(v, 1, "<s>", 3);
        name_token(v, 2, "</s>", 3);
        for (int byte = 0; byte < 256; byte++) {
            char text[16];
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
            name_token(v, 3 + byte, text, 6);
        }
        static const char *const more[] = {"\xe2\x96\x81", "a", "b", "ab", "\342\226\201a"};
        for (int i = 0; i < 5; i++) {
            name_token(v, 259 + i, more[i], 1);
        }
    }
    for (int i = 0; i < TOKENS; i++) {
        v->view[i] = sl_view_of(v->text[i]);
    }
}

static int write_tokenizer(sl_gguf_writer *w, bool byte_level, sl_error *error) {
    static vocabulary v;
    make_vocabulary(&v, byte_level);
    const sl_view merges[] = {sl_view_of("a b"), sl_view_of("ab c"), sl_view_of("\xc4\xa0 a"),
                              sl_view_of("x y"), sl_view_of("y z")};
    const sl_gguf_items tokens = {SL_GGUF_STRING, v.view, TOKENS}, scores = {SL_GGUF_F32, v.score, TOKENS},
                        types = {SL_GGUF_I32, v.type, TOKENS}, pairs = {SL_GGUF_STRING, merges, 5};
    const uint64_t bos = byte_level ? 263 : 1, eos = byte_level ? 262 : 2;
    int r =
        sl_gguf_writer_string(w, "tokenizer.ggml.model", sl_view_of(byte_level ? "gpt2" : "llama"), error);
    r = r ? r
          : sl_gguf_writer_string(w, "tokenizer.ggml.pre", sl_view_of(byte_level ? "qwen2" : "default"),
                                  error);
    r = r ? r : sl_gguf_writer_array(w, "tokenizer.ggml.tokens", &tokens, error);
    r = r ? r : sl_gguf_writer_array(w, "tokenizer.ggml.token_type", &types, error);
    r = r ? r
          : sl_gguf_writer_array(w, byte_level ? "tokenizer.ggml.merges" : "tokenizer.ggml.scores",
                                 byte_level ? &pairs : &scores, error);
    r = r ? r : sl_gguf_writer_unsigned(w, "tokenizer.ggml.bos_token_id", SL_GGUF_U32, bos, error);
    r = r ? r : sl_gguf_writer_unsigned(w, "tokenizer.ggml.eos_token_id", SL_GGUF_U32, eos, error);
    r = r ? r : sl_gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", !byte_level, error);
    return r ? r
             : sl_gguf_writer_string(w, "tokenizer.chat_template",
                                     sl_view_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
                                                "{% endfor %}"),
                                     error);
}

typedef struct job {
    sl_gguf_writer *writer;
    sl_qtype matrices;
    bool begun;
    uint64_t state;
} job;

static int put_tensor(void *context, const sl_gguf_tensor_fact *t, sl_error *error) {
    job *j = context;
    sl_gguf_shape shape = {t->vector ? SL_QTYPE_F32 : j->matrices, t->dim_count, {0}};
    uint64_t elements = 1, size;
    for (uint32_t d = 0; d < t->dim_count; d++) {
        shape.dims[d] = t->dims[d];
        elements *= t->dims[d];
    }
    if (!j->begun) {
        return sl_gguf_writer_tensor(j->writer, t->name, &shape, error);
    }
    sl_qtype_bytes(shape.type, elements, &size);
    unsigned char *data = malloc(size);
    for (uint64_t i = 0; i + 3 < size; i += 4) { /* floats from 1/16 to 1/4, in Q8_0 scales of that order */
        const uint32_t value =
            0x3d800000u + (uint32_t)((j->state = j->state * 6364136223846793005u + 1) >> 40) % 0x1000000u;
        const uint32_t packed = shape.type == SL_QTYPE_F32 ? value : 0x24002400u | (value & 0x00ff00ffu);
        memcpy(data + i, &packed, 4);
    }
    const int code = sl_gguf_writer_data(j->writer, data, size, error);
    free(data);
    return code;
}

static void small_config(sl_config *c, const char *family) {
    sl_config_init(c, sl_family_find(family), SL_NAMING_GGUF);
    c->layers = 2;
    c->width = c->feed_forward = 32;
    c->heads = 2;
    c->kv_heads = 1;
    c->head_size = c->rope_dims = 16;
    c->vocabulary = TOKENS;
    c->context = 64;
    c->attention_scale = 0.25;
    c->tied = true;
    if (c->family->experts) {
        c->experts = 4;
        c->experts_used = 2;
        c->expert_width = 32;
        c->shared_width = c->family->shared == SL_SHARED_NONE ? 0 : 32;
    }
    if (c->family->delta) {
        c->delta_key_heads = c->delta_value_heads = 2;
        c->delta_key_size = c->delta_value_size = 16;
        c->delta_taps = 4;
        c->delta_tiled = c->family->gguf_tiled;
        c->kinds[0] = SL_LAYER_DELTA;
        c->rope_dims = 8;
    }
    if (c->family->pattern == SL_PATTERN_CONV_LISTED) {
        c->short_conv_taps = 3;
        c->kinds[0] = SL_LAYER_CONV;
    }
    if (c->family->local_rope || c->family->sinks) {
        c->window = 8;
        c->kinds[0] = SL_LAYER_WINDOW;
    }
}

static void write_valid(const char *family, sl_qtype matrices) {
    static sl_config config;
    job j = {.matrices = matrices, .state = 1};
    sl_error error;
    small_config(&config, family);
    must(sl_gguf_writer_create(VALID_NAME, &j.writer, &error), &error, family);
    must(sl_config_write_gguf_metadata(&config, j.writer, &error), &error, family);
    must(write_tokenizer(j.writer, strncmp(family, "qwen", 4) == 0, &error), &error, family);
    must(sl_config_tensors(&config, put_tensor, &j, &error), &error, family);
    must(sl_gguf_writer_begin(j.writer, NULL, &error), &error, family);
    j.begun = true;
    must(sl_config_tensors(&config, put_tensor, &j, &error), &error, family);
    must(sl_gguf_writer_finish(j.writer, &error), &error, family);
    sl_gguf_writer_free(j.writer);
}

/* ---- a file in parts ---- */

enum { PARTS = 128, DIMS = 8 };

typedef struct entry {
    const char *key;
    size_t key_length;
    uint32_t type;
    const void *raw; /* the value; for arrays with its item type and count */
    size_t size;
} entry;

typedef struct tensor {
    const char *name;
    size_t name_length;
    uint32_t dim_count, written_dims; /* as declared; as many as are there */
    uint64_t dims[DIMS];
    uint32_t type;
    uint64_t offset;
} tensor;

typedef struct parts {
    uint32_t version;
    uint64_t entry_count, tensor_count; /* as declared */
    entry entries[PARTS];
    int entries_there;
    tensor tensors[PARTS];
    int tensors_there;
    uint64_t alignment;
    const unsigned char *data;
    size_t data_size;
} parts;

static void assemble(const parts *p, bytes *out) {
    out->size = 0;
    put_header(out, p->version, p->tensor_count, p->entry_count);
    for (int i = 0; i < p->entries_there; i++) {
        put_u64(out, p->entries[i].key_length);
        put_bytes(out, p->entries[i].key, p->entries[i].key_length);
        put_u32(out, p->entries[i].type);
        put_bytes(out, p->entries[i].raw, p->entries[i].size);
    }
    for (int i = 0; i < p->tensors_there; i++) {
        const tensor *t = &p->tensors[i];
        put_u64(out, t->name_length);
        put_bytes(out, t->name, t->name_length);
        put_u32(out, t->dim_count);
        for (uint32_t d = 0; d < t->written_dims; d++) {
            put_u64(out, t->dims[d]);
        }
        put_u32(out, t->type);
        put_u64(out, t->offset);
    }
    put_zeros_to(out, 32);
    put_bytes(out, p->data, p->data_size);
}

/* Borrows from the open file. */
static void take_apart(const sl_gguf *g, const bytes *whole, parts *p) {
    memset(p, 0, sizeof *p);
    p->version = 3;
    p->alignment = sl_gguf_alignment(g);
    p->entry_count = sl_gguf_entry_count(g);
    p->tensor_count = sl_gguf_tensor_count(g);
    const unsigned char *first = NULL, *map = whole->data;
    for (uint64_t i = 0; i < p->entry_count; i++) {
        const sl_gguf_entry *e = sl_gguf_entry_at(g, i);
        const size_t before = e->type == SL_GGUF_ARRAY ? 12 : 0;
        p->entries[p->entries_there++] =
            (entry){e->key, strlen(e->key), e->type, e->data - before, (size_t)e->bytes + before};
    }
    for (uint64_t i = 0; i < p->tensor_count; i++) {
        const unsigned char *data = sl_gguf_tensor_at(g, i)->data;
        first = !first || data < first ? data : first;
    }
    p->data = first;
    p->data_size = whole->size - (size_t)(first - map);
    for (uint64_t i = 0; i < p->tensor_count; i++) {
        const sl_tensor *t = sl_gguf_tensor_at(g, i);
        tensor *to = &p->tensors[p->tensors_there++];
        *to = (tensor){.name = t->name,
                       .name_length = strlen(t->name),
                       .dim_count = t->dim_count,
                       .written_dims = t->dim_count,
                       .type = sl_qtype_get(t->type)->gguf_type,
                       .offset = (uint64_t)((const unsigned char *)t->data - first)};
        memcpy(to->dims, t->dims, sizeof t->dims);
    }
}

typedef struct mill {
    suite *s;
    const char *family;
    parts whole, changed;
    bytes out;
} mill;

static void run_bytes(mill *m, const void *data, size_t size, const char *what) {
    char name[256];
    snprintf(name, sizeof name, "gguf %s %s", m->family, what);
    put_file(FILE_NAME, data, size);
    run_case(m->s, FILE_NAME, name);
}

static void run_changed(mill *m, const char *part, const char *what) {
    char name[200];
    snprintf(name, sizeof name, "%s: %s", part, what);
    assemble(&m->changed, &m->out);
    run_bytes(m, m->out.data, m->out.size, name);
}

/* ---- metadata values ---- */

typedef struct value {
    char name[32];
    uint32_t type;
    bytes raw;
} value;

enum { VALUES = 96 };
static value values[VALUES];
static int value_count;

static bytes *new_value(const char *name, uint32_t type) {
    value *v = &values[value_count++];
    snprintf(v->name, sizeof v->name, "%s", name);
    v->type = type;
    return &v->raw;
}

static void number_value(sl_gguf_type type, uint64_t bits) {
    char name[32];
    snprintf(name, sizeof name, "%s 0x%llx", sl_gguf_type_text(type), (unsigned long long)bits);
    put_number(new_value(name, type), bits, (int)sl_gguf_type_size(type));
}

static void real_value(sl_gguf_type type, double number) {
    char name[32];
    const float narrow = (float)number;
    snprintf(name, sizeof name, "%s %g", sl_gguf_type_text(type), number);
    bytes *raw = new_value(name, type);
    put_bytes(raw, type == SL_GGUF_F32 ? (const void *)&narrow : &number, sl_gguf_type_size(type));
}

static void string_value(const char *name, const char *text, size_t length) {
    bytes *raw = new_value(name, SL_GGUF_STRING);
    put_u64(raw, length);
    put_bytes(raw, text, length);
}

static bytes *array_value(const char *name, uint32_t item, uint64_t count) {
    bytes *raw = new_value(name, SL_GGUF_ARRAY);
    put_u32(raw, item);
    put_u64(raw, count);
    return raw;
}

static void nested_value(const char *name, int depth) {
    bytes *raw = new_value(name, SL_GGUF_ARRAY);
    for (int i = 0; i < depth; i++) {
        put_u32(raw, SL_GGUF_ARRAY);
        put_u64(raw, 1);
    }
    put_u32(raw, SL_GGUF_U32);
    put_u64(raw, 0);
}

static void make_arrays(void) {
    array_value("no u32", SL_GGUF_U32, 0);
    array_value("no strings", SL_GGUF_STRING, 0);
    array_value("2^63 u32", SL_GGUF_U32, 1ull << 63);
    array_value("2^62 u32", SL_GGUF_U32, 1ull << 62);
    array_value("2^63 strings", SL_GGUF_STRING, 1ull << 63);
    array_value("type 99", 99, 1);
    bytes *raw = array_value("u32 0 0", SL_GGUF_U32, 2);
    put_u64(raw, 0);
    raw = array_value("u32 max max", SL_GGUF_U32, 2);
    put_u64(raw, UINT64_MAX);
    raw = array_value("u32 1 2", SL_GGUF_U32, 2);
    put_u64(raw, 1 | 2ull << 32);
    raw = array_value("u32 5", SL_GGUF_U32, 1);
    put_u32(raw, 5);
    raw = array_value("i32 -1 x 2", SL_GGUF_I32, 2);
    put_u64(raw, UINT64_MAX);
    raw = array_value("bool 1 1", SL_GGUF_BOOL, 2);
    put_number(raw, 0x0101, 2);
    raw = array_value("bool 1 7", SL_GGUF_BOOL, 2);
    put_number(raw, 0x0701, 2);
    raw = array_value("f32 nan", SL_GGUF_F32, 2);
    put_u64(raw, 0x7fc000007fc00000u);
    raw = array_value("strings", SL_GGUF_STRING, 2);
    put_text(raw, "a");
    put_text(raw, "");
    nested_value("nested 3", 3);
    nested_value("nested 17", 17);
    nested_value("nested 10000", 10000);
}

static void make_values(void) {
    static char large[70000];
    memset(large, 'a', sizeof large);
    static const uint64_t words[] = {0, 1, 3, 1u << 31, (1u << 31) - 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        number_value(SL_GGUF_U32, words[i]);
    }
    static const uint64_t longs[] = {1ull << 32, 1ull << 63, UINT64_MAX, (1ull << 32) + 32};
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++) {
        number_value(SL_GGUF_U64, longs[i]);
    }
    number_value(SL_GGUF_I32, UINT32_MAX);
    number_value(SL_GGUF_I64, 1ull << 63);
    number_value(SL_GGUF_I8, 2);
    number_value(SL_GGUF_U16, 64);
    number_value(SL_GGUF_BOOL, 0);
    number_value(SL_GGUF_BOOL, 1);
    number_value(SL_GGUF_BOOL, 2);
    static const double reals[] = {0, -1, 1e-30, 1e30, NAN, INFINITY, 0.5};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        real_value(SL_GGUF_F32, reals[i]);
    }
    real_value(SL_GGUF_F64, 1e308);
    real_value(SL_GGUF_F64, -1e308);
    real_value(SL_GGUF_F64, NAN);
    real_value(SL_GGUF_F64, 5e-324);
    string_value("empty text", "", 0);
    string_value("text", "x", 1);
    string_value("two lines", "a\nb\x1b[1m", 7);
    string_value("no UTF-8", "\xff\xfe\x00 z", 5);
    string_value("large text", large, sizeof large);
    static const char *const words_of_others[] = {
        "gemma3", "qwen35", "llama",  "gpt2",        "yarn",
        "linear", "llama3", "{% for", "{{ messages", "{%- for x in range(100000000) %}{{x}}"};
    for (size_t i = 0; i < sizeof words_of_others / sizeof *words_of_others; i++) {
        string_value(words_of_others[i], words_of_others[i], strlen(words_of_others[i]));
    }
    bytes *raw = new_value("text of 2^63 bytes", SL_GGUF_STRING);
    put_u64(raw, 1ull << 63);
    raw = new_value("text of 2^64-1 bytes", SL_GGUF_STRING);
    put_u64(raw, UINT64_MAX);
    raw = new_value("type 13", 13);
    put_u64(raw, 1);
    raw = new_value("type 2^32-1", UINT32_MAX);
    put_u64(raw, 1);
    make_arrays();
}

/* Every value in the place of entry `at`, which may be the one behind the last. */
static void try_values(mill *m, int at) {
    const char *key = m->changed.entries[at].key;
    for (int i = 0; i < value_count; i++) {
        if (wanted(m->s, 1)) {
            m->changed.entries[at].type = values[i].type;
            m->changed.entries[at].raw = values[i].raw.data;
            m->changed.entries[at].size = values[i].raw.size;
            run_changed(m, key, values[i].name);
        }
    }
}

/* Arrays of the vocabulary: one element more or less, elements changed at both ends and in the middle. */
static void try_array(mill *m, int at) {
    const entry *original = &m->whole.entries[at];
    uint32_t item;
    uint64_t count;
    memcpy(&item, original->raw, 4);
    memcpy(&count, (const char *)original->raw + 4, 8);
    const uint64_t counts[] = {0, 1, count - 1, count + 1, count * 2, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (wanted(m->s, 1)) { /* the bytes stay: what follows is read as something else */
            bytes raw = {0};
            put_u32(&raw, item);
            put_u64(&raw, counts[i]);
            put_bytes(&raw, (const char *)original->raw + 12, original->size - 12);
            m->changed.entries[at].raw = raw.data;
            m->changed.entries[at].size = raw.size;
            run_changed(m, original->key, "another count");
            free(raw.data);
        }
    }
    for (uint64_t keep = 0; keep <= count; keep += keep < 8 ? 1 : count / 5) { /* whole, but short */
        if (wanted(m->s, 1)) {
            bytes raw = {0};
            put_u32(&raw, item);
            put_u64(&raw, keep);
            const unsigned char *cursor = (const unsigned char *)original->raw + 12, *begin = cursor;
            for (uint64_t i = 0; i < keep; i++) {
                uint64_t length;
                memcpy(&length, cursor, 8);
                cursor += item == SL_GGUF_STRING ? 8 + length : 4;
            }
            put_bytes(&raw, begin, (size_t)(cursor - begin));
            m->changed.entries[at].raw = raw.data;
            m->changed.entries[at].size = raw.size;
            run_changed(m, original->key, "shorter");
            free(raw.data);
        }
    }
    for (size_t byte = 12; byte < original->size; byte += byte < 64 ? 1 : original->size / 40) {
        static const unsigned char news[] = {0, 0xff, 0x80, ' ', '\n', 7};
        for (size_t i = 0; i < sizeof news; i++) {
            if (wanted(m->s, 1)) {
                unsigned char *raw = exact_copy(original->raw, original->size);
                raw[byte] = news[i];
                m->changed.entries[at].raw = raw;
                m->changed.entries[at].size = original->size;
                run_changed(m, original->key, "a byte changed");
                free(raw);
            }
        }
    }
    m->changed.entries[at] = *original;
}

static void metadata_cases(mill *m) {
    for (int at = 0; at < m->whole.entries_there; at++) {
        const entry original = m->whole.entries[at];
        try_values(m, at);
        m->changed.entries[at] = original;
        if (original.type == SL_GGUF_ARRAY) {
            try_array(m, at);
        }
        if (wanted(m->s, 1)) {
            memmove(&m->changed.entries[at], &m->changed.entries[at + 1],
                    sizeof(entry) * (size_t)(PARTS - at - 1));
            m->changed.entries_there--;
            m->changed.entry_count--;
            run_changed(m, original.key, "missing");
            m->changed = m->whole;
        }
        if (wanted(m->s, 1)) {
            m->changed.entries[m->changed.entries_there++] = original;
            m->changed.entry_count++;
            run_changed(m, original.key, "twice");
            m->changed = m->whole;
        }
        static const char *const keys[] = {"", "a\nb", "\xff", "a b", "general.architecture"};
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            if (wanted(m->s, 4)) {
                m->changed.entries[at].key = keys[i];
                m->changed.entries[at].key_length = strlen(keys[i]);
                run_changed(m, original.key, "another key");
                m->changed = m->whole;
            }
        }
        static const uint64_t lengths[] = {0, 1ull << 16, 1ull << 31, 1ull << 63, UINT64_MAX};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            if (wanted(m->s, 4)) {
                const size_t at_length = 24; /* the first key's */
                assemble(&m->changed, &m->out);
                memcpy(m->out.data + at_length, &lengths[i], 8);
                run_bytes(m, m->out.data, m->out.size, "the first key's length");
            }
        }
    }
}

/* Keys that the file does not have but a reader knows. */
static void extra_key_cases(mill *m) {
    static const char *const others[] = {"general.alignment",
                                         "split.count",
                                         "split.no",
                                         "general.name",
                                         "general.file_type",
                                         "tokenizer.ggml.unknown_token_id",
                                         "tokenizer.ggml.padding_token_id",
                                         "tokenizer.ggml.eot_token_id",
                                         "tokenizer.ggml.eom_token_id",
                                         "tokenizer.ggml.add_space_prefix",
                                         "tokenizer.ggml.add_eos_token",
                                         "tokenizer.ggml.scores",
                                         "tokenizer.ggml.merges",
                                         "tokenizer.chat_template.tool_use",
                                         "?.attention.sliding_window_pattern",
                                         "?.attention.recurrent_layers",
                                         "?.attention.causal",
                                         "?.rope.scaling.original_context_length",
                                         "?.rope.scaling.finetuned",
                                         "?.rope.dimension_sections",
                                         "?.expert_shared_count",
                                         "?.expert_gating_func",
                                         "?.attention.clamp_kqv",
                                         "?.rope.scale_linear",
                                         "?.logit_scale",
                                         "?.tensor_data_layout"};
    char keys[PARTS][128];
    int count = 0;
    sl_view architecture = {0};
    for (int i = 0; i < m->whole.entries_there; i++) {
        if (strcmp(m->whole.entries[i].key, "general.architecture") == 0) {
            architecture.data = (const char *)m->whole.entries[i].raw + 8;
            architecture.length = m->whole.entries[i].size - 8;
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const bool own = others[i][0] == '?';
        snprintf(keys[count++], sizeof *keys, "%.*s%s", own ? (int)architecture.length : 0, architecture.data,
                 others[i] + own);
    }
    for (int i = 0; i < SL_CONFIG_FIELD_COUNT && count < PARTS; i++) {
        if (SL_CONFIG_FIELDS[i].key[SL_NAMING_GGUF]) {
            snprintf(keys[count++], sizeof *keys, "%.*s.%s", (int)architecture.length, architecture.data,
                     SL_CONFIG_FIELDS[i].key[SL_NAMING_GGUF]);
        }
    }
    for (int i = 0; i < count; i++) {
        bool there = false;
        for (int e = 0; e < m->whole.entries_there; e++) {
            there |= strcmp(m->whole.entries[e].key, keys[i]) == 0;
        }
        if (!there) {
            const int at = m->changed.entries_there++;
            m->changed.entry_count++;
            m->changed.entries[at] = (entry){keys[i], strlen(keys[i]), 0, NULL, 0};
            try_values(m, at);
            m->changed = m->whole;
        }
    }
}

/* ---- tensors ---- */

static void try_dims(mill *m, int at) {
    static const uint64_t sizes[] = {0, 1, 1ull << 31, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX};
    tensor *t = &m->changed.tensors[at];
    const tensor original = m->whole.tensors[at];
    for (uint32_t d = 0; d < original.dim_count; d++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes + 4; i++) {
            const uint64_t near[] = {original.dims[d] + 1, original.dims[d] - 1, original.dims[d] * 2,
                                     original.dims[d] / 2};
            if (wanted(m->s, 1)) {
                t->dims[d] = i < 4 ? near[i] : sizes[i - 4];
                run_changed(m, original.name, "a dimension");
                *t = original;
            }
        }
    }
    if (wanted(m->s, 1)) { /* transposed */
        t->dims[0] = original.dims[1];
        t->dims[1] = original.dims[0];
        t->dim_count = t->written_dims = 2;
        run_changed(m, original.name, "transposed");
        *t = original;
    }
    if (wanted(m->s, 1)) { /* a product of 2^64 */
        t->dim_count = t->written_dims = 4;
        t->dims[0] = t->dims[1] = t->dims[2] = t->dims[3] = 1 << 16;
        run_changed(m, original.name, "2^64 elements");
        *t = original;
    }
    static const uint32_t ranks[] = {0, 1, 2, 3, 4, 5, 8, UINT32_MAX};
    for (size_t i = 0; i < 2 * sizeof ranks / sizeof *ranks; i++) {
        if (wanted(m->s, 1)) {
            t->dim_count = ranks[i / 2];
            /* With as many dimensions behind it, or with those there were. */
            t->written_dims = i % 2 && t->dim_count <= DIMS ? t->dim_count : t->written_dims;
            for (uint32_t d = 0; d < DIMS; d++) {
                t->dims[d] = d < original.dim_count ? original.dims[d] : 1;
            }
            run_changed(m, original.name, "a number of dimensions");
            *t = original;
        }
    }
}

static void try_placing(mill *m, int at) {
    tensor *t = &m->changed.tensors[at];
    const tensor original = m->whole.tensors[at];
    const uint64_t size = m->whole.data_size;
    const uint64_t offsets[] = {0,
                                original.offset + 32,
                                original.offset - 32,
                                original.offset + 1,
                                original.offset + 4,
                                size - 32,
                                size & ~31ull,
                                size + 32,
                                1ull << 31,
                                1ull << 63,
                                UINT64_MAX - 31,
                                UINT64_MAX};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        if (wanted(m->s, 1)) {
            t->offset = offsets[i];
            run_changed(m, original.name, "an offset");
            *t = original;
        }
    }
    for (uint32_t type = 0; type < 48; type++) {
        if (wanted(m->s, 1)) {
            t->type = type < 44 ? type : type == 44 ? UINT32_MAX : type == 45 ? 1u << 31 : type;
            run_changed(m, original.name, "a type");
            *t = original;
        }
    }
}

static void tensor_cases(mill *m) {
    for (int at = 0; at < m->whole.tensors_there; at++) {
        const tensor original = m->whole.tensors[at];
        try_dims(m, at);
        try_placing(m, at);
        static const char *const names[] = {"",
                                            "a\nb",
                                            "\xff\xfe",
                                            "token_embd.weight",
                                            "output.weight",
                                            "rope_freqs.weight",
                                            "blk.0.attn_q.bias",
                                            "blk.99999999999.attn_q.weight"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            if (wanted(m->s, 1)) {
                m->changed.tensors[at].name = names[i];
                m->changed.tensors[at].name_length = strlen(names[i]);
                run_changed(m, original.name, "another name");
                m->changed = m->whole;
            }
        }
        if (wanted(m->s, 1)) {
            memmove(&m->changed.tensors[at], &m->changed.tensors[at + 1],
                    sizeof(tensor) * (size_t)(PARTS - at - 1));
            m->changed.tensors_there--;
            m->changed.tensor_count--;
            run_changed(m, original.name, "missing");
            m->changed = m->whole;
        }
        if (wanted(m->s, 1)) {
            m->changed.tensors[m->changed.tensors_there++] = original;
            m->changed.tensor_count++;
            run_changed(m, original.name, "twice");
            m->changed = m->whole;
        }
    }
}

/* ---- the file as bytes ---- */

static void header_cases(mill *m) {
    static const uint64_t counts[] = {0, 1, 1000, 1ull << 31, 1ull << 32, 1ull << 56, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (wanted(m->s, 1)) {
            m->changed.entry_count = counts[i];
            run_changed(m, "header", "entries");
            m->changed = m->whole;
        }
        if (wanted(m->s, 1)) {
            m->changed.tensor_count = counts[i];
            run_changed(m, "header", "tensors");
            m->changed = m->whole;
        }
        if (wanted(m->s, 1)) {
            m->changed.version = (uint32_t)(counts[i] % 7);
            run_changed(m, "header", "version");
            m->changed = m->whole;
        }
    }
    static const uint32_t alignments[] = {0,         1, 3, 7, 8, 24, 32, 64, 4096, 1u << 31, UINT32_MAX - 7,
                                          UINT32_MAX};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        if (wanted(m->s, 1)) {
            m->changed.entries[m->changed.entries_there++] =
                (entry){"general.alignment", 17, SL_GGUF_U32, &alignments[i], 4};
            m->changed.entry_count++;
            run_changed(m, "general.alignment", "a number");
            m->changed = m->whole;
        }
    }
    if (wanted(m->s, 1)) { /* many declared, all there, all alike: cost must not grow with the square */
        bytes many = {0};
        put_header(&many, 3, 0, 20000);
        for (int i = 0; i < 20000; i++) {
            char key[32];
            snprintf(key, sizeof key, "k%d", i);
            put_key(&many, key, SL_GGUF_U8);
            put_number(&many, 0, 1);
        }
        run_bytes(m, many.data, many.size, "20,000 entries");
        free(many.data);
    }
}

static void byte_cases(mill *m, bool all) {
    assemble(&m->whole, &m->out);
    bytes file = {0};
    put_bytes(&file, m->out.data, m->out.size);
    const size_t head = m->whole.data_size < file.size ? file.size - m->whole.data_size : file.size;
    for (size_t size = 0; size < file.size; size += size < head + 64 ? 1 : file.size / 64) {
        if (wanted(m->s, all ? 2 : 16)) {
            run_bytes(m, file.data, size, "cut");
        }
    }
    const size_t flipped = head < 4096 ? head : 4096;
    for (size_t bit = 0; bit < flipped * 8; bit++) {
        if (wanted(m->s, all ? 1 : 16)) {
            char what[64];
            snprintf(what, sizeof what, "bit %zu of byte %zu", bit % 8, bit / 8);
            file.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            run_bytes(m, file.data, file.size, what);
            file.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    /* Weights are any bits: infinities and NaN must not matter to anything but the logits. */
    for (int fill = 0; fill < 4; fill++) {
        if (wanted(m->s, 1)) {
            static const unsigned char with[] = {0xff, 0x7f, 0x00, 0x80};
            memset(file.data + file.size - m->whole.data_size, with[fill], m->whole.data_size);
            run_bytes(m, file.data, file.size, "weights all alike");
        }
    }
    free(file.data);
}

void gguf_cases(suite *s) {
    static const struct {
        const char *family;
        sl_qtype matrices;
    } files[] = {{"llama", SL_QTYPE_Q8_0},    {"qwen2", SL_QTYPE_F32},      {"qwen3", SL_QTYPE_F32},
                 {"qwen3moe", SL_QTYPE_Q8_0}, {"gemma3", SL_QTYPE_F32},     {"qwen3_5", SL_QTYPE_F32},
                 {"gpt_oss", SL_QTYPE_Q8_0},  {"qwen3_next", SL_QTYPE_F32}, {"lfm2", SL_QTYPE_F32}};
    static mill m;
    m.s = s;
    make_values();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        sl_gguf *gguf;
        sl_error error;
        char name[64];
        m.family = files[i].family;
        snprintf(name, sizeof name, "gguf %s, valid", m.family);
        write_valid(m.family, files[i].matrices);
        run_valid(s, VALID_NAME, name);
        bytes whole = {0};
        FILE *file = fopen(VALID_NAME, "rb");
        for (int c; file && (c = getc(file)) != EOF;) {
            put_number(&whole, (uint64_t)c, 1);
        }
        fclose(file);
        must(sl_gguf_open_memory(whole.data, whole.size, VALID_NAME, &gguf, &error), &error, m.family);
        take_apart(gguf, &whole, &m.whole);
        m.changed = m.whole;
        metadata_cases(&m);
        extra_key_cases(&m);
        tensor_cases(&m);
        header_cases(&m);
        byte_cases(&m, i == 0);
        sl_gguf_close(gguf);
        free(whole.data);
    }
}

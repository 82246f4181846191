/* The C API's functions that describe and write files. */
#include "api/api.h"

#include "base/alloc.h"
#include "format/describe.h"
#include "model/files.h"

int sluice_file_describe(const char *path, char **json, sluice_error *error) {
    *json = NULL;
    json_t *description;
    sl_error inner;
    const int code = sl_describe(path, &description, &inner);
    return code ? sl_api_error(error, &inner) : sl_api_give_json(description, json, error);
}

static int required(const char *text, const char *name, sluice_error *error) {
    return text ? 0 : sl_api_fail(error, SL_ERR_INVALID, "%s: is NULL", name);
}

/* Fails with a message that lists the types that matrices are written in. */
static int unknown_type(const char *name, const char *text, sluice_error *error) {
    sl_buffer names = {0};
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        if (sl_qtype_get((sl_qtype)type)->gguf_type != SL_QTYPE_NO_GGUF) {
            sl_buffer_printf(&names, "%s%s", names.length ? ", " : "", sl_qtype_get((sl_qtype)type)->name);
        }
    }
    sl_api_fail(error, SL_ERR_INVALID, "%s: \"%.40s\" is no weight type; there are %s", name, text,
                names.data ? names.data : "");
    sl_buffer_free(&names);
    return SL_ERR_INVALID;
}

/* Types of single tensors; NULL or "" means none. */
static int parse_type(const char *text, const char *name, sl_qtype *type, const sl_qtype **given,
                      sluice_error *error) {
    const int parsed = text && *text ? sl_qtype_parse(text) : -1;
    *given = NULL;
    if (!text || !*text) {
        return 0;
    }
    if (parsed < 0) {
        return unknown_type(name, text, error);
    }
    *type = (sl_qtype)parsed;
    *given = type;
    return 0;
}

/* Hands a tensor's report on. */
typedef struct reporter {
    void (*tensor)(void *context, const sluice_quantized_tensor *tensor);
    void *context;
} reporter;

static void report_tensor(void *context, const sl_quantized_tensor *from) {
    const reporter *r = context;
    sluice_quantized_tensor tensor = {.size = sizeof tensor,
                                      .name = from->name,
                                      .from = sl_qtype_get(from->from)->name,
                                      .to = sl_qtype_get(from->to)->name,
                                      .wanted = sl_qtype_get(from->wanted)->name,
                                      .elements = 1,
                                      .columns = from->dims[0],
                                      .from_bytes = from->from_bytes,
                                      .to_bytes = from->to_bytes};
    for (uint32_t i = 0; i < from->dim_count; i++) {
        tensor.elements *= from->dims[i];
    }
    r->tensor(r->context, &tensor);
}

static int parse_patterns(const sluice_quantize_options *o, sl_type_pattern *patterns, sluice_error *error) {
    for (size_t i = 0; i < o->pattern_count; i++) {
        const sl_qtype *given;
        int code = required(o->patterns[i].pattern, "patterns", error);
        code = code ? code : required(o->patterns[i].type, "patterns", error);
        code = code ? code : parse_type(o->patterns[i].type, "patterns", &patterns[i].type, &given, error);
        if (code == 0 && !given) {
            code = sl_api_fail(error, SL_ERR_INVALID, "patterns: \"%.100s\" has no type",
                               o->patterns[i].pattern);
        }
        if (code) {
            return code;
        }
        patterns[i].pattern = o->patterns[i].pattern;
    }
    return 0;
}

static int quantize(const char *input, const char *output, const sluice_quantize_options *o,
                    sl_type_pattern *patterns, sluice_error *error) {
    sl_qtype output_type, embedding_type;
    reporter reporter = {o->tensor, o->context};
    sl_quantize_options options = {.mixture = sl_mixture_find(o->type ? o->type : "q8_0"),
                                   .pure = o->pure,
                                   .patterns = patterns,
                                   .pattern_count = o->pattern_count,
                                   .importance = o->importance && *o->importance ? o->importance : NULL,
                                   .replace = o->replace,
                                   .dry_run = o->dry_run,
                                   .tensor = o->tensor ? report_tensor : NULL,
                                   .context = &reporter};
    sl_error inner;
    if (!options.mixture) {
        sl_mixture_unknown(o->type, &inner);
        return sl_api_error(error, &inner);
    }
    int code = parse_type(o->output_type, "output_type", &output_type, &options.output_type, error);
    code = code ? code
                : parse_type(o->embedding_type, "embedding_type", &embedding_type, &options.embedding_type,
                             error);
    code = code ? code : parse_patterns(o, patterns, error);
    if (code) {
        return code;
    }
    const sl_file_progress progress = {o->progress, o->context};
    uint64_t bytes = 0;
    code = sl_quantize_file(input, output, &options, &progress, &bytes, &inner);
    if (code == 0 && o->file_bytes) {
        *o->file_bytes = bytes;
    }
    return code ? sl_api_error(error, &inner) : 0;
}

enum { MOST_PATTERNS = 65536 };

int sluice_quantize_file(const char *input, const char *output, const sluice_quantize_options *given,
                         sluice_error *error) {
    sluice_quantize_options o;
    int code = sl_api_options(&o, sizeof o, given, "sluice_quantize_options", error);
    code = code ? code : required(input, "input", error);
    code = code || o.dry_run ? code : required(output, "output", error);
    code = code || o.pattern_count == 0 || o.patterns
               ? code
               : sl_api_fail(error, SL_ERR_INVALID, "patterns: is NULL with a count");
    code = code || o.pattern_count <= MOST_PATTERNS
               ? code
               : sl_api_fail(error, SL_ERR_INVALID, "patterns: %zu are more than %d", o.pattern_count,
                             MOST_PATTERNS);
    if (code) {
        return code;
    }
    sl_type_pattern *patterns = sl_alloc_zero(o.pattern_count + 1, sizeof *patterns);
    code = patterns ? quantize(input, output, &o, patterns, error)
                    : sl_api_fail(error, SL_ERR_NOMEM, "out of memory for patterns");
    sl_free(patterns);
    return code;
}

int sluice_quantize(const char *input, const char *output, const char *type, sluice_progress progress,
                    void *context, sluice_error *error) {
    const sluice_quantize_options options = {
        .size = sizeof options, .type = type, .progress = progress, .context = context};
    const int code = required(type, "type", error);
    return code ? code : sluice_quantize_file(input, output, &options, error);
}

const char *sluice_quantize_type(int index, double *bits) {
    const sl_mixture *mixture = index >= 0 ? sl_mixture_at(index) : NULL;
    if (mixture && bits) {
        *bits = sl_mixture_bits(mixture);
    }
    return mixture ? sl_mixture_name(mixture) : NULL;
}

int sluice_synth(const char *output, const sluice_synth_options *given, sluice_progress progress,
                 void *context, sluice_error *error) {
    sluice_synth_options o;
    int result = sl_api_options(&o, sizeof o, given, "sluice_synth_options", error);
    if (result) {
        return result;
    }
    result = required(output, "output", error);
    result = result ? result : required(o.preset, "preset", error);
    if (result) {
        return result;
    }
    if ((unsigned)o.head > SLUICE_SYNTH_HEAD_AGREEING) {
        return sl_api_fail(error, SL_ERR_INVALID, "head: %d is no sluice_synth_head", (int)o.head);
    }
    int type = o.type ? sl_qtype_parse(o.type) : SL_QTYPE_Q8_0;
    if (type < 0) {
        return unknown_type("type", o.type, error);
    }
    const int parsed = o.expert_type ? sl_qtype_parse(o.expert_type) : type;
    if (parsed < 0) {
        return unknown_type("expert_type", o.expert_type, error);
    }
    const sl_qtype expert_type = (sl_qtype)parsed;
    sl_synth_options options = {
        .preset = o.preset,
        .type = (sl_qtype)type,
        .seed = o.seed,
        .layers = o.layers,
        .width = o.width,
        .heads = o.heads,
        .kv_heads = o.kv_heads,
        .head_size = o.head_size,
        .feed_forward = o.feed_forward,
        .vocabulary = o.vocabulary,
        .experts = o.experts,
        .experts_used = o.experts_used,
        .expert_width = o.expert_width,
        .expert_type = &expert_type,
        .expert_skew = o.expert_skew,
        .head = (sl_synth_head)o.head,
        .keep = !o.replace,
    };
    sl_error inner;
    sl_file_progress report = {progress, context};
    result = sl_synth_file(output, &options, &report, &inner);
    return result ? sl_api_error(error, &inner) : 0;
}

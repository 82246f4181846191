/* From the text of an asm statement to instructions. */
#include "ptx.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

/* ---- names ---- */

static const ptx_type TYPES[] = {
    {"b8", PTX_UNTYPED, 1},     {"b16", PTX_UNTYPED, 2},     {"b32", PTX_UNTYPED, 4},
    {"b64", PTX_UNTYPED, 8},    {"b128", PTX_UNTYPED, 16},   {"u8", PTX_UNSIGNED, 1},
    {"u16", PTX_UNSIGNED, 2},   {"u32", PTX_UNSIGNED, 4},    {"u64", PTX_UNSIGNED, 8},
    {"s8", PTX_SIGNED, 1},      {"s16", PTX_SIGNED, 2},      {"s32", PTX_SIGNED, 4},
    {"s64", PTX_SIGNED, 8},     {"f16", PTX_FLOATING, 2},    {"f16x2", PTX_FLOATING, 4},
    {"bf16", PTX_FLOATING, 2},  {"bf16x2", PTX_FLOATING, 4}, {"tf32", PTX_FLOATING, 4},
    {"f32", PTX_FLOATING, 4},   {"f64", PTX_FLOATING, 8},    {"e4m3", PTX_FLOATING, 1},
    {"e5m2", PTX_FLOATING, 1},  {"e4m3x2", PTX_FLOATING, 2}, {"e5m2x2", PTX_FLOATING, 2},
    {"pred", PTX_PREDICATE, 1},
};

const ptx_type *ptx_find_type(const std::string &name) {
    for (const ptx_type &type : TYPES) {
        if (name == type.name) {
            return &type;
        }
    }
    return nullptr;
}

/* By enum ptx_special. */
static const char *const SPECIALS[PTX_SPECIALS] = {
    "tid.x",       "tid.y",       "tid.z",           "ntid.x",
    "ntid.y",      "ntid.z",      "ctaid.x",         "ctaid.y",
    "ctaid.z",     "nctaid.x",    "nctaid.y",        "nctaid.z",
    "laneid",      "warpid",      "cluster_ctarank", "cluster_nctarank",
    "lanemask_eq", "lanemask_lt", "lanemask_le",     "lanemask_gt",
    "lanemask_ge", "clock",       "clock64",         "globaltimer",
};

/* ---- the text ---- */

struct parser {
    const char *at, *text;
    int arguments;
    ptx_program *program;
    std::vector<std::string> registers;
    struct label {
        std::string name;
        int instruction;
    };
    std::vector<label> labels;
    std::vector<std::string> wanted; /* labels, by the index that operands have until all are known */
};

[[noreturn]] static void fail(const parser &parser, const char *why) {
    emu_fail("asm text: %s at \"%.40s\" in \"%.200s\"", why, parser.at, parser.text);
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

static void skip_blanks(parser &parser) {
    for (;;) {
        while (*parser.at == ' ' || *parser.at == '\n' || *parser.at == '\t') {
            parser.at++;
        }
        if (parser.at[0] == '/' && parser.at[1] == '/') {
            while (*parser.at && *parser.at != '\n') {
                parser.at++;
            }
        } else if (parser.at[0] == '/' && parser.at[1] == '*') {
            const char *end = strstr(parser.at, "*/");
            parser.at = end ? end + 2 : parser.at + strlen(parser.at);
        } else {
            return;
        }
    }
}

static bool skip(parser &parser, char c) {
    skip_blanks(parser);
    if (*parser.at != c) {
        return false;
    }
    parser.at++;
    return true;
}

static void expect(parser &parser, char c) {
    if (!skip(parser, c)) {
        const char why[] = {'\'', c, '\'', ' ', 'e', 'x', 'p', 'e', 'c', 't', 'e', 'd', '\0'};
        fail(parser, why);
    }
}

static std::string word(parser &parser) {
    skip_blanks(parser);
    std::string name;
    while (is_name(*parser.at)) {
        name += *parser.at++;
    }
    if (name.empty()) {
        fail(parser, "a name expected");
    }
    return name;
}

/* ---- operands ---- */

static ptx_operand make_operand(ptx_kind kind, int index, int64_t value) {
    return {kind, index, value, false, false, {}};
}

static int find_register(const parser &parser, const std::string &name) {
    for (size_t i = parser.registers.size(); i-- > 0;) { /* the innermost scope's first */
        if (parser.registers[i] == name) {
            return (int)i;
        }
    }
    return -1;
}

static ptx_operand parse_percent(parser &parser) {
    parser.at++;
    if (*parser.at >= '0' && *parser.at <= '9') {
        char *end;
        const long index = strtol(parser.at, &end, 10);
        if (index >= parser.arguments) {
            fail(parser, "there is no such operand");
        }
        parser.at = end;
        return make_operand(PTX_ARGUMENT, (int)index, 0);
    }
    if (*parser.at == '%') { /* as extended asm writes it */
        parser.at++;
    }
    std::string name;
    while (is_name(*parser.at) || *parser.at == '.') {
        name += *parser.at++;
    }
    for (int i = 0; i < PTX_SPECIALS; i++) {
        if (name == SPECIALS[i]) {
            return make_operand(PTX_SPECIAL, i, 0);
        }
    }
    const int index = find_register(parser, "%" + name);
    if (index < 0) {
        emu_fail("asm text: unknown register %%%s in \"%.200s\"", name.c_str(), parser.text);
    }
    return make_operand(PTX_REGISTER, index, 0);
}

static ptx_operand parse_number(parser &parser) {
    const char *at = parser.at;
    const bool negative = *at == '-';
    at += negative;
    char *end;
    ptx_operand operand = make_operand(PTX_IMMEDIATE, 0, 0);
    const char kind = at[0] == '0' ? at[1] : 0;
    if (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D') { /* the bits, in hexadecimal */
        operand.value = (int64_t)strtoull(at + 2, &end, 16);
    } else {
        const uint64_t number = strtoull(at, &end, 0);
        operand.value = negative ? -(int64_t)number : (int64_t)number;
        if (*end == '.') {
            const double value = strtod(parser.at, &end);
            memcpy(&operand.value, &value, sizeof value);
            operand.is_float = true;
        } else if (*end == 'U') {
            end++;
        }
    }
    parser.at = end;
    return operand;
}

static ptx_operand parse_operand(parser &parser);

static void parse_parts(parser &parser, ptx_operand *operand, char end) {
    do {
        operand->parts.push_back(parse_operand(parser));
    } while (skip(parser, ','));
    expect(parser, end);
}

static ptx_operand parse_name(parser &parser) {
    const std::string name = word(parser);
    if (name == "_") {
        return make_operand(PTX_SINK, 0, 0);
    }
    const int index = find_register(parser, name);
    if (index >= 0) {
        return make_operand(PTX_REGISTER, index, 0);
    }
    parser.wanted.push_back(name);
    return make_operand(PTX_LABEL, (int)parser.wanted.size() - 1, 0);
}

static ptx_operand parse_operand(parser &parser) {
    skip_blanks(parser);
    ptx_operand operand;
    if (skip(parser, '{')) {
        operand = make_operand(PTX_VECTOR, 0, 0);
        parse_parts(parser, &operand, '}');
    } else if (skip(parser, '[')) {
        operand = make_operand(PTX_ADDRESS, 0, 0);
        operand.parts.push_back(parse_operand(parser));
        if (skip(parser, '+')) {
            skip_blanks(parser);
            operand.value = parse_number(parser).value;
        }
        if (skip(parser, ',')) {
            parse_parts(parser, &operand, ']');
        } else {
            expect(parser, ']');
        }
    } else if (skip(parser, '!')) {
        operand = parse_operand(parser);
        operand.negated = true;
    } else if (*parser.at == '%') {
        operand = parse_percent(parser);
    } else if (*parser.at == '-' || (*parser.at >= '0' && *parser.at <= '9')) {
        operand = parse_number(parser);
    } else {
        operand = parse_name(parser);
    }
    if (skip(parser, '|')) { /* a pair of results */
        ptx_operand pair = make_operand(PTX_VECTOR, 0, 0);
        pair.parts.push_back(operand);
        pair.parts.push_back(parse_operand(parser));
        return pair;
    }
    return operand;
}

/* ---- statements ---- */

/* ".reg .b32 a, b<4>;" behind the ".reg" */
static void parse_registers(parser &parser) {
    expect(parser, '.');
    std::string type = word(parser);
    while (skip(parser, '.')) { /* .v2 .b32 */
        type = word(parser);
    }
    if (!ptx_find_type(type)) {
        fail(parser, "unknown type of registers");
    }
    do {
        skip_blanks(parser);
        std::string name = skip(parser, '%') ? "%" : "";
        skip(parser, '%');
        name += word(parser);
        if (skip(parser, '<')) {
            const int count = (int)parse_number(parser).value;
            expect(parser, '>');
            for (int i = 0; i < count; i++) {
                parser.registers.push_back(name + std::to_string(i));
            }
        } else {
            parser.registers.push_back(name);
        }
    } while (skip(parser, ','));
    if (parser.registers.size() > PTX_REGISTERS) {
        fail(parser, "too many registers");
    }
    expect(parser, ';');
}

typedef bool (*decode_function)(ptx_decoder &);
static const decode_function DECODERS[] = {
    ptx_decode_arithmetic, ptx_decode_convert, ptx_decode_flow, ptx_decode_memory, ptx_decode_warp,
    ptx_decode_matrix,     ptx_decode_async,   ptx_decode_bulk, ptx_decode_wgmma,
};

static void decode(ptx_decoder &decoder) {
    for (const decode_function function : DECODERS) {
        if (function(decoder)) {
            for (const std::string &modifier : decoder.modifiers) {
                if (!modifier.empty()) {
                    ptx_unknown(decoder, ("unknown modifier ." + modifier).c_str());
                }
            }
            return;
        }
    }
    ptx_unknown(decoder, "unknown instruction");
}

/* Decimal floating-point immediates get the type's bits. */
static void settle_immediates(ptx_instruction *instruction) {
    for (ptx_operand &operand : instruction->operands) {
        if (operand.is_float && ptx_is(instruction->type, "f32")) {
            double value;
            memcpy(&value, &operand.value, sizeof value);
            operand.value = (int64_t)ptx_bits((float)value);
        }
    }
}

static void parse_instruction(parser &parser) {
    ptx_instruction instruction = {};
    instruction.guard = -1;
    const char *start = parser.at;
    if (skip(parser, '@')) {
        instruction.guard_negated = skip(parser, '!');
        const ptx_operand guard = parse_operand(parser);
        if (guard.kind != PTX_REGISTER) {
            fail(parser, "the guard is no register");
        }
        instruction.guard = guard.index;
    }
    ptx_decoder decoder = {&instruction, word(parser), {}};
    while (skip(parser, '.')) {
        std::string modifier = word(parser);
        while (parser.at[0] == ':' && parser.at[1] == ':') {
            parser.at += 2;
            modifier += "::" + word(parser);
        }
        decoder.modifiers.push_back(modifier);
    }
    if (!skip(parser, ';')) {
        do {
            instruction.operands.push_back(parse_operand(parser));
        } while (skip(parser, ','));
        expect(parser, ';');
    }
    instruction.text.assign(start, (size_t)(parser.at - start));
    decode(decoder);
    settle_immediates(&instruction);
    parser.program->instructions.push_back(instruction);
}

/* At a name: whether it is a label's, which is recorded then. */
static bool parse_label(parser &parser) {
    const char *at = parser.at;
    while (is_name(*at)) {
        at++;
    }
    const char *end = at;
    while (*at == ' ') {
        at++;
    }
    if (at[0] != ':' || end == parser.at) {
        return false;
    }
    parser.labels.push_back({std::string(parser.at, end), (int)parser.program->instructions.size()});
    parser.at = at + 1;
    return true;
}

/* Names that are no register are labels, which only stand alone. */
static void settle_label(const parser &parser, ptx_instruction *instruction, ptx_operand *operand,
                         bool alone) {
    for (ptx_operand &part : operand->parts) {
        settle_label(parser, instruction, &part, false);
    }
    if (operand->kind != PTX_LABEL) {
        return;
    }
    const std::string &name = parser.wanted[(size_t)operand->index];
    operand->index = -1;
    for (const parser::label &label : parser.labels) {
        operand->index = label.name == name ? label.instruction : operand->index;
    }
    if (operand->index < 0 || !alone) {
        emu_fail("asm text: unknown name %s in \"%s\"", name.c_str(), instruction->text.c_str());
    }
}

static void settle_labels(const parser &parser) {
    for (ptx_instruction &instruction : parser.program->instructions) {
        for (ptx_operand &operand : instruction.operands) {
            settle_label(parser, &instruction, &operand, instruction.operands.size() == 1);
        }
    }
}

void ptx_parse(const char *text, int arguments, ptx_program *program) {
    parser parser = {text, text, arguments, program, {}, {}, {}};
    std::vector<size_t> scopes; /* registers at each '{' */
    for (skip_blanks(parser); *parser.at; skip_blanks(parser)) {
        if (skip(parser, '{')) {
            scopes.push_back(parser.registers.size());
        } else if (skip(parser, '}')) {
            if (scopes.empty()) {
                fail(parser, "'}' without '{'");
            }
            scopes.pop_back();
        } else if (strncmp(parser.at, ".reg", 4) == 0 && !is_name(parser.at[4])) {
            parser.at += 4;
            parse_registers(parser);
        } else if (!skip(parser, ';') && !parse_label(parser)) {
            parse_instruction(parser);
        }
    }
    settle_labels(parser);
    program->registers = (int)parser.registers.size();
    program->text = text;
}

/* ---- for decoders ---- */

bool ptx_take(ptx_decoder &decoder, const char *modifier) {
    for (std::string &candidate : decoder.modifiers) {
        if (candidate == modifier) {
            candidate.clear();
            return true;
        }
    }
    return false;
}

const ptx_type *ptx_take_type(ptx_decoder &decoder) {
    for (std::string &candidate : decoder.modifiers) {
        const ptx_type *type = ptx_find_type(candidate);
        if (type) {
            candidate.clear();
            return type;
        }
    }
    ptx_unknown(decoder, "no type");
}

int ptx_take_choice(ptx_decoder &decoder, const char *choices) {
    std::string choice;
    int index = 0;
    for (const char *at = choices;; at++) {
        if (*at && *at != ' ') {
            choice += *at;
            continue;
        }
        if (ptx_take(decoder, choice.c_str())) {
            return index;
        }
        if (!*at) {
            return -1;
        }
        choice.clear();
        index++;
    }
}

void ptx_take_ordering(ptx_decoder &decoder) {
    while (ptx_take_choice(
               decoder,
               "weak relaxed acquire release acq_rel volatile sc cta cluster gpu sys nc ca cg cs lu cv "
               "wb wt L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last "
               "L1::no_allocate L2::cache_hint L2::64B L2::128B L2::256B L2::evict_first "
               "L2::evict_last L2::evict_normal noftz") >= 0) {
    }
}

void ptx_count(ptx_decoder &decoder, int least, int most) {
    const int count = (int)decoder.instruction->operands.size();
    if (count < least || count > (most < 0 ? least : most)) {
        ptx_unknown(decoder, "wrong number of operands");
    }
}

void ptx_unknown(const ptx_decoder &decoder, const char *why) {
    emu_fail("asm text: %s in \"%s\"", why, decoder.instruction->text.c_str());
}

void ptx_fail(const ptx_instruction &instruction, const char *format, ...) {
    char why[300];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    emu_fail("%s: \"%.200s\"", why, instruction.text.c_str());
}

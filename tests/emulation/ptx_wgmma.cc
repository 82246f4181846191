/* Products of warpgroups (wgmma). They begin when issued and end when somebody waits for their group:
 * - what they read from shared memory is compared again at the end: nobody may have changed it in between;
 * - accumulators are poison while products on them are pending, and must still be that at the end.
 * Registers of A are taken when issued. Layouts: PTX ISA, "Register fragments and shared memory matrix
 * layouts" and "Matrix descriptor format" of wgmma. */
#include "ptx_matrix.h"
#include "ptx_state.h"

#include <algorithm>

enum { ROWS = 64, DEPTH_BYTES = 32, LARGEST = 256 };

/* ---- operands in shared memory ---- */

/* A tile of up to 256 rows (of A, or columns of B) of 32 bytes along the sum, in the block's shared memory.
 */
struct descriptor {
    uint64_t bits;
    uint32_t start, leading, stride, swizzle; /* bytes */
    bool transposed;                          /* elements of 16 bits, rows next to each other */
};

static descriptor read_descriptor(uint64_t bits, bool transposed, const ptx_instruction &instruction) {
    static const uint32_t SWIZZLES[] = {0, 128, 64, 32};
    descriptor result = {};
    result.bits = bits;
    result.start = (uint32_t)(bits & 0x3fff) << 4;
    result.leading = (uint32_t)(bits >> 16 & 0x3fff) << 4;
    result.stride = (uint32_t)(bits >> 32 & 0x3fff) << 4;
    result.swizzle = SWIZZLES[bits >> 62];
    result.transposed = transposed;
    if (bits >> 49 & 7) {
        ptx_fail(instruction, "a base offset in descriptor %#llx is not supported", (unsigned long long)bits);
    }
    return result;
}

/* Where 16 bytes lie. Rows are along the sum: 8 of them, `piece` 16 bytes of each; or, transposed: 8 steps of
 * the sum, one after the other, `piece` 8 rows. Without swizzling, 8 by 16 bytes are one piece of memory;
 * with it, rows are as long as the pattern. */
static uint32_t place_of(const descriptor &matrix, uint32_t line, uint32_t piece) {
    uint32_t at = matrix.start;
    if (matrix.swizzle == 0) {
        const uint32_t along_pieces = matrix.transposed ? matrix.stride : matrix.leading;
        const uint32_t along_lines = matrix.transposed ? matrix.leading : matrix.stride;
        at += line / 8 * along_lines + piece * along_pieces + line % 8 * 16;
    } else {
        const uint32_t pieces = matrix.swizzle / 16;
        at += line / 8 * matrix.stride + line % 8 * matrix.swizzle + piece % pieces * 16;
        at += matrix.transposed ? piece / pieces * matrix.leading : 0;
    }
    return ptx_swizzled(at, matrix.swizzle);
}

/* `rows` rows of 32 bytes, one after the other. */
static void read_tile(const descriptor &matrix, uint32_t rows, const ptx_instruction &instruction,
                      unsigned char *to) {
    const unsigned char *shared = emu_self()->block->shared;
    const uint32_t lines = matrix.transposed ? DEPTH_BYTES / 2 : rows;
    const uint32_t pieces = matrix.transposed ? rows / 8 : DEPTH_BYTES / 16;
    for (uint32_t line = 0; line < lines; line++) {
        for (uint32_t piece = 0; piece < pieces; piece++) {
            const uint32_t at = place_of(matrix, line, piece);
            if (at + 16 > EMU_SHARED_WINDOW) {
                ptx_fail(instruction, "descriptor %#llx leads out of shared memory",
                         (unsigned long long)matrix.bits);
            }
            if (!matrix.transposed) {
                memcpy(to + line * DEPTH_BYTES + piece * 16, shared + at, 16);
                continue;
            }
            for (uint32_t i = 0; i < 8; i++) {
                memcpy(to + (piece * 8 + i) * DEPTH_BYTES + line * 2, shared + at + 2 * i, 2);
            }
        }
    }
}

/* ---- what is pending ---- */

/* The accumulators of one or more products: by row and column, in numbers of the sum's type. While they are
 * pending, each thread's registers hold poison. */
struct accumulators {
    std::vector<uint32_t> values;                 /* [64][columns]: f32 or s32 */
    std::vector<std::vector<uint32_t *>> threads; /* [128]: where each thread's registers are */
    uint32_t pending;                             /* products */
};

struct product {
    const ptx_instruction *instruction;
    uint64_t group;
    uint32_t issued; /* by so many threads */
    bool add;        /* to what the accumulators were, not to zero */
    bool a_in_memory;
    descriptor a, b;
    unsigned char a_bytes[ROWS][DEPTH_BYTES];
    std::vector<unsigned char> b_bytes; /* [columns][32] */
    std::shared_ptr<accumulators> sums;
};

struct ptx_warpgroup {
    std::deque<product> products; /* pending, in order */
    uint64_t done;                /* products before the first of those */
};

void ptx_warpgroup_delete::operator()(ptx_warpgroup *warpgroup) const {
    delete warpgroup;
}

/* The instruction, from its modifiers: a: columns, b: what the operands are, c: flags. */
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, TO_F16 = 4, SATURATE = 8, IN_REGISTERS = 16 };

/* ---- carrying out ---- */

/* sums = a b^T */
static void multiply(const product &product, const ptx_factor &a_factor, const ptx_factor &b_factor,
                     float *sums) {
    const uint32_t columns = (uint32_t)product.instruction->a;
    const uint32_t depth = DEPTH_BYTES / (uint32_t)a_factor.bytes;
    static float a[ROWS * DEPTH_BYTES], b[DEPTH_BYTES * LARGEST];
    float row[DEPTH_BYTES];
    for (uint32_t n = 0; n < columns; n++) {
        ptx_factors(b_factor, &product.b_bytes[n * DEPTH_BYTES], DEPTH_BYTES, row);
        for (uint32_t k = 0; k < depth; k++) {
            b[k * columns + n] = row[k];
        }
    }
    ptx_factors(a_factor, product.a_bytes[0], ROWS * DEPTH_BYTES, a);
    ptx_multiply(a, b, sums, {ROWS, columns, depth});
}

static void check_memory(const product &product) {
    const uint32_t columns = (uint32_t)product.instruction->a;
    std::vector<unsigned char> now(std::max<uint32_t>(columns, ROWS) * DEPTH_BYTES);
    read_tile(product.b, columns, *product.instruction, now.data());
    bool same = memcmp(now.data(), product.b_bytes.data(), columns * DEPTH_BYTES) == 0;
    if (product.a_in_memory) {
        read_tile(product.a, ROWS, *product.instruction, now.data());
        same = same && memcmp(now.data(), product.a_bytes, sizeof product.a_bytes) == 0;
    }
    if (!same) {
        ptx_fail(*product.instruction, "shared memory that it reads changed before anybody waited for it");
    }
}

static uint32_t add_integers(uint32_t x, int32_t y, bool saturate) {
    const int64_t sum = (int64_t)(int32_t)x + y;
    return (uint32_t)(saturate ? std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX) : sum);
}

static void carry_out(const product &product) {
    const ptx_instruction &instruction = *product.instruction;
    const uint32_t columns = (uint32_t)instruction.a;
    std::vector<uint32_t> &values = product.sums->values;
    ptx_factor a = {}, b = {};
    ptx_find_factor(instruction.type, &a);
    ptx_find_factor(instruction.from, &b);
    if (product.issued != EMU_WARPGROUP) {
        ptx_fail(instruction, "%u of the warpgroup's 128 threads issued it", product.issued);
    }
    check_memory(product);
    if (!product.add) {
        std::fill(values.begin(), values.end(), 0);
    }
    static float sums[ROWS * LARGEST];
    multiply(product, a, b, sums);
    for (uint32_t i = 0; i < ROWS * columns; i++) {
        uint32_t &value = values[i];
        if (a.integer) {
            value = add_integers(value, (int32_t)sums[i], instruction.c & SATURATE);
        } else {
            const float sum = ptx_float(value) + sums[i];
            value = ptx_bits(instruction.c & TO_F16 ? ptx_from_f16(ptx_to_f16(sum)) : sum);
        }
    }
}

/* ---- registers of accumulators ---- */

static constexpr uint32_t POISON = 0xffffffffu;

/* Where number i of a thread's accumulators lies: its place among the values. */
static uint32_t value_index(uint32_t thread, uint32_t i, uint32_t columns) {
    const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
    return row * columns + i / 4 * 8 + thread % 4 * 2 + i % 2;
}

/* Registers to values and poison, or back. */
static void take_registers(accumulators &sums, uint32_t thread, bool halves, uint32_t columns) {
    const std::vector<uint32_t *> &registers = sums.threads[thread];
    for (uint32_t i = 0; i < registers.size(); i++) {
        const uint32_t value = *registers[i];
        if (halves) {
            sums.values[value_index(thread, 2 * i, columns)] = ptx_bits(ptx_from_f16(value & 0xffff));
            sums.values[value_index(thread, 2 * i + 1, columns)] = ptx_bits(ptx_from_f16(value >> 16));
        } else {
            sums.values[value_index(thread, i, columns)] = value;
        }
        *registers[i] = POISON;
    }
}

static void check_registers(const accumulators &sums, uint32_t thread, const ptx_instruction &instruction) {
    for (const uint32_t *at : sums.threads[thread]) {
        if (*at != POISON) {
            ptx_fail(instruction,
                     "an accumulator of thread %u of the warpgroup changed before anybody waited", thread);
        }
    }
}

static void give_registers(const accumulators &sums, const ptx_instruction &instruction) {
    const uint32_t columns = (uint32_t)instruction.a;
    for (uint32_t thread = 0; thread < EMU_WARPGROUP; thread++) {
        check_registers(sums, thread, instruction);
        const std::vector<uint32_t *> &registers = sums.threads[thread];
        for (uint32_t i = 0; i < registers.size(); i++) {
            if (instruction.c & TO_F16) {
                const float low = ptx_float(sums.values[value_index(thread, 2 * i, columns)]);
                const float high = ptx_float(sums.values[value_index(thread, 2 * i + 1, columns)]);
                *registers[i] = ptx_to_f16(low) | ptx_to_f16(high) << 16;
            } else {
                *registers[i] = sums.values[value_index(thread, i, columns)];
            }
        }
    }
}

/* ---- issuing ---- */

static ptx_warpgroup &own_warpgroup(const ptx_instruction &instruction) {
    const emu_thread *thread = emu_self();
    if ((thread->index / EMU_WARPGROUP + 1) * EMU_WARPGROUP > thread->block->threads) {
        ptx_fail(instruction, "thread %u is in no whole warpgroup", thread->index);
    }
    auto &place = ptx_block_of(thread->block)->warpgroups[thread->index / EMU_WARPGROUP];
    if (!place) {
        place.reset(new ptx_warpgroup());
    }
    return *place;
}

/* The accumulators of a pending product that are these registers of the thread. */
static std::shared_ptr<accumulators> find_pending(const ptx_warpgroup &group, uint32_t thread,
                                                  uint64_t before, const uint32_t *first_register) {
    for (uint64_t i = before; i-- > group.done;) {
        const std::shared_ptr<accumulators> &sums = group.products[i - group.done].sums;
        if (!sums->threads[thread].empty() && sums->threads[thread][0] == first_register) {
            return sums;
        }
    }
    return nullptr;
}

/* How the operands behind the factors are counted: scale of D, of A, of B, transposition of A, of B. */
struct issue {
    uint64_t a_bits, b_bits;
    bool add;
};

static issue read_issue(const ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    issue result = {};
    result.a_bits = instruction.c & IN_REGISTERS ? 0 : ptx_get(call, operands[1], 8);
    result.b_bits = ptx_get(call, operands[2], 8);
    result.add = ptx_get(call, operands[3], 1) & 1;
    return result;
}

/* Every 16 bytes of the tile. */
static void check_fenced(const descriptor &matrix, uint32_t rows, const ptx_instruction &instruction) {
    const uint32_t lines = matrix.transposed ? DEPTH_BYTES / 2 : rows;
    const uint32_t pieces = matrix.transposed ? rows / 8 : DEPTH_BYTES / 16;
    for (uint32_t i = 0; i < lines * pieces; i++) {
        ptx_proxy_read(place_of(matrix, i / pieces, i % pieces), 16, instruction);
    }
}

static product begin_product(const ptx_instruction &instruction, const issue &issue, uint64_t group) {
    const uint32_t columns = (uint32_t)instruction.a;
    product fresh = {};
    fresh.instruction = &instruction;
    fresh.group = group;
    fresh.add = issue.add;
    fresh.a_in_memory = !(instruction.c & IN_REGISTERS);
    fresh.b = read_descriptor(issue.b_bits, instruction.c & TRANSPOSE_B, instruction);
    fresh.b_bytes.resize(columns * DEPTH_BYTES);
    read_tile(fresh.b, columns, instruction, fresh.b_bytes.data());
    check_fenced(fresh.b, columns, instruction);
    if (fresh.a_in_memory) {
        fresh.a = read_descriptor(issue.a_bits, instruction.c & TRANSPOSE_A, instruction);
        read_tile(fresh.a, ROWS, instruction, fresh.a_bytes[0]);
        check_fenced(fresh.a, ROWS, instruction);
    }
    return fresh;
}

/* The threads of a warpgroup issue the same products in the same order. */
static void check_same(const product &product, const ptx_instruction &instruction, const issue &issue,
                       uint64_t group) {
    if (product.instruction != &instruction || product.b.bits != issue.b_bits || product.add != issue.add ||
        product.group != group || (product.a_in_memory && product.a.bits != issue.a_bits)) {
        ptx_fail(instruction, "threads of one warpgroup issue different products");
    }
}

static void issue_registers(const ptx_call &call, const ptx_instruction &instruction, uint32_t thread,
                            product *product) {
    for (uint32_t r = 0; r < 4; r++) {
        const uint32_t bits = ptx_get32(call, instruction.operands[1].parts[r]);
        const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + r % 2 * 8;
        memcpy(&product->a_bytes[row][thread % 4 * 4 + r / 2 * 16], &bits, sizeof bits);
    }
}

static void issue_accumulators(const ptx_call &call, ptx_warpgroup &group, product *product,
                               uint64_t number) {
    const ptx_instruction &instruction = *product->instruction;
    const uint32_t columns = (uint32_t)instruction.a, thread = emu_self()->index % EMU_WARPGROUP;
    const std::vector<ptx_operand> &parts = instruction.operands[0].parts;
    uint32_t *registers[LARGEST / 2];
    for (size_t i = 0; i < parts.size(); i++) {
        registers[i] = (uint32_t *)call.arguments[parts[i].index].at;
    }
    const std::shared_ptr<accumulators> pending = find_pending(group, thread, number, registers[0]);
    if (!product->sums) {
        product->sums = pending ? pending : std::make_shared<accumulators>();
        product->sums->values.resize(ROWS * columns);
        product->sums->threads.resize(EMU_WARPGROUP);
        product->sums->pending++;
    }
    accumulators &sums = *product->sums;
    if (pending) {
        const std::vector<uint32_t *> &known = pending->threads[thread];
        if (pending != product->sums ||
            !std::equal(known.begin(), known.end(), registers, registers + parts.size())) {
            ptx_fail(instruction, "its accumulators are some of those of another pending product");
        }
        check_registers(sums, thread, instruction);
        return;
    }
    if (!ptx_thread_now()->fenced) {
        ptx_fail(instruction, "no wgmma.fence since the accumulators were last used");
    }
    sums.threads[thread].assign(registers, registers + parts.size());
    take_registers(sums, thread, instruction.c & TO_F16, columns);
}

static void run_product(ptx_call &call, const ptx_instruction &instruction) {
    ptx_warpgroup &group = own_warpgroup(instruction);
    ptx_thread *thread = ptx_thread_now();
    const uint64_t number = thread->products++;
    const issue issue = read_issue(call, instruction);
    if (number == group.done + group.products.size()) {
        group.products.push_back(begin_product(instruction, issue, thread->product_groups));
    }
    product &product = group.products[number - group.done];
    check_same(product, instruction, issue, thread->product_groups);
    if (instruction.c & IN_REGISTERS) {
        issue_registers(call, instruction, emu_self()->index % EMU_WARPGROUP, &product);
    }
    issue_accumulators(call, group, &product, number);
    product.issued++;
}

/* ---- the rest of the instructions ---- */

static void run_fence(ptx_call &, const ptx_instruction &) {
    ptx_thread_now()->fenced = true;
}

static void run_commit(ptx_call &, const ptx_instruction &) {
    ptx_thread_now()->product_groups++;
}

/* The first of the warpgroup to come back from the meeting does all. */
static void run_wait(ptx_call &call, const ptx_instruction &instruction) {
    static constexpr emu_group WARPGROUP = {EMU_GROUP_OF_WARPS, 0};
    const ptx_operand &operand = instruction.operands[0];
    const uint32_t left = ptx_get32(call, operand);
    ptx_warpgroup &group = own_warpgroup(instruction);
    ptx_thread *thread = ptx_thread_now();
    const uint64_t before = group.done;
    emu_gather(WARPGROUP, &left, sizeof left, instruction.text.c_str());
    while (!group.products.empty() && group.products.front().group + left < thread->product_groups) {
        const product &product = group.products.front();
        carry_out(product);
        if (--product.sums->pending == 0) {
            give_registers(*product.sums, *product.instruction);
        }
        group.products.pop_front();
        group.done++;
    }
    thread->fenced = thread->fenced && group.done == before;
}

/* wgmma.mma_async.sync.aligned.m64n*k*.D.A.B d, a, b, scale of d {, scale of a, scale of b {,
 * transpositions}} */
static void decode_product(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    for (int columns = 8; columns <= LARGEST; columns += 8) {
        for (int depth = 8; depth <= 32; depth *= 2) {
            const std::string shape = "m64n" + std::to_string(columns) + "k" + std::to_string(depth);
            if (ptx_take(decoder, shape.c_str())) {
                instruction.a = columns;
                instruction.b = depth;
            }
        }
    }
    const bool saturate = ptx_take(decoder, "satfinite");
    const ptx_type *to = ptx_take_type(decoder);
    instruction.type = ptx_take_type(decoder);
    instruction.from = ptx_take_type(decoder);
    ptx_factor a, b;
    const bool factors = ptx_find_factor(instruction.type, &a) && ptx_find_factor(instruction.from, &b);
    if (!factors || instruction.b * a.bytes != DEPTH_BYTES || a.bytes != b.bytes || a.integer != b.integer ||
        (a.integer ? !ptx_is(to, "s32") : !ptx_is(to, "f32") && !ptx_is(to, "f16"))) {
        ptx_unknown(decoder, "types do not go with the shape");
    }
    const std::vector<ptx_operand> &operands = instruction.operands;
    const bool registers = operands.size() > 1 && operands[1].kind == PTX_VECTOR, halves = ptx_is(to, "f16");
    const int transpositions = a.bytes != 2 ? 0 : registers ? 1 : 2;
    ptx_count(decoder, a.integer ? 4 : 6 + transpositions, -1);
    if (!a.integer && (operands[4].value != 1 || operands[5].value != 1)) {
        ptx_unknown(decoder, "negated factors are not supported");
    }
    instruction.c = (registers ? IN_REGISTERS : 0) | (halves ? TO_F16 : 0) | (saturate ? SATURATE : 0);
    if (transpositions > 0) {
        instruction.c |= operands.back().value ? TRANSPOSE_B : 0;
        instruction.c |= transpositions == 2 && operands[6].value ? TRANSPOSE_A : 0;
    }
    bool all_arguments = true;
    for (const ptx_operand &part : operands[0].parts) {
        all_arguments = all_arguments && part.kind == PTX_ARGUMENT;
    }
    if (operands[0].parts.size() != (size_t)instruction.a / (halves ? 4 : 2) || !all_arguments ||
        (registers && operands[1].parts.size() != 4)) {
        ptx_unknown(decoder, "registers do not go with the shape");
    }
    instruction.run = run_product;
}

bool ptx_decode_wgmma(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name != "wgmma") {
        return false;
    }
    const int what = ptx_take_choice(decoder, "fence commit_group wait_group mma_async");
    if (what < 0 || !ptx_take(decoder, "sync") || !ptx_take(decoder, "aligned")) {
        ptx_unknown(decoder, "no such instruction");
    }
    if (what == 3) {
        decode_product(decoder);
        return true;
    }
    ptx_count(decoder, what == 2 ? 1 : 0, -1);
    instruction.run = what == 0 ? run_fence : what == 1 ? run_commit : run_wait;
    return true;
}

/* Tests of the interpreter's matrix instructions, of copies of boxes, and of clusters. */
#include "test_ptx.h"
#include "ptx_numbers.h"

#include <cuda.h>

/* ---- matrices of numbers ---- */

/* A type of factors: how a small whole number is written in it. */
struct kind {
    const char *name;
    uint32_t bytes;
    int32_t least, most;
};

static void encode(const kind &kind, int32_t value, unsigned char *to) {
    const float x = (float)value;
    uint32_t bits = (uint32_t)value;
    if (strcmp(kind.name, "f16") == 0) {
        bits = ptx_to_f16(x);
    } else if (strcmp(kind.name, "bf16") == 0) {
        bits = ptx_to_bf16(x);
    } else if (strcmp(kind.name, "tf32") == 0) {
        bits = ptx_bits(x);
    } else if (strcmp(kind.name, "e4m3") == 0) {
        bits = ptx_narrow(x, PTX_FORMAT_E4M3, PTX_NEAREST_EVEN, true);
    } else if (strcmp(kind.name, "e5m2") == 0) {
        bits = ptx_narrow(x, PTX_FORMAT_E5M2, PTX_NEAREST_EVEN, true);
    }
    memcpy(to, &bits, kind.bytes);
}

/* The element at (row, k) of A, of B by column, of C: the same for all threads. */
static int32_t element(const kind &kind, uint32_t matrix, uint32_t row, uint32_t k) {
    const uint32_t hash = (matrix * 7919u + row * 104729u + k * 1299709u) * 2654435769u >> 8;
    return kind.least + (int32_t)(hash % (uint32_t)(kind.most - kind.least + 1));
}

static int32_t product_at(const kind &a, const kind &b, uint32_t row, uint32_t column, uint32_t depth) {
    int32_t sum = 0;
    for (uint32_t k = 0; k < depth; k++) {
        sum += element(a, 0, row, k) * element(b, 1, column, k);
    }
    return sum;
}

static const kind F16 = {"f16", 2, -4, 4}, BF16 = {"bf16", 2, -4, 4}, TF32 = {"tf32", 4, -4, 4},
                  E4M3 = {"e4m3", 1, -4, 4}, E5M2 = {"e5m2", 1, -4, 4}, S8 = {"s8", 1, -128, 127},
                  U8 = {"u8", 1, 0, 255};
static const kind SUM = {"f32", 4, -9, 9};

/* ---- mma: places of elements as the PTX ISA's tables of fragments give them ---- */

/* Register r, element e of a lane's fragment of A: row and k. `wide` factors have two registers of each 8
 * rows. */
static void place_in_a(uint32_t lane, uint32_t r, uint32_t e, uint32_t per_register, uint32_t *row,
                       uint32_t *k) {
    *row = lane / 4 + (r == 1 || r == 3 ? 8 : 0);
    *k = lane % 4 * per_register + e + (r >= 2 ? 4 * per_register : 0);
}

static void check_mma(const char *text, const kind &a, const kind &b, uint32_t depth, bool integer) {
    const uint32_t lane = emu_self()->lane, per_register = 4 / a.bytes, registers = depth / per_register / 2;
    uint32_t a_bits[4] = {}, b_bits[2] = {}, d[4];
    for (uint32_t r = 0; r < registers; r++) {
        for (uint32_t e = 0; e < per_register; e++) {
            uint32_t row, k;
            place_in_a(lane, r, e, per_register, &row, &k);
            encode(a, element(a, 0, row, k), (unsigned char *)&a_bits[r] + e * a.bytes);
        }
    }
    for (uint32_t r = 0; r < registers / 2; r++) {
        for (uint32_t e = 0; e < per_register; e++) {
            const uint32_t k = lane % 4 * per_register + e + r * 4 * per_register;
            encode(b, element(b, 1, lane / 4, k), (unsigned char *)&b_bits[r] + e * b.bytes);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        const int32_t c = element(SUM, 2, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
        d[i] = integer ? (uint32_t)c : ptx_bits((float)c);
    }
    if (registers == 4) {
        ptx(text, {out(d[0]), out(d[1]), out(d[2]), out(d[3]), in(a_bits[0]), in(a_bits[1]), in(a_bits[2]),
                   in(a_bits[3]), in(b_bits[0]), in(b_bits[1])});
    } else {
        ptx(text, {out(d[0]), out(d[1]), out(d[2]), out(d[3]), in(a_bits[0]), in(a_bits[1]), in(b_bits[0])});
    }
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        const int32_t expected = product_at(a, b, row, column, depth) + element(SUM, 2, row, column);
        CHECK(d[i] == (integer ? (uint32_t)expected : ptx_bits((float)expected)));
    }
}

#define LONG " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#define SHORT " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"

static void test_mma() {
    check_mma("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" LONG, F16, F16, 16, false);
    check_mma("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" LONG, BF16, BF16, 16, false);
    check_mma("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32" SHORT, BF16, BF16, 8, false);
    check_mma("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" LONG, TF32, TF32, 8, false);
    check_mma("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32" SHORT, TF32, TF32, 4, false);
    check_mma("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32" LONG, E4M3, E5M2, 32, false);
    check_mma("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" LONG, S8, S8, 32, true);
    check_mma("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" LONG, U8, S8, 32, true);
    check_mma("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32" SHORT, U8, S8, 16, true);
    check_mma("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32" SHORT, S8, S8, 16, true);
}

/* ---- ldmatrix and its like: element (row, column) of matrix m is 64 m + 8 row + column ---- */

static void test_ldmatrix() {
    const uint32_t lane = emu_self()->lane;
    uint16_t *shared = (uint16_t *)emu_self()->block->dynamic_shared;
    const uint32_t at = emu_shared_address(shared);
    for (uint32_t i = lane; i < 256; i += 32) {
        shared[i] = (uint16_t)i;
    }
    ptx("bar.warp.sync 0xffffffff;", {});
    uint32_t r[4];
    const uint32_t first = lane / 4 * 8 + lane % 4 * 2;
    ptx("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];",
        {out(r[0]), out(r[1]), out(r[2]), out(r[3]), in(at + 16 * lane)});
    for (uint32_t m = 0; m < 4; m++) {
        CHECK(r[m] == (64 * m + first) + (64 * m + first + 1) * 65536u);
    }
    uint32_t turned = 0;
    ptx("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;", {out(turned), in(r[0])});
    const uint32_t down = lane % 4 * 16 + lane / 4; /* rows 2 (lane % 4) and the next of column lane / 4 */
    CHECK(turned == down + (down + 8) * 65536u);
    ptx("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];",
        {out(r[0]), out(r[1]), in(at + 16 * lane)});
    CHECK(r[0] == turned && r[1] == turned + 64 * 65537u);
    ptx("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};",
        {in(at + 512 + 16 * lane), in(r[0]), in(r[1])});
    ptx("bar.warp.sync 0xffffffff;", {});
    for (uint32_t i = lane; i < 128; i += 32) {
        CHECK(shared[256 + i] == i);
    }
}

/* ---- wgmma ---- */

/* Tile of `rows` rows of 32 bytes along the sum, at `at`, for a swizzle of `span` bytes (0: none), as the PTX
 * ISA's pictures of canonical layouts show it. Returns the descriptor. */
static uint64_t write_tile(const kind &kind, uint32_t matrix, uint32_t rows, uint32_t span, bool transposed,
                           uint32_t offset) {
    unsigned char *base = emu_self()->block->dynamic_shared + offset;
    const uint32_t depth = 32 / kind.bytes, pattern = span ? span / 16 : 1;
    uint32_t leading = 0, stride = 0;
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t k = 0; k < depth; k++) {
            uint32_t line = row, byte = k * kind.bytes; /* a line is what lies together */
            if (transposed) {
                line = k;
                byte = row * kind.bytes;
            }
            uint32_t at;
            if (span == 0) { /* pieces of 8 lines of 16 bytes: along the lines first here */
                const uint32_t lines = transposed ? depth : rows;
                at = (byte / 16 * (lines / 8) + line / 8) * 128 + line % 8 * 16 + byte % 16;
                leading = transposed ? 128 : lines / 8 * 128;
                stride = transposed ? lines / 8 * 128 : 128;
            } else { /* lines of a pattern, eight to a group; then what is wider than the pattern */
                const uint32_t group = 8 * span, groups = transposed ? depth / 8 : 1;
                const uint32_t inside = byte % span, wide = byte / span;
                const uint32_t turn = span == 128 ? line % 8 : span == 64 ? line % 8 / 2 : line % 8 / 4;
                at = (wide * groups + line / 8) * group + line % 8 * span +
                     ((inside / 16) ^ turn % pattern) * 16 + inside % 16;
                leading = groups * group;
                stride = group;
            }
            encode(kind, element(kind, matrix, row, k), base + at);
        }
    }
    const uint64_t mode = span == 128 ? 1 : span == 64 ? 2 : span == 32 ? 3 : 0;
    return (uint64_t)(emu_shared_address(base) >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | mode << 62;
}

/* One product of 64 rows and 16 columns; a_span < 0: A in registers. The result is twice the product: it is
 * issued two times, the first one without adding. */
struct wgmma_test {
    const char *text;
    const kind &a, &b;
    int32_t a_span;
    bool a_turned;
    uint32_t b_span;
    bool b_turned;
};

static void check_wgmma(const wgmma_test &test) {
    const uint32_t thread = emu_self()->index, lane = thread % 32, depth = 32 / test.a.bytes;
    const bool integer = test.a.least < -100;
    static uint64_t a_at, b_at;
    ptx("bar.sync 0;", {});
    if (thread == 0) {
        b_at = write_tile(test.b, 1, 16, test.b_span, test.b_turned, 0);
        a_at = test.a_span < 0 ? 0 : write_tile(test.a, 0, 64, (uint32_t)test.a_span, test.a_turned, 32768);
    }
    ptx("fence.proxy.async.shared::cta;", {});
    ptx("bar.sync 0;", {});
    uint32_t a[4] = {}, d[8];
    for (uint32_t r = 0; r < 4; r++) {
        for (uint32_t e = 0; e < 4 / test.a.bytes; e++) {
            uint32_t row, k;
            place_in_a(lane, r, e, 4 / test.a.bytes, &row, &k);
            encode(test.a, element(test.a, 0, thread / 32 * 16 + row, k),
                   (unsigned char *)&a[r] + e * test.a.bytes);
        }
    }
    std::fill(d, d + 8, 77u);
    ptx("wgmma.fence.sync.aligned;", {});
    for (uint32_t add = 0; add < 2; add++) {
        ptx(test.text, {out(d[0]), out(d[1]), out(d[2]), out(d[3]), out(d[4]), out(d[5]), out(d[6]),
                        out(d[7]), in(a[0]), in(a[1]), in(a[2]), in(a[3]), in(a_at), in(b_at), in(add)});
        std::fill(a, a + (add ? 0 : 0), 0u);
    }
    ptx("wgmma.commit_group.sync.aligned;", {});
    CHECK(d[0] == 0xffffffffu && d[7] == 0xffffffffu);
    ptx("wgmma.wait_group.sync.aligned 0;", {});
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t row = thread / 32 * 16 + lane / 4 + (i % 4 >= 2 ? 8 : 0);
        const uint32_t column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int32_t expected = 2 * product_at(test.a, test.b, row, column, depth);
        CHECK(d[i] == (integer ? (uint32_t)expected : ptx_bits((float)expected)));
    }
}

#define WGMMA(shape, types, a, rest)                                                                         \
    "{.reg .pred p; setp.ne.b32 p, %14, 0;\nwgmma.mma_async.sync.aligned." shape "." types                   \
    " {%0,%1,%2,%3,%4,%5,%6,%7}, " a ", %13, p" rest ";}"
#define REGISTERS "{%8,%9,%10,%11}"

static void test_wgmma() {
    const wgmma_test tests[] = {
        {WGMMA("m64n16k16", "f32.bf16.bf16", REGISTERS, ", 1, 1, 0"), BF16, BF16, -1, false, 128, false},
        {WGMMA("m64n16k16", "f32.f16.f16", REGISTERS, ", 1, 1, 0"), F16, F16, -1, false, 64, false},
        {WGMMA("m64n16k16", "f32.f16.f16", REGISTERS, ", 1, 1, 0"), F16, F16, -1, false, 32, false},
        {WGMMA("m64n16k16", "f32.f16.f16", REGISTERS, ", 1, 1, 0"), F16, F16, -1, false, 0, false},
        {WGMMA("m64n16k16", "f32.f16.f16", REGISTERS, ", 1, 1, 1"), F16, F16, -1, false, 0, true},
        {WGMMA("m64n16k16", "f32.f16.f16", REGISTERS, ", 1, 1, 1"), F16, F16, -1, false, 32, true},
        {WGMMA("m64n16k16", "f32.f16.f16", "%12", ", 1, 1, 0, 0"), F16, F16, 128, false, 128, false},
        {WGMMA("m64n16k16", "f32.f16.f16", "%12", ", 1, 1, 1, 0"), F16, F16, 128, true, 128, false},
        {WGMMA("m64n16k16", "f32.f16.f16", "%12", ", 1, 1, 1, 1"), F16, F16, 64, true, 32, true},
        {WGMMA("m64n16k16", "f32.f16.f16", "%12", ", 1, 1, 1, 0"), F16, F16, 32, true, 0, false},
        {WGMMA("m64n16k8", "f32.tf32.tf32", "%12", ", 1, 1"), TF32, TF32, 128, false, 128, false},
        {WGMMA("m64n16k32", "f32.e4m3.e4m3", REGISTERS, ", 1, 1"), E4M3, E4M3, -1, false, 128, false},
        {WGMMA("m64n16k32", "f32.e5m2.e4m3", "%12", ", 1, 1"), E5M2, E4M3, 0, false, 128, false},
        {WGMMA("m64n16k32", "f32.e4m3.e4m3", "%12", ", 1, 1"), E4M3, E4M3, 128, false, 128, false},
        {WGMMA("m64n16k32", "s32.s8.s8", REGISTERS, ""), S8, S8, -1, false, 128, false},
        {WGMMA("m64n16k32", "s32.s8.s8", "%12", ""), S8, S8, 128, false, 128, false},
        {WGMMA("m64n16k32", "s32.s8.u8", "%12", ""), S8, U8, 128, false, 32, false},
    };
    for (const wgmma_test &test : tests) {
        check_wgmma(test);
    }
}

#define PLAIN_WGMMA                                                                                          \
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, {%4,%4,%4,%4}, %5, 0, 1, 1, 0;"

/* Tile at the block's first bytes, A of ones, fresh sums. */
static void issue_plain(float *d) {
    const uint64_t at = (uint64_t)(emu_shared_address(emu_self()->block->dynamic_shared) >> 4 & 0x3fff) |
                        (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
    ptx(PLAIN_WGMMA, {out(d[0]), out(d[1]), out(d[2]), out(d[3]), in(0x3c003c00u), in(at)});
}
static void no_fence() {
    float d[4];
    ptx("fence.proxy.async;", {});
    issue_plain(d);
}
static void tile_changes() {
    float d[4];
    memset(emu_self()->block->dynamic_shared, 0, 512);
    ptx("fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned;", {});
    issue_plain(d);
    ptx("wgmma.commit_group.sync.aligned;", {});
    emu_self()->block->dynamic_shared[5] = 1;
    ptx("wgmma.wait_group.sync.aligned 0;", {});
}
static void sums_change() {
    float d[4];
    ptx("fence.proxy.async; wgmma.fence.sync.aligned;", {});
    issue_plain(d);
    ptx("wgmma.commit_group.sync.aligned;", {});
    d[2] = 3;
    ptx("wgmma.wait_group.sync.aligned 0;", {});
}
static void different_products() {
    float d[4];
    ptx("fence.proxy.async; wgmma.fence.sync.aligned;", {});
    if (emu_self()->index == 77) {
        ptx("wgmma.commit_group.sync.aligned;", {});
    }
    issue_plain(d);
}
/* Threads write a tile: for the first product with a fence, for the second without. */
static void tile_without_fence() {
    float d[4];
    for (uint32_t round = 0; round < 2; round++) {
        memset(emu_self()->block->dynamic_shared, (int)round, 512);
        if (round == 0) {
            ptx("fence.proxy.async.shared::cta;", {});
        }
        ptx("bar.sync 0; wgmma.fence.sync.aligned;", {});
        issue_plain(d);
        ptx("wgmma.commit_group.sync.aligned;", {});
        ptx("wgmma.wait_group.sync.aligned 0;", {});
        CHECK(round == 0);
    }
}
static void store_without_fence() {
    alignas(16) static uint32_t to[4];
    memset(emu_self()->block->dynamic_shared, 1, 16);
    ptx("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;",
        {in(&to[0]), in(emu_shared_address(emu_self()->block->dynamic_shared))});
}
/* Not committed: the wait does not wait for it. */
static void test_uncommitted() {
    float d[4], e[4];
    memset(emu_self()->block->dynamic_shared, 0, 512);
    ptx("fence.proxy.async; bar.sync 0; wgmma.fence.sync.aligned;", {});
    issue_plain(d);
    ptx("wgmma.commit_group.sync.aligned;", {});
    issue_plain(e);
    ptx("wgmma.wait_group.sync.aligned 0;", {});
    CHECK(d[0] == 0 && ptx_bits(e[0]) == 0xffffffffu);
    ptx("wgmma.commit_group.sync.aligned;", {});
    ptx("wgmma.wait_group.sync.aligned 0;", {});
    CHECK(e[0] == 0);
}

/* ---- boxes of tensors ---- */

/* 2 layers of 10 rows of 40 numbers (48 in memory); a box of 8 rows of 32 that begins in row 4 and column 16.
 */
static uint16_t tensor[2][10][48];

static emu_tensor_map make_map(CUtensorMapSwizzle swizzle) {
    emu_tensor_map map = {};
    map.magic = EMU_TENSOR_MAP;
    map.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
    map.rank = 3;
    map.swizzle = (uint8_t)swizzle;
    map.address = (uint64_t)(uintptr_t)tensor;
    const uint64_t sizes[3] = {40, 10, 2};
    const uint16_t box[3] = {32, 8, 1};
    for (int i = 0; i < 3; i++) {
        map.size[i] = sizes[i];
        map.box[i] = box[i];
        map.step[i] = 1;
    }
    map.stride[0] = sizeof tensor[0][0];
    map.stride[1] = sizeof tensor[0];
    return map;
}

static void test_box() {
    alignas(64) const emu_tensor_map map = make_map(CU_TENSOR_MAP_SWIZZLE_64B);
    for (uint32_t i = 0; i < sizeof tensor / 2; i++) {
        const uint16_t value = (uint16_t)(i + 1);
        memcpy((unsigned char *)tensor + 2 * i, &value, 2);
    }
    unsigned char *shared = emu_self()->block->dynamic_shared;
    const uint32_t barrier = emu_shared_address(shared), to = barrier + 1024;
    ptx("mbarrier.init.shared::cta.b64 [%0], 1;", {in(barrier)});
    ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;", {in(barrier)});
    ptx("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
        "%4}], [%5];",
        {in(to), in((const void *)&map), in(16), in(4), in(1), in(barrier)});
    ptx("{.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra "
        "again;}",
        {in(barrier)});
    for (uint32_t row = 0; row < 8; row++) {
        for (uint32_t column = 0; column < 32; column++) {
            const uint32_t piece = column / 8 ^ row / 2 % 4; /* rows of 64 bytes: two of them to 128 */
            uint16_t value;
            memcpy(&value, shared + 1024 + row * 64 + piece * 16 + column % 8 * 2, 2);
            const bool inside = row + 4 < 10 && column + 16 < 40;
            CHECK(value == (inside ? tensor[1][row + 4][column + 16] : 0));
        }
    }
    tensor[1][4][16] = 0;
    ptx("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];",
        {in((const void *)&map), in(16), in(4), in(1), in(to)});
    ptx("cp.async.bulk.commit_group;", {});
    CHECK(tensor[1][4][16] == 0);
    ptx("cp.async.bulk.wait_group.read 0;", {});
    CHECK(tensor[1][4][16] == 480 + 4 * 48 + 16 + 1);
}

/* ---- clusters ---- */

static void test_cluster() {
    alignas(16) static const uint32_t source[4] = {1, 2, 3, 4};
    const uint32_t rank = emu_self()->block->cluster_rank;
    uint32_t *shared = (uint32_t *)emu_self()->block->dynamic_shared;
    const uint32_t at = emu_shared_address(shared);
    uint32_t blocks = 0, other = 0, value = 0;
    ptx("mov.u32 %0, %%cluster_nctarank;", {out(blocks)});
    CHECK(blocks == 2);
    shared[8] = 100 + rank;
    ptx("mbarrier.init.shared::cta.b64 [%0], 2;", {in(at)});
    ptx("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;", {});
    ptx("mapa.shared::cluster.u32 %0, %1, %2;", {out(other), in(at), in(rank ^ 1)});
    ptx("ld.shared::cluster.u32 %0, [%1+32];", {out(value), in(other)});
    CHECK(value == 100 + (rank ^ 1));
    uint64_t generic = 0;
    ptx("mapa.u64 %0, %1, %2;", {out(generic), in((const void *)(shared + 8)), in(rank ^ 1)});
    CHECK(*(uint32_t *)(uintptr_t)generic == 100 + (rank ^ 1));
    ptx("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];", {in(other)});
    ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;", {in(at)});
    if (rank == 0) {
        ptx("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1], 16, [%2], %3;",
            {in(at + 64), in(&source[0]), in(at), in((uint16_t)3)});
    }
    ptx("{.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra "
        "again;}",
        {in(at)});
    CHECK(shared[16] == 1 && shared[19] == 4);
    ptx("mbarrier.init.shared::cta.b64 [%0], 1;", {in(at + 96)});
    ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4;", {in(at + 96)});
    ptx("barrier.cluster.arrive; barrier.cluster.wait;", {});
    ptx("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0+104], %1, [%0+96];",
        {in(other), in(7u + rank)});
    ptx("{.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra "
        "again;}",
        {in(at + 96)});
    CHECK(shared[26] == 7 + (rank ^ 1));
    ptx("barrier.cluster.arrive; barrier.cluster.wait;", {});
}

/* Each of two blocks brings one layer to both. */
static void test_box_to_all() {
    alignas(64) const emu_tensor_map map = make_map(CU_TENSOR_MAP_SWIZZLE_NONE);
    const uint32_t rank = emu_self()->block->cluster_rank;
    unsigned char *shared = emu_self()->block->dynamic_shared;
    const uint32_t at = emu_shared_address(shared);
    for (uint32_t i = 0; i < sizeof tensor / 2; i++) {
        const uint16_t value = (uint16_t)(3 * i + 1);
        memcpy((unsigned char *)tensor + 2 * i, &value, 2);
    }
    ptx("mbarrier.init.shared::cta.b64 [%0], 1;", {in(at)});
    ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;", {in(at)});
    ptx("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;", {});
    ptx("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], "
        "[%1, {%2, %3, %4}], [%5], %6;",
        {in(at + 512 * (1 + rank)), in((const void *)&map), in(0), in(1), in(rank), in(at), in((uint16_t)3)});
    ptx("{.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra "
        "again;}",
        {in(at)});
    for (uint32_t i = 0; i < 2 * 8 * 32; i++) {
        uint16_t value;
        memcpy(&value, shared + 512 + 2 * i, 2);
        CHECK(value == tensor[i / 256][1 + i / 32 % 8][i % 32]);
    }
    ptx("barrier.cluster.arrive; barrier.cluster.wait;", {});
}

const test_case test_matrix_cases[] = {
    {"mma", test_mma, 32, 1, nullptr},
    {"ldmatrix, movmatrix, stmatrix", test_ldmatrix, 32, 1, nullptr},
    {"wgmma", test_wgmma, 128, 1, nullptr},
    {"wgmma that is not committed", test_uncommitted, 128, 1, nullptr},
    {"wgmma without fence", no_fence, 128, 1, "no wgmma.fence"},
    {"a tile that changes", tile_changes, 128, 1, "shared memory that it reads changed"},
    {"a tile without a fence", tile_without_fence, 128, 1, "no fence.proxy.async came after"},
    {"a store without a fence", store_without_fence, 1, 1, "no fence.proxy.async came after"},
    {"sums that change", sums_change, 128, 1, "changed before anybody waited"},
    {"different products", different_products, 128, 1, "issue different products"},
    {"wgmma by half a warpgroup", no_fence, 64, 1, "no whole warpgroup"},
    {"boxes of tensors", test_box, 1, 1, nullptr},
    {"clusters", test_cluster, 1, 2, nullptr},
    {"boxes to all blocks of a cluster", test_box_to_all, 1, 2, nullptr},
};
const size_t test_matrix_count = sizeof test_matrix_cases / sizeof *test_matrix_cases;

/* The interpreter of inline PTX: every family of instructions against what the PTX ISA says, computed here in
 * the plainest way; and mistakes, which must be reported. Numbers in matrices are small and whole, so that
 * sums are exact in any order. */
#include "test_ptx.h"

#include <cmath>
#include <fcntl.h>
#include <unistd.h>

int test_passed, test_failed;

/* ---- numbers ---- */

/* Value of a code, from the definition of the formats. */
static double decode(uint32_t code, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double mantissa = code & ((1u << mantissa_bits) - 1);
    const int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    const double sign = code >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;
    const double unit = std::ldexp(1.0, -mantissa_bits);
    return exponent == 0 ? sign * std::ldexp(mantissa * unit, 1 - bias)
                         : sign * std::ldexp(1 + mantissa * unit, exponent - bias);
}

/* The nearest of all finite codes, an even one of two, found by looking at all. */
static uint32_t nearest(double x, int exponent_bits, int mantissa_bits, uint32_t codes) {
    uint32_t best = 0;
    for (uint32_t code = 0; code < codes; code++) {
        const double distance = std::fabs(decode(code, exponent_bits, mantissa_bits) - std::fabs(x));
        const double least = std::fabs(decode(best, exponent_bits, mantissa_bits) - std::fabs(x));
        if (distance < least || (distance == least && code % 2 == 0)) {
            best = code;
        }
    }
    return best | (uint32_t)std::signbit(x) << (exponent_bits + mantissa_bits);
}

static void test_formats() {
    for (uint32_t code = 0; code < 0x7c00; code += 7) {
        float value = 0;
        ptx("cvt.f32.f16 %0, %1;", {out(value), in((uint16_t)code)});
        CHECK(value == (float)decode(code, 5, 10));
    }
    for (int i = 0; i < 300; i++) {
        const float x =
            std::ldexp((float)test_random() / 4294967296.0f - 0.5f, (int)(test_random() % 18) - 8);
        uint32_t pair = 0;
        uint16_t bytes = 0;
        ptx("cvt.rn.f16x2.f32 %0, %1, %2;", {out(pair), in(x), in(-x)});
        CHECK(pair >> 16 == nearest(x, 5, 10, 0x7c00) && (pair & 0xffff) == nearest(-x, 5, 10, 0x7c00));
        ptx("cvt.rn.bf16x2.f32 %0, %1, %2;", {out(pair), in(-x), in(x)});
        CHECK((pair & 0xffff) == nearest(x, 8, 7, 0x7f80));
        ptx("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", {out(bytes), in(x * 8), in(-x)});
        CHECK(bytes >> 8 == nearest(x * 8, 4, 3, 0x7f) && (bytes & 0xff) == nearest(-x, 4, 3, 0x7f));
        ptx("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;", {out(bytes), in(x), in(-x)});
        CHECK(bytes >> 8 == nearest(x, 5, 2, 0x7c));
    }
    for (uint32_t code = 0; code < 0x7f; code++) {
        uint32_t pair = 0;
        ptx("{.reg .b16 low; cvt.u16.u32 low, %1; cvt.rn.f16x2.e4m3x2 %0, low;}",
            {out(pair), in(code | (code ^ 0x80u) << 8)});
        CHECK(decode(pair & 0xffff, 5, 10) == decode(code, 4, 3) &&
              (pair >> 16) == ((pair & 0xffff) ^ 0x8000));
    }
    uint16_t bytes = 0;
    ptx("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", {out(bytes), in(1e9f), in(NAN)});
    CHECK(bytes == 0x7e7f);
    uint32_t half = 0;
    ptx("{.reg .b16 h; cvt.rn.f16.f32 h, %1; mov.b32 %0, {h, h};}", {out(half), in(65520.0f)});
    CHECK(half == 0x7c007c00u);
    ptx("{.reg .b16 h; cvt.rz.f16.f32 h, %1; mov.b32 %0, {h, h};}", {out(half), in(65520.0f)});
    CHECK(half == 0x7bff7bffu);
}

/* ---- arithmetic: texts with two inputs, and results worked out by hand ---- */

static void test_arithmetic() {
    static const struct {
        const char *text;
        uint32_t x, y, result;
    } ROWS[] = {
        {"prmt.b32 %0, %1, %2, 0x4140;", 0x44332211u, 0x88776655u, 0x55225511u},
        {"prmt.b32 %0, %1, %2, 0x7bf8;", 0x44332291u, 0x88776655u, 0x8800ffffu},
        {"lop3.b32 %0, %1, %2, 0x0f0f0f0f, 0x6a;", 0xff00ff00u, 0x0ff00ff0u, 0x000f000fu},
        {"shf.l.wrap.b32 %0, %1, %2, 8;", 0x44332211u, 0x88776655u, 0x77665544u},
        {"shf.r.clamp.b32 %0, %1, %2, 40;", 0x44332211u, 0x88776655u, 0x88776655u},
        {"bfe.u32 %0, %1, 4, 8;", 0x12345678u, 0, 0x67u},
        {"bfe.s32 %0, %1, 4, 4;", 0x000000f0u, 0, 0xffffffffu},
        {"bfi.b32 %0, %1, %2, 8, 4;", 0xabu, 0x11111111u, 0x11111b11u},
        {"mul.hi.u32 %0, %1, %2;", 0x80000000u, 6, 3},
        {"mul.hi.s32 %0, %1, %2;", 0x80000000u, 2, 0xffffffffu},
        {"mad.lo.u32 %0, %1, %2, 7;", 0x10001u, 0x10000u, 0x10007u},
        {"min.s32 %0, %1, %2;", 0xffffffffu, 1, 0xffffffffu},
        {"min.u32 %0, %1, %2;", 0xffffffffu, 1, 1},
        {"shr.s32 %0, %1, 40;", 0x80000000u, 0, 0xffffffffu},
        {"shl.b32 %0, %1, 32;", 1, 0, 0},
        {"popc.b32 %0, %1;", 0xf0f01u, 0, 9},
        {"clz.b32 %0, %1;", 0x00010000u, 0, 15},
        {"brev.b32 %0, %1;", 0x1u, 0, 0x80000000u},
        {"dp4a.u32.s32 %0, %1, %2, 100;", 0x000000ffu, 0x000000ffu, (uint32_t)(100 - 255)},
        {"dp4a.s32.s32 %0, %1, %2, 0;", 0x01ff02feu, 0x05040302u, (uint32_t)(5 - 4 + 6 - 4)},
        {"add.f32 %0, %1, %2;", 0x3f800000u, 0x40000000u, 0x40400000u},
        {"max.NaN.f32 %0, %1, %2;", 0x7fc00000u, 0x40000000u, 0x7fffffffu},
        {"max.f32 %0, %1, %2;", 0x7fc00000u, 0x40000000u, 0x40000000u},
        {"ex2.approx.ftz.f32 %0, %1;", 0x40400000u, 0, 0x41000000u},
        {"ex2.approx.ftz.f32 %0, %1;", 0xc3000000u, 0, 0},
        {"sub.f16x2 %0, %1, %2;", 0x64906480u, 0x64806480u, 0x4c000000u},
        {"mul.f16x2 %0, %1, %2;", 0x3c004000u, 0x5c005c00u, 0x5c006000u},
        {"fma.rn.bf16x2 %0, %1, %2, %2;", 0x3f803f80u, 0x40003f80u, 0x40804000u},
        {"abs.bf16x2 %0, %1;", 0xbf803f80u, 0, 0x3f803f80u},
        {"max.NaN.f16x2 %0, %1, %2;", 0x7e003c00u, 0x3c00bc00u, 0x7fff3c00u},
        {"add.f16x2 %0, %1, %2;", 0x78017800u, 0x4c004c01u, 0x78027801u},
        {"add.f16x2 %0, %1, %2;", 0x00010400u, 0x00010001u, 0x00020401u},
        {"cvt.rni.s32.f32 %0, %1;", 0x40200000u, 0, 2},
        {"cvt.rzi.u32.f32 %0, %1;", 0xbf800000u, 0, 0},
        {"cvt.rn.f32.s32 %0, %1;", 0xffffffffu, 0, 0xbf800000u},
        {"cvt.u32.u8 %0, %1;", 0x1234u, 0, 0x34u},
        {"cvt.s32.s8 %0, %1;", 0x1280u, 0, 0xffffff80u},
        {"{.reg .pred p; setp.lt.s32 p, %1, %2; selp.u32 %0, 3, 4, p;}", 0xffffffffu, 0, 3},
        {"{.reg .pred p, q; setp.gt.f32 p|q, %1, %2; selp.u32 %0, 3, 4, q;}", 0x3f800000u, 0x40000000u, 3},
        {"{.reg .u64 w; mul.wide.u32 w, %1, %2; shr.u64 w, w, 32; cvt.u32.u64 %0, w;}", 0x80000000u, 6, 3},
        {"{.reg .u32 i; .reg .pred p; mov.u32 i, 0; again: add.u32 i, i, %2; setp.lt.u32 p, i, %1;\n"
         "@p bra again; mov.u32 %0, i;}",
         10, 3, 12},
        {"{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, lo};}", 0x12345678u, 0, 0x56781234u},
    };
    for (const auto &row : ROWS) {
        uint32_t result = 0xdeadbeefu;
        ptx(row.text, {out(result), in(row.x), in(row.y)});
        if (result != row.result) {
            printf("%s: %#x, not %#x\n", row.text, result, row.result);
        }
        CHECK(result == row.result);
    }
}

/* ---- lanes ---- */

static void test_lanes() {
    const uint32_t lane = emu_self()->lane, full = 0xffffffffu;
    uint32_t got = 0, flag = 0;
    ptx("mov.u32 %0, %%laneid;", {out(got)});
    CHECK(got == lane);
    ptx("shfl.sync.bfly.b32 %0, %1, 5, 31, 0xffffffff;", {out(got), in(lane * 10)});
    CHECK(got == (lane ^ 5) * 10);
    ptx("{.reg .pred p; shfl.sync.up.b32 %0|p, %2, 3, 0, %3; selp.u32 %1, 1, 0, p;}",
        {out(got), out(flag), in(lane), in(full)});
    CHECK(got == (lane < 3 ? lane : lane - 3) && flag == (lane >= 3));
    ptx("shfl.sync.down.b32 %0, %1, 2, 0x181f, %2;", {out(got), in(lane), in(full)}); /* segments of 8 */
    CHECK(got == (lane % 8 < 6 ? lane + 2 : lane));
    ptx("shfl.sync.idx.b32 %0, %1, 9, 0x181f, %2;", {out(got), in(lane), in(full)});
    CHECK(got == lane / 8 * 8 + 1);
    ptx("{.reg .pred p; setp.lt.u32 p, %1, 7; vote.sync.ballot.b32 %0, p, %2;}",
        {out(got), in(lane), in(full)});
    CHECK(got == 0x7f);
    ptx("redux.sync.add.u32 %0, %1, %2;", {out(got), in(lane), in(full)});
    CHECK(got == 31 * 16);
    ptx("redux.sync.max.s32 %0, %1, %2;", {out(got), in(-(int32_t)lane), in(full)});
    CHECK(got == 0);
    ptx("{.reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p;}", {out(got), out(flag), in(full)});
    CHECK(got == 0 && flag == (lane == 0));
    ptx("match.any.sync.b32 %0, %1, %2;", {out(got), in(lane % 3), in(full)});
    CHECK(got == (lane % 3 == 0 ? 0x49249249u : lane % 3 == 1 ? 0x92492492u : 0x24924924u));
}

/* ---- memory ---- */

static void test_access() {
    alignas(16) uint32_t memory[8] = {1, 2, 3, 4, 5, 6, 7, 0xff};
    uint32_t a = 0, b = 0, c = 0, d = 0;
    ptx("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];",
        {out(a), out(b), out(c), out(d), in(&memory[4])});
    CHECK(a == 5 && b == 6 && c == 7 && d == 0xff);
    ptx("ld.s8 %0, [%1+28];", {out(a), in(&memory[0])});
    CHECK(a == 0xffffffffu);
    ptx("st.global.v2.u32 [%0], {%1, %2};", {in(&memory[0]), in(8u), in(9u)});
    CHECK(memory[0] == 8 && memory[1] == 9);
    ptx("atom.add.release.gpu.global.u32 %0, [%1], 2;", {out(a), in(&memory[0])});
    CHECK(a == 8 && memory[0] == 10);
    ptx("red.global.max.u32 [%0], %1;", {in(&memory[0]), in(40u)});
    CHECK(memory[0] == 40);
    ptx("atom.cas.b32 %0, [%1], 40, 41;", {out(a), in(&memory[0])});
    CHECK(a == 40 && memory[0] == 41);
    const uint32_t at = emu_shared_address(emu_self()->block->dynamic_shared) + 16 * emu_self()->index;
    ptx("st.shared.u32 [%0+4], %1;", {in(at), in(77u)});
    ptx("{.reg .u64 g; .reg .u64 s; cvt.u64.u32 s, %1; cvta.shared.u64 g, s; ld.u32 %0, [g+4];}",
        {out(a), in(at)});
    CHECK(a == 77);
}

/* The others wait for the last one but one, which runs last after a barrier: each with a load or an atomic
 * operation of its own. */
static void test_polling() {
    static uint32_t flag;
    const uint32_t thread = emu_self()->index;
    uint32_t value = 0;
    ptx("bar.sync 0;", {});
    if (thread == 62) {
        ptx("red.release.gpu.global.add.u32 [%0], 5;", {in(&flag)});
    } else if (thread % 2) {
        ptx("{.reg .pred p; again: ld.acquire.gpu.global.u32 %0, [%1]; setp.ne.u32 p, %0, 5; @p bra again;}",
            {out(value), in(&flag)});
    } else {
        ptx("{.reg .pred p; again: atom.or.b32 %0, [%1], 0; setp.ne.u32 p, %0, 5; @p bra again;}",
            {out(value), in(&flag)});
    }
    CHECK(flag == 5);
    ptx("bar.sync 0;", {});
    flag = 0;
}

/* Copies land at the wait, group by group; before, what they replace is lost. */
static void test_copies() {
    alignas(16) static const uint32_t source[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t *shared = (uint32_t *)(emu_self()->block->dynamic_shared + 32 * emu_self()->index);
    const uint32_t at = emu_shared_address(shared);
    memset(shared, 0, 32);
    ptx("cp.async.cg.shared.global [%0], [%1], 16, %2;", {in(at), in(&source[0]), in(8u)});
    ptx("cp.async.commit_group;", {});
    ptx("cp.async.ca.shared.global.L2::128B [%0], [%1], 4;", {in(at + 16), in(&source[4])});
    ptx("cp.async.commit_group;", {});
    CHECK(shared[0] == 0xffffffffu && shared[3] == 0xffffffffu && shared[4] == 0xffffffffu && shared[5] == 0);
    ptx("cp.async.wait_group %0;", {in(1)});
    CHECK(shared[0] == 1 && shared[1] == 2 && shared[2] == 0 && shared[3] == 0 && shared[4] == 0xffffffffu);
    ptx("cp.async.wait_all;", {});
    CHECK(shared[4] == 5);
}

/* ---- barriers ---- */

#define WAIT                                                                                                 \
    "{.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra "        \
    "again;\n}"

/* Thread 0 fills, the others wait; then they say that they are done, and it fills again. */
static void test_barriers() {
    alignas(16) static uint32_t source[2][32];
    unsigned char *shared = emu_self()->block->dynamic_shared;
    const uint32_t full = emu_shared_address(shared), empty = full + 8, to = full + 128,
                   thread = emu_self()->index;
    uint32_t *data = (uint32_t *)(shared + 128);
    if (thread == 0) {
        for (uint32_t i = 0; i < 64; i++) {
            source[i / 32][i % 32] = i;
        }
        ptx("mbarrier.init.shared::cta.b64 [%0], %1;", {in(full), in(1u)});
        ptx("mbarrier.init.shared::cta.b64 [%0], %1;", {in(empty), in(63u)});
        ptx("fence.mbarrier_init.release.cluster;", {});
    }
    ptx("bar.sync 0;", {});
    for (uint32_t round = 0; round < 2; round++) {
        if (thread == 0) {
            ptx(WAIT, {in(empty), in(round ^ 1)});
            ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", {in(full), in(128u)});
            ptx("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
                {in(to), in(&source[round][0]), in(64u), in(full)});
            ptx("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
                {in(to + 64), in(&source[round][16]), in(64u), in(full)});
            CHECK(data[5] == 0xffffffffu);
        } else {
            ptx(WAIT, {in(full), in(round)});
            CHECK(data[thread % 32] == 32 * round + thread % 32);
            ptx("mbarrier.arrive.shared::cta.b64 _, [%0];", {in(empty)});
        }
    }
}

/* A thread's own copies arrive on a barrier that others wait for. */
static void test_copy_arrivals() {
    alignas(16) static const uint32_t source[4] = {1, 2, 3, 4};
    unsigned char *shared = emu_self()->block->dynamic_shared;
    const uint32_t barrier = emu_shared_address(shared), thread = emu_self()->index;
    uint32_t *data = (uint32_t *)(shared + 128);
    if (thread == 0) {
        ptx("mbarrier.init.shared::cta.b64 [%0], %1;", {in(barrier), in(32u)});
    }
    ptx("bar.sync 1, 64;", {});
    if (thread < 32) {
        ptx("cp.async.cg.shared.global [%0], [%1], 16;", {in(barrier + 128 + 16 * thread), in(&source[0])});
        ptx("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];", {in(barrier)});
    } else {
        ptx(WAIT, {in(barrier), in(0u)});
        CHECK(data[4 * (thread - 32) + 1] == 2);
    }
}

/* ---- mistakes ---- */

static void wrong_instruction() {
    ptx("frobnicate.u32 %0, %0, %0;", {in(1)});
}
static void wrong_modifier() {
    uint32_t d = 0;
    ptx("add.wobbly.u32 %0, %0, %0;", {out(d)});
}
static void wrong_alignment() {
    uint32_t a = 0;
    ptx("ld.global.v4.u32 {%0, %0, %0, %0}, [%1];", {out(a), in((uint64_t)0x1004)});
}
static void unknown_barrier() {
    ptx("mbarrier.arrive.shared::cta.b64 _, [%0];",
        {in(emu_shared_address(emu_self()->block->dynamic_shared))});
}
static void overwritten_barrier() {
    unsigned char *shared = emu_self()->block->dynamic_shared;
    ptx("mbarrier.init.shared::cta.b64 [%0], 3;", {in(emu_shared_address(shared))});
    shared[2] ^= 1;
    ptx("mbarrier.arrive.shared::cta.b64 _, [%0];", {in(emu_shared_address(shared))});
}
static void too_many_arrivals() {
    const uint32_t at = emu_shared_address(emu_self()->block->dynamic_shared);
    ptx("mbarrier.init.shared::cta.b64 [%0], 2;", {in(at)});
    ptx("mbarrier.arrive.shared::cta.b64 _, [%0], 3;", {in(at)});
}
static void wait_for_nobody() {
    const uint32_t at = emu_shared_address(emu_self()->block->dynamic_shared);
    ptx("mbarrier.init.shared::cta.b64 [%0], 2;", {in(at)});
    ptx("mbarrier.arrive.shared::cta.b64 _, [%0];", {in(at)});
    ptx(WAIT, {in(at), in(0u)});
}
static void copy_without_wait() {
    alignas(16) static const uint32_t source[4] = {};
    const uint32_t at = emu_shared_address(emu_self()->block->dynamic_shared);
    ptx("mbarrier.init.shared::cta.b64 [%0], 1;", {in(at)});
    ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;", {in(at)});
    ptx("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];",
        {in(at + 16), in(&source[0]), in(at)});
}
static void grid_wait_by_some() {
    if (emu_self()->index < 5) {
        ptx("griddepcontrol.wait;", {});
    }
}
static void grid_wait() {
    ptx("griddepcontrol.wait;", {});
}
static void grid_wait_then_let() {
    grid_wait();
    ptx("griddepcontrol.launch_dependents;", {});
}
static void grid_let_then_wait() {
    ptx("griddepcontrol.launch_dependents;", {});
    grid_wait();
}
static void grid_wait_by_first() {
    if (emu_self()->block->block_index.x == 0) {
        grid_wait();
    }
}
static void grid_wait_by_second() {
    if (emu_self()->block->block_index.x == 1) {
        grid_wait();
    }
}
static void nothing() {
}
static void different_instructions() {
    uint32_t d = 0;
    if (emu_self()->lane < 16) {
        ptx("redux.sync.add.u32 %0, 1, 0xffffffff;", {out(d)});
    } else {
        ptx("redux.sync.max.u32 %0, 1, 0xffffffff;", {out(d)});
    }
}

/* ---- the list ---- */

static const test_case TESTS[] = {
    {"formats", test_formats, 1, 1, nullptr},
    {"arithmetic", test_arithmetic, 1, 1, nullptr},
    {"lanes", test_lanes, 32, 1, nullptr},
    {"access", test_access, 1, 1, nullptr},
    {"polling", test_polling, 64, 1, nullptr},
    {"copies", test_copies, 32, 1, nullptr},
    {"barriers", test_barriers, 64, 1, nullptr},
    {"arrivals of copies", test_copy_arrivals, 64, 1, nullptr},
    {"an unknown instruction", wrong_instruction, 1, 1, "unknown instruction"},
    {"an unknown modifier", wrong_modifier, 1, 1, "unknown modifier .wobbly"},
    {"a misaligned address", wrong_alignment, 1, 1, "not aligned to 16"},
    {"an unknown barrier", unknown_barrier, 1, 1, "no barrier has been initialised"},
    {"an overwritten barrier", overwritten_barrier, 1, 1, "has been overwritten"},
    {"too many arrivals", too_many_arrivals, 1, 1, "3 arrivals where"},
    {"a wait that cannot end", wait_for_nobody, 1, 1, "mbarrier.try_wait"},
    {"a copy that nobody waits for", copy_without_wait, 1, 1, "nobody waited"},
    {"a wait for the grid by some", grid_wait_by_some, 32, 1, "5 of 32 threads"},
    {"different instructions", different_instructions, 32, 1, "redux"},
};

/* Launched one behind the other, so that each may begin before the one in front has ended. */
static const test_case DEPENDENT[] = {
    {"a wait for the grid, then the next one may begin", grid_wait_then_let, 32, 4, nullptr},
    {"a wait for the grid by the first block", grid_wait_by_first, 32, 4, nullptr},
    {"a wait for the grid by another block", grid_wait_by_second, 32, 4, "1 of 4 blocks"},
    {"no wait for the grid", nothing, 32, 4, "0 of 4 blocks"},
    {"the next one may begin, then a wait for the grid", grid_let_then_wait, 32, 4, nullptr},
    {"a wait by the first block behind that", grid_wait_by_first, 32, 4, "1 of 4 blocks"},
};

/* What the run writes to standard error goes to a file; whether `expected` is in it. */
static bool reports(const test_case &test, bool (*run)(const test_case &)) {
    char text[8192] = {};
    FILE *file = tmpfile();
    fflush(stderr);
    const int kept = dup(2);
    dup2(fileno(file), 2);
    const bool succeeded = run(test);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    rewind(file);
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    const bool found = !succeeded && strstr(text, test.report);
    if (!found) {
        printf("%s: \"%s\" is not reported, but: %s\n", test.name, test.report, text);
    }
    return found;
}

static bool run_launch(const test_case &test, bool is_dependent) {
    emu_launch launch = {};
    launch.grid = dim3(test.blocks, 1, 1);
    launch.cluster = dim3(test.blocks, 1, 1);
    launch.block = dim3(test.threads, 1, 1);
    launch.shared_bytes = 128 * 1024;
    launch.kernel = (const void *)test.kernel;
    launch.call = [](void *kernel) { ((void (*)())kernel)(); };
    launch.arguments = (void *)test.kernel;
    launch.is_dependent = is_dependent;
    return emu_run_grid(&launch);
}

static bool run_alone(const test_case &test) {
    return run_launch(test, false);
}

static bool run_dependent(const test_case &test) {
    return run_launch(test, true);
}

static void run_tests(const test_case *tests, size_t count, bool (*run)(const test_case &)) {
    for (size_t i = 0; i < count; i++) {
        const test_case &test = tests[i];
        const int failed = test_failed;
        const bool good = test.report ? reports(test, run) : run(test) && failed == test_failed;
        test_passed += good;
        test_failed += !good;
        printf("%s %s\n", good ? "passed" : "FAILED", test.name);
    }
}

int main() {
    run_tests(TESTS, sizeof TESTS / sizeof *TESTS, run_alone);
    run_tests(DEPENDENT, sizeof DEPENDENT / sizeof *DEPENDENT, run_dependent);
    run_tests(test_matrix_cases, test_matrix_count, run_alone);
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed != 0;
}

/* Carries out asm statements. */
#include "ptx.h"

#include <memory>
#include <unordered_map>

/* Programs by their text: the same text in several places (a function that was inlined) is one program, which
 * is what the rendezvous of a warp compares. */
static const ptx_program *find_program(const char *text, int arguments) {
    static std::unordered_map<std::string, std::unique_ptr<ptx_program>> programs;
    std::unique_ptr<ptx_program> &program = programs[text];
    if (!program) {
        std::unique_ptr<ptx_program> fresh(new ptx_program());
        ptx_parse(text, arguments, fresh.get());
        program = std::move(fresh);
    }
    return program.get();
}

/* The texts seen last, by their addresses, so that nothing is compared. */
static const ptx_program *cached_program(const char *text, int arguments) {
    enum { PLACES = 4096 };
    static struct {
        const char *text;
        const ptx_program *program;
    } cache[PLACES];
    auto &place = cache[((uintptr_t)text ^ (uintptr_t)text >> 12) % PLACES];
    if (place.text != text) {
        place.program = find_program(text, arguments);
        place.text = text;
    }
    return place.program;
}

void emu_asm(const char *text, emu_operand *operands, int outs, int ins) {
    ptx_call call;
    call.program = cached_program(text, outs + ins);
    call.arguments = operands;
    call.count = outs + ins;
    const ptx_instruction *instructions = call.program->instructions.data();
    const size_t count = call.program->instructions.size();
    for (call.next = 0; call.next < count;) {
        const ptx_instruction &instruction = instructions[call.next++];
        if (instruction.guard >= 0 &&
            (call.registers[instruction.guard] & 1) == (uint64_t)instruction.guard_negated) {
            continue;
        }
        instruction.run(call, instruction);
    }
}

uint64_t ptx_special_value(int special) {
    const emu_thread &thread = *emu_self();
    const emu_block &block = *thread.block;
    const uint64_t lane = thread.lane;
    switch (special) {
    case PTX_TID_X:
        return thread.thread_index.x;
    case PTX_TID_Y:
        return thread.thread_index.y;
    case PTX_TID_Z:
        return thread.thread_index.z;
    case PTX_NTID_X:
        return block.block_dim.x;
    case PTX_NTID_Y:
        return block.block_dim.y;
    case PTX_NTID_Z:
        return block.block_dim.z;
    case PTX_CTAID_X:
        return block.block_index.x;
    case PTX_CTAID_Y:
        return block.block_index.y;
    case PTX_CTAID_Z:
        return block.block_index.z;
    case PTX_NCTAID_X:
        return block.grid_dim.x;
    case PTX_NCTAID_Y:
        return block.grid_dim.y;
    case PTX_NCTAID_Z:
        return block.grid_dim.z;
    case PTX_LANEID:
        return lane;
    case PTX_WARPID:
        return thread.warp;
    case PTX_CLUSTER_CTARANK:
        return block.cluster_rank;
    case PTX_CLUSTER_NCTARANK:
        return block.cluster_blocks;
    case PTX_LANEMASK_EQ:
        return (uint64_t)1 << lane;
    case PTX_LANEMASK_LT:
        return ((uint64_t)1 << lane) - 1;
    case PTX_LANEMASK_LE:
        return ((uint64_t)2 << lane) - 1;
    case PTX_LANEMASK_GT:
        return 0xffffffffu & ~(((uint64_t)2 << lane) - 1);
    case PTX_LANEMASK_GE:
        return 0xffffffffu & ~(((uint64_t)1 << lane) - 1);
    default: /* clocks */
        return emu_time();
    }
}

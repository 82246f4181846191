/* Device and pinned memory of the fake runtime: every allocation lies between inaccessible pages. */
#ifndef SL_TESTS_EMULATION_MEMORY_H
#define SL_TESTS_EMULATION_MEMORY_H

#include <stddef.h>

enum emu_memory_kind { EMU_DEVICE_MEMORY, EMU_PINNED_MEMORY };

/* Aligned to 256, filled with bytes of 0xff; NULL: no memory. */
void *emu_allocate(size_t bytes, emu_memory_kind kind);
/* False: `memory` is no such allocation. Bytes around it that were written are reported. */
bool emu_release(void *memory, emu_memory_kind kind);
/* Whether all of it is in one allocation of that kind. */
bool emu_is_allocated(const void *memory, size_t bytes, emu_memory_kind kind);
size_t emu_allocated_bytes(void);

#endif

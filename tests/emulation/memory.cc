#include "memory.h"
#include "grid.h"

#include <map>
#include <mutex>
#include <string.h>
#include <sys/mman.h>

namespace {

enum { PAGE = 4096, ALIGNMENT = 256, FRESH = 0xff };

struct allocation {
    size_t bytes;
    emu_memory_kind kind;
    unsigned char *mapping;
    size_t mapped;
};

std::mutex lock;
std::map<unsigned char *, allocation> allocations; /* by their first byte */
size_t total;

size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* The bytes between the allocation and the pages around it. */
bool margins_are_fresh(unsigned char *start, const allocation &a) {
    const unsigned char *first = a.mapping + PAGE, *last = a.mapping + a.mapped - PAGE;
    for (const unsigned char *at = first; at < start; at++) {
        if (*at != FRESH) {
            emu_report("byte %td before an allocation of %zu bytes was written", start - at, a.bytes);
            return false;
        }
    }
    for (const unsigned char *at = start + a.bytes; at < last; at++) {
        if (*at != FRESH) {
            emu_report("byte %td behind the end of an allocation of %zu bytes was written",
                       at - start - a.bytes, a.bytes);
            return false;
        }
    }
    return true;
}

} // namespace

void *emu_allocate(size_t bytes, emu_memory_kind kind) {
    const std::lock_guard<std::mutex> guard(lock);
    /* The end of the allocation lies as near to the page behind it as alignment lets it. */
    const size_t used = round_up(bytes, ALIGNMENT), pages = round_up(used, PAGE);
    void *mapping =
        mmap(NULL, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        return NULL;
    }
    unsigned char *first = (unsigned char *)mapping + PAGE;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
        munmap(mapping, pages + 2 * PAGE);
        return NULL;
    }
    memset(first, FRESH, pages);
    unsigned char *start = first + pages - used;
    allocations[start] = {bytes, kind, (unsigned char *)mapping, pages + 2 * PAGE};
    total += bytes;
    return start;
}

bool emu_release(void *memory, emu_memory_kind kind) {
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = allocations.find((unsigned char *)memory);
    if (found == allocations.end() || found->second.kind != kind) {
        return false;
    }
    margins_are_fresh(found->first, found->second);
    total -= found->second.bytes;
    munmap(found->second.mapping, found->second.mapped);
    allocations.erase(found);
    return true;
}

bool emu_is_allocated(const void *memory, size_t bytes, emu_memory_kind kind) {
    const std::lock_guard<std::mutex> guard(lock);
    auto found = allocations.upper_bound((unsigned char *)memory);
    if (found == allocations.begin()) {
        return false;
    }
    --found;
    const unsigned char *at = (const unsigned char *)memory;
    return found->second.kind == kind && at + bytes <= found->first + found->second.bytes;
}

size_t emu_allocated_bytes(void) {
    const std::lock_guard<std::mutex> guard(lock);
    return total;
}

/* No lock: the thread that faulted may hold it, and the program is at its end anyway. */
void emu_report_address(const void *address) {
    const unsigned char *at = (const unsigned char *)address;
    for (const auto &[start, a] : allocations) {
        const char *kind = a.kind == EMU_DEVICE_MEMORY ? "device" : "pinned";
        if (at >= a.mapping && at < start) {
            emu_report("  %td bytes before an allocation of %zu bytes of %s memory", start - at, a.bytes,
                       kind);
            return;
        }
        if (at >= start && at < a.mapping + a.mapped) {
            emu_report("  %td bytes behind the end of an allocation of %zu bytes of %s memory",
                       at - start - (ptrdiff_t)a.bytes, a.bytes, kind);
            return;
        }
    }
    if (emu_now) {
        const unsigned char *window = emu_now->block->shared;
        if (at >= window && at < window + EMU_SHARED_WINDOW) {
            emu_report("  byte %td of the block's window of shared memory, which ends at %d", at - window,
                       EMU_SHARED_END);
            return;
        }
    }
    emu_report("  near no allocation (freed, null or a thread's stack that is full: %d bytes each)",
               EMU_STACK_BYTES);
}

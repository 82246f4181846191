/* A set of bytes of a file: ranges that are sorted, not empty, and do not touch. */
#ifndef SLUICE_HUB_RANGES_H
#define SLUICE_HUB_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hub_range {
    uint64_t begin, end; /* of the first byte, behind the last one */
} hub_range;

typedef struct hub_ranges {
    hub_range *list; /* [count], owned */
    size_t count, room;
    uint64_t total; /* bytes of all */
} hub_ranges;

/* Makes the bytes from begin to before end part of the set. False: out of memory, and the set is as it was.
 */
bool hub_ranges_add(hub_ranges *set, uint64_t begin, uint64_t end);

/* The first bytes from `from` on, before `size`, that are not in the set. False: there are none. */
bool hub_ranges_gap(const hub_ranges *set, uint64_t from, uint64_t size, hub_range *gap);

/* How many bytes from 0 on are there without a gap. */
uint64_t hub_ranges_prefix(const hub_ranges *set);

void hub_ranges_clear(hub_ranges *set);
void hub_ranges_free(hub_ranges *set);

#endif

#define _GNU_SOURCE
#include "base/clock.h"

#include <time.h>

enum { NANOSECONDS = 1000000000 };

int64_t sl_nanoseconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NANOSECONDS + now.tv_nsec;
}

double sl_seconds_now(void) {
    return (double)sl_nanoseconds_now() / NANOSECONDS;
}

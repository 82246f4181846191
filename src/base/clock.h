/* The clock for how long things take. */
#ifndef SL_BASE_CLOCK_H
#define SL_BASE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Time since some moment in the past, the same one for both. Neither goes back, whatever is done to the
 * time of day. */
double sl_seconds_now(void);
int64_t sl_nanoseconds_now(void);

#ifdef __cplusplus
}
#endif
#endif

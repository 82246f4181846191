#ifndef SL_BACKEND_HOST_MEMORY_H
#define SL_BACKEND_HOST_MEMORY_H

#include <stdint.h>

/* Bytes that the system says are available, and that the control group of a container still allows. */
uint64_t sl_host_memory_available(void);

#endif

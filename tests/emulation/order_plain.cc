#include "grid.h"

const uint64_t emu_order_seed = 0;

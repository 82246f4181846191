/* Options that llama.cpp's programs have and sluice does without, each with what to do instead. */
#include "options.h"

#define SWITCH "on|off|auto|0|1|true|false"

const foreign_option FOREIGN_OPTIONS[] = {
    {IN_ENGINE, "-fa --flash-attn", SWITCH, true, "attention never stores the whole matrix of scores"},
};
const int FOREIGN_OPTION_COUNT = sizeof FOREIGN_OPTIONS / sizeof *FOREIGN_OPTIONS;

/* An option as the table in option_table.c has it; for the files that read that table. */
#ifndef SLUICE_OPTIONS_H
#define SLUICE_OPTIONS_H

#include "cli.h"

/* Groups of commands. */
enum {
    IN_GENERATE = IN_RUN | IN_CHAT,
    IN_VECTORS = IN_EMBED | IN_RERANK,
    IN_TEMPLATED = IN_RUN | IN_CHAT | IN_SERVE | IN_TEMPLATE,
    IN_RUNS = IN_RUN | IN_CHAT | IN_BENCH | IN_PERPLEXITY | IN_IMATRIX | IN_EVAL | IN_PLAN | IN_EXPLAIN |
              IN_VECTORS,
    IN_ENGINE = IN_RUNS | IN_SERVE,
    IN_THREADED = IN_ENGINE & ~IN_BENCH,                  /* commands that run with one number of threads */
    IN_SCHEDULED = IN_ENGINE & ~IN_IMATRIX,               /* on any device, with several sequences at once */
    IN_CROWDED = IN_SCHEDULED & ~IN_BENCH,                /* with one number of sequences */
    IN_DRAFTING = IN_RUN | IN_CHAT | IN_BENCH | IN_SERVE, /* commands that may draft tokens */
    IN_KEEPING = IN_RUN | IN_CHAT | IN_EVAL | IN_SERVE,   /* commands that use again what is cached */
    IN_BUDGETED =
        IN_GENERATE | IN_BENCH | IN_EVAL | IN_PLAN | IN_EXPLAIN | IN_SERVE, /* that go on behind prompts */
    IN_MODEL = IN_RUNS | IN_TOKENIZE | IN_DETOKENIZE | IN_INSPECT | IN_TEMPLATE,
    IN_HUB = IN_PULL | IN_LIST | IN_RM,
    IN_NAMES = IN_MODEL | IN_SERVE | IN_QUANTIZE | IN_HUB, /* commands that know models by name */
    IN_FETCHING = IN_NAMES & ~IN_RM,                       /* and may fetch one */
};

typedef enum option_kind {
    FLAG,
    NUMBER,
    LAYERS, /* a number, or all */
    SIZE,
    SIZES,
    REAL,
    TEXT,
    TEXTS,
    NUMBERS,
    BIASES,
    SAMPLERS,
    CHOICE,
    SEED
} option_kind;

typedef struct option {
    unsigned commands;
    const char *names; /* separated by spaces, the one to show last */
    const char *argument;
    option_kind kind;
    size_t offset;
    const char *initial; /* as it would be written; NULL: nothing, no, 0 */
    double least, most;  /* of numbers */
    const char *help;
} option;

extern const option OPTIONS[];
extern const int OPTION_COUNT;
enum { OPTIONS_MOST = 256 }; /* rows of the table, for those who set memory aside */

enum { NAME_SIZE = 32 };
/* The name at `index` of a list as in `names`; false past the end. */
bool name_at(const char *names, int index, char name[NAME_SIZE]);

/* "IN OUT TYPE", "[MODEL]", ...; NULL when a command takes no bare arguments. */
const char *usage_arguments(const command *command);
/* Does the help say already what happens without the option? */
bool says_initial(const option *o);
/* Options of the engine stand by themselves in helps, and so do those of models by name. */
typedef enum option_group { GROUP_OWN, GROUP_ENGINE, GROUP_NAMES, GROUP_COUNT } option_group;
option_group group_of(const option *o);
/* Has the command any option of that group? */
bool has_group(const command *command, option_group group);

/* An option that llama.cpp has and sluice does without. Not in the help: it is there to be answered. */
typedef struct foreign_option {
    unsigned commands;
    const char *names;
    const char *values; /* that may follow and mean nothing here, as "on|off"; "*": any; NULL: none */
    bool needless;      /* the command runs without it, after a note; else it is an error */
    const char *answer; /* what to do instead */
} foreign_option;

extern const foreign_option FOREIGN_OPTIONS[];
extern const int FOREIGN_OPTION_COUNT;

#endif

/* Runs a program, or those of all ranks side by side, over the rows of one sequence in double precision, in
 * the plainest way. It is for comparing programs with one another: ops that ranks do not divide are stood in
 * for by any function of the same operands, and windows, positions of caches and samplers do not matter. */
#ifndef SL_TESTS_INTERPRET_H
#define SL_TESTS_INTERPRET_H

#include "program/program.h"

enum { INTERPRET_ROWS = 5 };

/* logits: [INTERPRET_ROWS][vocabulary], or what the head would read; the ranks must agree on them. False, and
 * why, where the programs are no ranks of one, or memory ran out. */
bool interpret(const sl_program *programs, int32_t count, double **result, int32_t *width,
               const char **reason);

#endif

/* The help of a program: -h is one screen, --help everything, --help WORD one operator, setting or section. */
#ifndef VIT_TRAINING_HELP_H
#define VIT_TRAINING_HELP_H

#include "training/program.h"

/* Prints the help for the value of --help: "-h", "all" or a word.  An unknown word ends the program (die_usage). */
void help_print(const ProgramFacts *program, const Config *config, const char *asked);

/* Prints examples on stderr, for a call without arguments. */
void help_beginner(const ProgramFacts *program);

#endif

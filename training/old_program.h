/* The interface of programs whose loop was here, by which train_vit and train_detr still run.  It goes when both have
 * loops of their own, with training/old_program.c, its include in training/program.h, ProgramMode.run and
 * RunState.measured. */
#ifndef VIT_TRAINING_OLD_PROGRAM_H
#define VIT_TRAINING_OLD_PROGRAM_H

#include "training/program.h"

typedef enum {
    WORDS_STEP,
    WORDS_COLUMNS,
    WORDS_EVALUATED,
    WORDS_LAST,
    WORDS_LAST_EVALUATED,
    WORDS_EVALUATION,
    WORDS_RESULT,
    WORDS_BEST
} TrainingWords;

typedef struct {
    const char *columns, *last_columns, *advice;
    int decimals;
    void (*open)(void *run);
    void (*announce)(void *run);
    void (*load)(void *run, uint64_t epoch, uint64_t batch);
    double (*stalled)(const void *run);
    float (*rate)(const void *run, double epochs);
    double (*step)(void *run);
    void (*measure)(void *run);
    double (*evaluate)(void *run);
    void (*words)(const void *run, TrainingWords which, char *text, size_t size);
} TrainingCalls;

typedef struct {
    const char *name, *introduction, *examples;
    const HelpLine *basics;
    const char *example, *word, *reference;
    void (*settings)(void *run, Config *config);
    const char *chooser;
    void (*use)(void *run);
    void (*check)(void *run);
    const ProgramMode *modes;
    TrainingCalls training;
    void (*close)(void *run);
} Program;

int program_main(const Program *program, void *run, Training *training, int argc, char **argv);

#endif

#include "training/old_program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"

enum { SIZE = 256 };

static char *words(const Program *p, const void *run, TrainingWords which, char text[SIZE]) {
    *text = 0;
    p->training.words(run, which, text, SIZE);
    return text;
}

static void declare(Training *t, const char *list, LogPlace place) {
    char *text = list ? strdup(list) : NULL, *name;
    while ((name = strsep(&text, ","))) training_column(t, name, "%.6f", place); /* the text stays */
}

/* Values with as many decimals as the text has. */
static void take_columns(Training *t, int first, char *text) {
    static const char *const formats[] = {"%.0f", "%.1f", "%.2f", "%.3f", "%.4f", "%.5f", "%.6f"};
    char *cell;
    for (int i = first; (cell = strsep(&text, ",")); i++) {
        const char *point = strchr(cell, '.');
        if (!*cell) continue;
        t->state.columns[i].format = formats[point ? strlen(point + 1) : 0];
        training_value(t, t->state.columns[i].name, strtod(cell, NULL));
    }
}

static void take_row(const Program *p, void *run, Training *t, int middle, bool evaluated) {
    char text[SIZE];
    take_columns(t, 0, words(p, run, evaluated ? WORDS_EVALUATED : WORDS_COLUMNS, text));
    if (p->training.last_columns)
        take_columns(t, middle, words(p, run, evaluated ? WORDS_LAST_EVALUATED : WORDS_LAST, text));
}

static int train(const Program *p, void *run, Training *t) {
    const TrainingCalls *c = &p->training;
    char text[SIZE];
    declare(t, c->columns, LOG_MIDDLE);
    int middle = t->state.column_count;
    declare(t, c->last_columns, LOG_LAST);
    c->open(run);
    if (distributed_rank() == 0) c->announce(run), training_announce_resumed(t);
    for (; training_epoch_left(t); training_epoch_end(t)) {
        c->load(run, t->state.epoch, t->state.batch);
        while (training_batch_left(t)) {
            training_step_begin(t, c->rate(run, training_epochs(t)));
            c->step(run);
            training_step_end(t, c->stalled(run));
            if (training_row_is_due(t) && c->measure) c->measure(run);
            if (training_row_is_due(t)) take_row(p, run, t, middle, false);
            training_note(t, "%s", words(p, run, WORDS_STEP, text));
            training_log(t);
            if (t->stopping) return training_stop_early(t);
        }
        training_epoch_trained(t);
        if (training_epoch_follows(t)) c->load(run, t->state.epoch + 1, 0);
        if (!training_evaluation_is_due(t)) continue;
        double percent = c->evaluate(run);
        if (t->stopping) return training_stop_early(t);
        take_row(p, run, t, middle, true);
        training_evaluated(t, percent, "%s", words(p, run, WORDS_EVALUATION, text));
    }
    return training_report(t, "%s", words(p, run, t->evaluated ? WORDS_RESULT : WORDS_BEST, text));
}

int program_main(const Program *p, void *run, Training *t, int argc, char **argv) {
    static ProgramFacts facts;
    facts = (ProgramFacts){.name = p->name, .introduction = p->introduction, .examples = p->examples,
                           .basics = p->basics, .example = p->example, .word = p->word, .reference = p->reference,
                           .chooser = p->chooser, .modes = p->modes, .advice = p->training.advice,
                           .decimals = p->training.decimals};
    if (!program_begin(t, &facts, argc, argv)) return t->status;
    p->settings(run, &t->config);
    if (!program_read(t, argc, argv)) return t->status;
    if (p->use) p->use(run);
    if (!program_settle(t)) return t->status;
    p->check(run);
    if (!program_open(t)) return t->status;
    const ProgramMode *mode = p->modes;
    while (mode->name && !(t->mode && !strcmp(mode->name, t->mode))) mode++;
    if (mode->name) mode->run(run);
    else t->status = train(p, run, t);
    if (!t->alone) p->close(run);
    return program_close(t);
}

#include "training/training.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "kernels/kernels.h"
#include "training/report.h"

/* == Settings ===================================================================================================== */

enum { MOST_EPOCHS = 1000000 };

#define F(KIND, field) CONFIG_FIELD(KIND, TrainingSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, epochs), "300", .section = "training", .min = 1, .max = MOST_EPOCHS,
     .help = "Passes over the training images"},
    {F(INT, batch_size), "512", .min = 1, .max = 1e6, .change = CHANGE_BETWEEN_EPOCHS,
     .help = "Number of images in a step of the optimizer, summed over all ranks"},
    {F(INT, micro_batch), "0", .min = 0, .max = 1e6,
     .help = "Number of images computed at a time, whose gradients are accumulated to a batch (0: chosen by the "
             "model's size)"},
    {F(CHOICE, precision), PRECISION_FLOAT32, CONFIG_CHOICES(PRECISION_FLOAT32, PRECISION_BFLOAT16),
     .help = "Precision of activations; that of parameters and sums is float32 always. A program for a GPU is built for "
             "one of them. A CPU needs AVX512-BF16 for bfloat16"},
    {F(UINT64, seed), "0", .change = CHANGE_NEVER, .help = "Seed of all random numbers of the run"},

    {F(STRING, run_dir), .section = "run", .argument = "FOLDER", .change = CHANGE_EVERY_CALL,
     .help = "Where config.ini, log.csv and the checkpoints go (default: the next free runs/<data>-<attn>-<number>)"},
    {F(STRING, init), .argument = "FILE", .change = CHANGE_EVERY_CALL,
     .help = "Safetensors file with the initial weights"},
    {F(INT, eval_every), "1", .min = 0, .max = 1e6,
     .help = "Number of epochs from one evaluation to the next; the last epoch is always evaluated (0: never, and the data "
             "need no validation split; there is no best.safetensors then)"},
    {F(INT, patience), "0", .min = 0, .max = 1e6,
     .help = "Early stopping: number of evaluations without a better result that end the run (0: off); the learning "
             "rate follows the schedule of all epochs"},
    {F(INT, log_every), "50", .min = 1, .max = 1e8, .help = "Number of steps from one row of log.csv to the next"},
    {F(FLOAT, bench_seconds), "5", .min = 0.1, .max = 3600,
     .help = "Seconds for which --bench measures training, and then inference; batch_size becomes smaller where four "
             "batches would take longer"},
};
#undef F

static void check(const Config *config, const void *settings) {
    const TrainingSettings *s = settings;
    if (s->patience > 0 && s->eval_every == 0)
        config_reject(config, "patience", "{patience} waits for a better evaluation, but {eval_every} never evaluates");
}

const ConfigGroup training_settings = {CONFIG_GROUP(TrainingSettings, entries), .change = CHANGE_FREELY,
                                       .check = check};

/* == Values that are none, and machines that are wrong ============================================================ */

static void stop_on_bad(const Training *t, uint64_t step, const char *what, double value) {
    char kept[RUN_PATH_SIZE + 64] = "nothing has been saved yet", reason[256];
    if (isfinite(value)) return;
    if (t->resumed || t->has_state) snprintf(kept, sizeof kept, "the last good state is in %s", t->folder.path);
    snprintf(reason, sizeof reason, "step %llu: %s %s", (unsigned long long)step, what,
             isnan(value) ? "is not a number" : "is infinite");
    progress_end();
    report_end(t, "failed", reason);
    die("%s; %s (try %s)", reason, kept, t->advice);
}

void training_stop_on_bad(const Training *t, const char *what, double value) {
    stop_on_bad(t, t->state.step + 1, what, value);
}

/* The last update may have overflowed even though its loss and gradient were finite. */
static void stop_on_bad_weights(const Training *t) {
    float value;
    const Param *p = params_not_finite(t->params, t->params->values, &value);
    if (p) stop_on_bad(t, t->state.step, p->name, (double)value);
}

/* Do all ranks have the same parameters, to the bit unless their instructions differ? */
static bool parameters_agree(const Training *t) {
    const Params *params = t->params;
    double sum = 0;
    for (int i = 0; i < params_count(params) && distributed_ranks() > 1; i++) {
        const Param *p = params_at(params, i);
        sum += sum_of_squares(params->values + p->offset, p->size);
    }
    return distributed_agree(sum, t->mixed ? 1e-5 : 0);
}

/* Checks that all ranks agree, because each one reads its own copy of the data and of the weights or state. */
static void check_ranks_begin_alike(const Training *t) {
    const RunState *state = &t->state;
    if (!distributed_agree((double)t->batches, 0))
        die("the ranks' data sets differ: %llu batches an epoch here, others have more or fewer",
            (unsigned long long)t->batches);
    if (!distributed_agree((double)state->step, 0) || !distributed_agree((double)state->batch, 0))
        die("the ranks' states differ: here step %llu: do all machines see the same run folder?",
            (unsigned long long)state->step);
    if (!parameters_agree(t))
        die("the ranks' first parameters differ: do all machines see the same files of weights?");
}

/* Ranks update their own copies of the parameters with the same gradients, so a difference means a hardware fault. */
static void check_ranks_agree(const Training *t) {
    if (!parameters_agree(t))
        die("the ranks' parameters differ after step %llu: a machine computes wrongly, or the builds are not the same",
            (unsigned long long)t->state.step);
}

void training_fit_batch(Training *t, size_t images, const char *data) {
    int batch = t->s->batch_size, ranks = distributed_ranks(), most = images < (size_t)batch ? (int)images : batch;
    if (most == batch) return;
    if (config_origin(&t->config, "batch_size") || most < ranks)
        config_reject(&t->config, "batch_size", "{batch_size} is more than the %zu training %s", images, t->unit);
    t->s->batch_size = most / ranks * ranks;
    if (distributed_rank() == 0)
        printf("%s: %zu training %s are fewer than the default batch_size of %d: batch_size is %d\n", data, images,
               t->unit, batch, t->s->batch_size);
}

bool training_evaluates(const Training *t) { return t->s->eval_every > 0; }

void training_limit_steps(Training *t, uint64_t steps, uint64_t batches) {
    const char *epochs = config_origin(&t->config, "epochs"), *limit = config_origin(&t->config, "steps");
    if (!steps) return;
    if (epochs && *epochs == '-' && !(limit && *limit == '-'))
        config_reject(&t->config, "epochs", "{epochs} does not count, because {steps} ends the run: add --steps 0");
    if ((steps - 1) / batches >= MOST_EPOCHS)
        config_reject(&t->config, "steps", "{steps} makes more than %d epochs of %llu batches", MOST_EPOCHS,
                      (unsigned long long)batches);
    t->most_steps = steps;
    t->s->epochs = (int)((steps + batches - 1) / batches);
}

/* == Parts of a batch ============================================================================================= */

void training_check_ranks(const Training *t) {
    int batch = t->s->batch_size, ranks = distributed_ranks();
    if (batch % ranks)
        config_reject(&t->config, "batch_size", "{batch_size} is not a multiple of the %d ranks, which share the %s "
                                               "equally", ranks, t->unit);
}

int training_local_batch(const Training *t) {
    int local = t->s->batch_size / distributed_ranks();
    return local > 0 ? local : 1; /* evaluation does not need as many samples as ranks */
}

int training_micro_batch(const Training *t, size_t most) {
    int local = training_local_batch(t), given = t->s->micro_batch;
    if (given > 0) return given < local ? given : local;
    int passes = most < 1 ? local : (int)(((size_t)local + most - 1) / most);
    return (local + passes - 1) / passes;
}

/* == Inside a step ================================================================================================ */

int training_batch(const Training *t) {
    uint64_t size = (uint64_t)t->s->batch_size, before = t->state.batch * size;
    return t->samples > before && t->samples - before < size ? (int)(t->samples - before) : (int)size;
}

void training_share(const Training *t, int *begin, int *end) {
    int64_t rank = distributed_rank(), ranks = distributed_ranks(), images = training_batch(t);
    *begin = (int)(images * rank / ranks);
    *end = (int)(images * (rank + 1) / ranks);
}

void training_sum(Training *t, double *sums, int count) {
    double all[16];
    assert(count < 16);
    for (int i = 0; i < count; i++) all[i] = sums[i];
    all[count] = stop_signal != 0;
    distributed_sum(all, (size_t)count + 1);
    for (int i = 0; i < count; i++) sums[i] = all[i];
    t->stopping = all[count] > 0;
}

/* Waits for the oldest update. */
static void settle_one(Training *t) {
    RunState *state = &t->state;
    int i = (int)(t->settled++ % 2);
    const TrainingPending *p = &t->pending[i];
    device_wait(p->done);
    if (p->unseen) {
        double loss = t->step_stats[i].loss;
        training_sum(t, &loss, 1);
        loss /= p->images;
        stop_on_bad(t, p->step, "the loss", loss);
        state->loss_sum += loss;
        state->loss_count++;
    }
    state->gradient_norm = (float)sqrt(t->step_stats[i].squares);
    stop_on_bad(t, p->step, "the norm of the gradient", (double)state->gradient_norm);
}

/* Waits for the results of all updates. */
static void settle(Training *t) {
    while (t->settled < t->launched) settle_one(t);
}

/* An asynchronous device works on this step while the host reads the results of the previous one. */
static void update(Training *t, bool unseen) {
    int i = (int)(t->launched++ % 2);
    TrainingPending *p = &t->pending[i];
    p->step = t->state.step + 1;
    p->unseen = unseen;
    p->images = training_batch(t);
    if (!t->step_stats) t->step_stats = host_malloc(2 * sizeof *t->step_stats, "a step's loss and norm");
    adamw_start(t->adamw, t->params, t->state.lr, (int)p->step);
    device_download_async(&t->step_stats[i], t->params->step_stats, sizeof *t->step_stats);
    device_mark(&p->done);
    while (t->launched - t->settled > (device_shares_cores() ? 0 : 1)) settle_one(t);
}

void training_update(Training *t, double loss) {
    training_stop_on_bad(t, "the loss", loss);
    update(t, false);
    t->state.loss_sum += loss;
    t->state.loss_count++;
}

void training_update_unseen(Training *t) { update(t, true); }

/* == The log ====================================================================================================== */

void training_column(Training *t, const char *name, const char *format, LogPlace place) {
    assert(t->state.column_count < MAX_LOG_COLUMNS);
    t->state.columns[t->state.column_count++] = (LogColumn){.name = name, .format = format, .place = place};
}

static LogColumn *column_named(Training *t, const char *name) {
    LogColumn *c = t->state.columns, *end = c + t->state.column_count;
    while (c < end && strcmp(c->name, name)) c++;
    assert(c < end);
    return c;
}

void training_value(Training *t, const char *name, double value) {
    LogColumn *c = column_named(t, name);
    c->sum = value;
    c->count = 1;
}

/* With one rank its sums are added to the total at once, so that a stop between two rows does not change the
 * rounding. */
void training_add(Training *t, const char *name, double sum, double count) {
    LogColumn *c = column_named(t, name);
    bool one = distributed_ranks() == 1;
    *(one ? &c->sum : &c->own_sum) += sum;
    *(one ? &c->count : &c->own_count) += count;
}

/* Sums the ranks' columns. */
static void sum_columns(RunState *state) {
    double sums[2 * MAX_LOG_COLUMNS];
    int n = state->column_count;
    for (int i = 0; i < n; i++) {
        sums[i] = state->columns[i].own_sum;
        sums[n + i] = state->columns[i].own_count;
    }
    distributed_sum(sums, 2 * (size_t)n);
    for (int i = 0; i < n; i++) {
        LogColumn *c = &state->columns[i];
        c->sum += sums[i];
        c->count += sums[n + i];
        c->own_sum = c->own_count = 0;
    }
}

double training_loss(const Training *t) {
    return t->state.loss_count ? t->state.loss_sum / (double)t->state.loss_count : NAN;
}

void training_note(Training *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->note, sizeof t->note, format, arguments);
    va_end(arguments);
}

/* The progress line. */
static void show(const Training *t) {
    const RunState *state = &t->state;
    if (!state->loss_count) return; /* the device has not finished a step since the last row */
    char eta[32];
    duration_text(eta, sizeof eta, training_seconds_left(t));
    progress_show(state->batch == t->batches || t->stopping,
                  "epoch %llu/%d  batch %llu/%llu  loss %.4f%s  lr %.2e  %.*f %s/s  ETA %s",
                  (unsigned long long)state->epoch + 1, t->s->epochs, (unsigned long long)state->batch,
                  (unsigned long long)t->batches, training_loss(t), t->note, (double)state->lr, t->decimals,
                  t->images_per_s, t->unit, eta);
}

/* Seconds that the run has trained and evaluated.  If it is killed, those since the last saved state are lost, like its
 * log rows. */
static double run_seconds(const Training *t) { return t->before + now_seconds() - t->started; }

/* Appends names or values of the columns in one of the two places, each after a comma. */
static int put_columns(const Training *t, char *text, int used, LogPlace place, bool names) {
    for (int i = 0; i < t->state.column_count; i++) {
        const LogColumn *c = &t->state.columns[i];
        assert(used < LOG_SIZE - 64);
        if (c->place != place) continue;
        used += sprintf(text + used, names ? ",%.60s" : ",", c->name);
        if (!names && c->count > 0 && isfinite(c->sum))
            used += snprintf(text + used, 60, c->format, c->sum / c->count);
    }
    return used;
}

static void log_header(const Training *t, char header[LOG_SIZE]) {
    int used = snprintf(header, LOG_SIZE, "step,epoch,loss,lr,grad_norm,images_per_s");
    used = put_columns(t, header, used, LOG_MIDDLE, true);
    used += snprintf(header + used, (size_t)(LOG_SIZE - used), ",stall,val_loss,wall_s,peak_bytes");
    put_columns(t, header, used, LOG_LAST, true);
}

/* Writes a row of log.csv; loss and speed of the next begin after it.  A run that was resumed for an evaluation has no
 * speed. */
static void log_row(Training *t, bool evaluated) {
    RunState *state = &t->state;
    char row[LOG_SIZE], validation[32] = "", speed[32] = "", stall[32] = "";
    if (evaluated && t->validation_loss) snprintf(validation, sizeof validation, "%.6f", t->validation_loss);
    if (t->images > 0) {
        snprintf(speed, sizeof speed, "%.*f", t->decimals + 1, t->images_per_s);
        snprintf(stall, sizeof stall, "%.3f", t->stall);
    }
    int used = snprintf(row, sizeof row, "%llu,%llu,%.6f,%.8g,%.6g,%s", (unsigned long long)state->step,
                        (unsigned long long)state->epoch + 1, training_loss(t), (double)state->lr,
                        (double)state->gradient_norm, speed);
    used = put_columns(t, row, used, LOG_MIDDLE, false);
    used += snprintf(row + used, sizeof row - (size_t)used, ",%s,%s,%.1f,%zu", stall, validation, run_seconds(t),
                     device_peak_bytes());
    put_columns(t, row, used, LOG_LAST, false);
    run_folder_log(&t->folder, row);
    state->loss_sum = 0;
    state->loss_count = 0;
    t->stalled_before += t->stalled;
    t->seconds = t->images = t->stalled = 0;
    t->logged = true;
}

bool training_row_is_due(const Training *t) {
    return !training_batch_left(t) || t->state.step % (uint64_t)t->s->log_every == 0;
}

void training_log(Training *t) {
    bool due = training_row_is_due(t);
    if (due) sum_columns(&t->state);
    show(t);
    if (due && training_batch_left(t)) log_row(t, false);
}

/* == Opening a run ================================================================================================ */

/* Chooses the run folder, by default the next unused name for that stem on all ranks, and sets the advice that is
 * printed when a rank dies. */
static void folder_open(Training *t, const TrainingStart *start) {
    static char path[RUN_PATH_SIZE], last_words[RUN_PATH_SIZE + 128];
    char header[LOG_SIZE];
    if (!*t->s->run_dir) {
        run_folder_choose(path, start->stem);
        distributed_broadcast(path, sizeof path);
        config_try_set(&t->config, "run_dir", path, "the default", &error_fatal);
    }
    log_header(t, header);
    run_folder_open(&t->folder, t->s->run_dir, &t->config, start, header, t->resumed ? &t->state : NULL);
    snprintf(last_words, sizeof last_words, "continue from the last checkpoint with %s --resume %s", t->program,
             t->s->run_dir);
    distributed_last_words(last_words);
}

/* Names at the end that are "" are not saved. */
static bool same_names(const ClassNames *names, const char *const *others, int count) {
    ClassNames printed;
    class_names_printed(&printed, others, count);
    bool same = names->count == printed.count;
    for (int c = 0; same && c < printed.count; c++) same = !strcmp(names->at[c], printed.at[c]);
    class_names_free(&printed);
    return same;
}

/* Is the state's position possible in this run, with this data set? */
static void check_place(const Training *t, const TrainingStart *start, const char *path) {
    const RunState *state = &t->state;
    ClassNames names;
    if (t->reordered && state->batch)
        config_reject(&t->config, t->reordered,
                      "epoch %llu has begun, and %llu of its batches are done: this can change between two epochs only",
                      (unsigned long long)state->epoch + 1, (unsigned long long)state->batch);
    if (state->batch > t->batches)
        die("%s: the run is at batch %llu of an epoch that has %llu: has its data set lost images?", path,
            (unsigned long long)state->batch, (unsigned long long)t->batches);
    if (state->examples && state->examples != start->examples && distributed_rank() == 0)
        warn("%s: the run had %llu training %s, and now there are %zu: the data have changed, and the split may have", path,
             (unsigned long long)state->examples, start->streams ? "bytes" : t->unit, start->examples);
    run_folder_classes(&names, path);
    if (names.named && start->class_names && !same_names(&names, start->class_names, start->classes))
        die("%s: the run's %d classes have other names than those of the data set: was it replaced by another "
            "one?", path,
            names.count);
    class_names_free(&names);
}

/* Rejects runs whose number of steps does not fit 31 bits. */
static void check_length(const Training *t) {
    const RunState *state = &t->state;
    double left = !training_epoch_left(t) ? 0 : (double)((uint64_t)t->s->epochs - state->epoch) * (double)t->batches;
    if ((double)state->step + left >= (double)INT_MAX)
        config_reject(&t->config, "epochs", "{epochs}, of %llu batches each, makes more than 2^31 - 1 steps from "
                                           "step %llu on", (unsigned long long)t->batches, (unsigned long long)state->step);
}

/* Stores the device that computed the saved state, if that is not this one. */
static void note_device(Training *t) {
    char path[RUN_PATH_SIZE], here[CHECKPOINT_DEVICE];
    run_folder_file(path, t->s->run_dir, "state.safetensors");
    checkpoint_device(here);
    t->computed_by = run_folder_device(path);
    if (!t->computed_by || strcmp(t->computed_by, here)) return;
    free(t->computed_by);
    t->computed_by = NULL;
}

/* The images of an epoch's last batch if that is smaller than the others, else 0. */
static unsigned long long last_batch(const Training *t) { return t->samples % (uint64_t)t->s->batch_size; }

/* Every rank takes part in every step. */
static void check_last_batch(const Training *t) {
    unsigned long long rest = last_batch(t);
    if (rest && rest < (unsigned long long)distributed_ranks())
        config_reject(&t->config, "drop_last", "{drop_last} makes a last batch of %llu %s for %d ranks: use drop_last true",
                      rest, t->unit, distributed_ranks());
}

void training_open(Training *t, const TrainingStart *start) {
    char path[RUN_PATH_SIZE];
    Params *params = t->params = start->params;
    t->batches = start->batches;
    t->samples = start->samples;
    check_last_batch(t);
    if (t->adamw->weight_decay_of == DECAY_OF_ALL) params_decay_from(params, 0);
    params_allocate_optimizer(params, t->adamw->ema_decay > 0);
    if (params->ema) device_copy(params->ema, params->values, params->total * sizeof(float));
    t->state.best = -1;
    if (t->resumed) {
        note_device(t);
        run_folder_file(path, t->s->run_dir, "state.safetensors");
        checkpoint_load_state(params, &t->state, path);
        check_place(t, start, path);
        uint64_t steps = t->most_steps > t->state.step ? t->most_steps - t->state.step : 0;
        if (steps || (t->most_steps && t->state.batch)) /* the run before may have ended within an epoch */
            t->s->epochs = (int)(t->state.epoch + (steps + t->state.batch + t->batches - 1) / t->batches);
    }
    t->state.examples = start->examples;
    check_length(t);
    t->mixed = distributed_tally(kernels_instructions());
    check_ranks_begin_alike(t);
    catch_signals();
    folder_open(t, start);
    report_open(t);
    if (distributed_rank() == 0) printf("%s\n", kernels_device());
    if (distributed_rank() == 0 && t->mixed)
        printf("ranks use different instructions (%s): they agree to rounding, not to the bit\n", t->mixed);
    t->started = now_seconds();
    t->before = t->state.seconds;
    t->first_step = t->state.step;
}

void training_announce(const Training *t, const char *format, ...) {
    const RunState *state = &t->state;
    unsigned long long rest = last_batch(t);
    char parts[128], last[64] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(parts, sizeof parts, format, arguments);
    va_end(arguments);
    if (rest) snprintf(last, sizeof last, " (the last of %llu)", rest);
    print_line("%s: %d epochs of %llu batches of %d %s%s, %s\n", t->s->run_dir, t->s->epochs,
               (unsigned long long)t->batches, t->s->batch_size, t->unit, last, parts);
    if (t->changes && *t->changes) printf("settings changed: %s\n", t->changes);
    if (t->computed_by)
        printf("the saved state was computed by %s: sums have another order here, and results agree to rounding, not "
               "to the bit\n", t->computed_by);
    if (state->step && training_epoch_left(t))
        printf("resumed at epoch %llu, after %llu of its batches\n", (unsigned long long)state->epoch + 1,
               (unsigned long long)state->batch);
    fflush(stdout);
}

/* == Epochs and steps ============================================================================================= */

/* Has the run done all its steps, if these are limited? */
static bool steps_done(const Training *t) { return t->most_steps && t->state.step >= t->most_steps; }

/* Were the last evaluations no better than one before them? */
static bool out_of_patience(const Training *t) {
    return t->s->patience > 0 && t->state.since_best >= (uint64_t)t->s->patience;
}

bool training_epoch_left(const Training *t) {
    bool done = (steps_done(t) || out_of_patience(t)) && !t->state.batch;
    return t->state.epoch < (uint64_t)t->s->epochs && !done;
}

bool training_batch_left(const Training *t) { return t->state.batch < t->batches && !steps_done(t); }

double training_epochs(const Training *t) {
    return (double)t->state.epoch + (double)t->state.batch / (double)t->batches;
}

uint64_t training_steps(const Training *t) {
    const RunState *state = &t->state;
    uint64_t epochs = (uint64_t)t->s->epochs;
    if (t->most_steps) return t->most_steps;
    /* Epochs that are done may have had batches of another size. */
    return state->epoch < epochs ? state->step + (epochs - state->epoch) * t->batches - state->batch : state->step;
}

double training_seconds_left(const Training *t) {
    double elapsed = now_seconds() - t->started, done = (double)(t->state.step - t->first_step);
    return done > 0 ? elapsed / done * (double)(training_steps(t) - t->state.step) : NAN;
}

void training_step_begin(Training *t, float lr) {
    Params *params = t->params;
    report_refresh(t, false);
    t->began = now_seconds();
    t->state.lr = lr;
    t->logged = false;
    device_zero(params->grads, params->total * sizeof(float));
    device_zero(params->step_stats, sizeof *params->step_stats);
}

void training_step_end(Training *t, double stalled) {
    t->images += training_batch(t);
    t->state.step++;
    t->state.batch++;
    t->seconds += now_seconds() - t->began;
    t->stalled = stalled - t->stalled_before;
    t->images_per_s = t->images / t->seconds;
    t->stall = t->stalled / t->seconds;
    if (training_row_is_due(t)) settle(t);
}

static void save(Training *t) {
    t->state.seconds = run_seconds(t);
    run_folder_save(&t->folder, t->params, &t->state);
    t->has_state = true;
}

static void report_stop(const Training *t) {
    char reason[64];
    snprintf(reason, sizeof reason, "%s after step %llu", stop_signal_name(), (unsigned long long)t->state.step);
    report_end(t, "stopped", reason);
}

static int stop_status(void) { return 128 + (stop_signal ? stop_signal : SIGTERM); }

int training_stop_early(Training *t) {
    progress_end();
    settle(t);
    stop_on_bad_weights(t);
    sum_columns(&t->state);
    save(t);
    report_stop(t);
    if (distributed_rank() == 0)
        print_line("stopped by %s after step %llu, in epoch %llu of %d, and saved: %s --resume %s continues\n",
               stop_signal_name(), (unsigned long long)t->state.step, (unsigned long long)t->state.epoch + 1,
               t->s->epochs, t->program, t->folder.path);
    return stop_status();
}

int training_stop_tested(const Training *t) {
    progress_end();
    report_stop(t);
    if (distributed_rank() == 0)
        print_line("stopped by %s before the test images were read: %s --resume %s reads them\n", stop_signal_name(),
                   t->program, t->folder.path);
    return stop_status();
}

/* == The end of an epoch ========================================================================================== */

void training_epoch_trained(Training *t) {
    stop_on_bad_weights(t);
    check_ranks_agree(t);
}

bool training_epoch_follows(const Training *t) {
    return t->state.epoch + 1 < (uint64_t)t->s->epochs && !steps_done(t);
}

bool training_evaluation_is_due(const Training *t) {
    bool chosen = training_evaluates(t) && (t->state.epoch + 1) % (uint64_t)t->s->eval_every == 0;
    return chosen || (training_evaluates(t) && !training_epoch_follows(t));
}

void training_evaluated(Training *t, double percent, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    t->evaluated = true;
    progress_show(true, "epoch %llu/%d  %s", (unsigned long long)t->state.epoch + 1, t->s->epochs, text);
    log_row(t, true);
    t->state.since_best++;
    if (!(percent > t->state.best)) return;
    t->state.best = percent;
    t->state.since_best = 0;
    run_folder_save_weights(&t->folder, t->params, "best.safetensors");
}

void training_epoch_end(Training *t) {
    bool evaluated = training_evaluation_is_due(t);
    if (!t->logged) log_row(t, false);
    for (int i = 0; i < t->state.column_count; i++) t->state.columns[i].sum = t->state.columns[i].count = 0;
    t->logged = false;
    t->state.epoch++;
    t->state.batch = 0;
    save(t);
    report_refresh(t, evaluated);
}

int training_report(const Training *t, const char *format, ...) {
    char text[256] = "not evaluated", elapsed[32];
    if (distributed_rank() > 0) return 0;
    va_list arguments;
    va_start(arguments, format);
    if (t->state.best >= 0) vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    duration_text(elapsed, sizeof elapsed, now_seconds() - t->started);
    report_end(t, "done", text);
    if (out_of_patience(t) && t->state.epoch < (uint64_t)t->s->epochs)
        print_line("stopped after epoch %llu of %d: no evaluation was better in %llu (patience %d)\n",
                   (unsigned long long)t->state.epoch, t->s->epochs, (unsigned long long)t->state.since_best,
                   t->s->patience);
    if (t->state.step == t->first_step && out_of_patience(t))
        print_line("nothing is left to train, %s: a higher --patience continues\n", text);
    else if (t->state.step == t->first_step)
        print_line("all %d epochs are done, %s: a higher --%s trains on\n", t->s->epochs, text,
                   t->most_steps ? "steps" : "epochs");
    else
        print_line("done in %s: %s; checkpoints, log.csv and report.html are in %s\n", elapsed, text, t->folder.path);
    return 0;
}

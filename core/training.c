#include "core/training.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/signals.h"
#include "kernels/kernels.h"

/* By default the next free folder of that stem on all ranks; and what ranks say when one dies. */
static void folder_open(Training *t, Config *config, const RunStrings *strings, const TrainingNames *names,
                        bool resumed) {
    static char path[RUN_PATH_SIZE], words[RUN_PATH_SIZE + 128];
    char header[256];
    Error error;
    if (!**strings->run_dir) {
        run_folder_choose(path, names->stem);
        distributed_broadcast(path, sizeof path);
        if (!config_try_set(config, "run_dir", path, "the default", &error)) die("%s", error.text);
    }
    snprintf(header, sizeof header, "step,epoch,loss,lr,grad_norm,images_per_s,%s,stall", names->columns);
    run_folder_open(&t->folder, *strings->run_dir, config, names->class_names, names->classes, header,
                    resumed ? &t->state : NULL);
    snprintf(words, sizeof words, "%s --resume %s goes on from the last checkpoint", t->program, *strings->run_dir);
    distributed_last_words(words);
}

void training_open(Training *t, Config *config, const RunStrings *strings, const TrainingNames *names) {
    bool resumed = **strings->resume != 0;
    char path[RUN_PATH_SIZE];
    t->state.best = -1;
    for (int i = 0; i < RUN_MEASURED; i++) t->state.measured[i] = NAN;
    if (resumed) {
        run_folder_file(path, *strings->run_dir, "state.safetensors");
        checkpoint_load_state(t->params, &t->state, path);
    }
    folder_open(t, config, strings, names, resumed);
    catch_signals();
    t->started = now_seconds();
    t->first_step = t->state.step;
}

void training_print_resumed(const Training *t) {
    if (t->state.step && !training_is_over(t))
        printf("resumed at epoch %llu, after %llu of its batches\n", (unsigned long long)t->state.epoch + 1,
               (unsigned long long)t->state.batch);
}

/* == Steps ======================================================================================================== */

void training_begin_step(Training *t, double stalled) {
    t->step_began = now_seconds();
    t->step_stalled = stalled;
}

void training_end_step(Training *t, double loss, double stalled) {
    t->state.loss_sum += loss;
    t->state.loss_count++;
    t->state.step++;
    t->state.batch++;
    t->seconds += now_seconds() - t->step_began;
    t->images += t->batch_size;
    t->stalled += stalled - t->step_stalled;
    t->images_per_s = t->images / t->seconds;
    t->stall = t->stalled / t->seconds;
}

bool training_is_last_step(const Training *t) { return t->state.batch == t->batches; }

bool training_log_is_due(const Training *t) {
    return !training_is_last_step(t) && t->state.step % (uint64_t)t->log_every == 0;
}

static double mean_loss(const RunState *state) {
    return state->loss_count ? state->loss_sum / (double)state->loss_count : NAN;
}

void training_show(const Training *t, const char *more) {
    const RunState *state = &t->state;
    uint64_t total = t->batches * (uint64_t)t->epochs;
    double elapsed = now_seconds() - t->started, done = (double)(state->step - t->first_step);
    char eta[32];
    duration_text(eta, sizeof eta, elapsed / done * (double)(total - state->step));
    progress_show(training_is_last_step(t) || t->stopping,
                  "epoch %llu/%d  batch %llu/%llu  loss %.4f%s  lr %.2e  %.*f images/s  ETA %s",
                  (unsigned long long)state->epoch + 1, t->epochs, (unsigned long long)state->batch,
                  (unsigned long long)t->batches, mean_loss(state), more, (double)state->lr, t->decimals,
                  t->images_per_s, eta);
}

void training_log(Training *t, const char *columns, ...) {
    RunState *state = &t->state;
    char own[256];
    va_list arguments;
    va_start(arguments, columns);
    vsnprintf(own, sizeof own, columns, arguments);
    va_end(arguments);
    run_folder_log(&t->folder, "%llu,%llu,%.6f,%.8g,%.6g,%.*f,%s,%.3f", (unsigned long long)state->step,
                   (unsigned long long)state->epoch + 1, mean_loss(state), (double)state->lr,
                   (double)state->gradient_norm, t->decimals + 1, t->images_per_s, own, t->stall);
    state->loss_sum = 0;
    state->loss_count = 0;
    t->seconds = t->images = t->stalled = 0;
}

static void stop_on_bad(const Training *t, uint64_t step, const char *what, double value) {
    char kept[RUN_PATH_SIZE + 64] = "nothing has been saved yet";
    if (isfinite(value)) return;
    if (t->state.log_bytes) snprintf(kept, sizeof kept, "the last good state is in %s", t->folder.path);
    progress_end();
    die("step %llu: %s is %s; %s (try %s)", (unsigned long long)step, what, isnan(value) ? "not a number" : "infinite",
        kept, t->advice);
}

void training_stop_on_bad(const Training *t, const char *what, double value) {
    stop_on_bad(t, t->state.step + 1, what, value);
}

/* == Epochs ======================================================================================================= */

bool training_is_over(const Training *t) { return t->state.epoch >= (uint64_t)t->epochs; }

bool training_is_last_epoch(const Training *t) { return t->state.epoch + 1 >= (uint64_t)t->epochs; }

bool training_eval_is_due(const Training *t) {
    return (t->state.epoch + 1) % (uint64_t)t->eval_every == 0 || training_is_last_epoch(t);
}

static void stop_on_bad_weights(const Training *t) {
    const Param *p = params_not_finite(t->params, t->params->values);
    if (p) stop_on_bad(t, t->state.step, p->name, NAN);
}

/* Anything else is a fault of a machine. */
static void check_ranks_agree(const Training *t) {
    const Params *params = t->params;
    double sum = 0;
    if (distributed_ranks() < 2) return;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        sum += sum_of_squares(params->values + p->offset, p->size);
    }
    if (!distributed_agree(sum))
        die("the ranks' parameters differ after step %llu: a machine computes wrongly, or the builds are not the same",
            (unsigned long long)t->state.step);
}

void training_check_weights(const Training *t) {
    stop_on_bad_weights(t);
    check_ranks_agree(t);
}

void training_keep_best(Training *t, double percent) {
    if (percent > t->state.best) {
        t->state.best = percent;
        run_folder_save_weights(&t->folder, t->params, "best.safetensors");
    }
}

void training_end_epoch(Training *t) {
    t->state.epoch++;
    t->state.batch = 0;
    run_folder_save(&t->folder, t->params, &t->state);
}

int training_stop_early(Training *t) {
    progress_end();
    stop_on_bad_weights(t);
    run_folder_save(&t->folder, t->params, &t->state);
    if (distributed_rank() == 0)
        printf("stopped by %s after step %llu, in epoch %llu of %d, and saved: %s --resume %s continues\n",
               stop_signal_name(), (unsigned long long)t->state.step, (unsigned long long)t->state.epoch + 1,
               t->epochs, t->program, t->folder.path);
    return 128 + (stop_signal ? stop_signal : SIGTERM);
}

void training_report(const Training *t, const char *result, ...) {
    char text[256], elapsed[32];
    va_list arguments;
    if (distributed_rank() > 0) return;
    va_start(arguments, result);
    vsnprintf(text, sizeof text, result, arguments);
    va_end(arguments);
    duration_text(elapsed, sizeof elapsed, now_seconds() - t->started);
    if (t->state.step == t->first_step)
        printf("all %d epochs are done, %s: a higher --epochs trains on\n", t->epochs, text);
    else
        printf("done in %s: %s; checkpoints and log.csv are in %s\n", elapsed, text, t->folder.path);
}

#include "training/bench.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/distributed.h"
#include "core/progress.h"
#include "kernels/kernels.h"

enum { FIT, TRAIN, INFER, DONE }; /* Bench.phase */
enum { MAX_BATCHES = 4096 };
static double seconds[MAX_BATCHES]; /* of the batches timed in the current phase, in ascending order */

static void say(const char *format, ...) {
    va_list arguments;
    if (distributed_rank() > 0) return;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

static void begin_phase(Bench *b, int phase) {
    b->phase = phase;
    b->training = phase == FIT || phase == TRAIN;
    b->batches = b->timed = 0;
    if (phase == FIT) say("bench: how long %d %s take ...\n", b->least, b->unit);
    if (phase == TRAIN) say("bench: training, batches of %d %s, about %g s ...\n", *b->images, b->unit, b->limit);
    if (phase == INFER) say("bench: inference, the same ...\n");
}

static void begin(Bench *b) {
    say("bench: the speed of a large matrix product ...\n");
    b->peak = gemm_peak_gflops();
    b->whole = *b->images;
    if (b->whole > b->least) *b->images = b->least;
    begin_phase(b, b->whole > b->least ? FIT : TRAIN);
}

void bench_begin(Bench *b, Training *t, Params *params, int micro) {
    *b = (Bench){.images = &t->s->batch_size,
                 .least = micro * distributed_ranks(),
                 .unit = t->unit ? t->unit : "images",
                 .limit = (double)t->s->bench_seconds,
                 .step = &t->state.step};
    t->params = params;
    params_allocate_optimizer(params, false);
    begin(b);
}

/* Reduces the batch if four would exceed the limit.  Times the second one; the first is a warm-up. */
static void end_fit_batch(Bench *b) {
    enum { BATCHES = 4 };
    device_synchronize();
    double now = now_seconds();
    if (b->batches == 1) b->batch_began = now;
    if (b->batches == 1) return;
    double fit = b->limit / BATCHES / (now - b->batch_began);
    distributed_broadcast(&fit, sizeof fit);
    *b->images = fit < 1 ? b->least : fit * b->least < b->whole ? (int)fit * b->least : b->whole;
    if (*b->images < b->whole)
        say("bench: batches of %d %s in place of %d, which would take longer than bench_seconds %g\n", *b->images,
            b->unit, b->whole, b->limit);
    begin_phase(b, TRAIN);
}

static void note_time(Bench *b) {
    double end = now_seconds(), took = end - b->batch_began;
    int i = b->timed++;
    b->batch_began = end;
    for (; i > 0 && seconds[i - 1] > took; i--) seconds[i] = seconds[i - 1];
    seconds[i] = took;
}

/* While the device works on this batch, waits for the one before. */
static void end_batch(Bench *b) {
    int warm = b->batches - (device_shares_cores() ? 1 : 2);
    device_mark(&b->ends[warm > 0 ? b->timed % 2 : b->batches - 1]);
    if (warm < 0) return;
    device_wait(b->ends[warm > 0 ? (b->timed + 1) % 2 : 0]);
    if (warm > 0) note_time(b);
    else b->phase_began = b->batch_began = now_seconds();
}

static bool is_phase_over(const Bench *b) {
    return b->timed == MAX_BATCHES || distributed_any(b->timed >= 3 && now_seconds() - b->phase_began >= b->limit);
}

static void end_phase(Bench *b) {
    for (int i = 0; i < 2; i++) {
        device_wait(b->ends[i]);
        device_mark_free(&b->ends[i]);
    }
    *(b->training ? &b->train : &b->infer) = (BenchSpeed){*b->images / seconds[b->timed / 2], seconds[0]};
    begin_phase(b, b->phase + 1);
}

bool bench_next(Bench *b) {
    if (b->batches && b->training && b->step) ++*b->step;
    if (b->batches && b->phase == FIT) end_fit_batch(b);
    else if (b->batches) end_batch(b);
    if (b->timed && is_phase_over(b)) end_phase(b);
    if (b->phase == DONE) {
        double again = gemm_peak_gflops();
        if (again > b->peak) b->peak = again;
    }
    b->batches++;
    return b->phase != DONE;
}

Bench bench(void (*batch)(void *run, bool training), void *run, const char *unit, int *images, int least,
            double limit) {
    Bench b = {.images = images, .least = least, .unit = unit, .limit = limit};
    begin(&b);
    while (bench_next(&b)) batch(run, b.training);
    return b;
}

double bench_peak_share(const Bench *b, double macs, double images_per_s) {
    return 2 * macs * images_per_s / 1e9 / distributed_ranks() / b->peak;
}

void bench_print(const Bench *b, const char *attn, double training_macs, const char *own, ...) {
    va_list arguments;
    if (distributed_rank() > 0) return;
    printf("{\"attn\": \"%s\", \"device\": \"%s\", \"ranks\": %d, \"batch_size\": %d, \"micro_batch\": %d, ", attn,
           kernels_device(), distributed_ranks(), *b->images, b->least / distributed_ranks());
    va_start(arguments, own);
    vprintf(own, arguments);
    va_end(arguments);
    printf(", \"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, \"mfu\": %.4f}\n", device_peak_bytes(), b->peak,
           bench_peak_share(b, training_macs, b->train.images_per_s));
}

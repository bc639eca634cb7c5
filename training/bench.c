#include "training/bench.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/distributed.h"
#include "core/progress.h"
#include "core/rng.h"
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

static int least(const Bench *b) { return b->micro * distributed_ranks(); }

static void begin_phase(Bench *b, int phase) {
    const Training *t = b->t;
    b->phase = phase;
    b->training = phase == FIT || phase == TRAIN;
    b->batches = b->timed = 0;
    if (phase == FIT) say("bench: how long %d %s take ...\n", t->s->batch_size, t->unit);
    if (phase == TRAIN)
        say("bench: training, batches of %d %s, about %g s ...\n", t->s->batch_size, t->unit,
            (double)t->s->bench_seconds);
    if (phase == INFER) say("bench: inference, the same ...\n");
}

void bench_begin(Bench *b, Training *t, Params *params, int micro) {
    *b = (Bench){.t = t, .micro = micro, .whole = t->s->batch_size};
    t->params = params;
    params_allocate_optimizer(params, false);
    say("bench: the speed of a large matrix product ...\n");
    b->peak = gemm_peak_gflops();
    if (b->whole > least(b)) t->s->batch_size = least(b);
    begin_phase(b, b->whole > least(b) ? FIT : TRAIN);
}

/* Chooses the batch so that four do not exceed the limit.  Times the second one; the first is a warm-up. */
static void end_fit_batch(Bench *b) {
    enum { BATCHES = 4 };
    TrainingSettings *s = b->t->s;
    device_synchronize();
    double now = now_seconds(), fit = (double)s->bench_seconds / BATCHES / (now - b->batch_began);
    b->batch_began = now;
    if (b->batches == 1) return;
    distributed_broadcast(&fit, sizeof fit);
    s->batch_size = fit < 1 ? least(b) : fit * least(b) < b->whole ? (int)fit * least(b) : b->whole;
    if (s->batch_size < b->whole)
        say("bench: batches of %d %s in place of %d, which would take longer than bench_seconds %g\n", s->batch_size,
            b->t->unit, b->whole, (double)s->bench_seconds);
    begin_phase(b, TRAIN);
}

static void note_time(Bench *b) {
    double end = now_seconds(), took = end - b->batch_began;
    int i = b->timed++;
    b->batch_began = end;
    for (; i > 0 && seconds[i - 1] > took; i--) seconds[i] = seconds[i - 1];
    seconds[i] = took;
}

/* While the device works on this batch, waits for the previous one. */
static void end_batch(Bench *b) {
    int warm = b->batches - (device_shares_cores() ? 1 : 2);
    device_mark(&b->ends[warm > 0 ? b->timed % 2 : b->batches - 1]);
    if (warm < 0) return;
    device_wait(b->ends[warm > 0 ? (b->timed + 1) % 2 : 0]);
    if (warm > 0) note_time(b);
    else b->phase_began = b->batch_began = now_seconds();
}

static bool is_phase_over(const Bench *b) {
    bool enough = b->timed >= 3 && now_seconds() - b->phase_began >= (double)b->t->s->bench_seconds;
    return b->timed == MAX_BATCHES || distributed_any(enough);
}

static void end_phase(Bench *b) {
    for (int i = 0; i < 2; i++) {
        device_wait(b->ends[i]);
        device_mark_free(&b->ends[i]);
    }
    *(b->training ? &b->train : &b->infer) = (BenchSpeed){b->t->s->batch_size / seconds[b->timed / 2], seconds[0]};
    begin_phase(b, b->phase + 1);
}

bool bench_next(Bench *b) {
    if (b->batches && b->training) b->t->state.step++;
    if (b->batches && b->phase == FIT) end_fit_batch(b);
    else if (b->batches) end_batch(b);
    if (b->timed && is_phase_over(b)) end_phase(b);
    if (b->phase == DONE) {
        b->peak_bytes = device_peak_bytes();
        double again = gemm_peak_gflops();
        if (again > b->peak) b->peak = again;
        return false;
    }
    b->batches++;
    b->n = 0;
    return true;
}

bool bench_part(Bench *b) {
    int begin, end;
    training_share(b->t, &begin, &end);
    b->first = b->n ? b->first + b->n : begin;
    b->n = end - b->first < b->micro ? end - b->first : b->micro;
    b->last = b->first + b->n == end;
    return b->n > 0;
}

void bench_fill(uint8_t *bytes, size_t n, int limit, uint64_t seed) {
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(rng_bits(seed, RNG_TEST, 0, 0, i) % (uint32_t)limit);
}

double bench_peak_share(const Bench *b, double macs, double images_per_s) {
    return 2 * macs * images_per_s / 1e9 / distributed_ranks() / b->peak;
}

void bench_print(const Bench *b, const char *attn, double macs, double training_macs, const char *own, ...) {
    va_list arguments;
    if (distributed_rank() > 0) return;
    printf("{\"attn\": \"%s\", \"device\": \"%s\", \"ranks\": %d, \"batch_size\": %d, \"micro_batch\": %d, "
           "\"macs\": %.0f, ", attn, kernels_device(), distributed_ranks(), b->t->s->batch_size, b->micro, macs);
    va_start(arguments, own);
    vprintf(own, arguments);
    va_end(arguments);
    printf(", \"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, \"mfu\": %.4f}\n", b->peak_bytes, b->peak,
           bench_peak_share(b, training_macs, b->train.images_per_s));
}

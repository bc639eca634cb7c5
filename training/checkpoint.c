#include "training/checkpoint.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/text_stream.h"
#include "kernels/kernels.h"

enum { MAX_METADATA = 16 };

/* == Writing ====================================================================================================== */

/* Buffers have neither gradients nor moments. */
static bool is_stored(const Params *params, const float *arena, const Param *p) {
    return !p->frozen || arena == params->values || arena == params->ema;
}

int checkpoint_entries(SafeTensorEntry *entries, char (*names)[CHECKPOINT_NAME], float *host, const Params *params,
                       const float *arena, const char *prefix) {
    int n = 0;
    device_download(host, arena, params->total * sizeof *host);
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        if (!is_stored(params, arena, p)) continue;
        snprintf(names[n], sizeof names[n], "%s%s", prefix, p->name);
        entries[n] = (SafeTensorEntry){.name = names[n], .dtype = SAFE_F32, .ndim = p->ndim, .data = host + p->offset};
        for (int d = 0; d < p->ndim; d++) entries[n].shape[d] = (size_t)p->shape[d];
        n++;
    }
    return n;
}

static void arenas_save(const Params *params, const float *const *arenas, const char *const *prefixes, int arena_count,
                        const char *path, const SafeMetadata *metadata, int metadata_count) {
    size_t most = (size_t)arena_count * (size_t)params_count(params);
    SafeTensorEntry *entries = xcalloc(most, sizeof *entries, "checkpoint");
    char(*names)[CHECKPOINT_NAME] = xcalloc(most, sizeof *names, "checkpoint");
    float *host = xcalloc((size_t)arena_count * params->total, sizeof *host, "checkpoint");
    Error error;
    int n = 0;
    for (int i = 0; i < arena_count; i++)
        n += checkpoint_entries(entries + n, names + n, host + (size_t)i * params->total, params, arenas[i],
                                prefixes[i]);
    if (!safetensors_write(path, entries, n, metadata, metadata_count, &error))
        die("%s%s", error.text, file_is_regular(path) ? ": the file saved before is still whole" : "");
    free(host);
    free(names);
    free(entries);
}

void checkpoint_save_weights(const Params *params, const float *arena, const char *path, const SafeMetadata *metadata,
                             int metadata_count) {
    arenas_save(params, &arena, (const char *const[]){""}, 1, path, metadata, metadata_count);
}

void checkpoint_device(char text[CHECKPOINT_DEVICE]) {
    int used = snprintf(text, CHECKPOINT_DEVICE, "%s", kernels_device());
    if (distributed_ranks() > 1 && used < CHECKPOINT_DEVICE)
        snprintf(text + used, (size_t)(CHECKPOINT_DEVICE - used), ", %d ranks", distributed_ranks());
}

/* The values that the next row of the log will have, one a line, to be freed. */
static char *columns_text(const RunState *state) {
    TextStream text;
    FILE *out = text_open(&text);
    for (int i = 0; i < state->column_count; i++) {
        const LogColumn *c = &state->columns[i];
        if (c->count > 0 && isfinite(c->sum)) fprintf(out, "%s %.17g %.17g\n", c->name, c->sum, c->count);
    }
    return text_close(&text, "the values of the log");
}

/* The values of each tensor in a state; the EMA is last, as not every run has it. */
enum { STATE_ARENAS = 4 };
static const char *const state_prefixes[STATE_ARENAS] = {"param.", "exp_avg.", "exp_avg_sq.", "ema."};

void checkpoint_save_state(const Params *params, const RunState *state, const char *path, const SafeMetadata *metadata,
                           int metadata_count) {
    const float *arenas[STATE_ARENAS] = {params->values, params->exp_avg, params->exp_avg_sq, params->ema};
    char run[256], seconds[64], since[32], examples[32], device[CHECKPOINT_DEVICE], *columns = columns_text(state);
    SafeMetadata all[MAX_METADATA];
    snprintf(run, sizeof run, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %.17g %" PRIu64 " %.17g %" PRIu64 " %.9g %.9g",
             state->step, state->epoch, state->batch, state->loss_sum, state->loss_count, state->best, state->log_bytes,
             (double)state->lr, (double)state->gradient_norm);
    memcpy(all, metadata, (size_t)metadata_count * sizeof *metadata);
    snprintf(seconds, sizeof seconds, "%.3f", state->seconds);
    all[metadata_count++] = (SafeMetadata){"vit.c.run", run};
    all[metadata_count++] = (SafeMetadata){"vit.c.seconds", seconds}; /* separate, because it is not reproducible */
    if (state->since_best) { /* separate, because older versions read the rest */
        snprintf(since, sizeof since, "%" PRIu64, state->since_best);
        all[metadata_count++] = (SafeMetadata){"vit.c.since_best", since};
    }
    snprintf(examples, sizeof examples, "%" PRIu64, state->examples);
    all[metadata_count++] = (SafeMetadata){"vit.c.examples", examples};
    checkpoint_device(device);
    all[metadata_count++] = (SafeMetadata){"vit.c.device", device};
    if (*columns) all[metadata_count++] = (SafeMetadata){"vit.c.log", columns};
    arenas_save(params, arenas, state_prefixes, params->ema ? 4 : 3, path, all, metadata_count);
    free(columns);
}

/* == Reading ====================================================================================================== */

static void shape_text(char *text, size_t size, int ndim, const size_t *shape) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < ndim && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, d ? ",%zu" : "%zu", shape[d]);
    if (used < size) snprintf(text + used, size - used, "]");
}

static bool shape_matches(const Param *p, const SafeTensor *tensor) {
    bool same = tensor->ndim == p->ndim;
    for (int d = 0; same && d < p->ndim; d++) same = tensor->shape[d] == (size_t)p->shape[d];
    return same;
}

static bool refuse_shape(const Param *p, const SafeTensor *tensor, Error *error) {
    size_t wanted[PARAM_MAX_DIMS];
    char has[128], needs[128], place[24] = "";
    for (int d = 0; d < p->ndim; d++) wanted[d] = (size_t)p->shape[d];
    shape_text(has, sizeof has, tensor->ndim, tensor->shape);
    shape_text(needs, sizeof needs, p->ndim, wanted);
    if (p->from.stage >= 0) snprintf(place, sizeof place, " in stage %d", p->from.stage);
    if (p->from.name)
        return refuse(error, "%s: %s has shape %s, but this model needs %s: another %s (here %g%s)?", tensor->file,
                      p->name, has, needs, p->from.name, p->from.value, place);
    return refuse(error,
                  "%s: %s has shape %s, but this model needs %s: another dim, depth, img_size, frames, patch_size, "
                  "pool or class count?",
                  tensor->file, p->name, has, needs);
}

bool checkpoint_shape_fits(const Param *p, const SafeTensor *tensor, Error *error) {
    return shape_matches(p, tensor) || refuse_shape(p, tensor, error);
}

/* The first missing tensor, and the number of missing tensors. */
typedef struct {
    char first[CHECKPOINT_NAME];
    int count;
} Missing;

/* NaN or infinite weights would train, evaluate and predict without an error message, so they are refused.  A second
 * moment may be infinite after an overflow: its weight is no longer updated from then on. */
static bool all_finite(const float *x, const Param *p, const SafeTensor *tensor, Error *error) {
    bool squares = !strncmp(tensor->name, "exp_avg_sq.", 11);
    size_t bad = 0;
    while (bad < p->size && (squares ? x[bad] >= 0 : isfinite(x[bad]))) bad++;
    if (bad == p->size) return true;
    const char *what = isnan(x[bad]) ? "NaN, not a number," : squares ? "a negative square" : "an infinity";
    return refuse(error, "%s: %s holds %s at element %zu of %zu: this file is damaged, or its training had diverged",
                  tensor->file, tensor->name, what, bad, p->size);
}

/* Reads one tensor into host memory. */
static bool tensor_read(const Param *p, const SafeTensors *st, const char *name, float *host, const CheckpointFit *fit,
                        Missing *missing, Error *error) {
    const SafeTensor *tensor = safetensors_find(st, name);
    bool fitted = fit && fit->fit(host + p->offset, p, tensor, fit->context);
    if (!tensor) {
        if (!fitted && !missing->count++) snprintf(missing->first, sizeof missing->first, "%s", name);
        return true;
    }
    if (!fitted && !checkpoint_shape_fits(p, tensor, error)) return false;
    if (!fitted && !safetensors_to_float(tensor, host + p->offset, error)) return false;
    return all_finite(host + p->offset, p, tensor, error);
}

static bool none_missing(const Missing *missing, const char *file, Error *error) {
    char others[48] = "";
    if (missing->count > 1) snprintf(others, sizeof others, ", nor %d others", missing->count - 1);
    if (missing->count)
        refuse(error, "%s: no tensor '%s'%s, which this model needs", file, missing->first, others);
    return !missing->count;
}

/* Reads the tensors of `arena` whose names begin with `part` into host memory; in the file their names begin with
 * `prefix`, and may lack `part`.  A missing tensor is reported rather than one of another shape, because it is a better
 * hint. */
static bool read_tensors(float *host, const Params *params, const float *arena, const SafeTensors *st,
                         const char *prefix, const char *part, const CheckpointFit *fit, Error *error) {
    Missing missing = {.count = 0};
    Error why;
    bool ok = true;
    size_t length = strlen(part);
    for (int i = 0; ok && i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        char whole[CHECKPOINT_NAME];
        if (!is_stored(params, arena, p) || strncmp(p->name, part, length)) continue;
        snprintf(whole, sizeof whole, "%s%s", prefix, p->name);
        ok = tensor_read(p, st, safetensors_find(st, whole) ? whole : whole + length, host, fit, &missing, &why);
    }
    return none_missing(&missing, st->file, error) && (ok || refuse(error, "%s", why.text));
}

bool checkpoint_read_weights(Params *params, float *arena, const SafeTensors *st, const char *prefix,
                             const CheckpointFit *fit, Error *error) {
    float *host = xcalloc(params->total, sizeof *host, "checkpoint");
    bool ok = read_tensors(host, params, arena, st, prefix, "", fit, error);
    if (ok) device_upload(arena, host, params->total * sizeof *host);
    free(host);
    return ok;
}

void checkpoint_load_part(Params *params, const char *prefix, const char *path, const CheckpointFit *fit) {
    SafeTensors st;
    float *host = xcalloc(params->total, sizeof *host, "checkpoint");
    safetensors_open(&st, path, &error_fatal);
    device_download(host, params->values, params->total * sizeof *host);
    read_tensors(host, params, params->values, &st, "", prefix, fit, &error_fatal);
    device_upload(params->values, host, params->total * sizeof *host);
    safetensors_close(&st);
    free(host);
}

void checkpoint_load_weights(Params *params, const char *path, const CheckpointFit *fit) {
    SafeTensors st;
    Error error;
    safetensors_open(&st, path, &error_fatal);
    bool ok = !safetensors_metadata(&st, "vit.c.run") ||
              refuse(&error, "%s: this is the state of a run: --resume continues it; --init wants last.safetensors or "
                             "best.safetensors", path);
    ok = ok && checkpoint_read_weights(params, params->values, &st, "", fit, &error);
    for (int i = 0; ok && i < st.count; i++)
        if (!params_find(params, st.tensors[i].name) &&
            !(fit && fit->left && !strncmp(st.tensors[i].name, fit->left, strlen(fit->left))))
            ok = refuse(&error, "%s: tensor '%s' has no place in this model: another attn, feature_map, relative, pool, "
                                "pos_embed or depth?", path, st.tensors[i].name);
    safetensors_close(&st);
    if (!ok) die("%s", error.text);
}

/* Is this position in a run possible?  Every epoch has at least one step. */
static bool is_place(const RunState *s) {
    bool counts = s->step < INT_MAX && s->epoch < INT_MAX && s->batch < INT_MAX && s->epoch + s->batch <= s->step;
    return counts && isfinite(s->loss_sum) && s->best >= -1 && s->best <= 100 && s->lr >= 0 && isfinite(s->lr) &&
           s->gradient_norm >= 0 && isfinite(s->gradient_norm);
}

static void read_columns(RunState *state, const char *text) {
    for (int i = 0; i < state->column_count; i++) {
        LogColumn *c = &state->columns[i];
        const char *line = text;
        size_t length = strlen(c->name);
        while (line && (strncmp(line, c->name, length) || line[length] != ' '))
            line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
        bool found = line && sscanf(line + length, "%lg %lg", &c->sum, &c->count) == 2;
        if (!found || !isfinite(c->sum) || !(c->count > 0)) c->sum = c->count = 0;
    }
}

/* Older versions wrote one or four more numbers, values of a row of the log. */
static bool read_place(RunState *state, const char *run) {
    double older[4];
    int end = 0;
    int fields = sscanf(run, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %lg %" SCNu64 " %lg %" SCNu64
                        " %g %g%n %lg %lg %lg %lg%n", &state->step, &state->epoch, &state->batch, &state->loss_sum,
                        &state->loss_count, &state->best, &state->log_bytes, &state->lr, &state->gradient_norm, &end,
                        older, older + 1, older + 2, older + 3, &end);
    return fields == 10 || ((fields == 9 || fields == 13) && !run[end]);
}

void checkpoint_load_state(Params *params, RunState *state, const char *path) {
    SafeTensors st;
    safetensors_open(&st, path, &error_fatal);
    const char *run = safetensors_metadata(&st, "vit.c.run");
    if (!run) die("%s: holds weights, not the state of a run: --init reads weights, --resume wants a run folder", path);
    if (!read_place(state, run) || !is_place(state))
        die("%s: vit.c.run is '%.100s', which is not a position in a run", path, run);
    read_columns(state, safetensors_metadata(&st, "vit.c.log"));
    const char *since = safetensors_metadata(&st, "vit.c.since_best");
    state->since_best = since ? strtoull(since, NULL, 10) : 0;
    const char *examples = safetensors_metadata(&st, "vit.c.examples");
    state->examples = examples ? strtoull(examples, NULL, 10) : 0;
    const char *seconds = safetensors_metadata(&st, "vit.c.seconds"); /* older versions did not save it */
    state->seconds = seconds ? strtod(seconds, NULL) : 0;
    if (!(state->seconds >= 0) || !isfinite(state->seconds)) state->seconds = 0;
    float *arenas[STATE_ARENAS] = {params->values, params->exp_avg, params->exp_avg_sq, params->ema};
    bool begins = false; /* the run begins to average */
    if (params->ema) {
        char average[320];
        snprintf(average, sizeof average, "%s%.255s", state_prefixes[STATE_ARENAS - 1], params_at(params, 0)->name);
        begins = !safetensors_find(&st, average);
    }
    for (int i = 0; i < STATE_ARENAS && arenas[i]; i++)
        if (arenas[i] != params->ema || !begins)
            checkpoint_read_weights(params, arenas[i], &st, state_prefixes[i], NULL, &error_fatal);
    if (begins) device_copy(params->ema, params->values, params->total * sizeof *params->values);
    safetensors_close(&st);
}

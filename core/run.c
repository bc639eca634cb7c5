#include "core/run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/signals.h"
#include "kernels/kernels.h"

enum { ERROR_SIZE = 512 };

/* == Settings ===================================================================================================== */

static void settings_read(Config *config, const ConfigEntry *entries, int count, void *settings, const char *base,
                          const char *where, int argc, char **argv) {
    config_init(config, entries, count, settings, "config");
    if (base) config_read_text(config, base, strlen(base), where);
    config_read_arguments(config, argc, argv);
}

/* Training goes on from the state; the modes that only look take the last weights. */
static void resume_resolve(Config *config, const RunStrings *s, bool training) {
    static char folder[RUN_PATH_SIZE], last[RUN_PATH_SIZE];
    char error[ERROR_SIZE];
    run_folder_of(folder, *s->resume);
    run_folder_file(last, folder, "last.safetensors");
    const char *given = config_origin(config, "run_dir");
    if (training && given && !strncmp(given, "--run", 5) && strcmp(*s->run_dir, folder))
        config_reject(config, "run_dir", "%s, but --resume goes on in %s: copy that folder to fork a run", *s->run_dir,
                      folder);
    const char *key = training ? "run_dir" : "init", *value = training ? folder : last;
    if (!config_try_set(config, key, value, "--resume", error, sizeof error)) die_usage("%s", error);
}

void run_settings_open(Config *config, const ConfigEntry *entries, int count, void *settings, const RunStrings *s,
                       bool (*looking)(const void *settings), int argc, char **argv) {
    settings_read(config, entries, count, settings, NULL, NULL, argc, argv);
    bool looks = looking(settings), training = **s->resume && !looks;
    if (**s->resume) resume_resolve(config, s, training);
    const char *base_file = **s->config ? "" : training ? *s->run_dir : looks ? *s->init : "";
    if (*base_file) {
        char path[RUN_PATH_SIZE + 32];
        snprintf(path, sizeof path, training ? "%s/state.safetensors" : "%s", base_file);
        char *text = run_folder_config(path);
        if (text) {
            config_free(config);
            settings_read(config, entries, count, settings, text, path, argc, argv);
            if (**s->resume) resume_resolve(config, s, training);
            free(text);
        }
    }
    if (training && **s->init) /* the state has later weights */
        *s->init = "";
}

const char *run_one_mode(const RunMode *modes, int count) {
    const char *first = NULL;
    for (int i = 0; i < count; i++) {
        if (first && modes[i].chosen) die_usage("--%s: not together with --%s", modes[i].name, first);
        if (modes[i].chosen) first = modes[i].name;
    }
    return first;
}

/* == Training ===================================================================================================== */

void run_open_folder(RunFolder *folder, Config *config, const RunStrings *strings, const char *program,
                     const char *stem, const char *const *class_names, int classes, const char *header,
                     const RunState *resumed) {
    static char path[RUN_PATH_SIZE], words[RUN_PATH_SIZE + 128];
    char error[ERROR_SIZE];
    if (!**strings->run_dir) {
        run_folder_choose(path, stem);
        distributed_broadcast(path, sizeof path);
        if (!config_try_set(config, "run_dir", path, "the default", error, sizeof error)) die("%s", error);
    }
    run_folder_open(folder, *strings->run_dir, config, class_names, classes, header, resumed);
    snprintf(words, sizeof words, "%s --resume %s goes on from the last checkpoint", program, *strings->run_dir);
    distributed_last_words(words);
}

void run_stop_on_bad(const RunState *state, const RunFolder *folder, uint64_t step, const char *what, double value,
                     const char *advice) {
    char kept[RUN_PATH_SIZE + 64] = "nothing has been saved yet";
    if (isfinite(value)) return;
    if (state->log_bytes) snprintf(kept, sizeof kept, "the last good state is in %s", folder->path);
    progress_end();
    die("step %llu: %s is %s; %s (try %s)", (unsigned long long)step, what, isnan(value) ? "not a number" : "infinite",
        kept, advice);
}

void run_stop_on_bad_weights(const RunState *state, const RunFolder *folder, const Params *params, const char *advice) {
    const Param *p = params_not_finite(params, params->values);
    if (p) run_stop_on_bad(state, folder, state->step, p->name, NAN, advice);
}

void run_check_ranks_agree(const Params *params, uint64_t step) {
    double sum = 0;
    if (distributed_ranks() < 2) return;
    for (int i = 0; i < params->count; i++)
        sum += sum_of_squares(params->values + params->items[i].offset, params->items[i].size);
    if (!distributed_agree(sum))
        die("the ranks' parameters differ after step %llu: a machine computes wrongly, or the builds are not the same",
            (unsigned long long)step);
}

int run_stop_early(const RunFolder *folder, const Params *params, RunState *state, const char *program, int epochs) {
    run_folder_save(folder, params, state);
    if (distributed_rank() == 0)
        printf("stopped by %s after step %llu, in epoch %llu of %d, and saved: %s --resume %s continues\n",
               stop_signal_name(), (unsigned long long)state->step, (unsigned long long)state->epoch + 1, epochs,
               program, folder->path);
    return 128 + (stop_signal ? stop_signal : SIGTERM);
}

/* == The other modes ============================================================================================== */

RunSpeed run_speed(void (*batch)(void *context), void *context, int images, double limit) {
    enum { MAX_BATCHES = 4096 };
    static double seconds[MAX_BATCHES];
    int count = 0;
    batch(context);
    double begin = now_seconds();
    while (count < MAX_BATCHES && !distributed_any(count >= 3 && now_seconds() - begin >= limit)) {
        double start = now_seconds();
        batch(context);
        double took = now_seconds() - start;
        int i = count++;
        for (; i > 0 && seconds[i - 1] > took; i--) seconds[i] = seconds[i - 1];
        seconds[i] = took;
    }
    return (RunSpeed){images / seconds[count / 2], seconds[0]};
}

void run_parity_parameters(Params *params, const SafeTensors *st) {
    char error[ERROR_SIZE];
    int present = 0;
    for (int i = 0; i < params->count; i++) present += safetensors_find(st, params->items[i].name) != NULL;
    if (present && !checkpoint_read_weights(params, params->values, st, "", NULL, error, sizeof error)) die("%s", error);
}

void run_parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params) {
    size_t most = (size_t)(params->count + count);
    SafeTensorEntry *out = xcalloc(most, sizeof *out, "parity");
    char(*names)[PARAM_NAME_SIZE + 8] = xcalloc(most, sizeof *names, "parity"), error[ERROR_SIZE];
    float *grads = xcalloc(params->total, sizeof *grads, "parity");
    device_download(grads, params->grads, params->total * sizeof *grads);
    memcpy(out, outputs, (size_t)count * sizeof *outputs);
    for (int i = 0; i < params->count; i++) {
        const Param *p = &params->items[i];
        SafeTensorEntry *to = &out[count];
        if (p->frozen) continue;
        snprintf(names[count], sizeof names[count], "grad.%s", p->name);
        *to = (SafeTensorEntry){.name = names[count++], .dtype = SAFE_F32, .ndim = p->ndim, .data = grads + p->offset};
        for (int d = 0; d < p->ndim; d++) to->shape[d] = (size_t)p->shape[d];
    }
    if (!safetensors_write(path, out, count, NULL, 0, error, sizeof error)) die("%s", error);
    free(grads);
    free(names);
    free(out);
}

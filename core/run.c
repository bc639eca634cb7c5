#include "core/run.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "kernels/kernels.h"

/* == Settings ===================================================================================================== */

/* Training goes on from the state; the modes that only look take the last weights. */
static void resume_resolve(Config *config, const RunStrings *s, bool training) {
    static char folder[RUN_PATH_SIZE], last[RUN_PATH_SIZE];
    Error error;
    run_folder_of(folder, *s->resume);
    run_folder_file(last, folder, "last.safetensors");
    const char *given = config_origin(config, "run_dir");
    if (training && given && !strncmp(given, "--run", 5) && strcmp(*s->run_dir, folder))
        config_reject(config, "run_dir", "%s, but --resume goes on in %s: copy that folder to fork a run", *s->run_dir,
                      folder);
    const char *key = training ? "run_dir" : "init", *value = training ? folder : last;
    if (!config_try_set(config, key, value, "--resume", &error)) die_usage("%s", error.text);
}

void run_settings_open(Config *config, const RunStrings *s, bool (*looking)(const void *settings),
                       const void *settings, int argc, char **argv) {
    config_read_arguments(config, argc, argv);
    bool looks = looking(settings), training = **s->resume && !looks;
    if (**s->resume) resume_resolve(config, s, training);
    const char *base_file = **s->config ? "" : training ? *s->run_dir : looks ? *s->init : "";
    if (*base_file) {
        char path[RUN_PATH_SIZE + 32];
        snprintf(path, sizeof path, training ? "%s/state.safetensors" : "%s", base_file);
        char *text = run_folder_config(path);
        if (text) {
            config_reset(config);
            config_read_text(config, text, strlen(text), path);
            config_read_arguments(config, argc, argv);
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
    Error error;
    int present = 0;
    for (int i = 0; i < params_count(params); i++) present += safetensors_find(st, params_at(params, i)->name) != NULL;
    if (present && !checkpoint_read_weights(params, params->values, st, "", NULL, &error))
        die("%s", error.text);
}

void run_parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params) {
    size_t most = (size_t)(params_count(params) + count);
    SafeTensorEntry *out = xcalloc(most, sizeof *out, "parity");
    char(*names)[PARAM_NAME_SIZE + 8] = xcalloc(most, sizeof *names, "parity");
    Error error;
    float *grads = xcalloc(params->total, sizeof *grads, "parity");
    device_download(grads, params->grads, params->total * sizeof *grads);
    memcpy(out, outputs, (size_t)count * sizeof *outputs);
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        SafeTensorEntry *to = &out[count];
        if (p->frozen) continue;
        snprintf(names[count], sizeof names[count], "grad.%s", p->name);
        *to = (SafeTensorEntry){.name = names[count++], .dtype = SAFE_F32, .ndim = p->ndim, .data = grads + p->offset};
        for (int d = 0; d < p->ndim; d++) to->shape[d] = (size_t)p->shape[d];
    }
    if (!safetensors_write(path, out, count, NULL, 0, &error)) die("%s", error.text);
    free(grads);
    free(names);
    free(out);
}

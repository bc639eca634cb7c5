#include "core/program.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/signals.h"
#include "kernels/kernels.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, ModeSettings, field)
static const ConfigEntry entries[] = {
    {F(BOOL, help), .section = "modes", .command_line_only = true, .help = "Print this help"},
    {F(BOOL, help_markdown), .command_line_only = true, .help = "Print the settings as Markdown tables"},
    {F(STRING, config), .command_line_only = true, .argument = "FILE",
     .help = "Read settings from this INI file; settings on the command line take precedence"},
    {F(STRING, resume), .command_line_only = true, .argument = "FOLDER",
     .help = "Continue the run in this folder from its last saved state, with the same results as without a break"},
    {F(BOOL, describe), .command_line_only = true,
     .help = "Print layers, parameters, multiply-adds and memory, and stop"},
    {F(BOOL, eval), .command_line_only = true,
     .help = "Evaluate the weights of --init or --resume on the validation split, and stop"},
    {F(BOOL, bench), .command_line_only = true,
     .help = "Measure training and inference speed on random images, print one line of JSON, and stop"},
    {F(LIST, predict), .command_line_only = true, .argument = "IMAGE...",
     .help = "Print the predictions for these PNG or JPEG images, and stop"},
    {F(STRING, parity), .command_line_only = true, .argument = "IN",
     .help = "Run one forward and backward pass on the inputs in this safetensors file, and stop; parameters in the "
             "file replace the model's"},
    {F(STRING, out), .command_line_only = true, .argument = "FILE",
     .help = "With --parity: write outputs, loss and grad.<parameter> to this safetensors file"},
};
#undef F
const ConfigGroup mode_settings = {CONFIG_GROUP(ModeSettings, entries)};

/* What --resume names, as the run's folder to train on in, or as its last weights to look at. */
static void resolve_resume(Training *t, const ModeSettings *modes, bool looks) {
    static char folder[RUN_PATH_SIZE], last[RUN_PATH_SIZE];
    Error error;
    if (!*modes->resume) return;
    run_folder_of(folder, modes->resume);
    run_folder_file(last, folder, "last.safetensors");
    const char *given = config_origin(&t->config, "run_dir");
    if (!looks && given && !strncmp(given, "--run", 5) && strcmp(t->s->run_dir, folder))
        config_reject(&t->config, "run_dir", "%s, but --resume goes on in %s: copy that folder to fork a run",
                      t->s->run_dir, folder);
    const char *key = looks ? "init" : "run_dir", *value = looks ? last : folder;
    if (!config_try_set(&t->config, key, value, "--resume", &error)) die_usage("%s", error.text);
}

/* The checkpoint whose settings hold where the user gives no others: that which is resumed, or looked at. */
static bool find_base(char path[RUN_PATH_SIZE], const Training *t, const ModeSettings *modes, bool looks) {
    if (*modes->config) return false;
    if (looks)
        snprintf(path, RUN_PATH_SIZE, "%s", t->s->init);
    else if (t->resumed)
        run_folder_file(path, t->s->run_dir, "state.safetensors");
    return (looks && *t->s->init) || t->resumed;
}

static void read_settings(Training *t, const ModeSettings *modes, const ProgramMode *list, int argc, char **argv) {
    char path[RUN_PATH_SIZE], *text = NULL;
    bool looks = false;
    config_read_arguments(&t->config, argc, argv);
    for (int i = 0; list[i].name; i++) looks |= config_chosen(&t->config, list[i].name);
    t->resumed = *modes->resume && !looks;
    resolve_resume(t, modes, looks);
    if (find_base(path, t, modes, looks)) text = run_folder_config(path);
    if (text) {
        config_reset(&t->config);
        config_read_text(&t->config, text, strlen(text), path);
        config_read_arguments(&t->config, argc, argv);
        resolve_resume(t, modes, looks);
        free(text);
    }
    if (t->resumed) t->s->init = ""; /* the state has later weights */
}

/* == One mode ===================================================================================================== */

/* One at a time, with what it needs and nothing that only another would use.  NULL: training. */
static const ProgramMode *choose_mode(const ProgramMode *list, const Training *t) {
    const ProgramMode *chosen = NULL;
    for (const ProgramMode *m = list; m->name; m++) {
        if (!config_chosen(&t->config, m->name)) continue;
        if (chosen) die_usage("--%s: not together with --%s", m->name, chosen->name);
        chosen = m;
    }
    if (chosen && chosen->needs_weights && !*t->s->init)
        die_usage("--%s: needs weights: --init FILE or --resume FOLDER", chosen->name);
    return chosen;
}

static void check_outputs(const ProgramMode *list, const ProgramMode *chosen, const Config *config) {
    for (const ProgramMode *m = list; m->name; m++) {
        const char *path = m->output ? config_string(config, m->output) : "";
        if (m == chosen && m->needs_output && !*path)
            die_usage("--%s: needs --%s FILE for the results", m->name, m->output);
        if (m != chosen && *path) die_usage("--%s: '%s' would be written by --%s only", m->output, path, m->name);
    }
}

static void print_help(const Program *program, const Config *config) {
    printf("%s", program->introduction);
    if (program->lists) program->lists();
    printf("\n");
    config_help(config, stdout);
}

static int run_mode(const Program *program, void *run, Training *t, const ModeSettings *modes) {
    int status = 0;
    bool helps = modes->help || modes->help_markdown;
    if (helps && distributed_rank() > 0) return 0;
    if (!helps || (program->chooser && config_origin(&t->config, program->chooser))) {
        if (program->use) program->use(run);
        config_settle(&t->config);
    }
    if (modes->help) return print_help(program, &t->config), 0;
    if (modes->help_markdown) return config_markdown(&t->config, stdout), 0;

    const ProgramMode *mode = choose_mode(program->modes, t);
    t->mode = mode ? mode->name : NULL;
    bool alone = mode && mode->alone;
    if (alone && distributed_rank() > 0) return 0;
    check_outputs(program->modes, mode, &t->config);
    program->check(run);
    kernels_init();
    if (alone) return mode->run(run), 0;
    signals_open();
    distributed_open();
    collective_open();
    if (mode) mode->run(run);
    else status = training_run(t);
    program->close(run);
    collective_close();
    distributed_close();
    return status;
}

int program_main(const Program *program, void *run, Training *t, int argc, char **argv) {
    distributed_begin();
    config_init(&t->config, "config");
    program->settings(run, &t->config);
    const ModeSettings *modes = config_add(&t->config, &mode_settings);
    t->program = program->name;
    t->calls = &program->training;
    t->run = run;
    t->s = config_add(&t->config, &training_settings);
    t->adamw = config_add(&t->config, &adamw_settings);
    t->slow = 1;
    read_settings(t, modes, program->modes, argc, argv);
    int status = run_mode(program, run, t, modes);
    if (fflush(stdout) != 0 || ferror(stdout)) die("standard output: cannot write all of it");
    return status;
}

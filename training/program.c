#include "training/program.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "report/compare.h"
#include "training/help.h"
#include "training/report.h"
#include "core/json_memory.h"
#include "core/limits.h"
#include "core/signals.h"
#include "core/text.h"
#include "core/text_stream.h"
#include "core/version.h"
#include "kernels/kernels.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, ModeSettings, field)
static const ConfigEntry entries[] = {
    {F(BOOL, describe), .section = "in place of training", .command_line_only = true,
     .help = "Print layers, parameters, multiply-adds and memory, and stop"},
    {F(BOOL, eval), .command_line_only = true,
     .help = "Evaluate the weights of --init or --resume on the validation split, and stop"},
    {F(BOOL, bench), .command_line_only = true,
     .help = "Measure training and inference speed on random images, print one line of JSON, and stop"},
    {F(STRING, parity), .command_line_only = true, .argument = "IN",
     .help = "Run one forward and backward pass on the inputs in this safetensors file, and stop; parameters in the "
             "file replace the model's"},
    {F(STRING, report), .command_line_only = true, .argument = "FOLDER",
     .help = "Make the page of the run in this folder, report.html in it or --out, and stop"},
    {F(LIST, compare), .command_line_only = true, .argument = "FOLDER...",
     .help = "Compare the runs in these folders, or the rows of a file like docs/league.csv, write the page --out, and "
             "stop"},
    {F(STRING, out), .command_line_only = true, .argument = "FILE",
     .help = "Where --parity writes logits, loss and grad.<parameter>, and --report and --compare their page"},
    {F(STRING, config), .section = "general", .command_line_only = true, .ranks_differ = true, .argument = "FILE",
     .help = "Read settings from this INI file; settings on the command line take precedence"},
    {F(STRING, resume), .command_line_only = true, .argument = "FOLDER",
     .help = "Continue the run in this folder from its last saved state, with the same results as without the "
             "interruption"},
    {F(CHOICE, isa), ISA_AUTO, .command_line_only = true, .ranks_differ = true,
     CONFIG_CHOICES(ISA_AUTO, ISA_AVX2, ISA_AVX512),
     .noun = "set of instructions",
     .help = "Instruction set of the CPU, if the program has code for several (auto: the newest)"},
    {F(STRING, help), .command_line_only = true, .argument = "[WORD]", .alone = "all",
     .help = "Print this help, or the part of it about one operator, setting or section; -h prints one screen"},
    {F(BOOL, help_markdown), .command_line_only = true, .help = "Print the settings as Markdown tables"},
    {F(BOOL, version), .command_line_only = true, .help = "Print the version"},
};
#undef F
const ConfigGroup mode_settings = {CONFIG_GROUP(ModeSettings, entries)};

#define F(KIND, field) CONFIG_FIELD(KIND, PredictSettings, field)
static const ConfigEntry predict_entries[] = {
    {F(LIST, predict), .section = "in place of training", .command_line_only = true, .argument = "IMAGE...",
     .help = "Print the predictions for these images (JPEG, PNG, BMP or WebP), or for all in these folders, and stop"},
    {F(STRING, json), .command_line_only = true, .argument = "FILE",
     .help = "With --predict: also write the predictions to this JSON file, an object for every image"},
};
#undef F
const ConfigGroup predict_settings = {CONFIG_GROUP(PredictSettings, predict_entries)};

/* No output may replace a file of the run; its page may be made again where `page` is false. */
static void note_run(const char *folder, bool page) {
    char path[RUN_PATH_SIZE];
    for (int i = 0; run_folder_files[i]; i++) {
        run_folder_file(path, folder, run_folder_files[i]);
        if (page || strcmp(run_folder_files[i], "report.html")) file_note(path);
    }
}

/* Converts --resume's value to the run's folder (for training) or to its last weights (for a mode). */
static void resolve_resume(Training *t, const ModeSettings *modes, bool looks) {
    static char folder[RUN_PATH_SIZE], last[RUN_PATH_SIZE];
    if (!*modes->resume) return;
    run_folder_of(folder, modes->resume);
    if (looks) note_run(folder, true);
    run_folder_file(last, folder, "last.safetensors");
    const char *given = config_origin(&t->config, "run_dir");
    if (!looks && given && !strncmp(given, "--run", 5) && strcmp(t->s->run_dir, folder))
        config_reject(&t->config, "run_dir", "%s, but --resume continues the run in %s: to fork a run, copy that "
                                             "folder",
                      t->s->run_dir, folder);
    const char *key = looks ? "init" : "run_dir", *value = looks ? last : folder;
    config_try_set(&t->config, key, value, "--resume", &error_usage);
}

/* The checkpoint that provides settings the user does not give: the one being resumed, or loaded by a mode. */
static bool find_base(char path[RUN_PATH_SIZE], const Training *t, const ModeSettings *modes, bool looks) {
    if (*modes->config && !t->resumed) return false;
    if (looks)
        snprintf(path, RUN_PATH_SIZE, "%s", t->s->init);
    else if (t->resumed)
        run_folder_file(path, t->s->run_dir, "state.safetensors");
    return (looks && *t->s->init) || t->resumed;
}

/* Stores the value of each setting in the run being resumed. */
static char **values_of(const Config *config) {
    char **values = xcalloc((size_t)config->count, sizeof *values, "settings");
    for (int i = 0; i < config->count; i++) values[i] = config_value(config, i);
    return values;
}

static bool is_among(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name)) names++;
    return *names != NULL;
}

/* Lists the changes since the run was saved, and rejects those that are not possible. */
static void compare_with_saved(Training *t, char *const *saved) {
    const Config *config = &t->config;
    TextStream changes;
    FILE *out = text_open(&changes);
    for (int i = 0; i < config->count; i++) {
        if (!config_changed(config, i, saved[i])) continue;
        const char *name = config_name(config, i);
        char *value = config_value(config, i);
        if (!config_may_change(config, i))
            config_reject(config, name,
                          "%s, but the run in %s has %s, which it keeps to its end: --init %s/last.safetensors "
                          "starts another run from its weights", value, t->s->run_dir, saved[i], t->s->run_dir);
        if (config_change(config, i) == CHANGE_BETWEEN_EPOCHS) t->reordered = name;
        fprintf(out, "%s%s %s -> %s", ftell(out) ? ", " : "", name, *saved[i] ? saved[i] : "none",
                *value ? value : "none");
        free(value);
    }
    t->changes = text_close(&changes, "the changed settings");
}

/* A run is resumed in its own precision; the precision in a file of weights may be that of another machine. */
static void forget_precision(Training *t) {
    config_try_set(&t->config, "precision", kernels_default_precision(), "the default", &error_usage);
}

static void read_settings(Training *t, const ModeSettings *modes, const ProgramMode *list, int argc, char **argv) {
    char path[RUN_PATH_SIZE], *text = NULL;
    bool looks = false;
    config_try_arguments(&t->config, argc, argv, &error_usage);
    for (int i = 0; list[i].name; i++) looks |= config_chosen(&t->config, list[i].name);
    const char *init = config_origin(&t->config, "init");
    if (*modes->resume && init && !strncmp(init, "--init", 6))
        die_usage("--init: not together with --resume, which loads the weights of its run");
    t->resumed = *modes->resume && !looks;
    resolve_resume(t, modes, looks);
    if (find_base(path, t, modes, looks)) text = run_folder_config(path);
    if (text) {
        config_reset(&t->config);
        config_try_text(&t->config, text, strlen(text), path, &error_usage);
        if (t->resumed) t->saved = values_of(&t->config);
        else forget_precision(t);
        config_try_arguments(&t->config, argc, argv, &error_usage);
        resolve_resume(t, modes, looks);
        free(text);
    }
    if (t->resumed) t->s->init = ""; /* the state has later weights */
}

/* The main of the variant in the settings; NULL: this one. */
static ProgramMain *choose_variant(const Training *t, const ModeSettings *modes) {
    const char *isa = config_word(&t->config, "isa", modes->isa);
    const char *precision = config_word(&t->config, "precision", t->s->precision);
    KernelsChoice choice = kernels_choose(isa, precision);
    if (!choice.refused) return choice.main;
    const char *origin = config_origin(&t->config, "precision");
    bool given = origin && !strncmp(origin, "--", 2);
    if (!strcmp(choice.refused, "isa")) config_reject(&t->config, "isa", "%s: %s", isa, choice.why);
    if (given) config_reject(&t->config, "precision", "%s: %s", precision, choice.why);
    config_reject(&t->config, "precision", "%s: %s; --precision %s does without it", precision, choice.why,
                  kernels_default_precision());
}

/* == One mode ===================================================================================================== */

/* The chosen mode, after checking that it is the only one and has the weights it needs.  NULL: training. */
static const ProgramMode *choose_mode(const ProgramMode *list, const Training *t) {
    const ProgramMode *chosen = NULL;
    for (const ProgramMode *m = list; m->name; m++) {
        if (!config_chosen(&t->config, m->name)) continue;
        if (chosen && !(chosen->together && m->together))
            die_usage("--%s: not together with --%s", m->name, chosen->name);
        if (!chosen) chosen = m;
    }
    if (chosen && chosen->needs_weights && !*t->s->init)
        config_reject(&t->config, chosen->name, "needs weights: --init FILE or --resume FOLDER");
    return chosen;
}

/* Several modes may write the same file. */
static void check_outputs(const ProgramMode *list, const ProgramMode *chosen, const Config *config) {
    for (const ProgramMode *m = list; m->name; m++) {
        for (int i = 0; m->outputs[i]; i++) {
            const char *path = config_string(config, m->outputs[i]);
            if (m == chosen && m->needs_output && i == 0 && !*path)
                die_usage("--%s: needs --%s FILE for the results", m->name, m->outputs[i]);
            if (m != chosen && *path && !(chosen && is_among(m->outputs[i], chosen->outputs)))
                die_usage("%s: '%s' would be written by --%s only", config_origin(config, m->outputs[i]), path,
                          m->name);
        }
    }
}

/* An output that cannot be written, or that would replace an input or another output, ends the call before its work
 * begins. */
static void claim_outputs(const ProgramMode *mode, const Config *config) {
    Error error;
    for (int i = 0; mode->outputs[i]; i++) {
        const char *name = mode->outputs[i], *path = config_string(config, name);
        if (!*path) continue;
        if (!file_claim(path, config_origin(config, name), &error)) config_reject(config, name, "%s", error.text);
        if (!file_try(path, &error)) die("%s: %s", path, error.text);
    }
}

/* Claims the files of a new run's folder, which may have files; the folder of an earlier run is refused when it is
 * opened. */
static void claim_folder(const Training *t) {
    static char paths[8][RUN_PATH_SIZE];
    char log[RUN_PATH_SIZE];
    Error error;
    if (t->resumed || !*t->s->run_dir) return;
    run_folder_file(log, t->s->run_dir, "log.csv");
    if (file_exists(log)) return;
    for (int i = 0; run_folder_files[i]; i++) {
        run_folder_file(paths[i], t->s->run_dir, run_folder_files[i]);
        if (!file_claim(paths[i], "run_dir's", &error)) config_reject(&t->config, "run_dir", "%s", error.text);
    }
}

/* Refuses settings that count only in modes which were not chosen. */
static void check_settings(const ProgramMode *list, const ProgramMode *chosen, const Config *config) {
    char owners[256] = "";
    const char *name = NULL;
    for (const ProgramMode *m = list; m->name && !name; m++)
        for (int i = 0; m->settings[i] && !name; i++)
            if (config_origin(config, m->settings[i]) && !(chosen && is_among(m->settings[i], chosen->settings)))
                name = m->settings[i];
    if (!name) return;
    for (const ProgramMode *m = list; m->name; m++) {
        size_t used = strlen(owners);
        if (is_among(name, m->settings))
            snprintf(owners + used, sizeof owners - used, "%s--%s", used ? ", " : "", m->name);
    }
    config_reject(config, name, "counts only with %s", owners);
}

/* The settings that must be equal on all ranks, one per line. */
static char *common_settings(const Config *config) {
    TextStream text;
    FILE *out = text_open(&text);
    for (int i = 0; i < config->count; i++) {
        if (!config_counts(config, i) || config_entry(config, i)->ranks_differ) continue;
        char *value = config_value(config, i);
        fprintf(out, "%s %s\n", config_name(config, i), *value ? value : "none");
        free(value);
    }
    return text_close(&text, "the settings as text");
}

/* Connects all ranks.  For a mode that only rank 0 runs they disconnect again; true if this rank continues. */
static bool meet_ranks(const Config *config, bool alone) {
    char *settings = common_settings(config);
    distributed_open(settings);
    free(settings);
    if (alone) distributed_close();
    return !alone || distributed_rank() == 0;
}

static bool helps_only(const ModeSettings *modes) { return *modes->help || modes->help_markdown || modes->version; }

/* == The parts of main ============================================================================================ */

/* Without arguments the defaults would train for days on the embedded data set, which nobody intends: prints examples.
 * Status 2, as for any wrong command line.  Separate from program_begin, so that its locals are not on the stack before
 * limits_open. */
__attribute__((noinline)) static bool begin(Training *t, const ProgramFacts *facts, int argc) {
    standard_files_open();
    json_memory_begin();
    distributed_begin();
    threads_check();
    t->facts = facts;
    t->program = facts->name;
    t->advice = facts->advice;
    t->decimals = facts->decimals;
    t->unit = "images";
    config_init(&t->config, "config");
    if (argc > 1) return true;
    if (distributed_rank() == 0) help_beginner(facts);
    t->status = 2;
    return false;
}

bool program_begin(Training *t, const ProgramFacts *facts, int argc, char **argv) {
    limits_open(argv);
    return begin(t, facts, argc);
}

bool program_read(Training *t, int argc, char **argv) {
    const ModeSettings *modes = config_add(&t->config, &mode_settings);
    t->s = config_add(&t->config, &training_settings);
    t->adamw = config_add(&t->config, &adamw_settings);
    config_default(&t->config, "precision", kernels_default_precision());
    read_settings(t, modes, t->facts->modes, argc, argv);
    ProgramMain *other = helps_only(modes) ? NULL : choose_variant(t, modes);
    if (other) t->status = other(argc, argv); /* nothing is open yet, nothing printed */
    return !other;
}

/* Prints help, the settings or the version in place of all work, on one rank. */
static void help(Training *t, const ModeSettings *modes) {
    if (!meet_ranks(&t->config, true)) return;
    if (modes->version) printf("%s %s\n", t->program, VIT_VERSION);
    else if (*modes->help) help_print(t->facts, &t->config, modes->help);
    else config_markdown(&t->config, stdout);
    standard_output_check();
}

/* Makes a page of runs, on one rank. */
static void make_page(Training *t, const ModeSettings *modes) {
    Error error;
    if (!meet_ranks(&t->config, true)) return;
    if (*modes->report) note_run(modes->report, false);
    for (int i = 0; i < modes->compare.count; i++)
        if (folder_exists(modes->compare.items[i])) note_run(modes->compare.items[i], true);
        else file_note(modes->compare.items[i]);
    claim_outputs(choose_mode(t->facts->modes, t), &t->config);
    if (*modes->report) report_folder(t, modes->report, *modes->out ? modes->out : NULL);
    else if (!compare_write(modes->compare.items, modes->compare.count, modes->out, &error)) die("%s", error.text);
    else print_line("%s\n", modes->out);
    standard_output_check();
}

bool program_settle(Training *t) {
    const ModeSettings *modes = config_settings(&t->config, &mode_settings);
    const ProgramFacts *facts = t->facts;
    bool helps = helps_only(modes);
    if (!helps || (facts->chooser && config_origin(&t->config, facts->chooser))) config_settle(&t->config);
    if (helps) return help(t, modes), false;
    const ProgramMode *mode = choose_mode(facts->modes, t);
    t->mode = mode ? mode->name : NULL;
    t->alone = mode && mode->alone;
    check_outputs(facts->modes, mode, &t->config);
    check_settings(facts->modes, mode, &t->config);
    if (t->saved) compare_with_saved(t, t->saved);
    bool pages = *modes->report || modes->compare.count;
    if (pages) make_page(t, modes);
    return !pages;
}

bool program_open(Training *t) {
    kernels_init();
    if (kernels_unsupported()) die_usage("%s", kernels_unsupported());
    if (!t->alone) signals_open();
    if (!meet_ranks(&t->config, t->alone)) return false;
    if (distributed_rank() == 0 && t->mode) claim_outputs(choose_mode(t->facts->modes, t), &t->config);
    if (distributed_rank() == 0 && !t->mode) claim_folder(t);
    if (!t->alone) collective_open();
    return true;
}

int program_close(Training *t) {
    if (!t->alone) {
        collective_close();
        distributed_close();
    }
    standard_output_check();
    return t->status;
}

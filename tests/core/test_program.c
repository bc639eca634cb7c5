/* training/program and training/training, which all programs share, tested with a program that has one tensor: the
 * order of its steps, that a resumed run gives the same weights and the same log, the messages for contradictory modes,
 * and the precedence of settings.  The program is also the example of docs/developers/design.md. */
#include "training/program.h"

#include <math.h>
#include <signal.h>

#include "core/signals.h"
#include "kernels/kernels.h"
#include "tests/scratch.h"

/* == The program: w [N] is pulled towards 1, 2, ... =============================================================== */

enum { N = 4, BATCHES = 5 };

typedef struct {
    const char *stop, *odd, *sheet;
} ToySettings;

typedef struct {
    Training training;
    const ModeSettings *modes;
    const ToySettings *toy;
    Params params;
    float *w, *dw;
    FILE *trace; /* a word for each action */
} Toy;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(STRING, ToySettings, stop), .section = "modes", .command_line_only = true,
     .help = "Send itself SIGTERM in this step"},
    {CONFIG_FIELD(STRING, ToySettings, odd), .command_line_only = true, .help = "A mode of its own"},
    {CONFIG_FIELD(STRING, ToySettings, sheet), .command_line_only = true, .help = "What that writes"},
};
static const ConfigGroup toy_settings = {CONFIG_GROUP(ToySettings, entries)};

static void add_settings(Toy *toy, Config *config) {
    toy->modes = config_add(config, &mode_settings);
    toy->toy = config_add(config, &toy_settings);
    config_add(config, &adamw_settings);
    config_add(config, &training_settings);
    config_default(config, "epochs", "3");
    config_default(config, "eval_every", "2");
    config_default(config, "log_every", "2");
    config_default(config, "batch_size", "4");
}

static const ProgramMode modes[] = {
    {"describe", "describe", .alone = true},
    {"eval", "evaluate", .needs_weights = true},
    {"odd", "be odd", .alone = true, .outputs = {"sheet"}},
    {"parity", "compare", .alone = true, .outputs = {"out"}, .needs_output = true},
    {.name = NULL},
};

static const HelpLine basics[] = {{"epochs", "passes"}, {.name = NULL}};

static const ProgramFacts facts = {
    .name = "toy", .introduction = "toy is a toy.", .examples = "  toy --describe\n", .basics = basics,
    .example = "toy", .word = "w", .reference = "nothing", .modes = modes, .advice = "another toy"};

static double distance(const Toy *toy, float *difference) {
    double squares = 0;
    device_download(difference, toy->w, N * sizeof *difference);
    for (int i = 0; i < N; i++) difference[i] -= (float)(i + 1);
    for (int i = 0; i < N; i++) squares += (double)difference[i] * difference[i];
    return squares;
}

/* Writes the gradient and returns the loss. */
static double forward_backward(Toy *toy) {
    float gradient[N];
    int step = (int)toy->training.state.step + 1;
    double loss = toy->training.s->seed == 13 ? NAN : distance(toy, gradient) / 2;
    device_upload(toy->dw, gradient, sizeof gradient);
    if (atoi(toy->toy->stop) == step) kill(getpid(), SIGTERM);
    while (atoi(toy->toy->stop) == step && !stop_signal) usleep(100);
    fprintf(toy->trace, " step");
    return loss;
}

static double evaluate(Toy *toy) {
    float difference[N];
    double score = 100 / (1 + distance(toy, difference));
    training_sum(&toy->training, NULL, 0);
    toy->training.validation_loss = 0.25;
    fprintf(toy->trace, " evaluate");
    return score;
}

static void open_model(Toy *toy) {
    Training *t = &toy->training;
    params_declare(&toy->params, (Param){.value = &toy->w, .grad = &toy->dw, .named = {"w"}, .init = INIT_ZEROS,
                                         .shape = {N}});
    params_allocate(&toy->params, true);
    params_initialize(&toy->params, t->s->seed);
    training_column(t, "score", "%.2f", LOG_MIDDLE);
    training_column(t, "mean_step", "%.1f", LOG_MIDDLE);
    training_column(t, "noted", "%.0f", LOG_LAST);
    training_open(t, &(TrainingStart){.params = &toy->params, .batches = BATCHES, .stem = "toy"});
    fprintf(toy->trace, " open%d.%d", (int)t->state.epoch, (int)t->state.batch);
}

static int train(Toy *toy) {
    Training *t = &toy->training;
    open_model(toy);
    training_announce(t, "one at a time");
    for (; training_epoch_left(t); training_epoch_end(t)) {
        while (training_batch_left(t)) {
            training_step_begin(t, 0.1f / (float)(1 + training_epochs(t)));
            double loss = forward_backward(toy);
            training_sum(t, &loss, 1);
            training_update(t, loss); /* AdamW */
            training_step_end(t, 0);
            training_add(t, "mean_step", (double)t->state.step, 1);
            if (training_row_is_due(t)) training_value(t, "noted", (double)t->state.step);
            training_log(t);
            if (t->stopping) return training_stop_early(t);
        }
        training_epoch_trained(t);
        if (!training_evaluation_is_due(t)) continue;
        double score = evaluate(toy);
        if (t->stopping) return training_stop_early(t);
        training_value(t, "score", score);
        training_evaluated(t, score, "score %.3f", score);
    }
    return training_report(t, "best %.3f", t->state.best);
}

static int toy_main(Toy *toy, int argc, char **argv) {
    Training *t = &toy->training;
    if (!program_begin(t, &facts, argc, argv)) return t->status;
    add_settings(toy, &t->config);
    if (!program_read(t, argc, argv)) return t->status;
    if (!program_settle(t)) return t->status;
    if (t->s->batch_size % 2) config_reject(&t->config, "batch_size", "is odd");
    if (!program_open(t)) return t->status;
    if (t->mode) fprintf(toy->trace, " %s %d", t->mode, t->s->batch_size);
    else t->status = train(toy);
    return program_close(t);
}

/* == Running it =================================================================================================== */

/* Runs the program in a child process; arguments: argv, ended by NULL. */
static void run_child(void *arguments) {
    char **argv = arguments;
    static Toy run;
    int argc = 0;
    while (argv[argc]) argc++;
    run.trace = fopen(in_folder("trace"), "w");
    if (!run.trace || chdir(folder) != 0 || !freopen("out", "w", stdout)) exit(99);
    int status = toy_main(&run, argc, argv);
    fclose(run.trace);
    exit(status);
}

typedef struct {
    int status;
    char errors[2048], trace[2048], out[8192];
} Result;

static void read_text(char *text, size_t size, const char *name) {
    FILE *in = fopen(in_folder("%s", name), "r");
    size_t length = in ? fread(text, 1, size - 1, in) : 0;
    text[length] = 0;
    if (in) fclose(in);
}

#define TOY(...) toy((char *[]){"toy", __VA_ARGS__, NULL})
static const Result *toy(char **argv) {
    static Result result;
    remove(in_folder("trace"));
    remove(in_folder("out"));
    result.status = status_of(run_child, argv, result.errors, sizeof result.errors);
    read_text(result.trace, sizeof result.trace, "trace");
    read_text(result.out, sizeof result.out, "out");
    return &result;
}

static void read_weights(float w[N], const char *run, const char *file) {
    SafeTensors st;
    Error error;
    if (!safetensors_open(&st, in_folder("%s/%s.safetensors", run, file), &error)) fail_msg("%s", error.text);
    assert_true(safetensors_to_float(safetensors_find(&st, "w"), w, &error));
    safetensors_close(&st);
}

/* == Tests ======================================================================================================== */

/* The log without columns that depend on time: step, epoch, loss, lr, norm, score, mean_step, val_loss, noted. */
static void read_log(char *text, size_t size, const char *run) {
    char all[4096], *row, *rest = all;
    size_t used = 0;
    *text = 0;
    char name[64];
    snprintf(name, sizeof name, "%s/log.csv", run);
    read_text(all, sizeof all, name);
    while (*rest && (row = strsep(&rest, "\n"))) {
        for (int i = 0; row; i++) {
            const char *cell = strsep(&row, ",");
            if (i == 5 || i == 8 || i == 10 || i == 11) continue;
            used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "," : "", cell);
        }
        used += (size_t)snprintf(text + used, size - used, "\n");
        if (!rest) break;
    }
}

static void test_order_of_calls(void **state) {
    (void)state;
    static const char *const rows[] = {
        "step,epoch,loss,lr,grad_norm,score,mean_step,val_loss,noted\n2,1,", ",,1.5,,2\n4,1,", ",0.0625,",
        ",,2.5,,4\n5,1,", ",,3.0,,5\n6,2,", ",,6.0,,6\n8,2,", ",,7.0,,8\n10,2,", ",4.82,8.0,0.250000,10\n12,3,",
        ",0.03125,", ",,11.5,,12\n14,3,", ",,12.5,,14\n15,3,", ",5.37,13.0,0.250000,15\n"};
    const Result *r = TOY("--run-dir", "order");
    char log[4096];
    assert_int_equal(r->status, 0);
    assert_string_equal(r->trace, " open0.0 step step step step step step step step step step evaluate"
                                  " step step step step step evaluate");
    read_log(log, sizeof log, "order");
    const char *at = log;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *found = strstr(at, rows[i]);
        if (!found) fail_msg("'%s' is missing behind '%s'", rows[i], at);
        at = found + 1;
    }
    assert_non_null(strstr(r->out, ": best 5.367; checkpoints, log.csv and report.html are in order\n"));
    r = TOY("--resume", "order");
    assert_int_equal(r->status, 0);
    assert_string_equal(r->trace, " open3.0");
    assert_non_null(strstr(r->out, "all 3 epochs are done, best "));
}

static void test_best_weights(void **state) {
    (void)state;
    float best[N], last[N];
    assert_int_equal(TOY("--run-dir", "best", "--eval-every", "1")->status, 0);
    read_weights(best, "best", "best");
    read_weights(last, "best", "last");
    assert_memory_equal(best, last, sizeof best); /* every epoch improves the score */
    for (int i = 0; i < N; i++) assert_true(last[i] > 0.5f && last[i] < (float)(i + 1) + 0.5f);
}

/* With eval_every 0 nothing is evaluated, so that there are no best weights. */
static void test_never_evaluated(void **state) {
    (void)state;
    float last[N];
    const Result *r = TOY("--run-dir", "never", "--eval-every", "0");
    assert_int_equal(r->status, 0);
    assert_null(strstr(r->trace, "evaluate"));
    assert_non_null(strstr(r->out, ": not evaluated; checkpoints, log.csv and report.html are in never\n"));
    read_weights(last, "never", "last");
    assert_int_equal(access(in_folder("never/best.safetensors"), F_OK), -1);
    assert_non_null(strstr(TOY("--resume", "never")->out, "all 3 epochs are done, not evaluated: "));
    r = TOY("--resume", "never", "--eval-every", "1", "--epochs", "4");
    assert_non_null(strstr(r->out, ": best "));
    read_weights(last, "never", "best");
    r = TOY("--resume", "never", "--eval-every", "0", "--epochs", "5");
    assert_non_null(strstr(r->out, ": best "));
}

/* A run that is stopped in any step and resumed has the weights and the log of a run that was not stopped. */
static void test_stopped_and_resumed(void **state) {
    (void)state;
    float whole[N], resumed[N];
    char log[4096], other[4096];
    assert_int_equal(TOY("--run-dir", "whole")->status, 0);
    read_weights(whole, "whole", "last");
    read_log(log, sizeof log, "whole");
    for (int step = 1; step <= 3 * BATCHES; step++) {
        char name[32], number[16], from[64];
        snprintf(name, sizeof name, "stopped%d", step);
        snprintf(number, sizeof number, "%d", step);
        const Result *r = TOY("--run-dir", name, "--stop", number);
        assert_int_equal(r->status, 128 + SIGTERM);
        assert_non_null(strstr(r->out, "stopped by SIGTERM after step "));
        r = TOY("--resume", name);
        assert_int_equal(r->status, 0);
        snprintf(from, sizeof from, " open%d.%d ", (step - 1) / BATCHES, (step - 1) % BATCHES + 1);
        if (strncmp(r->trace, from, strlen(from))) fail_msg("'%s' does not begin with '%s'", r->trace, from);
        read_weights(resumed, name, "last");
        assert_memory_equal(whole, resumed, sizeof whole);
        read_log(other, sizeof other, name);
        assert_string_equal(log, other);
    }
}

static void write_log(const char *text, const char *more) {
    FILE *file = fopen(in_folder("columns/log.csv"), "w");
    fprintf(file, "%s%s\n", text, more);
    fclose(file);
}

/* A log keeps its columns, and values are written under their names.  The log of another version may have more or fewer
 * columns; if columns have other names, a warning reports this. */
static void test_columns_of_another_log(void **state) {
    (void)state;
    char log[4096], header[1024];
    assert_int_equal(TOY("--run-dir", "columns", "--stop", "1")->status, 128 + SIGTERM);
    read_text(header, sizeof header, "columns/log.csv");
    header[strcspn(header, "\n")] = 0;
    write_log("step,noted,epoch,mean_step\n1,1,1,1.0", "");
    const Result *r = TOY("--resume", "columns", "--epochs", "1");
    assert_int_equal(r->status, 0);
    assert_null(strstr(r->errors, "columns are not"));
    read_text(log, sizeof log, "columns/log.csv");
    assert_string_equal(log, "step,noted,epoch,mean_step\n1,1,1,1.0\n2,2,1,1.5\n4,4,1,2.5\n5,5,1,3.0\n");
    write_log(header, ",jsd");
    r = TOY("--resume", "columns", "--epochs", "2");
    assert_int_equal(r->status, 0);
    assert_null(strstr(r->errors, "columns are not"));
    read_text(log, sizeof log, "columns/log.csv");
    assert_string_equal(log + strlen(log) - 2, ",\n");
    write_log("step,NOTED,epoch,mean_step", "");
    r = TOY("--resume", "columns", "--epochs", "3");
    assert_int_equal(r->status, 0);
    assert_non_null(strstr(r->errors, "columns are not"));
    read_text(log, sizeof log, "columns/log.csv");
    assert_non_null(strstr(log, "\n15,,3,13.0\n"));
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        char *arguments[6];
        int status;
        const char *error;
    } cases[] = {
        {{"toy", "--odd", "x", "--describe"}, 2, "--odd: not together with --describe"},
        {{"toy", "--eval"}, 2, "--eval: needs weights: --init FILE or --resume FOLDER"},
        {{"toy", "--parity", "x"}, 2, "--parity: needs --out FILE for the results"},
        {{"toy", "--out", "y"}, 2, "--out: 'y' would be written by --parity only"},
        {{"toy", "--describe", "--sheet", "y"}, 2, "--sheet: 'y' would be written by --odd only"},
        {{"toy", "--batch-size", "5"}, 2, "--batch-size: is odd"},
        {{"toy", "--resume", "nowhere"}, 1, "nowhere/state.safetensors: no such file"},
        {{"toy", "--resume", "whole", "--run-dir", "other"}, 2, "--run-dir: other, but --resume continues the run in whole"},
        {{"toy", "--run-dir", "whole"}, 1, "whole/log.csv: there is a run in this folder already"},
        {{"toy", "--seed", "13", "--run-dir", "bad"}, 1,
         "step 1: the loss is not a number; nothing has been saved yet (try another toy)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Result *r = toy((char **)cases[i].arguments);
        if (r->status != cases[i].status || !strstr(r->errors, cases[i].error))
            fail_msg("expected %d and '%s', got %d and '%s'", cases[i].status, cases[i].error, r->status, r->errors);
    }
}

/* Of defaults, checkpoint, file and command line the last one wins. */
static void test_which_settings_win(void **state) {
    (void)state;
    FILE *file = fopen(in_folder("eight.ini"), "w");
    fputs("batch_size = 8\n", file);
    fclose(file);
    assert_int_equal(TOY("--run-dir", "six", "--batch-size", "6")->status, 0);
    assert_string_equal(TOY("--odd", "x")->trace, " odd 4");
    assert_string_equal(TOY("--odd", "x", "--init", "six/last.safetensors")->trace, " odd 6");
    assert_string_equal(TOY("--odd", "x", "--resume", "six")->trace, " odd 6");
    assert_string_equal(TOY("--odd", "x", "--resume", "six/best.safetensors")->trace, " odd 6");
    assert_string_equal(TOY("--odd", "x", "--resume", "six", "--config", "eight.ini")->trace, " odd 8");
    assert_string_equal(TOY("--odd", "x", "--config", "eight.ini", "--batch-size", "10")->trace, " odd 10");
    assert_string_equal(TOY("--odd", "x", "--resume", "six", "--batch-size", "10")->trace, " odd 10");
    assert_string_equal(TOY("--eval", "--resume", "six")->trace, " eval 6");
}

static void test_help(void **state) {
    (void)state;
    const Result *r = TOY("--help");
    assert_int_equal(r->status, 0);
    assert_string_equal(r->trace, "");
    assert_int_equal(strncmp(r->out, "toy is a toy.\n", 14), 0);
    assert_words(r->out, WORDS("--resume FOLDER", "--odd TEXT", "--ema-decay", "default 3)", "--bench-seconds"));
    r = TOY("-h");
    assert_int_equal(r->status, 0);
    assert_words(r->out, WORDS("toy is a toy.\n", "  toy --describe\n", "  --epochs N           passes (", "--odd TEXT",
                               "be odd\n", "--help w", "nothing"));
    r = TOY("--help", "epochs");
    assert_int_equal(r->status, 0);
    assert_int_equal(strncmp(r->out, "training:\n  --epochs N", 22), 0);
    r = TOY("--help", "epohcs");
    assert_int_equal(r->status, 2);
    assert_words(r->errors, WORDS("--help: nothing here is called 'epohcs' (did you mean 'epochs'?)"));
    r = TOY("--help-markdown");
    assert_int_equal(strncmp(r->out, "The column *resumed* says ", 26), 0);
    assert_non_null(strstr(r->out, ".\n\n### training\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_calls), cmocka_unit_test(test_best_weights),
        cmocka_unit_test(test_never_evaluated), cmocka_unit_test(test_stopped_and_resumed),
        cmocka_unit_test(test_columns_of_another_log),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_which_settings_win), cmocka_unit_test(test_help),
    };
    setenv("GOMP_SPINCOUNT", "1000", 1); /* otherwise kernels_init would execute this program again in the child */
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

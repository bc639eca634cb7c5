/* training/program, which all programs share, tested with a program of one tensor: which functions it calls in which
 * order, that a resumed run gives the same weights, the messages for contradictory modes, and the precedence of
 * settings. */
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
    FILE *trace; /* a word for every call */
} Run;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(STRING, ToySettings, stop), .section = "modes", .command_line_only = true,
     .help = "Send itself SIGTERM in this step"},
    {CONFIG_FIELD(STRING, ToySettings, odd), .command_line_only = true, .help = "A mode of its own"},
    {CONFIG_FIELD(STRING, ToySettings, sheet), .command_line_only = true, .help = "What that writes"},
};
static const ConfigGroup toy_settings = {CONFIG_GROUP(ToySettings, entries)};

static void add_settings(void *context, Config *config) {
    Run *run = context;
    run->modes = config_add(config, &mode_settings);
    run->toy = config_add(config, &toy_settings);
    config_add(config, &adamw_settings);
    config_add(config, &training_settings);
    config_default(config, "epochs", "3");
    config_default(config, "eval_every", "2");
    config_default(config, "log_every", "2");
    config_default(config, "batch_size", "4");
}

static void check_settings(void *context) {
    const Run *run = context;
    if (run->training.s->batch_size % 2) config_reject(&run->training.config, "batch_size", "is odd");
}

static double distance(const Run *run, float *difference) {
    double squares = 0;
    device_download(difference, run->w, N * sizeof *difference);
    for (int i = 0; i < N; i++) difference[i] -= (float)(i + 1);
    for (int i = 0; i < N; i++) squares += (double)difference[i] * difference[i];
    return squares;
}

static void toy_open(void *context) {
    Run *run = context;
    fprintf(run->trace, " open");
    params_declare(&run->params, &run->w, &run->dw, "", "w", INIT_ZEROS, false, 1, (int[]){N});
    params_allocate(&run->params, true);
    params_initialize(&run->params, run->training.s->seed);
    training_open(&run->training,
                  &(TrainingStart){.params = &run->params, .batches = BATCHES, .stem = "toy"});
}

static void toy_announce(void *context) { fprintf(((Run *)context)->trace, " announce"); }

static void toy_load(void *context, uint64_t epoch, uint64_t batch) {
    fprintf(((Run *)context)->trace, " load%d.%d", (int)epoch, (int)batch);
}

static double toy_stalled(const void *context) {
    (void)context;
    return 0;
}

static float toy_rate(const void *context, double epochs) {
    (void)context;
    return 0.1f / (float)(1 + epochs);
}

static double toy_step(void *context) {
    Run *run = context;
    Training *t = &run->training;
    float gradient[N];
    double loss = t->s->seed == 13 ? NAN : distance(run, gradient) / 2;
    device_upload(run->dw, gradient, sizeof gradient);
    if (*run->toy->stop && atoi(run->toy->stop) == (int)t->state.step + 1) {
        kill(getpid(), SIGTERM);
        while (!stop_signal) usleep(100);
    }
    training_sum(t, &loss, 1);
    training_update(t, loss);
    fprintf(run->trace, " step");
    return loss;
}

static void toy_measure(void *context) {
    Run *run = context;
    run->training.state.measured[0] = (double)run->training.state.step;
    fprintf(run->trace, "+");
}

static double toy_evaluate(void *context) {
    Run *run = context;
    float difference[N];
    training_sum(&run->training, NULL, 0);
    fprintf(run->trace, " evaluate");
    run->training.validation_loss = 0.25;
    return 100 / (1 + distance(run, difference));
}

static void toy_words(const void *context, TrainingWords which, char *text, size_t size) {
    const RunState *state = &((const Run *)context)->training.state;
    if (which == WORDS_COLUMNS || which == WORDS_EVALUATED)
        snprintf(text, size, "%s,%.0f", which == WORDS_EVALUATED ? "evaluated" : "", state->measured[0]);
    if (which == WORDS_RESULT || which == WORDS_BEST) snprintf(text, size, "best %.3f", state->best);
}

static void toy_close(void *context) { fprintf(((Run *)context)->trace, " close"); }

static void mode_odd(void *context) {
    const Run *run = context;
    fprintf(run->trace, " odd %d", run->training.s->batch_size);
}

static const ProgramMode modes[] = {{"describe", "describe", mode_odd, .alone = true},
                                    {"eval", "evaluate", mode_odd, .needs_weights = true},
                                    {"odd", "be odd", mode_odd, .alone = true, .outputs = {"sheet"}},
                                    {"parity", "compare", mode_odd, .alone = true, .outputs = {"out"}, .needs_output = true},
                                    {.name = NULL}};

static const HelpLine basics[] = {{"epochs", "passes"}, {.name = NULL}};

static const Program program = {
    .name = "toy", .introduction = "toy is a toy.", .examples = "  toy --describe\n", .basics = basics,
    .example = "toy", .word = "w", .reference = "nothing", .settings = add_settings, .check = check_settings, .modes = modes,
    .training = {.columns = "score,noted", .advice = "another toy", .open = toy_open, .announce = toy_announce,
                 .load = toy_load, .stalled = toy_stalled, .rate = toy_rate, .step = toy_step, .measure = toy_measure,
                 .evaluate = toy_evaluate, .words = toy_words},
    .close = toy_close,
};

/* == Running it =================================================================================================== */

/* argv of a child, ended by NULL. */
static void run_child(void *arguments) {
    char **argv = arguments;
    static Run run;
    int argc = 0;
    while (argv[argc]) argc++;
    run.trace = fopen(in_folder("trace"), "w");
    if (!run.trace || chdir(folder) != 0 || !freopen("out", "w", stdout)) exit(99);
    int status = program_main(&program, &run, &run.training, argc, argv);
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

static void test_order_of_calls(void **state) {
    (void)state;
    static const char *const rows[] = {("step,epoch,loss,lr,grad_norm,images_per_s,score,noted,stall,"
                                        "val_loss,wall_s,peak_bytes\n2,1,"),
                                       ",,2,0.000,,", "\n4,1,", ",0.0625,", ",,4,0.000,,", "\n5,1,", ",,5,0.000,,",
                                       "\n6,2,", ",,6,0.000,,", "\n8,2,", ",,8,0.000,,", "\n10,2,",
                                       ",evaluated,10,0.000,0.250000,", "\n12,3,", ",0.03125,", ",,12,0.000,,",
                                       "\n14,3,", ",,14,0.000,,", "\n15,3,", ",evaluated,15,0.000,0.250000,"};
    const Result *r = TOY("--run-dir", "order");
    char log[4096];
    assert_int_equal(r->status, 0);
    assert_string_equal(r->trace, " open announce load0.0 step step+ step step+ step+ load1.0"
                                  " load1.0 step+ step step+ step step+ load2.0 evaluate"
                                  " load2.0 step step+ step step+ step+ evaluate close");
    read_text(log, sizeof log, "order/log.csv");
    const char *at = log;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *found = strstr(at, rows[i]);
        if (!found) fail_msg("'%s' is missing behind '%s'", rows[i], at);
        at = found + 1;
    }
    assert_non_null(strstr(r->out, ": best 5.367; checkpoints and log.csv are in order\n"));
    r = TOY("--resume", "order");
    assert_int_equal(r->status, 0);
    assert_string_equal(r->trace, " open announce close");
    assert_non_null(strstr(r->out, "all 3 epochs are done, best "));
}

static void test_best_weights(void **state) {
    (void)state;
    float best[N], last[N];
    assert_int_equal(TOY("--run-dir", "best", "--eval-every", "1")->status, 0);
    read_weights(best, "best", "best");
    read_weights(last, "best", "last");
    assert_memory_equal(best, last, sizeof best); /* it comes nearer with every epoch */
    for (int i = 0; i < N; i++) assert_true(last[i] > 0.5f && last[i] < (float)(i + 1) + 0.5f);
}

/* With eval_every 0 nothing is evaluated, so that no weights are the best ones. */
static void test_never_evaluated(void **state) {
    (void)state;
    float last[N];
    const Result *r = TOY("--run-dir", "never", "--eval-every", "0");
    assert_int_equal(r->status, 0);
    assert_string_equal(r->trace, " open announce load0.0 step step+ step step+ step+ load1.0"
                                  " load1.0 step+ step step+ step step+ load2.0"
                                  " load2.0 step step+ step step+ step+ close");
    assert_non_null(strstr(r->out, ": not evaluated; checkpoints and log.csv are in never\n"));
    read_weights(last, "never", "last");
    assert_int_equal(access(in_folder("never/best.safetensors"), F_OK), -1);
    assert_non_null(strstr(TOY("--resume", "never")->out, "all 3 epochs are done, not evaluated: "));
    r = TOY("--resume", "never", "--eval-every", "1", "--epochs", "4");
    assert_non_null(strstr(r->out, ": best "));
    read_weights(last, "never", "best");
    r = TOY("--resume", "never", "--eval-every", "0", "--epochs", "5");
    assert_non_null(strstr(r->out, ": best "));
}

/* Stopped in every step of the run in turn. */
static void test_stopped_and_resumed(void **state) {
    (void)state;
    float whole[N], resumed[N];
    assert_int_equal(TOY("--run-dir", "whole")->status, 0);
    read_weights(whole, "whole", "last");
    for (int step = 1; step <= 3 * BATCHES; step++) {
        char name[32], number[16], from[64];
        snprintf(name, sizeof name, "stopped%d", step);
        snprintf(number, sizeof number, "%d", step);
        const Result *r = TOY("--run-dir", name, "--stop", number);
        assert_int_equal(r->status, 128 + SIGTERM);
        assert_non_null(strstr(r->out, "stopped by SIGTERM after step "));
        r = TOY("--resume", name);
        assert_int_equal(r->status, 0);
        snprintf(from, sizeof from, " open announce load%d.%d ", (step - 1) / BATCHES, (step - 1) % BATCHES + 1);
        if (strncmp(r->trace, from, strlen(from))) fail_msg("'%s' does not begin with '%s'", r->trace, from);
        read_weights(resumed, name, "last");
        assert_memory_equal(whole, resumed, sizeof whole);
    }
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
        {{"toy", "--resume", "whole", "--run-dir", "other"}, 2, "--run-dir: other, but --resume goes on in whole"},
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

/* The last of defaults, checkpoint, file and command line wins; a file keeps the checkpoint's settings out. */
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
    assert_string_equal(TOY("--eval", "--resume", "six")->trace, " odd 6 close");
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
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_which_settings_win), cmocka_unit_test(test_help),
    };
    setenv("GOMP_SPINCOUNT", "1000", 1); /* else kernels_init starts the child again, as this program */
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

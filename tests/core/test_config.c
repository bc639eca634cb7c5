/* Reading settings: the message for each kind of wrong line or argument, precedence, includes, and that a saved config
 * gives the same settings when read. */
#include "core/config/config.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/die.h"
#include "core/config/foreign_names.h"
#include "core/text.h"
#include "tests/check.h"
#include "tests/scratch.h"

typedef struct {
    const char *name;
    int number;
} Operator;

static const Operator softmax = {"softmax", 0}, ripple = {"ripple", 1}, lisa = {"lisa", 2}, hidden = {"hidden", 3};
static const void *const operators[] = {&softmax, &hidden, &ripple, &lisa, NULL};
static bool is_offered(const void *item) { return item != &hidden; }

typedef struct {
    int img_size[2], batch_size, pool, steps;
    const Operator *attn;
    ConfigItems later;
    float lr, mean;
    bool relative, describe;
    const char *data, *config;
    uint64_t seed;
    ConfigList predict;
} Settings;


static const ConfigEntry entries[] = {
    {CONFIG_FIELD(STRING, Settings, config), .argument = "FILE", .command_line_only = true, .section = "modes",
     .help = "INI file with settings; the command line wins over it"},
    {CONFIG_FIELD(BOOL, Settings, describe), .command_line_only = true, .help = "print the model's plan and stop"},
    {CONFIG_FIELD(LIST, Settings, predict), .argument = "FILE...", .command_line_only = true,
     .help = "classify these images"},
    {CONFIG_FIELD(STRING, Settings, data), .argument = "FOLDER", .section = "data", .help = "folder of the data set"},
    {CONFIG_FIELD(SIZE, Settings, img_size), "224", .min = 1, .max = 4096, .help = "height and width of the input"},
    {CONFIG_FIELD(ITEM, Settings, attn), "softmax", .table = operators, .offers = is_offered, .noun = "operator",
     .section = "model",
     .help = "attention operator"},
    {CONFIG_FIELD(ITEMS, Settings, later), "lisa", .table = operators, .offers = is_offered, .noun = "operator",
     .help = "operators of the later stages"},
    {CONFIG_FIELD(CHOICE, Settings, pool), "cls", CONFIG_CHOICES("cls", "gap"),
     .help = "what the head reads: the class token, or the mean of all tokens | either way after the last norm"},
    {CONFIG_FIELD(BOOL, Settings, relative), "true", .help = "relative positions"},
    {CONFIG_FIELD(INT, Settings, batch_size), "64", .min = 1, .max = 65536, .section = "training",
     .help = "images in a step, over all ranks"},
    {CONFIG_FIELD(FLOAT, Settings, lr), "1e-3", .min = 0, .max = 0.1, .help = "peak learning rate"},
    {CONFIG_FIELD(INT, Settings, steps), "-1", .help = "steps to run, -1 for all"},
    {CONFIG_FIELD(FLOAT, Settings, mean), "0.5", .help = "a number without bounds"},
    {CONFIG_FIELD(UINT64, Settings, seed), "1", .help = "seed of everything random"},
};
enum { COUNT = sizeof entries / sizeof *entries };

typedef struct {
    Config config;
    Settings *settings;
    Error error;
} Fixture;

static const ConfigGroup group = {CONFIG_GROUP(Settings, entries), .change = CHANGE_FREELY};

static void begin(Fixture *f) {
    memset(f, 0, sizeof *f);
    config_init(&f->config, "config");
    f->settings = config_add(&f->config, &group);
}

/* == Errors ===================================================================================================== */

static void test_text_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"\n[model]\nattn = rippel\n", "x.ini:3: attn: unknown operator 'rippel' (did you mean 'ripple'?)"},
        {"attn = convolution", "x.ini:1: attn: unknown operator 'convolution' (softmax, ripple or lisa)"},
        {"later = ripple, softmx", "x.ini:1: later: unknown operator 'softmx' (did you mean 'softmax'?)"},
        {"later = ripple,hidden", "x.ini:1: later: unknown operator 'hidden' (softmax, ripple or lisa)"},
        {"later = lisa,,lisa", "x.ini:1: later: unknown operator '' (softmax, ripple or lisa)"},
        {"later = lisa,lisa,lisa,lisa,lisa,lisa,lisa,lisa,lisa", "x.ini:1: later: more than 8 names"},
        {"pool = maximum", "x.ini:1: pool: unknown value 'maximum' (cls or gap)"},
        {"bacth_size = 4", "x.ini:1: bacth_size: unknown setting (did you mean 'batch_size'?)"},
        {"zzzzzzzzz = 4", "x.ini:1: zzzzzzzzz: unknown setting"},
        {"describ = 1", "x.ini:1: describ: unknown setting"},
        {"inclode = x", "x.ini:1: inclode: unknown setting (did you mean 'include'?)"},
        {"include = y.ini", "x.ini:1: include: not possible here, only in a file"},
        {"describe = true", "x.ini:1: describe: possible only on the command line"},
        {"predict = a.png", "x.ini:1: predict: possible only on the command line"},
        {"[modle]", "x.ini:1: unknown section [modle] (did you mean [model]?)"},
        {"[zzzzzzzzz]", "x.ini:1: unknown section [zzzzzzzzz] (sections: [data], [model], [training])"},
        {"[modes]", "x.ini:1: unknown section [modes] (did you mean [model]?)"},
        {"[model", "x.ini:1: expected ']' at the end of the section's title"},
        {"[model] x", "x.ini:1: unexpected text after the section's title"},
        {"lr = 1e-3\nbatch_size\nlr = x", "x.ini:2: expected 'name = value'"},
        {"= 5", "x.ini:1: expected 'name = value'"},
        {"lr = 1e-3\n# again\nlr = 1e-4", "x.ini:3: lr: set twice in this file, on lines 1 and 3"},
        {"batch-size = 1\nbatch_size = 2", "x.ini:2: batch_size: set twice in this file, on lines 1 and 2"},
        {"batch_size = many", "x.ini:1: batch_size: expected an integer from 1 to 65536, got 'many'"},
        {"batch_size = 12x", "x.ini:1: batch_size: expected an integer from 1 to 65536, got '12x'"},
        {"batch_size = 1.5", "x.ini:1: batch_size: expected an integer from 1 to 65536, got '1.5'"},
        {"batch_size =", "x.ini:1: batch_size: expected an integer from 1 to 65536, got ''"},
        {"batch_size = 0", "x.ini:1: batch_size: 0 is out of range (integer from 1 to 65536)"},
        {"batch_size = 65537", "x.ini:1: batch_size: 65537 is out of range (integer from 1 to 65536)"},
        {"batch_size = 99999999999999999999",
         "x.ini:1: batch_size: 99999999999999999999 is out of range (integer from 1 to 65536)"},
        {"steps = 2147483648", "x.ini:1: steps: 2147483648 is out of range (from -2147483648 to 2147483647)"},
        {"lr = fast", "x.ini:1: lr: expected a number from 0 to 0.1, got 'fast'"},
        {"lr = 1e-3 1", "x.ini:1: lr: expected a number from 0 to 0.1, got '1e-3 1'"},
        {"lr = nan", "x.ini:1: lr: expected a finite number, got 'nan'"},
        {"lr = nan(7)", "x.ini:1: lr: expected a finite number, got 'nan(7)'"},
        {"lr = -inf", "x.ini:1: lr: expected a finite number, got '-inf'"},
        {"lr = 1e400", "x.ini:1: lr: 1e400 is out of range (number from 0 to 0.1)"},
        {"mean = 1e39", "x.ini:1: mean: 1e39 is out of range (from -3.402823466e+38 to 3.402823466e+38)"},
        {"lr = 1e-60", "x.ini:1: lr: 1e-60 is too small for a float"},
        {"lr = -1", "x.ini:1: lr: -1 is out of range (number from 0 to 0.1)"},
        {"seed = -1", "x.ini:1: seed: expected a non-negative integer, got '-1'"},
        {"seed = 18446744073709551616", "x.ini:1: seed: 18446744073709551616 is out of range (from 0 to 2^64 - 1)"},
        {"relative = maybe", "x.ini:1: relative: expected true or false, got 'maybe'"},
        {"img_size = 7y9", "x.ini:1: img_size: expected N or HxW, each from 1 to 4096, got '7y9'"},
        {"img_size = 7x", "x.ini:1: img_size: expected N or HxW, each from 1 to 4096, got '7x'"},
        {"img_size = 7x9x3", "x.ini:1: img_size: expected N or HxW, each from 1 to 4096, got '7x9x3'"},
        {"img_size = 7x0", "x.ini:1: img_size: 7x0 is out of range (N or HxW, each from 1 to 4096)"},
        {"data = a\tb", "x.ini:1: data: a control character (9) cannot be saved in an INI file"},
        {"attn = \033[2J", "x.ini:1: attn: unknown operator '?[2J' (softmax, ripple or lisa)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        begin(&f);
        bool ok = config_try_text(&f.config, cases[i].text, strlen(cases[i].text), "x.ini", &f.error);
        assert_false(ok);
        assert_string_equal(f.error.text, cases[i].error);
        config_free(&f.config);
    }
}

static void test_binary_and_long_lines(void **state) {
    (void)state;
    Fixture f;
    begin(&f);
    assert_false(config_try_text(&f.config, "lr = 0.1\nda\0ta", 14, "x.ini", &f.error));
    assert_string_equal(f.error.text, "x.ini:2: a NUL byte: this is not a text file");
    size_t size = 20000;
    char *text = malloc(size + 1);
    memset(text, 'a', size);
    memcpy(text, "data = ", 7);
    text[size] = 0;
    assert_false(config_try_text(&f.config, text, size, "x.ini", &f.error));
    assert_non_null(strstr(f.error.text, "x.ini:1: the line is longer than "));
    text[0] = '#';
    assert_true(config_try_text(&f.config, text, size, "x.ini", &f.error));
    free(text);
    config_free(&f.config);
}

/* A message is one line and is cut only between characters.  A new message may contain the previous one. */
static void test_error(void **state) {
    (void)state;
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x90\xa6"};
    enum { ROOM = sizeof((Error *)0)->text };
    Error error;
    assert_false(refuse(&error, "%s: %d\n\x1b[2m", "a\tb", 3));
    assert_string_equal(error.text, "a?b: 3??[2m");
    assert_false(refuse(&error, "%s, again", error.text));
    assert_string_equal(error.text, "a?b: 3??[2m, again");
    for (size_t c = 0; c < sizeof characters / sizeof *characters; c++) {
        for (size_t before = 0; before < 5; before++) { /* the limit falls on each byte of a character */
            char long_text[2 * ROOM] = "";
            size_t bytes = strlen(characters[c]), used = before;
            memset(long_text, '-', before);
            for (; used + bytes < sizeof long_text; used += bytes) memcpy(long_text + used, characters[c], bytes);
            refuse(&error, "%s", long_text);
            size_t length = strlen(error.text);
            assert_int_equal(length, before + (ROOM - 1 - before) / bytes * bytes);
            assert_memory_equal(error.text, long_text, length);
        }
    }
}

static bool arguments(Fixture *f, int count, ...) {
    static char *argv[16];
    va_list list;
    va_start(list, count);
    argv[0] = "program";
    for (int i = 0; i < count; i++) argv[i + 1] = va_arg(list, char *);
    va_end(list);
    f->error.text[0] = 0;
    return config_try_arguments(&f->config, count + 1, argv, &f->error);
}

static void test_argument_errors(void **state) {
    (void)state;
    static const struct {
        const char *first, *second, *error;
    } cases[] = {
        {"--bacth-size", "4", "--bacth-size: unknown setting (did you mean --batch-size?)"},
        {"--bacth_size=4", NULL, "--bacth_size: unknown setting (did you mean --batch-size?)"},
        {"--descrbe", NULL, "--descrbe: unknown setting (did you mean --describe?)"},
        {"--include", "x.ini", "--include: unknown setting"},
        {"--lr", NULL, "--lr: expected a value"},
        {"--lr", "--describe", "--lr: expected a value"},
        {"--data", "-h", "--data: expected a value"},
        {"--predict", "--describe", "--predict: expected a value"},
        {"--attn", "ripplo", "--attn: unknown operator 'ripplo' (did you mean 'ripple'?)"},
        {"--describe", "model", "--describe: expected true or false, got 'model'"},
        {"x.ini", NULL, "unexpected argument 'x.ini': a setting is --name value (see --help)"},
        {"-h", NULL, "unexpected argument '-h': a setting is --name value (see --help)"},
        {"--", NULL, "unexpected argument '--': a setting is --name value (see --help)"},
        {"--=4", NULL, "--: unknown setting"},
        {"--config", NULL, "--config: expected a file name"},
        {"--config", "/nonexistent/x.ini", "--config: cannot open '/nonexistent/x.ini': No such file or directory"},
        {"--config", "/", "--config: cannot read '/': Is a directory"},
        {"--config", "/dev/zero", "--config: '/dev/zero' is not a file of settings: more than 1048576 bytes"},
        {"--config=a.ini", "--config=b.ini", "--config: given twice (a file can hold 'include = other.ini')"},
        {"--data", "a ;b", "--data: ' ;' cannot be saved in an INI file, where it begins a comment"},
        {"--data", ";b", "--data: ' ;' cannot be saved in an INI file, where it begins a comment"},
        {"--data", "a\nb", "--data: a control character (10) cannot be saved in an INI file"},
        {"--data", "a ", "--data: spaces around a value cannot be saved in an INI file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        begin(&f);
        assert_false(arguments(&f, cases[i].second ? 2 : 1, cases[i].first, cases[i].second));
        assert_string_equal(f.error.text, cases[i].error);
        config_free(&f.config);
    }
}

/* == Values ===================================================================================================== */

static void test_defaults(void **state) {
    (void)state;
    Fixture f;
    begin(&f);
    const Settings *s = f.settings;
    assert_int_equal(s->img_size[0], 224);
    assert_int_equal(s->img_size[1], 224);
    assert_int_equal(s->steps, -1);
    assert_true(s->lr == 1e-3f && s->relative && !s->describe && s->seed == 1);
    assert_string_equal(s->data, "");
    assert_int_equal(s->predict.count, 0);
    assert_null(config_origin(&f.config, "img_size"));
    config_free(&f.config);
}

static void test_text(void **state) {
    (void)state;
    static const char text[] = "\xEF\xBB\xBF# comment\r\n[ Model ] ; comment\r\n  attn = lisa ; comment\r\n"
                               "\trelative=no\r\nlater = ripple,ripple, softmax\n; comment\n[data]\n[training]\n"
                               "seed: 18446744073709551615\nimg-size = 7,9\n"
                               "data = a=b;c #d\nlr = 0.1\nmean = -0\nsteps = +7\n[model] # comment\nbatch_size = 007";
    Fixture f;
    begin(&f);
    if (!config_try_text(&f.config, text, sizeof text - 1, "x", &f.error)) fail_msg("%s", f.error.text);
    const Settings *s = f.settings;
    assert_ptr_equal(s->attn, &lisa);
    assert_int_equal(s->img_size[0], 7);
    assert_int_equal(s->img_size[1], 9);
    assert_int_equal(s->batch_size, 7);
    assert_int_equal(s->steps, 7);
    assert_string_equal(s->data, "a=b;c #d");
    assert_int_equal(s->later.count, 3);
    assert_true(s->later.at[0] == &ripple && s->later.at[1] == &ripple && s->later.at[2] == &softmax);
    assert_true(s->seed == UINT64_MAX && !s->relative && s->lr == 0.1f && s->mean == 0 && signbit(s->mean));
    assert_string_equal(config_origin(&f.config, "attn"), "x:3");
    assert_string_equal(config_origin(&f.config, "batch-size"), "x:16");
    assert_null(config_origin(&f.config, "pool"));
    config_free(&f.config);
}

static void test_arguments(void **state) {
    (void)state;
    Fixture f;
    begin(&f);
    if (!arguments(&f, 11, "--predict", "a.png", "b.png", "--describe", "--relative=OFF", "--img_size", "7X9",
                   "--steps", "-5", "--predict=c.png", "-d.png"))
        fail_msg("%s", f.error.text);
    const Settings *s = f.settings;
    static const char *const files[] = {"a.png", "b.png", "c.png", "-d.png"};
    assert_int_equal(s->predict.count, 4);
    for (int i = 0; i < 4; i++) assert_string_equal(s->predict.items[i], files[i]);
    assert_true(s->describe && !s->relative && s->img_size[0] == 7 && s->img_size[1] == 9 && s->steps == -5);
    assert_string_equal(config_origin(&f.config, "img_size"), "--img_size");
    assert_true(arguments(&f, 4, "--batch-size", "2", "--batch_size", "3"));
    assert_int_equal(s->batch_size, 3);
    assert_true(arguments(&f, 2, "--relative", "yes"));
    assert_true(s->relative && !*s->data);
    assert_false(arguments(&f, 1, "--data="));
    assert_string_equal(f.error.text, "--data: the value is empty: is a variable of the shell not set?");
    assert_false(arguments(&f, 3, "--predict", "a.png", ""));
    assert_string_equal(f.error.text, "--predict: the value is empty: is a variable of the shell not set?");
    assert_false(arguments(&f, 2, "--config", ""));
    assert_string_equal(f.error.text, "--config: the value is empty: is a variable of the shell not set?");
    assert_true(config_try_set(&f.config, "data", "folder", "class.txt:1", &f.error));
    assert_string_equal(s->data, "folder");
    assert_string_equal(config_origin(&f.config, "data"), "class.txt:1");
    assert_false(config_try_set(&f.config, "lr", "2", "class.txt:2", &f.error));
    assert_string_equal(f.error.text, "class.txt:2: lr: 2 is out of range (number from 0 to 0.1)");
    config_free(&f.config);
}

static void test_short_help(void **state) {
    (void)state;
    static const ConfigEntry help_entries[] = {
        {"help", CONFIG_BOOL, .command_line_only = true, .section = "modes", .help = "print this help"}};
    static const ConfigGroup help_group = {.entries = help_entries, .count = 1, .size = sizeof(bool)};
    Fixture f;
    begin(&f);
    const bool *help = config_add(&f.config, &help_group);
    assert_true(arguments(&f, 3, "--describe", "-h", "--data=-h"));
    assert_true(*help && f.settings->describe);
    assert_string_equal(f.settings->data, "-h");
    assert_string_equal(config_origin(&f.config, "help"), "--help");
    config_free(&f.config);
}

/* A flag with an optional value uses the next word as its value, unless that is a flag. */
static void test_help_with_a_word(void **state) {
    (void)state;
    static const ConfigEntry help_entries[] = {
        {"help", CONFIG_STRING, .command_line_only = true, .section = "modes", .alone = "all", .help = "print help"}};
    static const ConfigGroup help_group = {.entries = help_entries, .count = 1, .size = sizeof(char *)};
    static const struct {
        const char *first, *second, *value;
    } cases[] = {{"--help", "--describe", "all"}, {"-h", "--describe", "-h"}, {"--help", "lisa", "lisa"},
                 {"-h", "lisa", "lisa"}, {"--help=lr", "--describe", "lr"}};
    for (int i = 0; i < 5; i++) {
        Fixture f;
        begin(&f);
        const char *const *help = config_add(&f.config, &help_group);
        assert_true(arguments(&f, 2, cases[i].first, cases[i].second));
        assert_string_equal(*help, cases[i].value);
        config_free(&f.config);
    }
    Fixture f;
    begin(&f);
    config_add(&f.config, &help_group);
    assert_false(arguments(&f, 1, "--help="));
    assert_string_equal(f.error.text, "--help: the value is empty: is a variable of the shell not set?");
    config_free(&f.config);
}

/* == Files ====================================================================================================== */

static void put_file(const char *name, const char *text) {
    FILE *out = fopen(in_folder(name), "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static void test_file_and_command_line(void **state) {
    (void)state;
    put_file("a.ini", "lr = 0.01\nbatch_size = 8\nattn = ripple\n");
    for (int order = 0; order < 2; order++) {
        Fixture f;
        begin(&f);
        bool ok = order ? arguments(&f, 4, "--lr", "0.02", "--config", in_folder("a.ini"))
                        : arguments(&f, 4, "--config", in_folder("a.ini"), "--lr", "0.02");
        if (!ok) fail_msg("%s", f.error.text);
        char origin[300];
        snprintf(origin, sizeof origin, "%s:2", in_folder("a.ini"));
        assert_true(f.settings->lr == 0.02f && f.settings->batch_size == 8 && f.settings->attn == &ripple);
        assert_string_equal(config_origin(&f.config, "lr"), "--lr");
        assert_string_equal(config_origin(&f.config, "batch_size"), origin);
        config_free(&f.config);
    }
}

static void test_include(void **state) {
    (void)state;
    mkdir(in_folder("sub"), 0777);
    put_file("base.ini", "lr = 0.01\nbatch_size = 8\n");
    put_file("sub/model.ini", "attn = lisa\ninclude = ../base.ini\nbatch_size = 9\n");
    put_file("top.ini", "pool = gap\nsteps = 3\n[training]\ninclude = sub/model.ini\nlr = 0.03\n");
    Fixture f;
    begin(&f);
    assert_false(config_try_file(&f.config, "/nonexistent.ini", &f.error));
    assert_string_equal(f.error.text, "cannot open '/nonexistent.ini': No such file or directory");
    if (!config_try_file(&f.config, in_folder("top.ini"), &f.error)) fail_msg("%s", f.error.text);
    const Settings *s = f.settings;
    assert_true(s->lr == 0.03f && s->batch_size == 9 && s->attn == &lisa && s->pool == 1 && s->steps == 3);
    char expected[1200];
    snprintf(expected, sizeof expected, "%s:1", in_folder("sub/model.ini"));
    assert_string_equal(config_origin(&f.config, "attn"), expected);

    put_file("base.ini", "\nlr = 7\n");
    assert_false(config_try_file(&f.config, in_folder("top.ini"), &f.error));
    snprintf(expected, sizeof expected, "%s/sub/../base.ini:2: lr: 7 is out of range (number from 0 to 0.1)", folder);
    assert_string_equal(f.error.text, expected);

    put_file("base.ini", "include = sub/model.ini\n");
    assert_false(config_try_file(&f.config, in_folder("top.ini"), &f.error));
    snprintf(expected, sizeof expected,
             "%s/sub/../base.ini:1: include: '%s/sub/../sub/model.ini' is already being read: "
             "the files include each other", folder, folder);
    assert_string_equal(f.error.text, expected);

    put_file("base.ini", "include = missing.ini\n");
    assert_false(config_try_file(&f.config, in_folder("base.ini"), &f.error));
    snprintf(expected, sizeof expected, "%s:1: include: cannot open '%s': No such file or directory",
             in_folder("base.ini"), in_folder("missing.ini"));
    assert_string_equal(f.error.text, expected);

    for (int i = 0; i < 9; i++) {
        char name[16], text[64];
        snprintf(name, sizeof name, "n%d.ini", i);
        snprintf(text, sizeof text, i < 8 ? "include = n%d.ini\n" : "# the end\n", i + 1);
        put_file(name, text);
    }
    assert_true(config_try_file(&f.config, in_folder("n1.ini"), &f.error));
    assert_false(config_try_file(&f.config, in_folder("n0.ini"), &f.error));
    snprintf(expected, sizeof expected, "%s:1: include: files nest deeper than 8", in_folder("n7.ini"));
    assert_string_equal(f.error.text, expected);
    config_free(&f.config);
}

/* == Errors that end the program ================================================================================ */

static void call_arguments(void *user) {
    Fixture *f = user;
    char *argv[] = {"program", "--bacth-size", "4"};
    config_try_arguments(&f->config, 3, argv, &error_usage);
}

static void call_text(void *user) {
    config_try_text(&((Fixture *)user)->config, "lr = x", 6, "checkpoint", &error_usage);
}

static void call_reject_file(void *user) {
    Fixture *f = user;
    config_try_text(&f->config, "\nbatch_size = 5", 15, "x.ini", &error_usage);
    config_reject(&f->config, "batch_size", "%d does not divide %d", 5, 192);
}

static void call_reject_argument(void *user) {
    Fixture *f = user;
    char *argv[] = {"program", "--batch-size=5"};
    config_try_arguments(&f->config, 2, argv, &error_usage);
    config_reject(&f->config, "batch_size", "too odd");
}

static void call_reject_default(void *user) {
    config_reject(&((Fixture *)user)->config, "batch_size", "too small");
}

/* Settings given in these places, and the message of a check that names three of them, one with another value. */
typedef struct {
    const char *saved, *file, *arguments[5], *said;
} Blame;

static void call_blame(void *user) {
    const Blame *blame = user;
    Fixture f;
    char *argv[8] = {"program"};
    int argc = 1;
    begin(&f);
    while (argc < 6 && blame->arguments[argc - 1]) argv[argc] = (char *)blame->arguments[argc - 1], argc++;
    config_try_text(&f.config, blame->saved, strlen(blame->saved), "state", &error_usage);
    if (*blame->file && !config_try_file(&f.config, blame->file, &f.error)) die_usage("%s", f.error.text);
    config_try_arguments(&f.config, argc, argv, &error_usage);
    config_reject(&f.config, "batch_size", "{batch_size} does not fit {img_size}, %d%% of {%s=%d}: %s", 7, "steps", 3, "{lr}");
}

static void test_blame(void **state) {
    (void)state;
    static Blame cases[] = {
        {"", "", {0}, "batch_size: 64 (the default; --batch-size sets it) does not fit img_size 224 (the default; "
                      "--img-size sets it), 7% of steps 3 (the default; --steps sets it): {lr}\n"},
        {"", "", {"--batch-size", "5"}, "--batch-size: 5 does not fit img_size 224 (the default; --img-size sets it), 7% of "
                                        "steps 3 (the default; --steps sets it): {lr}\n"},
        {"", "", {"--img_size=30x40"}, "--img_size: batch_size 64 (the default; --batch-size sets it) does not fit img_size "
                                       "30x40, 7% of steps 3 (the default; --steps sets it): {lr}\n"},
        {"", "", {"--img-size", "30", "--batch-size", "5"}, "--batch-size: 5 does not fit --img-size 30, 7% of steps 3 (the "
                                                            "default; --steps sets it): {lr}\n"},
        {"batch_size = 5\nimg_size = 30\n", "", {"--steps", "9"},
         "--steps: batch_size 5 (state:1) does not fit img_size 30 (state:2), 7% of steps 3: {lr}\n"},
        {"batch_size = 5\n", "outer.ini", {0}, "outer.ini:2: img_size: batch_size 5 (state:1) does not fit img_size 40, 7% "
                                               "of steps 3 (inner.ini:1): {lr}\n"},
        {"img_size = 30\nsteps = 9\n", "", {0}, "state:1: img_size: batch_size 64 (the default; --batch-size sets it) does "
                                                "not fit img_size 30, 7% of steps 3 (state:2): {lr}\n"},
    };
    put_file("inner.ini", "steps = 9\n");
    put_file("outer.ini", "include = inner.ini\nimg_size = 40\n");
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(folder), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        assert_int_equal(status_of(call_blame, &cases[i], text, sizeof text), 2);
        assert_string_equal(strstr(text, ": ") + 2, cases[i].said);
    }
    assert_int_equal(chdir(here), 0);
}

/* A value that the program set itself is not called a default.  Braces in an argument are not replaced. */
static void call_die(void *user) {
    Fixture *f = user;
    char *argv[] = {"program", "--steps=9"};
    config_try_arguments(&f->config, 2, argv, &error_usage);
    f->settings->batch_size = 12;
    config_die(&f->config, "%s: is for {batch_size}, {steps} and {nothing}", "a{lr}");
}

static void test_sourced(void **state) {
    (void)state;
    Fixture f;
    char text[1024];
    begin(&f);
    assert_int_equal(status_of(call_die, &f, text, sizeof text), 1);
    assert_string_equal(strstr(text, ": ") + 2,
                        "a{lr}: is for batch_size 12 (not given; --batch-size sets it), --steps 9 and nothing\n");
    config_free(&f.config);
}

/* `call` must say `said` after the program's name and exit with status 2. */
static void expect_usage(void (*call)(void *), const char *said) {
    Fixture f;
    char text[1024];
    begin(&f);
    assert_int_equal(status_of(call, &f, text, sizeof text), 2);
    const char *line = strstr(text, ": ");
    assert_non_null(line);
    assert_string_equal(line + 2, said);
    config_free(&f.config);
}

static void test_dying(void **state) {
    (void)state;
    expect_usage(call_arguments, "--bacth-size: unknown setting (did you mean --batch-size?)\n");
    expect_usage(call_text, "checkpoint:1: lr: expected a number from 0 to 0.1, got 'x'\n");
    expect_usage(call_reject_file, "x.ini:2: batch_size: 5 does not divide 192\n");
    expect_usage(call_reject_argument, "--batch-size: too odd\n");
    expect_usage(call_reject_default, "batch_size: too small\n");
}

/* == What is printed ============================================================================================ */

static float random_float(uint32_t stream) {
    for (uint32_t i = 0;; i++) {
        uint32_t bits = rng_bits(check_seed(), RNG_TEST, stream, 1, i);
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) return value;
    }
}

/* Property: write then read is the identity, for random and extreme values. */
static void test_round_trip(void **state) {
    (void)state;
    static const float extremes[] = {0, -0.0f, 1e-45f, 3.4028235e38f, 0.1f, 300, 1e7f, 16777215, 1.0f / 3, 5e-4f};
    static const char *const lists[] = {"lisa", "softmax,ripple,ripple", "lisa,softmax"};
    for (uint32_t i = 0; i < 2000; i++) {
        Fixture f, g;
        char text[40], seed[24], size[24];
        begin(&f);
        begin(&g);
        float value = i < 10 ? extremes[i] : random_float(i);
        snprintf(text, sizeof text, "%.17g", (double)value);
        uint64_t high = rng_bits(check_seed(), RNG_TEST, i, 2, 0), low = rng_bits(check_seed(), RNG_TEST, i, 2, 1);
        snprintf(seed, sizeof seed, "%llu", (unsigned long long)(high << 32 | low));
        snprintf(size, sizeof size, "%ux%u", 1 + rng_below(check_seed(), RNG_TEST, i, 3, 0, 3), 1 + i % 3);
        if (!arguments(&f, 15, "--mean", text, "--later", lists[i % 3], "--seed", seed, "--img-size", size, "--attn", "lisa", "--data",
                       "a folder/x;y = [z] #1", i & 1 ? "--relative=0" : "--relative=1", "--predict", "x.png"))
            fail_msg("%s", f.error.text);
        char *saved = config_text(&f.config);
        if (!config_try_text(&g.config, saved, strlen(saved), "saved", &g.error))
            fail_msg("%s", g.error.text);
        assert_memory_equal(&f.settings->mean, &g.settings->mean, sizeof value);
        assert_memory_equal(f.settings->img_size, g.settings->img_size, sizeof f.settings->img_size);
        assert_true(f.settings->seed == g.settings->seed && f.settings->lr == g.settings->lr);
        assert_true(f.settings->attn == g.settings->attn && f.settings->relative == g.settings->relative);
        assert_memory_equal(&f.settings->later, &g.settings->later, sizeof f.settings->later);
        assert_string_equal(f.settings->data, g.settings->data);
        assert_int_equal(g.settings->predict.count, 0);
        char *again = config_text(&g.config);
        assert_string_equal(saved, again);
        free(saved);
        free(again);
        config_free(&f.config);
        config_free(&g.config);
    }
}

/* A string near the limit of a line is read back, and a longer one is refused. */
static void test_long_string(void **state) {
    (void)state;
    Fixture f, g;
    begin(&f);
    begin(&g);
    static char value[20001];
    size_t length = sizeof value - 1;
    memset(value, 'x', length);
    for (; length && !arguments(&f, 2, "--data", value); value[--length] = 0)
        assert_non_null(strstr(f.error.text, "characters are too long for an INI file"));
    assert_true(length > 150);
    char *saved = config_text(&f.config);
    if (!config_try_text(&g.config, saved, strlen(saved), "saved", &g.error)) fail_msg("%s", g.error.text);
    assert_string_equal(g.settings->data, value);
    free(saved);
    config_free(&f.config);
    config_free(&g.config);
}

static void test_saved_text(void **state) {
    (void)state;
    Fixture f;
    begin(&f);
    assert_true(arguments(&f, 6, "--lr", "0.00050", "--img_size", "7x9", "--mean", "300"));
    char *text = config_text(&f.config);
    static const char expected[] =
        "[data]\n\n# folder of the data set\ndata = \n\n"
        "# height and width of the input (N or HxW, each from 1 to 4096; default 224)\nimg_size = 7x9\n\n"
        "[model]\n\n# attention operator (softmax, ripple or lisa; default softmax)\nattn = softmax\n\n"
        "# operators of the later stages (softmax, ripple or lisa; default lisa)\nlater = lisa\n\n"
        "# what the head reads: the class token, or the mean of all tokens | either way after the last norm\n"
        "# (cls or gap; default cls)\npool = cls\n\n"
        "# relative positions (true or false; default true)\nrelative = true\n\n"
        "[training]\n\n# images in a step, over all ranks (integer from 1 to 65536; default 64)\nbatch_size = 64\n\n"
        "# peak learning rate (number from 0 to 0.1; default 1e-3)\nlr = 0.0005\n\n"
        "# steps to run, -1 for all (integer; default -1)\nsteps = -1\n\n"
        "# a number without bounds (number; default 0.5)\nmean = 300\n\n"
        "# seed of everything random (non-negative integer; default 1)\nseed = 1\n";
    assert_string_equal(text, expected);
    free(text);
    config_free(&f.config);
}

static char *printed(const Config *config, void (*print)(const Config *, FILE *)) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    print(config, out);
    fclose(out);
    return text;
}

typedef struct {
    ConfigInts dims;
    ConfigFloats ratios;
} Lists;

/* Lists of one or more numbers with commas between them: each must be within its bounds, and saving keeps them. */
static void test_number_lists(void **state) {
    (void)state;
    static const ConfigEntry lists[] = {
        {CONFIG_FIELD(INTS, Lists, dims), "192", .min = 1, .max = 4096, .section = "model", .help = "widths"},
        {CONFIG_FIELD(FLOATS, Lists, ratios), "4", .min = 0.5, .max = 8, .help = "ratios"},
    };
    static const struct {
        const char *text, *error;
    } wrong[] = {
        {"dims = 64,", "x.ini:1: dims: expected an integer or N,N,..., each from 1 to 4096, got ''"},
        {"dims =", "x.ini:1: dims: expected an integer or N,N,..., each from 1 to 4096, got ''"},
        {"dims = 64;128", "x.ini:1: dims: expected an integer or N,N,..., each from 1 to 4096, got '64;128'"},
        {"dims = 64,0", "x.ini:1: dims: 0 is out of range (integer or N,N,..., each from 1 to 4096)"},
        {"dims = 1,2,3,4,5,6,7,8,9", "x.ini:1: dims: more than 8 numbers"},
        {"ratios = 4,x", "x.ini:1: ratios: expected a number or X,X,..., each from 0.5 to 8, got 'x'"},
        {"ratios = 4,9", "x.ini:1: ratios: 9 is out of range (number or X,X,..., each from 0.5 to 8)"},
    };
    const char *good = "dims = 64,128, 320\nratios = 4,3.5\n";
    static const ConfigGroup numbers = {CONFIG_GROUP(Lists, lists), .change = CHANGE_FREELY};
    Config config, again;
    Error error;
    config_init(&config, NULL);
    const Lists *s = config_add(&config, &numbers);
    assert_int_equal(s->dims.count, 1);
    assert_int_equal(s->dims.at[0], 192);
    assert_true(config_try_text(&config, good, strlen(good), "x.ini", &error));
    assert_int_equal(s->dims.count, 3);
    assert_int_equal(s->dims.at[2], 320);
    assert_int_equal(s->ratios.count, 2);
    assert_true(s->ratios.at[1] == 3.5f);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(config_try_text(&config, wrong[i].text, strlen(wrong[i].text), "x.ini", &error));
        assert_string_equal(error.text, wrong[i].error);
        assert_int_equal(s->dims.count, 3);
    }
    char *text = config_text(&config);
    assert_non_null(strstr(text, "dims = 64,128,320\n"));
    config_init(&again, NULL);
    const Lists *copy = config_add(&again, &numbers);
    assert_true(config_try_text(&again, text, strlen(text), "saved", &error));
    assert_int_equal(copy->dims.count, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(copy->dims.at[i], s->dims.at[i]);
    assert_true(copy->ratios.count == 2 && copy->ratios.at[0] == 4 && copy->ratios.at[1] == 3.5f);
    free(text);
    config_free(&again);
    config_free(&config);
}

typedef struct {
    int rings;
} RingSettings;
typedef struct {
    int patterns;
} PatternSettings;

static const ConfigEntry ring_entries[] = {
    {CONFIG_FIELD(INT, RingSettings, rings), "4", .section = "attention", .min = 1, .max = 64, .help = "rings"}};
static const ConfigEntry pattern_entries[] = {
    {CONFIG_FIELD(INT, PatternSettings, patterns), "16", .section = "attention", .min = 1, .max = 64,
     .help = "patterns"}};

static void rings_check(const Config *config, const void *settings) {
    const RingSettings *s = settings;
    if (s->rings == 13) config_reject(config, "rings", "%d brings bad luck", s->rings);
}

static const ConfigGroup ring_group = {CONFIG_GROUP(RingSettings, ring_entries),
                                       .change = CHANGE_FREELY, .check = rings_check};
static const ConfigGroup pattern_group = {CONFIG_GROUP(PatternSettings, pattern_entries), .change = CHANGE_FREELY};

/* Reads settings that belong to the operator ripple or lisa from a checkpoint, a file and arguments. */
static bool settle(Fixture *f, const char *saved, const char *file, int count, const char *const *arguments) {
    char *argv[8] = {"train"};
    for (int i = 0; i < count; i++) argv[i + 1] = (char *)arguments[i];
    begin(f);
    config_add_for(&f->config, &ring_group, "attn", "ripple");
    config_add_for(&f->config, &pattern_group, "attn", "lisa");
    put_file("choice.ini", file);
    config_try_text(&f->config, saved, strlen(saved), "state", &error_usage);
    assert_true(config_try_file(&f->config, in_folder("choice.ini"), &f->error));
    config_try_arguments(&f->config, count + 1, argv, &error_usage);
    if (f->settings->attn == &ripple) config_use(&f->config, &ring_group);
    if (f->settings->attn == &lisa) config_use(&f->config, &pattern_group);
    return config_try_settle(&f->config, &f->error);
}

/* A setting that the chosen operator does not have is refused, or is dropped if a source of higher precedence replaced
 * the operator for which it was set.  Only settings of the chosen operator are saved and shown. */
static void test_settings_that_do_not_count(void **state) {
    (void)state;
    static const struct {
        const char *saved, *file, *arguments[4], *error;
    } cases[] = {
        {"", "", {"--rings", "9"}, "--rings: attn softmax (the default; --attn sets it) has no such setting; it belongs to ripple"},
        {"", "", {"--rings", "4", "--attn", "lisa"}, "--rings: --attn lisa has no such setting; it belongs to ripple"},
        {"", "rings = 9\n", {0}, "choice.ini:1: rings: attn softmax (the default; --attn sets it) has no such setting; it belongs to ripple"},
        {"", "attn = lisa\nrings = 9\n", {0},
         "choice.ini:1) has no such setting; it belongs to ripple"},
        {"", "attn = lisa\nrings = 4\n", {0}, NULL},
        {"", "attn = ripple\nrings = 9\n", {"--attn", "lisa"}, NULL},
        {"attn = ripple\nrings = 9\n", "", {"--attn", "lisa"}, NULL},
        {"attn = softmax\nrings = 9\n", "", {0}, NULL},
        {"attn = ripple\n", "", {"--patterns", "3"}, "--patterns: attn ripple (state:1) has no such setting; it belongs to lisa"},
        {"", "attn = ripple\nrings = 9\n", {0}, NULL},
        {"", "include = rings.ini\nattn = lisa\n", {0}, NULL}, /* the including file has precedence */
        {"", "include = lisa.ini\nrings = 9\n", {0},
         "lisa.ini:1) has no such setting; it belongs to ripple"},
    };
    put_file("rings.ini", "attn = ripple\nrings = 9\n");
    put_file("lisa.ini", "attn = lisa\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        int count = 0;
        while (count < 4 && cases[i].arguments[count]) count++;
        bool ok = settle(&f, cases[i].saved, cases[i].file, count, cases[i].arguments);
        assert_int_equal(ok, cases[i].error == NULL);
        size_t length = strlen(f.error.text), wanted = ok ? 0 : strlen(cases[i].error);
        if (!ok) assert_string_equal(f.error.text + (length > wanted ? length - wanted : 0), cases[i].error);
        char *text = config_text(&f.config);
        const RingSettings *rings = config_settings(&f.config, &ring_group);
        bool counts = f.settings->attn == &ripple;
        if (ok) assert_int_equal(strstr(text, "rings = ") != NULL, counts);
        if (ok && !counts) assert_int_equal(rings->rings, 4);
        free(text);
        config_free(&f.config);
    }
    Fixture f;
    assert_true(settle(&f, "", "attn = ripple\nrings = 7\n", 0, NULL));
    char *help = printed(&f.config, config_help);
    assert_non_null(strstr(help, "attention with attn ripple:\n  --rings N"));
    assert_null(strstr(help, "patterns"));
    free(help);
    config_reset(&f.config);
    assert_int_equal(((const RingSettings *)config_settings(&f.config, &ring_group))->rings, 4);
    help = printed(&f.config, config_help);
    assert_non_null(strstr(help, "patterns"));
    free(help);
    config_default(&f.config, "rings", "6");
    assert_int_equal(((const RingSettings *)config_settings(&f.config, &ring_group))->rings, 6);
    config_free(&f.config);
}

static void call_check(void *user) {
    Fixture *f = user;
    config_free(&f->config);
    settle(f, "", "attn = ripple\n", 1, (const char *const[]){"--rings=13"});
    config_settle(&f->config);
}

static void test_group_check(void **state) {
    (void)state;
    expect_usage(call_check, "--rings: 13 brings bad luck\n");
}

/* A list of choices with their papers, and what --help prints about one word. */
static const ConfigChoice about[] = {{"near", "only neighbours", "On Neighbours (A, 2001)"}, {"far", "all others", NULL}};
static const ConfigEntry listed_entries[] = {
    {"reach", CONFIG_CHOICE, .initial = "far", .about = about, .choice_count = 2, .list = "Reaches", .section = "model",
     .help = "how far"},
};
static const ConfigGroup listed_group = {.entries = listed_entries, .count = 1, .size = sizeof(int),
                                         .change = CHANGE_FREELY};

static bool topic(Fixture *f, const char *word, char *text, size_t size) {
    FILE *out = fmemopen(text, size, "w");
    assert_non_null(out);
    bool found = config_help_topic(&f->config, word, "train --x", out, &f->error);
    fclose(out);
    return found;
}

static void test_topics(void **state) {
    (void)state;
    Fixture f;
    char text[4096];
    begin(&f);
    config_add(&f.config, &listed_group);
    config_add_for(&f.config, &ring_group, "reach", "wide, near");
    assert_true(topic(&f, "near", text, sizeof text));
    assert_string_equal(text, "--reach near: only neighbours\nPaper: On Neighbours (A, 2001)\n\n  train --x --reach near\n\n"
                              "attention with reach wide, near:\n  --rings N                   rings (integer from 1 to 64; "
                              "default 4)\n");
    assert_true(topic(&f, "far", text, sizeof text));
    assert_string_equal(text, "--reach far: all others\n\n  train --x --reach far\n\nIt has no settings of its own.\n");
    static const char *const same[] = {"batch_size", "batch-size", "--batch-size"};
    for (int i = 0; i < 3; i++) {
        assert_true(topic(&f, same[i], text, sizeof text));
        assert_string_equal(text, "training:\n  --batch-size N              images in a step, over all ranks (integer from 1 "
                                  "to 65536; default 64)\n");
    }
    assert_true(topic(&f, "training", text, sizeof text));
    assert_non_null(strstr(text, "--batch-size N"));
    assert_non_null(strstr(text, "--seed N"));
    assert_null(strstr(text, "--attn"));
    static const struct {
        const char *word, *said;
    } unknown[] = {{"nearr", "--help: nothing here is called 'nearr' (did you mean 'near'?)"},
                   {"batchsize", "--help: nothing here is called 'batchsize' (did you mean 'batch_size'?)"},
                   {"learning-rate", "--help: nothing here is called 'learning-rate' (did you mean 'lr'?)"},
                   {"zzzzzz", "--help: nothing here is called 'zzzzzz' (--help alone prints everything)"}};
    for (int i = 0; i < 4; i++) {
        assert_false(topic(&f, unknown[i].word, text, sizeof text));
        assert_string_equal(f.error.text, unknown[i].said);
    }
    char *all = printed(&f.config, config_help);
    assert_non_null(strstr(all, "\nReaches (--reach):\n  near                     only neighbours\n"));
    assert_true(strstr(all, "\ndata:\n") || !strncmp(all, "data:\n", 6));
    assert_true(strstr(all, "\nmodel:\n") < strstr(all, "\ntraining:\n"));
    assert_true(strstr(all, "\ntraining:\n") < strstr(all, "\nReaches"));
    assert_true(strstr(all, "\nReaches") < strstr(all, "\nattention with reach wide, near:"));
    free(all);
    config_free(&f.config);
}

/* Every name that other tools use is spelled like a setting, occurs once in the table, and has an answer: a setting, if
 * this program has it, or a sentence.  If the table names only settings that a program lacks, the name is unknown. */
static void test_foreign_names(void **state) {
    (void)state;
    Fixture f;
    const char *names, *setting;
    int settings = 0, sentences = 0;
    begin(&f);
    for (int i = 0; (names = foreign_names_at(i)); i++) {
        char copy[256], *rest = copy;
        assert_in_range(snprintf(copy, sizeof copy, "%s", names), 1, sizeof copy - 1);
        for (const char *name; (name = strsep(&rest, " "));) {
            int stands = 0;
            assert_true(*name && strlen(name) < 31);
            assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_"), strlen(name));
            for (int k = 0; foreign_names_at(k); k++) stands += text_lists(foreign_names_at(k), name);
            assert_int_equal(stands, 1);
            const char *sentence = foreign_name(&f.config, name, &setting);
            assert_true(!setting || !sentence);
            settings += setting != NULL;
            sentences += sentence != NULL;
        }
    }
    assert_true(settings > 10 && sentences > 50);
    static const struct {
        const char *argument, *said;
    } cases[] = {{"--batch", "--batch: unknown setting; here it is --batch-size N"},
                 {"--zzzzzz", "--zzzzzz: unknown setting"},
                 {"--gradient-checkpointing", "--gradient-checkpointing: unknown setting: this program has no activation "
                                              "checkpointing; a lower --micro-batch saves memory"},
                 {"--no-flip", "--no-flip: unknown setting: switch mirroring off with --flip false"},
                 {"--data_path=x", "--data_path: unknown setting; here it is --data FOLDER"}};
    for (int i = 0; i < 5; i++) {
        char *argv[] = {"program", (char *)cases[i].argument};
        assert_false(config_try_arguments(&f.config, 2, argv, &f.error));
        assert_string_equal(f.error.text, cases[i].said);
    }
    assert_false(config_try_text(&f.config, "batch = 4\n", 10, "x", &f.error));
    assert_string_equal(f.error.text, "x:1: batch: unknown setting; here it is batch_size");
    config_free(&f.config);
}

static void test_help(void **state) {
    (void)state;
    Fixture f;
    begin(&f);
    char *text = printed(&f.config, config_help);
    static const char *const lines[] = {
        "modes:\n  --config FILE               INI file with settings; the command line wins over it\n",
        "\n  --describe                  print the model's plan and stop\n",
        "\n  --attn NAME                 attention operator (softmax, ripple or lisa; default softmax)\n"};
    for (int i = 0; i < 3; i++) assert_non_null(strstr(text, lines[i]));
    for (int i = 0; i < COUNT; i++) {
        char option[64];
        snprintf(option, sizeof option, "\n  --%s", entries[i].name);
        for (char *c = option; *c; c++) *c = *c == '_' ? '-' : *c;
        assert_non_null(strstr(text, option));
    }
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 100);
    free(text);
    config_free(&f.config);
}

/* A program may change the default and help of a shared setting, and query any setting. */
static void test_shared_settings(void **state) {
    (void)state;
    Fixture f;
    begin(&f);
    config_default(&f.config, "batch_size", "16");
    config_explain(&f.config, "batch_size", "pairs in a step");
    assert_int_equal(f.settings->batch_size, 16);
    char *text = printed(&f.config, config_help);
    assert_non_null(strstr(text, "  pairs in a step (integer from 1 to 65536; default 16)"));
    assert_null(strstr(text, "images in a step"));
    free(text);
    text = printed(&f.config, config_markdown);
    assert_non_null(strstr(text, "| `16` | freely | pairs in a step |"));
    free(text);
    static const char *const names[] = {"describe", "predict", "data", "lr"};
    for (int i = 0; i < 4; i++) assert_false(config_chosen(&f.config, names[i]));
    static char *const argv[] = {"program", "--describe", "--predict", "a.png", "--data", "here", "--lr", "1e-3"};
    assert_true(config_try_arguments(&f.config, 8, argv, &f.error));
    for (int i = 0; i < 4; i++) assert_true(config_chosen(&f.config, names[i]));
    assert_string_equal(config_string(&f.config, "data"), "here");
    assert_true(config_try_set(&f.config, "describe", "false", "--describe", &f.error));
    assert_false(config_chosen(&f.config, "describe"));
    config_reset(&f.config);
    assert_int_equal(f.settings->batch_size, 16);
    config_free(&f.config);
}

static void test_markdown(void **state) {
    (void)state;
    Fixture f;
    begin(&f);
    char *text = printed(&f.config, config_markdown);
    assert_non_null(strstr(text, "### modes\n\n| setting | values | default | resumed | meaning |\n|---|---|---|---|---|\n"));
    assert_non_null(strstr(text, "\n| `--predict FILE...` | one or more | | | classify these images |\n"));
    assert_non_null(strstr(text, "\n| `lr` | number from 0 to 0.1 | `1e-3` | freely | peak learning rate |\n"));
    assert_non_null(strstr(text, "all tokens \\| either way"));
    free(text);
    config_free(&f.config);
}

typedef struct {
    int dim, classes, batch, workers;
    const char *data, *folder, *mode;
} RunSettings;

/* Which settings a resumed run may change, and which are compared at all. */
static void test_changes_of_a_run(void **state) {
    (void)state;
    static const ConfigEntry run_entries[] = {
        {CONFIG_FIELD(INT, RunSettings, dim), "64", .section = "model", .help = "width"},
        {CONFIG_FIELD(INT, RunSettings, classes), "0", .change = CHANGE_TO_DEFAULT, .help = "classes (0: the data's)"},
        {CONFIG_FIELD(INT, RunSettings, batch), "8", .change = CHANGE_BETWEEN_EPOCHS, .help = "samples of a step"},
        {CONFIG_FIELD(INT, RunSettings, workers), "1", .change = CHANGE_FREELY, .ranks_differ = true, .help = "threads"},
        {CONFIG_FIELD(STRING, RunSettings, data), "shapes", .change = CHANGE_PATH, .help = "data set"},
        {CONFIG_FIELD(STRING, RunSettings, folder), .change = CHANGE_EVERY_CALL, .help = "folder"},
        {CONFIG_FIELD(STRING, RunSettings, mode), .command_line_only = true, .help = "a mode"},
    };
    static const ConfigGroup run_group = {CONFIG_GROUP(RunSettings, run_entries), .change = CHANGE_NEVER};
    static const struct {
        const char *name, *saved, *value;
        bool changed, may;
    } cases[] = {
        {"dim", "32", "64", true, false},
        {"dim", "32", "32", false, false},
        {"classes", "10", "20", true, false},
        {"classes", "10", "0", false, false},
        {"batch", "8", "16", true, true},
        {"workers", "1", "2", true, true},
        {"data", "shapes", "cifar10", true, false},
        {"data", "shapes", "/nowhere", true, false},
        {"data", "old/set", "/dev/null", true, true},
        {"folder", "a", "b", false, true},
        {"mode", "a", "b", false, true},
    };
    Config config;
    Error error;
    config_init(&config, NULL);
    config_add(&config, &run_group);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int i = 0;
        while (strcmp(config_name(&config, i), cases[k].name)) i++;
        assert_true(config_try_set(&config, cases[k].name, cases[k].value, "a test", &error));
        bool changed = config_changed(&config, i, cases[k].saved);
        if (changed != cases[k].changed || (changed && config_may_change(&config, i) != cases[k].may))
            fail_msg("%s %s -> %s", cases[k].name, cases[k].saved, cases[k].value);
    }
    char *text = printed(&config, config_markdown);
    assert_non_null(strstr(text, "| `dim` | integer | `64` | never | width |\n"));
    assert_non_null(strstr(text, "| `workers` | integer | `1` | freely, by rank | threads |\n"));
    assert_non_null(strstr(text, "| `--mode TEXT` | text | | | a mode |\n"));
    free(text);
    config_free(&config);
}

static void add_unsaid(void) {
    static const ConfigEntry unsaid[] = {{"width", CONFIG_INT, .initial = "1", .section = "model", .help = "width"}};
    static const ConfigGroup unsaid_group = {.entries = unsaid, .count = 1, .size = sizeof(int)};
    Config config;
    config_init(&config, NULL);
    config_add(&config, &unsaid_group);
}

/* A setting without a rule on changes in a resumed run is a mistake in its table and aborts. */
static void test_unsaid_change(void **state) {
    (void)state;
    int status = 0;
    pid_t child = fork();
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        signal(SIGABRT, SIG_DFL);
        add_unsaid();
        _exit(0);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes_of_a_run),
        cmocka_unit_test(test_unsaid_change),
        cmocka_unit_test(test_text_errors),
        cmocka_unit_test(test_binary_and_long_lines),
        cmocka_unit_test(test_argument_errors),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_short_help),
        cmocka_unit_test(test_help_with_a_word),
        cmocka_unit_test(test_file_and_command_line),
        cmocka_unit_test(test_include),
        cmocka_unit_test(test_dying),
        cmocka_unit_test(test_blame),
        cmocka_unit_test(test_sourced),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_long_string),
        cmocka_unit_test(test_saved_text),
        cmocka_unit_test(test_number_lists),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_settings_that_do_not_count),
        cmocka_unit_test(test_group_check),
        cmocka_unit_test(test_shared_settings), cmocka_unit_test(test_help),
        cmocka_unit_test(test_topics),
        cmocka_unit_test(test_foreign_names),
        cmocka_unit_test(test_markdown),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

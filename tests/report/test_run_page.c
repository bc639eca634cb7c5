/* report/run_page: a page has the numbers of the log, escapes all texts, omits parts without data, and is at most
 * REPORT_BYTES large. */
#include "report/run_page.h"

#include <math.h>
#include <sys/stat.h>

#include "core/die.h"
#include "tests/scratch.h"

/* == Folders and pages ============================================================================================ */

static void put_file(const char *run, const char *name, const char *text) {
    FILE *out = fopen(in_folder("%s/%s", run, name), "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static const char *new_run(const char *name) {
    assert_int_equal(mkdir(in_folder("%s", name), 0777), 0);
    return name;
}

/* The page's text, which the caller frees. */
static char *page_of(const char *run, const Facts *facts, const Config *config, int reload_s) {
    char *text;
    size_t size;
    Error error;
    FILE *out = open_memstream(&text, &size);
    if (!run_page_write(out, in_folder("%s", run), facts, config, reload_s, &error)) fail_msg("%s", error.text);
    fclose(out);
    assert_true(size <= REPORT_BYTES);
    assert_string_equal(text + size - strlen("</html>\n"), "</html>\n");
    return text;
}

static void assert_none(const char *text, const char *const *words) {
    for (; *words; words++)
        if (strstr(text, *words)) fail_msg("'%s' is there", *words);
}

typedef struct {
    float lr;
    int dim;
    const char *name, *run_dir;
} ToySettings;

#define F(KIND, field) CONFIG_FIELD(KIND, ToySettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, lr), "1e-3", .section = "toy", .min = 0, .max = 10, .help = "The rate of learning"},
    {F(INT, dim), "192", .min = 1, .max = 1000, .help = "The width of it"},
    {F(STRING, name), .help = "What it is called"},
    {F(STRING, run_dir), .help = "Where it is"},
};
#undef F
static const ConfigGroup toy_settings = {CONFIG_GROUP(ToySettings, entries), .change = CHANGE_FREELY};

/* == Tests ======================================================================================================== */

static const char whole_log[] = "step,epoch,loss,lr,grad_norm,images_per_s,top1,top5,stall,val_loss,wall_s,peak_bytes,odd\n"
                                "10,1,2.345678,0.001,3.5,812.3,40.125,80.5,0.01,2.1,61.5,104857600,1\n"
                                "20,2,1.5,0.0005,2.5,900.25,61.375,90.5,0.02,1.7,3725.0,2147483648,2\n"
                                "30,3,1.25,0.0001,1.5,950.75,60.25,91.5,0.03,1.6,7384.2,2147483648,3\n"
                                "35,4,1.125,0.0001,1.5,951.5,,,0.03,,7400.0,2147483648,3\n";

static void test_figures(void **state) {
    (void)state;
    const char *run = new_run("figures");
    Facts facts = {0};
    put_file(run, "log.csv", whole_log);
    facts_set(&facts, "program", "train_vit");
    facts_set(&facts, "state", "running");
    facts_set_number(&facts, "epoch", 3.5);
    facts_set_number(&facts, "epochs", 10);
    facts_set_number(&facts, "eta_s", 125);
    facts_set_number(&facts, "parameters", 5717416);
    facts_set_number(&facts, "macs", 1258e6);
    facts_set(&facts, "resume", "train_vit --resume 'a b'");
    char *page = page_of(run, &facts, NULL, 30);
    assert_words(page, WORDS("best top-1</span><b>61.38 %</b><small>epoch 2<", "last top-1</span><b>60.25 %</b><small>epoch 3<", "1.1250",
                             "validation 1.6000", "952", "2:03:20", "5.72 M", "1.26 G", "2.00 GiB", "Loss", "Accuracy",
                             "Learning rate", "Norm of the gradient", "Waiting for data", "Memory", "odd",
                             "train_vit, running: 3.5 of 10 epochs, 2:05 left"));
    free(page);
    page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS("last update at"));
    free(page);
    facts_set(&facts, "state", "failed");
    facts_set(&facts, "reason", "step 36: the loss is not a number");
    facts_set_number(&facts, "epoch", 12345);
    facts_set_number(&facts, "epochs", 20000);
    page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS("train_vit, failed: 12345 of 20000 epochs; step 36: the loss is not a number"));
    free(page);
    facts_free(&facts);
}

/* The x axis of curves is in epochs, and a step is a fraction of its epoch; the last epoch may be incomplete. */
static void test_epochs(void **state) {
    (void)state;
    const char *run = new_run("epochs");
    Facts facts = {0};
    put_file(run, "log.csv", "step,epoch,loss\n5,1,9\n10,1,8\n15,2,7\n20,2,6\n22,3,5\n");
    char *page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS(": 9, 0.5 epoch", ": 8, 1 epoch", ": 7, 1.5 epoch", ": 6, 2 epoch", ": 5, 2.2 epoch"));
    free(page);
    facts_set_number(&facts, "batches", 4); /* the batches of an epoch have changed */
    page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS(": 6, 2 epoch", ": 5, 2.5 epoch"));
    free(page);
    facts_free(&facts);
    put_file(run, "log.csv", "step,loss\n5,9\n10,8\n");
    page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS(": 9, 5 step", ": 8, 10 step"));
    free(page);
}

/* A folder of an older version has no facts.  Settings of another program are shown as well. */
static void test_what_is_missing(void **state) {
    (void)state;
    const char *run = new_run("old");
    Facts none = {0};
    Config config;
    Error error;
    put_file(run, "log.csv", "step,loss\n1,2\n2,1\n");
    free(page_of(run, &none, NULL, 0));
    put_file(run, "config.ini", "# a comment\n[toy]\nlr = 0.001\ndim = 64\nname =\nrun_dir = somewhere\n");
    config_init(&config, NULL);
    config_add(&config, &toy_settings);
    char *page = page_of(run, &none, &config, 0);
    assert_words(page, WORDS("The width of it", "192", "The 3 others have their defaults", "somewhere"));
    const char *fold = strstr(page, "<details");
    assert_non_null(fold);
    assert_true(strstr(page, "The width of it") < fold && strstr(page, "The rate of learning") > fold);
    free(page);
    put_file(run, "config.ini", "[toy]\nlr = 0.001\nheads = 3\n");
    page = page_of(run, &none, &config, 0);
    assert_words(page, WORDS("All 2 settings", "heads", "--report shows which of them differ from the defaults"));
    free(page);
    config_free(&config);
    FILE *out = fopen("/dev/null", "w");
    assert_false(run_page_write(out, in_folder("%s", new_run("empty")), &none, NULL, 0, &error));
    assert_words(error.text, WORDS("empty: neither log.csv nor report.json"));
    put_file("empty", "log.csv", "");
    assert_false(run_page_write(out, in_folder("empty"), &none, NULL, 0, &error));
    assert_words(error.text, WORDS("empty/log.csv: "));
    fclose(out);
}

#define HOSTILE "<script>alert(1)</script>\"'&\n\x01\xff]]>"

static void test_hostile_texts(void **state) {
    (void)state;
    const char *run = new_run("<script>\"' &"), *names[] = {HOSTILE, HOSTILE}, *cells[] = {HOSTILE, HOSTILE};
    const double values[] = {1, 2, 3, 4};
    const uint8_t pixels[12] = {0};
    Facts facts = {0};
    put_file(run, "log.csv", "step,epoch,loss,<script>\"\n1,1,2,3\n2,1,1,3\n");
    put_file(run, "config.ini", "a<script> = \"<script>'&\n");
    static const char *const plain[] = {"program", "state", "sentence", "device", "host", "version", "precision", "resume",
                                        "result", "reason", "unit"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) facts_set(&facts, plain[i], HOSTILE);
    facts_table(&facts, "model", HOSTILE, names, 2, cells, 1);
    facts_table(&facts, "classes", HOSTILE, names, 2, cells, 1);
    facts_heat(&facts, "confusion", HOSTILE, HOSTILE, HOSTILE, names, 2, names, 2, values);
    facts_bars(&facts, "bars", HOSTILE, HOSTILE, names, values, 2);
    facts_pictures(&facts, "pictures", HOSTILE, HOSTILE);
    facts_picture(&facts, "pictures", pixels, 2, 2, 64, HOSTILE);
    facts_level(&facts, "loss", HOSTILE, 1.5);
    char *page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS("&lt;script"));
    assert_none(page, WORDS("<script>alert", "\x01", "\xff"));
    /* A hostile page has as many scripts as a plain one. */
    size_t scripts = 0;
    for (const char *at = page; (at = strstr(at, "<script")); at++) scripts++;
    Facts none = {0};
    new_run("plain");
    put_file("plain", "log.csv", "step,epoch,loss,b\n1,1,2,3\n2,1,1,3\n");
    char *other = page_of("plain", &none, NULL, 0);
    for (const char *at = other; (at = strstr(at, "<script")); at++) scripts--;
    assert_int_equal(scripts, 0);
    free(other);
    free(page);
    facts_free(&facts);
}

/* Adds a long table, as many pictures of noise as facts can hold, and another long table. */
static void add_much(Facts *facts, int rows) {
    enum { SIDE = 96 };
    static uint8_t pixels[SIDE * SIDE * 3];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    const char **cells = calloc((size_t)rows, sizeof *cells);
    for (int i = 0; i < rows; i++) cells[i] = "a cell of a table with many rows";
    facts_table(facts, "first", "The first table", (const char *[]){"a"}, 1, cells, rows);
    facts_pictures(facts, "pictures", "Pictures", NULL);
    for (int i = 0; facts_picture(facts, "pictures", pixels, SIDE, SIDE, SIDE, i ? "another picture" : "picture 1");) i++;
    facts_table(facts, "last", "The last table", (const char *[]){"a"}, 1, cells, rows);
    free(cells);
}

static void test_size(void **state) {
    (void)state;
    const char *run = new_run("large");
    Facts facts = {0};
    put_file(run, "log.csv", whole_log);
    add_much(&facts, 100);
    char *page = page_of(run, &facts, NULL, 0);
    assert_none(page, WORDS("left out"));
    free(page);
    add_much(&facts, 2000); /* pictures are left out before tables */
    page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS("The first table", "picture 1", "The last table", " pictures and 0 charts or tables were left out"));
    free(page);
    add_much(&facts, 6000); /* then tables are left out, too */
    page = page_of(run, &facts, NULL, 0);
    assert_words(page, WORDS("The first table", "charts or tables were left out"));
    assert_none(page, WORDS("picture 1", "The last table"));
    free(page);
    facts_free(&facts);
}

/* With a row for each of 20,000 steps, the page shows means of rows and stays small. */
static void test_many_rows(void **state) {
    (void)state;
    const char *run = new_run("many");
    Facts none = {0};
    FILE *log = fopen(in_folder("%s/log.csv", run), "w");
    fprintf(log, "step,epoch,loss,lr,grad_norm,images_per_s,top1,stall,val_loss,wall_s,peak_bytes\n");
    for (int i = 1; i <= 20000; i++)
        fprintf(log, "%d,%d,%.6f,%.6g,%.3f,%d,,0.1,,%d,%d\n", i, (i + 99) / 100, 3 + sin(i * 12.9898) - i * 1e-4, 1e-3 / i,
                1 + cos(i * 78.233), 900 + i % 50, i, 1000000 + i);
    fclose(log);
    char *page = page_of(run, &none, NULL, 0);
    assert_words(page, WORDS("training, mean of 1001 rows"));
    assert_true(strlen(page) < 150000);
    free(page);
}

static void test_replacing(void **state) {
    (void)state;
    const char *run = new_run("replaced");
    Facts none = {0};
    Error error;
    char begun[16] = "";
    put_file(run, "log.csv", whole_log);
    assert_true(run_page_replace(in_folder("%s", run), NULL, &none, NULL, 0, &error));
    FILE *in = fopen(in_folder("%s/report.html", run), "r");
    assert_non_null(in);
    assert_int_equal(fread(begun, 1, 9, in), 9);
    assert_string_equal(begun, "<!DOCTYPE");
    fclose(in);
    assert_false(run_page_replace(in_folder("%s", run), in_folder("no/page.html"), &none, NULL, 0, &error));
    assert_words(error.text, WORDS("no/page.html: cannot"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),       cmocka_unit_test(test_epochs), cmocka_unit_test(test_what_is_missing),
        cmocka_unit_test(test_hostile_texts), cmocka_unit_test(test_size),   cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_replacing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* Comparing runs: how runs are grouped, means and errors against values computed by hand, logs of different lengths,
 * tables of results, messages for files that are missing or of another kind, and the size and escaping of pages. */
#include "report/compare.h"

#include <math.h>
#include <sys/stat.h>

#include "core/files.h"
#include "core/text_stream.h"
#include "report/comparison.h"
#include "report/html.h"
#include "report/run_page.h"
#include "tests/report/xml.h"
#include "tests/scratch.h"

#define HEADER "step,epoch,loss,lr,grad_norm,images_per_s,top1,top5,stall,val_loss,wall_s,peak_bytes\n"
#define COLUMNS "operator,flags,epochs,seed,top1,top5,val_loss,parameters,million_macs,seconds"

/* == Runs ========================================================================================================= */

static void write_file(const char *path, const char *text) {
    Error error;
    if (!file_write(path, text, strlen(text), &error)) fail_msg("%s: %s", path, error.text);
}

/* Creates a run folder and returns its path. */
static const char *make_run(const char *name, const char *config, const char *log) {
    const char *run = in_folder("%s", name);
    make_folders(run);
    write_file(in_folder("%s/config.ini", name), config);
    write_file(in_folder("%s/log.csv", name), log);
    return run;
}

/* Creates a run of three epochs of ten steps, with these top-1 accuracies. */
static const char *make_run_of(const char *name, const char *config, double top1, double second, double third) {
    char log[1024];
    snprintf(log, sizeof log,
             HEADER "5,1,3.0,1e-3,1,100,,,0,,5,1048576\n"
                    "10,1,2.8,1e-3,1,110,%g,80,0,2.5,10,2097152\n"
                    "20,2,2.0,1e-3,1,120,%g,85,0,2.25,20,2097152\n"
                    "30,3,1.5,1e-3,1,400,%g,90,0,2.125,30,3145728\n",
             top1, second, third);
    return make_run(name, config, log);
}

static void read_runs(Comparison *c, const char *const *paths, int count) {
    Error error;
    if (!comparison_read(c, paths, count, &error)) fail_msg("%s", error.text);
}

/* The page of these runs, which the caller frees. */
static char *page_of(const char *const *paths, int count) {
    Error error;
    size_t size;
    uint8_t *bytes;
    const char *out = in_folder("compare.html");
    if (!compare_write(paths, count, out, &error)) fail_msg("%s", error.text);
    assert_true(file_read(out, 1 << 24, &bytes, &size, &error));
    assert_true(size < REPORT_BYTES);
    char *page = strndup((char *)bytes, size);
    free(bytes);
    const char *fault = xml_fault(page);
    if (fault) fail_msg("%s", fault);
    return page;
}

static void assert_near(double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want))) fail_msg("%.12g, expected %.12g", got, want);
}

/* == Tests ======================================================================================================== */

/* 60, 62 and 67 have mean 63, deviation sqrt((9 + 1 + 16) / 2), and the standard error is this by sqrt(3). */
static void test_means(void **state) {
    const char *paths[] = {make_run_of("soft-seed1", "attn = softmax\nseed = 1\n", 40, 50, 60),
                           make_run_of("soft-seed2", "attn = softmax\nseed = 2\n", 41, 63, 62),
                           make_run_of("soft-seed3", "attn = softmax\nseed = 3\n", 42, 52, 67),
                           make_run_of("ripple-1", "attn = ripple\nseed = 1\n", 45, 55, 65)};
    Comparison c;
    (void)state;
    read_runs(&c, paths, 4);
    assert_int_equal(c.group_count, 2);
    assert_string_equal(c.metric->column, "top1");
    assert_string_equal(c.groups[0].name, "ripple-1"); /* 65 before 63 */
    assert_string_equal(c.groups[1].name, "soft");
    GroupResult result = group_result(&c.groups[1], c.metric);
    assert_int_equal(result.sample.count, 3);
    assert_near(result.epoch, 3);
    assert_near(result.sample.mean, 63);
    assert_near(result.sample.deviation, sqrt(13));
    assert_near(result.sample.error, sqrt(13.0 / 3));
    result = group_result(&c.groups[0], c.metric);
    assert_near(result.sample.mean, 65);
    assert_true(isnan(result.sample.error) && isnan(result.sample.deviation));
    assert_near(run_property(&c.runs[0], RUN_SPEED), 115); /* the median of 100, 110, 120 and 400 */
    assert_near(run_property(&c.runs[0], RUN_BYTES), 3145728);
    assert_near(run_property(&c.runs[0], RUN_SECONDS), 30);
    assert_true(isnan(run_property(&c.runs[0], RUN_PARAMETERS)));
    comparison_free(&c);
    char *page = page_of(paths, 4);
    assert_words(page, WORDS("63.00 ± 2.08", ">3.61<", ">65.00<", ">2.1250 ± 0.0000<", ">soft-seed3<", "axis-2",
                             "best top-1, %", "Settings that differ"));
    assert_null(strstr(page, "parameters")); /* no run has this fact */
    free(page);
}

/* The mean, deviation and standard error of the finite values, against sums written out. */
static void test_sample(void **state) {
    (void)state;
    Sample s = sample_of((double[]){1, NAN, 2, 4, INFINITY}, 5);
    assert_int_equal(s.count, 3);
    assert_near(s.mean, 7.0 / 3);
    assert_near(s.deviation, sqrt((16.0 / 9 + 1.0 / 9 + 25.0 / 9) / 2));
    assert_near(s.error, s.deviation / sqrt(3));
    assert_true(isnan(sample_of(NULL, 0).mean));
}

/* Runs that differ only in seed, folder and machine are one group.  A run with another value, another setting or a seed
 * that the group already has is in a group of its own. */
static void test_groups(void **state) {
    const char *paths[] = {make_run_of("g1", "[a]\n# comment\nlr = 1e-3\nrun_dir = a\nseed = 1\n", 1, 2, 3),
                           make_run_of("g2", "seed = 2\n\nrun_dir = b\nlr = 1e-3\nworkers = 4\n", 1, 2, 3),
                           make_run_of("other", "lr = 2e-3\nseed = 3\n", 1, 2, 2.5),
                           make_run_of("more", "lr = 1e-3\nseed = 3\nnew = on\n", 1, 2, 2),
                           make_run_of("again", "lr = 1e-3\nseed = 1\n", 1, 2, 1)};
    Comparison c;
    (void)state;
    Error error;
    Facts facts = {0};
    facts_set(&facts, "device", "GPU");
    facts_set(&facts, "program", "train_vit");
    facts_set_number(&facts, "macs", 2.5e6);
    assert_true(facts_write(&facts, in_folder("other/report.json"), &error));
    facts_free(&facts);
    read_runs(&c, paths, 5);
    assert_int_equal(c.group_count, 4);
    assert_int_equal(c.groups[0].count, 2);
    assert_string_equal(c.groups[0].name, "g");
    assert_string_equal(c.groups[3].name, "again");
    assert_near(run_property(&c.runs[2], RUN_MACS), 2.5e6);
    comparison_free(&c);
    char *page = page_of(paths, 5);
    char *settings = strstr(page, "Settings that differ");
    assert_non_null(settings);
    assert_words(settings, WORDS(">new<", ">on<", ">lr<", "(several)", ">GPU<", ">-<"));
    assert_null(strstr(settings, "run_dir"));
    assert_null(strstr(settings, ">seed<"));
    free(page);
}

/* A group's result is at the last step that all its runs have reached.  When rows of a curve are joined, each counts
 * with the number of steps it represents. */
static void test_unequal_logs(void **state) {
    const char *long_log = HEADER "5,1,3,1,1,1,,,0,,50,1\n10,1,2,1,1,1,20,,0,9,100,1\n20,2,1,1,1,1,40,,0,8,200,1\n"
                                  "25,3,0.5,1,1,1,,,0,,250,1\n30,3,0.5,1,1,1,90,,0,7,300,1\n40,4,0,1,";
    const char *short_log = HEADER "5,1,5,1,1,1,,,0,,60,1\n10,1,4,1,1,1,30,,0,9,120,1\n20,2,3,1,1,1,44,,0,8,240,1\n";
    const char *paths[] = {make_run("long", "seed = 1\n", long_log), make_run("short", "seed = 2\n", short_log)};
    const Metric *loss = NULL;
    Comparison c;
    GroupCurve curve;
    (void)state;
    for (int m = 0; m < METRICS; m++)
        if (!strcmp(metrics[m].column, "loss")) loss = &metrics[m];
    read_runs(&c, paths, 2);
    assert_int_equal(c.group_count, 1);
    assert_string_equal(c.groups[0].name, "long and 1 more");
    GroupResult result = group_result(&c.groups[0], c.metric);
    assert_near(result.epoch, 2);
    assert_near(result.sample.mean, 42);
    group_curve(&curve, &c.groups[0], loss, 100);
    assert_int_equal(curve.count, 3);
    assert_near(curve.mean[0], 4);
    assert_near(curve.epoch[0], 0.5);
    assert_near(curve.seconds[2], 220);
    group_curve_free(&curve);
    group_curve(&curve, &c.groups[0], loss, 2); /* steps 1 to 10 and 11 to 20 */
    assert_int_equal(curve.count, 2);
    assert_near(curve.mean[0], 3.5);
    assert_near(curve.mean[1], 2);
    group_curve_free(&curve);
    group_curve(&curve, &c.groups[0], loss, 1); /* (5 3 + 5 2 + 10 1) / 20 and (5 5 + 5 4 + 10 3) / 20 */
    assert_int_equal(curve.count, 1);
    assert_near(curve.step[0], 20);
    assert_near(curve.mean[0], (1.75 + 3.75) / 2);
    assert_near(curve.error[0], 1);
    group_curve_free(&curve);
    comparison_free(&c);
    free(page_of(paths, 2));
}

/* Logs without rows, without times, and with a single row in the first epoch. */
static void test_beginnings(void **state) {
    const char *paths[] = {make_run("empty", "lr = 1\n", HEADER),
                           make_run("old", "lr = 2\n", "step,epoch,loss\n4,1,2.5\n"),
                           make_run("bits", "lr = 3\ndata = x\n", "step,epoch,loss,bits\n4,1,2.5,7.25\n")};
    (void)state;
    char *page = page_of(paths, 3);
    assert_words(page, WORDS("training loss", "by epoch", "by step", ">2.5000<", ">7.2500<"));
    assert_null(strstr(page, "by time"));
    free(page);
    free(page_of(paths, 1));
    for (int i = 0; i < 2; i++)
        paths[i] = make_run(i ? "huge-1" : "huge-0", i ? "seed = 1\n" : "seed = 0\n",
                            i ? "step,epoch,loss\n4,1,1e300\n" : "step,epoch,loss\n4,1,-1e308\n");
    free(page_of(paths, 2));
    paths[1] = in_folder("old");
    Comparison c;
    Error error;
    Facts facts = {0};
    facts_set_number(&facts, "batches", 20);
    assert_true(facts_write(&facts, in_folder("bits/report.json"), &error));
    facts_free(&facts);
    read_runs(&c, paths, 3);
    assert_near(c.runs[1].epochs[0], 1); /* as if the epoch were complete */
    assert_near(c.runs[2].epochs[0], 0.2);
    comparison_free(&c);
}

static void test_table(void **state) {
    const char *csv = in_folder("league.csv");
    write_file(csv, COLUMNS ",processor,commit,date\n"
                            "softmax,,10,1,24.300,54.200,3.07,176980,13.1,798.2,AMD,51f548c,2026-11-24\n"
                            "softmax,,10,2,24.700,54.400,3.09,176980,13.1,790.0,AMD,51f548c,2026-11-24\n"
                            "softmax,,30,1,40.100,54.400,3.09,176980,13.1,790.0,AMD,51f548c,2026-11-24\n"
                            "swin,--window 4,10,1,21.620,,,177862,11.4,1596.3,AMD,51f548c,2026-11-24\n\n");
    Comparison c;
    (void)state;
    read_runs(&c, &csv, 1);
    assert_int_equal(c.run_count, 4);
    assert_int_equal(c.group_count, 3);
    assert_string_equal(c.groups[0].name, "softmax");
    assert_near(group_result(&c.groups[0], c.metric).epoch, 30);
    Sample s = group_result(&c.groups[1], c.metric).sample;
    assert_near(s.mean, 24.5);
    assert_near(s.deviation, sqrt(0.08));
    assert_near(s.error, 0.2);
    assert_string_equal(c.groups[2].name, "swin --window 4");
    assert_near(run_property(&c.runs[3], RUN_MACS), 11.4e6);
    assert_near(run_property(&c.runs[3], RUN_PARAMETERS), 177862);
    comparison_free(&c);
    char *page = page_of(&csv, 1);
    assert_words(page, WORDS("24.50 ± 0.20", "swin --window 4", "177862", "11.4", "10 epochs"));
    assert_null(strstr(page, "id=\"curves\""));
    free(page);
    const char *both[] = {csv, make_run_of("beside", "attn = lisa\n", 1, 2, 3)};
    page = page_of(both, 2);
    assert_words(page, WORDS("id=\"curves\"", ">beside<"));
    free(page);
    free(page_of((const char *[]){"docs/league.csv"}, 1));
    const char *seeds[] = {make_run_of("unseeded", "attn = gf\n", 1, 2, 3),
                           make_run_of("seeded", "attn = gf\nseed = 2\n", 1, 2, 3)};
    free(page_of(seeds, 2));
}

static void assert_refused(const char *path, const char *const *words) {
    Error error = {.text = ""};
    const char *out = in_folder("refused.html"), *paths[] = {make_run_of("good", "seed = 1\n", 1, 2, 3), path};
    assert_false(compare_write(paths, 2, out, &error));
    assert_words(error.text, words);
    assert_false(file_exists(out));
}

static void test_refused(void **state) {
    Error error;
    (void)state;
    make_run("no-log", "", HEADER);
    make_run("no-config", "", HEADER);
    make_run("bad-config", "seed = 1\nnothing\n", HEADER);
    make_run("bad-facts", "", HEADER);
    make_run("bad-log", "", "a,b\n1,2\n");
    assert_int_equal(remove(in_folder("no-log/log.csv")) + remove(in_folder("no-config/config.ini")), 0);
    write_file(in_folder("bad-facts/report.json"), "{");
    write_file(in_folder("no-table.csv"), "step,epoch\n1,2\n");
    write_file(in_folder("short.csv"), COLUMNS "\n1,2\n");
    write_file(in_folder("empty.csv"), "");
    assert_refused(in_folder("nowhere"), WORDS("nowhere: ", "No such file"));
    assert_refused(in_folder("no-log"), WORDS("no-log/log.csv: ", "No such file"));
    assert_refused(in_folder("no-config"), WORDS("no-config/config.ini: ", "No such file"));
    assert_refused(in_folder("bad-config"), WORDS("bad-config/config.ini: 'nothing': expected 'name = value'"));
    assert_refused(in_folder("bad-facts"), WORDS("bad-facts/report.json: "));
    assert_refused(in_folder("bad-log"), WORDS("bad-log/log.csv: ", "lacks step or epoch"));
    assert_refused(in_folder("no-table.csv"), WORDS("no-table.csv: line 1: no column operator"));
    assert_refused(in_folder("short.csv"), WORDS("short.csv: line 2: 2 cells, expected 10"));
    assert_refused(in_folder("empty.csv"), WORDS("empty.csv: "));
    assert_false(compare_write(NULL, 0, in_folder("x.html"), &error));
    const char *good = in_folder("good");
    assert_false(compare_write(&good, 1, in_folder("nowhere/x.html"), &error));
    assert_words(error.text, WORDS("nowhere/x.html: "));
}

/* Names with markup, invalid UTF-8, long names, and equal names. */
static void test_names(void **state) {
    static const char evil[] = "<img src=x onerror=\"alert(1)\">&'\n\x01\xff";
    char name[300], escaped[sizeof evil * 6];
    const char *paths[6];
    (void)state;
    paths[0] = make_run_of(evil, "attn = <b>bold</b>\nseed = 1\n", 1, 2, 3);
    snprintf(name, sizeof name, "a/%0250d", 1);
    paths[1] = make_run_of(name, "attn = \"x\"\nseed = 1\n", 2, 3, 4);
    paths[2] = make_run_of("a/same", "attn = a\nseed = 1\n", 2, 3, 5);
    paths[3] = make_run_of("b/same", "attn = b\nseed = 1\n", 2, 3, 6);
    paths[4] = paths[5] = in_folder("b/same//");
    char *page = page_of(paths, 6);
    assert_null(strstr(page, "<img"));
    assert_null(strstr(page, "<b>bold"));
    TextStream text;
    html_text(text_open(&text), evil);
    char *shown = text_close(&text, "a name");
    snprintf(escaped, sizeof escaped, ">%s<", shown);
    free(shown);
    assert_words(page, WORDS(escaped, ">&lt;b&gt;bold&lt;/b&gt;<", ">a/same<", ">b/same<", ">…000"));
    assert_words(page, WORDS(">b/same (5)<", ">b/same (6)<"));
    assert_null(strstr(page, ">same<"));
    free(page);
}

/* Sixty runs with long logs and long names, in thirty groups. */
static void test_many(void **state) {
    enum { RUNS = 60, ROWS = 3000 };
    const char *paths[RUNS];
    static char kept[RUNS][512];
    (void)state;
    for (int i = 0; i < RUNS; i++) {
        char name[64], config[256];
        TextStream text;
        FILE *out = text_open(&text);
        fputs(HEADER, out);
        for (int row = 1; row <= ROWS; row++) {
            fprintf(out, "%d,%d,%g,1e-3,1,%d,", row * 10, (row - 1) / 10 + 1, 5.0 / row + i, 100 + i);
            if (row % 10 == 0) fprintf(out, "%g,%g,0,%g", 90 - 1e3 / (row + 20) - i, 99.0, 3.0 / row + i);
            else fputs(",,0,", out);
            fprintf(out, ",%d,1000000\n", row * (i + 10));
        }
        snprintf(name, sizeof name, "a-rather-long-name-of-a-run-in-a-study-%03d", i);
        snprintf(config, sizeof config, "lr = %d\nseed = %d\nrun_dir = %d\ndim = %d\n", i / 2, i % 2, i, i / 2);
        char *log = text_close(&text, "a log");
        snprintf(kept[i], sizeof kept[i], "%s", make_run(name, config, log));
        paths[i] = kept[i];
        free(log);
    }
    char *page = page_of(paths, RUNS);
    printf("# %d runs: %zu bytes\n", RUNS, strlen(page));
    assert_words(page, WORDS("The 8 of 30 with the best top-1", ">a-rather-long-name-of-a-run-in-a-study-059<"));
    free(page);
}

static void make_table(const char *path, int rows) {
    TextStream text;
    FILE *out = text_open(&text);
    fputs(COLUMNS "\n", out);
    for (int i = 0; i < rows; i++)
        fprintf(out, "op%d,--a-flag %d,10,1,%.4f,99,1,1000,%d,1\n", i, i, i / 100.0, 1 + i % 7);
    char *table = text_close(&text, "rows");
    write_file(path, table);
    free(table);
}

/* If a table has more rows than a page can hold, the page shows the best ones. */
static void test_too_many(void **state) {
    enum { ROWS = 4000 };
    const char *csv = in_folder("many.csv");
    Error error;
    (void)state;
    make_table(csv, ROWS + 1);
    assert_false(compare_write(&csv, 1, in_folder("x.html"), &error));
    assert_words(error.text, WORDS("4001 runs, expected at most 4000"));
    make_table(csv, ROWS);
    char *page = page_of(&csv, 1);
    printf("# %d rows: %zu bytes\n", ROWS, strlen(page));
    assert_words(page, WORDS("Only the best ", " of 4000 are shown", ">op3999 --a-flag 3999<"));
    assert_null(strstr(page, ">op0 --a-flag 0<"));
    free(page);
}

static void test_tasks(void **state) {
    const char *paths[] = {make_run_of("t1", "data = cifar10\nseed = 1\n", 1, 2, 3),
                           make_run("t2", "data = coco\nseed = 1\n", "step,epoch,loss,ap\n4,1,2.5,0.25\n")};
    Error error;
    (void)state;
    for (int i = 0; i < 2; i++) {
        Facts facts = {0};
        facts_set(&facts, "program", i ? "train_detr" : "train_vit");
        assert_true(facts_write(&facts, in_folder("t%d/report.json", i + 1), &error));
        facts_free(&facts);
    }
    char *page = page_of(paths, 2);
    assert_words(page, WORDS("different programs (train_vit, train_detr)", "different data (cifar10, coco)", ">0.2500<",
                             "lowest training loss"));
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means),      cmocka_unit_test(test_sample),     cmocka_unit_test(test_groups),
        cmocka_unit_test(test_unequal_logs), cmocka_unit_test(test_beginnings), cmocka_unit_test(test_table),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_names),      cmocka_unit_test(test_many),
        cmocka_unit_test(test_too_many),   cmocka_unit_test(test_tasks),
    };
    return cmocka_run_group_tests_name("comparing runs", tests, make_folder, remove_folder);
}

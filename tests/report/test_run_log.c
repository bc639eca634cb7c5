/* report/run_log: reading a log that is complete, still being written, resumed, or not a log. */
#include "report/run_log.h"

#include <math.h>

#include "tests/scratch.h"

static RunLog log_of(const char *text) {
    RunLog log;
    Error error;
    char *copy = strdup(text);
    if (!run_log_parse(&log, copy, strlen(text), &error)) fail_msg("%s", error.text);
    free(copy);
    return log;
}

/* The values of a column as text, for example "2 - 1.5", where "-" is NaN. */
static const char *column(const RunLog *log, const char *name) {
    static char text[512];
    const double *values = run_log_column(log, name);
    size_t used = 0;
    *text = 0;
    assert_non_null(values);
    for (int r = 0; r < log->rows; r++)
        used += (size_t)snprintf(text + used, sizeof text - used, isnan(values[r]) ? "%s-" : "%s%g", r ? " " : "",
                                 values[r]);
    return text;
}

static void test_values(void **state) {
    (void)state;
    RunLog log = log_of("step,loss,top1\r\n1,2.5,\r\n2,1e-3,40.25\n\n3,nan\n4,inf,4x,7\n5, 1,0x10\n");
    assert_int_equal(log.columns, 3);
    assert_string_equal(column(&log, "step"), "1 2 3 4 5");
    assert_string_equal(column(&log, "loss"), "2.5 0.001 - - 1");
    assert_string_equal(column(&log, "top1"), "- 40.25 - - 16");
    assert_null(run_log_column(&log, "top5"));
    run_log_free(&log);
    log = log_of("step,ap,mask_ap_large,jsd\n1,0,-1,-1\n2,-1,0.5,2\n");
    assert_string_equal(column(&log, "ap"), "0 -");
    assert_string_equal(column(&log, "mask_ap_large"), "- 0.5");
    assert_string_equal(column(&log, "jsd"), "-1 2");
    run_log_free(&log);
}

static void test_in_use(void **state) {
    (void)state;
    RunLog log = log_of("step,loss\n1,5\n2,4\n3,"); /* the last row is being written */
    assert_string_equal(column(&log, "step"), "1 2");
    run_log_free(&log);
    log = log_of("step,loss\n");
    assert_int_equal(log.rows, 0);
    assert_true(isnan(run_log_last(&log, "loss")));
    run_log_free(&log);
}

/* A run was resumed from an earlier state, but its log was not truncated: later rows replace earlier ones. */
static void test_steps_go_back(void **state) {
    (void)state;
    RunLog log = log_of("step,loss\n2,5\n4,4\n6,3\n4,40\n6,30\n8,20\n8,21\n");
    assert_string_equal(column(&log, "step"), "2 4 6 8");
    assert_string_equal(column(&log, "loss"), "5 40 30 21");
    run_log_free(&log);
    log = log_of("loss\n5\n4\n5\n");
    assert_string_equal(column(&log, "loss"), "5 4 5");
    run_log_free(&log);
}

static void test_best_and_last(void **state) {
    (void)state;
    int row;
    RunLog log = log_of("step,top1,bits\n1,,\n2,50,7.5\n3,60,6.5\n4,60,7\n5,,\n");
    assert_true(run_log_last(&log, "top1") == 60);
    assert_true(run_log_last(&log, "bits") == 7);
    assert_true(run_log_best(&log, "top1", true, &row) == 60);
    assert_int_equal(row, 2);
    assert_true(run_log_best(&log, "bits", false, &row) == 6.5);
    assert_int_equal(row, 2);
    assert_true(run_log_best(&log, "bits", true, NULL) == 7.5);
    assert_true(isnan(run_log_best(&log, "ap", true, &row)));
    assert_int_equal(row, -1);
    run_log_free(&log);
}

static void test_refusals(void **state) {
    (void)state;
    RunLog log;
    Error error = {.text = ""};
    char many[1024] = "";
    memset(many, ',', 300);
    strcat(many, "\n");
    char *texts[] = {strdup(""), strdup("step,loss"), strdup("\n1,2\n"), strdup(many)};
    for (size_t i = 0; i < 4; i++) {
        error.text[0] = 0;
        assert_false(run_log_parse(&log, texts[i], strlen(texts[i]), &error));
        assert_true(*error.text);
        run_log_free(&log);
        free(texts[i]);
    }
    assert_false(run_log_read(&log, in_folder("missing.csv"), &error));
    assert_words(error.text, WORDS("cannot open"));
    run_log_free(&log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),        cmocka_unit_test(test_in_use),   cmocka_unit_test(test_steps_go_back),
        cmocka_unit_test(test_best_and_last), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

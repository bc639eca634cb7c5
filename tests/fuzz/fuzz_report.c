/* libFuzzer target: log.csv and report.json, from which pages are made.  All columns of an accepted log can be read,
 * and accepted facts can be extended, written and read again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "report/facts.h"
#include "report/run_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_log(const uint8_t *data, size_t size) {
    RunLog log;
    Error error = {.text = ""};
    char *text = malloc(size + 1);
    if (size) memcpy(text, data, size);
    if (run_log_parse(&log, text, size, &error)) {
        const double *steps = run_log_column(&log, "step");
        for (int r = 1; steps && r < log.rows; r++)
            if (steps[r - 1] >= steps[r]) abort();
        for (int c = 0; c < log.columns; c++) {
            int row;
            double best = run_log_best(&log, log.names[c], true, &row), last = run_log_last(&log, log.names[c]);
            if (isnan(best) != isnan(last) || isnan(best) != (row < 0) || last > best) abort();
        }
    } else if (!*error.text) {
        abort();
    }
    run_log_free(&log);
    free(text);
}

static void try_facts(const uint8_t *data, size_t size) {
    Facts facts, again;
    Error error = {.text = ""};
    if (!facts_parse(&facts, data, size, &error)) {
        if (!*error.text || facts.all) abort();
        return;
    }
    facts_set(&facts, "state", "done");
    facts_level(&facts, "loss", "a level", 1);
    facts_bars(&facts, "bars", "", "", NULL, NULL, 0);
    facts_pictures(&facts, "pictures", "", NULL);
    facts_picture(&facts, "pictures", (const uint8_t[3]){0}, 1, 1, 8, NULL);
    char *text = json_dumps(facts.all, 0);
    if (!text || !facts_parse(&again, text, strlen(text), &error)) abort();
    facts_free(&again);
    facts_free(&facts);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try_log(data, size);
    try_facts(data, size);
    return 0;
}

#include "training/report.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/text.h"
#include "core/text_stream.h"
#include "core/version.h"
#include "kernels/kernels.h"
#include "report/run_page.h"
#include "training/training.h"

enum { RELOAD_S = 30, PAUSE_S = 30, COST = 100 /* pages between evaluations take at most 1/COST of the time */ };

typedef struct Report {
    Facts facts;
    double written, took; /* when the page was last written, and the seconds that it took; written 0: never */
    bool warned, busy;
} Report;

static const Training *running; /* the run whose page says so */
static pthread_t owner;         /* the thread that writes it */
static void tell_failure(const char *message);

/* A word of a command line, in quotes if a shell would interpret it otherwise. */
static void put_word(FILE *out, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+=:,@%";
    if (*word && strspn(word, plain) == strlen(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word; word++) fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, out);
    fputc('\'', out);
}

static void set_resume(Facts *facts, const Training *t) {
    TextStream text;
    FILE *out = text_open(&text);
    fprintf(out, "%s --resume ", t->program);
    put_word(out, t->folder.path);
    char *command = text_close(&text, "a command");
    facts_set(facts, "resume", command);
    free(command);
}

void report_open(Training *t) {
    char path[RUN_PATH_SIZE], host[256] = "";
    Error error;
    if (distributed_rank() > 0) return;
    Report *report = t->report = xcalloc(1, sizeof *report, "the page of a run");
    Facts *facts = &report->facts;
    run_folder_file(path, t->folder.path, "report.json");
    if (t->resumed && !facts_read(facts, path, &error)) warn("%s: %s; the run's page begins anew", path, error.text);
    gethostname(host, sizeof host - 1);
    facts_set(facts, "program", t->program);
    facts_set(facts, "unit", t->unit);
    facts_set(facts, "device", kernels_device());
    facts_set(facts, "host", host);
    facts_set(facts, "version", VIT_VERSION);
    facts_set(facts, "commit", *vit_commit ? vit_commit : NULL);
    facts_set(facts, "precision", config_word(&t->config, "precision", t->s->precision));
    facts_set_number(facts, "threads", omp_get_max_threads());
    facts_set_number(facts, "ranks", distributed_ranks());
    facts_set_number(facts, "parameters", (double)t->params->parameters);
    facts_set_number(facts, "batches", (double)t->batches);
    facts_set_number(facts, "epochs", t->s->epochs);
    if (!isfinite(facts_number(facts, "began"))) facts_set_number(facts, "began", (double)time(NULL));
    set_resume(facts, t);
    running = t;
    owner = pthread_self();
    die_last(tell_failure);
}

Facts *training_facts(const Training *t) { return t->report ? &t->report->facts : NULL; }

/* Writes both files; false: at least one could not be written. */
static bool write_files(const Training *t, int reload_s, Error *error) {
    char path[RUN_PATH_SIZE];
    const Facts *facts = &t->report->facts;
    run_folder_file(path, t->folder.path, "report.json");
    bool kept = facts_write(facts, path, error) || refuse(error, "%s: %s", path, error->text);
    return run_page_replace(t->folder.path, NULL, facts, &t->config, reload_s, error) && kept;
}

static void write_page(const Training *t, const char *state, const char *key, const char *words) {
    Error error;
    Report *report = t->report;
    Facts *facts = &report->facts;
    double before = now_seconds();
    report->busy = true;
    facts_set(facts, "state", state);
    facts_set(facts, "reason", NULL);
    facts_set(facts, "result", NULL);
    if (key) facts_set(facts, key, words);
    facts_set_number(facts, "epoch", training_epochs(t));
    facts_set_number(facts, "eta_s", training_seconds_left(t));
    facts_set_number(facts, "written", (double)time(NULL));
    if (!write_files(t, key ? 0 : RELOAD_S, &error) && !report->warned) {
        progress_end();
        warn("%s; the run continues without its page", error.text);
        report->warned = true;
    }
    report->written = now_seconds();
    report->took = report->written - before;
    report->busy = false;
}

/* Not where the page itself fails, and not while another thread may change the facts. */
static void tell_failure(const char *message) {
    bool own = pthread_equal(owner, pthread_self());
    if (own && !running->report->busy) write_page(running, "failed", "reason", message);
}

void report_refresh(const Training *t, bool evaluation) {
    if (!t->report) return;
    double passed = now_seconds() - t->report->written;
    bool due = passed >= PAUSE_S && passed >= COST * t->report->took;
    if (due || evaluation || !t->report->written) write_page(t, "running", NULL, NULL);
}

void report_end(const Training *t, const char *state, const char *words) {
    if (!t->report) return;
    die_last(NULL);
    write_page(t, state, strcmp(state, "done") ? "reason" : "result", words);
}

void report_folder(const Training *t, const char *folder, const char *out) {
    char path[RUN_PATH_SIZE];
    Facts facts;
    Error error;
    if (!folder_exists(folder)) die("%s: no such folder: --report needs the folder of a run", folder);
    run_folder_file(path, folder, "report.json");
    if (!facts_read(&facts, path, &error)) die("%s: %s", path, error.text);
    if (!run_page_replace(folder, out, &facts, &t->config, 0, &error)) die("%s", error.text);
    run_folder_file(path, folder, "report.html");
    print_line("%s\n", out ? out : path);
    facts_free(&facts);
}

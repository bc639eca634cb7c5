#include "training/run_folder.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/text.h"

enum { CONFIG_FILE, FIRST_CHECKPOINT, FIRST_PAGE = 4 };
const char *const run_folder_files[] = {"config.ini", "last.safetensors", "best.safetensors", "state.safetensors",
                                        "report.json", "report.html", "log.csv", "test.json", NULL};

void run_folder_file(char path[RUN_PATH_SIZE], const char *folder, const char *name) {
    path_join(path, RUN_PATH_SIZE, folder, name);
}

void run_folder_choose(char path[RUN_PATH_SIZE], const char *stem) {
    for (int number = 1;; number++) {
        int length = snprintf(path, RUN_PATH_SIZE, "runs/%s-%03d", stem, number);
        if (length >= RUN_PATH_SIZE || !file_exists(path)) return;
    }
}

void run_folder_of(char path[RUN_PATH_SIZE], const char *given) {
    char state[RUN_PATH_SIZE];
    snprintf(path, RUN_PATH_SIZE, "%s", given);
    if (text_ends_with(path, ".safetensors")) {
        char *slash = strrchr(path, '/');
        snprintf(slash ? slash : path, 2, slash ? "" : ".");
    }
    run_folder_file(state, path, "state.safetensors");
    if (!file_exists(state))
        die("%s: no such file: --resume wants the folder of a run that has saved its state", state);
}

static char *metadata_of(const char *checkpoint, const char *key, const char *what) {
    char *copy = NULL;
    SafeTensors st;
    safetensors_open(&st, checkpoint, &error_fatal);
    const char *text = safetensors_metadata(&st, key);
    if (text && !(copy = strdup(text))) die("%s: out of memory for its %s", checkpoint, what);
    safetensors_close(&st);
    return copy;
}

char *run_folder_config(const char *checkpoint) { return metadata_of(checkpoint, "vit.c.config", "settings"); }

bool run_folder_settings(Config *settings, const Config *like, const char *checkpoint) {
    char *text = run_folder_config(checkpoint);
    Error error;
    config_init_like(settings, like);
    bool told = text && config_try_text(settings, text, strlen(text), checkpoint, &error);
    free(text);
    return told;
}

char *run_folder_device(const char *state) { return metadata_of(state, "vit.c.device", "device"); }

bool run_folder_normalisation(float mean[3], float std[3], const char *checkpoint) {
    char *text = metadata_of(checkpoint, "vit.c.normalisation", "normalisation");
    float x[6];
    bool there = text && sscanf(text, "%g %g %g %g %g %g", x, x + 1, x + 2, x + 3, x + 4, x + 5) == 6;
    for (int i = 0; i < 6 && there; i++) there = isfinite(x[i]) && (i < 3 || x[i] > 0);
    if (text && !there)
        die("%s: vit.c.normalisation is '%.100s', expected a mean and a std of three channels", checkpoint, text);
    if (there) memcpy(mean, x, 3 * sizeof *mean);
    if (there) memcpy(std, x + 3, 3 * sizeof *std);
    free(text);
    return there;
}

bool run_folder_image_size(int size[2], const char *checkpoint) {
    char *text = metadata_of(checkpoint, "vit.c.image_size", "images' size");
    bool there = text && sscanf(text, "%dx%d", &size[0], &size[1]) == 2;
    if (text && !(there && size[0] >= 0 && size[1] >= 0))
        die("%s: vit.c.image_size is '%.100s', expected height x width", checkpoint, text);
    free(text);
    return there;
}

void run_folder_classes(ClassNames *names, const char *checkpoint) {
    char *text = metadata_of(checkpoint, "vit.c.classes", "class names");
    class_names_parse(names, text ? text : "", text ? strlen(text) : 0, '\n');
    free(text);
}

/* == The log ====================================================================================================== */

static void log_flush(const RunFolder *folder) {
    if (fflush(folder->log) != 0) die("%s: cannot write: %s", folder->log_path, strerror(errno));
}

/* The process that holds the lock of this open file, as Linux lists it (proc(5), /proc/locks); 0: not known, for
 * instance because it runs on another machine. */
static long lock_holder(FILE *file) {
    char line[256];
    struct stat info;
    long process, holder = 0;
    unsigned long long inode;
    FILE *locks = fopen("/proc/locks", "re");
    if (!locks) return 0;
    bool known = fstat(fileno(file), &info) == 0;
    while (known && !holder && fgets(line, sizeof line, locks))
        if (sscanf(line, "%*s FLOCK %*s %*s %ld %*x:%*x:%llu", &process, &inode) == 2 && inode == info.st_ino)
            holder = process;
    fclose(locks);
    return holder;
}

/* Two processes in one folder would mix their rows and checkpoints.  On file systems without locks this is not
 * checked. */
static void log_lock(const RunFolder *folder) {
    if (flock(fileno(folder->log), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    long process = lock_holder(folder->log);
    char which[96] = "another process, perhaps of another machine,";
    if (process > 0) snprintf(which, sizeof which, "process %ld of this machine", process);
    die("%s: %s is training in this folder: stop it first, or train in another folder", folder->log_path, which);
}

/* Opens and locks an existing log; false: there is none. */
static bool log_open(RunFolder *folder) {
    struct stat info;
    folder->log = fopen(folder->log_path, "r+e");
    if (!folder->log && errno == ENOENT) return false;
    if (!folder->log) die("%s: cannot open: %s", folder->log_path, strerror(errno));
    if (fstat(fileno(folder->log), &info) == 0 && !S_ISREG(info.st_mode))
        die("%s: not a regular file, expected the log of this run", folder->log_path);
    log_lock(folder);
    return true;
}

static void refuse_state(const RunFolder *folder) {
    char path[RUN_PATH_SIZE];
    run_folder_file(path, folder->path, "state.safetensors");
    if (file_exists(path))
        die("%s: there is a run in this folder already: --resume %s continues it, another --run-dir starts afresh",
            folder->log_path, folder->path);
}

static void refuse_weights(const RunFolder *folder) {
    char path[RUN_PATH_SIZE];
    for (int i = FIRST_CHECKPOINT; i < FIRST_PAGE; i++) {
        run_folder_file(path, folder->path, run_folder_files[i]);
        if (file_is_regular(path)) die("%s: this run would replace it: choose another --run-dir, or remove the file", path);
    }
}

/* Did the run in this folder end before it trained?  Then its log has no rows. */
static bool is_untrained(const RunFolder *folder) {
    static const char first[] = "step,epoch,";
    char begun[1024];
    size_t length = fread(begun, 1, sizeof begun, folder->log), compared = sizeof first - 1;
    const char *end = memchr(begun, '\n', length);
    return length < sizeof begun && !memcmp(begun, first, length < compared ? length : compared) &&
           (!end || end + 1 == begun + length);
}

/* The log of a folder that has one: of a run in another process, of a run that can be resumed, or of a run that ended
 * before it trained, whose folder is used again. */
static void log_take_over(RunFolder *folder) {
    if (!log_open(folder)) die("%s: cannot open: a link that leads nowhere, or just removed", folder->log_path);
    refuse_state(folder);
    if (!is_untrained(folder))
        die("%s: here a run ended before it saved its state: remove the folder or choose another --run-dir",
            folder->log_path);
    refuse_weights(folder);
    if (ftruncate(fileno(folder->log), 0) || fseek(folder->log, 0, SEEK_SET))
        die("%s: cannot write: %s", folder->log_path, strerror(errno));
}

/* Creates the log, and never replaces that of another run, not even when two runs start at the same moment. */
static void log_create(RunFolder *folder, const char *header) {
    folder->log = fopen(folder->log_path, "w+xe");
    if (folder->log)
        log_lock(folder);
    else if (errno == EEXIST)
        log_take_over(folder);
    else
        die("%s: cannot open: %s", folder->log_path, strerror(errno));
    fprintf(folder->log, "%s\n", header);
    log_flush(folder);
}

/* The values of a row, or the names of a header, in place; returns their number. */
static int split_row(char *row, char *cells[LOG_COLUMNS]) {
    int count = 0;
    while (row && count < LOG_COLUMNS) cells[count++] = strsep(&row, ",");
    return count;
}

/* Sets the columns of rows to those of `line`, a header, in its order.  Returns how many of them the program has. */
static int log_order(RunFolder *folder, const char *header, const char *line) {
    char ours[LOG_SIZE], theirs[LOG_SIZE], *names[LOG_COLUMNS], *columns[LOG_COLUMNS];
    snprintf(ours, sizeof ours, "%s", header);
    snprintf(theirs, sizeof theirs, "%s", line);
    int count = split_row(ours, names), known = 0;
    folder->log_columns = split_row(theirs, columns);
    for (int k = 0; k < folder->log_columns; k++) {
        int i = 0;
        while (i < count && strcmp(names[i], columns[k])) i++;
        folder->log_order[k] = i < count ? i : -1;
        known += i < count;
    }
    return known;
}

/* Names the columns of header that the log lacks. */
static void warn_of_missing(const RunFolder *folder, const char *header) {
    char ours[LOG_SIZE], missing[LOG_SIZE] = "", *names[LOG_COLUMNS];
    snprintf(ours, sizeof ours, "%s", header);
    int count = split_row(ours, names);
    for (int i = 0; i < count; i++) {
        int k = 0;
        size_t end = strlen(missing);
        while (k < folder->log_columns && folder->log_order[k] != i) k++;
        if (k == folder->log_columns) snprintf(missing + end, sizeof missing - end, "%s%s", end ? ", " : "", names[i]);
    }
    warn("%s: it keeps its columns, so these are not logged: %s", folder->log_path, missing);
}

/* A log of another version, or of a run with other settings, continues with its own columns. */
static void log_check_header(RunFolder *folder, const char *header) {
    char line[LOG_SIZE] = "";
    if (!fgets(line, sizeof line, folder->log)) line[0] = 0;
    line[strcspn(line, "\r\n")] = 0;
    int ours = folder->log_columns, known = log_order(folder, header, line);
    if (known < ours && known < folder->log_columns)
        warn("%s: its columns are not this program's, which are %s", folder->log_path, header);
    else if (known < ours)
        warn_of_missing(folder, header);
    if (!known) log_order(folder, header, header);
}

/* The length of the open log up to its last end of a line. */
static long whole_lines(const RunFolder *folder, long length) {
    char last;
    while (length > 0 && pread(fileno(folder->log), &last, 1, length - 1) == 1 && last != '\n') length--;
    return length;
}

/* If the log was removed or emptied, a new one begins.  If the state has no log length, the log is not changed. */
static void log_reopen(RunFolder *folder, const char *header, uint64_t saved_bytes) {
    if (!log_open(folder)) {
        warn("%s: missing: a new one begins, without the rows up to here", folder->log_path);
        log_create(folder, header);
        return;
    }
    bool ok = fseek(folder->log, 0, SEEK_END) == 0;
    long length = ok ? ftell(folder->log) : -1, kept = saved_bytes ? (long)saved_bytes : length;
    ok = length >= 0;
    if (ok && length < kept) {
        warn("%s: %ld bytes, but it had %ld when the state was saved: rows are missing", folder->log_path, length,
             kept);
        kept = whole_lines(folder, length);
    }
    ok = ok && (kept == length || ftruncate(fileno(folder->log), kept) == 0);
    rewind(folder->log);
    if (ok && !kept && saved_bytes) fprintf(folder->log, "%s\n", header);
    rewind(folder->log);
    log_check_header(folder, header);
    ok = ok && fseek(folder->log, 0, SEEK_END) == 0;
    if (!ok) die("%s: cannot cut back to the saved state: %s", folder->log_path, strerror(errno));
}

/* Copies the open log file, which has been removed from the folder, to a new file of the same name. */
static bool log_restore(RunFolder *folder) {
    char buffer[16384];
    FILE *copy = fopen(folder->log_path, "w+xe");
    off_t at = 0;
    ssize_t got = copy ? 1 : -1;
    while (got > 0) {
        got = pread(fileno(folder->log), buffer, sizeof buffer, at);
        if (got > 0 && fwrite(buffer, 1, (size_t)got, copy) != (size_t)got) got = -1;
        at += got > 0 ? got : 0;
    }
    if (got < 0 || fflush(copy)) {
        if (copy) unlink(folder->log_path);
        if (copy) fclose(copy);
        return false;
    }
    fclose(folder->log);
    folder->log = copy;
    log_lock(folder);
    warn("%s: was removed while the run wrote to it, and is there again", folder->log_path);
    return true;
}

/* Makes sure that the log's path is the open file.  If not, creates it again, or if another file has replaced it,
 * appends to that one.  False: there is no file at that path; errno gives the reason. */
static bool log_keep(RunFolder *folder) {
    struct stat ours, theirs;
    if (fstat(fileno(folder->log), &ours)) return true; /* not a reason to stop using it */
    if (stat(folder->log_path, &theirs)) return errno != ENOENT || log_restore(folder);
    if (ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino) return true;
    FILE *other = fopen(folder->log_path, "r+e");
    if (!other || fseek(other, 0, SEEK_END)) return other ? fclose(other), false : false;
    fclose(folder->log);
    folder->log = other;
    log_lock(folder);
    warn("%s: the file was replaced: further rows go to the new file", folder->log_path);
    return true;
}

void run_folder_log(RunFolder *folder, char *row) {
    char *cells[LOG_COLUMNS];
    if (!folder->log) return;
    log_keep(folder); /* the next save reports an error, as the folder may exist again by then */
    split_row(row, cells);
    for (int k = 0; k < folder->log_columns; k++)
        fprintf(folder->log, "%s%s", k ? "," : "", folder->log_order[k] < 0 ? "" : cells[folder->log_order[k]]);
    fputc('\n', folder->log);
    log_flush(folder);
}

/* == The folder =================================================================================================== */

static void metadata_fill(RunFolder *folder, const Config *config, const TrainingStart *start) {
    const char *const *class_names = start->class_names;
    const float *mean = start->mean, *std = start->std;
    config_require_utf8(config);
    for (int c = 0; class_names && c < start->classes; c++)
        if (!text_is_utf8(class_names[c]))
            die("%s: the name of class %d is not UTF-8, and checkpoints could not hold it: rename it", class_names[c],
                c);
    folder->config = config_text(config);
    folder->classes = class_names_text(class_names, start->classes);
    folder->metadata[0] = (SafeMetadata){"format", "pt"};
    folder->metadata[1] = (SafeMetadata){"vit.c.config", folder->config};
    folder->metadata[2] = (SafeMetadata){"vit.c.classes", folder->classes};
    folder->metadata_count = 3;
    if (start->image_size) {
        snprintf(folder->image_size, sizeof folder->image_size, "%dx%d", start->image_size[0], start->image_size[1]);
        folder->metadata[folder->metadata_count++] = (SafeMetadata){"vit.c.image_size", folder->image_size};
    }
    if (!mean || !std) return;
    snprintf(folder->normalisation, sizeof folder->normalisation, "%.9g %.9g %.9g %.9g %.9g %.9g", (double)mean[0],
             (double)mean[1], (double)mean[2], (double)std[0], (double)std[1], (double)std[2]);
    folder->metadata[folder->metadata_count++] = (SafeMetadata){"vit.c.normalisation", folder->normalisation};
}

void run_folder_open(RunFolder *folder, const char *path, const Config *config, const TrainingStart *start,
                     const char *header, const RunState *resumed) {
    Error error;
    char config_path[RUN_PATH_SIZE], left[RUN_PATH_SIZE];
    snprintf(folder->path, sizeof folder->path, "%s", path);
    if (distributed_rank() > 0) return;
    metadata_fill(folder, config, start);
    make_folders(folder->path);
    run_folder_file(folder->log_path, folder->path, "log.csv");
    log_order(folder, header, header);
    if (resumed) {
        log_reopen(folder, header, resumed->log_bytes);
    } else {
        if (!file_exists(folder->log_path)) refuse_state(folder), refuse_weights(folder);
        log_create(folder, header);
    }
    for (int i = 0; i < FIRST_PAGE; i++) {
        run_folder_file(left, folder->path, run_folder_files[i]);
        if (!file_try(left, &error)) die("%s: %s", left, error.text); /* not only at the end of the first epoch */
    }
    run_folder_file(config_path, folder->path, run_folder_files[CONFIG_FILE]);
    write_text(config_path, folder->config);
}

void run_folder_save_weights(const RunFolder *folder, const Params *params, const char *name) {
    char path[RUN_PATH_SIZE];
    if (!folder->log) return;
    run_folder_file(path, folder->path, name);
    checkpoint_save_weights(params, params->ema ? params->ema : params->values, path, folder->metadata,
                            folder->metadata_count);
}

void run_folder_save(RunFolder *folder, const Params *params, RunState *state) {
    char path[RUN_PATH_SIZE];
    struct stat info;
    if (!folder->log) return;
    if (!log_keep(folder)) die("%s: gone, and cannot be made again: %s", folder->log_path, strerror(errno));
    log_flush(folder);
    if (fstat(fileno(folder->log), &info)) die("%s: cannot read its length: %s", folder->log_path, strerror(errno));
    if (fsync(fileno(folder->log)) != 0 && errno != EINVAL)
        die("%s: cannot write: %s", folder->log_path, strerror(errno));
    run_folder_save_weights(folder, params, "last.safetensors");
    state->log_bytes = (uint64_t)info.st_size;
    run_folder_file(path, folder->path, "state.safetensors");
    checkpoint_save_state(params, state, path, folder->metadata, folder->metadata_count);
}

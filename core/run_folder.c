#include "core/run_folder.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"

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
    size_t length = strlen(path), ending = strlen(".safetensors");
    if (length > ending && !strcmp(path + length - ending, ".safetensors")) {
        char *slash = strrchr(path, '/');
        snprintf(slash ? slash : path, 2, slash ? "" : ".");
    }
    run_folder_file(state, path, "state.safetensors");
    if (!file_exists(state))
        die("%s: no such file: --resume wants the folder of a run that has saved its state", state);
}

char *run_folder_config(const char *checkpoint) {
    char *copy = NULL;
    Error error;
    SafeTensors st;
    if (!safetensors_open(&st, checkpoint, &error)) die("%s", error.text);
    const char *text = safetensors_metadata(&st, "vit.c.config");
    if (text) copy = strdup(text);
    safetensors_close(&st);
    return copy;
}

void run_folder_classes(ClassNames *names, const char *checkpoint) {
    Error error;
    SafeTensors st;
    if (!safetensors_open(&st, checkpoint, &error)) die("%s", error.text);
    const char *text = safetensors_metadata(&st, "vit.c.classes");
    class_names_parse(names, text ? text : "", text ? strlen(text) : 0, '\n');
    safetensors_close(&st);
}

/* == The log ====================================================================================================== */

static void log_flush(const RunFolder *folder) {
    if (fflush(folder->log) != 0) die("%s: cannot write: %s", folder->log_path, strerror(errno));
}

/* Two processes in one folder would mix their rows and checkpoints.  File systems without locks do without. */
static void log_lock(const RunFolder *folder) {
    if (flock(fileno(folder->log), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        die("%s: another process is training in this folder", folder->log_path);
}

/* Not even when two runs start at the same moment. */
static void log_create(RunFolder *folder, const char *header) {
    char state[RUN_PATH_SIZE];
    folder->log = fopen(folder->log_path, "wx");
    if (!folder->log && errno == EEXIST) {
        run_folder_file(state, folder->path, "state.safetensors");
        if (file_exists(state))
            die("%s: there is a run in this folder already: --resume %s continues it, another --run-dir starts afresh",
                folder->log_path, folder->path);
        die("%s: here a run ended before it saved anything: remove the folder or choose another --run-dir",
            folder->log_path);
    }
    if (!folder->log) die("%s: cannot open: %s", folder->log_path, strerror(errno));
    log_lock(folder);
    fprintf(folder->log, "%s\n", header);
    log_flush(folder);
}

static int count_columns(const char *row) {
    int columns = 1;
    for (; *row; row++) columns += *row == ',';
    return columns;
}

/* Columns were added at the end: a log that was begun with fewer is continued with as many as it has. */
static void log_check_header(RunFolder *folder, const char *header) {
    char line[1024] = "";
    if (!fgets(line, sizeof line, folder->log)) line[0] = 0;
    line[strcspn(line, "\r\n")] = 0;
    size_t length = strlen(line);
    bool older = length && !strncmp(line, header, length) && header[length] == ',';
    if (older) folder->log_columns = count_columns(line);
    if (!older && strcmp(line, header))
        warn("%s: its columns are not this program's, which are %s", folder->log_path, header);
}

static void log_reopen(RunFolder *folder, const char *header, uint64_t saved_bytes) {
    folder->log = fopen(folder->log_path, "r+");
    if (!folder->log) die("%s: cannot open: %s", folder->log_path, strerror(errno));
    log_lock(folder);
    log_check_header(folder, header);
    bool ok = fseek(folder->log, 0, SEEK_END) == 0;
    long length = ok ? ftell(folder->log) : -1;
    if (ok && (uint64_t)length < saved_bytes)
        warn("%s: %ld bytes, but it had %llu when the state was saved: rows are missing", folder->log_path, length,
             (unsigned long long)saved_bytes);
    else
        ok = ok && ftruncate(fileno(folder->log), (off_t)saved_bytes) == 0 && fseek(folder->log, 0, SEEK_END) == 0;
    if (!ok) die("%s: cannot cut back to the saved state: %s", folder->log_path, strerror(errno));
}

void run_folder_log(RunFolder *folder, const char *format, ...) {
    char row[1024], *end = row;
    va_list arguments;
    if (!folder->log) return;
    va_start(arguments, format);
    vsnprintf(row, sizeof row, format, arguments);
    va_end(arguments);
    for (int columns = folder->log_columns; (end = strchr(end, ',')) && --columns; end++) continue;
    if (end) *end = 0;
    fprintf(folder->log, "%s\n", row);
    log_flush(folder);
}

/* == The folder =================================================================================================== */

static void metadata_fill(RunFolder *folder, const Config *config, const char *const *class_names, int classes) {
    folder->config = config_text(config);
    folder->classes = class_names_text(class_names, classes);
    folder->metadata[0] = (SafeMetadata){"format", "pt"};
    folder->metadata[1] = (SafeMetadata){"vit.c.config", folder->config};
    folder->metadata[2] = (SafeMetadata){"vit.c.classes", folder->classes};
}

void run_folder_open(RunFolder *folder, const char *path, const Config *config, const char *const *class_names,
                     int classes, const char *header, const RunState *resumed) {
    char config_path[RUN_PATH_SIZE];
    snprintf(folder->path, sizeof folder->path, "%s", path);
    if (distributed_rank() > 0) return;
    metadata_fill(folder, config, class_names, classes);
    make_folders(folder->path);
    run_folder_file(folder->log_path, folder->path, "log.csv");
    folder->log_columns = count_columns(header);
    if (resumed)
        log_reopen(folder, header, resumed->log_bytes);
    else
        log_create(folder, header);
    run_folder_file(config_path, folder->path, "config.ini");
    write_text(config_path, folder->config);
}

void run_folder_save_weights(const RunFolder *folder, const Params *params, const char *name) {
    char path[RUN_PATH_SIZE];
    if (!folder->log) return;
    run_folder_file(path, folder->path, name);
    checkpoint_save_weights(params, params->ema ? params->ema : params->values, path, folder->metadata, 3);
}

void run_folder_save(const RunFolder *folder, const Params *params, RunState *state) {
    char path[RUN_PATH_SIZE];
    if (!folder->log) return;
    long length = ftell(folder->log);
    if (fsync(fileno(folder->log)) != 0 && errno != EINVAL)
        die("%s: cannot write: %s", folder->log_path, strerror(errno));
    run_folder_save_weights(folder, params, "last.safetensors");
    state->log_bytes = length > 0 ? (uint64_t)length : 0;
    run_folder_file(path, folder->path, "state.safetensors");
    checkpoint_save_state(params, state, path, folder->metadata, 3);
}

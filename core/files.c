#include "core/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/die.h"

enum { PLACE_SIZE = 4096, HOST_SIZE = 33 };

extern char *program_invocation_short_name;

void path_join(char *path, size_t size, const char *folder, const char *name) {
    if ((size_t)snprintf(path, size, "%s/%s", folder, name) >= size) die("%s/%s: path too long", folder, name);
}

void path_find(char *path, size_t size, const char *folder, const char *name) {
    if (*name != '/') path_join(path, size, folder, name);
    else if ((size_t)snprintf(path, size, "%s", name) >= size) die("%s: path too long", name);
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_regular(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool folder_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool file_is_same(const char *a, const char *b) {
    struct stat one, other;
    if (stat(a, &one) || stat(b, &other)) return !strcmp(a, b);
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static void make_folder(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0) return;
    int reason = errno;
    bool there = stat(path, &info) == 0;
    if (there && S_ISDIR(info.st_mode)) return;
    if (reason != EEXIST) die("%s: cannot make this folder: %s", path, strerror(reason));
    die("%s: cannot make this folder: %s has this name", path, there ? "a file" : "a link that leads nowhere");
}

void make_folders(const char *path) {
    char part[4096];
    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part) die("%s: path too long", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        make_folder(part);
        *slash = '/';
    }
    make_folder(part);
}

/* == Inputs and outputs of one call =============================================================================== */

typedef struct {
    dev_t device;
    ino_t inode;
} FileId;

enum { MOST_NOTED = 256, MOST_CLAIMED = 16 };

/* The first inputs.  There is room for all inputs that are opened before outputs are claimed; later inputs are compared
 * with the claims. */
static FileId noted[MOST_NOTED];
static atomic_int noted_count;

static struct {
    FileId id; /* all zero: there is no such file yet */
    const char *path, *setting;
} claimed[MOST_CLAIMED];
static int claimed_count;

static FileId id_of(const struct stat *info) { return (FileId){info->st_dev, info->st_ino}; }

static bool same_file(FileId a, FileId b) { return a.inode && a.inode == b.inode && a.device == b.device; }

void file_refuse_output(const char *path, const struct stat *info) {
    for (int i = 0; i < claimed_count; i++)
        if (same_file(claimed[i].id, id_of(info)))
            die_usage("%s: an input of this call, which %s %s would replace: give the output another name", path,
                      claimed[i].setting, claimed[i].path);
}

/* Every file that is read as a whole is opened here. */
static bool accept_input(const char *path, const struct stat *info, Error *error) {
    if (!S_ISREG(info->st_mode))
        return refuse(error, "%s, expected a file", S_ISDIR(info->st_mode) ? "a folder" : "not a regular file");
    file_refuse_output(path, info);
    int i = noted_count < MOST_NOTED ? noted_count++ : MOST_NOTED;
    if (i < MOST_NOTED) noted[i] = id_of(info);
    return true;
}

void file_note(const char *path) {
    struct stat info;
    Error error;
    if (stat(path, &info) == 0) accept_input(path, &info, &error);
}

/* == Whole files ================================================================================================== */

int file_open(const char *path, Error *error) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return refuse_errno(error, "cannot open"), -1;
    if (fstat(fd, &info) ? refuse_errno(error, "cannot read") : accept_input(path, &info, error)) return fd;
    close(fd);
    return -1;
}

/* Reads `want` bytes. */
static bool read_bytes(int fd, uint8_t *bytes, size_t want, Error *error) {
    for (size_t have = 0; have < want;) {
        ssize_t got = read(fd, bytes + have, want - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return refuse_errno(error, "cannot read");
        if (!got) return refuse(error, "ended after %zu of %zu bytes while it was read", have, want);
        have += (size_t)got;
    }
    return true;
}

/* Uses fstat on the open file, so the size belongs to the file being read; if it shrinks meanwhile, the read is short.
 * */
static bool read_open(int fd, size_t most, uint8_t **bytes, size_t *room, size_t *size, Error *error) {
    struct stat status;
    if (fstat(fd, &status)) return refuse_errno(error, "cannot read");
    if ((uintmax_t)status.st_size > most)
        return refuse(error, "%jd bytes, expected at most %zu", (intmax_t)status.st_size, most);
    size_t want = (size_t)status.st_size;
    if (want >= *room) {
        free(*bytes);
        *room = 0;
        *bytes = malloc(want + 1);
        if (!*bytes) return refuse_memory(error, want + 1, "a file");
        *room = want + 1;
    }
    *size = want;
    return read_bytes(fd, *bytes, want, error);
}

bool file_read_again(const char *path, size_t most, uint8_t **bytes, size_t *room, size_t *size, Error *error) {
    int fd = file_open(path, error);
    if (fd < 0) return false;
    bool ok = read_open(fd, most, bytes, room, size, error);
    close(fd);
    return ok;
}

bool file_read(const char *path, size_t most, uint8_t **bytes, size_t *size, Error *error) {
    uint8_t *buffer = NULL;
    size_t room = 0;
    bool ok = file_read_again(path, most, &buffer, &room, size, error);
    if (!ok) free(buffer);
    if (ok) *bytes = buffer;
    return ok;
}

bool file_read_beginning(const char *path, size_t most, uint8_t *bytes, size_t *size, Error *error) {
    struct stat status;
    int fd = file_open(path, error);
    if (fd < 0) return false;
    bool ok = fstat(fd, &status) == 0 || refuse_errno(error, "cannot read");
    *size = ok && (uintmax_t)status.st_size < most ? (size_t)status.st_size : most;
    ok = ok && read_bytes(fd, bytes, *size, error);
    close(fd);
    return ok;
}

/* == Replacing a file ============================================================================================= */

/* Follows symbolic links to the file to replace, which need not exist yet; the link itself is kept. */
static bool follow_links(char place[PLACE_SIZE], const char *path, Error *error) {
    enum { MOST_LINKS = 40 }; /* the kernel's limit */
    char target[PLACE_SIZE], folder[PLACE_SIZE];
    if ((size_t)snprintf(place, PLACE_SIZE, "%s", path) >= PLACE_SIZE) errno = ENAMETOOLONG;
    else errno = 0;
    for (int links = 0; !errno; links++) {
        ssize_t length = readlink(place, target, sizeof target - 1);
        if (length < 0) return true; /* not a link; any other error is reported when it is written */
        target[length] = 0;
        memcpy(folder, place, sizeof folder);
        bool fits = *target == '/' ? snprintf(place, PLACE_SIZE, "%s", target) > 0
                                   : snprintf(place, PLACE_SIZE, "%s/%s", dirname(folder), target) < PLACE_SIZE;
        errno = links >= MOST_LINKS ? ELOOP : fits ? 0 : ENAMETOOLONG;
    }
    return refuse_errno(error, "cannot write");
}

static void host_name(char name[HOST_SIZE]) {
    char whole[256] = "";
    if (gethostname(whole, sizeof whole - 1)) snprintf(whole, sizeof whole, "unknown");
    snprintf(name, HOST_SIZE, "%.*s", HOST_SIZE - 1, whole);
}

/* Does `ending`, "<process>" (older versions) or "<process>.<host>", belong to a process that no longer runs?
 * Processes on other machines, or in another container with the same host name, cannot be checked: a file that has not
 * been written to for an hour counts as abandoned. */
static bool is_stale(const char *ending, const struct stat *info) {
    static const time_t ABANDONED = 3600;
    char host[HOST_SIZE], *end;
    long process = strtol(ending, &end, 10);
    if (process <= 0 || end == ending || (*end && *end != '.')) return false; /* not the name of a temporary file */
    host_name(host);
    bool here = !*end || !strcmp(end + 1, host);
    if (here && process == (long)getpid()) return true;
    if (here && *end && kill((pid_t)process, 0) != 0 && errno == ESRCH) return true;
    return time(NULL) - info->st_mtime > ABANDONED;
}

/* Removes temporary files left by processes that were killed while replacing this file. */
static void remove_stale(const char *path) {
    char copy[PLACE_SIZE], place[PLACE_SIZE], folder[PLACE_SIZE];
    Error error;
    if (!follow_links(place, path, &error)) return;
    memcpy(copy, place, sizeof copy);
    memcpy(folder, place, sizeof folder);
    const char *name = basename(copy);
    size_t length = strlen(name);
    DIR *list = opendir(dirname(folder));
    if (!list) return;
    for (const struct dirent *entry; (entry = readdir(list));) {
        struct stat info;
        if (strncmp(entry->d_name, name, length) || strncmp(entry->d_name + length, ".tmp.", 5)) continue;
        if (fstatat(dirfd(list), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode)) continue;
        if (is_stale(entry->d_name + length + 5, &info)) unlinkat(dirfd(list), entry->d_name, 0);
    }
    closedir(list);
}

/* Writes, flushes and closes.  Pipes and some devices cannot be synced. */
static bool write_open(FILE *file, bool (*fill)(FILE *file, const void *content), const void *content, Error *error) {
    bool ok = fill(file, content) && fflush(file) == 0 &&
              (fsync(fileno(file)) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS);
    if (!ok) refuse_errno(error, "cannot write");
    if (fclose(file) && ok) ok = refuse_errno(error, "cannot write");
    return ok;
}

/* Writes directly to a device or a pipe; opening a named pipe waits for its reader. */
static bool write_in_place(const char *path, bool (*fill)(FILE *file, const void *content), const void *content,
                           Error *error) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (file) return write_open(file, fill, content, error);
    refuse_errno(error, "cannot write");
    if (fd >= 0) close(fd);
    return false;
}

/* Opens the folder first, so that nothing has been changed if that fails.  A trial ends before the old file would be
 * replaced. */
static bool replace_regular(const char *path, bool (*fill)(FILE *file, const void *content), const void *content,
                            bool trial, Error *error) {
    char temporary[PLACE_SIZE], folder[PLACE_SIZE], host[HOST_SIZE];
    host_name(host);
    snprintf(folder, sizeof folder, "%s", path);
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp.%ld.%s", path, (long)getpid(), host) >=
        sizeof temporary) {
        errno = ENAMETOOLONG;
        return refuse_errno(error, "cannot write");
    }
    int fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return refuse_errno(error, "cannot open its folder");
    remove_stale(path);
    FILE *file = fopen(temporary, "wxe");
    bool ok = file ? write_open(file, fill, content, error) : refuse_errno(error, "cannot write");
    if (ok && !trial && rename(temporary, path)) ok = refuse_errno(error, "cannot rename into place");
    if (!ok || trial)
        unlink(temporary);
    else if (fsync(fd) && errno != EINVAL) /* EINVAL: the file system cannot sync folders */
        ok = refuse_errno(error, "cannot flush its folder");
    close(fd);
    return ok;
}

/* Opening a pipe would wait for its reader, and closing it again would end the reader's input. */
static bool try_in_place(const char *path, bool pipe, Error *error) {
    if (pipe) return access(path, W_OK) == 0 || refuse_errno(error, "cannot write");
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    bool ok = (fd >= 0 && write(fd, "", 0) == 0) || refuse_errno(error, "cannot write");
    if (fd >= 0) close(fd);
    return ok;
}

static bool replace(const char *path, bool (*fill)(FILE *file, const void *content), const void *content, bool trial,
                    Error *error) {
    char place[PLACE_SIZE];
    struct stat info;
    if (stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return refuse(error, "cannot write: a folder");
        if (!S_ISREG(info.st_mode) && trial) return try_in_place(path, S_ISFIFO(info.st_mode), error);
        if (!S_ISREG(info.st_mode)) return write_in_place(path, fill, content, error);
    }
    return follow_links(place, path, error) && replace_regular(place, fill, content, trial, error);
}

bool file_replace(const char *path, bool (*fill)(FILE *file, const void *content), const void *content, Error *error) {
    return replace(path, fill, content, false, error);
}

typedef struct {
    const void *bytes;
    size_t size;
} Bytes;

static bool fill_bytes(FILE *file, const void *content) {
    const Bytes *b = content;
    return !b->size || fwrite(b->bytes, 1, b->size, file) == b->size;
}

bool file_write(const char *path, const void *bytes, size_t size, Error *error) {
    return file_replace(path, fill_bytes, &(Bytes){bytes, size}, error);
}

bool file_try(const char *path, Error *error) { return replace(path, fill_bytes, &(Bytes){"", 1}, true, error); }

/* Finds the folder in which the file is or would be, and its name there. */
static bool place_of(FileId *folder, char name[PLACE_SIZE], const char *path, Error *error) {
    char place[PLACE_SIZE], copy[PLACE_SIZE];
    struct stat info;
    if (!follow_links(place, path, error)) return false;
    memcpy(copy, place, sizeof copy);
    snprintf(name, PLACE_SIZE, "%s", basename(copy));
    *folder = stat(dirname(place), &info) == 0 ? id_of(&info) : (FileId){0};
    return true;
}

static bool same_place(const char *a, const char *b, Error *error) {
    char name_a[PLACE_SIZE], name_b[PLACE_SIZE];
    FileId folder_a, folder_b;
    return place_of(&folder_a, name_a, a, error) && place_of(&folder_b, name_b, b, error) &&
           same_file(folder_a, folder_b) && !strcmp(name_a, name_b);
}

bool file_claim(const char *path, const char *setting, Error *error) {
    static const char advice[] = "give it another name";
    static const char *const streams[] = {[STDOUT_FILENO] = "output", [STDERR_FILENO] = "error"};
    struct stat info = {0}, stream;
    bool there = stat(path, &info) == 0;
    FileId id = there ? id_of(&info) : (FileId){0};
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && S_ISFIFO(info.st_mode); fd++)
        if (fstat(fd, &stream) == 0 && same_file(id, id_of(&stream)))
            return refuse(error, "%s is where standard %s goes, which would be mixed with it: %s", path, streams[fd], advice);
    if (there && !S_ISREG(info.st_mode)) return true; /* it receives the bytes, and no file is replaced */
    for (int i = 0; i < noted_count && i < MOST_NOTED; i++)
        if (same_file(id, noted[i]))
            return refuse(error, "%s is an input of this call, too, and would be replaced: %s", path, advice);
    for (int i = 0; i < claimed_count; i++)
        if (same_file(id, claimed[i].id) || same_place(path, claimed[i].path, error))
            return refuse(error, "%s is the file of %s, too: %s", path, claimed[i].setting, advice);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &stream) == 0 && same_file(id, id_of(&stream)))
            return refuse(error, "%s is where standard %s goes, which would be lost: %s", path, streams[fd], advice);
    if (claimed_count == MOST_CLAIMED) return refuse(error, "%s: more than %d outputs", path, MOST_CLAIMED);
    claimed[claimed_count].id = id;
    claimed[claimed_count].path = path;
    claimed[claimed_count++].setting = setting;
    return true;
}

void write_text(const char *path, const char *text) {
    Error error;
    if (!file_write(path, text, strlen(text), &error)) die("%s: %s", path, error.text);
}

/* == Files in memory ============================================================================================== */

/* Read by the signal handler.  An entry is in use while `size` is not 0; `bytes` is set last and cleared first, so that
 * the handler sees only complete entries. */
enum { MOST_MAPS = 16 };
static struct {
    _Atomic(const char *) bytes;
    size_t size;
    char line[PLACE_SIZE + 256];
} maps[MOST_MAPS];

/* SIGBUS arrives in the thread that reads the map, never inside a library that misuses the stack (core/signals.h). */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    for (int i = 0; i < MOST_MAPS; i++) {
        const char *bytes = maps[i].bytes, *at = info->si_addr;
        if (!bytes || at < bytes || at >= bytes + maps[i].size) continue;
        if (write(STDERR_FILENO, maps[i].line, strlen(maps[i].line)) < 0) _exit(1);
        _exit(1);
    }
    signal(number, SIG_DFL); /* not a fault in a mapped file: it is raised again with the default action */
}

static void maps_remember(const char *path, const char *bytes, size_t size) {
    static atomic_bool handled;
    int i = 0;
    while (i < MOST_MAPS && maps[i].size) i++;
    if (i == MOST_MAPS) return;
    snprintf(maps[i].line, sizeof maps[i].line, "%s: %s: cut short, or its disk failed, while it was read\n",
             program_invocation_short_name, path);
    maps[i].size = size;
    maps[i].bytes = bytes;
    if (atomic_exchange(&handled, true)) return;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

bool file_map(const char *path, const void **bytes, size_t *size, Error *error) {
    struct stat info;
    int fd = file_open(path, error);
    if (fd < 0) return false;
    void *map = NULL;
    bool ok = fstat(fd, &info) == 0 || refuse_errno(error, "cannot read");
    if (ok && info.st_size) {
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) ok = refuse_errno(error, "cannot map");
    }
    close(fd);
    if (!ok) return false;
    if (map) maps_remember(path, map, (size_t)info.st_size);
    *bytes = map;
    *size = (size_t)info.st_size;
    return true;
}

void file_unmap(const void *bytes, size_t size) {
    if (!bytes) return;
    for (int i = 0; i < MOST_MAPS; i++) {
        if (maps[i].bytes != bytes) continue;
        maps[i].bytes = NULL;
        maps[i].size = 0;
    }
    munmap((void *)(uintptr_t)bytes, size);
}

/* == Standard input and output ==================================================================================== */

/* Opens /dev/null for reading and writing: the output to a closed stream is discarded, as the user intended. */
void standard_files_open(void) {
    for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR)) {
        if (fd <= STDERR_FILENO) continue;
        close(fd);
        return;
    }
}

void standard_output_check(void) {
    bool flushed = fflush(stdout) == 0;
    if (!flushed && errno == EPIPE) die("standard output: its reader closed it before all of it was written");
    if (!flushed || ferror(stdout)) die("standard output: cannot write all of it");
}

#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/die.h"

void path_join(char *path, size_t size, const char *folder, const char *name) {
    if ((size_t)snprintf(path, size, "%s/%s", folder, name) >= size) die("%s/%s: path too long", folder, name);
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

static void make_folder(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0) return;
    int reason = errno;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return;
    die("%s: cannot make this folder: %s", path, strerror(reason));
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

/* == Whole files ================================================================================================== */

static bool refuse_errno(Error *error, const char *what) {
    return refuse(error, "%s: %s", what, strerror(errno));
}

/* The size is asked of the open file, so it belongs to what is read; a file that shrinks meanwhile is a short read. */
static bool read_open(int fd, size_t most, uint8_t **bytes, size_t *room, size_t *size, Error *error) {
    struct stat status;
    if (fstat(fd, &status)) return refuse_errno(error, "cannot read");
    if (!S_ISREG(status.st_mode))
        return refuse(error, "%s, expected a file", S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
    if ((uintmax_t)status.st_size > most)
        return refuse(error, "%jd bytes, expected at most %zu", (intmax_t)status.st_size, most);
    size_t want = (size_t)status.st_size, have = 0;
    if (want >= *room) {
        free(*bytes);
        *room = 0;
        *bytes = malloc(want + 1);
        if (!*bytes) return refuse_errno(error, "cannot read");
        *room = want + 1;
    }
    while (have < want) {
        ssize_t got = read(fd, *bytes + have, want - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (got < 0) refuse_errno(error, "cannot read");
            else refuse(error, "ended after %zu of %zu bytes while it was read", have, want);
            return false;
        }
        have += (size_t)got;
    }
    *size = want;
    return true;
}

bool file_read_again(const char *path, size_t most, uint8_t **bytes, size_t *room, size_t *size, Error *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return refuse_errno(error, "cannot open");
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

/* Writes, flushes and closes. */
static bool write_temporary(const char *temporary, bool (*fill)(FILE *file, const void *content), const void *content,
                            Error *error) {
    unlink(temporary); /* of a run that was killed and had our process number */
    FILE *file = fopen(temporary, "wxe");
    if (!file) return refuse_errno(error, "cannot write");
    bool ok = fill(file, content) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (!ok) refuse_errno(error, "cannot write");
    if (fclose(file) && ok) ok = refuse_errno(error, "cannot write");
    return ok;
}

/* The folder is opened first: where that fails, nothing has been touched. */
bool file_replace(const char *path, bool (*fill)(FILE *file, const void *content), const void *content, Error *error) {
    char temporary[4096], folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp.%ld", path, (long)getpid()) >= sizeof temporary) {
        errno = ENAMETOOLONG;
        return refuse_errno(error, "cannot write");
    }
    int fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return refuse_errno(error, "cannot open its folder");
    bool ok = write_temporary(temporary, fill, content, error);
    if (ok && rename(temporary, path)) ok = refuse_errno(error, "cannot rename into place");
    if (!ok)
        unlink(temporary);
    else if (fsync(fd) && errno != EINVAL) /* a file system whose folders cannot be flushed */
        ok = refuse_errno(error, "cannot flush its folder");
    close(fd);
    return ok;
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

void write_text(const char *path, const char *text) {
    Error error;
    if (!file_write(path, text, strlen(text), &error)) die("%s: %s", path, error.text);
}

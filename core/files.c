#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

void write_text(const char *path, const char *text) {
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", path) >= sizeof temporary) die("%s: path too long", path);
    FILE *file = fopen(temporary, "w");
    if (!file) die("%s: cannot write: %s", temporary, strerror(errno));
    bool ok = fputs(text, file) >= 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int reason = errno;
    if (fclose(file) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    if (ok && rename(temporary, path) == 0) return;
    if (ok) reason = errno;
    unlink(temporary);
    die("%s: cannot write: %s", path, strerror(reason));
}

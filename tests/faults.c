/* Calls that fail on demand, put before a program by LD_PRELOAD (tests/programs/test_faults.sh):
 *
 *   VIT_FAULT=write|sync|rename|seek|memory   which calls
 *   VIT_FAULT=signal                          none: after the n-th call that changes a file or a folder the process gets
 *                                             signals, and waits until it has taken them
 *   VIT_FAULT_SIGNALS="15 2"                  which
 *   VIT_FAULT_AT=n                            the n-th of them fails; 0: none
 *   VIT_FAULT_ON=1                            and so do all after it, as on a disk that stays full
 *   VIT_FAULT_OTHERS=1                        only calls by other threads than the main one count
 *   VIT_FAULT_COUNT=FILE                      where to write, at the end, how many there were
 *
 * Only what happens between the first line of main and exit counts, and of writes only those to regular files: the line
 * that reports the fault must get out.  glibc's streams do not call write through the symbol that is replaced here, so
 * the writes of streams are counted where the streams' functions are called. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

typedef enum { NONE, WRITE, SYNC, RENAME, SEEK, MEMORY, SIGNAL, KINDS } Kind;

static Kind chosen;
static long fail_at;
static bool fail_on, in_others;
static atomic_long calls;
static atomic_bool active;

static bool fails(Kind kind) {
    if (kind != chosen || !active || (in_others && gettid() == getpid())) return false;
    long n = ++calls;
    return fail_at && (n == fail_at || (fail_on && n > fail_at));
}

/* A call has changed a file or a folder. */
static void happened(void) {
    if (!fails(SIGNAL)) return;
    int kept = errno;
    const char *list = getenv("VIT_FAULT_SIGNALS");
    for (char *end; list && *list; list = end) {
        int number = (int)strtol(list, &end, 10);
        sigset_t pending;
        kill(getpid(), number);
        do usleep(2000);
        while (sigpending(&pending) == 0 && sigismember(&pending, number));
        usleep(10000); /* for the thread that took it */
    }
    errno = kept;
}

/* == The program ================================================================================================== */

static int (*real_main)(int argc, char **argv, char **environment);

static int begin(int argc, char **argv, char **environment) {
    static const char *const names[] = {"", "write", "sync", "rename", "seek", "memory", "signal"};
    const char *kind = getenv("VIT_FAULT"), *at = getenv("VIT_FAULT_AT");
    for (int i = 1; i < KINDS; i++)
        if (kind && !strcmp(kind, names[i])) chosen = (Kind)i;
    fail_at = at ? atol(at) : 0;
    fail_on = getenv("VIT_FAULT_ON") != NULL;
    in_others = getenv("VIT_FAULT_OTHERS") != NULL;
    active = true;
    int status = real_main(argc, argv, environment);
    exit(status);
}

int __libc_start_main(int (*start)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*loader_fini)(void), void *stack_end);
int __libc_start_main(int (*start)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*loader_fini)(void), void *stack_end) {
    __typeof__(__libc_start_main) *next;
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = start;
    return next(begin, argc, argv, init, fini, loader_fini, stack_end);
}

void exit(int status) {
    void (*next)(int) __attribute__((noreturn));
    const char *path = getenv("VIT_FAULT_COUNT");
    active = false;
    *(void **)&next = dlsym(RTLD_NEXT, "exit");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) fprintf(file, "%ld\n", (long)calls);
    if (file) fclose(file);
    next(status);
}

/* == Writes ======================================================================================================= */

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name)

static bool is_file(int fd) {
    struct stat info;
    return fd > STDERR_FILENO && fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

static bool write_fails(int fd) {
    if (chosen != WRITE || !is_file(fd) || !fails(WRITE)) return false;
    errno = ENOSPC;
    return true;
}

/* Fails as glibc does on an error. */
static bool stream_fails(FILE *file) {
    enum { ERROR_SEEN = 0x20 };
    if (!write_fails(fileno(file))) return false;
    file->_flags |= ERROR_SEEN;
    return true;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    NEXT(write);
    if (write_fails(fd)) return -1;
    ssize_t written = next(fd, bytes, size);
    if (is_file(fd)) happened();
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    NEXT(pwrite);
    if (write_fails(fd)) return -1;
    ssize_t written = next(fd, bytes, size, at);
    happened();
    return written;
}

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *file) {
    NEXT(fwrite);
    return stream_fails(file) ? 0 : next(bytes, size, count, file);
}

int fflush(FILE *file) {
    NEXT(fflush);
    if (file && stream_fails(file)) return EOF;
    int status = next(file);
    if (file && is_file(fileno(file))) happened();
    return status;
}

int vfprintf(FILE *file, const char *format, va_list arguments) {
    NEXT(vfprintf);
    return stream_fails(file) ? -1 : next(file, format, arguments);
}

int fclose(FILE *file) {
    NEXT(fclose);
    bool lost = stream_fails(file), regular = is_file(fileno(file));
    int status = next(file);
    if (regular) happened();
    if (lost) errno = ENOSPC;
    return lost ? EOF : status;
}

/* == What comes after them ======================================================================================== */

int fsync(int fd) {
    NEXT(fsync);
    if (!fails(SYNC)) return next(fd);
    errno = EIO;
    return -1;
}

int fdatasync(int fd) {
    NEXT(fdatasync);
    if (!fails(SYNC)) return next(fd);
    errno = EIO;
    return -1;
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    if (fails(RENAME)) {
        errno = EIO;
        return -1;
    }
    int status = next(from, to);
    happened();
    return status;
}

off_t lseek(int fd, off_t offset, int whence) {
    NEXT(lseek);
    if (!fails(SEEK)) return next(fd, offset, whence);
    errno = EIO;
    return -1;
}

int fseek(FILE *file, long offset, int whence) {
    NEXT(fseek);
    if (!fails(SEEK)) return next(file, offset, whence);
    errno = EIO;
    return -1;
}

long ftell(FILE *file) {
    NEXT(ftell);
    if (!fails(SEEK)) return next(file);
    errno = EIO;
    return -1;
}

int ftruncate(int fd, off_t length) {
    NEXT(ftruncate);
    if (fails(SEEK)) {
        errno = EIO;
        return -1;
    }
    int status = next(fd, length);
    happened();
    return status;
}

/* == What makes files and folders ================================================================================= */

FILE *fopen(const char *path, const char *mode) {
    NEXT(fopen);
    FILE *file = next(path, mode);
    if (strpbrk(mode, "wa+") && file && is_file(fileno(file))) happened();
    return file;
}

int open(const char *path, int flags, ...) {
    NEXT(open);
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    int fd = next(path, flags, mode);
    if (flags & O_CREAT) happened();
    return fd;
}

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    int status = next(path, mode);
    happened();
    return status;
}

/* == Memory ======================================================================================================= */

/* posix_memalign is spared: only oneDNN calls it, and uses its result unchecked (2.6), so that it would die inside of
 * the library, where nothing here can help. */

static bool starves(void) {
    if (!fails(MEMORY)) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) { return starves() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return starves() ? NULL : __libc_calloc(count, size); }
void *realloc(void *memory, size_t size) { return starves() ? NULL : __libc_realloc(memory, size); }
void *aligned_alloc(size_t alignment, size_t size) { return starves() ? NULL : __libc_memalign(alignment, size); }
void *memalign(size_t alignment, size_t size) { return starves() ? NULL : __libc_memalign(alignment, size); }

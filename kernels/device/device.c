/* The CPU backend's device: memory is the host's, and every call is finished when it returns. */
#include <fcntl.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/die.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/device.h"
#include "kernels/device/library.h"
#include "kernels/device/variants.h"
#include "kernels/device/workspace.h"

enum { DEVICE_ALIGN = 64 };

void *kernels_workspace_base;
size_t kernels_workspace_bytes;

/* libgomp's threads spin at a barrier for milliseconds before they sleep.  If other programs also use the cores, the
 * spinning takes a core away from the thread for which they wait: with two busy programs a step took 3.4 times as long.
 * A short spin costs nothing on an idle machine (docs/notebook/threads.md).  libgomp reads its setting once, before
 * main, so the program executes itself again with the setting. */
static void spin_briefly(void) {
    enum { MOST = 1 << 20, ARGUMENTS = 4096 };
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    char *arguments[ARGUMENTS + 1], *line = malloc(MOST);
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC), count = 0;
    ssize_t length = line && fd >= 0 ? read(fd, line, MOST) : -1;
    if (fd >= 0) close(fd);
    for (char *at = line; at < line + length && count < ARGUMENTS; at += strlen(at) + 1) arguments[count++] = at;
    arguments[count] = NULL;
    if (length > 0 && length < MOST && count < ARGUMENTS && setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        execv("/proc/self/exe", arguments);
    free(line);
}

void kernels_init(void) {
    spin_briefly();
    if (omp_get_max_threads() > omp_get_thread_limit()) omp_set_num_threads(omp_get_thread_limit());
    library_begin();
}

void kernels_exit(void) {
    free(kernels_workspace_base);
    kernels_workspace_base = NULL;
    kernels_workspace_bytes = 0;
}

void kernels_recover(void) { library_recover(); }

const char *kernels_device(void) {
    static char text[96];
    snprintf(text, sizeof text, "CPU, %d threads, %s, %s%s", omp_get_max_threads(), kernels_instructions(),
             sizeof(real) == 2 ? "bfloat16, " : "", library_name());
    return text;
}

static bool takes_any_processor(void) {
    const char *any = getenv("VIT_ANY_CPU");
    return any && !strcmp(any, "1");
}

const char *kernels_unsupported(void) {
    if (sizeof(real) == 4 || library_multiplies_bfloat16() || takes_any_processor()) return NULL;
    return "built for bfloat16, and this processor cannot multiply it (x86: avx512_bf16; arm64: bf16): build without "
           "PRECISION=BF16, or set VIT_ANY_CPU=1 to run slowly";
}

void kernels_reserve(size_t bytes) {
    workspace_grow(&kernels_workspace_base, &kernels_workspace_bytes, bytes, "kernel workspace");
}

void *workspace_grow(void **room, size_t *size, size_t bytes, const char *what) {
    if (bytes <= *size) return *room;
    device_free(*room);
    *room = NULL;
    *size = 0;
    memory_shared_begin();
    *room = device_malloc(bytes, what);
    memory_shared_end();
    *size = bytes;
    return *room;
}

void *device_malloc(size_t bytes, const char *what) {
    size_t rounded = (bytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    void *p = aligned_alloc(DEVICE_ALIGN, rounded ? rounded : DEVICE_ALIGN);
    if (!p) die("out of memory: %.1f MiB for %s", (double)bytes / (1 << 20), what);
    memset(p, 0, rounded);
    return p;
}

void device_free(void *p) { free(p); }
void device_zero(void *p, size_t bytes) { memset(p, 0, bytes); }
void device_upload(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
void device_download(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void device_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
void device_synchronize(void) {}

size_t device_peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024;
}

void *host_malloc(size_t bytes, const char *what) { return device_malloc(bytes, what); }
void host_free(void *p) { free(p); }
void device_upload_async(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
void device_uploads_used(void) {}
void device_uploads_wait(void) {}
void device_download_async(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }

/* All calls are finished when they return. */
void device_mark(DeviceMark **mark) { (void)mark; }
void device_wait(const DeviceMark *mark) { (void)mark; }
void device_mark_free(DeviceMark **mark) { (void)mark; }

/* The CPU has no launch costs, so a graph always runs its body. */
bool device_graph_begin(DeviceGraph **graph) { return (void)graph, true; }
void device_graph_end(DeviceGraph **graph) { (void)graph; }
void device_graph_free(DeviceGraph **graph) { *graph = NULL; }

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Copies a buffer several times as large as any cache with all threads; the result is the best of a few copies. */
double memory_peak_gbytes(void) {
    enum { RUNS = 6, PIECE = 1 << 20, PIECES = 128 };
    size_t bytes = (size_t)PIECE * PIECES;
    char *from = device_malloc(bytes, "bandwidth measurement"), *to = device_malloc(bytes, "bandwidth measurement");
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        double start = seconds();
#pragma omp parallel for schedule(static)
        for (int i = 0; i < PIECES; i++) memcpy(to + (size_t)i * PIECE, from + (size_t)i * PIECE, PIECE);
        double rate = 2 * (double)bytes / (seconds() - start) / 1e9;
        if (rate > best) best = rate;
    }
    device_free(from);
    device_free(to);
    return best;
}

bool device_shares_cores(void) { return true; }

bool device_keeps(size_t bytes) { return (void)bytes, false; }

/* Four images of DeiT-tiny with 256 tokens make products run at full speed in float32, and a layer's activations then
 * stay in the second-level cache; with more than two threads, each has two images of its own.  In bfloat16 the numbers
 * are twice as large (docs/notebook/a-step.md). */
size_t activations_at_once(void) {
    size_t threads = (size_t)omp_get_max_threads(), images = threads < 2 ? 4 : threads > 16 ? 32 : 2 * threads;
    return images * (sizeof(float) / sizeof(real)) * 256 * 192;
}

void real_upload(real *device, const float *host, size_t n) { reals_round(device, host, n); }
void real_download(float *host, const real *device, size_t n) { reals_widen(host, device, n); }

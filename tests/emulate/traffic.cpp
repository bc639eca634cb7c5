/* What -fsanitize=thread makes a compiler call before loads and stores, as counters (traffic.h).  Nothing of
 * ThreadSanitizer itself is linked.  Compiled without the sanitizers, as this is called for every number. */
#include "tests/emulate/traffic.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/emulate/emulate.h"

enum { SECTOR = 32 };
enum Direction { READ, WRITE };

/* The launch and the block that touched a sector last, and which of its bytes that launch touched. */
struct Sector {
    uint32_t launch[2], bytes[2], block[2];
};

static uintptr_t memory;
static size_t memory_bytes;
static Sector *sectors; /* addresses that take no room until they are used */
static uint32_t launch;
static bool running;
static Traffic traffic;

void traffic_memory(const void *first, size_t bytes) {
    memory = (uintptr_t)first;
    memory_bytes = bytes;
}

bool traffic_counts() { return sectors != NULL; }

void traffic_begin() {
    launch++;
    traffic = {};
    running = true;
}

Traffic traffic_end() {
    running = false;
    return traffic;
}

static void table_make() {
    size_t bytes = memory_bytes / SECTOR * sizeof *sectors;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) emulate_fail("traffic", "no addresses for the table of sectors");
    sectors = static_cast<Sector *>(p);
}

static inline void touch(const void *p, size_t bytes, Direction d) {
    size_t at = (uintptr_t)p - memory;
    if (at >= memory_bytes || !running) return;
    if (!sectors) table_make();
    traffic.asked += bytes;
    while (bytes) {
        size_t offset = at % SECTOR, here = bytes < SECTOR - offset ? bytes : SECTOR - offset;
        Sector *s = &sectors[at / SECTOR];
        uint32_t mask = (here == SECTOR ? ~0u : (1u << here) - 1) << offset;
        if (s->launch[d] != launch) {
            s->launch[d] = launch;
            s->bytes[d] = 0;
        }
        traffic.floor += (size_t)__builtin_popcount(mask & ~s->bytes[d]);
        s->bytes[d] |= mask;
        if (s->block[d] != emulate_blocks_run) traffic.moved += SECTOR;
        s->block[d] = emulate_blocks_run;
        at += here;
        bytes -= here;
    }
}

extern "C" {

#define TOUCH(n)                                                                       \
    void __tsan_read##n(void *p) { touch(p, n, READ); }                                \
    void __tsan_write##n(void *p) { touch(p, n, WRITE); }                              \
    void __tsan_unaligned_read##n(void *p) { touch(p, n, READ); }                      \
    void __tsan_unaligned_write##n(void *p) { touch(p, n, WRITE); }
TOUCH(1)
TOUCH(2)
TOUCH(4)
TOUCH(8)
TOUCH(16)

void __tsan_read_range(void *p, unsigned long bytes) { touch(p, bytes, READ); }
void __tsan_write_range(void *p, unsigned long bytes) { touch(p, bytes, WRITE); }
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_init() {}
uint8_t __tsan_atomic8_load(const volatile uint8_t *p, int) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
}

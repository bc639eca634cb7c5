/* Counters in place of the functions that the compiler calls before loads and stores with -fsanitize=thread
 * (traffic.h).  ThreadSanitizer itself is not linked.  Compiled without the sanitizers, because it is called for every
 * load and store. */
#include "tests/emulate/traffic.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/emulate/emulate.h"

enum { SECTOR = 32 };
enum Direction { READ, WRITE };

/* For reads and writes: the last launch and block that accessed a sector, and the bytes that this launch accessed. */
struct Sector {
    uint32_t launch[2], bytes[2], block[2];
};

/* The last blocks that accessed two bytes. */
struct Touched {
    uint32_t writer, readers[2];
};

static uintptr_t memory;
static size_t memory_bytes;
static Sector *sectors; /* its pages take no memory until they are used */
static Touched *halves; /* likewise */
static uint32_t launch, launch_first; /* its first block */
static bool running;
static Traffic traffic;

void traffic_memory(const void *first, size_t bytes) {
    memory = (uintptr_t)first;
    memory_bytes = bytes;
}

bool traffic_counts() { return sectors != NULL; }

void traffic_begin() {
    launch++;
    launch_first = emulate_blocks_run + 1;
    traffic = {};
    running = true;
}

Traffic traffic_end() {
    running = false;
    return traffic;
}

template <typename T>
static T *table(size_t each) {
    size_t bytes = memory_bytes / each * sizeof(T);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) emulate_fail("traffic", "no addresses for a table of memory");
    return static_cast<T *>(p);
}

static bool is_other(uint32_t block) { return block >= launch_first && block != emulate_block_number; }

static inline void check_race(size_t at, size_t bytes, Direction d) {
    for (size_t i = at / 2; 2 * i < at + bytes; i++) {
        Touched *t = &halves[i];
        if (is_other(t->writer)) emulate_race(d == WRITE ? "write the same address" : "read what another writes");
        if (d == WRITE) {
            if (is_other(t->readers[0]) || is_other(t->readers[1])) emulate_race("write what another reads");
            t->writer = emulate_block_number;
        } else if (t->readers[0] != emulate_block_number) {
            t->readers[1] = t->readers[0];
            t->readers[0] = emulate_block_number;
        }
    }
}

static inline void touch(const void *p, size_t bytes, Direction d) {
    size_t at = (uintptr_t)p - memory;
    if (at >= memory_bytes || !running) return;
    if (!sectors) {
        sectors = table<Sector>(SECTOR);
        halves = table<Touched>(2);
    }
    check_race(at, bytes, d);
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
        if (s->block[d] != emulate_block_number) traffic.moved += SECTOR;
        s->block[d] = emulate_block_number;
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
void __tsan_init() { emulate_residents = 1; } /* one block after the other, so that its reads are known */
uint8_t __tsan_atomic8_load(const volatile uint8_t *p, int) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
}

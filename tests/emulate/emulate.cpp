/* The part of the emulator that accesses kernels' memory, and is therefore compiled with the sanitizers: copies and
 * loads of matrices. */
#include "tests/emulate/emulate.h"

#include <vector>

/* == Copies ======================================================================================================= */

struct Copy {
    void *to;
    const void *from;
    int group;
};
struct Copies {
    std::vector<Copy> pending;
    int groups;
};
static std::vector<Copies> copies;

void emulate_copies_reset(int first, int threads) {
    if (copies.size() < (size_t)(first + threads)) copies.resize((size_t)(first + threads));
    for (int i = first; i < first + threads; i++) copies[i].pending.clear();
}

bool emulate_copies_pending(int first, int threads) {
    for (int i = first; i < first + threads; i++)
        if (!copies[i].pending.empty()) return true;
    return false;
}

void copy_async_16(void *shared, const void *global) {
    Copies &mine = copies[emulate_current()];
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) emulate_fail("copy_async_16", "address not 16-byte aligned");
    memset(shared, 0xFF, 16);
    mine.pending.push_back({shared, global, mine.groups});
}

void copy_async_16_or_zero(void *shared, const void *global, bool valid) {
    alignas(16) static const unsigned char zeros[16] = {};
    copy_async_16(shared, valid ? global : zeros);
}

void copy_16(void *to, const void *from) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) emulate_fail("copy_16", "address not 16-byte aligned");
    memcpy(to, from, 16);
}

void copy_commit() { copies[emulate_current()].groups++; }

void emulate_copy_wait(int pending) {
    Copies &mine = copies[emulate_current()];
    size_t arrived = 0;
    for (; arrived < mine.pending.size() && mine.pending[arrived].group < mine.groups - pending; arrived++)
        memcpy(mine.pending[arrived].to, mine.pending[arrived].from, 16);
    mine.pending.erase(mine.pending.begin(), mine.pending.begin() + (ptrdiff_t)arrived);
}

/* Element i of a row of eight 16-bit elements begins at byte 2 i. */
void emulate_matrix_load(uint32_t *r, const void *row, bool transposed, const void *place) {
    if ((uintptr_t)row % 16) emulate_fail("matrix_load", "row not 16-byte aligned");
    const unsigned char *slots = emulate_exchange_all(&row, sizeof row, {__builtin_return_address(0), place});
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
            const uint16_t *from;
            memcpy(&from, slots + (8 * i + (transposed ? 2 * t + j : g)) * SLOT_BYTES, sizeof from);
            pair[j] = from[transposed ? g : 2 * t + j];
        }
        memcpy(&r[i], pair, sizeof r[i]);
    }
}

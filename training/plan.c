#include "training/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "kernels/kernels.h"

enum { PLAN_ALIGN = 64, PLAN_GUARD = 64 };

void plan_start(Plan *plan, bool training) {
    bool guarded = plan->guarded;
    memset(plan, 0, sizeof *plan);
    plan->training = training;
    plan->guarded = guarded;
}

static size_t room_for(const Plan *plan, size_t bytes) {
    return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN + (plan->guarded ? PLAN_GUARD : 0);
}

static void plan_add(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes, bool scratch) {
    plan->items = xgrow(plan->items, (size_t)plan->count + 1, &plan->room, sizeof *plan->items, "a plan of tensors");
    size_t *top = scratch ? &plan->scratch_top : &plan->keep_top;
    size_t *peak = scratch ? &plan->scratch_peak : &plan->keep_peak;
    PlanTensor *t = &plan->items[plan->count++];
    *t = (PlanTensor){.slot = slot, .bytes = bytes, .offset = *top, .scratch = scratch};
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    *top += room_for(plan, bytes);
    if (*top > *peak) *peak = *top;
}

void plan_keep(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes) {
    plan_add(plan, prefix, name, slot, bytes, false);
}

void plan_borrow(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes) {
    plan_add(plan, prefix, name, slot, bytes, true);
}

void plan_pair(Plan *plan, const char *prefix, const char *name, void *slot, void *gradient, size_t bytes) {
    char d_name[sizeof plan->items->name];
    snprintf(d_name, sizeof d_name, "d%s", name);
    plan_keep(plan, prefix, name, slot, bytes);
    if (plan->training) plan_borrow(plan, prefix, d_name, gradient, bytes);
}

void plan_spare(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes) {
    plan_add(plan, prefix, name, slot, 0, true);
    PlanTensor *t = &plan->items[plan->count - 1];
    t->spare = true;
    t->offset = plan->spare;
    t->bytes = bytes;
    plan->spare += room_for(plan, bytes);
}

void plan_without(Plan *plan, void *slot) {
    plan_add(plan, "", "", slot, 0, true);
    plan->items[plan->count - 1].absent = true;
}

void plan_alias(Plan *plan, void *slot, const void *original) {
    for (int i = 0; i < plan->count; i++) {
        if (plan->items[i].slot != original) continue;
        PlanTensor copy = plan->items[i];
        plan_add(plan, "", copy.name, slot, 0, copy.scratch);
        PlanTensor *t = &plan->items[plan->count - 1];
        t->offset = copy.offset;
        t->bytes = copy.bytes;
        return;
    }
    die("plan: alias of a tensor that was never planned");
}

void plan_workspace(Plan *plan, size_t bytes) {
    if (bytes > plan->workspace) plan->workspace = bytes;
}

PlanMark plan_mark(const Plan *plan) { return (PlanMark){plan->keep_top, plan->scratch_top, plan->count}; }

void plan_release(Plan *plan, PlanMark mark) {
    plan->scratch_top = mark.scratch_top;
    if (!plan->training) plan->keep_top = mark.keep_top;
}

void plan_reuse(Plan *plan, PlanMark mark) {
    for (int i = mark.count; i < plan->count; i++) plan->items[i].reused = true;
    plan->keep_top = mark.keep_top;
}

void plan_end_reuse(Plan *plan) {
    if (plan->training) plan->keep_top = plan->keep_peak;
}

size_t plan_bytes(const Plan *plan) {
    return plan->keep_peak + plan->scratch_peak + (plan->has_room ? plan->spare : 0);
}

/* Kept tensors, then scratch, then spare ones. */
static char *plan_address(const Plan *plan, const PlanTensor *t) {
    size_t before = t->spare ? plan->keep_peak + plan->scratch_peak : t->scratch ? plan->keep_peak : 0;
    return plan->memory + before + t->offset;
}

size_t plan_kept(const Plan *plan, const char *prefix) {
    size_t total = 0;
    for (int i = 0; i < plan->count; i++) {
        const PlanTensor *t = &plan->items[i];
        if (!t->scratch && !t->reused && !strncmp(t->name, prefix, strlen(prefix))) total += t->bytes;
    }
    return total;
}

static bool is_there(const Plan *plan, const PlanTensor *t) { return !t->absent && (!t->spare || plan->has_room); }

void plan_bind(Plan *plan, void *memory) {
    plan->memory = memory;
    for (int i = 0; i < plan->count; i++) {
        const PlanTensor *t = &plan->items[i];
        char *address = is_there(plan, t) ? plan_address(plan, t) : NULL;
        memcpy(t->slot, &address, sizeof address);
    }
    kernels_reserve(plan->workspace);
}

/* The guard of a tensor starts at its own last byte, so that a write one element too far is detected. */
void plan_poison(Plan *plan) {
    size_t bytes = plan_bytes(plan);
    char *poison = xcalloc(1, bytes, "poison");
    memset(poison, 0xFF, bytes); /* NaN in float, bf16 and half alike */
    device_upload(plan->memory, poison, bytes);
    device_uploads_used();
    free(poison);
}

/* Scratch and reused tensors overlap, so one layer's guard may lie inside another's tensor: only guards of kept and
 * spare tensors whose memory is not reused are checked. */
const char *plan_overrun(const Plan *plan) {
    unsigned char guard[PLAN_GUARD];
    if (!plan->guarded || !plan->training) return NULL;
    for (int i = 0; i < plan->count; i++) {
        const PlanTensor *t = &plan->items[i];
        if (!is_there(plan, t) || (t->scratch && !t->spare) || t->reused) continue;
        device_download(guard, plan_address(plan, t) + t->bytes, sizeof guard);
        for (size_t g = 0; g < sizeof guard; g++)
            if (guard[g] != 0xFF) return t->name;
    }
    return NULL;
}

void plan_free(Plan *plan) {
    free(plan->items);
    memset(plan, 0, sizeof *plan);
}

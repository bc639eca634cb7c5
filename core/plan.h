/* The activation arena, planned once before the first step.  Each layer names what it keeps for its backward pass and
 * what it borrows as scratch; binding the plan to memory fills the layers' pointers.  Scratch of different layers
 * overlaps always.  In inference nothing has to be kept, so a block's tensors end with the block: the model brackets it
 * with plan_mark and plan_release.  A model may have a training and an inference plan over the same memory. */
#ifndef VIT_CORE_PLAN_H
#define VIT_CORE_PLAN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char name[64];
    void *slot; /* address of the layer's pointer, whatever it points to */
    size_t offset, bytes;
    bool scratch;
    bool absent; /* plan_without */
    bool reused; /* others take its place before its backward pass, which makes it again */
} PlanTensor;

typedef struct {
    PlanTensor *items;
    int count, capacity;
    bool training;
    bool guarded; /* tests: guard words behind every tensor, and fresh memory is NaN */
    size_t keep_top, keep_peak, scratch_top, scratch_peak; /* bytes */
    size_t workspace;                                      /* bytes the kernels asked for */
    char *memory;
} Plan;

typedef struct {
    size_t keep_top, scratch_top;
    int count;
} PlanMark;

void plan_start(Plan *plan, bool training);

/* A tensor that lives until the backward pass of its layer (training) or the end of its block (inference).
 * slot is the address of the pointer to fill. */
void plan_keep(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes);

/* A tensor that lives until plan_release goes back behind it. */
void plan_borrow(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes);

/* The slot is NULL while this plan is in force: what a layer does only where the other plan has a tensor for it. */
void plan_without(Plan *plan, void *slot);

/* Another name for the tensor planned for `original`'s slot. */
void plan_alias(Plan *plan, void *slot, const void *original);

/* Workspace that a kernel said it needs (its *_workspace function); the largest wish counts. */
void plan_workspace(Plan *plan, size_t bytes);

/* plan_release ends the scratch borrowed since the mark, and in inference also what was kept since. */
PlanMark plan_mark(const Plan *plan);
void plan_release(Plan *plan, PlanMark mark);

/* What was kept since the mark makes room for what is kept next: its owner makes it again before its backward pass. */
void plan_reuse(Plan *plan, PlanMark mark);

/* Bytes of kept tensors and scratch together, without workspace. */
size_t plan_bytes(const Plan *plan);

/* Points every slot into `memory` (plan_bytes of it) and makes this the plan in force. */
void plan_bind(Plan *plan, void *memory);

/* Guarded plans: overwrites the guards and everything else with NaN; the first tensor whose guard has changed since. */
void plan_poison(Plan *plan);
const char *plan_overrun(const Plan *plan);

void plan_free(Plan *plan);

#endif

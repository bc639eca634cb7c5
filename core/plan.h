/* The activation arena, planned once before the first step.  Each layer names what it keeps for its backward pass and
 * what it borrows as scratch; plan_commit allocates once and fills the layers' pointers.  In inference nothing has to
 * be kept, so a block's tensors are released when the block is done: the caller brackets it with plan_mark and
 * plan_release.  Scratch of different layers overlaps always. */
#ifndef VIT_CORE_PLAN_H
#define VIT_CORE_PLAN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char name[64];
    void **slot;   /* the layer's pointer */
    size_t offset, bytes;
    bool scratch;
} PlanTensor;

typedef struct {
    PlanTensor *items;
    int count, capacity;
    bool training;
    size_t keep_top, keep_peak;       /* bytes */
    size_t scratch_top, scratch_peak; /* bytes */
    size_t workspace;                 /* bytes the kernels asked for */
    char *memory;                     /* device */
    bool guarded; /* tests: guard words between tensors, everything filled with NaN at commit */
} Plan;

typedef struct {
    size_t keep_top, scratch_top;
} PlanMark;

void plan_start(Plan *plan, bool training);

/* A tensor that lives until the backward pass of its layer (training) or the end of its block (inference). */
void plan_keep(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes);

/* A tensor that lives until plan_release goes back behind it. */
void plan_borrow(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes);

/* Backend workspace that a kernel said it needs (its *_workspace function); the largest wish counts. */
void plan_workspace(Plan *plan, size_t bytes);

PlanMark plan_mark(const Plan *plan);
/* Ends the scratch borrowed since the mark; in inference also what was kept since. */
void plan_release(Plan *plan, PlanMark mark);

/* Allocates and fills every slot.  Dies with the number of bytes when the device has not enough. */
void plan_commit(Plan *plan);

/* Activation bytes of the plan, workspace included. */
size_t plan_bytes(const Plan *plan);

/* guarded plans: the name of the first tensor whose guard words were overwritten, or NULL. */
const char *plan_overrun(const Plan *plan);

void plan_free(Plan *plan);

#endif

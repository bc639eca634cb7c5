/* The activation arena, planned once before the first step.  Each layer declares the tensors that it keeps for its
 * backward pass and those that it needs as scratch; plan_bind sets the layers' pointers.  Scratch of different layers
 * shares memory.  In inference nothing is kept for a backward pass, so a block's tensors live only until the block
 * ends: the model brackets it with plan_mark and plan_release.  A training and an inference plan may share the same
 * memory. */
#ifndef VIT_TRAINING_PLAN_H
#define VIT_TRAINING_PLAN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char name[64];
    void *slot; /* address of the layer's pointer, of any pointer type */
    size_t offset, bytes;
    bool scratch;
    bool absent; /* declared by plan_without */
    bool reused; /* its memory is reused before its backward pass, which recomputes it */
    bool spare;  /* planned by plan_spare */
} PlanTensor;

typedef struct {
    PlanTensor *items;
    int count;
    size_t room; /* of items */
    bool training;
    bool guarded; /* for tests: guard words after every tensor, and new memory is filled with NaN */
    size_t keep_top, keep_peak, scratch_top, scratch_peak; /* bytes */
    size_t spare;  /* for the tensors of plan_spare */
    bool has_room; /* set between planning and plan_bytes: the spare tensors have memory */
    size_t workspace;                                      /* bytes that the kernels need */
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

/* A scratch tensor, which lives until plan_release is called with an earlier mark. */
void plan_borrow(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes);

/* A kept tensor and, in training, scratch of the same size for its gradient, whose name has a d in front. */
void plan_pair(Plan *plan, const char *prefix, const char *name, void *slot, void *gradient, size_t bytes);

/* A tensor of a training plan that lives as long as plan_keep's if the plan has_room; if not, the slot is NULL and its
 * owner computes the tensor again. */
void plan_spare(Plan *plan, const char *prefix, const char *name, void *slot, size_t bytes);

/* Makes the slot NULL while this plan is bound, for a tensor that only the other of two plans has. */
void plan_without(Plan *plan, void *slot);

/* Makes `slot` a second pointer to the tensor planned for the slot `original`. */
void plan_alias(Plan *plan, void *slot, const void *original);

/* Requires workspace for a kernel (the result of its *_workspace function); the maximum is kept. */
void plan_workspace(Plan *plan, size_t bytes);

/* plan_release frees the scratch borrowed since the mark, and in inference also the tensors kept since then. */
PlanMark plan_mark(const Plan *plan);
void plan_release(Plan *plan, PlanMark mark);

/* Lets the next kept tensors reuse the memory of those kept since the mark, which their owner recomputes before its
 * backward pass (activation checkpointing). */
void plan_reuse(Plan *plan, PlanMark mark);

/* What is kept from here on has memory of its own again. */
void plan_end_reuse(Plan *plan);

/* Bytes of kept tensors and scratch together, and if has_room is set of the spare ones, without workspace. */
size_t plan_bytes(const Plan *plan);

/* Bytes of the kept tensors whose names begin with that prefix, without those that are recomputed. */
size_t plan_kept(const Plan *plan, const char *prefix);

/* Points every slot into `memory`, which has plan_bytes bytes, which makes this the current plan. */
void plan_bind(Plan *plan, void *memory);

/* For guarded plans: plan_poison sets the guards and fills the tensors with NaN; plan_overrun returns the name of the
 * first tensor whose guard has been overwritten since, or NULL. */
void plan_poison(Plan *plan);
const char *plan_overrun(const Plan *plan);

void plan_free(Plan *plan);

#endif

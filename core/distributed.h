/* Several processes training one model.  MPI starts them (mpirun, or srun) and carries what is small; gradients travel
 * through kernels.h.  Without a launcher, and in a build without MPI, there is one rank and every function below does
 * the obvious at no cost. */
#ifndef VIT_CORE_DISTRIBUTED_H
#define VIT_CORE_DISTRIBUTED_H

#include <stdbool.h>
#include <stddef.h>

/* Reads from the environment what the launcher started, so that messages come from the right rank.  First of all
 * calls.  From here on a rank that dies (core/die.h) ends all of them; of ranks that fail alike one speaks. */
void distributed_begin(void);

/* Starts MPI where a launcher started this process, and waits for all ranks: where one has failed before, or has other
 * `settings` than rank 0 (one setting a line, "name value"; the program itself is compared too), all end, and the first
 * rank of those with the same trouble says what it is.  Then the lifeline: a connection of every rank to rank 0 that
 * breaks when a process dies or a machine falls silent for half a minute.  The others then say so and end.
 * Once a process, after kernels_init. */
void distributed_open(const char *settings);

/* Every rank is done. */
void distributed_close(void);

/* Did mpirun, srun or another launcher start this process? */
bool distributed_launched(void);

int distributed_rank(void);
int distributed_ranks(void);
/* This rank's number among those of its machine: which GPU is its own. */
int distributed_local_rank(void);
/* How many ranks of this machine may run on the same cores as this one. */
int distributed_core_share(void);

/* What a rank says after "rank 3 has died": how to go on.  Kept, not copied. */
void distributed_last_words(const char *text);

/* Sums over all ranks, in place, the same bits everywhere.  values [count] on the host. */
void distributed_sum(double *values, int count);
/* True on every rank when it is true on one. */
bool distributed_any(bool condition);
/* True when all ranks have the same number. */
bool distributed_agree(double value);
/* Rank 0's bytes to everybody. */
void distributed_broadcast(void *data, size_t bytes);

#endif

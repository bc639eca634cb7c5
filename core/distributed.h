/* Several processes training one model.  mpirun or srun starts them, and MPI carries small data; gradients are summed
 * by the functions in kernels.h.  Without a launcher, and in a build without MPI, there is one rank and every function
 * below returns at once with the result for one rank. */
#ifndef VIT_CORE_DISTRIBUTED_H
#define VIT_CORE_DISTRIBUTED_H

#include <stdbool.h>
#include <stddef.h>

/* Reads rank and number of ranks from the launcher's environment variables, so that messages can name the rank.  Must
 * be called first.  From here on a rank that dies (core/die.h) ends all ranks; if several ranks fail with the same
 * message, only one prints it. */
void distributed_begin(void);

/* Initialises MPI if a launcher started this process, and waits for all ranks.  If one has failed already, or its
 * `settings` (one per line, "name value") or its program differ from rank 0's, all ranks end, and the lowest rank with
 * that error prints it.  Then opens the lifeline: a connection from every rank to rank 0 that breaks when a process
 * dies or a machine does not respond for half a minute; the other ranks then report that and end.
 * Call once per process, after kernels_init. */
void distributed_open(const char *settings);

/* Waits until every rank is done and shuts MPI down. */
void distributed_close(void);

/* Did mpirun, srun or another launcher start this process? */
bool distributed_launched(void);

int distributed_rank(void);
int distributed_ranks(void);
/* This rank's index among the ranks on its machine; it decides which GPU the rank uses. */
int distributed_local_rank(void);
/* How many ranks on this machine, this one included, may run on the same cores as this one. */
int distributed_core_share(void);

/* Advice that is printed after "rank 3 has died": how to continue.  `text` is not copied and must stay valid. */
void distributed_last_words(const char *text);

/* Sums values [count], in host memory, over all ranks, in place.  Every rank gets the same bits. */
void distributed_sum(double *values, size_t count);
/* True on every rank if `condition` is true on at least one. */
bool distributed_any(bool condition);
/* True if all ranks pass the same value, or values that differ by no more than this share of the largest. */
bool distributed_agree(double value, double share);
/* Counts the ranks by the word that they pass, of at most 31 characters: "AVX2 on 1, AVX-512 on 3", in the order of
 * ranks, to be freed.  NULL if all passed the same word. */
char *distributed_tally(const char *word);
/* Copies rank 0's bytes to all ranks. */
void distributed_broadcast(void *data, size_t bytes);
/* The bytes of all ranks in the order of ranks, *total of them, to be freed. */
void *distributed_gather(const void *own, size_t bytes, size_t *total);

#endif

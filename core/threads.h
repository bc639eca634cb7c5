/* The number of threads, which the OpenMP library takes from the environment. */
#ifndef VIT_CORE_THREADS_H
#define VIT_CORE_THREADS_H

/* Ends the program (die_usage) if OMP_NUM_THREADS or OMP_THREAD_LIMIT is no number of threads that can run.  The library
 * cuts larger numbers off to 32 bits or fails in the midst of the work, and ignores words. */
void threads_check(void);

#endif

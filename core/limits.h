/* Settings of the shell that could end a program without a message: limits (ulimit), and the number of threads, which
 * the OpenMP library reads from the environment. */
#ifndef VIT_CORE_LIMITS_H
#define VIT_CORE_LIMITS_H

/* Must be the first call in main, whose caller's frame must be small.  From here on, writing to a file that would
 * outgrow `ulimit -f` is an ordinary error of that write (EFBIG).  A stack of less than 256 KiB (`ulimit -s`) is
 * raised, and the program started again, since threads get the size that was in force at its start; where that is not
 * allowed, it ends with a line that says so. */
void limits_open(char **argv);

/* Ends the program (die_usage) if OMP_NUM_THREADS or OMP_THREAD_LIMIT is no number of threads that can run.  The
 * library truncates larger numbers to 32 bits or fails in the middle of the work, and it ignores words. */
void threads_check(void);

#endif

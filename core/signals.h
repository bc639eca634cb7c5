/* How a person, or a batch system, asks a run to stop: SIGINT, SIGTERM, SIGHUP (the terminal is gone) or SIGUSR1 (what
 * mpirun passes on and Slurm's --signal sends).  The run saves and ends; a second signal ends it at once.
 *
 * A thread waits for them and no handler runs: some matrix products of oneDNN 2.6 use the stack pointer for their data,
 * and a handler's frame would be written into the middle of the heap. */
#ifndef VIT_CORE_SIGNALS_H
#define VIT_CORE_SIGNALS_H

#include <stdatomic.h>

/* The signal that came, or 0. */
extern atomic_int stop_signal;

/* From here on signals come to the waiting thread, and end the process as ever.  Before any other thread is started.
 * A reader that goes away no longer ends the process. */
void signals_open(void);

/* From here on the first one is noted in stop_signal. */
void catch_signals(void);

/* "SIGTERM"; of a signal that came to another rank this one only knows that. */
const char *stop_signal_name(void);

#endif

/* The signals by which a person or a batch system stops a run: SIGINT, SIGTERM, SIGHUP (the terminal was closed) or
 * SIGUSR1 (which mpirun forwards and Slurm's --signal sends).  The run saves and ends; a second signal other
 * than SIGHUP ends it at once.
 *
 * A thread waits for the signals (sigwait) instead of a handler: some matrix products of oneDNN 2.6 use the stack
 * pointer register for data, so the frame of a handler would overwrite the heap. */
#ifndef VIT_CORE_SIGNALS_H
#define VIT_CORE_SIGNALS_H

#include <stdatomic.h>

/* The number of the signal that was received, or 0. */
extern atomic_int stop_signal;

/* Starts the thread that receives the signals; they still end the process.  Call before any other thread is started.
 * Also ignores SIGPIPE: writing to a pipe without a reader becomes an ordinary error. */
void signals_open(void);

/* From here on the first signal does not end the process but is stored in stop_signal.  Call it before the first file
 * of the work that is to be saved is created. */
void catch_signals(void);

/* The signal's name, "SIGTERM"; if another rank received it, a text that says so. */
const char *stop_signal_name(void);

#endif

/* How a person, or a batch system, asks a run to stop: SIGINT, SIGTERM, SIGHUP (the terminal is gone) or SIGUSR1 (what
 * mpirun passes on and Slurm's --signal sends).  The run saves and ends; a second signal ends it at once. */
#ifndef VIT_CORE_SIGNALS_H
#define VIT_CORE_SIGNALS_H

#include <signal.h>

/* The signal that came, or 0. */
extern volatile sig_atomic_t stop_signal;

void catch_signals(void);

/* "SIGTERM"; of a signal that came to another rank this one only knows that. */
const char *stop_signal_name(void);

#endif

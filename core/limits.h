/* The limits that a shell sets (ulimit) and that would end a program without a word. */
#ifndef VIT_CORE_LIMITS_H
#define VIT_CORE_LIMITS_H

/* Must be the first call in main, whose caller's frame must be small.  From here on, writing to a file that would outgrow
 * `ulimit -f` is an ordinary error of that write (EFBIG).  A stack of less than 256 KiB (`ulimit -s`) is raised, and the
 * program started again, since threads get the size that was in force at its start; where that is not allowed, it ends
 * with a line that says so. */
void limits_open(char **argv);

#endif

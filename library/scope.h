/* The memory of one call of the library.  Every allocation of the library's own code passes here (the linker's --wrap,
 * make/library.mk): what a call has allocated when it fails is freed, wherever in the code it failed.
 *
 * A scope belongs to the thread that began it; allocations of other threads are not recorded. */
#ifndef VIT_LIBRARY_SCOPE_H
#define VIT_LIBRARY_SCOPE_H

#include <stdbool.h>

/* Begins to record. */
void scope_begin(void);

/* Ends it.  failed: frees what was allocated since scope_begin and is still there. */
void scope_end(bool failed);

/* begins: what is allocated from here on is of the process (memory_shared_begin in core/die.h); else no longer. */
void scope_share(bool begins);

#endif

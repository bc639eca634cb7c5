/* jansson does not survive a failed allocation: it loses characters of texts, or an assertion ends the process.  While
 * this is in force, what jansson needs on this thread comes from malloc and a failure dies (core/die.h), so that nobody
 * has to check for it.  Other threads go on as before: around a library they may belong to another user of jansson. */
#ifndef VIT_CORE_JSON_MEMORY_H
#define VIT_CORE_JSON_MEMORY_H

/* Puts this in force.  A program calls it once. */
void json_memory_begin(void);

/* Ends it.  Values of jansson that were made in between must have been freed. */
void json_memory_end(void);

#endif

/* jansson does not survive a failed allocation: it loses characters of texts, or an assertion ends the process.  While
 * this is in force, what jansson needs on this thread comes from malloc and a failure dies (core/die.h), so that nobody
 * has to check for it.  Other threads, which in a library may be of another user of jansson, go on as before. */
#ifndef VIT_CORE_JSON_MEMORY_H
#define VIT_CORE_JSON_MEMORY_H

/* From here on: programs call it once. */
void json_memory_begin(void);

/* No longer.  Values of jansson that were made in between must be gone. */
void json_memory_end(void);

#endif

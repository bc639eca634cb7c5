/* Values of jansson that cannot fail: texts are made valid UTF-8 and numbers that are not finite become null
 * (core/json_memory.h for memory). */
#ifndef VIT_CORE_JSON_MAKE_H
#define VIT_CORE_JSON_MAKE_H

#include <jansson.h>

json_t *json_text_of(const char *text);
json_t *json_number_of(double x);

/* Both take ownership of `value`; NULL ends the program. */
void json_put(json_t *object, const char *key, json_t *value);
void json_add(json_t *array, json_t *value);

#endif

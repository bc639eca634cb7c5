#include "core/json_make.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/text.h"

json_t *json_text_of(const char *text) {
    char *valid = xstrdup(text);
    text_make_utf8(valid);
    json_t *string = json_string(valid);
    free(valid);
    return string;
}

json_t *json_number_of(double x) { return isfinite(x) ? json_real(x) : json_null(); }

void json_put(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) die("JSON: no value for '%s'", key);
}

void json_add(json_t *array, json_t *value) {
    if (json_array_append_new(array, value) != 0) die("JSON: no value for a list");
}

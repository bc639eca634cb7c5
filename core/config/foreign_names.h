/* Names of settings that users of other tools type, and what they mean here. */
#ifndef VIT_CORE_CONFIG_FOREIGN_NAMES_H
#define VIT_CORE_CONFIG_FOREIGN_NAMES_H

#include "core/config/config.h"

/* If `name` (dashes count as underscores) is the name of a setting elsewhere and `config` has a setting that does the
 * same, *setting is that setting's name.  Else *setting is NULL, and the result is a sentence for the user, or NULL if
 * the name is unknown here too. */
const char *foreign_name(const Config *config, const char *name, const char **setting);

/* The names with meaning i of the table, with spaces between them, NULL behind the last; for the test that tries
 * all. */
const char *foreign_names_at(int i);

#endif

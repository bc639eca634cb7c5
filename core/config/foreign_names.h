/* Names of settings that users of other tools type, and what they mean here. */
#ifndef VIT_CORE_CONFIG_FOREIGN_NAMES_H
#define VIT_CORE_CONFIG_FOREIGN_NAMES_H

#include "core/config/config.h"

/* `name` may be the name of a setting in another tool (dashes count as underscores).  If `config` has a setting that
 * does the same, *setting is its name.  Otherwise *setting is NULL, and the result is a sentence for the user, or NULL
 * if the name is unknown. */
const char *foreign_name(const Config *config, const char *name, const char **setting);

/* The names with meaning i of the table, with spaces between them, NULL behind the last; for the test that tries
 * all. */
const char *foreign_names_at(int i);

#endif

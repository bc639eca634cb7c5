/* Creates models for tests from settings, in the same way as the programs. */
#ifndef VIT_TESTS_SETTINGS_H
#define VIT_TESTS_SETTINGS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/config/config.h"
#include "core/safetensors.h"

static inline void settings_put(Config *config, const char *name, const char *value) {
    Error error;
    if (!config_try_set(config, name, value, "test", &error)) fail_msg("%s", error.text);
}

/* Reads lines of the form "name = value". */
static inline void settings_read(Config *config, const char *text) {
    Error error;
    if (!config_try_text(config, text, strlen(text), "test", &error)) fail_msg("%s", error.text);
}

/* Reads those settings of this config that are in a fixture's metadata. */
static inline void settings_of_fixture(Config *config, const SafeTensors *file) {
    for (int i = 0; i < config->count; i++) {
        const char *value = safetensors_metadata(file, config_name(config, i));
        if (value) settings_put(config, config_name(config, i), value);
    }
}

#endif

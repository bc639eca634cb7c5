/* libFuzzer target: settings from a text, or if the first byte is '-' from arguments, one in each line.  They must be
 * rejected with a message or accepted, and accepted settings must be the same after saving and reading them. */
#include "core/config/config.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int img_size[2], batch_size, pool;
    float lr, mean;
    bool relative, describe;
    const char *data, *out;
    uint64_t seed;
    ConfigInts dims;
    ConfigFloats ratios;
    ConfigItems operators;
    ConfigList predict;
} Settings;

typedef struct {
    const char *name;
} Operator;
static const void *const operators[] = {&(const Operator){"softmax"}, &(const Operator){"ripple"}, NULL};

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(STRING, Settings, out), .command_line_only = true, .section = "modes", .help = "file"},
    {CONFIG_FIELD(BOOL, Settings, describe), .command_line_only = true, .help = "switch"},
    {CONFIG_FIELD(LIST, Settings, predict), .command_line_only = true, .help = "list"},
    {CONFIG_FIELD(STRING, Settings, data), .section = "data", .help = "text"},
    {CONFIG_FIELD(SIZE, Settings, img_size), "224", .min = 1, .max = 4096, .help = "size"},
    {CONFIG_FIELD(CHOICE, Settings, pool), "cls", CONFIG_CHOICES("cls", "gap"), .section = "model", .help = "choice"},
    {CONFIG_FIELD(INTS, Settings, dims), "64,128", .min = 1, .max = 4096, .help = "integers"},
    {CONFIG_FIELD(FLOATS, Settings, ratios), "4", .help = "numbers"},
    {CONFIG_FIELD(ITEMS, Settings, operators), "ripple", .table = operators, .help = "names"},
    {CONFIG_FIELD(BOOL, Settings, relative), "true", .help = "bool"},
    {CONFIG_FIELD(INT, Settings, batch_size), "64", .min = 1, .max = 65536, .section = "training", .help = "integer"},
    {CONFIG_FIELD(FLOAT, Settings, lr), "1e-3", .min = 0, .max = 0.1, .help = "bounded number"},
    {CONFIG_FIELD(FLOAT, Settings, mean), "0.5", .help = "any number"},
    {CONFIG_FIELD(UINT64, Settings, seed), "1", .help = "seed"},
};
static const ConfigGroup group = {CONFIG_GROUP(Settings, entries), .change = CHANGE_FREELY};

static bool read_arguments(Config *config, char *text, Error *error) {
    char *argv[64] = {"fuzz"};
    int argc = 1;
    for (char *line = strtok(text, "\n"); line && argc < 64; line = strtok(NULL, "\n")) argv[argc++] = line;
    return config_try_arguments(config, argc, argv, error);
}

static void check_round_trip(const Config *config) {
    Config copy;
    Error error;
    char *saved = config_text(config);
    config_init(&copy, NULL);
    const Settings *read = config_add(&copy, &group);
    if (!config_try_text(&copy, saved, strlen(saved), "saved", &error)) abort();
    char *again = config_text(&copy);
    const Settings *s = config_settings(config, &group);
    if (strcmp(saved, again) || strcmp(s->data, read->data)) abort();
    if (memcmp(&s->mean, &read->mean, sizeof s->mean) || memcmp(&s->lr, &read->lr, sizeof s->lr)) abort();
    free(saved);
    free(again);
    config_free(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    Config config;
    Error error = {0};
    config_init(&config, NULL);
    config_add(&config, &group);
    char *text = malloc(size + 1);
    memcpy(text, bytes, size);
    text[size] = 0;
    bool ok = size && *bytes == '-' ? read_arguments(&config, text, &error)
                                    : config_try_text(&config, (const char *)bytes, size, "fuzz", &error);
    if (!ok && !*error.text) abort();
    if (ok) check_round_trip(&config);
    config_free(&config);
    free(text);
    return 0;
}

/* Texts about one setting: its possible values, its current value, its place and its meaning. */
#include "core/config/config_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/text_stream.h"

/* == Choices ==================================================================================================== */

int config_choice_count(const ConfigEntry *entry) {
    if (entry->type == CONFIG_CHOICE) return entry->choice_count;
    int count = 0;
    for (int i = 0; entry->table[i]; i++) count += !entry->offers || entry->offers(entry->table[i]);
    return count;
}

const void *config_item_at(const ConfigEntry *entry, int i) {
    const void *const *item = entry->table;
    for (;; item++) {
        if (entry->offers && !entry->offers(*item)) continue;
        if (i-- == 0) return *item;
    }
}

const char *config_choice_name(const ConfigEntry *entry, int i) {
    if (entry->type == CONFIG_CHOICE) return entry->choices ? entry->choices[i] : entry->about[i].name;
    return *(const char *const *)config_item_at(entry, i);
}

const ConfigChoice *config_choice(const ConfigEntry *entry, int i) {
    return entry->type == CONFIG_CHOICE ? &entry->about[i] : config_item_at(entry, i);
}

/* == Values as text ============================================================================================= */

static void put_range(FILE *out, const ConfigEntry *entry) {
    double min = entry->min, max = entry->max;
    if (min == 0 && max == 0) return;
    bool several = entry->type == CONFIG_SIZE || entry->type == CONFIG_INTS || entry->type == CONFIG_FLOATS;
    const char *each = several ? ", each" : "";
    if (isinf(max)) fprintf(out, "%s at least %.9g", each, min);
    else if (isinf(min)) fprintf(out, "%s at most %.9g", each, max);
    else fprintf(out, "%s from %.9g to %.9g", each, min, max);
}

const ConfigTypeWords config_types[] = {
    [CONFIG_INT] = {"an ", "integer", "N"},
    [CONFIG_UINT64] = {"a ", "non-negative integer", "N"},
    [CONFIG_FLOAT] = {"a ", "number", "X"},
    [CONFIG_BOOL] = {"", "true or false", ""},
    [CONFIG_STRING] = {"", "text", "TEXT"},
    [CONFIG_CHOICE] = {"", NULL, "NAME"},
    [CONFIG_ITEM] = {"", NULL, "NAME"},
    [CONFIG_ITEMS] = {"", NULL, "NAME,..."},
    [CONFIG_SIZE] = {"", "N or HxW", "HxW"},
    [CONFIG_INTS] = {"an ", "integer or N,N,...", "N,..."},
    [CONFIG_FLOATS] = {"a ", "number or X,X,...", "X,..."},
    [CONFIG_LIST] = {"", "one or more", "TEXT..."},
};

static void put_values(FILE *out, const ConfigEntry *entry) {
    const char *values = config_types[entry->type].values;
    if (!values) {
        int count = config_choice_count(entry);
        for (int i = 0; i < count; i++)
            fprintf(out, "%s%s", i == 0 ? "" : i == count - 1 ? " or " : ", ", config_choice_name(entry, i));
        return;
    }
    fputs(values, out);
    put_range(out, entry);
}

char *config_values_text(const ConfigEntry *entry) {
    TextStream text;
    FILE *out = text_open(&text);
    put_values(out, entry);
    return text_close(&text, "the text of a setting");
}

/* The shortest decimal text that reads back as the same float, without an exponent if that stays short. */
static void put_float(FILE *out, float value) {
    char text[32];
    double size = fabs((double)value);
    int digits = size >= 1 && size < 1e7 ? (int)log10(size) + 1 : 1;
    do snprintf(text, sizeof text, "%.*g", digits++, (double)value);
    while (digits <= 9 && strtof(text, NULL) != value);
    fputs(text, out);
}

static void put_current(FILE *out, const struct ConfigSetting *setting) {
    const ConfigEntry *entry = setting->entry;
    const void *field = setting->field;
    switch (entry->type) {
    case CONFIG_INT: fprintf(out, "%d", *(const int *)field); break;
    case CONFIG_UINT64: fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)field); break;
    case CONFIG_FLOAT: put_float(out, *(const float *)field); break;
    case CONFIG_BOOL: fputs(*(const bool *)field ? "true" : "false", out); break;
    case CONFIG_STRING: fputs(*(const char *const *)field, out); break;
    case CONFIG_CHOICE: fputs(config_choice_name(entry, *(const int *)field), out); break;
    case CONFIG_ITEM: fputs(**(const char *const *const *)field, out); break;
    case CONFIG_ITEMS: {
        const ConfigItems *items = field;
        for (int i = 0; i < items->count; i++) fprintf(out, i ? ",%s" : "%s", *(const char *const *)items->at[i]);
        break;
    }
    case CONFIG_SIZE: {
        const int *size = field;
        fprintf(out, size[0] == size[1] ? "%d" : "%dx%d", size[0], size[1]);
        break;
    }
    case CONFIG_INTS: {
        const ConfigInts *numbers = field;
        for (int i = 0; i < numbers->count; i++) fprintf(out, i ? ",%d" : "%d", numbers->at[i]);
        break;
    }
    case CONFIG_FLOATS: {
        const ConfigFloats *numbers = field;
        for (int i = 0; i < numbers->count; i++) {
            if (i) fputc(',', out);
            put_float(out, numbers->at[i]);
        }
        break;
    }
    case CONFIG_LIST: {
        const ConfigList *list = field;
        for (int i = 0; i < list->count; i++) fprintf(out, i ? " %s" : "%s", list->items[i]);
        break;
    }
    }
}

char *config_current_text(const struct ConfigSetting *setting) {
    TextStream text;
    FILE *out = text_open(&text);
    put_current(out, setting);
    return text_close(&text, "the text of a setting");
}

/* == Output from the table ====================================================================================== */

void config_put_wrapped(FILE *out, const char *text, int column, const char *lead) {
    bool fresh = true;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (!fresh && column + 1 + length > CONFIG_WIDTH) {
            fprintf(out, "\n%s", lead);
            column = (int)strlen(lead);
            fresh = true;
        }
        column += fprintf(out, "%s%.*s", fresh ? "" : " ", length, text);
        fresh = false;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void config_put_meaning(FILE *out, const struct ConfigSetting *setting, const char *lead, int column) {
    const ConfigEntry *entry = setting->entry;
    const char *initial = setting->initial;
    char *values = config_values_text(entry);
    TextStream text;
    FILE *line = text_open(&text);
    bool plain = entry->type == CONFIG_STRING || entry->type == CONFIG_LIST;
    fputs(setting->help, line);
    if (!(entry->command_line_only && entry->type == CONFIG_BOOL) && !(plain && !*initial))
        fprintf(line, " (%s%s%s%s)", plain ? "" : values, !plain && *initial ? "; " : "", *initial ? "default " : "",
                initial);
    char *meaning = text_close(&text, "the help");
    config_put_wrapped(out, meaning, column, lead);
    free(values);
    free(meaning);
}

/* == Names ====================================================================================================== */

bool config_is_name(const char *argument) { return !strncmp(argument, "--", 2) || !strcmp(argument, "-h"); }

void config_label(const char *origin, const char *name, char *label, size_t size) {
    bool named = !origin || config_is_name(origin);
    snprintf(label, size, "%s%s%s", origin ? origin : "", named ? "" : ": ", origin && named ? "" : name);
}

void config_put_flag(FILE *out, const char *name) {
    fputs("--", out);
    for (; *name; name++) fputc(*name == '_' ? '-' : *name, out);
}

#include "core/config_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"

enum { WIDTH = 100, HELP_COLUMN = 30 };

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
    return entry->type == CONFIG_CHOICE ? entry->choices[i] : *(const char *const *)config_item_at(entry, i);
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

static void put_values(FILE *out, const ConfigEntry *entry) {
    static const char *const words[] = {[CONFIG_INT] = "integer", [CONFIG_UINT64] = "non-negative integer",
                                        [CONFIG_FLOAT] = "number", [CONFIG_BOOL] = "true or false",
                                        [CONFIG_STRING] = "text", [CONFIG_SIZE] = "N or HxW",
                                        [CONFIG_INTS] = "integer or N,N,...",
                                        [CONFIG_FLOATS] = "number or X,X,...", [CONFIG_LIST] = "one or more"};
    if (entry->type == CONFIG_CHOICE || entry->type == CONFIG_ITEM || entry->type == CONFIG_ITEMS) {
        int count = config_choice_count(entry);
        for (int i = 0; i < count; i++)
            fprintf(out, "%s%s", i == 0 ? "" : i == count - 1 ? " or " : ", ", config_choice_name(entry, i));
        return;
    }
    fputs(words[entry->type], out);
    put_range(out, entry);
}

static FILE *open_text(char **text, size_t *size) {
    *text = NULL;
    FILE *out = open_memstream(text, size);
    if (!out) die("out of memory for the text of a setting");
    return out;
}

/* Dies if memory ran out while writing to an open_memstream stream: its text would be incomplete or NULL. */
static void close_text(FILE *out, char *const *text, const char *what) {
    bool lost = ferror(out);
    if (fclose(out) || lost || !*text) die("out of memory for %s", what);
}

char *config_values_text(const ConfigEntry *entry) {
    char *text;
    size_t size;
    FILE *out = open_text(&text, &size);
    put_values(out, entry);
    close_text(out, &text, "the text of a setting");
    return text;
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

static void put_current(FILE *out, const struct ConfigItem *item) {
    const ConfigEntry *entry = item->entry;
    const void *field = item->field;
    switch (entry->type) {
    case CONFIG_INT: fprintf(out, "%d", *(const int *)field); break;
    case CONFIG_UINT64: fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)field); break;
    case CONFIG_FLOAT: put_float(out, *(const float *)field); break;
    case CONFIG_BOOL: fputs(*(const bool *)field ? "true" : "false", out); break;
    case CONFIG_STRING: fputs(*(const char *const *)field, out); break;
    case CONFIG_CHOICE: fputs(entry->choices[*(const int *)field], out); break;
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

char *config_current_text(const struct ConfigItem *item) {
    char *text;
    size_t size;
    FILE *out = open_text(&text, &size);
    put_current(out, item);
    close_text(out, &text, "the text of a setting");
    return text;
}

/* == Output from the table ====================================================================================== */

/* Prints `text`, starting in column `column`, wrapped to WIDTH characters; further lines begin with `lead`. */
static void put_wrapped(FILE *out, const char *text, int column, const char *lead) {
    bool fresh = true;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (!fresh && column + 1 + length > WIDTH) {
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

/* "width of a token (integer from 1 to 4096; default 192)".  Nothing is added for a bool. */
static void put_meaning(FILE *out, const struct ConfigItem *item, const char *lead, int column) {
    const ConfigEntry *entry = item->entry;
    const char *initial = item->initial;
    char *text, *values = config_values_text(entry);
    size_t size;
    FILE *line = open_text(&text, &size);
    bool plain = entry->type == CONFIG_STRING || entry->type == CONFIG_LIST;
    fputs(item->help, line);
    if (!(entry->command_line_only && entry->type == CONFIG_BOOL) && !(plain && !*initial))
        fprintf(line, " (%s%s%s%s)", plain ? "" : values, !plain && *initial ? "; " : "", *initial ? "default " : "",
                initial);
    close_text(line, &text, "the help");
    put_wrapped(out, text, column, lead);
    free(values);
    free(text);
}

static const char *placeholder(const ConfigEntry *entry) {
    static const char *const words[] = {[CONFIG_INT] = "N",      [CONFIG_UINT64] = "N",    [CONFIG_FLOAT] = "X",
                                        [CONFIG_BOOL] = "",      [CONFIG_STRING] = "TEXT", [CONFIG_CHOICE] = "NAME",
                                        [CONFIG_ITEM] = "NAME",  [CONFIG_ITEMS] = "NAME,...",
                                        [CONFIG_SIZE] = "HxW",   [CONFIG_INTS] = "N,...",
                                        [CONFIG_FLOATS] = "X,...", [CONFIG_LIST] = "TEXT..."};
    return entry->argument ? entry->argument : words[entry->type];
}

/* "--img-size HxW" */
static int put_option(FILE *out, const ConfigEntry *entry) {
    const char *argument = placeholder(entry);
    int used = fprintf(out, "--");
    for (const char *c = entry->name; *c; c++, used++) fputc(*c == '_' ? '-' : *c, out);
    return used + fprintf(out, "%s%s", *argument ? " " : "", argument);
}

/* Is a heading printed before setting i, if `before` is the previous setting in use (-1: none)? */
static bool begins_section(const Config *config, int before, int i) {
    if (before < 0) return true;
    const struct ConfigItem *a = &config->items[before], *b = &config->items[i];
    const char *of = config->groups[a->group].owners, *owners = config->groups[b->group].owners;
    return strcmp(a->section, b->section) || (of != owners && (!of || !owners || strcmp(of, owners)));
}

/* "attention", or "attention with attn ripple, ripple-fixed" if the settings are used only with these choices. */
static void put_heading(FILE *out, const Config *config, int i) {
    const struct ConfigBinding *group = &config->groups[config->items[i].group];
    fputs(config->items[i].section, out);
    if (group->chooser) fprintf(out, " with %s %s", group->chooser, group->owners);
}

static char *heading_text(const Config *config, int i) {
    char *text;
    size_t size;
    FILE *out = open_text(&text, &size);
    put_heading(out, config, i);
    fputc(':', out);
    close_text(out, &text, "the help");
    return text;
}

void config_help(const Config *config, FILE *out) {
    char lead[HELP_COLUMN + 1];
    snprintf(lead, sizeof lead, "%*s", HELP_COLUMN, "");
    for (int i = 0, before = -1; i < config->count; i++) {
        if (!config_counts(config, i)) continue;
        if (begins_section(config, before, i)) {
            char *heading = heading_text(config, i);
            if (before >= 0) fputc('\n', out);
            put_wrapped(out, heading, 0, "    ");
            free(heading);
        }
        before = i;
        int column = fprintf(out, "  ") + put_option(out, config->items[i].entry);
        if (column + 2 <= HELP_COLUMN) fprintf(out, "%*s", HELP_COLUMN - column, "");
        else fprintf(out, "\n%s", lead);
        put_meaning(out, &config->items[i], lead, HELP_COLUMN);
    }
}

void config_write(const Config *config, FILE *out) {
    const char *heading = "";
    for (int i = 0; i < config->count; i++) {
        const struct ConfigItem *item = &config->items[i];
        if (item->entry->command_line_only || !config_counts(config, i)) continue;
        if (strcmp(item->section, heading)) fprintf(out, "%s[%s]\n", *heading ? "\n" : "", item->section);
        heading = item->section;
        fputs("\n# ", out);
        put_meaning(out, item, "# ", 2);
        fprintf(out, "%s = ", item->entry->name);
        put_current(out, item);
        fputc('\n', out);
    }
}

char *config_text(const Config *config) {
    char *text;
    size_t size;
    FILE *out = open_text(&text, &size);
    config_write(config, out);
    close_text(out, &text, "the settings as text");
    return text;
}

/* Escapes '|', which would end the table cell. */
static void put_cell(FILE *out, const char *text) {
    for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

void config_markdown(const Config *config, FILE *out) {
    for (int i = 0, before = -1; i < config->count; i++) {
        const ConfigEntry *entry = config->items[i].entry;
        bool mode = entry->command_line_only && entry->type == CONFIG_BOOL;
        const char *initial = mode ? "" : config->items[i].initial;
        if (!config_counts(config, i)) continue;
        if (begins_section(config, before, i)) {
            fprintf(out, "%s### ", before >= 0 ? "\n" : "");
            put_heading(out, config, i);
            fputs("\n\n| setting | values | default | meaning |\n|---|---|---|---|\n", out);
        }
        before = i;
        fputs("| `", out);
        if (entry->command_line_only) put_option(out, entry);
        else fputs(entry->name, out);
        fputs("` | ", out);
        char *values = config_values_text(entry);
        put_cell(out, mode ? "" : values);
        free(values);
        fprintf(out, *initial ? " | `%s` | " : " |%s | ", initial);
        put_cell(out, config->items[i].help);
        fputs(" |\n", out);
    }
}

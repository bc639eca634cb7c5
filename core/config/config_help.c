/* --help and the reference in docs/, from the table of settings. */
#include <stdlib.h>
#include <string.h>

#include "core/config/config_parts.h"
#include "core/die.h"
#include "core/config/foreign_names.h"
#include "core/text.h"
#include "core/text_stream.h"

enum { HELP_COLUMN = 30 };

/* == Settings =================================================================================================== */

/* Is a heading printed before setting i, if `before` is the previous setting in use (-1: none)? */
static bool begins_section(const Config *config, int before, int i) {
    if (before < 0) return true;
    const struct ConfigSetting *a = &config->settings[before], *b = &config->settings[i];
    const char *of = config->groups[a->group].owners, *owners = config->groups[b->group].owners;
    return strcmp(a->section, b->section) || (of != owners && (!of || !owners || strcmp(of, owners)));
}

/* "attention", or "attention with attn ripple, ripple-fixed" if the settings are used only with these choices. */
static void put_heading(FILE *out, const Config *config, int i) {
    const struct ConfigBinding *group = &config->groups[config->settings[i].group];
    fputs(config->settings[i].section, out);
    if (group->chooser) fprintf(out, " with %s %s", group->chooser, group->owners);
}

static char *heading_text(const Config *config, int i) {
    TextStream text;
    FILE *out = text_open(&text);
    put_heading(out, config, i);
    fputc(':', out);
    return text_close(&text, "the help");
}

/* Prints setting i, under a heading unless `before`, the setting printed last, has the same.  Returns i. */
static int put_setting(FILE *out, const Config *config, int before, int i) {
    char lead[HELP_COLUMN + 1];
    snprintf(lead, sizeof lead, "%*s", HELP_COLUMN, "");
    if (begins_section(config, before, i)) {
        char *heading = heading_text(config, i);
        if (before >= 0) fputc('\n', out);
        config_put_wrapped(out, heading, 0, "    ");
        free(heading);
    }
    int column = fprintf(out, "  ") + config_put_option(out, config, config->settings[i].entry->name);
    if (column + 2 <= HELP_COLUMN) fprintf(out, "%*s", HELP_COLUMN - column, "");
    else fprintf(out, "\n%s", lead);
    config_put_meaning(out, &config->settings[i], lead, HELP_COLUMN);
    return i;
}

/* == Everything ================================================================================================= */

/* Sections are printed in the order in which a user asks; settings that go with some operators are last. */
enum { OTHER_SECTION = 50, OPERATOR_SECTION = 100 };

static int place_of(const Config *config, int i) {
    static const char *const order[] = {"data", "clips", "augmentation", "model", "training", "evaluation",
                                        "in place of training", "run", "general"};
    const struct ConfigSetting *setting = &config->settings[i];
    if (config->groups[setting->group].chooser && !strcmp(setting->section, "attention")) return OPERATOR_SECTION;
    for (int k = 0; k < (int)(sizeof order / sizeof *order); k++)
        if (!strcmp(setting->section, order[k])) return k;
    return OTHER_SECTION;
}

/* The next setting in use in the order of printing, after setting i of place `place`; -1 for none.  Begin with place 0
 * and setting -1. */
static int next_setting(const Config *config, int *place, int i) {
    for (; *place <= OPERATOR_SECTION; ++*place, i = -1)
        for (i++; i < config->count; i++)
            if (config_counts(config, i) && place_of(config, i) == *place) return i;
    return -1;
}

/* "Attention operators (--attn):", and the choices with their summaries. */
static void put_lists(FILE *out, const Config *config) {
    for (int i = 0; i < config->count; i++) {
        const ConfigEntry *entry = config->settings[i].entry;
        if (!entry->list || !config_counts(config, i)) continue;
        fprintf(out, "\n%s (", entry->list);
        config_put_flag(out, entry->name);
        fputs("):\n", out);
        for (int k = 0; k < config_choice_count(entry); k++)
            fprintf(out, "  %-24s %s\n", config_choice(entry, k)->name, config_choice(entry, k)->summary);
    }
}

void config_help(const Config *config, FILE *out) {
    bool listed = false;
    int place = 0, before = -1;
    for (int i = next_setting(config, &place, -1); i >= 0; i = next_setting(config, &place, i)) {
        if (place == OPERATOR_SECTION && !listed) put_lists(out, config);
        listed |= place == OPERATOR_SECTION;
        before = put_setting(out, config, before, i);
    }
    if (!listed) put_lists(out, config);
}

/* == One word =================================================================================================== */

/* A command that uses choice `name` of setting i, which may itself belong to a choice of another setting. */
static void put_example(FILE *out, const Config *config, const char *example, int i, const char *name) {
    const struct ConfigSetting *setting = &config->settings[i];
    const struct ConfigBinding *group = &config->groups[setting->group];
    fprintf(out, "\n  %s %s%s", example, setting->example ? setting->example : "", setting->example ? " " : "");
    if (group->chooser) {
        config_put_flag(out, group->chooser);
        fprintf(out, " %.*s ", (int)strcspn(group->owners, ","), group->owners);
    }
    config_put_flag(out, setting->entry->name);
    fprintf(out, " %s\n", name);
}

static void put_choice(FILE *out, const Config *config, const char *example, int i, int k) {
    const ConfigEntry *entry = config->settings[i].entry;
    const ConfigChoice *choice = config_choice(entry, k);
    int before = -1;
    config_put_flag(out, entry->name);
    fprintf(out, " %s: %s\n", choice->name, choice->summary);
    if (choice->paper) fprintf(out, "Paper: %s\n", choice->paper);
    put_example(out, config, example, i, choice->name);
    for (int n = 0; n < config->count; n++) {
        const struct ConfigBinding *group = &config->groups[config->settings[n].group];
        if (!group->chooser || strcmp(group->chooser, entry->name)) continue;
        if (!text_lists(group->owners, choice->name)) continue;
        if (before < 0) fputc('\n', out);
        before = put_setting(out, config, before, n);
    }
    if (before < 0) fputs("\nIt has no settings of its own.\n", out);
}

/* The words that have a help of their own, [count]; to be freed. */
static const char **topics(const Config *config, int *count) {
    int most = 2 * config->count;
    for (int i = 0; i < config->count; i++)
        if (config->settings[i].entry->list) most += config_choice_count(config->settings[i].entry);
    const char **words = xcalloc((size_t)most, sizeof *words, "words");
    *count = 0;
    for (int i = 0; i < config->count; i++) {
        const ConfigEntry *entry = config->settings[i].entry;
        words[(*count)++] = entry->name;
        words[(*count)++] = config->settings[i].section;
        for (int k = 0; entry->list && k < config_choice_count(entry); k++)
            words[(*count)++] = config_choice_name(entry, k);
    }
    return words;
}

static bool refuse_topic(const Config *config, const char *word, Error *error) {
    int count;
    const char **words = topics(config, &count), *near = nearest_word(word, words, count), *setting;
    const char *answer = foreign_name(config, word, &setting);
    free(words);
    if (answer) return refuse(error, "--help: nothing here is called '%.60s': %s", word, answer);
    if (setting) near = setting;
    return refuse(error, "--help: nothing here is called '%.60s' (%s%s%s)", word, near ? "did you mean '" : "",
                  near ? near : "--help alone prints everything", near ? "'?" : "");
}

bool config_help_topic(const Config *config, const char *word, const char *example, FILE *out, Error *error) {
    int found = 0, setting;
    for (int i = 0; i < config->count; i++) {
        const ConfigEntry *entry = config->settings[i].entry;
        for (int k = 0; entry->list && k < config_choice_count(entry); k++) {
            if (strcmp(config_choice_name(entry, k), word)) continue;
            if (found++) fputc('\n', out);
            put_choice(out, config, example, i, k);
        }
    }
    word += 2 * !strncmp(word, "--", 2);
    setting = config_find(config, word, strlen(word));
    if (setting >= 0 && found++) fputc('\n', out);
    if (setting >= 0) put_setting(out, config, -1, setting);
    for (int i = 0, before = -1; i < config->count; i++) {
        if (strcmp(config->settings[i].section, word)) continue;
        if (before < 0 && found++) fputc('\n', out);
        before = put_setting(out, config, before, i);
    }
    return found || refuse_topic(config, word, error);
}

/* == Reference ================================================================================================== */

/* The cell of the column `resumed`. */
static void put_change(FILE *out, const Config *config, int i) {
    static const char *const words[] = {[CHANGE_UNSAID] = "", [CHANGE_NEVER] = "never",
                                        [CHANGE_BETWEEN_EPOCHS] = "between epochs", [CHANGE_FREELY] = "freely",
                                        [CHANGE_PATH] = "path", [CHANGE_TO_DEFAULT] = "to default",
                                        [CHANGE_EVERY_CALL] = "per call"};
    const char *word = words[config_change(config, i)];
    bool differ = config->settings[i].entry->ranks_differ;
    fprintf(out, "%s%s%s%s |", *word || differ ? " " : "", word, *word && differ ? ", " : "", differ ? "by rank" : "");
}

/* Escapes '|', which would end the table cell. */
static void put_cell(FILE *out, const char *text) {
    for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

void config_markdown(const Config *config, FILE *out) {
    int place = 0, before = -1;
    fputs("The column *resumed* says whether a run that is continued with `--resume` may have another value: never, "
          "freely, or only from one epoch to the next. *path*: the path may change, but not the name of a known data "
          "set. *to default*: it can only be set back to its default, which takes the value from the data. "
          "*per call*: the setting applies to one call of the program and is not part of the run. *by rank*: the "
          "processes of a run may have different values. The cell is empty for a setting that is possible only on "
          "the command line.\n\n", out);
    for (int i = next_setting(config, &place, -1); i >= 0; i = next_setting(config, &place, i)) {
        const ConfigEntry *entry = config->settings[i].entry;
        bool mode = entry->command_line_only && entry->type == CONFIG_BOOL;
        const char *initial = mode ? "" : config->settings[i].initial;
        if (begins_section(config, before, i)) {
            fprintf(out, "%s### ", before >= 0 ? "\n" : "");
            put_heading(out, config, i);
            fputs("\n\n| setting | values | default | resumed | meaning |\n|---|---|---|---|---|\n", out);
        }
        before = i;
        fputs("| `", out);
        if (entry->command_line_only) config_put_option(out, config, entry->name);
        else fputs(entry->name, out);
        fputs("` | ", out);
        char *values = config_values_text(entry);
        put_cell(out, mode ? "" : values);
        free(values);
        fprintf(out, *initial ? " | `%s` |" : " |%s |", initial);
        put_change(out, config, i);
        fputc(' ', out);
        put_cell(out, config->settings[i].help);
        fputs(" |\n", out);
    }
}

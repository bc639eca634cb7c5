#include "training/help.h"

#include <string.h>

#include "core/die.h"

enum { SHORT_EXAMPLES = 4, SHORT_COLUMN = 23 };

/* The first of a program's examples. */
static void put_examples(FILE *out, const char *examples, int most) {
    for (int i = 0; i < most && *examples; i++) {
        size_t length = strcspn(examples, "\n") + 1;
        fwrite(examples, 1, length, out);
        examples += length;
    }
}

/* "  --lr X               peak learning rate (5e-4)" */
static void put_basic(const Config *config, const HelpLine *line, bool with_default) {
    const char *initial = with_default ? config_initial(config, line->name) : "";
    int column = printf("  ") + config_put_option(stdout, config, line->name);
    printf("%*s%s", column < SHORT_COLUMN ? SHORT_COLUMN - column : 1, "", line->text);
    printf(*initial ? " (%s)\n" : "%s\n", initial);
}

static void print_short(const ProgramFacts *program, const Config *config) {
    printf("%s\nUsage: %s --SETTING VALUE ...    Settings can also be in a file: --config FILE.\n",
           program->introduction, program->name);
    put_examples(stdout, program->examples, SHORT_EXAMPLES);
    printf("\nThe settings that matter most, with their defaults:\n");
    for (const HelpLine *line = program->basics; line->name; line++) put_basic(config, line, true);
    printf("\nIn place of training:\n");
    for (const ProgramMode *mode = program->modes; mode->name; mode++)
        put_basic(config, &(HelpLine){mode->name, mode->text}, false);
    printf("--help prints everything, --help %s or lr a part; see %s\n", program->word,
           program->reference);
}

static void print_all(const ProgramFacts *program, const Config *config) {
    printf("%s\n\n%s\n", program->introduction, program->examples);
    config_help(config, stdout);
}

void help_print(const ProgramFacts *program, const Config *config, const char *asked) {
    if (!strcmp(asked, "-h")) print_short(program, config);
    else if (!strcmp(asked, "all")) print_all(program, config);
    else config_help_topic(config, asked, program->example, stdout, &error_usage);
}

void help_beginner(const ProgramFacts *program) {
    fprintf(stderr, "%s: nothing to do was given, for example\n\n", program->name);
    put_examples(stderr, program->examples, SHORT_EXAMPLES);
    fprintf(stderr, "\n%s -h is a short help, --help lists every mode and setting\n", program->name);
}

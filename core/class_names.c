#include "core/class_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"

void class_names_parse(ClassNames *names, const char *text, size_t size, char ending) {
    size_t most = 1;
    for (size_t i = 0; i < size; i++) most += text[i] == ending;
    *names = (ClassNames){.at = xcalloc(most, sizeof *names->at, "class names"),
                          .text = xcalloc(size + 1, 1, "class names")};
    memcpy(names->text, text, size);
    for (char *name = names->text, *end = name + size, *next; name < end; name = next) {
        next = memchr(name, ending, (size_t)(end - name));
        char *last = next ? next : end;
        next = last + 1;
        if (ending == '\n' && last > name && last[-1] == '\r') last--;
        *last = 0;
        names->at[names->count++] = name;
        names->named += *name != 0;
    }
    while (ending == '\n' && names->count && !*names->at[names->count - 1]) names->count--;
}

bool class_names_complete(const ClassNames *names, int classes) {
    return names->count == classes && names->named == classes;
}

char *class_names_text(const char *const *names, int count) {
    size_t size = 1;
    for (int c = 0; names && c < count; c++) size += strlen(names[c]) + 1;
    char *text = xcalloc(size, 1, "class names"), *end = text;
    for (int c = 0; names && c < count; c++) {
        end = stpcpy(end, names[c]);
        *end++ = '\n';
    }
    return text;
}

void class_names_free(ClassNames *names) {
    free(names->at);
    free(names->text);
    *names = (ClassNames){0};
}

void class_names_print_best(const char *const *names, float *logits, int C, FILE *out) {
    float largest = -INFINITY, sum = 0;
    for (int c = 0; c < C; c++) largest = logits[c] > largest ? logits[c] : largest;
    for (int c = 0; c < C; c++) sum += logits[c] = expf(logits[c] - largest);
    for (int place = 0; place < 5 && place < C; place++) {
        int best = 0;
        for (int c = 1; c < C; c++)
            if (logits[c] > logits[best]) best = c;
        double percent = 100 * (double)(logits[best] / sum);
        if (names)
            fprintf(out, "%s %s %.1f %%", place ? "," : "", names[best], percent);
        else
            fprintf(out, "%s class %d %.1f %%", place ? "," : "", best, percent);
        logits[best] = -1;
    }
    fprintf(out, "\n");
}

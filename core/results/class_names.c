#include "core/results/class_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/text.h"

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

bool class_names_extend(ClassNames *names, int classes) {
    if (names->count > classes) class_names_free(names);
    if (!names->count) return false;
    const char **longer = xcalloc((size_t)classes, sizeof *longer, "class names");
    for (int c = 0; c < classes; c++) longer[c] = c < names->count ? names->at[c] : "";
    free(names->at);
    names->at = longer;
    names->count = classes;
    return true;
}

char *class_names_text(const char *const *names, int count) {
    size_t size = 1;
    for (int c = 0; names && c < count; c++) size += strlen(names[c]) + 1;
    char *text = xcalloc(size, 1, "class names"), *end = text;
    for (int c = 0; names && c < count; c++) {
        strcpy(end, names[c]);
        text_make_printable(end);
        end += strlen(end);
        *end++ = '\n';
    }
    return text;
}

void class_names_free(ClassNames *names) {
    free(names->at);
    free(names->text);
    *names = (ClassNames){0};
}

int class_names_best(ClassScore best[CLASS_BEST], float *logits, int C) {
    float largest = -INFINITY, sum = 0;
    int count = C < CLASS_BEST ? C : CLASS_BEST;
    for (int c = 0; c < C; c++) largest = logits[c] > largest ? logits[c] : largest;
    for (int c = 0; c < C; c++) sum += logits[c] = expf(logits[c] - largest);
    for (int place = 0; place < count; place++) {
        int likeliest = 0;
        for (int c = 1; c < C; c++)
            if (logits[c] > logits[likeliest]) likeliest = c;
        best[place] = (ClassScore){likeliest, (double)(logits[likeliest] / sum)};
        logits[likeliest] = -1;
    }
    return count;
}

void class_names_print_best(const char *const *names, const ClassScore *best, int count, FILE *out) {
    for (int i = 0; i < count; i++) {
        fprintf(out, "%s ", i ? "," : "");
        if (names && *names[best[i].class])
            print_line_to(out, "%s", names[best[i].class]);
        else
            fprintf(out, "class %d", best[i].class);
        fprintf(out, " %.1f %%", 100 * best[i].probability);
    }
    fprintf(out, "\n");
}

void class_names_printed(ClassNames *names, const char *const *others, int count) {
    char *text = class_names_text(others, count);
    class_names_parse(names, text, strlen(text), '\n');
    free(text);
}

bool class_names_match(const ClassNames *names, const char *path, int *place, const char *const *others, int count,
                       const char *set) {
    ClassNames printed;
    bool same = true;
    class_names_printed(&printed, others, count);
    for (int c = 0; c < count; c++) {
        const char *name = c < printed.count ? printed.at[c] : "";
        int at = c < names->count && !strcmp(names->at[c], name) ? c : 0;
        while (at < names->count && strcmp(names->at[at], name)) at++;
        if (at == names->count)
            die("%s: its class '%s' is none of the %d that %s was trained for ('%s', ...): evaluate on data with those "
                "classes", set, others[c], names->count, path, names->at[0]);
        place[c] = at;
        same &= at == c;
    }
    class_names_free(&printed);
    return same;
}

/* The table of choices.h: "what = choice", chained by a hash.  As text its first line is the device with the libraries'
 * versions, since an algorithm's number means another algorithm in another version, and another device is faster with
 * another one. */
#include "kernels/device/choices.h"

#include <device.cuh>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device/runtime.h"
#include "kernels/lisa/transforms.h"

extern "C" {
#include "core/die.h"
#include "core/distributed.h"
}
#include "kernels/kernels.h"

enum { CHAINS = 1024, WORDS = 160 };

static struct Choice {
    char what[WORDS], choice[32];
    Choice *next;
} *chains[CHAINS];
static int choice_count;

static Choice **place_of(const char *what) {
    uint64_t hash = 14695981039346656037u;
    for (const char *c = what; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    Choice **at = &chains[hash % CHAINS];
    while (*at && strcmp((*at)->what, what)) at = &(*at)->next;
    return at;
}

const char *choice_of(const char *what) {
    const Choice *c = *place_of(what);
    return c ? c->choice : NULL;
}

void choice_set(const char *what, const char *choice) {
    Choice **at = place_of(what);
    if (!*at) {
        *at = static_cast<Choice *>(xcalloc(1, sizeof **at, "choices of kernels"));
        snprintf((*at)->what, sizeof(*at)->what, "%s", what);
        choice_count++;
    }
    snprintf((*at)->choice, sizeof(*at)->choice, "%s", choice);
}

bool choice_by_time(void) { return distributed_ranks() == 1; }

static void describe(char *text, size_t size) {
    snprintf(text, size, "%s, cuBLASLt %zu, cuFFT %d", kernels_device(), linear_library(), transforms_library());
}

const char *kernels_choices(void) {
    static char *text;
    char here[512];
    size_t size;
    free(text);
    text = NULL;
    if (!choice_count) return "";
    FILE *out = open_memstream(&text, &size);
    if (!out) die("out of memory for the choices of kernels");
    describe(here, sizeof here);
    fprintf(out, "%s\n", here);
    for (const Choice *c : chains)
        for (; c; c = c->next) fprintf(out, "%s = %s\n", c->what, c->choice);
    if (fclose(out)) die("out of memory for the choices of kernels");
    return text;
}

/* Lines that are none are left out: what they were about is chosen anew. */
const char *kernels_take_choices(const char *text) {
    static char why[1200];
    char here[512], what[WORDS], choice[32];
    int device = (int)strcspn(text, "\n");
    if (!*text) return NULL;
    describe(here, sizeof here);
    if (strncmp(text, here, (size_t)device) || here[device]) {
        snprintf(why, sizeof why, "they were made on %.*s, and this is %s", device < 400 ? device : 400, text, here);
        return why;
    }
    for (const char *line = text + device; *line; line += strcspn(line, "\n")) {
        line++;
        if (sscanf(line, "%159[^=\n]= %31[^\n]", what, choice) != 2) continue;
        size_t length = strlen(what);
        if (what[length - 1] == ' ') what[length - 1] = 0;
        choice_set(what, choice);
    }
    return NULL;
}

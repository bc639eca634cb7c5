/* Classifies image files: cc classify.c $(pkg-config --cflags --libs vit) -o classify && ./classify best.safetensors cat.jpg */
#include <stdio.h>
#include <stdlib.h>
#include <vit.h>

int main(int argc, char **argv) {
    vit_error error;
    if (argc < 3) return fprintf(stderr, "usage: classify CHECKPOINT IMAGE...\n"), 2;
    vit_model *model = vit_open(argv[1], &error);
    if (!model) return fprintf(stderr, "%s\n", error.text), 1;
    int classes = vit_classes(model), status = 0;
    float *probabilities = malloc((size_t)classes * sizeof *probabilities);
    for (int i = 2; i < argc && probabilities; i++) {
        if (!vit_classify_file(model, argv[i], probabilities, &error)) {
            fprintf(stderr, "%s\n", error.text);
            status = 1;
            continue;
        }
        int best = 0;
        for (int c = 1; c < classes; c++)
            if (probabilities[c] > probabilities[best]) best = c;
        const char *name = vit_class_name(model, best);
        printf("%s: %s %.1f %%\n", argv[i], name ? name : "a class without a name", 100 * probabilities[best]);
    }
    free(probabilities);
    vit_close(model);
    return status;
}

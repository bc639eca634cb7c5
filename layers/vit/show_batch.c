/* --show-batch: the first training images as a picture. */
#include "layers/vit/run.h"

#include <stdio.h>

#include "core/die.h"
#include "core/text.h"

void vit_show_batch(VitRun *run) {
    LoaderConfig config = vit_run_samples(run, true);
    const char *path = run->vit_modes->show_batch;
    Error error;
    vit_run_open_training(run);
    int n = loader_write_sheet(path, &run->train, &config, &error);
    if (!n) die("%s: %s", path, error.text);
    print_line("%s: the first %d training %s of %s\n", path, n, config.frames > 1 ? "clips" : "images",
               run->train.name);
}

#include <stdlib.h>

#include "core/die.h"
#include "core/text.h"
#include "data/segmentation/segmentation_sheet.h"
#include "layers/semantic_fpn/run.h"

enum { MOST_SHOWN = 16 };

void semantic_show_batch(SemanticRun *run) {
    const char *path = run->outputs->show_batch;
    SegmentationView views[MOST_SHOWN];
    SegmentationPart part;
    Error error;
    semantic_run_open_data(run, true);
    parts_start(&run->loader.parts, 0, 0);
    if (!segmentation_next(&run->loader, &part)) die("%s: there is no batch", run->train.name);
    int n = part.n < MOST_SHOWN ? part.n : MOST_SHOWN;
    size_t pixels = (size_t)part.height * (size_t)part.width;
    for (int i = 0; i < n; i++)
        views[i] = (SegmentationView){part.height, part.width, part.pixels + (size_t)i * pixels * 3,
                                      (size_t)part.width * 3, part.labels + (size_t)i * pixels, (size_t)part.width,
                                      NULL};
    if (!segmentation_sheet_write(path, views, n, semantic_run_names(run), &error)) die("%s: %s", path, error.text);
    print_line("%s: the first %d training pictures of %s\n", path, n, run->train.name);
}

#include <stdio.h>

#include "layers/mask_rcnn/run.h"
#include "layers/model_facts.h"

void mask_run_facts(MaskRun *run) {
    Facts *facts = training_facts(&run->d.training);
    MaskRcnn *m = &run->model;
    const MaskRcnnSettings *s = &m->settings;
    ModelTable table = {.params = &m->model.params};
    char backbone[160], text[400];
    if (!facts) return;
    backbone_tell(&m->backbone, backbone, sizeof backbone);
    snprintf(text, sizeof text,
             "Mask R-CNN on %s, with a feature pyramid of %d channels: %d proposals an image, and up to %d objects of %d "
             "categories, each with a box and a mask of 28 x 28.",
             backbone, s->fpn_width, s->proposals, s->detections, s->num_classes);
    facts_set(facts, "sentence", text);
    mask_rcnn_parts(m, m->H, m->W, model_table_part, &table);
    model_table_end(&table, facts, (double)mask_rcnn_macs(m, m->H, m->W, s->proposals, s->detections));
}

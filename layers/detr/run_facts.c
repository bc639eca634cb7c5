#include <stdio.h>

#include "layers/detr/run.h"
#include "layers/model_facts.h"

void detr_facts(DetrRun *run) {
    Facts *facts = training_facts(&run->d.training);
    Detr *detr = &run->detr;
    const DetrSettings *s = &detr->settings;
    const int *blocks = detr->backbone.config.blocks;
    ModelTable table = {.params = &detr->model.params};
    char text[320];
    if (!facts) return;
    snprintf(text, sizeof text,
             "SMCA-DETR: a ResNet of %d, %d, %d and %d blocks, %d wide, %d encoder layer%s with %s attention and %d "
             "decoder layer%s, of %d channels and %d heads, and %d queries for the objects of an image.",
             blocks[0], blocks[1], blocks[2], blocks[3], detr->backbone.config.width, s->encoder_layers,
             s->encoder_layers > 1 ? "s" : "", s->attn->name, s->decoder_layers, s->decoder_layers > 1 ? "s" : "",
             s->dim, s->heads, s->queries);
    facts_set(facts, "sentence", text);
    detr_parts(detr, run->d.shorter, run->d.longer, model_table_part, &table);
    model_table_end(&table, facts, (double)detr_macs(detr, run->d.shorter, run->d.longer));
}

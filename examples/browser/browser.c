/* The library in a browser: what worker.js calls.  Pixels are at the model's own size, so nothing is resized here. */
#include <emscripten.h>

#include "library/vit.h"

static vit_error last_error;

EMSCRIPTEN_KEEPALIVE const char *browser_error(void) { return last_error.text; }

EMSCRIPTEN_KEEPALIVE vit_model *browser_open(const void *checkpoint, size_t bytes) {
    return vit_open_memory(checkpoint, bytes, &last_error);
}

EMSCRIPTEN_KEEPALIVE int browser_classify(vit_model *model, const uint8_t *pixels, float *logits) {
    return vit_classify(model, pixels, vit_height(model), vit_width(model), logits, &last_error);
}

EMSCRIPTEN_KEEPALIVE int browser_attention(vit_model *model, int block, int head, int token, float *weights) {
    return vit_attention(model, block, head, token, weights, &last_error);
}

EMSCRIPTEN_KEEPALIVE int browser_height(const vit_model *model) { return vit_height(model); }
EMSCRIPTEN_KEEPALIVE int browser_width(const vit_model *model) { return vit_width(model); }
EMSCRIPTEN_KEEPALIVE int browser_classes(const vit_model *model) { return vit_classes(model); }
EMSCRIPTEN_KEEPALIVE int browser_rows(const vit_model *model) { return vit_rows(model); }
EMSCRIPTEN_KEEPALIVE int browser_columns(const vit_model *model) { return vit_columns(model); }
EMSCRIPTEN_KEEPALIVE int browser_blocks(const vit_model *model) { return vit_blocks(model); }
EMSCRIPTEN_KEEPALIVE int browser_heads(const vit_model *model) { return vit_heads(model); }
EMSCRIPTEN_KEEPALIVE double browser_parameters(const vit_model *model) { return (double)vit_parameters(model); }
EMSCRIPTEN_KEEPALIVE const char *browser_operator(const vit_model *model) { return vit_operator(model); }
EMSCRIPTEN_KEEPALIVE const char *browser_class(const vit_model *model, int i) { return vit_class_name(model, i); }

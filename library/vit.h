/* libvit: models trained by train_vit, in another program.
 *
 *     vit_error error;
 *     vit_model *model = vit_open("best.safetensors", &error);
 *     float p[1000];                                         at least vit_classes(model) of them
 *     if (!model || !vit_classify_file(model, "cat.jpg", p, &error)) puts(error.text);
 *     vit_close(model);
 *
 * A function that can fail returns NULL or false and writes one line into *error, which may be NULL; nothing is then
 * leaked or half done.  The library does not print, does not end the process and installs no handlers.  It reads the
 * files that it is given and no others.
 *
 * Several models may be open at once, and every function may be called from any thread: calls take turns, each on as many
 * threads as OpenMP gives (OMP_NUM_THREADS), but no more than when the model was opened.  A model must not be closed
 * while another thread uses it.
 *
 * Where memory runs out, the call fails, and a later one can succeed.  Two exceptions end the process: OpenMP's library
 * does where it gets no memory for threads, and oneDNN's C++ exceptions do where libvit was built without a C++
 * compiler. */
#ifndef VIT_H
#define VIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VIT_API __attribute__((visibility("default")))

typedef struct vit_model vit_model;

/* The reason of the last failure, one line of UTF-8 without a line feed; empty after a success. */
typedef struct {
    char text[1024];
} vit_error;

/* The version of the library, such as "1.0". */
VIT_API const char *vit_version(void);

/* == Models ======================================================================================================= */

/* Opens a checkpoint: best.safetensors or last.safetensors of a run's folder.  The whole file is read; it may be replaced
 * or removed afterwards.  NULL: failure. */
VIT_API vit_model *vit_open(const char *path, vit_error *error);

/* The same for a checkpoint in memory, which error texts call `checkpoint`.  The bytes need no alignment, are not written
 * to, and may be freed afterwards. */
VIT_API vit_model *vit_open_memory(const void *data, size_t bytes, vit_error *error);

/* Frees the model.  NULL is allowed. */
VIT_API void vit_close(vit_model *model);

/* Height and width of the images that the model sees, in pixels; others are resized to them. */
VIT_API int vit_height(const vit_model *model);
VIT_API int vit_width(const vit_model *model);

/* The number of classes, and the name of each: NULL where the checkpoint has none for it, or there is no such
 * class. */
VIT_API int vit_classes(const vit_model *model);
VIT_API const char *vit_class_name(const vit_model *model, int index);

/* The attention operator, as in --attn; of several stages those of all, separated by commas. */
VIT_API const char *vit_operator(const vit_model *model);

/* The number of trained parameters. */
VIT_API size_t vit_parameters(const vit_model *model);

/* == Classification =============================================================================================== */

/* pixels [height,width,3], 8-bit sRGB, rows from the top, 1 to 32768 a side -> probabilities [vit_classes], which sum
 * to 1.  The image is resized and cropped as by train_vit --predict. */
VIT_API bool vit_classify(vit_model *model, const uint8_t *pixels, int height, int width, float *probabilities,
                          vit_error *error);

/* The same for an image file: JPEG, PNG, BMP, and WebP where the library was built with libwebp. */
VIT_API bool vit_classify_file(vit_model *model, const char *path, float *probabilities, vit_error *error);

/* Logits [vit_classes] of the image that was classified last, whose softmax the probabilities are. */
VIT_API bool vit_logits(vit_model *model, float *logits, vit_error *error);

/* == Attention ==================================================================================================== */

/* Blocks, heads in a block, and rows and columns of the grid of tokens; 0 blocks: a model of several stages, or an
 * operator without attention weights. */
VIT_API int vit_blocks(const vit_model *model);
VIT_API int vit_heads(const vit_model *model);
VIT_API int vit_rows(const vit_model *model);
VIT_API int vit_columns(const vit_model *model);

/* weights [vit_rows,vit_columns]: how much a head of a block takes from each token for token row * columns + column, in
 * the image that was classified last.  The first call after a classification computes the image once more. */
VIT_API bool vit_attention(vit_model *model, int block, int head, int token, float *weights, vit_error *error);

#ifdef __cplusplus
}
#endif

#endif

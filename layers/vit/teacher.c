#include "layers/vit/teacher.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/text.h"
#include "data/sets/subset.h"
#include "kernels/kernels.h"
#include "layers/vit/fit_weights.h"
#include "training/run_folder.h"

/* == Stored logits ================================================================================================ */

/* FNV-1a of 64 bits. */
static uint64_t mix_bytes(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
    return hash;
}

void teacher_digest(char text[TEACHER_DIGEST_SIZE], const Dataset *d) {
    uint64_t hash = 0xcbf29ce484222325;
    char name[DATASET_PATH];
    int *labels = dataset_labels(d);
    for (size_t i = 0; i < d->count; i++) {
        int32_t label = labels[i];
        dataset_key(d, i, name, sizeof name);
        hash = mix_bytes(mix_bytes(hash, name, strlen(name)), &label, sizeof label);
    }
    free(labels);
    snprintf(text, TEACHER_DIGEST_SIZE, "%.31s %016llx", d->name, (unsigned long long)hash);
}

static void stored_open(Teacher *t, const char *path, const Vit *student, const Dataset *data) {
    const SafeTensor *logits = t->stored;
    const char *told = safetensors_metadata(&t->file, TEACHER_DIGEST);
    const Dataset *whole = subset_whole(data);
    size_t C = (size_t)student->settings.num_classes;
    char digest[TEACHER_DIGEST_SIZE];
    if (data->clips)
        die("%s: stored logits are of images, but %s has clips: give a checkpoint as teacher", path, data->name);
    if (logits->ndim != 2 || (logits->dtype != SAFE_F32 && logits->dtype != SAFE_BF16))
        die("%s: " TEACHER_LOGITS ": expected [images,classes] of float32 or bfloat16", path);
    if (logits->shape[1] != C)
        die("%s: logits of %zu classes, but the model has %zu: the teacher must have the same classes", path,
            logits->shape[1], C);
    if (logits->shape[0] != whole->count)
        die("%s: logits of %zu images, but %s has %zu training images here: write them again with --write-logits", path,
            logits->shape[0], whole->name, whole->count);
    teacher_digest(digest, whole);
    if (!told || strcmp(told, digest))
        die("%s: logits of other images, or in another order (%s), than %s has here (%s): write them again with "
            "--write-logits", path, told ? told : "which the file does not say", data->name, digest);
    t->data = data;
    t->rows = xcalloc((size_t)student->model.batch + 2, C * sizeof *t->rows, "a teacher's logits");
}

/* The rows of the part's images, whose indices follow from their draws (loader_draw). */
static void stored_rows(Teacher *t, const LoaderPart *part) {
    size_t C = t->stored->shape[1];
    for (int i = 0; i < part->count; i++) {
        SafeTensor row = *t->stored;
        size_t width = row.dtype == SAFE_F32 ? 4 : 2, image = subset_index(t->data, part->draws[i] % t->data->count);
        row.data = (const uint8_t *)row.data + image * C * width;
        row.size = C;
        row.bytes = C * width;
        float *to = t->rows + (size_t)i * C;
        safetensors_to_float(&row, to, &error_fatal);
        for (size_t c = 0; c < C; c++)
            if (!isfinite(to[c]))
                die("%s: logits of image %zu are not finite: write them again with --write-logits", row.file, image);
    }
}

/* == A model ====================================================================================================== */

static void check_classes(const char *path, const Vit *student, const Vit *teacher, const Dataset *data) {
    ClassNames names;
    if (teacher->settings.num_classes != student->settings.num_classes)
        die("%s: a teacher of %d classes, but the model has %d: both must have the same classes", path,
            teacher->settings.num_classes, student->settings.num_classes);
    run_folder_classes(&names, path);
    for (int c = 0; names.named && data->class_names && c < data->classes; c++)
        if (c >= names.count || strcmp(names.at[c], data->class_names[c]))
            die("%s: class %d is '%s' to this teacher, but '%s' in %s: both must have the same classes in the same "
                "order",
                path, c, c < names.count ? names.at[c] : "", data->class_names[c], data->name);
    class_names_free(&names);
}

static void check_images(const char *path, const VitSettings *student, const VitSettings *teacher) {
    const int *mine = student->img_size, *its = teacher->img_size;
    if (mine[0] != its[0] || mine[1] != its[1])
        die("%s: the teacher takes images of %dx%d and the model %dx%d, but both must take the same: use img_size "
            "%dx%d, or another teacher", path, its[0], its[1], mine[0], mine[1], its[0], its[1]);
    if (student->frames != teacher->frames)
        die("%s: the teacher takes %d frames and the model %d, but both must take the same", path, teacher->frames,
            student->frames);
}

static void model_open(Teacher *t, const char *path, const Vit *student, const Dataset *data, const float *mean,
                       const float *std) {
    float its_mean[3], its_std[3];
    char classes[16];
    if (!run_folder_settings(&t->config, student->config, path))
        die("%s: neither logits of --write-logits nor a checkpoint of train_vit: a teacher is one of these", path);
    const VitSettings *s = config_settings(&t->config, &vit_settings);
    if (s->num_classes < 1) {
        ClassNames names;
        run_folder_classes(&names, path);
        snprintf(classes, sizeof classes, "%d", names.count > 0 ? names.count : student->settings.num_classes);
        config_try_set(&t->config, "num_classes", classes, path, &error_fatal);
        class_names_free(&names);
    }
    vit_use_settings(&t->config);
    check_images(path, &student->settings, s);
    t->model = xcalloc(1, sizeof *t->model, "a teacher");
    vit_create(t->model, &t->config);
    check_classes(path, student, t->model, data);
    vit_plan(t->model, student->model.batch, false);
    vit_allocate(t->model);
    params_allocate(&t->model->model.params, false);
    fit_weights(&t->model->model, path, &t->model->model, NULL, 0, INFLATE_NONE);
    if (!run_folder_normalisation(its_mean, its_std, path)) return;
    for (int c = 0; c < 3; c++) {
        t->scale[c] = std[c] / its_std[c];
        t->shift[c] = (mean[c] - its_mean[c]) / its_std[c];
        t->renormalises |= mean[c] != its_mean[c] || std[c] != its_std[c];
    }
}

static void model_follow(Teacher *t, Vit *student, int B) {
    const VitSettings *s = &student->settings;
    size_t C = (size_t)s->num_classes;
    if (t->renormalises)
        images_renormalize(t->model->images, student->images, t->scale, t->shift,
                           &(ImageShape){B * s->frames, s->img_size[0], s->img_size[1]});
    else device_copy(t->model->images, student->images, (size_t)B * 3 * (size_t)s->frames * (size_t)s->img_size[0] *
                                                            (size_t)s->img_size[1] * sizeof(real));
    vit_forward(t->model, B, false);
    device_copy(student->teacher_logits, t->model->logits, (size_t)B * C * sizeof(real));
}

/* == Both ========================================================================================================= */

void teacher_open(Teacher *t, const char *path, const Vit *student, const Dataset *data, const float *mean,
                  const float *std) {
    *t = (Teacher){0};
    safetensors_open(&t->file, path, &error_fatal);
    t->stored = safetensors_find(&t->file, TEACHER_LOGITS);
    if (t->stored) {
        stored_open(t, path, student, data);
        if (distributed_rank() == 0)
            print_line("%s: teacher: logits of %zu images, without augmentation\n", path, t->stored->shape[0]);
        return;
    }
    safetensors_close(&t->file);
    model_open(t, path, student, data, mean, std);
    char attn[VIT_ATTN_SIZE];
    if (distributed_rank() == 0)
        print_line("%s: teacher: %s, %zu parameters, %.1f million multiply-adds an image, %.0f MiB of activations\n", path,
                   vit_attn_names(&t->model->settings, attn), t->model->model.params.parameters,
                   (double)vit_macs(t->model) / 1e6, (double)model_activation_bytes(&t->model->model) / (1 << 20));
}

void teacher_follow(Teacher *t, Vit *student, const LoaderPart *part, bool mixed, float lam) {
    if (t->stored) {
        stored_rows(t, part);
        real_upload(student->teacher_logits, t->rows, (size_t)part->count * t->stored->shape[1]);
    } else {
        model_follow(t, student, part->n);
    }
    vit_load_teacher(student, mixed && t->stored, lam, part->n);
}

void teacher_close(Teacher *t) {
    if (t->model) vit_destroy(t->model);
    if (t->model) config_free(&t->config);
    free(t->model);
    free(t->rows);
    safetensors_close(&t->file);
    *t = (Teacher){0};
}

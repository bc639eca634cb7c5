/* The computation with a teacher (layers/vit/distillation.h). */
#ifndef VIT_LAYERS_VIT_TEACHER_H
#define VIT_LAYERS_VIT_TEACHER_H

#include "core/safetensors.h"
#include "data/loading/loader.h"
#include "layers/vit/vit.h"

typedef struct {
    SafeTensors file;
    const SafeTensor *stored; /* [images,C] logits in the file; NULL: the teacher is `model`, or there is none */
    const Dataset *data;      /* the training images, which may be a part of those in the file */
    float *rows;              /* host [batch + 2,C] of stored logits */
    Vit *model;
    Config config;            /* of the model */
    bool renormalises;        /* the teacher's images have another normalisation than the student's: */
    float scale[3], shift[3]; /* conversion from one to the other */
} Teacher;

/* Opens the file for a student whose model and data are open.  mean and std are the student's.  Dies with one line if
 * it does not fit this student. */
void teacher_open(Teacher *teacher, const char *path, const Vit *student, const Dataset *data, const float *mean,
                  const float *std);
/* Computes the targets of the part whose images the student has.  With `mixed` they were loaded with vit_load_mixed,
 * and lam is the share of each image in its pair. */
void teacher_follow(Teacher *teacher, Vit *student, const LoaderPart *part, bool mixed, float lam);
void teacher_close(Teacher *teacher);

/* The name of the tensor in a file of logits, and a hash of names and labels, which is equal for data sets with the
 * same images in the same order. */
#define TEACHER_LOGITS "logits"
#define TEACHER_DIGEST "vit.c.images"
enum { TEACHER_DIGEST_SIZE = 64 };
void teacher_digest(char text[TEACHER_DIGEST_SIZE], const Dataset *data);

#endif

/* Loads weights of a model with another resolution or with other classes, for fine-tuning.  Tables on a token grid of
 * another size are resampled (resample_grid.h), and a classifier for another number of classes, or with other layers,
 * is initialised anew. */
#ifndef VIT_LAYERS_VIT_FIT_WEIGHTS_H
#define VIT_LAYERS_VIT_FIT_WEIGHTS_H

#include <stdio.h>

#include "layers/vit/inflate.h"
#include "layers/model.h"

/* The changes that were made to the weights. */
typedef struct {
    const char *path;
    int resampled;      /* number of tables that were resampled */
    const Param *first; /* the first of these tables */
    ParamGrid from;     /* its grid in the file */
    const Param *head;  /* weight or bias of the classifier, if it was initialised anew */
    size_t classes;     /* number of classes in the file, or 0 if the classifier was loaded, or was of another kind: */
    const char *from_head, *to_head; /* the kinds in the file and of the model (the setting head), or NULL */
    int inflated;       /* number of tensors that were extended in time */
    const Param *clip;  /* the first of them */
} FittedWeights;

/* Reads every parameter of the model from a file of weights, after params_allocate.
 * origin: the model that the file was made for, declared but without memory: its grids are the file's.  NULL, or with
 *         nothing declared: a table along one dimension is assumed to have a square grid.
 * head:   the prefix of the tensors [classes,...] that are drawn from `seed` where the file has other classes, or a
 *         classifier of another kind; NULL: they have to be the same.
 * rule:   how a model of clips is initialised from the weights of an image model; tables are resampled before they are
 * extended
 *         in time.
 * Dies with the difference if the weights are those of another model (other_weights.h), and like
 * checkpoint_load_weights if a tensor does not fit after all this. */
FittedWeights fit_weights(Model *model, const char *path, const Model *origin, const char *head, uint64_t seed,
                          Inflate rule);

/* Prints a line for each kind of change. */
void fitted_weights_print(const FittedWeights *fitted, FILE *out);

#endif

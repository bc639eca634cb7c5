/* The pictures that a user names: files, and folders with all that is in them. */
#ifndef VIT_DATA_PICTURES_H
#define VIT_DATA_PICTURES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/config.h"
#include "core/error.h"
#include "data/transform.h"

typedef struct {
    char *name;    /* as given, or folder/.../file */
    bool searched; /* found in a folder: nobody promised that it can be read */
} Picture;

typedef struct {
    Picture *at; /* [count] */
    size_t count, room;
} Pictures;

/* Those of the list, in its order.  In place of a folder come all files in it and in the folders below whose names end
 * as a picture's does (image_has_name), hidden ones left out, each folder's in the order of their names.  Dies where a
 * folder cannot be read or holds none. */
void pictures_find(Pictures *pictures, const ConfigList *given);
void pictures_free(Pictures *pictures);

/* A file at the transform's size: as an evaluation sees it, `fixed` where the data set's images have one size; or
 * `squeezed`, all of it whatever its shape.  False: `error` says what is wrong with the file. */
bool picture_pixels(uint8_t *pixels, const char *name, const Transform *transform, bool squeezed, bool fixed,
                    Error *error);

/* Of a picture that cannot be read: dies where the user named it, and of one that was found in a folder says that it is
 * left out. */
void picture_refuse(const Picture *picture, const Error *error);

#endif

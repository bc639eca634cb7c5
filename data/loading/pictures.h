/* The pictures or videos that a user names: files, and folders, which are searched for them. */
#ifndef VIT_DATA_LOADING_PICTURES_H
#define VIT_DATA_LOADING_PICTURES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/config/config.h"
#include "core/error.h"
#include "data/images/transform.h"

typedef struct {
    char *name;    /* the path as given, or folder/.../file */
    bool searched; /* found in a folder, so it may be unreadable without ending the program */
} Picture;

typedef struct {
    Picture *at; /* [count] */
    size_t count, room;
} Pictures;

/* The pictures of the list, in its order.  A folder is replaced by all files in it and in its subfolders that have the
 * extension of a picture (image_has_name), hidden ones excepted, each folder sorted by name.  With `clips` it is
 * replaced by its videos (video_has_name), and a folder with pictures but no videos is kept as one clip, whose frames
 * the pictures are. Ends the process if a folder of the list cannot be read or contains no such file; a subfolder that
 * cannot be read is left out with a warning. */
void pictures_find(Pictures *pictures, const ConfigList *given, bool clips);
void pictures_free(Pictures *pictures);

/* picture_of_file (data/images/picture.h), which refuses a video's name.  Not thread-safe. */
bool picture_pixels(uint8_t *pixels, const char *name, const Transform *transform, bool squeezed, Error *error);

/* Reports a picture that cannot be read: ends the process if the user named it, or if memory or a library is lacking;
 * if it was found in a folder, warns that it is skipped. */
void picture_refuse(const Picture *picture, const Error *error);

#endif

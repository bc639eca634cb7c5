/* One stored image, memory to read it into, and the statistics of photographs. */
#ifndef VIT_DATA_IMAGES_SAMPLE_H
#define VIT_DATA_IMAGES_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One image as the data set stores it. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
    int height, width; /* bytes are pixels [height,width,3]; 0: bytes are an encoded picture file */
    int label;
    double time; /* of the frames of a video, in seconds from its first one, where that is known */
    int frame;   /* number of the frame in its video, from 0 on */
} Sample;

/* A growing buffer for samples that have to be read from disk; initialise to {0}. */
typedef struct {
    uint8_t *bytes;
    size_t room;
} SampleBuffer;

/* Grows the buffer to at least `room` bytes, without keeping what is in it; false when out of memory. */
bool sample_buffer_grow(SampleBuffer *buffer, size_t room);

/* Channel statistics of ImageNet, used to normalise photographs. */
extern const float imagenet_mean[3], imagenet_std[3];

#endif

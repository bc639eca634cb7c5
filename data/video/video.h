/* Videos in memory through FFmpeg's libraries: which frames there are, and the pixels of those that are wanted.  The
 * Makefile compiles video.c if the headers of libavformat, libavcodec and libswscale are installed, otherwise
 * video_none.c, which reports that they are not; the libraries themselves are loaded when they are needed
 * (data/video/video_library.h).
 *
 * A frame is identified by its index in the order of presentation, never by a time: rates are often not constant, and
 * durations are estimates.  Colours are converted with the matrix and range in the frame's tags, or without tags with
 * BT.601 in limited range; rotations by multiples of 90 degrees are undone; pixels that are not square stay as they
 * are.  A file may not refer to other files. */
#ifndef VIT_DATA_VIDEO_VIDEO_H
#define VIT_DATA_VIDEO_VIDEO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

/* Limits beyond which a video is refused: frames, pixels of a frame (8K). */
enum { VIDEO_MAX_FRAMES = 1 << 20, VIDEO_MAX_PIXELS = 1 << 25 };

/* Whether this build can read videos on this machine; false: `error` says what is missing. */
bool video_available(Error *error);

/* Whether the file name has the extension of a video; the contents are not examined. */
bool video_has_name(const char *name);

typedef struct VideoReader VideoReader;

/* Opens the first video stream and lists its frames, without decoding them if the packets have time stamps; the bytes
 * must outlive the reader, which serves one thread.  On failure returns NULL and sets `error`. */
VideoReader *video_open(const uint8_t *bytes, size_t size, size_t most_pixels, Error *error);
void video_close(VideoReader *reader);

/* The number of frames, which is at least 1. */
int video_frames(const VideoReader *reader);
/* The mean number of frames a second between the first and the last frame; 0 if that is not known. */
double video_fps(const VideoReader *reader);
/* The time of a frame in seconds since the first frame. */
double video_time(const VideoReader *reader, int frame);

/* Calls take(context, i, pixels [height,width,3], ...) for index[i], i = 0 .. count-1, with pixels that are valid
 * during the call.  index [count] ascends, repeats included.  All frames get the size of the first one decoded. Decodes
 * from the last key frame before a wanted frame, and holds one picture at a time besides the decoder's own.  A wanted
 * frame that does not come, or in whose decoding an error was reported, is an error; damage that a decoder conceals
 * without reporting it is accepted, like that of a JPEG that libjpeg only warns about.  On an error, and when take
 * returns false, returns false with `error` set. */
bool video_read(VideoReader *reader, const int *index, int count,
                bool (*take)(void *context, int i, const uint8_t *pixels, int height, int width, Error *error),
                void *context, Error *error);

/* The number of frames that were decoded since the reader was opened, for tests of seeking. */
int video_decoded(const VideoReader *reader);

#endif

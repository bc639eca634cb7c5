#include "data/video/video.h"

bool video_available(Error *error) {
    return refuse_library(error, "a video, and this build has no FFmpeg: install libavformat-dev, libavcodec-dev and "
                                 "libswscale-dev and run make again");
}

VideoReader *video_open(const uint8_t *bytes, size_t size, size_t most_pixels, Error *error) {
    (void)bytes, (void)size, (void)most_pixels;
    video_available(error);
    return NULL;
}

void video_close(VideoReader *reader) { (void)reader; }
int video_frames(const VideoReader *reader) { return (void)reader, 0; }
double video_fps(const VideoReader *reader) { return (void)reader, 0; }
double video_time(const VideoReader *reader, int frame) { return (void)reader, (void)frame, 0; }
int video_decoded(const VideoReader *reader) { return (void)reader, 0; }

bool video_read(VideoReader *reader, const int *index, int count,
                bool (*take)(void *context, int i, const uint8_t *pixels, int height, int width, Error *error),
                void *context, Error *error) {
    (void)reader, (void)index, (void)count, (void)take, (void)context;
    return video_available(error);
}

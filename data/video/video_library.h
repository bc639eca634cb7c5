/* FFmpeg's functions, loaded when the first video is opened: they depend on a hundred shared libraries, which a program
 * that reads no video need not load and may lack.  The versions must be those of the headers at build time, because
 * structs differ between versions. */
#ifndef VIT_DATA_VIDEO_VIDEO_LIBRARY_H
#define VIT_DATA_VIDEO_VIDEO_LIBRARY_H

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include "core/error.h"

/* In newer versions of FFmpeg the rotation of a stream is not in its side data but in its codec's parameters. */
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
#define FORMAT_SIDE_DATA(F)
#define CODEC_SIDE_DATA(F) F(av_packet_side_data_get)
#else
#define FORMAT_SIDE_DATA(F) F(av_stream_get_side_data)
#define CODEC_SIDE_DATA(F)
#endif

#define UTIL_FUNCTIONS(F) \
    F(av_display_rotation_get) F(av_frame_alloc) F(av_frame_free) F(av_free) F(av_freep) F(av_get_pix_fmt_name) \
    F(av_log_set_level) F(av_malloc) F(av_strdup) F(av_strerror)
#define CODEC_FUNCTIONS(F) \
    F(av_packet_alloc) F(av_packet_free) F(av_packet_unref) F(avcodec_alloc_context3) F(avcodec_find_decoder) \
    F(avcodec_flush_buffers) F(avcodec_free_context) F(avcodec_get_name) F(avcodec_open2) \
    F(avcodec_parameters_to_context) F(avcodec_receive_frame) F(avcodec_send_packet) CODEC_SIDE_DATA(F)
#define FORMAT_FUNCTIONS(F) \
    F(av_find_best_stream) F(av_read_frame) F(av_seek_frame) F(avformat_alloc_context) F(avformat_close_input) \
    F(avformat_find_stream_info) F(avformat_index_get_entries_count) F(avformat_open_input) F(avio_alloc_context) \
    F(avio_context_free) FORMAT_SIDE_DATA(F)
#define SCALE_FUNCTIONS(F) \
    F(sws_freeContext) F(sws_getCoefficients) F(sws_getContext) F(sws_scale) F(sws_setColorspaceDetails)

typedef struct {
#define F(name) __typeof__(name) *name;
    UTIL_FUNCTIONS(F) CODEC_FUNCTIONS(F) FORMAT_FUNCTIONS(F) SCALE_FUNCTIONS(F)
#undef F
} VideoLibrary;

/* Every name is a function once video_library_load has returned true. */
extern VideoLibrary ff;

/* Thread-safe; tries once.  False: `error` says what is missing. */
bool video_library_load(Error *error);

#endif

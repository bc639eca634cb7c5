/* Encodes small videos with FFmpeg's libraries, so that no video files need to be stored.  Frame i is grey, of
 * brightness frame_luma(i), with a white mark in its top left corner, so that a frame and its rotation can be
 * recognised after any lossy codec. */
#ifndef VIT_TESTS_ENCODE_VIDEO_H
#define VIT_TESTS_ENCODE_VIDEO_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>

#include "tests/scratch.h"

typedef struct {
    const char *container, *codec; /* "mp4", "matroska", "avi", "mpegts"; "mpeg4", "mjpeg", "mpeg2video", "ffv1", "libx264" */
    int frames, height, width;
    int key_distance, b_frames;
    const int *times;   /* [frames], ascending; NULL: 0, 1, 2, ...;  in units of 1/25 s */
    int rotation;       /* of the display matrix, degrees anticlockwise */
    enum AVPixelFormat format;
    enum AVColorSpace space;
    enum AVColorRange range;
    int yuv[3];         /* colour of all frames, if yuv[0] is not 0 */
    int then[3];        /* the frame at which the size changes, new height and width; 0: none */
    int hidden;         /* the packet of this frame says that it is hidden (libvpx) or not coded (mpeg4); 0: none */
} VideoRecipe;

/* The brightness of frame i, one of 37 values. */
static inline int frame_luma(int i) { return 30 + i % 37 * 5; }

static inline void paint_frame(AVFrame *frame, const VideoRecipe *r, int i) {
    assert_true(av_frame_make_writable(frame) >= 0);
    for (int p = 0; p < 3; p++) {
        bool whole = !p || r->format == AV_PIX_FMT_YUV444P || r->format == AV_PIX_FMT_YUVJ444P;
        int height = whole ? frame->height : (frame->height + 1) / 2;
        int width = whole ? frame->width : (frame->width + 1) / 2;
        for (int y = 0; y < height; y++) {
            int value = r->yuv[0] ? r->yuv[p] : p ? 128 : frame_luma(i);
            memset(frame->data[p] + y * frame->linesize[p], value, (size_t)width);
            if (!p && !r->yuv[0] && y < height / 4)
                memset(frame->data[p] + y * frame->linesize[p], 250, (size_t)width / 4);
        }
    }
}

/* VP8's flag show_frame; a VOP of MPEG-4 at second 0 of 1/25 s, without a picture. */
static inline void hide_packet(AVPacket *packet, const VideoRecipe *r) {
    uint8_t empty[] = {0, 0, 1, 0xb6, (uint8_t)(0x50 | r->hidden >> 1), (uint8_t)((r->hidden & 1) << 7 | 0x4f)};
    assert_true(av_packet_make_writable(packet) >= 0 && packet->size > (int)sizeof empty && r->hidden < 25);
    if (!strcmp(r->codec, "libvpx")) {
        packet->data[0] &= (uint8_t)~0x10;
        return;
    }
    memcpy(packet->data, empty, sizeof empty);
    av_shrink_packet(packet, sizeof empty);
}

static inline void write_packets(const VideoRecipe *r, AVFormatContext *format, AVCodecContext *codec, AVStream *stream) {
    AVPacket *packet = av_packet_alloc();
    while (avcodec_receive_packet(codec, packet) >= 0) {
        if (r->hidden && packet->pts == r->hidden) hide_packet(packet, r);
        av_packet_rescale_ts(packet, codec->time_base, stream->time_base);
        packet->stream_index = stream->index;
        assert_true(av_interleaved_write_frame(format, packet) >= 0);
    }
    av_packet_free(&packet);
}

static inline void rotate_stream(AVStream *stream, int degrees) {
    int32_t matrix[9];
    av_display_rotation_set(matrix, -degrees); /* FFmpeg's angle is clockwise */
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
    AVCodecParameters *p = stream->codecpar;
    AVPacketSideData *side = av_packet_side_data_new(&p->coded_side_data, &p->nb_coded_side_data,
                                                     AV_PKT_DATA_DISPLAYMATRIX, sizeof matrix, 0);
    assert_non_null(side);
    memcpy(side->data, matrix, sizeof matrix);
#else
    uint8_t *side = av_stream_new_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, sizeof matrix);
    assert_non_null(side);
    memcpy(side, matrix, sizeof matrix);
#endif
}

static inline bool can_encode(const char *codec) { return avcodec_find_encoder_by_name(codec) != NULL; }

static inline AVCodecContext *open_encoder(const VideoRecipe *r, const AVFormatContext *format, int height,
                                           int width) {
    const AVCodec *encoder = avcodec_find_encoder_by_name(r->codec);
    assert_non_null(encoder);
    AVCodecContext *codec = avcodec_alloc_context3(encoder);
    codec->width = width;
    codec->height = height;
    codec->pix_fmt = r->format == AV_PIX_FMT_NONE ? AV_PIX_FMT_YUV420P : r->format;
    codec->time_base = (AVRational){1, 25};
    codec->framerate = (AVRational){25, 1};
    codec->gop_size = r->key_distance;
    codec->max_b_frames = r->b_frames;
    codec->colorspace = r->space;
    codec->color_range = r->range;
    codec->thread_count = 1;
    codec->flags |= AV_CODEC_FLAG_QSCALE | AV_CODEC_FLAG_BITEXACT;
    codec->global_quality = 2 * FF_QP2LAMBDA;
    codec->strict_std_compliance = FF_COMPLIANCE_UNOFFICIAL;
    if (!strcmp(r->codec, "libx264")) {
        codec->flags &= ~AV_CODEC_FLAG_QSCALE;
        assert_true(av_opt_set(codec->priv_data, "crf", "10", 0) >= 0);
        assert_true(av_opt_set(codec->priv_data, "x264-params", "scenecut=0:bframes=3:b-adapt=0", 0) >= 0);
    }
    if (!strcmp(r->codec, "mpeg4")) av_opt_set(codec->priv_data, "sc_threshold", "1000000000", 0);
    if (!strcmp(r->codec, "ffv1")) { /* with a checksum for each slice */
        codec->level = 3;
        av_opt_set_int(codec->priv_data, "slicecrc", 1, 0);
    }
    if (format->oformat->flags & AVFMT_GLOBALHEADER) codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    assert_true(avcodec_open2(codec, encoder, NULL) >= 0);
    return codec;
}

/* Encodes the frames from `first` up to `end`. */
static inline void write_frames(const VideoRecipe *r, AVFormatContext *format, AVCodecContext *codec, AVStream *stream,
                                int first, int end) {
    AVFrame *frame = av_frame_alloc();
    frame->width = codec->width;
    frame->height = codec->height;
    frame->format = codec->pix_fmt;
    frame->colorspace = r->space;
    frame->color_range = r->range;
    frame->quality = codec->global_quality;
    assert_true(av_frame_get_buffer(frame, 0) >= 0);
    for (int i = first; i < end; i++) {
        paint_frame(frame, r, i);
        frame->pts = r->times ? r->times[i] : i;
        assert_true(avcodec_send_frame(codec, frame) >= 0);
        write_packets(r, format, codec, stream);
    }
    avcodec_send_frame(codec, NULL);
    write_packets(r, format, codec, stream);
    av_frame_free(&frame);
}

/* The bytes of the encoded file, which the caller frees. */
static inline uint8_t *encode_video(const VideoRecipe *r, size_t *size) {
    AVFormatContext *format = NULL;
    av_log_set_level(AV_LOG_QUIET);
    assert_true(avformat_alloc_output_context2(&format, NULL, r->container, NULL) >= 0);
    AVStream *stream = avformat_new_stream(format, NULL);
    AVCodecContext *codec = open_encoder(r, format, r->height, r->width);
    assert_true(avcodec_parameters_from_context(stream->codecpar, codec) >= 0);
    stream->time_base = codec->time_base;
    stream->avg_frame_rate = codec->framerate;
    if (r->rotation) rotate_stream(stream, r->rotation);
    char path[SCRATCH_PATH]; /* libavformat's buffer in memory loses what avi overwrites */
    int fd = mkstemp(scratch_path(path));
    assert_true(fd >= 0 && avio_open(&format->pb, path, AVIO_FLAG_READ_WRITE) >= 0);
    format->flags |= AVFMT_FLAG_BITEXACT;
    assert_true(avformat_write_header(format, NULL) >= 0);

    int end = r->then[0] ? r->then[0] : r->frames;
    write_frames(r, format, codec, stream, 0, end);
    avcodec_free_context(&codec);
    if (end < r->frames) {
        codec = open_encoder(r, format, r->then[1], r->then[2]);
        write_frames(r, format, codec, stream, end, r->frames);
        avcodec_free_context(&codec);
    }
    assert_true(av_write_trailer(format) >= 0);
    assert_true(avio_closep(&format->pb) >= 0);
    *size = (size_t)lseek(fd, 0, SEEK_END);
    uint8_t *bytes = malloc(*size);
    assert_int_equal(pread(fd, bytes, *size, 0), *size);
    close(fd);
    remove(path);
    avformat_free_context(format);
    return bytes;
}

#endif

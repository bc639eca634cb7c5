/* A file is read twice: once for the times of its packets, whose order is that of decoding, and once for the frames.
 *
 *   times    sorted, one for each frame; without the packets before the first key frame, and those that are shown before
 *            it, which nothing can be decoded from.  Where packets have no times, all frames are decoded and counted.
 *   wanted   if a key frame lies between the last frame decoded and the wanted one, seek to it and flush the decoder;
 *            decode, and drop frames before the wanted one; at the end of the file drain the decoder, which holds back
 *            as many frames as the stream has reordered.
 *
 * A container may seek too far; then everything is decoded from the start.  FFmpeg conceals errors without reporting
 * them, and a damaged file can have fewer frames without any error.  A wanted time must therefore be met exactly, and
 * by a decoder that has reported no error since the last key frame. */
#include "data/video/video.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/video/video_library.h"

/* The time to search a container's table grows with the square of the number of frames that an edit list cuts away. */
enum { IO_BUFFER = 1 << 16, PROBE_BYTES = 1 << 22, SEND_TRIES = 1 << 16, MOST_CUT_AWAY = 1 << 14 };

/* Formats whose files contain names of other files are not among them. */
static const char containers[] = "mov,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg";

typedef struct {
    int64_t time;
    bool key;
} Listed;

struct VideoReader {
    const uint8_t *bytes;
    size_t size, at;
    size_t most_pixels;
    AVIOContext *io;
    AVFormatContext *format;
    AVCodecContext *codec;
    AVPacket *packet;
    AVFrame *frame;
    int stream, turns; /* turns: clockwise, by 90 degrees each */
    Listed *frames;    /* [count], in ascending order; the indices of the frames if the file has no times */
    int count;
    bool counted;      /* the file has no times */
    bool searchable;   /* the number of frames in the time of a seek */
    int64_t position;  /* the time of the last frame decoded; INT64_MIN: none since the start */
    int64_t counter;   /* frames since the start, if they are counted */
    bool drained, suspect; /* suspect: an error since the last key frame */
    int decoded;
    struct SwsContext *scaler;
    int from[5];       /* the scaler's width, height, format, matrix and range */
    uint8_t *rgb, *turned; /* [rows,stride], [height,width,3] */
    size_t stride;
    int rows, columns; /* of a frame as it is stored; 0: not known yet */
};

bool video_available(Error *error) { return video_library_load(error); }

static bool refuse_code(Error *error, const char *what, int code) {
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    if (code == AVERROR(ENOMEM)) return refuse_memory(error, 0, what);
    ff.av_strerror(code, text, sizeof text);
    return refuse(error, "%s: %s", what, text);
}

/* == A file in memory ============================================================================================= */

static int read_bytes(void *opaque, uint8_t *buffer, int size) {
    VideoReader *v = opaque;
    size_t left = v->size - v->at, n = left < (size_t)size ? left : (size_t)size;
    if (!n) return AVERROR_EOF;
    memcpy(buffer, v->bytes + v->at, n);
    v->at += n;
    return (int)n;
}

static int64_t seek_bytes(void *opaque, int64_t offset, int whence) {
    VideoReader *v = opaque;
    int64_t size = (int64_t)v->size;
    if (whence & AVSEEK_SIZE) return size;
    whence &= ~AVSEEK_FORCE;
    if (whence == SEEK_CUR) offset += (int64_t)v->at;
    if (whence == SEEK_END) offset += size;
    if (offset < 0 || offset > size) return AVERROR(EINVAL);
    v->at = (size_t)offset;
    return offset;
}

static int refuse_other_files(AVFormatContext *format, AVIOContext **io, const char *url, int flags,
                              AVDictionary **options) {
    (void)format, (void)io, (void)url, (void)flags, (void)options;
    return AVERROR(EACCES);
}

static void format_close(VideoReader *v) {
    ff.avformat_close_input(&v->format);
    if (v->io) ff.av_freep(&v->io->buffer);
    ff.avio_context_free(&v->io);
}

/* Whether the header has everything that a decoder needs; other containers have to be probed, which decodes some
 * frames. */
static bool describes_streams(const AVFormatContext *format) {
    if (!strstr(format->iformat->name, "mp4") && !strstr(format->iformat->name, "matroska")) return false;
    for (unsigned i = 0; i < format->nb_streams; i++) {
        const AVCodecParameters *p = format->streams[i]->codecpar;
        if (p->codec_type == AVMEDIA_TYPE_VIDEO && (!p->width || !p->height)) return false;
    }
    return format->nb_streams > 0;
}

static bool format_open(VideoReader *v, Error *error) {
    uint8_t *buffer = ff.av_malloc(IO_BUFFER);
    v->at = 0;
    v->io = buffer ? ff.avio_alloc_context(buffer, IO_BUFFER, 0, v, read_bytes, NULL, seek_bytes) : NULL;
    v->format = v->io ? ff.avformat_alloc_context() : NULL;
    if (!v->io) ff.av_free(buffer);
    if (!v->format) return refuse_memory(error, IO_BUFFER, "a video");
    v->format->pb = v->io;
    v->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    v->format->io_open = refuse_other_files;
    v->format->format_whitelist = ff.av_strdup(containers);
    v->format->probesize = PROBE_BYTES;
    int code = ff.avformat_open_input(&v->format, NULL, NULL, NULL);
    if (code == AVERROR(EINVAL)) return refuse(error, "not a video that can be opened: none of %s", containers);
    if (code < 0) return refuse_code(error, "not a video that can be opened", code);
    if (describes_streams(v->format)) return true;
    code = ff.avformat_find_stream_info(v->format, NULL);
    return code >= 0 || refuse_code(error, "no streams", code);
}

/* == The decoder ================================================================================================== */

static const int32_t *display_matrix(const AVStream *stream) {
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
    const AVCodecParameters *p = stream->codecpar;
    const AVPacketSideData *side =
        ff.av_packet_side_data_get(p->coded_side_data, p->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
    return side && side->size >= 9 * sizeof(int32_t) ? (const int32_t *)(const void *)side->data : NULL;
#else
    size_t size = 0;
    const uint8_t *data = ff.av_stream_get_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
    return data && size >= 9 * sizeof(int32_t) ? (const int32_t *)(const void *)data : NULL;
#endif
}

/* The angle is anticlockwise, and the rotation that it undoes is clockwise. */
static int turns_of(const AVStream *stream) {
    const int32_t *matrix = display_matrix(stream);
    double angle = matrix ? ff.av_display_rotation_get(matrix) : 0;
    return isfinite(angle) ? (int)(((lrint(-angle / 90) % 4) + 4) % 4) : 0;
}

static bool decoder_open(VideoReader *v, Error *error) {
    const AVCodec *decoder = NULL;
    assert(v->format);
    v->stream = ff.av_find_best_stream(v->format, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    if (v->stream < 0) return refuse(error, "no video stream");
    AVStream *stream = v->format->streams[v->stream];
    if (stream->disposition & AV_DISPOSITION_ATTACHED_PIC) return refuse(error, "no video stream but a cover picture");
    decoder = ff.avcodec_find_decoder(stream->codecpar->codec_id);
    if (!decoder) return refuse(error, "no decoder for %s", ff.avcodec_get_name(stream->codecpar->codec_id));
    for (unsigned i = 0; i < v->format->nb_streams; i++)
        if ((int)i != v->stream) v->format->streams[i]->discard = AVDISCARD_ALL;
    v->turns = turns_of(stream);
    v->codec = ff.avcodec_alloc_context3(decoder);
    if (!v->codec) return refuse_memory(error, 0, "a decoder");
    int code = ff.avcodec_parameters_to_context(v->codec, stream->codecpar);
    v->codec->pkt_timebase = stream->time_base;
    v->codec->thread_count = 1; /* the loader's workers decode different videos */
    v->codec->max_pixels = (int64_t)v->most_pixels;
    if (code >= 0) code = ff.avcodec_open2(v->codec, decoder, NULL);
    if (code < 0) return refuse_code(error, decoder->name, code);
    return true;
}

/* Seeks to the first packet. */
static bool rewind_video(VideoReader *v, Error *error) {
    v->position = INT64_MIN;
    v->counter = 0;
    v->drained = v->suspect = false;
    format_close(v);
    ff.avcodec_free_context(&v->codec);
    return format_open(v, error) && decoder_open(v, error);
}

/* The next packet of the stream; false at the end. */
static bool next_packet(VideoReader *v) {
    while (ff.av_read_frame(v->format, v->packet) >= 0) {
        if (v->packet->stream_index == v->stream) return true;
        ff.av_packet_unref(v->packet);
    }
    return false;
}

static bool is_key(const AVFrame *frame) {
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(58, 29, 100)
    return frame->flags & AV_FRAME_FLAG_KEY;
#else
    return frame->key_frame;
#endif
}

/* The next frame of the decoder; false at the end. */
static bool next_frame(VideoReader *v) {
    for (int tries = 0; tries < SEND_TRIES; tries++) {
        int code = ff.avcodec_receive_frame(v->codec, v->frame);
        if (code >= 0) {
            bool bad = v->frame->flags & AV_FRAME_FLAG_CORRUPT || v->frame->decode_error_flags;
            v->suspect = bad || (v->suspect && !is_key(v->frame));
            v->position = v->counted ? v->counter++ : v->frame->best_effort_timestamp;
            v->decoded++;
            return true;
        }
        if (code == AVERROR_EOF) return false;
        if (code != AVERROR(EAGAIN)) v->suspect = true;
        if (v->drained) {
            if (code != AVERROR(EAGAIN)) continue;
            return false;
        }
        if (next_packet(v)) {
            if (v->packet->flags & AV_PKT_FLAG_CORRUPT) v->suspect = true; /* cut short */
            code = ff.avcodec_send_packet(v->codec, v->packet);
            ff.av_packet_unref(v->packet);
        } else {
            code = ff.avcodec_send_packet(v->codec, NULL);
            v->drained = true;
        }
        if (code < 0 && code != AVERROR_EOF) v->suspect = true;
    }
    return false;
}

/* == The list of frames =========================================================================================== */

/* A key frame comes before another picture with the same time. */
static int by_time(const void *a, const void *b) {
    const Listed *x = a, *y = b;
    return x->time != y->time ? (x->time > y->time) - (x->time < y->time) : y->key - x->key;
}

static Listed *grow(Listed *list, int count, int *room, Error *error) {
    if (count < *room) return list;
    *room = 2 * *room + 1024;
    Listed *more = count < VIDEO_MAX_FRAMES ? realloc(list, (size_t)*room * sizeof *list) : NULL;
    if (more) return more;
    free(list);
    if (count < VIDEO_MAX_FRAMES) refuse_memory(error, (size_t)*room * sizeof *list, "the frames of a video");
    else refuse(error, "more than %d frames", VIDEO_MAX_FRAMES);
    return NULL;
}

static bool refuse_empty(Error *error) { return refuse(error, "no frame that can be decoded"); }

/* Takes over the list and keeps one entry for each time: the two fields of a picture may be two packets.  An edit list
 * can leave none. */
static bool keep_list(VideoReader *v, Listed *list, int count, int64_t first, Error *error) {
    v->frames = list;
    v->count = 0;
    if (!count) return refuse_empty(error);
    qsort(list, (size_t)count, sizeof *list, by_time);
    for (int i = 0; i < count; i++)
        if (list[i].time >= first && (!v->count || list[i].time != list[v->count - 1].time)) list[v->count++] = list[i];
    return v->count || refuse_empty(error);
}

/* VP8 has hidden frames, whose packets have times, and which are never shown. */
static bool packet_hides(const VideoReader *v) {
    return v->codec->codec_id == AV_CODEC_ID_VP8 && v->packet->size > 0 && !(v->packet->data[0] & 0x10);
}

/* A frame that MPEG-4 does not code, as it equals the last one, has a packet without a picture: a start code, up to 22
 * bits of a header, and stuffing. */
static bool packet_may_be_empty(const VideoReader *v) {
    return v->codec->codec_id == AV_CODEC_ID_MPEG4 && v->packet->size <= 7;
}

/* *timeless: a packet has no time, or maybe no frame, and nothing is listed. */
static bool list_packets(VideoReader *v, bool *timeless, Error *error) {
    int count = 0, room = 0;
    int64_t first = INT64_MIN;
    bool begun = false, ok = true;
    Listed *list = NULL;
    for (*timeless = false; ok && !*timeless && next_packet(v); ff.av_packet_unref(v->packet)) {
        bool key = v->packet->flags & AV_PKT_FLAG_KEY;
        if (key && !begun) {
            first = v->packet->pts;
            begun = true;
        }
        if (!begun || v->packet->flags & AV_PKT_FLAG_DISCARD) continue; /* cut away by an edit list, but decoded */
        if (packet_hides(v)) continue;
        if (v->packet->pts == AV_NOPTS_VALUE || packet_may_be_empty(v)) *timeless = true;
        else if ((list = grow(list, count, &room, error))) list[count++] = (Listed){v->packet->pts, key};
        else ok = false;
    }
    if (ok && !*timeless) return keep_list(v, list, count, first, error);
    free(list);
    return ok;
}

/* Decodes everything; a frame's time is its index. */
static bool count_frames(VideoReader *v, Error *error) {
    int count = 0, room = 0;
    Listed *list = NULL;
    v->counted = true;
    if (!rewind_video(v, error)) return false;
    for (; next_frame(v); count++) {
        if (!(list = grow(list, count, &room, error))) return false;
        list[count] = (Listed){count, !count};
    }
    return keep_list(v, list, count, 0, error);
}

static bool list_frames(VideoReader *v, Error *error) {
    bool timeless;
    assert(v->format);
    int listed = ff.avformat_index_get_entries_count(v->format->streams[v->stream]);
    if (listed > 0 && (size_t)listed > v->size)
        return refuse(error, "%d frames are listed in %zu bytes: the file is damaged", listed, v->size);
    if (!list_packets(v, &timeless, error)) return false;
    if (timeless) return count_frames(v, error) && rewind_video(v, error);
    v->searchable = listed - v->count <= MOST_CUT_AWAY;
    if (!v->searchable) return rewind_video(v, error);
    v->position = INT64_MIN;
    int code = ff.av_seek_frame(v->format, v->stream, v->frames[0].time, AVSEEK_FLAG_BACKWARD);
    return code >= 0 || rewind_video(v, error);
}

/* == Pictures ===================================================================================================== */

static int matrix_of(enum AVColorSpace space) {
    switch (space) {
    case AVCOL_SPC_BT709: return SWS_CS_ITU709;
    case AVCOL_SPC_FCC: return SWS_CS_FCC;
    case AVCOL_SPC_SMPTE240M: return SWS_CS_SMPTE240M;
    case AVCOL_SPC_BT2020_NCL:
    case AVCOL_SPC_BT2020_CL: return SWS_CS_BT2020;
    default: return SWS_CS_ITU601;
    }
}

/* The formats with a J are the others in full range. */
static enum AVPixelFormat plain_format(enum AVPixelFormat format, bool *full) {
    static const enum AVPixelFormat pairs[][2] = {{AV_PIX_FMT_YUVJ420P, AV_PIX_FMT_YUV420P},
                                                  {AV_PIX_FMT_YUVJ422P, AV_PIX_FMT_YUV422P},
                                                  {AV_PIX_FMT_YUVJ444P, AV_PIX_FMT_YUV444P},
                                                  {AV_PIX_FMT_YUVJ440P, AV_PIX_FMT_YUV440P},
                                                  {AV_PIX_FMT_YUVJ411P, AV_PIX_FMT_YUV411P}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (format != pairs[i][0]) continue;
        *full = true;
        return pairs[i][1];
    }
    return format;
}

static bool scaler_open(VideoReader *v, Error *error) {
    const AVFrame *f = v->frame;
    bool full = f->color_range == AVCOL_RANGE_JPEG;
    enum AVPixelFormat format = plain_format((enum AVPixelFormat)f->format, &full);
    const int from[5] = {f->width, f->height, format, matrix_of(f->colorspace), full};
    if (v->scaler && !memcmp(from, v->from, sizeof from)) return true;
    if (f->width < 1 || f->height < 1 || (size_t)f->width * (size_t)f->height > v->most_pixels)
        return refuse(error, "a frame of %dx%d: expected at most %zu pixels", f->height, f->width, v->most_pixels);
    if (!v->rows) {
        v->rows = f->height;
        v->columns = f->width;
        v->stride = ((size_t)v->columns * 3 + 63) / 64 * 64 + 64;
        v->rgb = ff.av_malloc(v->stride * ((size_t)v->rows + 1));
        v->turned = malloc((size_t)v->rows * (size_t)v->columns * 3);
        if (!v->rgb || !v->turned) return refuse_memory(error, v->stride * (size_t)v->rows, "a frame");
    }
    ff.sws_freeContext(v->scaler);
    v->scaler = ff.sws_getContext(f->width, f->height, format, v->columns, v->rows, AV_PIX_FMT_RGB24,
                                  SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, NULL, NULL, NULL);
    if (!v->scaler) {
        const char *name = ff.av_get_pix_fmt_name(format);
        return refuse(error, "pixels of %s cannot be converted", name ? name : "an unknown format");
    }
    ff.sws_setColorspaceDetails(v->scaler, ff.sws_getCoefficients(from[3]), full,
                                ff.sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
    memcpy(v->from, from, sizeof from);
    return true;
}

/* turned [height,width,3] from rows of v->rgb, which are `stride` apart; a clockwise turn brings the last row to the
 * left. */
static void turn_picture(VideoReader *v, int height, int width) {
    uint8_t *out = v->turned;
    if (v->turns == 0) {
        for (int y = 0; y < height; y++, out += width * 3)
            memcpy(out, v->rgb + (size_t)y * v->stride, (size_t)width * 3);
        return;
    }
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++, out += 3) {
            int row = v->turns == 1 ? v->rows - 1 - x : v->turns == 2 ? v->rows - 1 - y : x;
            int column = v->turns == 1 ? y : v->turns == 2 ? v->columns - 1 - x : v->columns - 1 - y;
            memcpy(out, v->rgb + (size_t)row * v->stride + (size_t)column * 3, 3);
        }
}

/* The frame as pixels [*height,*width,3] in v->turned. */
static bool convert(VideoReader *v, int *height, int *width, Error *error) {
    if (!scaler_open(v, error)) return false;
    uint8_t *planes[4] = {v->rgb};
    int strides[4] = {(int)v->stride};
    int rows = ff.sws_scale(v->scaler, (const uint8_t *const *)v->frame->data, v->frame->linesize, 0, v->frame->height,
                            planes, strides);
    if (rows != v->rows) return refuse(error, "a frame of %dx%d cannot be converted", v->frame->height,
                                       v->frame->width);
    *height = v->turns % 2 ? v->columns : v->rows;
    *width = v->turns % 2 ? v->rows : v->columns;
    turn_picture(v, *height, *width);
    return true;
}

/* == Reading ====================================================================================================== */

/* Seeks to the last key frame at or before a frame, if that is ahead of the decoder.  At the start it is only ahead
 * where another key frame lies between. */
static void seek_ahead(VideoReader *v, int frame) {
    int key = frame;
    while (key > 0 && !v->frames[key].key) key--;
    if (v->counted || !v->searchable || key == 0 || v->frames[key].time <= v->position) return;
    if (ff.av_seek_frame(v->format, v->stream, v->frames[key].time, AVSEEK_FLAG_BACKWARD) < 0) return;
    ff.avcodec_flush_buffers(v->codec);
    v->drained = v->suspect = false;
    v->position = INT64_MIN;
}

/* Decodes up to that frame.  If the first frame after a seek is later, the seek went too far, and decoding starts again
 * from the beginning. */
static bool reach(VideoReader *v, int frame, Error *error) {
    int64_t wanted = v->frames[frame].time;
    for (int attempt = 0; attempt < 2; attempt++) {
        if (attempt == 0) seek_ahead(v, frame);
        else if (!rewind_video(v, error)) return false;
        while (v->position < wanted)
            if (!next_frame(v)) break;
        if (v->position == wanted) break;
    }
    if (v->position != wanted) return refuse(error, "frame %d of %d is missing: the file is damaged", frame, v->count);
    if (v->suspect) return refuse(error, "frame %d of %d is damaged", frame, v->count);
    return true;
}

bool video_read(VideoReader *v, const int *index, int count,
                bool (*take)(void *context, int i, const uint8_t *pixels, int height, int width, Error *error),
                void *context, Error *error) {
    int height = 0, width = 0;
    for (int i = 0; i < count; i++) {
        if (index[i] < 0 || index[i] >= v->count || (i && index[i] < index[i - 1]))
            return refuse(error, "frame %d of %d was asked for", index[i], v->count);
        bool again = i && index[i] == index[i - 1];
        if (!again && v->position > v->frames[index[i]].time && !rewind_video(v, error)) return false;
        if (!again && (!reach(v, index[i], error) || !convert(v, &height, &width, error))) return false;
        if (!take(context, i, v->turned, height, width, error)) return false;
    }
    return true;
}

/* == A reader ===================================================================================================== */

VideoReader *video_open(const uint8_t *bytes, size_t size, size_t most_pixels, Error *error) {
    if (!video_library_load(error)) return NULL;
    VideoReader *v = calloc(1, sizeof *v);
    if (!v) return refuse_memory(error, sizeof *v, "a video"), NULL;
    v->bytes = bytes;
    v->size = size;
    v->most_pixels = most_pixels;
    v->position = INT64_MIN;
    v->packet = ff.av_packet_alloc();
    v->frame = ff.av_frame_alloc();
    if (!v->packet || !v->frame) refuse_memory(error, 0, "a video");
    else if (format_open(v, error) && decoder_open(v, error) && list_frames(v, error)) return v;
    video_close(v);
    return NULL;
}

void video_close(VideoReader *reader) {
    if (!reader) return;
    format_close(reader);
    ff.avcodec_free_context(&reader->codec);
    ff.av_packet_free(&reader->packet);
    ff.av_frame_free(&reader->frame);
    ff.sws_freeContext(reader->scaler);
    ff.av_free(reader->rgb);
    free(reader->turned);
    free(reader->frames);
    free(reader);
}

int video_frames(const VideoReader *reader) { return reader->count; }
int video_decoded(const VideoReader *reader) { return reader->decoded; }

double video_time(const VideoReader *reader, int frame) {
    AVRational base = reader->format->streams[reader->stream]->time_base;
    if (reader->counted) base = av_inv_q(reader->format->streams[reader->stream]->avg_frame_rate);
    return base.den ? (double)(reader->frames[frame].time - reader->frames[0].time) * base.num / base.den : 0;
}

double video_fps(const VideoReader *reader) {
    double time = video_time(reader, reader->count - 1);
    return time > 0 ? (reader->count - 1) / time : 0;
}

#include "data/images/jpeg.h"

#include <assert.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* More scans than any encoder writes, yet so few that a small file cannot keep a worker busy for minutes. */
enum { MAX_SCANS = 500 };

struct JpegReader {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back; /* target of longjmp after an error */
    Error *error; /* of the current call */

    const uint8_t *bytes;
    size_t size;
    int eighths;
    const int *rows, *columns;

    uint8_t *pixels; /* [rows,stride] */
    size_t room;
    uint8_t *inks; /* one row of CMYK */
    size_t inks_room;
    ImagePart part;
};

/* == Errors ======================================================================================================= */

/* libjpeg calls this and does not expect it to return. */
static void on_error(j_common_ptr jpeg) {
    JpegReader *reader = jpeg->client_data;
    char words[JMSG_LENGTH_MAX];
    switch (jpeg->err->msg_code) {
    case JERR_BAD_PRECISION:
        refuse(reader->error, "a JPEG of %d bits a channel, expected 8", jpeg->err->msg_parm.i[0]);
        break;
    case JWRN_JPEG_EOF:
    case JERR_INPUT_EOF:
    case JERR_INPUT_EMPTY:
        refuse(reader->error, "a JPEG cut short");
        break;
    case JERR_OUT_OF_MEMORY:
        refuse_memory(reader->error, 0, "a JPEG");
        break;
    default:
        jpeg->err->format_message(jpeg, words);
        refuse(reader->error, "a damaged JPEG (%s)", words);
    }
    longjmp(reader->back, 1);
}

/* When a file is truncated, libjpeg fills the rest with grey, which is unfit for training: treat it as an error.  Other
 * warnings concern defects that every reader accepts: stray bytes before a marker, odd tables. */
static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) on_error(jpeg);
}

static void say_nothing(j_common_ptr jpeg) { (void)jpeg; }

static void count_scans(j_common_ptr jpeg) {
    JpegReader *reader = jpeg->client_data;
    if (!jpeg->is_decompressor || ((j_decompress_ptr)jpeg)->input_scan_number <= MAX_SCANS) return;
    refuse(reader->error, "a JPEG of more than %d scans", MAX_SCANS);
    longjmp(reader->back, 1);
}

/* Runs one step and catches libjpeg's errors; after an error the reader is ready for the next picture. */
static bool attempt(JpegReader *reader, void (*step)(JpegReader *reader), Error *error) {
    reader->error = error;
    if (setjmp(reader->back)) {
        jpeg_abort_decompress(&reader->jpeg);
        return false;
    }
    step(reader);
    return true;
}

static void create(JpegReader *reader) {
    jpeg_create_decompress(&reader->jpeg);
    reader->jpeg.client_data = reader;
    reader->progress.progress_monitor = count_scans;
    reader->jpeg.progress = &reader->progress;
}

static void errors_set(struct jpeg_error_mgr *errors) {
    jpeg_std_error(errors);
    errors->error_exit = on_error;
    errors->emit_message = on_message;
    errors->output_message = say_nothing;
}

JpegReader *jpeg_open(void) {
    Error error;
    JpegReader *reader = calloc(1, sizeof *reader);
    if (!reader) return NULL;
    errors_set(&reader->errors);
    reader->jpeg.err = &reader->errors;
    reader->jpeg.client_data = reader;
    if (attempt(reader, create, &error)) return reader;
    free(reader);
    return NULL;
}

void jpeg_close(JpegReader *reader) {
    if (!reader) return;
    jpeg_destroy_decompress(&reader->jpeg);
    free(reader->pixels);
    free(reader->inks);
    free(reader);
}

/* == Header ======================================================================================================= */

bool jpeg_is(const uint8_t *bytes, size_t size) {
    return size >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff;
}

static void read_header(JpegReader *reader) {
    struct jpeg_decompress_struct *jpeg = &reader->jpeg;
    jpeg_mem_src(jpeg, reader->bytes, reader->size);
    jpeg_read_header(jpeg, TRUE);
    switch (jpeg->jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_YCbCr:
    case JCS_RGB:
        jpeg->out_color_space = JCS_RGB;
        break;
    case JCS_CMYK:
    case JCS_YCCK:
        jpeg->out_color_space = JCS_CMYK;
        break;
    default:
        refuse(reader->error, "a JPEG of %d channels, expected 1, 3 or 4", jpeg->num_components);
        longjmp(reader->back, 1);
    }
}

bool jpeg_begin(JpegReader *reader, const uint8_t *bytes, size_t size, size_t most_pixels, int *height, int *width,
                Error *error) {
    jpeg_abort_decompress(&reader->jpeg);
    reader->bytes = bytes;
    reader->size = size;
    if (!attempt(reader, read_header, error)) return false;
    *height = (int)reader->jpeg.image_height;
    *width = (int)reader->jpeg.image_width;
    if ((size_t)*height * (size_t)*width > most_pixels)
        return refuse(error, "%d x %d pixels, expected at most %zu in all", *height, *width, most_pixels);
    return true;
}

bool jpeg_scales(const JpegReader *reader) {
    return reader->jpeg.max_h_samp_factor <= 2 && reader->jpeg.max_v_samp_factor <= 2;
}

int jpeg_scaled(int n, int eighths) { return (int)(((int64_t)n * eighths + 7) / 8); }

int jpeg_eighths(int height, int width, int out_height, int out_width) {
    int eighths = 1;
    while (eighths < 8 && ((int64_t)height * eighths < (int64_t)out_height * 8 ||
                           (int64_t)width * eighths < (int64_t)out_width * 8)) {
        eighths *= 2;
    }
    return eighths;
}

/* == Pixels ======================================================================================================= */

static uint8_t *grow(JpegReader *reader, uint8_t **memory, size_t *room, size_t size) {
    if (size > *room) {
        free(*memory);
        *room = 0;
        *memory = malloc(size);
        if (!*memory) {
            refuse_memory(reader->error, size, "a JPEG");
            longjmp(reader->back, 1);
        }
        *room = size;
    }
    return *memory;
}

/* Adobe stores ink with 255 for none: Pillow inverts it to (c,m,y,k) and then takes each channel as
 * n - round(c n / 255) with n = 255 - k (its Convert.c). */
static void inks_to_rgb(uint8_t *rgb, const uint8_t *inks, int width) {
    for (int x = 0; x < width; x++) {
        int paper = inks[x * 4 + 3];
        for (int c = 0; c < 3; c++) {
            int product = (255 - inks[x * 4 + c]) * paper + 128, ink = ((product >> 8) + product) >> 8;
            rgb[x * 3 + c] = (uint8_t)(paper > ink ? paper - ink : 0);
        }
    }
}

static void read_rows(JpegReader *reader, uint8_t *first, size_t stride, int rows, int width) {
    enum { AT_ONCE = 8 };
    struct jpeg_decompress_struct *jpeg = &reader->jpeg;
    bool four = jpeg->out_color_space == JCS_CMYK;
    uint8_t *inks = four ? grow(reader, &reader->inks, &reader->inks_room, (size_t)width * 4) : NULL;
    for (int done = 0; done < rows;) {
        JSAMPROW row[AT_ONCE];
        int want = four ? 1 : rows - done < AT_ONCE ? rows - done : AT_ONCE;
        for (int i = 0; i < want; i++) row[i] = four ? inks : first + (size_t)(done + i) * stride;
        int got = (int)jpeg_read_scanlines(jpeg, row, (JDIMENSION)want);
        if (four) inks_to_rgb(first + (size_t)done * stride, inks, width);
        done += got;
    }
}

/* Columns are cropped at block boundaries, and the first and last cropped columns are upsampled without their
 * neighbours, so a few extra columns are decoded on either side. */
static void read_region(JpegReader *reader) {
    enum { MARGIN = 8 };
    struct jpeg_decompress_struct *jpeg = &reader->jpeg;
    jpeg->scale_num = (unsigned)reader->eighths;
    jpeg->scale_denom = 8;
    jpeg_start_decompress(jpeg);

    int low = reader->columns[0] - MARGIN, high = reader->columns[1] + MARGIN, whole = (int)jpeg->output_width;
    JDIMENSION left = (JDIMENSION)(low > 0 ? low : 0), width = (JDIMENSION)(high < whole ? high : whole) - left;
    if (width < jpeg->output_width) jpeg_crop_scanline(jpeg, &left, &width);
    int top = reader->rows[0], rows = reader->rows[1] - top;
    if (top) jpeg_skip_scanlines(jpeg, (JDIMENSION)top);

    size_t stride = (size_t)jpeg->output_width * 3;
    uint8_t *pixels = grow(reader, &reader->pixels, &reader->room, stride * (size_t)rows);
    read_rows(reader, pixels, stride, rows, (int)jpeg->output_width);
    reader->part = (ImagePart){.pixels = pixels, .stride = stride, .top = top, .left = (int)left, .height = rows,
                               .width = (int)jpeg->output_width};
    jpeg_abort_decompress(jpeg);
}

bool jpeg_region(JpegReader *reader, int eighths, const int rows[2], const int columns[2], ImagePart *part,
                 Error *error) {
    assert(eighths == 8 || jpeg_scales(reader));
    assert(rows[0] >= 0 && rows[0] < rows[1] && rows[1] <= jpeg_scaled((int)reader->jpeg.image_height, eighths));
    assert(columns[0] >= 0 && columns[0] < columns[1] &&
           columns[1] <= jpeg_scaled((int)reader->jpeg.image_width, eighths));
    reader->eighths = eighths;
    reader->rows = rows;
    reader->columns = columns;
    if (!attempt(reader, read_region, error)) return false;
    *part = reader->part;
    return true;
}

/* == Out ========================================================================================================== */

typedef struct {
    struct jpeg_compress_struct jpeg;
    JpegReader errors; /* used only for its error handling */
    unsigned char *bytes;
    unsigned long size;
} Encoder;

static void encode_rows(Encoder *encoder, const uint8_t *pixels, int height, int width, int quality) {
    struct jpeg_compress_struct *jpeg = &encoder->jpeg;
    jpeg_create_compress(jpeg);
    jpeg->client_data = &encoder->errors;
    jpeg_mem_dest(jpeg, &encoder->bytes, &encoder->size);
    jpeg->image_height = (JDIMENSION)height;
    jpeg->image_width = (JDIMENSION)width;
    jpeg->input_components = 3;
    jpeg->in_color_space = JCS_RGB;
    jpeg_set_defaults(jpeg);
    jpeg_set_quality(jpeg, quality, TRUE);
    jpeg_start_compress(jpeg, TRUE);
    while (jpeg->next_scanline < jpeg->image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + (size_t)jpeg->next_scanline * (size_t)width * 3);
        jpeg_write_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_compress(jpeg);
}

bool jpeg_encode(const uint8_t *pixels, int height, int width, int quality, uint8_t **bytes, size_t *size,
                 Error *error) {
    Encoder encoder = {.errors.error = error};
    errors_set(&encoder.errors.errors);
    encoder.jpeg.err = &encoder.errors.errors;
    encoder.jpeg.client_data = &encoder.errors;
    bool ok = !setjmp(encoder.errors.back);
    if (ok) encode_rows(&encoder, pixels, height, width, quality);
    jpeg_destroy_compress(&encoder.jpeg);
    *bytes = ok ? encoder.bytes : NULL;
    *size = ok ? encoder.size : 0;
    if (!ok) free(encoder.bytes);
    return ok;
}

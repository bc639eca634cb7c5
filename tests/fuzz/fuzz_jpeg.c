/* libFuzzer target: decoding a part of a JPEG at a reduced scale, as the loader does.  The last three bytes choose part
 * and scale.  Images have at most 2^18 pixels, since a few bytes of a larger image can take seconds to decode. */
#include <stdlib.h>

#include "data/images/jpeg.h"
#include "data/images/resample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST = 1 << 18 };
    static JpegReader *reader; /* one for all inputs, as in a loader's thread */
    static Resampler resampler;
    Error error;
    int height, width;
    ImagePart part;
    if (!reader) reader = jpeg_open();
    if (size < 3 || !jpeg_begin(reader, data, size, MOST, &height, &width, &error)) return 0;
    if (height < 1 || width < 1 || (size_t)height * (size_t)width > MOST) abort();
    int m = jpeg_scales(reader) ? 1 << (data[size - 1] & 3) : 8, h = jpeg_scaled(height, m), w = jpeg_scaled(width, m);
    int rows[2] = {data[size - 2] * (h - 1) / 255, 0}, columns[2] = {data[size - 3] * (w - 1) / 255, 0};
    rows[1] = rows[0] + 1 + (data[size - 1] >> 2) * (h - rows[0] - 1) / 63;
    columns[1] = columns[0] + 1 + (data[size - 1] >> 2) * (w - columns[0] - 1) / 63;
    if (!jpeg_region(reader, m, rows, columns, &part, &error)) return 0;
    if (part.top > rows[0] || part.top + part.height < rows[1]) abort();
    if (part.left > columns[0] || part.left + part.width < columns[1]) abort();
    uint8_t out[9 * 8 * 3];
    part.top -= rows[0];
    part.left -= columns[0];
    ResampleAxis y = resample_whole(rows[1] - rows[0], 9), x = resample_whole(columns[1] - columns[0], 8);
    if (!resample(&resampler, out, &part, &y, &x, RESAMPLE_BICUBIC)) abort();
    return 0;
}

#include "data/sequences/sound.h"

#include <math.h>
#include <samplerate.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"
#include "data/sequences/mu_law.h"

bool sound_available(void) { return true; }

/* == A file in memory, for libsndfile ============================================================================= */

typedef struct {
    const uint8_t *bytes;
    sf_count_t size, at;
} Memory;

static sf_count_t memory_size(void *file) { return ((Memory *)file)->size; }

static sf_count_t memory_seek(sf_count_t offset, int whence, void *file) {
    Memory *memory = file;
    sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? memory->at : memory->size;
    if (offset < -from) return -1;
    return memory->at = from + offset;
}

static sf_count_t memory_read(void *to, sf_count_t count, void *file) {
    Memory *memory = file;
    sf_count_t left = memory->at < memory->size ? memory->size - memory->at : 0;
    if (count > left) count = left;
    memcpy(to, memory->bytes + memory->at, (size_t)count);
    memory->at += count;
    return count;
}

static sf_count_t memory_tell(void *file) { return ((Memory *)file)->at; }

/* == Reading ====================================================================================================== */

enum { BLOCK = 1 << 14, MOST_CHANNELS = 64, BLOCK_OUT = BLOCK + 16 };

static bool can_read(int format) {
    int container = format & SF_FORMAT_TYPEMASK, coding = format & SF_FORMAT_SUBMASK;
    if (container != SF_FORMAT_WAV && container != SF_FORMAT_WAVEX && container != SF_FORMAT_RF64) return false;
    return coding == SF_FORMAT_PCM_U8 || coding == SF_FORMAT_PCM_16 || coding == SF_FORMAT_PCM_24 ||
           coding == SF_FORMAT_PCM_32 || coding == SF_FORMAT_FLOAT || coding == SF_FORMAT_DOUBLE;
}

/* libsndfile reads the existing part of a truncated file, so the size in the header is checked. */
static bool whole(const uint8_t *bytes, size_t size, Error *error) {
    uint32_t rest = 0;
    if (size >= 4 && !memcmp(bytes, "RIFX", 4))
        return refuse(error, "a big-endian WAV file (RIFX), which is not supported: convert it to RIFF");
    if (size < 12 || (memcmp(bytes, "RIFF", 4) && memcmp(bytes, "RF64", 4)) || memcmp(bytes + 8, "WAVE", 4))
        return refuse(error, "not a WAV file");
    for (int i = 3; i >= 0; i--) rest = rest << 8 | bytes[4 + i];
    if (rest == UINT32_MAX || (size_t)rest + 8 <= size) return true; /* the first value: a stream, or RF64 */
    return refuse(error, "%zu bytes, but its header says %zu: the file is cut short", size, (size_t)rest + 8);
}

static SNDFILE *open_wav(Memory *memory, SF_INFO *info, Error *error) {
    SF_VIRTUAL_IO io = {.get_filelen = memory_size, .seek = memory_seek, .read = memory_read, .tell = memory_tell};
    if (!whole(memory->bytes, (size_t)memory->size, error)) return NULL;
    SNDFILE *file = sf_open_virtual(&io, SFM_READ, info, memory);
    if (!file) {
        refuse(error, "a damaged WAV file: %s", sf_strerror(NULL));
        return NULL;
    }
    SF_FORMAT_INFO name = {.format = info->format & SF_FORMAT_SUBMASK};
    if (!can_read(info->format)) {
        bool known = sf_command(NULL, SFC_GET_FORMAT_INFO, &name, sizeof name) == 0 && name.name;
        refuse(error, "sound as %s, expected PCM of 8, 16, 24 or 32 bits or float", known ? name.name : "another format");
    } else if (info->channels < 1 || info->channels > MOST_CHANNELS) {
        refuse(error, "%d channels, expected 1 to %d", info->channels, MOST_CHANNELS);
    } else if (info->samplerate < 1000 || info->samplerate > 1000000) {
        refuse(error, "%d samples a second, expected 1000 to 1000000", info->samplerate);
    } else if (info->frames < 1) {
        refuse(error, "no sound in it");
    } else {
        return file;
    }
    sf_close(file);
    return NULL;
}

typedef struct {
    uint8_t *bytes;
    size_t count, room;
} Samples;

static bool append(Samples *samples, const float *x, long count, Error *error) {
    if (samples->count + (size_t)count > samples->room) {
        size_t room = 2 * samples->room + (size_t)count;
        uint8_t *bytes = realloc(samples->bytes, room);
        if (!bytes) return refuse_memory(error, room, "sound");
        samples->bytes = bytes;
        samples->room = room;
    }
    for (long i = 0; i < count; i++) samples->bytes[samples->count + (size_t)i] = mu_law_encode((double)x[i]);
    samples->count += (size_t)count;
    return true;
}

/* frames [count,channels] -> mono [count], the mean of the channels. */
static bool mix(float *mono, const float *frames, long count, int channels, size_t first, Error *error) {
    for (long i = 0; i < count; i++) {
        float sum = 0;
        for (int c = 0; c < channels; c++) sum += frames[i * channels + c];
        if (!isfinite(sum)) return refuse(error, "a damaged WAV file: sample %zu is not a number", first + (size_t)i);
        mono[i] = sum / (float)channels;
    }
    return true;
}

/* Converts the rate of mono [count] and appends the result; `last`: nothing follows. */
static bool convert(SRC_STATE *state, double ratio, float *mono, long count, bool last, Samples *samples, Error *error) {
    float out[BLOCK_OUT];
    for (;;) {
        SRC_DATA data = {.data_in = mono, .data_out = out, .input_frames = count, .output_frames = BLOCK_OUT,
                         .end_of_input = last, .src_ratio = ratio};
        int trouble = src_process(state, &data);
        if (trouble) return refuse(error, "its rate cannot be converted: %s", src_strerror(trouble));
        if (!append(samples, out, data.output_frames_gen, error)) return false;
        mono += data.input_frames_used;
        count -= data.input_frames_used;
        if (!data.output_frames_gen && (!count || !data.input_frames_used)) return true;
    }
}

/* frames [BLOCK,channels] and mono [BLOCK] are scratch; state NULL: the rate is already right. */
static bool read_all(SNDFILE *file, const SF_INFO *info, SRC_STATE *state, double ratio, float *frames, float *mono,
                     Samples *samples, Error *error) {
    size_t done = 0;
    for (long got; (got = (long)sf_readf_float(file, frames, BLOCK)) > 0; done += (size_t)got) {
        if (!mix(mono, frames, got, info->channels, done, error)) return false;
        if (state ? !convert(state, ratio, mono, got, false, samples, error) : !append(samples, mono, got, error))
            return false;
    }
    if (state && !convert(state, ratio, mono, 0, true, samples, error)) return false;
    if (done != (size_t)info->frames)
        return refuse(error, "a damaged WAV file: %zu samples, but its header says %zu", done, (size_t)info->frames);
    return samples->count > 0 || refuse(error, "no sound in it");
}

bool sound_decode(uint8_t **samples, size_t *count, const uint8_t *bytes, size_t size, int rate, Error *error) {
    Memory memory = {.bytes = bytes, .size = (sf_count_t)size};
    SF_INFO info = {.format = 0};
    Samples made = {.count = 0};
    int trouble = 0;
    SNDFILE *file = open_wav(&memory, &info, error);
    if (!file) return false;
    SRC_STATE *state = info.samplerate == rate ? NULL : src_new(SRC_SINC_MEDIUM_QUALITY, 1, &trouble);
    size_t block = (size_t)BLOCK * ((size_t)info.channels + 1);
    float *frames = malloc(block * sizeof *frames);
    bool ok = frames && !trouble;
    if (ok)
        ok = read_all(file, &info, state, (double)rate / info.samplerate, frames,
                      frames + (size_t)BLOCK * (size_t)info.channels, &made, error);
    else
        refuse_memory(error, block * sizeof *frames, "sound");
    free(frames);
    if (state) src_delete(state);
    sf_close(file);
    if (!ok) free(made.bytes);
    if (ok) *samples = made.bytes, *count = made.count;
    return ok;
}

/* == Writing ====================================================================================================== */

typedef struct {
    uint8_t *bytes;
    size_t size, room, at;
    bool full;
} Growing;

static sf_count_t growing_size(void *file) { return (sf_count_t)((Growing *)file)->size; }

static sf_count_t growing_seek(sf_count_t offset, int whence, void *file) {
    Growing *growing = file;
    sf_count_t from = whence == SEEK_SET ? 0 : (sf_count_t)(whence == SEEK_CUR ? growing->at : growing->size);
    if (offset < -from) return -1;
    growing->at = (size_t)(from + offset);
    return from + offset;
}

static sf_count_t growing_read(void *to, sf_count_t count, void *file) {
    (void)to, (void)count, (void)file;
    return 0;
}

/* The size is known in advance: a header and two bytes a sample. */
static sf_count_t growing_write(const void *from, sf_count_t count, void *file) {
    Growing *growing = file;
    if (growing->at > growing->room || (size_t)count > growing->room - growing->at) return growing->full = true, 0;
    memcpy(growing->bytes + growing->at, from, (size_t)count);
    growing->at += (size_t)count;
    if (growing->at > growing->size) growing->size = growing->at;
    return count;
}

static sf_count_t growing_tell(void *file) { return (sf_count_t)((Growing *)file)->at; }

static bool write_samples(SNDFILE *file, const uint8_t *samples, size_t count) {
    for (size_t i = 0; i < count; i++) {
        short x = (short)lrint(32767 * mu_law_decode(samples[i]));
        if (sf_write_short(file, &x, 1) != 1) return false;
    }
    return true;
}

bool sound_write(const char *path, const uint8_t *samples, size_t count, int rate, Error *error) {
    enum { HEADER = 4096 };
    SF_VIRTUAL_IO io = {growing_size, growing_seek, growing_read, growing_write, growing_tell};
    SF_INFO info = {.samplerate = rate, .channels = 1, .format = SF_FORMAT_WAV | SF_FORMAT_PCM_16};
    if (count > (UINT32_MAX - HEADER) / 2) return refuse(error, "%zu samples are too many for a WAV file", count);
    if (!samples) return true;
    Growing growing = {.room = HEADER + 2 * count};
    growing.bytes = malloc(growing.room);
    if (!growing.bytes) return refuse_memory(error, growing.room, "sound");
    SNDFILE *file = sf_open_virtual(&io, SFM_WRITE, &info, &growing);
    bool ok = file && write_samples(file, samples, count);
    if (file && sf_close(file)) ok = false;
    ok = (ok && !growing.full) || refuse(error, "the sound cannot be encoded");
    ok = ok && file_write(path, growing.bytes, growing.size, error);
    free(growing.bytes);
    return ok;
}

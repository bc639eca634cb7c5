#include "data/sequences/sound.h"

static const char missing[] = "this build has no libsndfile and libsamplerate: install libsndfile1-dev and "
                              "libsamplerate0-dev and run make again";

bool sound_available(void) { return false; }

bool sound_decode(uint8_t **samples, size_t *count, const uint8_t *bytes, size_t size, int rate, Error *error) {
    (void)samples, (void)count, (void)bytes, (void)size, (void)rate;
    return refuse(error, "a WAV file, and %s", missing);
}

bool sound_write(const char *path, const uint8_t *samples, size_t count, int rate, Error *error) {
    (void)path, (void)samples, (void)count, (void)rate;
    return refuse(error, "sound cannot be written: %s", missing);
}

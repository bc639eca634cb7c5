#include "data/video/video_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

VideoLibrary ff;

typedef struct {
    const char *name;
    void *function; /* its member of ff */
} Function;

typedef struct {
    const char *file;
    const Function *functions; /* ending with a name that is NULL */
} Library;

#define PLACE(function) {#function, &ff.function},
#define FILE_OF(name, version) "lib" name ".so." AV_STRINGIFY(version)
static const Function util[] = {UTIL_FUNCTIONS(PLACE){NULL, NULL}};
static const Function codec[] = {CODEC_FUNCTIONS(PLACE){NULL, NULL}};
static const Function format[] = {FORMAT_FUNCTIONS(PLACE){NULL, NULL}};
static const Function scale[] = {SCALE_FUNCTIONS(PLACE){NULL, NULL}};
static const Library libraries[] = {{FILE_OF("avutil", LIBAVUTIL_VERSION_MAJOR), util},
                                    {FILE_OF("avcodec", LIBAVCODEC_VERSION_MAJOR), codec},
                                    {FILE_OF("avformat", LIBAVFORMAT_VERSION_MAJOR), format},
                                    {FILE_OF("swscale", LIBSWSCALE_VERSION_MAJOR), scale}};
/* Debian's names of these packages end with the versions. */
static const char packages[] = "libavformat" AV_STRINGIFY(LIBAVFORMAT_VERSION_MAJOR) " and libswscale" AV_STRINGIFY(
    LIBSWSCALE_VERSION_MAJOR);

static bool loaded;
static Error missing;

static bool load(const Library *library) {
    void *handle = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
    for (const Function *f = library->functions; handle && f->name; f++) {
        void *found = dlsym(handle, f->name);
        if (!found) return false;
        memcpy(f->function, &found, sizeof found);
    }
    return handle;
}

static void load_all(void) {
    loaded = true;
    for (size_t i = 0; loaded && i < sizeof libraries / sizeof *libraries; i++) loaded = load(&libraries[i]);
    if (loaded) ff.av_log_set_level(AV_LOG_QUIET);
    else refuse(&missing, "a video, and FFmpeg's libraries are not on this machine: install %s (%s)", packages,
                dlerror());
}

bool video_library_load(Error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_all);
    return loaded || refuse_library(error, missing.text);
}

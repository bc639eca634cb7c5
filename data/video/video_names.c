#include <string.h>
#include <strings.h>

#include "data/video/video.h"

bool video_has_name(const char *name) {
    static const char *const endings[] = {".mp4", ".mkv",  ".webm", ".avi", ".mov", ".m4v", ".mpg",
                                          ".mpeg", ".ts", ".flv",  ".wmv", ".ogv", ".3gp"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (!strcasecmp(dot, endings[i])) return true;
    return false;
}

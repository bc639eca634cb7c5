#include "core/text.h"
#include "data/video/video.h"

bool video_has_name(const char *name) {
    return text_has_extension(name, "mp4 mkv webm avi mov m4v mpg mpeg ts flv wmv ogv 3gp");
}

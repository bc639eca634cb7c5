#include "layers/attention/low_rank.h"

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, LandmarksSettings, landmarks), "7", .section = "attention", .min = 1, .max = 64,
     .help = "Landmarks of nystrom and soft to a side of their grid"},
};

const ConfigGroup landmarks_settings = {CONFIG_GROUP(LandmarksSettings, entries)};

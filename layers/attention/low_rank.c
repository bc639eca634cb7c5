#include "layers/attention/low_rank.h"

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, LandmarksSettings, landmarks), "7", .section = "attention", .min = 1, .max = 64,
     .help = "Side of the grid of landmarks in nystrom and soft (7: 7 x 7 landmarks, for clips in each frame of tokens)"},
};

const ConfigGroup landmarks_settings = {CONFIG_GROUP(LandmarksSettings, entries), .change = CHANGE_NEVER};

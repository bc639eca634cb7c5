#include "layers/backbone/hierarchy.h"

#include <string.h>

#include "core/die.h"

enum { MAPS = 4, FIRST_STRIDE = 4, MOST_ENTRIES = 32 };

typedef struct {
    VitSettings vit; /* the fields of the settings below; the others are 0 */
    bool output_norm;
} HierarchySettings;

static const char *const taken[] = {
    "attn", "img_size", "patch_size", "patch_overlap", "patch_pad", "patch_norm", "patch_merging", "stage_norm",
    "norm_eps", "dim", "depth", "heads", "mlp_ratio", "mlp_conv", "mlp_relu", "conv_stages", "conv_block", "pos_embed",
    "drop_path", "recompute", NULL,
};

static const ConfigEntry output_norm = {
    CONFIG_FIELD(BOOL, HierarchySettings, output_norm), "true",
    .help = "With stage_norm false: a layer norm of each of the four maps, but not of the next stage's input, as in "
            "the detectors of Swin and CSwin; false: no such norms, as in PVT's detectors",
};

static VitSettings of_trunk(const HierarchySettings *s) {
    VitSettings vit = s->vit;
    vit.frames = vit.tubelet = vit.time_kernel = vit.conv_time_kernel = 1;
    vit.pool = POOL_GAP;
    vit.qkv_bias = true;
    return vit;
}

static void settings_check(const Config *config, const void *settings) {
    VitSettings s = of_trunk(settings);
    if (s.dim.count != MAPS)
        config_reject(config, "dim", "expected four numbers, one for each map, as 64,128,320,512, got %d", s.dim.count);
    if (s.patch_size != FIRST_STRIDE)
        config_reject(config, "patch_size", "{patch_size} is not 4, the stride of the first of the four maps");
    if (s.patch_pad && s.patch_pad != 2 && s.patch_pad != 3)
        config_reject(config, "patch_pad", "{patch_pad} makes maps of other sides than a quarter of the image's: 2 and 3 do "
                                           "not");
    vit_check_settings(config, &s);
}

static bool any_grid(const void *op) { return ((const AttentionOp *)op)->any_grid; }

static bool is_taken(const char *name) {
    int i = 0;
    while (taken[i] && strcmp(taken[i], name)) i++;
    return taken[i];
}

/* train_vit's table without the settings of classifiers, made by the first call. */
static const ConfigGroup *group(void) {
    static ConfigEntry entries[MOST_ENTRIES];
    static ConfigGroup made = {.entries = entries, .size = sizeof(HierarchySettings), .change = CHANGE_NEVER,
                               .check = settings_check};
    if (made.count) return &made;
    for (int i = 0; i < vit_settings.count; i++)
        if (is_taken(vit_settings.entries[i].name)) entries[made.count++] = vit_settings.entries[i];
    entries[0].offers = any_grid; /* attn */
    entries[made.count++] = output_norm;
    return &made;
}

void hierarchy_add_settings(Config *config, const char *chooser, const char *owner) {
    config_add_for(config, group(), chooser, owner);
    attention_add_settings(config, ATTENTION_ANY_GRID);
    config_default(config, "img_size", "224");
    config_default(config, "dim", "64,128,320,512");
    config_default(config, "depth", "2,2,2,2");
    config_default(config, "heads", "1,2,5,8");
    config_default(config, "pos_embed", "none");
    config_explain(config, "img_size", "Height and width of the images of the classifier that the backbone starts "
                                       "from: tables with a value for every token, such as lisa's and position "
                                       "embeddings, keep the size of that grid and are resampled for each batch");
    config_explain(config, "dim", "Width of the tokens in each of the four stages, which are the maps' channels");
}

void hierarchy_use_settings(Config *config) {
    const HierarchySettings *s = config_settings(config, group());
    config_use(config, group());
    for (int i = 0; i < s->vit.attn.count; i++) attention_use_settings(config, s->vit.attn.at[i]);
}

VitSettings hierarchy_settings(const Config *config) { return of_trunk(config_settings(config, group())); }

TrunkEnds hierarchy_ends(const Config *config) {
    const HierarchySettings *s = config_settings(config, group());
    return s->output_norm ? ENDS_BESIDE : ENDS_BARE;
}

/* The settings of a vision transformer. */
#ifndef VIT_LAYERS_VIT_VIT_SETTINGS_H
#define VIT_LAYERS_VIT_VIT_SETTINGS_H

#include "layers/stage.h"
#include "layers/vit/classifier.h"
#include "layers/vit/hybrid_stem.h"
#include "layers/vit/inflate.h"
#include "layers/vit/tokenizer.h"

enum { VIT_MAX_STAGES = 8 };

typedef enum { POOL_CLS, POOL_GAP, POOL_GAP_RAW, POOL_SEQ } Pool;
typedef enum {
    POSITIONS_LEARNED,
    POSITIONS_NONE,
    POSITIONS_CONV,
    POSITIONS_STAGES,
    POSITIONS_SINE
} PositionEmbedding;
typedef enum { STEM_NONE, STEM_HYBRID, STEM_CONV } StemKind;
typedef enum { MLP_STREAM_RESIDUAL, MLP_STREAM_NORMED } MlpStream;
typedef enum { INIT_SCALE_NONE, INIT_SCALE_DEPTH } InitScale;
typedef enum { START_UNIFORM, START_FAN_OUT } ConvStart;

/* The settings of the model.  Lists have one number for each stage, or one for all stages. */
typedef struct {
    ConfigItems attn; /* of AttentionOp */
    int img_size[2], frames, patch_size, patch_pad, tubelet, num_classes;
    int time_kernel, conv_time_kernel;
    Inflate inflate;
    StemKind stem;
    bool patch_overlap, patch_norm, patch_merging, stage_norm, qkv_bias, mlp_conv, mlp_relu, recompute;
    MlpStream mlp_stream;
    float norm_eps, pos_init_std;
    ConfigInts dim, depth, heads;
    ConfigFloats mlp_ratio;
    int conv_stages;
    const AttentionOp *conv_block; /* of those stages */
    Pool pool;
    bool distilled;
    HeadKind head;
    PositionEmbedding pos_embed;
    float drop_path; /* rate of the last block; it grows linearly from 0 in the first */
    float dropout, attn_dropout;
    InitScale init_scale;
    float head_init_scale;
    ConvStart conv_init;
} VitSettings;
extern const ConfigGroup vit_settings;

/* Does training have any kind of dropout, with random numbers that depend on the step? */
static inline bool vit_drops(const VitSettings *s) { return s->dropout > 0 || s->attn_dropout > 0; }
/* The number of stages; the number of blocks in all of them; the value of a list for a stage; the settings of a
 * stage. */
static inline int vit_stages(const VitSettings *s) { return s->dim.count; }
int vit_depth(const VitSettings *s);
static inline int vit_stage_int(const ConfigInts *list, int i) { return list->at[list->count > 1 ? i : 0]; }
StageConfig vit_stage_config(const VitSettings *s, int i);
/* The operator of a stage, without regard to conv_stages. */
const AttentionOp *vit_attn(const VitSettings *s, int stage);
/* The setting attn as text, "focused,focused,swin,swin". */
enum { VIT_ATTN_SIZE = 256 };
const char *vit_attn_names(const VitSettings *s, char text[VIT_ATTN_SIZE]);
/* Adds vit_settings and the settings of all operators. */
VitSettings *vit_add_settings(Config *config);
/* Marks the settings of the chosen operator as used.  Must be called before config_settle, which checks the settings in
 * use. */
void vit_use_settings(Config *config);
/* Rejects settings that contradict each other, for instance heads that do not divide dim.  It must be called before a
 * model is made. */
void vit_check_settings(const Config *config, const VitSettings *s);

/* Weights in the file `path` were trained with `origin`: rejects other numbers of heads, which the weights'
 * shapes do not show. */
void vit_check_heads(const char *path, const Config *config, const VitSettings *s, const VitSettings *origin);
/* Prints on stdout the assumptions about weights whose file has no settings, and a warning that their shapes fit any
 * number of heads. */
void vit_print_assumptions(const char *path, const Config *config, const float *mean, const float *std);
/* Prints a line on stdout if the weights in the file, trained with the settings `origin`, are used with other values of
 * attention settings on which no tensor's shape depends. */
void vit_print_other_attention(const char *path, const Config *config, const Config *origin);

#endif

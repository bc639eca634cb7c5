/* Sparse Transformer.  tokens x_0 .. x_{n-1} -> logits z [B,n,V], z_p of token p from the tokens before it
 * forward   1. e_i = We[x_i] + positions of i;  row p of the stream is e_{p-1}, and for p = 0 a learned vector; where
 * the first of n + 1 tokens is given, row p is e_p and z_p is for token p + 1
 *           2. h = norm(blocks(rows)), the blocks and the norm being those of layers/stage.c with causal attention and
 *              mlp(u) = W2 g(W1 u + b1) + b2,  g(x) = x sigmoid(1.702 x)
 *              This equals the paper's H + a + b with b computed from norm(H + a).
 *           3. z = h Wout^T
 * backward  the same steps in reverse. */
#include "layers/density/sequence_model.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "core/safetensors.h"

/* == Settings ===================================================================================================== */

/* The authors' later code has 1e-6 in the last norm; the paper gives no value. */
static const float LAST_NORM_EPS = 1e-6f;
enum { DEFAULT_STRIDE = 128 };

#define F(KIND, field) CONFIG_FIELD(KIND, SequenceModelSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, vocabulary), "256", .section = "model", .min = 2, .max = 256,
     .help = "Number of values that a token can have; every byte of the data must be below it"},
    {F(INT, dim), "256", .min = 1, .max = 16384, .help = "Width of the tokens"},
    {F(INT, depth), "8", .min = 1, .max = 1024, .help = "Number of blocks"},
    {F(INT, heads), "2", .min = 1, .max = 1024, .help = "Number of attention heads, a divisor of dim"},
    {F(INT, stride), "0", .min = 0, .max = 1e8,
     .help = "Stride of sparse attention and of embedding attention (l): the tokens of a row, column or block (0: the "
             "bytes of an image's row, otherwise 128)"},
    {F(FLOAT, qk_ratio), "1", .min = 0.001, .max = 16, .help = "Width of queries and of keys as a multiple of dim"},
    {F(FLOAT, mlp_ratio), "4", .min = 0.01, .max = 64, .help = "Hidden width of the MLP as a multiple of dim"},
    {F(CHOICE, embedding), "auto", CONFIG_CHOICES("auto", "data", "attention"),
     .help = "Learned positions: of an image's rows, columns and channels (data), or of i div stride and i mod stride "
             "(attention); auto: data for images, otherwise attention"},
    {F(FLOAT, dropout), "0", .min = 0, .max = 0.9, .change = CHANGE_FREELY,
     .help = "Rate of dropout after attention's projection and after the MLP"},
    {F(FLOAT, embedding_dropout), "0", .min = 0, .max = 0.9, .change = CHANGE_FREELY,
     .help = "Rate of dropout of a byte's embedding plus its positions"},
    {F(BOOL, recompute), "false", .change = CHANGE_FREELY,
     .help = "Store only the input of each block and compute the block again in the backward pass, which saves memory, "
             "takes more time and gives the same results"},
    {F(CHOICE, start_values), "code", CONFIG_CHOICES("code", "paper", "gpt2"),
     .help = "Standard deviation of the initial weights: code, sqrt(0.125 / inputs) and embeddings 0.01, as in the "
             "authors' later program; paper, 0.125 / sqrt(inputs), as in the paper's text; gpt2, 0.02 everywhere, also "
             "in the layer of logits, which the other two start at zero. Layers before a residual sum have 1/sqrt(2 "
             "depth) times that"},
};
#undef F
const ConfigGroup sequence_model_settings = {CONFIG_GROUP(SequenceModelSettings, entries), .change = CHANGE_NEVER};

SequenceModelSettings *sequence_model_add_settings(Config *config) {
    causal_add_settings(config);
    return config_add(config, &sequence_model_settings);
}

void sequence_model_use_settings(Config *config) { causal_use_settings(config); }

int sequence_model_stride(const SequenceModelSettings *s, const SequenceShape *shape) {
    if (s->stride) return s->stride;
    if (shape->height) return shape->width * shape->channels;
    return shape->n < DEFAULT_STRIDE ? shape->n : DEFAULT_STRIDE;
}

static int key_width(const SequenceModelSettings *s) { return (int)lrintf((float)s->dim * s->qk_ratio); }

void sequence_model_check(const Config *config, const SequenceShape *shape) {
    const SequenceModelSettings *s = config_settings(config, &sequence_model_settings);
    int keys = key_width(s);
    if (s->dim % s->heads) config_reject(config, "heads", "{heads} does not divide {dim}");
    if (keys < 1 || keys % s->heads)
        config_reject(config, "qk_ratio", "{qk_ratio} of {dim} is %d, which {heads} does not divide", keys);
    if ((int)((float)s->dim * s->mlp_ratio) < 1)
        config_reject(config, "mlp_ratio", "{mlp_ratio} of {dim} leaves no hidden unit");
    if (s->embedding == EMBEDDING_DATA && !shape->height)
        config_reject(config, "embedding", "{embedding} is for images, and these sequences are not images: use "
                                           "attention");
    if (1 + 2 * s->depth > DROPOUT_SITES)
        config_reject(config, "depth", "{depth} is more than the %d blocks that dropout can distinguish",
                      (DROPOUT_SITES - 1) / 2);
    config_limit(config, "dim", (double)s->dim * shape->n, "numbers of one sequence's tokens");
    causal_check_settings(config, shape->n, sequence_model_stride(s, shape), s->heads);
}

/* == Parameters =================================================================================================== */

/* The standard deviation of params_declare's truncated normal, which gains multiply; the truncation at 2 is far
 * away. */
static const float DECLARED_DEVIATION = 0.02f;
static const float GPT2_DEVIATION = 0.02f;

/* Deviation of the initial weights of a layer with `inputs` inputs, or of an embedding of that width; `code` is that of
 * the authors' later program. */
static float deviation(const SequenceModelSettings *s, int inputs, float code) {
    if (s->start_values == START_PAPER) return 0.125f / sqrtf((float)inputs);
    return s->start_values == START_GPT2 ? GPT2_DEVIATION : code;
}

static void start_linear(const SequenceModelSettings *s, Params *params, const char *prefix, const char *name,
                         int inputs, float gain) {
    float start = deviation(s, inputs, sqrtf(0.125f / (float)inputs));
    params_start_scaled(params, prefix, name, gain * start / DECLARED_DEVIATION);
}

static const char *const table_names[BYTE_TABLES] = {"pos_embed.row", "pos_embed.column", "pos_embed.channel"};

static void table_declare(SequenceModel *m, const char *name, int count, float deviation, float **w, float **dw) {
    Params *params = &m->model.params;
    params_declare(params, (Param){.value = w, .grad = dw, .named = {name}, .init = INIT_NORMAL, .decay = true,
                                   .gain = deviation, .shape = {count, m->settings.dim}});
}

/* Chooses the tables of positions: their entries, and the divisors of a token's index. */
static void choose_positions(SequenceModel *m) {
    const SequenceShape *s = &m->shape;
    ByteEmbedding *e = &m->positions;
    bool data = s->height && m->settings.embedding != EMBEDDING_ATTENTION;
    int l = m->frame.stride;
    *e = (ByteEmbedding){.M = m->settings.dim, .row = m->row_bytes, .vocabulary = m->settings.vocabulary};
    if (data) {
        memcpy(e->entries, (int[]){s->height, s->width, s->channels}, sizeof e->entries);
        memcpy(e->divisor, (int[]){s->width * s->channels, s->channels, 1}, sizeof e->divisor);
    } else {
        memcpy(e->entries, (int[]){(s->n + l - 1) / l, l, 0}, sizeof e->entries);
        memcpy(e->divisor, (int[]){l, 1, 1}, sizeof e->divisor);
    }
}

static void embeddings_declare(SequenceModel *m) {
    const SequenceModelSettings *s = &m->settings;
    int tables = m->positions.entries[2] ? 3 : 2;
    float token = deviation(s, s->dim, 0.01f), position = token / sqrtf((float)tables);
    table_declare(m, "token_embed.weight", s->vocabulary, token, &m->bytes, &m->dbytes);
    for (int t = 0; t < tables; t++)
        table_declare(m, table_names[t], m->positions.entries[t], position, &m->table[t], &m->dtable[t]);
    if (!m->shape.starts) return;
    params_declare(&m->model.params, (Param){.value = &m->start, .grad = &m->dstart, .named = {"start"},
                                             .init = INIT_NORMAL, .decay = true, .gain = token, .shape = {1, 1, s->dim}});
}

/* All linear layers of the blocks have their own initial weights. */
static void start_blocks(SequenceModel *m) {
    const SequenceModelSettings *s = &m->settings;
    Params *params = &m->model.params;
    float residual = 1 / sqrtf(2 * (float)s->depth);
    for (int i = 0; i < s->depth; i++) {
        const Block *block = &m->stage.blocks[i];
        const Projection *fc2 = &block->mlp.fc2;
        start_linear(s, params, block->attention.prefix, "qkv.weight", s->dim, 1);
        start_linear(s, params, block->attention.prefix, "proj.weight", s->dim, residual);
        start_linear(s, params, block->prefix, "mlp.fc1.weight", s->dim, 1);
        start_linear(s, params, block->prefix, "mlp.fc2.weight", fc2->in, residual);
    }
}

static void blocks_declare(SequenceModel *m, const Config *config) {
    const SequenceModelSettings *s = &m->settings;
    m->stage = (Stage){.config = {s->dim, s->depth, s->heads, s->mlp_ratio, &causal_op},
                       .settings = config,
                       .grid = {1, 1, m->shape.n},
                       .stages = 1,
                       .norm_eps = PYTORCH_NORM_EPS,
                       .end_eps = LAST_NORM_EPS,
                       .time_kernel = 1,
                       .conv_time_kernel = 1,
                       .mlp_sigmoid = true,
                       .recompute = s->recompute,
                       .last = true,
                       .residual_gain = 1,
                       .causal = &m->frame,
                       .stream = &m->stream};
    stage_declare(&m->stage, &m->model.params);
    start_blocks(m);
}

static void head_declare(SequenceModel *m) {
    const SequenceModelSettings *s = &m->settings;
    Params *params = &m->model.params;
    ParamInit init = s->start_values == START_GPT2 ? INIT_TRUNC_NORMAL : INIT_ZEROS;
    m->head = (Projection){.in = s->dim, .out = s->vocabulary};
    params_declare(params, (Param){.value = &m->head.w, .grad = &m->head.dw, .named = {"head.weight"}, .init = init,
                                   .decay = true, .shape = {s->vocabulary, s->dim}});
    start_linear(s, params, "", "head.weight", s->dim, 1);
}

void sequence_model_create(SequenceModel *m, const Config *config, const SequenceShape *shape) {
    memset(m, 0, sizeof *m);
    sequence_model_check(config, shape);
    m->settings = *(const SequenceModelSettings *)config_settings(config, &sequence_model_settings);
    m->shape = *shape;
    m->row_bytes = shape->n + !shape->starts;
    m->frame = (CausalFrame){.n = shape->n, .stride = sequence_model_stride(&m->settings, shape),
                             .Dk = key_width(&m->settings) / m->settings.heads};
    choose_positions(m);
    embeddings_declare(m);
    blocks_declare(m, config);
    head_declare(m);
}

/* == Weights from a file ========================================================================================== */

/* The first or last dimension of a tensor in the file; 0 if there is none. */
static int dimension(const SafeTensors *file, const char *name, bool last) {
    const SafeTensor *t = safetensors_find(file, name);
    size_t size = t && t->ndim > 0 ? t->shape[last ? t->ndim - 1 : 0] : 0;
    return size < INT_MAX ? (int)size : 0;
}

static int blocks_there(const SafeTensors *file) {
    char name[PARAM_NAME_SIZE];
    int depth = 0;
    while (snprintf(name, sizeof name, "blocks.%d.norm1.weight", depth), safetensors_find(file, name)) depth++;
    return depth;
}

void sequence_model_check_weights(const SequenceModel *m, const Config *config, const char *path, int heads) {
    const int *entries_here = m->positions.entries;
    SafeTensors file;
    int there[BYTE_TABLES];
    safetensors_open(&file, path, &error_fatal);
    int vocabulary = dimension(&file, "token_embed.weight", false);
    int dim = dimension(&file, "token_embed.weight", true);
    int depth = blocks_there(&file);
    bool starts = safetensors_find(&file, "start");
    for (int t = 0; t < BYTE_TABLES; t++) there[t] = dimension(&file, table_names[t], false);
    safetensors_close(&file);
    if (!vocabulary || !there[0])
        die("%s: not weights of train_ar: there is no tensor 'token_embed.weight' or 'pos_embed.row'", path);
    if (vocabulary != m->settings.vocabulary)
        config_die(config, "%s: its vocabulary is %d, which is not {vocabulary}", path, vocabulary);
    if (starts != m->shape.starts)
        die("%s: trained on %s, but the sequences here are %s: use the same kind of data", path,
            starts ? "images or sound" : "text", m->shape.starts ? "images or sound" : "text");
    if (dim != m->settings.dim) config_die(config, "%s: its width is %d, which is not {dim}", path, dim);
    if (depth != m->settings.depth) config_die(config, "%s: its blocks are %d, which is not {depth}", path, depth);
    if (memcmp(there, entries_here, sizeof there))
        die("%s: trained on sequences with positions %d x %d x %d, but those here have %d x %d x %d: use the same "
            "data, tokens and "
            "stride", path, there[0], there[1], there[2], entries_here[0], entries_here[1], entries_here[2]);
    if (heads && heads != m->settings.heads)
        config_die(config, "%s: it was trained with %d heads, which is not {heads}", path, heads);
}

/* == Activations ================================================================================================== */

static void activations_plan(Plan *plan, void *owner) {
    SequenceModel *m = owner;
    const SequenceModelSettings *s = &m->settings;
    int at_once = m->prompts ? m->prompts : m->model.batch;
    size_t B = (size_t)m->model.batch, outputs = m->prompts ? B : B * (size_t)m->shape.n;
    plan_keep(plan, "", "tokens", &m->tokens, B * (size_t)m->row_bytes);
    plan_keep(plan, "", "logits", &m->logits, outputs * (size_t)s->vocabulary * sizeof(real));
    plan_keep(plan, "", "loss", &m->loss, outputs * sizeof(float));
    plan_keep(plan, "", "sums", &m->sums, B * sizeof(float));
    stream_plan(&m->stream, plan, (size_t)at_once * (size_t)m->stage.N * (size_t)s->dim * sizeof(real), false,
                s->dropout > 0);
    stage_plan(&m->stage, plan, at_once);
}

void sequence_model_plan(SequenceModel *m, int batch, SequencePurpose purpose) {
    if (purpose == SEQUENCE_SAMPLE) {
        sequence_model_plan_sampling(m, batch, 1);
        return;
    }
    m->frame.cached = false;
    m->prompt = m->prompts = 0;
    stage_set_tokens(&m->stage, m->shape.n);
    model_plan(&m->model, batch, purpose == SEQUENCE_TRAIN, activations_plan, m);
}

/* The number of prompts at a time that keeps the products busy, with room for a row of every sequence. */
void sequence_model_plan_sampling(SequenceModel *m, int batch, int prompt) {
    enum { ROWS = 2048 };
    int least = (batch + prompt - 1) / prompt, busy = ROWS / prompt;
    m->frame.cached = true;
    m->prompt = prompt;
    m->prompts = busy > batch ? batch : busy > least ? busy : least;
    stage_set_tokens(&m->stage, prompt);
    model_plan(&m->model, batch, false, activations_plan, m);
    stage_set_tokens(&m->stage, 1);
}

size_t sequence_model_cache_bytes(const SequenceModel *m, int B) {
    size_t bytes = 0;
    for (int i = 0; i < m->settings.depth; i++) bytes += causal_cache_bytes(&m->stage.blocks[i].attention, B);
    return bytes;
}

static void set_caches(SequenceModel *m) {
    int B = m->model.batch;
    char *at = m->cache;
    for (int i = 0; i < m->settings.depth; i++) {
        const Attention *a = &m->stage.blocks[i].attention;
        causal_set_cache(a, at, B);
        at += causal_cache_bytes(a, B);
    }
}

void sequence_model_allocate(SequenceModel *m) {
    model_allocate(&m->model);
    if (!m->prompts) return;
    m->cache = device_malloc(sequence_model_cache_bytes(m, m->model.batch), "the cache of keys and values");
    set_caches(m);
}

/* The offset of the caches in borrowed memory, after the activations. */
static size_t behind_activations(const SequenceModel *m) {
    enum { ALIGN = 256 };
    return (plan_bytes(&m->model.inference) + ALIGN - 1) / ALIGN * ALIGN;
}

bool sequence_model_borrow(SequenceModel *m, const SequenceModel *of, const Config *config, int most) {
    const Params *params = &of->model.params;
    size_t room = larger_size(plan_bytes(&of->model.training), plan_bytes(&of->model.inference)), caches = 0;
    sequence_model_create(m, config, &of->shape);
    for (; most > 0; most /= 2) {
        sequence_model_plan(m, most, SEQUENCE_SAMPLE);
        caches = sequence_model_cache_bytes(m, most);
        if (behind_activations(m) + caches <= room) break;
        plan_free(&m->model.inference);
    }
    if (!most) return sequence_model_return(m), false;
    params_view(&m->model.params, params->ema ? params->ema : params->values);
    m->model.memory = of->model.memory;
    model_set_training(&m->model, false);
    m->cache = (char *)of->model.memory + behind_activations(m);
    device_zero(m->cache, caches);
    set_caches(m);
    return true;
}

void sequence_model_return(SequenceModel *m) {
    m->cache = m->model.memory = NULL;
    linear_keep_weights(false);
    sequence_model_destroy(m);
}

/* == A batch ====================================================================================================== */

void sequence_model_load(SequenceModel *m, const uint8_t *tokens, int B) {
    device_upload(m->tokens, tokens, (size_t)B * (size_t)m->row_bytes);
}

void sequence_model_draw_drops(SequenceModel *m, uint64_t seed, uint32_t step, size_t first) {
    m->stream.dropout = (Dropout){m->settings.dropout, seed, step, SITE_TOKENS, (uint32_t)first};
}

/* == Forward ====================================================================================================== */

/* Dropout of the embeddings, or of their gradient. */
static void drop_embeddings(const SequenceModel *m, real *x, int B, bool drop) {
    Dropout d = m->stream.dropout;
    d.rate = drop ? m->settings.embedding_dropout : 0;
    if (d.rate > 0) dropout_forward(x, x, &d, B, (size_t)m->stage.N * (size_t)m->settings.dim);
}

static ByteTables tables_of(const SequenceModel *m) {
    return (ByteTables){m->bytes, {m->table[0], m->table[1], m->table[2]}, m->start};
}

/* The rows of this call. */
static ByteEmbedding embedding_of(const SequenceModel *m, int B) {
    ByteEmbedding e = m->positions;
    e.B = B;
    e.first = m->frame.row;
    e.N = m->stage.N;
    return e;
}

static void embed(SequenceModel *m, int B) {
    ByteTables tables = tables_of(m);
    ByteEmbedding shape = embedding_of(m, B);
    const uint8_t *tokens = m->tokens + (size_t)m->frame.first * (size_t)m->row_bytes;
    byte_embedding_forward(stage_input(&m->stage), tokens, &tables, &shape);
}

/* Computes everything from the tokens to the end of the blocks. */
static void blocks_forward(SequenceModel *m, int B, bool drop) {
    embed(m, B);
    drop_embeddings(m, stage_input(&m->stage), B, drop);
    stage_forward(&m->stage, B, drop);
}

void sequence_model_forward(SequenceModel *m, int B, bool drop) {
    blocks_forward(m, B, drop);
    projection_forward(&m->head, m->logits, stage_output(&m->stage), (size_t)B * (size_t)m->stage.N);
}

void sequence_model_step(SequenceModel *m, int i, int B) {
    assert(m->cache);
    m->frame.row = i;
    sequence_model_forward(m, B, false);
}

void sequence_model_fill(SequenceModel *m, int count, int B) {
    assert(m->cache && count <= m->prompt);
    m->frame.row = 0;
    stage_set_tokens(&m->stage, count);
    for (int first = 0; first < B && count > 0; first += m->prompts) {
        m->frame.first = first;
        blocks_forward(m, B - first < m->prompts ? B - first : m->prompts, false);
    }
    m->frame.first = 0;
    stage_set_tokens(&m->stage, 1);
}

static ByteTargets targets_of(const SequenceModel *m, int B) {
    return (ByteTargets){B, m->shape.n, m->settings.vocabulary, m->row_bytes};
}

void sequence_model_loss(SequenceModel *m, int B, float scale) {
    ByteTargets shape = targets_of(m, B);
    const uint8_t *targets = m->tokens + !m->shape.starts;
    byte_cross_entropy(m->loss, m->model.plan->training ? m->logits : NULL, m->logits, targets, scale, &shape);
}

void sequence_model_losses(const SequenceModel *m, float *losses, int B) {
    device_download(losses, m->loss, (size_t)B * (size_t)m->shape.n * sizeof *losses);
}

void sequence_model_loss_sums(SequenceModel *m, float *sums, int B) {
    ByteTargets shape = targets_of(m, B);
    byte_loss_sums(m->sums, m->loss, 0, &shape);
    device_download(sums, m->sums, (size_t)B * sizeof *sums);
}

/* == Backward ===================================================================================================== */

static void embed_gradient(SequenceModel *m, int B, bool drop) {
    ByteTables tables = tables_of(m);
    ByteEmbedding shape = embedding_of(m, B);
    ByteGradients d = {m->dbytes, {m->dtable[0], m->dtable[1], m->dtable[2]}, m->dstart};
    drop_embeddings(m, m->stream.dx, B, drop);
    byte_embedding_backward(&d, m->stream.dx, m->tokens, &tables, &shape);
}

void sequence_model_backward(SequenceModel *m, int B, bool drop, GradientsListener final) {
    FinalGradients done = model_final_gradients(&m->model, final);
    projection_backward(&m->head, m->stream.dh, m->logits, stage_output(&m->stage), (size_t)B * (size_t)m->stage.N);
    stage_backward(&m->stage, B, drop, &done);
    embed_gradient(m, B, drop);
    gradients_final(&done, 0);
}

/* == Description ================================================================================================== */

double sequence_model_macs(const SequenceModel *m) {
    return (double)(stage_macs(&m->stage) + projection_macs(&m->head, (size_t)m->shape.n));
}

double sequence_model_training_macs(const SequenceModel *m) {
    double macs = 3 * sequence_model_macs(m);
    for (int i = 0; i < m->settings.depth; i++) macs += causal_score_macs(&m->stage.blocks[i].attention);
    return macs;
}

static void describe_block(const SequenceModel *m, FILE *out, int i) {
    const Block *block = &m->stage.blocks[i];
    const Attention *a = &block->attention;
    const CausalLayer *layer = a->state;
    char prefix[PARAM_NAME_SIZE], name[32], what[64];
    snprintf(what, sizeof what, "%s, %.1f %% of pairs", causal_pattern_name(&layer->pattern, a->H, name),
             100 * causal_share(a));
    model_describe_row(&m->model, out, a->prefix, what, (double)attention_macs(a));
    snprintf(prefix, sizeof prefix, "%.40smlp.", block->prefix);
    model_describe_row(&m->model, out, prefix, "MLP", (double)mlp_macs(&block->mlp, (size_t)m->shape.n));
    snprintf(prefix, sizeof prefix, "%.40snorm", block->prefix);
    model_describe_row(&m->model, out, prefix, "residual stream, two norms", 0);
}

void sequence_model_describe(const SequenceModel *m, bool averages, FILE *out) {
    const SequenceModelSettings *s = &m->settings;
    const Model *model = &m->model;
    double MiB = 1 << 20;
    size_t state = (averages ? 5 : 4) * sizeof(float) * model->params.total;
    fprintf(out, "%d tokens of %d values, width %d, %d blocks, %d heads with keys of %d, stride %d\n", m->shape.n,
            s->vocabulary, s->dim, s->depth, s->heads, m->frame.Dk, m->frame.stride);
    model_describe_head(out, "sequence");
    model_describe_row(&m->model, out, "token_embed.", "embedding of tokens", 0);
    model_describe_row(&m->model, out, "pos_embed.",
                       m->positions.entries[2] ? "row, column, channel" : "row, column", 0);
    if (m->shape.starts) model_describe_row(&m->model, out, "start", "before the first token", 0);
    for (int i = 0; i < s->depth; i++) describe_block(m, out, i);
    model_describe_row(&m->model, out, "norm.", "final norm", 0);
    model_describe_row(&m->model, out, "head.", "logits", (double)projection_macs(&m->head, (size_t)m->shape.n));
    model_describe_memory(model, out, "sequence", s->recompute);
    fprintf(out, "and parameters, gradients, the optimizer's moments%s: %.1f MiB\n", averages ? " and average" : "",
            (double)state / MiB);
    fprintf(out, "cache of one sequence while sampling: %.1f MiB\n", (double)sequence_model_cache_bytes(m, 1) / MiB);
    fprintf(out, "params: %zu\nmacs: %.0f\ntraining_macs: %.0f\nactivation_bytes: %zu\n", model->params.parameters,
            sequence_model_macs(m), sequence_model_training_macs(m), model_activation_bytes(model));
}

void sequence_model_destroy(SequenceModel *m) {
    device_free(m->cache);
    stage_destroy(&m->stage);
    model_destroy(&m->model);
    memset(m, 0, sizeof *m);
}

/* Sparse Transformer.  tokens x_0 .. x_{n-1} -> logits z [B,n,V], z_p of token p from the tokens before it
 * forward   1. e_i = We[x_i] + positions of i;  row p of the stream is e_{p-1}, and for p = 0 a learned vector; where
 *              the first of n + 1 tokens is given, row p is e_p and z_p is of token p + 1
 *           2. for every block:  H += drop(attention(norm1(H)));  H += drop(mlp(norm2(H))),
 *              mlp(u) = W2 g(W1 u + b1) + b2,  g(x) = x sigmoid(1.702 x)
 *           3. z = norm(H) Wout^T
 *              The paper's H + a + b with b of norm(H + a) is the same.
 * Each residual addition is fused with the norm that follows it, so the stream has 2*depth + 1 stations, as in
 * layers/vit/stage.h.
 * backward  the same steps in reverse: dx is the gradient of the stream, dh of a half-block's input, df of its output.
 * saves     every station and what the half-blocks save; with recompute only the input of every block, from which the
 *           rest is computed again with the same bits, in memory that all blocks share. */
#include "layers/density/sequence_model.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/safetensors.h"

/* == Settings ===================================================================================================== */

/* Later code than the paper's has 1e-6 in the last norm; the paper names none. */
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
     .help = "Rate of dropout of the embeddings"},
    {F(BOOL, recompute), "false", .change = CHANGE_FREELY,
     .help = "Store only the input of each block and compute the block again in the backward pass, which saves memory, "
             "takes more time and gives the same results"},
    {F(CHOICE, start_values), "code", CONFIG_CHOICES("code", "paper", "gpt2"),
     .help = "Deviation of the first weights: code, sqrt(0.125 / inputs) and embeddings 0.01, as in the authors' later "
             "program; paper, 0.125 / sqrt(inputs) as printed; gpt2, 0.02 everywhere, also in the layer of logits, "
             "which is zero in both others. Always 1/sqrt(2 depth) times that before a residual sum"},
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
        config_reject(config, "embedding", "{embedding} is for images, and these sequences are none: use attention");
    if (1 + 2 * s->depth > DROPOUT_SITES)
        config_reject(config, "depth", "{depth} is more than the %d blocks that dropout can tell apart",
                      (DROPOUT_SITES - 1) / 2);
    config_limit(config, "dim", (double)s->dim * shape->n, "numbers of one sequence's tokens");
    causal_check_settings(config, shape->n, sequence_model_stride(s, shape), s->heads);
}

/* == Parameters =================================================================================================== */

/* params_declare's truncated normal has this deviation, which gains multiply; it is cut off at 2, far away. */
static const float DECLARED_DEVIATION = 0.02f;
static const float GPT2_DEVIATION = 0.02f;

/* Deviations of the first weights: of a linear layer with so many inputs, and of an embedding. */
static float linear_deviation(const SequenceModelSettings *s, int inputs) {
    switch (s->start_values) {
    case START_PAPER: return 0.125f / sqrtf((float)inputs);
    case START_GPT2: return GPT2_DEVIATION;
    case START_CODE: break;
    }
    return sqrtf(0.125f / (float)inputs);
}

static float embedding_deviation(const SequenceModelSettings *s) {
    switch (s->start_values) {
    case START_PAPER: return 0.125f / sqrtf((float)s->dim);
    case START_GPT2: return GPT2_DEVIATION;
    case START_CODE: break;
    }
    return 0.01f;
}

static void start_linear(const SequenceModelSettings *s, Params *params, const char *prefix, const char *name,
                         int inputs, float gain) {
    params_start_scaled(params, prefix, name, gain * linear_deviation(s, inputs) / DECLARED_DEVIATION);
}

static void table_declare(SequenceModel *m, const char *name, int count, float deviation, float **w, float **dw) {
    Params *params = &m->model.params;
    params_declare(params, w, dw, "", name, INIT_NORMAL, true, 2, (int[]){count, m->settings.dim});
    params_start_scaled(params, "", name, deviation);
}

/* Which tables of positions there are: their entries, and what a token's number is divided by. */
static void choose_positions(SequenceModel *m) {
    const SequenceShape *s = &m->shape;
    ByteEmbedding *e = &m->positions;
    bool data = s->height && m->settings.embedding != EMBEDDING_ATTENTION;
    int l = m->stride;
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
    static const char *const names[] = {"pos_embed.row", "pos_embed.column", "pos_embed.channel"};
    const SequenceModelSettings *s = &m->settings;
    int tables = m->positions.entries[2] ? 3 : 2;
    float token = embedding_deviation(s), position = token / sqrtf((float)tables);
    table_declare(m, "token_embed.weight", s->vocabulary, token, &m->bytes, &m->dbytes);
    for (int t = 0; t < tables; t++)
        table_declare(m, names[t], m->positions.entries[t], position, &m->table[t], &m->dtable[t]);
    if (!m->shape.starts) return;
    params_declare(&m->model.params, &m->start, &m->dstart, "", "start", INIT_NORMAL, true, 3, (int[]){1, 1, s->dim});
    params_start_scaled(&m->model.params, "", "start", token);
}

static void station_declare(SequenceModel *m, int i, const char *prefix, const char *name) {
    SequenceStation *s = &m->stations[i];
    s->begin = m->model.params.total;
    s->eps = i < 2 * m->settings.depth ? PYTORCH_NORM_EPS : LAST_NORM_EPS;
    layer_norm_declare(&s->norm, &m->model.params, prefix, name, m->settings.dim, false);
}

static void block_declare(SequenceModel *m, int i) {
    const SequenceModelSettings *s = &m->settings;
    Params *params = &m->model.params;
    SequenceBlock *block = &m->blocks[i];
    CausalLayer *a = &block->attention;
    float residual = 1 / sqrtf(2 * (float)s->depth);
    int hidden = (int)((float)s->dim * s->mlp_ratio);
    char mlp[PARAM_NAME_SIZE];
    snprintf(block->prefix, sizeof block->prefix, "blocks.%d.", i);
    snprintf(a->prefix, sizeof a->prefix, "%.40sattn.", block->prefix);
    snprintf(mlp, sizeof mlp, "%.40smlp.", block->prefix);
    a->M = s->dim;
    a->shape.H = s->heads;
    a->shape.Dk = key_width(s) / s->heads;
    a->shape.Dv = s->dim / s->heads;
    station_declare(m, 2 * i, block->prefix, "norm1");
    causal_layer_declare(a, params);
    station_declare(m, 2 * i + 1, block->prefix, "norm2");
    mlp_declare(&block->mlp, params, mlp, s->dim, hidden, NULL);
    block->mlp.sigmoid = true;
    start_linear(s, params, a->prefix, "qkv.weight", s->dim, 1);
    start_linear(s, params, a->prefix, "proj.weight", s->dim, residual);
    start_linear(s, params, mlp, "fc1.weight", s->dim, 1);
    start_linear(s, params, mlp, "fc2.weight", hidden, residual);
}

static void head_declare(SequenceModel *m) {
    const SequenceModelSettings *s = &m->settings;
    Params *params = &m->model.params;
    ParamInit init = s->start_values == START_GPT2 ? INIT_TRUNC_NORMAL : INIT_ZEROS;
    m->head = (Projection){.in = s->dim, .out = s->vocabulary};
    params_declare(params, &m->head.w, &m->head.dw, "", "head.weight", init, true, 2, (int[]){s->vocabulary, s->dim});
    start_linear(s, params, "", "head.weight", s->dim, 1);
}

void sequence_model_create(SequenceModel *m, const Config *config, const SequenceShape *shape) {
    memset(m, 0, sizeof *m);
    sequence_model_check(config, shape);
    m->settings = *(const SequenceModelSettings *)config_settings(config, &sequence_model_settings);
    m->shape = *shape;
    m->row_bytes = shape->n + !shape->starts;
    m->stride = sequence_model_stride(&m->settings, shape);
    size_t depth = (size_t)m->settings.depth;
    m->blocks = xcalloc(depth, sizeof *m->blocks, "blocks");
    m->stations = xcalloc(2 * depth + 1, sizeof *m->stations, "blocks");
    choose_positions(m);
    embeddings_declare(m);
    for (int i = 0; i < m->settings.depth; i++) {
        m->blocks[i].attention.pattern = causal_pattern(config, i, m->stride, m->settings.heads);
        block_declare(m, i);
    }
    station_declare(m, 2 * m->settings.depth, "", "norm");
    head_declare(m);
}

/* == Weights from a file ========================================================================================== */

/* The first or last dimension of a tensor in the file; 0 if there is none. */
static int first_dimension(const SafeTensors *file, const char *name) {
    const SafeTensor *t = safetensors_find(file, name);
    return t && t->ndim > 0 && t->shape[0] < INT_MAX ? (int)t->shape[0] : 0;
}
static int last_dimension(const SafeTensors *file, const char *name) {
    const SafeTensor *t = safetensors_find(file, name);
    return t && t->ndim > 0 && t->shape[t->ndim - 1] < INT_MAX ? (int)t->shape[t->ndim - 1] : 0;
}

static int blocks_there(const SafeTensors *file) {
    char name[PARAM_NAME_SIZE];
    int depth = 0;
    while (snprintf(name, sizeof name, "blocks.%d.norm1.weight", depth), safetensors_find(file, name)) depth++;
    return depth;
}

void sequence_model_check_weights(const SequenceModel *m, const Config *config, const char *path, int heads) {
    static const char *const names[] = {"pos_embed.row", "pos_embed.column", "pos_embed.channel"};
    const int *entries_here = m->positions.entries;
    SafeTensors file;
    Error error;
    int there[BYTE_TABLES];
    if (!safetensors_open(&file, path, &error)) die("%s", error.text);
    int vocabulary = first_dimension(&file, "token_embed.weight"), dim = last_dimension(&file, "token_embed.weight");
    int depth = blocks_there(&file);
    bool starts = safetensors_find(&file, "start");
    for (int t = 0; t < BYTE_TABLES; t++) there[t] = first_dimension(&file, names[t]);
    safetensors_close(&file);
    if (!vocabulary || !there[0])
        die("%s: no weights of train_ar: there is no tensor 'token_embed.weight' or 'pos_embed.row'", path);
    if (vocabulary != m->settings.vocabulary)
        config_die(config, "%s: its vocabulary is %d, which is not {vocabulary}", path, vocabulary);
    if (starts != m->shape.starts)
        die("%s: of %s, but the sequences here are %s: use the same kind of data", path,
            starts ? "images or sound" : "text", m->shape.starts ? "images or sound" : "text");
    if (dim != m->settings.dim) config_die(config, "%s: its width is %d, which is not {dim}", path, dim);
    if (depth != m->settings.depth) config_die(config, "%s: its blocks are %d, which is not {depth}", path, depth);
    if (memcmp(there, entries_here, sizeof there))
        die("%s: of sequences with positions %d x %d x %d, but those here have %d x %d x %d: use the same data, tokens "
            "and stride", path, there[0], there[1], there[2], entries_here[0], entries_here[1], entries_here[2]);
    if (heads && heads != m->settings.heads)
        config_die(config, "%s: it was trained with %d heads, which is not {heads}", path, heads);
}

/* == Activations ================================================================================================== */

static void station_prefix(const SequenceModel *m, int i, char prefix[PARAM_NAME_SIZE]) {
    if (i == 2 * m->settings.depth) snprintf(prefix, PARAM_NAME_SIZE, "norm.");
    else snprintf(prefix, PARAM_NAME_SIZE, "%.40snorm%d.", m->blocks[i / 2].prefix, i % 2 + 1);
}

static void station_input_plan(SequenceModel *m, int i, Plan *plan, size_t rows) {
    char prefix[PARAM_NAME_SIZE];
    station_prefix(m, i, prefix);
    plan_keep(plan, prefix, "x", &m->stations[i].x, rows * (size_t)m->settings.dim * sizeof(real));
}

static void station_rest_plan(SequenceModel *m, int i, Plan *plan, size_t rows) {
    SequenceStation *s = &m->stations[i];
    char prefix[PARAM_NAME_SIZE];
    station_prefix(m, i, prefix);
    plan_keep(plan, prefix, "h", &s->h, rows * (size_t)m->settings.dim * sizeof(real));
    plan_keep(plan, prefix, "mean", &s->mean, rows * sizeof(float));
    plan_keep(plan, prefix, "rstd", &s->rstd, rows * sizeof(float));
}

/* In inference the stream is updated in place. */
static void station_alias(SequenceModel *m, int i, Plan *plan) {
    SequenceStation *s = &m->stations[i], *first = &m->stations[0];
    plan_alias(plan, &s->x, &first->x);
    plan_alias(plan, &s->h, &first->h);
    plan_alias(plan, &s->mean, &first->mean);
    plan_alias(plan, &s->rstd, &first->rstd);
}

static void block_plan(SequenceModel *m, int i, Plan *plan, size_t rows) {
    SequenceBlock *block = &m->blocks[i];
    char prefix[PARAM_NAME_SIZE];
    block->attention.shape.N = m->prompts ? m->prompt : m->rows;
    causal_layer_plan(&block->attention, plan, m->prompts ? m->prompts : m->model.batch);
    snprintf(prefix, sizeof prefix, "%.40smlp.", block->prefix);
    mlp_plan(&block->mlp, plan, prefix, rows);
}

static void blocks_plan(SequenceModel *m, Plan *plan, size_t rows) {
    int depth = m->settings.depth;
    for (int i = 0; i < depth && plan->training; i++) station_input_plan(m, 2 * i, plan, rows);
    if (plan->training) station_input_plan(m, 2 * depth, plan, rows);
    else station_input_plan(m, 0, plan, rows);
    station_rest_plan(m, plan->training ? 2 * depth : 0, plan, rows);
    for (int i = 1; i <= 2 * depth && !plan->training; i++) station_alias(m, i, plan);
    for (int i = 0; i < depth; i++) {
        PlanMark mark = plan_mark(plan);
        if (plan->training) {
            station_rest_plan(m, 2 * i, plan, rows);
            station_input_plan(m, 2 * i + 1, plan, rows);
            station_rest_plan(m, 2 * i + 1, plan, rows);
        }
        block_plan(m, i, plan, rows);
        if (plan->training && m->settings.recompute) plan_reuse(plan, mark);
    }
}

static void activations_plan(Plan *plan, void *owner) {
    SequenceModel *m = owner;
    const SequenceModelSettings *s = &m->settings;
    size_t B = (size_t)m->model.batch, rows = B * (size_t)m->rows, outputs = rows;
    if (m->prompts) rows = (size_t)m->prompts * (size_t)m->prompt;
    size_t bytes = rows * (size_t)s->dim * sizeof(real);
    plan_keep(plan, "", "tokens", &m->tokens, B * (size_t)m->row_bytes);
    plan_keep(plan, "", "logits", &m->logits, outputs * (size_t)s->vocabulary * sizeof(real));
    plan_keep(plan, "", "loss", &m->loss, outputs * sizeof(float));
    plan_keep(plan, "", "sums", &m->sums, B * sizeof(float));
    plan_borrow(plan, "", "f", &m->f, bytes);
    if (plan->training) {
        plan_borrow(plan, "", "dx", &m->dx, bytes);
        plan_borrow(plan, "", "dh", &m->dh, bytes);
        plan_borrow(plan, "", "df", &m->df, s->dropout > 0 ? bytes : 0);
    }
    blocks_plan(m, plan, rows);
    plan_workspace(plan, layernorm_workspace(s->dim));
}

void sequence_model_plan(SequenceModel *m, int batch, SequencePurpose purpose) {
    if (purpose == SEQUENCE_SAMPLE) {
        sequence_model_plan_sampling(m, batch, 1);
        return;
    }
    m->rows = m->shape.n;
    m->prompt = m->prompts = 0;
    model_plan(&m->model, batch, purpose == SEQUENCE_TRAIN, activations_plan, m);
}

/* As many prompts at a time as keep the products busy, and room for a row of every sequence. */
void sequence_model_plan_sampling(SequenceModel *m, int batch, int prompt) {
    enum { ROWS = 2048 };
    int least = (batch + prompt - 1) / prompt, busy = ROWS / prompt;
    m->rows = 1;
    m->prompt = prompt;
    m->prompts = busy > batch ? batch : busy > least ? busy : least;
    model_plan(&m->model, batch, false, activations_plan, m);
}

size_t sequence_model_cache_bytes(const SequenceModel *m, int B) {
    size_t bytes = 0;
    for (int i = 0; i < m->settings.depth; i++)
        bytes += causal_layer_cache_bytes(&m->blocks[i].attention, m->shape.n, B);
    return bytes;
}

static void caches_allocate(SequenceModel *m) {
    int n = m->shape.n, B = m->model.batch;
    char *at = m->cache = device_malloc(sequence_model_cache_bytes(m, B), "the cache of keys and values");
    for (int i = 0; i < m->settings.depth; i++) {
        causal_layer_set_cache(&m->blocks[i].attention, at, n, B);
        at += causal_layer_cache_bytes(&m->blocks[i].attention, n, B);
    }
}

void sequence_model_allocate(SequenceModel *m) {
    model_allocate(&m->model);
    if (m->prompts) caches_allocate(m);
}

/* == A batch ====================================================================================================== */

void sequence_model_load(SequenceModel *m, const uint8_t *tokens, int B) {
    device_upload(m->tokens, tokens, (size_t)B * (size_t)m->row_bytes);
}

void sequence_model_draw_drops(SequenceModel *m, uint64_t seed, uint32_t step, size_t first) {
    m->dropout = (Dropout){m->settings.dropout, seed, step, 0, (uint32_t)first};
}

/* Dropout.site: 0 is that of the embeddings, 1 + h that of half-block h. */
static Dropout dropout_of(const SequenceModel *m, int half, bool drop) {
    Dropout d = m->dropout;
    d.site = (uint32_t)(1 + half);
    d.rate = !drop ? 0 : half < 0 ? m->settings.embedding_dropout : m->settings.dropout;
    return d;
}

/* The dropout of the output of half-block `half`, -1 for the embeddings, y = drop(x), or of its gradient.  Returns y,
 * or x where there is none. */
static const real *drop_output(const SequenceModel *m, real *y, const real *x, int half, int B, bool drop) {
    Dropout d = dropout_of(m, half, drop);
    if (d.rate <= 0) return x;
    dropout_forward(y, x, &d, B, (size_t)m->rows * (size_t)m->settings.dim);
    return y;
}

/* == Forward ====================================================================================================== */

static LayerNorm norm_of(const SequenceModel *m, const SequenceStation *s, int B) {
    return (LayerNorm){s->norm.w, s->norm.b, s->mean, s->rstd, (size_t)B * (size_t)m->rows, m->settings.dim, s->eps};
}

static ByteTables tables_of(const SequenceModel *m) {
    return (ByteTables){m->bytes, {m->table[0], m->table[1], m->table[2]}, m->start};
}

/* Rows first, first + 1, ... of B sequences. */
static ByteEmbedding embedding_of(const SequenceModel *m, int first, int B) {
    ByteEmbedding e = m->positions;
    e.B = B;
    e.first = first;
    e.N = m->rows;
    return e;
}

/* One call's part of a batch: B sequences, their rows row, row + 1, ..., as many as m->rows.  While sampling, `first` is
 * the first of the sequences. */
typedef struct {
    int B, row, first;
    bool drop;
} Part;

static void embed(SequenceModel *m, const Part *p) {
    ByteTables tables = tables_of(m);
    ByteEmbedding shape = embedding_of(m, p->row, p->B);
    byte_embedding_forward(m->stations[0].x, m->tokens + (size_t)p->first * (size_t)m->row_bytes, &tables, &shape);
}

static void attention_forward(SequenceModel *m, const CausalLayer *a, const real *h, const Part *p) {
    if (!m->prompts) causal_layer_forward(a, m->f, h, p->B);
    else if (m->rows > 1) causal_layer_fill(a, m->f, h, m->rows, m->shape.n, p->first, p->B);
    else causal_layer_step(a, m->f, h, p->row, m->shape.n, p->B);
}

/* From the tokens to the last station. */
static void blocks_forward(SequenceModel *m, const Part *p) {
    SequenceStation *s = m->stations;
    int B = p->B;
    bool drop = p->drop;
    embed(m, p);
    drop_output(m, s->x, s->x, -1, B, drop);
    LayerNorm norm = norm_of(m, s, B);
    layernorm_forward(s->h, s->x, &norm);
    for (int half = 0; half < 2 * m->settings.depth; half++, s++) {
        const SequenceBlock *block = &m->blocks[half / 2];
        if (half % 2) mlp_forward(&block->mlp, m->f, s->h, &(Dropout){0}, B, m->rows);
        else attention_forward(m, &block->attention, s->h, p);
        drop_output(m, m->f, m->f, half, B, drop);
        norm = norm_of(m, s + 1, B);
        add_layernorm_forward(s[1].x, s[1].h, s->x, m->f, NULL, &norm);
    }
}

static void head_forward(SequenceModel *m, int B) {
    projection_forward(&m->head, m->logits, m->stations[2 * m->settings.depth].h, (size_t)B * (size_t)m->rows);
}

void sequence_model_forward(SequenceModel *m, int B, bool drop) {
    blocks_forward(m, &(Part){.B = B, .drop = drop});
    head_forward(m, B);
}

void sequence_model_step(SequenceModel *m, int i, int B) {
    assert(m->cache);
    blocks_forward(m, &(Part){.B = B, .row = i});
    head_forward(m, B);
}

void sequence_model_fill(SequenceModel *m, int count, int B) {
    assert(m->cache && count <= m->prompt);
    m->rows = count;
    for (int first = 0; first < B && count > 1; first += m->prompts)
        blocks_forward(m, &(Part){.B = B - first < m->prompts ? B - first : m->prompts, .first = first});
    m->rows = 1;
    if (count == 1) blocks_forward(m, &(Part){.B = B});
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

/* Computes the activations of block i again, from its input. */
static void block_again(const SequenceModel *m, int i, int B, bool drop) {
    const SequenceStation *s = &m->stations[2 * i];
    const SequenceBlock *block = &m->blocks[i];
    LayerNorm norm = norm_of(m, s, B), next = norm_of(m, s + 1, B);
    layernorm_forward(s->h, s->x, &norm);
    causal_layer_forward(&block->attention, m->f, s->h, B);
    drop_output(m, m->f, m->f, 2 * i, B, drop);
    add_layernorm_forward(s[1].x, s[1].h, s->x, m->f, NULL, &next);
    mlp_forward(&block->mlp, NULL, s[1].h, NULL, B, m->rows);
}

/* == Backward ===================================================================================================== */

static void embed_gradient(SequenceModel *m, int B, bool drop) {
    ByteTables tables = tables_of(m);
    ByteEmbedding shape = embedding_of(m, 0, B);
    ByteGradients d = {m->dbytes, {m->dtable[0], m->dtable[1], m->dtable[2]}, m->dstart};
    drop_output(m, m->dx, m->dx, -1, B, drop);
    byte_embedding_backward(&d, m->dx, m->tokens, &tables, &shape);
}

void sequence_model_backward(SequenceModel *m, int B, bool drop, GradientsListener final) {
    FinalGradients done = model_final_gradients(&m->model, final);
    int depth = m->settings.depth;
    SequenceStation *s = &m->stations[2 * depth];
    const real *dres = NULL;
    projection_backward(&m->head, m->dh, m->logits, s->h, (size_t)B * (size_t)m->rows);
    for (int half = 2 * depth - 1; half >= 0; half--, s--) {
        const SequenceBlock *block = &m->blocks[half / 2];
        LayerNorm norm = norm_of(m, s, B);
        add_layernorm_backward(m->dx, NULL, s->norm.dw, s->norm.db, dres, m->dh, s->x, NULL, &norm);
        const real *df = drop_output(m, m->df, m->dx, half, B, drop);
        gradients_final(&done, s->begin);
        if (half % 2 && m->settings.recompute && half / 2 < depth - 1) block_again(m, half / 2, B, drop);
        if (half % 2) mlp_backward(&block->mlp, m->dh, df, s[-1].h, &(Dropout){0}, B, m->rows);
        else causal_layer_backward(&block->attention, m->dh, df, s[-1].h, B);
        dres = m->dx;
    }
    LayerNorm norm = norm_of(m, s, B);
    add_layernorm_backward(m->dx, NULL, s->norm.dw, s->norm.db, dres, m->dh, s->x, NULL, &norm);
    embed_gradient(m, B, drop);
    gradients_final(&done, 0);
}

/* == Description ================================================================================================== */

static double block_macs(const SequenceModel *m, int i) {
    const SequenceBlock *block = &m->blocks[i];
    return (double)causal_layer_macs(&block->attention, m->shape.n) +
           (double)mlp_macs(&block->mlp, (size_t)m->shape.n);
}

static double linear_macs(const SequenceModel *m) {
    double macs = (double)projection_macs(&m->head, (size_t)m->shape.n);
    for (int i = 0; i < m->settings.depth; i++) macs += block_macs(m, i);
    return macs;
}

double sequence_model_macs(const SequenceModel *m) {
    double macs = linear_macs(m);
    for (int i = 0; i < m->settings.depth; i++) macs += causal_pair_macs(&m->blocks[i].attention, m->shape.n);
    return macs;
}

double sequence_model_training_macs(const SequenceModel *m) {
    double macs = sequence_model_macs(m) + 2 * linear_macs(m);
    for (int i = 0; i < m->settings.depth; i++) macs += causal_pair_macs_backward(&m->blocks[i].attention, m->shape.n);
    return macs;
}

static void describe_block(const SequenceModel *m, FILE *out, int i) {
    const SequenceBlock *block = &m->blocks[i];
    const CausalLayer *a = &block->attention;
    char prefix[PARAM_NAME_SIZE], name[32], what[64];
    snprintf(what, sizeof what, "%s, %.1f %% of pairs", causal_pattern_name(&a->pattern, a->shape.H, name),
             100 * causal_share(a, m->shape.n));
    model_describe_row(&m->model, out, a->prefix, what,
                       (double)causal_layer_macs(a, m->shape.n) + causal_pair_macs(a, m->shape.n));
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
            s->vocabulary, s->dim, s->depth, s->heads, key_width(s) / s->heads, m->stride);
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
    free(m->blocks);
    free(m->stations);
    model_destroy(&m->model);
    memset(m, 0, sizeof *m);
}

/* The passes of causal_runs.h with one query in each lane of a vector, as in softmax_pairs.c:
 *   forward   s = k q^T,  y^T = v^T p
 *   backward  dv = p dy,  dk = ds q,  dq^T = k^T ds
 * Pairs that are not in the set have a score of minus infinity.  Between two passes a query's state is kept in
 * float. */
#include "kernels/softmax/causal_pairs.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#ifdef VIT_PAIRS

#include "kernels/softmax/pair_tiles.h"
#include "kernels/softmax/causal_attention.h"

/* Scores s [keys,QUERIES] of queries i.. and keys j.. become `value` outside of the set. */
static void fill_unseen(float *s, const CausalRun *r, int i, int rows, int j, int keys, float value) {
    int from[QUERIES], to[QUERIES];
    for (int row = 0; row < QUERIES; row++) { /* after the last query: a copy of it */
        from[row] = keys_from(r, i + smaller(row, rows - 1)) - j;
        to[row] = keys_to(r, i + smaller(row, rows - 1)) - j;
    }
    for (int key = 0; key < keys; key++) {
        if (key >= from[QUERIES - 1] && key < to[0]) continue;
        for (int v = 0; v < LANES; v++) {
            float *at = s + key * QUERIES + v * TILE;
            ivec seen = (*(const ivec *)(from + v * TILE) <= key) & (*(const ivec *)(to + v * TILE) > key);
            vec_store(at, vec_select(seen, vec_load(at), vec_set(value)));
        }
    }
}

/* == Forward ====================================================================================================== */

typedef struct {
    int *order;
    real *k, *vt;                              /* a run's keys [padded,Dkp], and values [Dvp,padded] */
    float *held, *held_m, *held_l, *held_p;    /* [N,Dvp], [N], [N], [N]: between two passes */
    real *qt, *p, *rows, *room;                /* [ROWS,Dkp] by blocks [Dkp/2][QUERIES][2]; a block of weights */
    float *yt, *s, *transposed;                /* [ROWS,Dvp] by blocks [Dvp,QUERIES]; [KEYS,QUERIES]; [QUERIES,Dvp] */
} CausalPairsForward;

static CausalPairsForward forward_take(float *slice, const CausalShape *s, const CausalPattern *p, int h,
                                       size_t *floats) {
    bool two;
    int longest = longest_of(p, h, s->N, &two);
    size_t padded = (size_t)pairs_round_up(longest), held = two ? (size_t)s->N : 0;
    size_t Dkp = (size_t)pairs_round_up(s->Dk), Dvp = (size_t)pairs_round_up(s->Dv), D = Dkp > Dvp ? Dkp : Dvp;
    float *next = slice;
    CausalPairsForward f = {.order = (int *)workspace_take(&next, (size_t)longest)};
    f.k = take_reals(&next, padded * Dkp);
    f.vt = take_reals(&next, padded * Dvp);
    f.held = workspace_take(&next, held * Dvp);
    f.held_m = workspace_take(&next, held);
    f.held_l = workspace_take(&next, held);
    f.held_p = workspace_take(&next, held);
    f.qt = take_reals(&next, ROWS * Dkp);
    f.p = take_reals(&next, KEYS * QUERIES);
    f.rows = take_reals(&next, QUERIES * D);
    f.room = take_reals(&next, QUERIES * D);
    f.yt = workspace_take(&next, ROWS * Dvp);
    f.s = workspace_take(&next, KEYS * QUERIES);
    f.transposed = workspace_take(&next, QUERIES * Dvp);
    *floats = (size_t)(next - slice);
    return f;
}

size_t causal_pairs_forward_floats(const CausalShape *s, const CausalPattern *p, int h) {
    size_t floats;
    forward_take(NULL, s, p, h, &floats);
    return floats;
}

/* The state before a pass, a number for each query of a block. */
typedef struct {
    float m[QUERIES], l[QUERIES], p[QUERIES];
} Numbers;

static Running running_of(const Numbers *n) {
    Running r;
    for (int v = 0; v < LANES; v++) {
        r.largest[v] = vec_load(n->m + v * TILE);
        r.shift[v] = vec_set(0); /* set by the first scores */
        r.sum[v] = vec_load(n->l + v * TILE);
        r.rounded[v] = vec_load(n->p + v * TILE);
    }
    return r;
}

/* Prepares queries i.. of a block: qt, yt and the running softmax before the first key. */
static Running begin_block(const CausalPairsForward *own, const CausalPairsForward *shared, const CausalRun *r,
                           const CausalHead *a, real *qt, float *yt, int i, int rows, int Dkp, int Dvp) {
    Numbers n;
    copy_rows(own->rows, a->q, a->q_row, r->q_order, i, rows, QUERIES, a->Dk, Dkp);
    transpose_pairs(qt, QUERIES, own->rows, QUERIES, Dkp);
    memset(own->transposed, 0, QUERIES * (size_t)Dvp * sizeof *own->transposed);
    for (int row = 0; row < QUERIES; row++) {
        n.m[row] = -INFINITY;
        n.l[row] = n.p[row] = 0;
        if (row >= rows) continue;
        size_t token = position(r->q_order, i + row);
        float *y = own->transposed + (size_t)row * Dvp;
        if (r->pass->rest) {
            memcpy(y, shared->held + token * Dvp, Dvp * sizeof *y);
            n.m[row] = shared->held_m[token];
            n.l[row] = shared->held_l[token];
            n.p[row] = shared->held_p[token];
        } else if (sees_own(r, (int)token)) {
            gather(y, a->v + token * a->v_row, 0, NULL, 0, 1, 1, a->Dv, Dvp);
            n.m[row] = LOG2_E * a->scale * reals_dot(a->q + token * a->q_row, a->k + token * a->k_row, a->Dk);
            n.l[row] = n.p[row] = 1;
        }
    }
    tiles_transpose(yt, QUERIES, own->transposed, Dvp, QUERIES, Dvp);
    return running_of(&n);
}

static void end_block(const CausalPairsForward *own, const CausalPairsForward *shared, const CausalRun *r,
                      const CausalHead *a, const Running *state, const float *yt, int i, int rows, int Dvp) {
    Numbers n;
    for (int v = 0; v < LANES; v++) {
        vec_store(n.m + v * TILE, state->largest[v]);
        vec_store(n.l + v * TILE, state->sum[v]);
        vec_store(n.p + v * TILE, state->rounded[v]);
    }
    tiles_transpose(own->transposed, Dvp, yt, QUERIES, Dvp, QUERIES);
    for (int row = 0; row < rows; row++) {
        size_t token = position(r->q_order, i + row);
        const float *y = own->transposed + (size_t)row * Dvp;
        if (r->pass->more) {
            memcpy(shared->held + token * Dvp, y, Dvp * sizeof *y);
            shared->held_m[token] = n.m[row];
            shared->held_l[token] = n.l[row];
            shared->held_p[token] = n.p[row];
            continue;
        }
        scatter(a->y + token * a->y_row, 0, NULL, 0, y, 1 / n.p[row], false, 1, a->Dv, Dvp);
        a->lse[token] = LN_2 * n.m[row] + logf(n.l[row]);
    }
}

/* Computes the results of queries i.., at most ROWS of them. */
static void forward_rows(Pairs kind, const CausalPairsForward *own, const CausalPairsForward *shared,
                         const CausalPairsForward *run, const CausalRun *r, const CausalHead *a, int i) {
    int rows = smaller(ROWS, r->queries - i), Dkp = pairs_round_up(a->Dk), Dvp = pairs_round_up(a->Dv);
    size_t padded = (size_t)pairs_round_up(r->keys);
    Running state[ROWS / QUERIES];
    for (int t = 0; t < rows; t += QUERIES)
        state[t / QUERIES] = begin_block(own, shared, r, a, own->qt + (size_t)t * Dkp, own->yt + (size_t)t * Dvp, i + t,
                                         smaller(QUERIES, rows - t), Dkp, Dvp);
    CausalRange all = keys_seen(r, i, rows, 0, r->keys);
    for (int j = all.first; j < all.last; j += KEYS)
        for (int t = 0; t < rows; t += QUERIES) {
            int some = smaller(QUERIES, rows - t);
            CausalRange seen = keys_seen(r, i + t, some, j, smaller(j + KEYS, all.last));
            int keys = pairs_round_up(seen.last - seen.first);
            float *yt = own->yt + (size_t)t * Dvp;
            if (seen.last <= seen.first) continue;
            pairs_gemm(kind, own->s, QUERIES, run->k + (size_t)seen.first * Dkp, Dkp, own->qt + (size_t)t * Dkp,
                       QUERIES, keys, QUERIES, Dkp, false);
            if (!all_seen(r, i + t, some, seen.first, keys))
                fill_unseen(own->s, r, i + t, some, seen.first, keys, -INFINITY);
            pairs_softmax_step(LANES, own->p, &state[t / QUERIES], yt, own->s, LOG2_E * a->scale, keys, keys, Dvp);
            pairs_gemm(kind, yt, QUERIES, run->vt + seen.first, padded, own->p, QUERIES, Dvp, QUERIES, keys, true);
        }
    for (int t = 0; t < rows; t += QUERIES)
        end_block(own, shared, r, a, &state[t / QUERIES], own->yt + (size_t)t * Dvp, i + t, smaller(QUERIES, rows - t),
                  Dvp);
}

/* `run` has the buffers of the team's first member. */
static void forward_run(Pairs kind, const CausalPairsForward *own, const CausalPairsForward *shared,
                        const CausalPairsForward *run, const CausalRun *r, const CausalHead *a, Team team) {
    int Dkp = pairs_round_up(a->Dk), Dvp = pairs_round_up(a->Dv), padded = pairs_round_up(r->keys);
    for (int j = team.part * QUERIES; j < r->keys; j += team.parts * QUERIES) {
        int keys = smaller(QUERIES, r->keys - j);
        copy_rows(run->k + (size_t)j * Dkp, a->k, a->k_row, r->k_order, j, keys, QUERIES, a->Dk, Dkp);
        copy_rows(own->rows, a->v, a->v_row, r->k_order, j, keys, QUERIES, a->Dv, Dvp);
        transpose_rows(run->vt + j, (size_t)padded, own->rows, own->room, QUERIES, Dvp);
    }
    wait_for(team);
    int tasks = (r->queries + ROWS - 1) / ROWS;
    for (int n = 0; n * team.parts < tasks; n++)
        if (task_of(team, n) < tasks) forward_rows(kind, own, shared, run, r, a, task_of(team, n) * ROWS);
}

void causal_pairs_forward(Pairs kind, const CausalHead *a, const CausalShape *s, Team team, float *own_slice,
                          float *slice) {
    size_t floats;
    CausalPairsForward own = forward_take(own_slice, s, a->pattern, a->h, &floats);
    CausalPairsForward lead = forward_take(slice, s, a->pattern, a->h, &floats);
    pairs_begin(kind);
    for (CausalRuns r = runs_of(a, team, own.order); next_run(&r);)
        forward_run(kind, &own, &lead, r.workers.parts > 1 ? &lead : &own, &r.run, a, r.workers);
    pairs_end(kind);
}

/* == Backward ===================================================================================================== */

typedef struct {
    int *order;
    real *qt, *qp, *dyt, *dyp;      /* a run's queries, in the blocks of pack_queries */
    float *dqt, *delta, *shift;     /* by blocks [Dkp,QUERIES]; [queries], padded */
    real *k, *kt, *v, *room;        /* a block of keys [KEYS,Dkp], [Dkp,KEYS], [KEYS,Dvp] */
    float *dk, *dv;                 /* [KEYS,Dkp], [KEYS,Dvp] */
    float *s, *t, *transposed;      /* [KEYS,QUERIES]; [QUERIES,Dkp] */
    real *p, *ds, *ds_pairs;        /* [KEYS,QUERIES] */
} CausalPairsBackward;

static CausalPairsBackward backward_take(float *slice, const CausalShape *s, const CausalPattern *p, int h,
                                         size_t *floats) {
    bool two;
    size_t padded = (size_t)pairs_round_up(longest_of(p, h, s->N, &two));
    size_t Dkp = (size_t)pairs_round_up(s->Dk), Dvp = (size_t)pairs_round_up(s->Dv), D = Dkp > Dvp ? Dkp : Dvp;
    float *next = slice;
    CausalPairsBackward w = {.order = (int *)workspace_take(&next, padded)};
    w.qt = take_reals(&next, padded * Dkp);
    w.qp = take_reals(&next, padded * Dkp);
    w.dyt = take_reals(&next, padded * Dvp);
    w.dyp = take_reals(&next, padded * Dvp);
    w.dqt = workspace_take(&next, padded * Dkp);
    w.delta = workspace_take(&next, padded);
    w.shift = workspace_take(&next, padded);
    w.k = take_reals(&next, KEYS * Dkp);
    w.kt = take_reals(&next, KEYS * Dkp);
    w.v = take_reals(&next, KEYS * Dvp);
    w.room = take_reals(&next, QUERIES * D);
    w.dk = workspace_take(&next, KEYS * Dkp);
    w.dv = workspace_take(&next, KEYS * Dvp);
    w.s = workspace_take(&next, KEYS * QUERIES);
    w.t = workspace_take(&next, KEYS * QUERIES);
    w.transposed = workspace_take(&next, QUERIES * Dkp);
    w.p = take_reals(&next, KEYS * QUERIES);
    w.ds = take_reals(&next, KEYS * QUERIES);
    w.ds_pairs = take_reals(&next, KEYS * QUERIES);
    *floats = (size_t)(next - slice);
    return w;
}

size_t causal_pairs_backward_floats(const CausalShape *s, const CausalPattern *p, int h) {
    size_t floats;
    backward_take(NULL, s, p, h, &floats);
    return floats;
}

/* Computes the pair of a query and its own key, if that is not in the run: the key's dk and dv, and the query's column
 * of dq^T. */
static void own_pair(float *dqt, const CausalHead *a, float delta, size_t token) {
    const real *q = a->q + token * a->q_row, *k = a->k + token * a->k_row, *v = a->v + token * a->v_row;
    const real *dy = a->dy + token * a->y_row;
    float p = expf(a->scale * reals_dot(q, k, a->Dk) - a->lse[token]), ds = p * (reals_dot(dy, v, a->Dv) - delta);
    for (int c = 0; c < a->Dk; c++) dqt[c * QUERIES] = ds * real_get(k[c]);
    for (int c = 0; c < a->Dk; c += TILE)
        real_store_part(a->dk + token * a->k_row + c, a->scale * ds * real_load_part(q + c, a->Dk - c), a->Dk - c);
    for (int c = 0; c < a->Dv; c += TILE)
        real_store_part(a->dv + token * a->v_row + c, p * real_load_part(dy + c, a->Dv - c), a->Dv - c);
}

/* Prepares this member's part of the queries, for all, and its own share of dq^T for all queries. */
static void begin_queries(const CausalPairsBackward *own, const CausalPairsBackward *run, const CausalRun *r,
                          const CausalHead *a, Team team) {
    int Dkp = pairs_round_up(a->Dk), Dvp = pairs_round_up(a->Dv);
    for (int i = 0; i < r->queries; i += QUERIES) {
        int rows = smaller(QUERIES, r->queries - i);
        size_t k_at = (size_t)i * Dkp, v_at = (size_t)i * Dvp;
        memset(own->dqt + k_at, 0, QUERIES * (size_t)Dkp * sizeof *own->dqt);
        if (i / QUERIES % team.parts != team.part) continue;
        pack_queries(run->qt + k_at, run->qp + k_at, own->room, a->q, a->q_row, r->q_order, i, rows, a->Dk, Dkp);
        pack_queries(run->dyt + v_at, run->dyp + v_at, own->room, a->dy, a->y_row, r->q_order, i, rows, a->Dv, Dvp);
        for (int row = 0; row < QUERIES; row++) {
            run->delta[i + row] = run->shift[i + row] = 0;
            if (row >= rows) continue;
            size_t token = position(r->q_order, i + row);
            run->delta[i + row] = reals_dot(a->dy + token * a->y_row, a->y + token * a->y_row, a->Dv);
            run->shift[i + row] = LOG2_E * a->lse[token];
            if (sees_own(r, (int)token)) own_pair(own->dqt + k_at + row, a, run->delta[i + row], token);
        }
    }
}

/* Processes queries i.. with keys j+first .. j+first+keys-1 of the block at j, in whole pairs of blocks. */
static void backward_tile(Pairs kind, const CausalPairsBackward *own, const CausalPairsBackward *run,
                          const CausalRun *r, const CausalHead *a, int i, int j, int first, int keys) {
    int rows = smaller(QUERIES, r->queries - i), Dkp = pairs_round_up(a->Dk), Dvp = pairs_round_up(a->Dv);
    size_t q = (size_t)i * Dkp, dy = (size_t)i * Dvp, k = (size_t)first * Dkp, v = (size_t)first * Dvp;
    pairs_gemm(kind, own->s, QUERIES, own->k + k, Dkp, run->qt + q, QUERIES, keys, QUERIES, Dkp, false);
    pairs_gemm(kind, own->t, QUERIES, own->v + v, Dvp, run->dyt + dy, QUERIES, keys, QUERIES, Dvp, false);
    if (!all_seen(r, i, rows, j + first, keys)) {
        fill_unseen(own->s, r, i, rows, j + first, keys, -INFINITY);
        fill_unseen(own->t, r, i, rows, j + first, keys, 0);
    }
    pairs_scores_backward(LANES, own->p, own->ds, own->ds_pairs, own->s, own->t, run->shift + i, run->delta + i,
                          LOG2_E * a->scale, keys, keys);
    pairs_gemm(kind, own->dv + v, Dvp, own->p, QUERIES, run->dyp + dy, Dvp, keys, Dvp, QUERIES, true);
    pairs_gemm(kind, own->dk + k, Dkp, own->ds, QUERIES, run->qp + q, Dkp, keys, Dkp, QUERIES, true);
    pairs_gemm(kind, own->dqt + q, QUERIES, own->kt + first, KEYS, own->ds_pairs, QUERIES, Dkp, QUERIES, keys, true);
}

/* Processes keys j .. j+block-1 and all queries that attend to one of them: dk, dv, and this member's share of dq^T. */
static void backward_keys(Pairs kind, const CausalPairsBackward *own, const CausalPairsBackward *run,
                          const CausalRun *r, const CausalHead *a, int j, int block) {
    int Dkp = pairs_round_up(a->Dk), Dvp = pairs_round_up(a->Dv), padded = pairs_round_up(block);
    copy_rows(own->k, a->k, a->k_row, r->k_order, j, block, padded, a->Dk, Dkp);
    copy_rows(own->v, a->v, a->v_row, r->k_order, j, block, padded, a->Dv, Dvp);
    for (int c = 0; c < padded; c += PAIR_BLOCK)
        transpose_rows(own->kt + c, KEYS, own->k + (size_t)c * Dkp, own->room, PAIR_BLOCK, Dkp);
    memset(own->dk, 0, (size_t)padded * Dkp * sizeof *own->dk);
    memset(own->dv, 0, (size_t)padded * Dvp * sizeof *own->dv);
    int end = queries_to(r, j + block - 1);
    for (int i = queries_from(r, j) / QUERIES * QUERIES; i < end; i += QUERIES) {
        CausalRange seen = keys_seen(r, i, smaller(QUERIES, r->queries - i), j, j + block);
        if (seen.last <= seen.first) continue;
        backward_tile(kind, own, run, r, a, i, j, seen.first - j, pairs_round_up(seen.last - seen.first));
    }
    scatter(a->dk, a->k_row, r->k_order, j, own->dk, a->scale, r->pass->rest, block, a->Dk, Dkp);
    scatter(a->dv, a->v_row, r->k_order, j, own->dv, 1, r->pass->rest, block, a->Dv, Dvp);
}

/* A member's dq^T is `apart` floats after the previous one's; `run` has the buffers of the team's first member. */
static void backward_run(Pairs kind, const CausalPairsBackward *own, const CausalPairsBackward *run, size_t apart,
                         const CausalRun *r, const CausalHead *a, Team team) {
    int Dkp = pairs_round_up(a->Dk);
    begin_queries(own, run, r, a, team);
    wait_for(team);
    int block = keys_at_once(r, team), tasks = (r->keys + block - 1) / block;
    for (int n = 0; n * team.parts < tasks; n++) {
        int j = task_of(team, n) * block;
        if (j < r->keys) backward_keys(kind, own, run, r, a, j, smaller(block, r->keys - j));
    }
    wait_for(team);
    for (int i = team.part * QUERIES; i < r->queries; i += team.parts * QUERIES) {
        float *dqt = run->dqt + (size_t)i * Dkp;
        for (int part = 1; part < team.parts; part++)
            for (int c = 0; c < QUERIES * Dkp; c += TILE)
                vec_store(dqt + c, vec_load(dqt + c) + vec_load(dqt + part * apart + c));
        tiles_transpose(own->transposed, Dkp, dqt, QUERIES, Dkp, QUERIES);
        scatter(a->dq, a->q_row, r->q_order, i, own->transposed, a->scale, r->pass->rest,
                smaller(QUERIES, r->queries - i), a->Dk, Dkp);
    }
    wait_for(team);
}

void causal_pairs_backward(Pairs kind, const CausalHead *a, const CausalShape *s, Team team, float *own_slice,
                           float *slice, size_t apart) {
    size_t floats;
    CausalPairsBackward own = backward_take(own_slice, s, a->pattern, a->h, &floats);
    CausalPairsBackward lead = backward_take(slice, s, a->pattern, a->h, &floats);
    pairs_begin(kind);
    for (CausalRuns r = runs_of(a, team, own.order); next_run(&r);)
        backward_run(kind, &own, r.workers.parts > 1 ? &lead : &own, apart, &r.run, a, r.workers);
    pairs_end(kind);
}

#endif

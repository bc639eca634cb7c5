/* Causal softmax attention over sets of keys; the formulas are those of softmax_attention.c, the sets' runs those of
 * causal_runs.h.  This implementation widens its inputs to floats; causal_pairs.c multiplies bfloat16 where that is
 * faster. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/softmax/causal_pairs.h"
#include "kernels/softmax/causal_runs.h"
#include "kernels/softmax/causal_attention.h"

/* == Unseen pairs ================================================================================================= */

/* x [keys], whole vectors, becomes `value` outside of from .. to-1. */
static void fill_outside(float *x, int from, int to, int keys, float value) {
    for (int c = 0; c < from; c += TILE)
        vec_store(x + c, vec_select(vec_lanes() + c < from, vec_set(value), vec_load(x + c)));
    for (int c = to / TILE * TILE; c < keys; c += TILE)
        vec_store(x + c, vec_select(vec_lanes() + c >= to, vec_set(value), vec_load(x + c)));
}

/* The elements of x [rows,KEYS], for queries i.. and keys j.., that are not in the set become `value`. */
static void fill_unseen(float *x, const CausalRun *r, int i, int rows, int j, int keys, float value) {
    for (int row = 0; row < rows; row++) {
        int from = smaller(keys_from(r, i + row) - j, keys), to = larger(keys_to(r, i + row) - j, 0);
        fill_outside(x + row * KEYS, from, to, keys, value);
    }
}

/* == Forward ====================================================================================================== */

typedef struct {
    int *order;
    float *kt, *v;               /* a run's keys, in panels, and values [keys,Dvp] */
    float *held, *held_m, *held_l; /* [N,Dvp], [N], [N]: between two passes */
    float *qs, *ys, *m, *l, *s;  /* [ROWS,Dkp], [ROWS,Dvp], [ROWS], [ROWS], [QUERIES,KEYS] */
} CausalForward;

static CausalForward forward_take(float *slice, const CausalShape *s, const CausalPattern *p, int h, size_t *floats) {
    bool two;
    size_t longest = (size_t)longest_of(p, h, s->N, &two), held = two ? (size_t)s->N : 0;
    size_t Dkp = (size_t)tile_round_up(s->Dk), Dvp = (size_t)tile_round_up(s->Dv);
    float *next = slice;
    CausalForward f = {.order = (int *)workspace_take(&next, longest)};
    f.kt = workspace_take(&next, panels_floats((int)longest, s->Dk));
    f.v = workspace_take(&next, longest * Dvp);
    f.held = workspace_take(&next, held * Dvp);
    f.held_m = workspace_take(&next, held);
    f.held_l = workspace_take(&next, held);
    f.qs = workspace_take(&next, ROWS * Dkp);
    f.ys = workspace_take(&next, ROWS * Dvp);
    f.m = workspace_take(&next, ROWS);
    f.l = workspace_take(&next, ROWS);
    f.s = workspace_take(&next, QUERIES * KEYS);
    *floats = (size_t)(next - slice);
    return f;
}

/* Begins a row's running softmax, before the first key. */
static void begin_row(const CausalForward *own, const CausalForward *shared, const CausalRun *r, const CausalHead *a,
                      int row, size_t token) {
    float *ys = own->ys + (size_t)row * a->Dvp;
    own->m[row] = -INFINITY;
    own->l[row] = 0;
    if (r->pass->rest) {
        memcpy(ys, shared->held + token * a->Dvp, a->Dvp * sizeof *ys);
        own->m[row] = shared->held_m[token];
        own->l[row] = shared->held_l[token];
    } else if (sees_own(r, (int)token)) {
        gather(ys, a->v + token * a->v_row, 0, NULL, 0, 1, 1, a->Dv, a->Dvp);
        own->m[row] = a->scale * reals_dot(a->q + token * a->q_row, a->k + token * a->k_row, a->Dk);
        own->l[row] = 1;
    } else memset(ys, 0, a->Dvp * sizeof *ys);
}

static void end_row(const CausalForward *own, const CausalForward *shared, const CausalRun *r, const CausalHead *a,
                    int row, size_t token) {
    const float *ys = own->ys + (size_t)row * a->Dvp;
    float m = own->m[row], l = own->l[row];
    if (r->pass->more) {
        memcpy(shared->held + token * a->Dvp, ys, a->Dvp * sizeof *ys);
        shared->held_m[token] = m;
        shared->held_l[token] = l;
        return;
    }
    scatter(a->y + token * a->y_row, 0, NULL, 0, ys, 1 / l, false, 1, a->Dv, a->Dvp);
    a->lse[token] = m + logf(l);
}

/* Computes the results of queries i.., at most ROWS of them. */
static void forward_rows(const CausalForward *own, const CausalForward *shared, const CausalForward *run,
                         const CausalRun *r, const CausalHead *a, int i) {
    int rows = smaller(ROWS, r->queries - i), Dkp = a->Dkp, Dvp = a->Dvp;
    gather(own->qs, a->q, a->q_row, r->q_order, i, a->scale, rows, a->Dk, Dkp);
    for (int row = 0; row < rows; row++) begin_row(own, shared, r, a, row, position(r->q_order, i + row));
    CausalRange all = keys_seen(r, i, rows, 0, r->keys);
    for (int j = all.first; j < all.last; j += KEYS)
        for (int t = 0; t < rows; t += QUERIES) {
            int some = smaller(QUERIES, rows - t);
            CausalRange seen = keys_seen(r, i + t, some, j, smaller(j + KEYS, all.last));
            int keys = seen.last - seen.first;
            if (keys <= 0) continue;
            bool masked = !all_seen(r, i + t, some, seen.first, keys);
            float *ys = own->ys + (size_t)t * Dvp;
            scores(own->s, own->qs + (size_t)t * Dkp, run->kt + (size_t)seen.first * a->Dk, some, keys, a->Dk, Dkp);
            if (masked) fill_unseen(own->s, r, i + t, some, seen.first, keys, -INFINITY);
            softmax_step(own->s, own->m + t, own->l + t, ys, some, keys, Dvp);
            if (masked) fill_unseen(own->s, r, i + t, some, seen.first, keys, 0);
            tile_gemm(ys, Dvp, own->s, KEYS, 1, run->v + (size_t)seen.first * Dvp, Dvp, some, Dvp, keys, 1);
        }
    for (int row = 0; row < rows; row++) end_row(own, shared, r, a, row, position(r->q_order, i + row));
}

/* `run` has the buffers of the team's first member. */
static void forward_run(const CausalForward *own, const CausalForward *shared, const CausalForward *run,
                        const CausalRun *r, const CausalHead *a, Team team) {
    for (int j = team.part * KEYS; j < r->keys; j += team.parts * KEYS) {
        int keys = smaller(KEYS, r->keys - j);
        gather_panels(run->kt + (size_t)j * a->Dk, a->k, a->k_row, r->k_order, j, keys, a->Dk);
        gather(run->v + (size_t)j * a->Dvp, a->v, a->v_row, r->k_order, j, 1, keys, a->Dv, a->Dvp);
    }
    wait_for(team);
    int tasks = (r->queries + ROWS - 1) / ROWS;
    for (int n = 0; n * team.parts < tasks; n++)
        if (task_of(team, n) < tasks) forward_rows(own, shared, run, r, a, task_of(team, n) * ROWS);
}

static void forward_head(const CausalHead *a, const CausalShape *s, Team team, float *own_slice, float *slice) {
    size_t floats;
    CausalForward own = forward_take(own_slice, s, a->pattern, a->h, &floats);
    CausalForward lead = forward_take(slice, s, a->pattern, a->h, &floats);
    for (CausalRuns r = runs_of(a, team, own.order); next_run(&r);)
        forward_run(&own, &lead, r.workers.parts > 1 ? &lead : &own, &r.run, a, r.workers);
}

static size_t most_floats(const CausalShape *s, const CausalPattern *p, bool backward);

void causal_attention_forward(real *y, float *lse, const CausalInputs *in, const CausalPattern *pattern,
                              const CausalShape *shape) {
    size_t slice = most_floats(shape, pattern, false);
#ifdef VIT_PAIRS
    Pairs kind = pairs_kind();
#endif
#pragma omp parallel
    {
        Team team = team_of(shape, pattern);
        CausalRange heads = heads_for(team, shape);
        for (int head = heads.first; head < heads.last; head++) {
            CausalHead a = head_of(shape, pattern, in, (size_t)head);
            float *own = kernels_workspace(slice), *lead = team.parts > 1 ? workspace_of(0, slice) : own;
            a.y = y + y_at(&a, shape, (size_t)head);
            a.lse = lse + (size_t)head * shape->N;
#ifdef VIT_PAIRS
            if (kind != PAIRS_SLOW) {
                causal_pairs_forward(kind, &a, shape, team, own, lead);
                continue;
            }
#endif
            forward_head(&a, shape, team, own, lead);
        }
    }
}

/* == Backward ===================================================================================================== */

typedef struct {
    int *order;
    float *qs, *dys, *dqs, *delta, *shift; /* a run's queries: [queries,Dkp], [,Dvp], [,Dkp], [queries] each */
    float *kt, *vt, *k, *dk, *dv;          /* a block of keys */
    float *s, *t;                          /* [QUERIES,KEYS]: scores and p, dy v^T and ds */
} CausalBackward;

static CausalBackward backward_take(float *slice, const CausalShape *s, const CausalPattern *p, int h, size_t *floats) {
    bool two;
    size_t longest = (size_t)longest_of(p, h, s->N, &two);
    size_t Dkp = (size_t)tile_round_up(s->Dk), Dvp = (size_t)tile_round_up(s->Dv);
    float *next = slice;
    CausalBackward w = {.order = (int *)workspace_take(&next, longest)};
    w.qs = workspace_take(&next, longest * Dkp);
    w.dys = workspace_take(&next, longest * Dvp);
    w.dqs = workspace_take(&next, longest * Dkp);
    w.delta = workspace_take(&next, longest);
    w.shift = workspace_take(&next, longest);
    w.kt = workspace_take(&next, panels_floats(KEYS, s->Dk));
    w.vt = workspace_take(&next, panels_floats(KEYS, s->Dv));
    w.k = workspace_take(&next, KEYS * Dkp);
    w.dk = workspace_take(&next, KEYS * Dkp);
    w.dv = workspace_take(&next, KEYS * Dvp);
    w.s = workspace_take(&next, QUERIES * KEYS);
    w.t = workspace_take(&next, QUERIES * KEYS);
    *floats = (size_t)(next - slice);
    return w;
}

/* Computes the pair of a query and its own key, if that is not in the run: the key's dk and dv, and the initial dq. */
static void own_pair(float *dq, const CausalRun *r, const CausalHead *a, const float *q, const float *dy, float delta,
                     float lse, size_t token) {
    memset(dq, 0, a->Dkp * sizeof *dq);
    if (!sees_own(r, (int)token)) return;
    const real *k = a->k + token * a->k_row, *v = a->v + token * a->v_row;
    float p = expf(row_dot(k, q, a->Dk) - lse), ds = p * (row_dot(v, dy, a->Dv) - delta);
    rows_gather(dq, a->Dkp, k, a->k_row, ds, 1, a->Dk);
    scatter(a->dk + token * a->k_row, 0, NULL, 0, q, ds, false, 1, a->Dk, a->Dkp);
    scatter(a->dv + token * a->v_row, 0, NULL, 0, dy, p, false, 1, a->Dv, a->Dvp);
}

/* Prepares this member's part of the queries, for all, and its own share of dq for all queries. */
static void begin_queries(const CausalBackward *own, const CausalBackward *run, const CausalRun *r, const CausalHead *a,
                          Team team) {
    for (int i = 0; i < r->queries; i++) {
        float *dq = own->dqs + (size_t)i * a->Dkp;
        if (i / QUERIES % team.parts != team.part) {
            memset(dq, 0, a->Dkp * sizeof *dq);
            continue;
        }
        float *q = run->qs + (size_t)i * a->Dkp, *dy = run->dys + (size_t)i * a->Dvp;
        size_t token = position(r->q_order, i);
        gather(q, a->q + token * a->q_row, 0, NULL, 0, a->scale, 1, a->Dk, a->Dkp);
        gather(dy, a->dy + token * a->y_row, 0, NULL, 0, 1, 1, a->Dv, a->Dvp);
        run->delta[i] = row_dot(a->y + token * a->y_row, dy, a->Dv);
        run->shift[i] = a->lse[token];
        own_pair(dq, r, a, q, dy, run->delta[i], run->shift[i], token);
    }
}

/* Processes keys j .. j+block-1 and all queries that attend to one of them: dk, dv, and this member's share of dq. */
static void backward_keys(const CausalBackward *own, const CausalBackward *run, const CausalRun *r, const CausalHead *a,
                          int j, int block) {
    int Dk = a->Dk, Dkp = a->Dkp, Dvp = a->Dvp;
    gather_panels(own->kt, a->k, a->k_row, r->k_order, j, block, Dk);
    gather_panels(own->vt, a->v, a->v_row, r->k_order, j, block, a->Dv);
    gather(own->k, a->k, a->k_row, r->k_order, j, 1, block, Dk, Dkp);
    memset(own->dk, 0, (size_t)block * Dkp * sizeof *own->dk);
    memset(own->dv, 0, (size_t)block * Dvp * sizeof *own->dv);
    int end = queries_to(r, j + block - 1);
    for (int i = queries_from(r, j) / QUERIES * QUERIES; i < end; i += QUERIES) {
        int rows = smaller(QUERIES, r->queries - i);
        CausalRange seen = keys_seen(r, i, rows, j, j + block);
        int first = seen.first - j, keys = seen.last - seen.first;
        if (keys <= 0) continue;
        const float *qs = run->qs + (size_t)i * Dkp, *dys = run->dys + (size_t)i * Dvp;
        bool masked = !all_seen(r, i, rows, seen.first, keys);
        scores(own->s, qs, own->kt + (size_t)first * Dk, rows, keys, Dk, Dkp);
        scores(own->t, dys, own->vt + (size_t)first * a->Dv, rows, keys, a->Dv, Dvp);
        scores_backward(own->s, own->t, run->shift + i, run->delta + i, rows, keys);
        if (masked) {
            fill_unseen(own->s, r, i, rows, seen.first, keys, 0);
            fill_unseen(own->t, r, i, rows, seen.first, keys, 0);
        }
        tile_gemm(own->dv + (size_t)first * Dvp, Dvp, own->s, 1, KEYS, dys, Dvp, keys, Dvp, rows, 1);
        tile_gemm(own->dk + (size_t)first * Dkp, Dkp, own->t, 1, KEYS, qs, Dkp, keys, Dkp, rows, 1);
        tile_gemm(own->dqs + (size_t)i * Dkp, Dkp, own->t, KEYS, 1, own->k + (size_t)first * Dkp, Dkp, rows, Dkp, keys,
                  1);
    }
    scatter(a->dk, a->k_row, r->k_order, j, own->dk, 1, r->pass->rest, block, Dk, Dkp);
    scatter(a->dv, a->v_row, r->k_order, j, own->dv, 1, r->pass->rest, block, a->Dv, Dvp);
}

/* A member's dq is `apart` floats after the previous one's; `run` has the buffers of the team's first member. */
static void backward_run(const CausalBackward *own, const CausalBackward *run, size_t apart, const CausalRun *r,
                         const CausalHead *a, Team team) {
    begin_queries(own, run, r, a, team);
    wait_for(team);
    int block = keys_at_once(r, team), tasks = (r->keys + block - 1) / block;
    for (int n = 0; n * team.parts < tasks; n++) {
        int j = task_of(team, n) * block;
        if (j < r->keys) backward_keys(own, run, r, a, j, smaller(block, r->keys - j));
    }
    wait_for(team);
    for (int i = team.part * QUERIES; i < r->queries; i += team.parts * QUERIES) {
        int rows = smaller(QUERIES, r->queries - i);
        float *dq = run->dqs + (size_t)i * a->Dkp;
        for (int part = 1; part < team.parts; part++)
            for (int c = 0; c < rows * a->Dkp; c += TILE)
                vec_store(dq + c, vec_load(dq + c) + vec_load(dq + part * apart + c));
        scatter(a->dq, a->q_row, r->q_order, i, dq, a->scale, r->pass->rest, rows, a->Dk, a->Dkp);
    }
    wait_for(team);
}

static void backward_head(const CausalHead *a, const CausalShape *s, Team team, float *own_slice, float *slice,
                          size_t apart) {
    size_t floats;
    CausalBackward own = backward_take(own_slice, s, a->pattern, a->h, &floats);
    CausalBackward lead = backward_take(slice, s, a->pattern, a->h, &floats);
    for (CausalRuns r = runs_of(a, team, own.order); next_run(&r);)
        backward_run(&own, r.workers.parts > 1 ? &lead : &own, apart, &r.run, a, r.workers);
}

void causal_attention_backward(const CausalGradients *d, const real *dy, const real *y, const float *lse,
                               const CausalInputs *in, const CausalPattern *pattern, const CausalShape *shape) {
    size_t slice = most_floats(shape, pattern, true);
#ifdef VIT_PAIRS
    Pairs kind = pairs_kind();
#endif
#pragma omp parallel
    {
        Team team = team_of(shape, pattern);
        CausalRange heads = heads_for(team, shape);
        for (int head = heads.first; head < heads.last; head++) {
            CausalHead a = head_of(shape, pattern, in, (size_t)head);
            float *own = kernels_workspace(slice), *lead = team.parts > 1 ? workspace_of(0, slice) : own;
            a.dy = dy + y_at(&a, shape, (size_t)head);
            a.y = (real *)y + y_at(&a, shape, (size_t)head);
            a.lse = (float *)lse + (size_t)head * shape->N;
            a.dq = d->q + (a.q - in->q);
            a.dk = d->k + (a.k - in->k);
            a.dv = d->v + (a.v - in->v);
#ifdef VIT_PAIRS
            if (kind != PAIRS_SLOW) {
                causal_pairs_backward(kind, &a, shape, team, own, lead, workspace_slice(slice));
                continue;
            }
#endif
            backward_head(&a, shape, team, own, lead, workspace_slice(slice));
        }
    }
}

/* == Workspace ==================================================================================================== */

/* The floats that one thread needs, whichever head it works on. */
static size_t most_floats(const CausalShape *s, const CausalPattern *p, bool backward) {
    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        int h = i == 0 ? 0 : s->H - 1; /* the first set and the second */
        size_t floats;
        if (backward) backward_take(NULL, s, p, h, &floats);
        else forward_take(NULL, s, p, h, &floats);
#ifdef VIT_PAIRS
        if (pairs_kind() != PAIRS_SLOW)
            floats = backward ? causal_pairs_backward_floats(s, p, h) : causal_pairs_forward_floats(s, p, h);
#endif
        most = floats > most ? floats : most;
    }
    return most;
}

size_t causal_attention_workspace(const CausalPattern *pattern, const CausalShape *shape) {
    size_t forward = most_floats(shape, pattern, false), backward = most_floats(shape, pattern, true);
    return workspace_bytes(forward > backward ? forward : backward);
}

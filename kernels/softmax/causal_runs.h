/* Sets of keys as passes over runs, and their division among threads, shared by both forms of causal attention.
 *
 * A set is a pass over one or more runs.  A run is a list of queries and one of keys, in which each query attends to
 * one range of the keys:
 *   dense     one run of all tokens; query i attends to keys 0 .. i
 *   window    one run of all tokens; i-w+1 .. i
 *   column    l runs of N/l tokens, each dense
 *   block     N/l runs of l tokens, each dense
 *   summary   one run of all tokens and the summaries in order; a prefix of them, and in addition the query's own key
 *   strided   two passes: window of l, then column without the query itself
 *   fixed     two passes: block, then the summaries of earlier blocks
 * The second pass continues from the first one's maxima, sums and unscaled results, which are kept in float.  In the
 * backward pass each of them uses the joint log-sum-exp, and the gradients are added.
 *
 * If the heads can be divided evenly among the threads, each thread has heads of its own; otherwise all work on the
 * same head and share its runs, or the tiles of its only run. */
#ifndef VIT_KERNELS_SOFTMAX_CAUSAL_RUNS_H
#define VIT_KERNELS_SOFTMAX_CAUSAL_RUNS_H

#include <math.h>
#include <stdbool.h>

#include "core/integers.h"
#include "kernels/softmax/softmax_tiles.h"
#include "kernels/softmax/causal_attention.h"

/* Number of queries, a few tiles of QUERIES, that share a block of keys, so that it is read once. */
enum { ROWS = 4 * QUERIES };

/* == What a query sees ============================================================================================ */

typedef struct {
    CausalSet set; /* not one of two passes */
    int window;
    bool rest, more; /* second of two passes, first of two passes */
} Pass;

static inline int passes_of(Pass passes[2], const CausalPattern *p, int h) {
    CausalSet set = causal_set(p, h);
    passes[0] = (Pass){.set = set, .window = p->window};
    if (set != CAUSAL_STRIDED && set != CAUSAL_FIXED) return 1;
    bool strided = set == CAUSAL_STRIDED;
    passes[0] = (Pass){.set = strided ? CAUSAL_WINDOW : CAUSAL_BLOCK, .window = p->stride, .more = true};
    passes[1] = (Pass){.set = strided ? CAUSAL_COLUMN : CAUSAL_SUMMARY, .rest = true};
    return 2;
}

/* The number of runs of a pass over N tokens, and the number of tokens in the longest. */
static inline int runs_in(const Pass *pass, const CausalPattern *p, int N) {
    if (pass->set == CAUSAL_COLUMN) return smaller(p->stride, N);
    return pass->set == CAUSAL_BLOCK ? (N + p->stride - 1) / p->stride : 1;
}
static inline int longest_run(const Pass *pass, const CausalPattern *p, int N) {
    if (pass->set == CAUSAL_COLUMN) return (N + p->stride - 1) / p->stride;
    return pass->set == CAUSAL_BLOCK ? smaller(p->stride, N) : N;
}

typedef struct {
    const Pass *pass;
    const CausalPattern *pattern;
    int h;
    int queries, keys;
    const int *q_order, *k_order; /* their tokens; NULL: the same indices */
} CausalRun;

/* Run `number` of a pass; `order` has room for the longest run. */
static inline CausalRun run_of(const Pass *pass, const CausalPattern *p, int h, int N, int number, int *order) {
    CausalRun r = {.pass = pass, .pattern = p, .h = h, .queries = N, .keys = N};
    int l = p->stride, count = 0;
    if (pass->set == CAUSAL_COLUMN)
        for (int t = number; t < N; t += l) order[count++] = t;
    if (pass->set == CAUSAL_BLOCK)
        for (int t = number * l; t < N && t < (number + 1) * l; t++) order[count++] = t;
    if (pass->set == CAUSAL_SUMMARY)
        for (int t = 0; t < N; t++)
            if (causal_is_summary(p, h, t)) order[count++] = t;
    if (pass->set == CAUSAL_DENSE || pass->set == CAUSAL_WINDOW) return r;
    r.k_order = order;
    r.keys = count;
    if (pass->set == CAUSAL_SUMMARY) return r;
    r.q_order = order;
    r.queries = count;
    return r;
}

/* Query i attends to the keys from .. to-1, both of which grow with i. */
static inline int keys_from(const CausalRun *r, int i) {
    return r->pass->set == CAUSAL_WINDOW ? larger(0, i + 1 - r->pass->window) : 0;
}
static inline int keys_to(const CausalRun *r, int i) {
    if (r->pass->set != CAUSAL_SUMMARY) return r->pass->set == CAUSAL_COLUMN && r->pass->rest ? i : i + 1;
    if (r->pass->rest) i = i / r->pattern->stride * r->pattern->stride - 1;
    return causal_summaries(r->pattern, r->h, i + 1);
}

/* The first query that attends to key j or a later one, or a query before it. */
static inline int queries_from(const CausalRun *r, int j) {
    return r->pass->set == CAUSAL_SUMMARY ? j / r->pattern->summary * r->pattern->stride : j;
}
/* One more than the last query that attends to key j or an earlier one. */
static inline int queries_to(const CausalRun *r, int j) {
    return r->pass->set == CAUSAL_WINDOW ? smaller(r->queries, j + r->pass->window) : r->queries;
}

/* Does query i, a token, attend to its own key in addition to those of the run? */
static inline bool sees_own(const CausalRun *r, int i) {
    return r->pass->set == CAUSAL_SUMMARY && !r->pass->rest && !causal_is_summary(r->pattern, r->h, i);
}

typedef struct {
    int first, last;
} CausalRange;

/* The keys of queries i .. i+rows-1 among those from `begin` to `end`; `begin` and `first` are multiples of a panel. */
static inline CausalRange keys_seen(const CausalRun *r, int i, int rows, int begin, int end) {
    int from = keys_from(r, i) / PANEL * PANEL;
    return (CausalRange){larger(from, begin), smaller(keys_to(r, i + rows - 1), end)};
}

/* Does each of the queries attend to all of the keys? */
static inline bool all_seen(const CausalRun *r, int i, int rows, int j, int keys) {
    return keys_from(r, i + rows - 1) <= j && keys_to(r, i) >= j + keys;
}

/* The longest run of the head's passes, and whether there are two. */
static inline int longest_of(const CausalPattern *p, int h, int N, bool *two) {
    Pass passes[2];
    int count = passes_of(passes, p, h), most = 0;
    for (int i = 0; i < count; i++) most = larger(most, longest_run(&passes[i], p, N));
    *two = count == 2;
    return most;
}

/* == A head, and who works on it ================================================================================== */

/* The rows of a head at the first token. */
typedef struct {
    const real *q, *k, *v, *dy;
    real *y, *dq, *dk, *dv;
    float *lse;
    size_t q_row, k_row, v_row, y_row;
    int N, h, Dk, Dv, Dkp, Dvp;
    float scale;
    const CausalPattern *pattern;
} CausalHead;

static inline CausalHead head_of(const CausalShape *s, const CausalPattern *p, const CausalInputs *in, size_t head) {
    size_t first = head / s->H * s->N;
    int h = (int)(head % s->H);
    CausalHead a = {.q_row = s->q_row,
                    .k_row = s->k_row,
                    .v_row = s->v_row,
                    .y_row = (size_t)s->H * s->Dv,
                    .N = s->N,
                    .h = h,
                    .Dk = s->Dk,
                    .Dv = s->Dv,
                    .Dkp = tile_round_up(s->Dk),
                    .Dvp = tile_round_up(s->Dv),
                    .scale = 1 / sqrtf((float)s->Dk),
                    .pattern = p};
    a.q = in->q + first * a.q_row + (size_t)h * s->Dk;
    a.k = in->k + first * a.k_row + (size_t)h * s->Dk;
    a.v = in->v + first * a.v_row + (size_t)h * s->Dv;
    return a;
}

static inline size_t y_at(const CausalHead *a, const CausalShape *s, size_t head) {
    return head / s->H * s->N * a->y_row + (size_t)a->h * s->Dv;
}

/* This thread is number `part` of `parts` that share a task. */
typedef struct {
    int part, parts;
} Team;

static const Team ALONE = {0, 1};

static inline Team team_of(const CausalShape *s, const CausalPattern *p) {
    int threads = omp_get_num_threads(), alike = p->split >= s->H ? s->B * s->H : s->B;
    return alike % threads == 0 ? ALONE : (Team){omp_get_thread_num(), threads};
}

/* The heads that this thread works on. */
static inline CausalRange heads_for(Team team, const CausalShape *s) {
    int all = s->B * s->H, threads = omp_get_num_threads(), share = all / threads;
    if (team.parts > 1 || threads == 1) return (CausalRange){0, all};
    return (CausalRange){omp_get_thread_num() * share, (omp_get_thread_num() + 1) * share};
}

static inline void wait_for(Team team) {
    if (team.parts > 1) {
#pragma omp barrier
    }
}

/* Iterates over the runs of a head that one member of its team works on. */
typedef struct {
    const CausalHead *head;
    Team team, workers; /* the threads that work on the head, and on the current run: this member alone, or the team */
    int *order;         /* room for the longest run's tokens */
    Pass passes[2];
    int pass_count, pass, number;
    CausalRun run;
} CausalRuns;

static inline CausalRuns runs_of(const CausalHead *a, Team team, int *order) {
    CausalRuns r = {.head = a, .team = team, .order = order, .number = -1};
    r.pass_count = passes_of(r.passes, a->pattern, a->h);
    return r;
}

/* Moves to the member's next run, and waits for the others at the end of a pass; false if there is none. */
static inline bool next_run(CausalRuns *r) {
    const CausalHead *a = r->head;
    for (; r->pass < r->pass_count; r->pass++, r->number = -1) {
        const Pass *pass = &r->passes[r->pass];
        int count = runs_in(pass, a->pattern, a->N);
        r->workers = count > 1 ? ALONE : r->team;
        r->number = r->number >= 0 ? r->number + (count > 1 ? r->team.parts : 1) : count > 1 ? r->team.part : 0;
        if (r->number < count) {
            r->run = run_of(pass, a->pattern, a->h, a->N, r->number, r->order);
            return true;
        }
        wait_for(r->team);
    }
    return false;
}

/* Task n of a team's member.  Tasks are assigned back and forth, because later ones are larger. */
static inline int task_of(Team team, int n) {
    return n * team.parts + (n % 2 ? team.parts - 1 - team.part : team.part);
}

/* The number of keys at a time: a few blocks for each member of the team. */
static inline int keys_at_once(const CausalRun *r, Team team) {
    int share = (r->keys / (4 * team.parts) + PANEL - 1) / PANEL * PANEL;
    return team.parts == 1 ? KEYS : larger(PANEL, smaller(KEYS, share));
}

#endif

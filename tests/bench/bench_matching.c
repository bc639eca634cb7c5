/* Milliseconds for the assignment of one image's targets to queries, with three kinds of costs: independent random
 * numbers, distances of boxes, and the same preferred queries for all targets.
 *
 *   build/cpu/tests/bench_matching [TARGETS [QUERIES]]      100 and 300 */
#include <math.h>
#include <stdio.h>

#include "core/die.h"
#include "core/rng.h"
#include "detection/matching.h"
#include "tests/bench/bench.h"

static float drawn(uint32_t stream, int i) { return rng_uniform(1, RNG_TEST, stream, 0, (uint64_t)i); }

static float cost_of(int kind, int target, int query, int queries) {
    if (kind == 0) return drawn(0, target * queries + query);
    float near = 0, wanted = drawn(5, query);
    for (uint32_t side = 1; side <= 4; side++) near += fabsf(drawn(side, target) - drawn(side + 5, query));
    return kind == 1 ? near : wanted + 1e-3f * near;
}

int main(int argc, char **argv) {
    static const char *const kinds[] = {"independent", "boxes", "all want the same"};
    int targets = argc > 1 ? atoi(argv[1]) : 100, queries = argc > 2 ? atoi(argv[2]) : 300;
    if (targets < 1 || queries < 1) die_usage("expected two numbers of at least 1");
    float *cost = malloc((size_t)targets * (size_t)queries * sizeof *cost);
    int *column = malloc((size_t)targets * sizeof *column);
    void *workspace = malloc(matching_workspace(targets, queries));
    if (!cost || !column || !workspace) die("out of memory");
    for (int kind = 0; kind < 3; kind++) {
        double took;
        for (int i = 0; i < targets * queries; i++) cost[i] = cost_of(kind, i / queries, i % queries, queries);
        TIME(took, 0.2, matching(column, cost, targets, queries, workspace));
        printf("%d targets, %d queries, %-18s %.3f ms\n", targets, queries, kinds[kind], 1e3 * took);
    }
    free(cost);
    free(column);
    free(workspace);
    return 0;
}

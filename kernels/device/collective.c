/* Sums over ranks with MPI_Iallreduce.  How much of it overlaps with computation depends on the MPI library;
 * all_reduce_finish waits for the rest. */
#include <omp.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/distributed.h"
#include "kernels/device/collective.h"

#ifdef VIT_MPI

#include <mpi.h>

/* Floats in one request, 64 MiB, and the number of requests at a time, which is more than a model of a billion
 * parameters needs. */
enum { PART = 1 << 24, MOST = 1024 };
static MPI_Request requests[MOST];
static int request_count;

void collective_open(void) {
    int share = distributed_core_share(), threads = omp_get_max_threads();
    if (share > 1 && !getenv("OMP_NUM_THREADS")) omp_set_num_threads(threads / share > 1 ? threads / share : 1);
}

void all_reduce_start(float *x, size_t n) {
    if (distributed_ranks() < 2) return;
    for (size_t at = 0; at < n; at += PART) {
        int part = n - at < PART ? (int)(n - at) : PART;
        if (request_count == MOST) all_reduce_finish();
        MPI_Iallreduce(MPI_IN_PLACE, x + at, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[request_count++]);
    }
}

void all_reduce_finish(void) {
    if (request_count) MPI_Waitall(request_count, requests, MPI_STATUSES_IGNORE);
    request_count = 0;
}

#else

void collective_open(void) {}
void all_reduce_start(float *x, size_t n) { (void)x, (void)n; }
void all_reduce_finish(void) {}

#endif

void collective_close(void) {}

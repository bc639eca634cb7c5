#include "layers/loading.h"

#include "core/distributed.h"
#include "kernels/device/device.h"

PartsConfig loading_parts(const Training *t, const LoaderSettings *s, LoaderPool **pool, bool train, int micro) {
    int shared = micro; /* an evaluation takes micro-batches of all ranks in turn, so these must be equally large */
    if (!train) distributed_broadcast(&shared, sizeof shared);
    if (!*pool) *pool = loader_pool_start(s, device_shares_cores());
    return (PartsConfig){.seed = t->s->seed,
                         .batch_size = train ? t->s->batch_size : shared * distributed_ranks(),
                         .train = train,
                         .rank = distributed_rank(),
                         .ranks = distributed_ranks(),
                         .part = micro,
                         .max_damaged = s->max_damaged,
                         .pool = *pool,
                         .allocate = host_malloc,
                         .release = host_free};
}

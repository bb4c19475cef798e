// A cluster's blocks (PTX ISA, "Cluster of Cooperative Thread Arrays"; from sm_90). The including
// file defines CLUSTER_SIZE, its blocks.
#if CLUSTER_SIZE > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER_SIZE, 1, 1)
#else
#define CLUSTER_DIMS
#endif

// Arrives at the cluster's barrier and does not wait: says that this block is there, to whose
// shared memory others may write once they have waited. A release here would wait until all of the
// thread's stores are in the L2 cache.
INNER void cluster_arrive()
{
#if CLUSTER_SIZE > 1
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

INNER void cluster_wait()
{
#if CLUSTER_SIZE > 1
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

INNER unsigned cta_rank_in_cluster()
{
    unsigned rank = 0;
#if CLUSTER_SIZE > 1
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

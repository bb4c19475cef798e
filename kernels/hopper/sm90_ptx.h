// The words of Hopper's asynchronous units: barriers in shared memory that count bytes, the TMA unit that moves boxes
// of tensors, blocks that stand together, and registers that warps hand on (PTX ISA: "mbarrier",
// "cp.async.bulk.tensor", "barrier.cluster", "setmaxnreg"). Shared memory is named by its address of 32 bits.
struct __align__(64) Map { unsigned long long words[16]; };

#define SHARED_AT(p) ((unsigned)__cvta_generic_to_shared(p))
#define FEWER_REGISTERS(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))
#define MORE_REGISTERS(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#define MEET(barrier, threads) asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory")
// What threads wrote to shared memory is seen by the units that read it on their own.
#define SHOW_UNITS() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

INNER void set_barrier(const unsigned barrier, const int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// One arrival, and as many bytes that are to arrive before the phase ends.
INNER void expect(const unsigned barrier, const int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// An arrival at the barrier that is at this place in a block of the cluster. What this thread's products read they have
// read, as it has waited for them: no fence for all of the GPU is wanted, which a wider scope than the block's makes.
INNER void arrive(const unsigned barrier, const unsigned block)
{
#if CLUSTER > 1
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}"
                 ::"r"(barrier), "r"(block) : "memory");
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// Until the phase of this parity has ended: the first one has parity 0, and the one before that counts as ended.
INNER void await(const unsigned barrier, const unsigned parity)
{
    int ended;
    do
        asm volatile("{.reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;"
                     "selp.b32 %0, 1, 0, ended;}" : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
    while (!ended);
}

// All threads of the cluster have come, and see what each did before.
INNER void meet_cluster() { asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory"); }

// The producer's barriers are set: it goes on at once where nobody but its own block arrives at them.
INNER void announce(const bool producer)
{
    if (CLUSTER > 1) {
        meet_cluster();
    } else if (producer) {
        __syncwarp();
        asm volatile("barrier.cta.arrive 0, %0;" ::"n"(THREADS) : "memory");
    } else MEET(0, THREADS);
}

INNER unsigned rank_in_cluster()
{
    unsigned rank = 0;
#if CLUSTER > 1
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

// A box of a tensor on its way into shared memory; its bytes arrive at the barrier. What is outside is zero.
INNER void load_box(const unsigned to, const Map &map, const int x, const int y, const int z, const unsigned barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

// The same to this place in all blocks of the cluster, each with its own barrier.
INNER void load_box_for_all(const unsigned to, const Map &map, const int x, const int y, const int z,
                            const unsigned barrier)
{
#if CLUSTER > 1
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier),
                 "h"((short)((1 << CLUSTER) - 1)) : "memory");
#else
    load_box(to, map, x, y, z, barrier);
#endif
}

INNER void store_box(const Map &map, const int x, const int y, const int z, const unsigned from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(from) : "memory");
}
#define STORES_SENT() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define STORES_READ(n) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")

INNER void fetch_map(const Map &map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

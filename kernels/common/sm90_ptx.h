// Wrappers of sm_90's PTX: mbarrier, TMA (cp.async.bulk.tensor), clusters and setmaxnreg. Shared
// memory is addressed by 32-bit shared-window addresses.
struct __align__(64) TensorMap {
    unsigned long long words[16];
};

#define SMEM_ADDRESS(p) ((unsigned)__cvta_generic_to_shared(p))
#define warpgroup_reg_dealloc(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))
#define warpgroup_reg_alloc(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#define named_barrier_sync(barrier, threads) \
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory")
#define named_barrier_arrive(barrier, threads) \
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(threads) : "memory")
// Makes the generic proxy's writes to shared memory visible to the async proxy (TMA, wgmma).
#define fence_proxy_async() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

INNER void mbarrier_init(const unsigned barrier, const int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

// Arrives once and adds `bytes` to the phase's expected transaction count.
INNER void mbarrier_arrive_expect_tx(const unsigned barrier, const int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Arrives at the barrier at this offset in a block of the cluster. The thread has waited for the
// wgmmas that read the stage, or has a fence behind its own loads, so CTA scope suffices; a wider
// scope would add a fence for the whole GPU.
INNER void mbarrier_arrive(const unsigned barrier, const unsigned block)
{
#if CLUSTER > 1
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
                 "r"(block)
                 : "memory");
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// True if the barrier's phase of this parity is over (mbarrier.try_wait.parity); asked for ahead of
// what waits for it. A fresh barrier's phase has parity 0, so that waiting for parity 1 returns at
// once: producers start with every stage free.
INNER int mbarrier_try_wait(const unsigned barrier, const unsigned phase)
{
    int ended;
    asm volatile("{.reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;"
                 "selp.b32 %0, 1, 0, ended;}"
                 : "=r"(ended)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return ended;
}

INNER void mbarrier_wait(const unsigned barrier, const unsigned phase)
{
    while (!mbarrier_try_wait(barrier, phase)) {
    }
}

// True in one thread of a warp, which the compiler then knows to be the only one: a TMA request of
// that thread is one instruction, and not a loop over the warp's threads (PTX ISA, "elect.sync").
INNER int elect_one()
{
    int elected;
    asm volatile("{.reg .pred one; elect.sync _|one, 0xffffffff; selp.b32 %0, 1, 0, one;}"
                 : "=r"(elected));
    return elected;
}

#include "cluster.h"

// Publishes the initialised mbarriers to the threads of the block, or of the cluster.
INNER void sync_barrier_init()
{
    if (CLUSTER > 1) {
        cluster_arrive(); // behind a fence of their initialisation
        cluster_wait();
    } else {
        named_barrier_sync(0, THREADS);
    }
}

// TMA load of a box into shared memory; its bytes complete the barrier's transaction count.
// Elements out of bounds are zero.
INNER void tma_load(const unsigned to, const TensorMap &map, const int x, const int y, const int z,
                    const unsigned barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

// TMA load to this offset in all blocks of the cluster, each with its own barrier.
INNER void tma_load_multicast(const unsigned to, const TensorMap &map, const int x, const int y,
                              const int z, const unsigned barrier)
{
#if CLUSTER > 1
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes."
                 "multicast::cluster"
                 " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"((short)((1 << CLUSTER) - 1))
                 : "memory");
#else
    tma_load(to, map, x, y, z, barrier);
#endif
}

INNER void tma_store(const TensorMap &map, const int x, const int y, const int z,
                     const unsigned from)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
            &map),
        "r"(x), "r"(y), "r"(z), "r"(from)
        : "memory");
}
#define tma_store_commit_group() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define tma_store_wait_group_read(n) \
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")

INNER void prefetch_tensormap(const TensorMap &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

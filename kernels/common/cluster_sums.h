// Sums that a cluster's blocks send to each other. st.async writes to another block's shared
// memory, and its bytes complete the transaction count of that block's mbarrier: who waits there
// sees them without a fence and a barrier of the cluster, and no block has to stay for others to
// read (PTX ISA, "st.async", "mbarrier").
#if CLUSTER_SIZE > 1
// Sets up the mbarrier for `bytes` of sums; by one thread, before it arrives at the cluster's
// barrier.
INNER void expect_sums(const unsigned barrier, const int bytes)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                 "fence.mbarrier_init.release.cluster;"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// The mbarrier of a kernel whose shared memory is static.
INNER unsigned sums_barrier()
{
    __shared__ unsigned long long barrier;
    return (unsigned)__cvta_generic_to_shared(&barrier);
}

INNER void wait_for_sums(const unsigned barrier)
{
    int ended = 0;
    while (!ended) {
        asm volatile("{.reg .pred ended;"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], 0;"
                     "selp.b32 %0, 1, 0, ended;}"
                     : "=r"(ended)
                     : "r"(barrier)
                     : "memory");
    }
}

// The address at which the cluster sees `at` of one of its blocks.
INNER unsigned address_in_block(const unsigned at, const unsigned block)
{
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    return there;
}

#define SEND(type) "st.async.shared::cluster.mbarrier::complete_tx::bytes." type " [%0], "
INNER void send_sum(const unsigned to, const float value, const unsigned barrier)
{
    asm volatile(SEND("f32") "%1, [%2];" ::"r"(to), "f"(value), "r"(barrier) : "memory");
}

INNER void send_sum(const unsigned to, const double value, const unsigned barrier)
{
    asm volatile(SEND("f64") "%1, [%2];" ::"r"(to), "d"(value), "r"(barrier) : "memory");
}

INNER void send_sums(const unsigned to, const float first, const float second,
                     const unsigned barrier)
{
    asm volatile(SEND("v2.f32") "{%1, %2}, [%3];" ::"r"(to), "f"(first), "f"(second), "r"(barrier)
                 : "memory");
}

INNER void send_sums(const unsigned to, const float4 &pack, const unsigned barrier)
{
    asm volatile(SEND("v4.f32") "{%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(pack.x), "f"(pack.y),
                 "f"(pack.z), "f"(pack.w), "r"(barrier)
                 : "memory");
}
#endif

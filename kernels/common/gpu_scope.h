#ifndef GPU_SCOPE
#define GPU_SCOPE
// What a block tells others of the launch, by one thread for all: with a barrier of the block
// before a release and after an acquire they hold for what its other threads stored and load (PTX
// ISA, "Causality Order").

// Adds 1 to the counter, and returns what it was.
INNER int arrive_acq_rel(int *counter)
{
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

INNER void store_release(int *flag, const int value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

INNER int load_acquire(const int *flag)
{
    int value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
#endif

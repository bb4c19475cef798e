// cp.async (sm_80 and later): copies 16 bytes from global into shared memory without a register.
static __device__ __forceinline__ void cp_async(void *to, const void *from, const bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(inside ? 16 : 0) // the rest is filled with zeros
                 : "memory");
}
#define cp_async_commit_group() asm volatile("cp.async.commit_group;" ::: "memory")
#define cp_async_wait_group(left) asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory")

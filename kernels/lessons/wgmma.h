// sm_90a: TMA, the barriers in shared memory that count its bytes, and wgmma, by which four warps
// multiply tiles in shared memory. TILE_N is the width of wgmma's tile (wgmma_registers.h).
#include "wgmma_registers.h"
#define FUNCTION static __device__ __forceinline__
#define ADDRESS(pointer) ((unsigned)__cvta_generic_to_shared(pointer))
struct __align__(64) Map {
    unsigned long long words[16];
};
#define MAP const __grid_constant__ Map
#define barrier_init(at, count) \
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory")
#define barrier_arrive(at, now) \
    if (now)                    \
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory")
#define barrier_expect(at, bytes)                                                              \
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) \
                 : "memory")
FUNCTION void barrier_wait(const unsigned at, const unsigned phase)
{
    for (int ended = 0; !ended;) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.b32 %0, 1, 0, p;}"
                     : "=r"(ended)
                     : "r"(at), "r"(phase)
                     : "memory");
    }
}
// Copies the map's box from column x and row y on, zeros past the edges, and tells the barrier.
#define tma_load(to, map, x, y, barrier)                                                        \
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"  \
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),                                      \
                 "l"(&(map)), "r"(x), "r"(y), "r"(barrier)                                      \
                 : "memory")
#define wgmma_fence() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define wgmma_commit_group() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define wgmma_wait_group(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
#define wgmma_results() asm volatile("" : ACC_OPERANDS::"memory")
// Where a tile of lines of 128 bytes lies, swizzled by TMA: eight lines are 1,024 bytes apart;
// `apart` are the 16 bytes from one 64 columns of an MN-major tile to the next, 1 if it is K-major.
FUNCTION unsigned long long tile_at(const unsigned address, const unsigned long long apart)
{
    return 1ull << 62 | 64ull << 32 | apart << 16 | (address & 0x3FFFF) >> 4;
}
// acc += 64 x 16 of A, K-major, times 16 x TILE_N of B, MN-major; acc = if not `add`.
FUNCTION void wgmma(float *acc, unsigned long long a, unsigned long long b, const int add)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, " IN_2 ", 0; "
                 "wgmma.mma_async.sync.aligned.m64" WGMMA_N "k16.f32.f16.f16"
                 " {" ACC_REGISTERS "}, " IN_0 ", " IN_1 ", p, 1, 1, 0, 1;}"
                 : ACC_OPERANDS
                 : "l"(a), "l"(b), "r"(add)
                 : "memory");
}

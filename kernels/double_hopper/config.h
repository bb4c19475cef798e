// What a block is made of: WARPS consumer warps, then the producer's four, of which one thread
// loads. These give their registers to the consumers (setmaxnreg), which warpgroups do together.
//
// START_REGISTERS  registers of a thread as a block starts
// STEPS            instructions' depths in a k tile
// TURN             k tiles after which fragments of the next step are in the same registers again
#define WARPS (BM / WM * (BN / WN))
#define WARP_ROW(warp) ((warp) / (BN / WN) * WM) // first row and column of its part of the tile
#define WARP_COL(warp) ((warp) % (BN / WN) * WN)
#define CONSUMERS (32 * WARPS)
#define BLOCK_THREADS (CONSUMERS + 128)
#define THREADS BLOCK_THREADS
#define CLUSTER_SIZE CLUSTER
#define LINE 16 // elements of a box's row, as wide as the swizzle
#define LINE_BYTES 128
#define A_BYTES (BM * BK * 8)
#define STAGE_BYTES ((BM + BN) * BK * 8)
#define STEPS (BK / MMA_K)
#define TURN (AHEAD && STEPS % 2 ? 2 : 1)

#define PRODUCER_REGISTERS 24
#define MOST_REGISTERS 240
#define START_REGISTERS (65536 / (BLOCK_THREADS * MIN_BLOCKS) / 8 * 8)
#define LEFT_REGISTERS \
    ((START_REGISTERS * BLOCK_THREADS - PRODUCER_REGISTERS * 128) / CONSUMERS / 8 * 8)
#if START_REGISTERS < MOST_REGISTERS
#define PRODUCER_REG_DEALLOC() warpgroup_reg_dealloc(PRODUCER_REGISTERS)
#define CONSUMER_REG_ALLOC() \
    warpgroup_reg_alloc(LEFT_REGISTERS < MOST_REGISTERS ? LEFT_REGISTERS : MOST_REGISTERS)
#else
#define PRODUCER_REG_DEALLOC()
#define CONSUMER_REG_ALLOC()
#endif

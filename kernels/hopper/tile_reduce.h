// Sums of the splits of a tile's k. The last block of a tile to arrive adds up few. A launch that
// all SMs share adds up many (split_k_reduce.cu), and those of larger tiles, whose registers are
// too few to add up others' sums beside them. Consumers meet without the producer, which may be at
// the next tile.
#undef THREADS
#define THREADS (128 * CONSUMERS)
#undef BARRIER
#define BARRIER() named_barrier_sync(4, THREADS)
#define ACC Pack<4>
#define ACC_WIDTH 4
#define OUT_PACKS (WGMMAS_M * TILE_N / 8)
#define PACKS_IN_FLIGHT (MIN_BLOCKS > 1 || REALIGN || LHS_IN_REGISTERS ? 8 : 32)
#include "split_k.h"
#define MOST_IN_LAUNCH 8
#define ACCUMULATORS (WGMMAS_M * TILE_N / 2 * (PLANES == 2 ? 3 : 1))
#ifdef PRECISION_TF32
#define HAS_ROOM (ACCUMULATORS <= 64 && MIN_BLOCKS == 1 && !REALIGN)
#else
#define HAS_ROOM (ACCUMULATORS <= 64)
#endif
#define REDUCED_IN_LAUNCH(splits) (CONSUMERS < 3 && HAS_ROOM && (splits) <= MOST_IN_LAUNCH)

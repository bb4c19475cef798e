// The tile of kernel.cu as wgmma sees it: TILE_M x TILE_N, where the LHS is A (with SWAP_AB B) and
// the RHS is B (with SWAP_AB A), and their layouts.
//
// K_MAJOR_LHS, K_MAJOR_RHS    1 if the operand is K-major in global memory or in its packed copy
// LHS_MN_MAJOR, RHS_MN_MAJOR  1 if it is MN-major in shared memory
// REALIGN_LHS, REALIGN_RHS    1 if the producer's threads copy the operand, as REALIGN says
// TURNED_LHS, TURNED_RHS      1 if they transpose it: MN-major in global, K-major in shared memory
// LHS_IN_REGISTERS            1 if wgmma reads the LHS from registers (RS), 0 from shared memory
//                             (SS)
// PLANES                      matrices of an operand: 2 if emulated float32 is split into float16
//                             terms
// SWIZZLED(at, swizzle)       byte offset `at` of a matrix in the 32-, 64- or 128-byte swizzle of
//                             TMA and wgmma (PTX ISA, "Swizzling Modes")
// EXPONENTS                   scales of the rows of both sides in the workspace
#include "step_arguments.h"
#define SWIZZLED(at, swizzle) ((at) ^ ((at) >> 3 & ((swizzle) - 16)))
#ifdef PRECISION_TF32
#define TURNED (REALIGN)
#else
#define TURNED 0
#endif
#define K_MAJOR_A (!TRANS_A || (PACK_K | TURNED) & 1)
#define K_MAJOR_B (TRANS_B || (PACK_K | TURNED) & 2)
#if SWAP_AB
#define TILE_M BN
#define TILE_N BM
#define K_MAJOR_LHS K_MAJOR_B
#define K_MAJOR_RHS K_MAJOR_A
#define REALIGN_LHS (REALIGN >> 1)
#define REALIGN_RHS (REALIGN & 1)
#define TURNED_LHS (TURNED & 2 && !TRANS_B)
#define TURNED_RHS (TURNED & 1 && TRANS_A)
#else
#define TILE_M BM
#define TILE_N BN
#define K_MAJOR_LHS K_MAJOR_A
#define K_MAJOR_RHS K_MAJOR_B
#define REALIGN_LHS (REALIGN & 1)
#define REALIGN_RHS (REALIGN >> 1)
#define TURNED_LHS (TURNED & 1 && TRANS_A)
#define TURNED_RHS (TURNED & 2 && !TRANS_B)
#endif

#ifdef PRECISION_EMULATED
#define PLANES 2
#define WORDS_AT(workspace, lines) (const int *)(workspace) + (lines) * 32
#define EXPONENTS(workspace) \
    WORDS_AT(workspace, SWAP_AB ? at_f : at_e), WORDS_AT(workspace, SWAP_AB ? at_e : at_f)
#else
#define PLANES 1
#define EXPONENTS(workspace) nullptr, nullptr
#endif
#if PLANES == 2 || K_MAJOR_LHS
#define LHS_MN_MAJOR 0
#else
#define LHS_MN_MAJOR 1
#endif
#if PLANES == 2 || K_MAJOR_RHS
#define RHS_MN_MAJOR 0
#else
#define RHS_MN_MAJOR 1
#endif
#if defined(PRECISION_TF32) && RHS_MN_MAJOR
#error "32-bit elements of the right side are multiplied along k alone"
#endif
#if defined(PRECISION_TF32) && LHS_MN_MAJOR
#define LHS_IN_REGISTERS 1
#else
#define LHS_IN_REGISTERS 0
#endif

// One thread of the producer issues all TMA loads. With several consumers the producer is a whole
// warpgroup, so that it can give up its registers (setmaxnreg); a block starts with 168 registers a
// thread with two consumers and 128 with three. MN-major operands need more TMA boxes and keep more
// in registers. If operands are realigned, the producer is three warpgroups: one copies, two shift.
//
// PINGPONG       1 if a tile has 64 rows, one consumer's, though there are more: they take tiles in
//                turn, so that one stores a tile while another multiplies the next
// SHARERS        consumers that share a tile
// COPIERS        threads that copy
// FULL_ARRIVALS  arrivals at a full barrier: of the warps that shift, and of the thread that issues
//                TMA loads
#define PINGPONG (CONSUMERS > 1 && TILE_M == 64)
#define SHARERS (PINGPONG ? 1 : CONSUMERS)
#define COPIERS 128
#define BLOCK_THREADS (128 * CONSUMERS + (REALIGN ? 3 * COPIERS : CONSUMERS > 1 ? 128 : 32))
#define THREADS BLOCK_THREADS
#define FULL_ARRIVALS ((REALIGN ? COPIERS / 32 : 0) + (REALIGN != 3))
#if CONSUMERS == 2 && PLANES == 2
#define PRODUCER_REG_DEALLOC() warpgroup_reg_dealloc(24)
#define CONSUMER_REG_ALLOC() warpgroup_reg_alloc(240)
#elif CONSUMERS == 2
#define PRODUCER_REG_DEALLOC() warpgroup_reg_dealloc(40)
#define CONSUMER_REG_ALLOC() warpgroup_reg_alloc(232)
#elif CONSUMERS == 3
#define PRODUCER_REG_DEALLOC() warpgroup_reg_dealloc(32)
#define CONSUMER_REG_ALLOC() warpgroup_reg_alloc(160)
#else
#define PRODUCER_REG_DEALLOC()
#define CONSUMER_REG_ALLOC()
#endif
#define CLUSTER_SIZE (CLUSTER * CLUSTER_K)

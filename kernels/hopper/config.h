// The tile of kernel.cu: which side is left and which right, how they are stored, and what has room where.
//
// CROSS_L, CROSS_R    1 where that side is stored across k   HELD_L  1 where the left one is multiplied from registers
// SWIZZLED(at, span)  where TMA and wgmma have what would be `at` bytes into a matrix whose rows are `span` bytes:
//                     16-byte pieces change places within a row, as its number says (PTX ISA, "Swizzling Modes")
// SPLIT_PLACES        where the steps before left something in scratch, and EXPONENTS the scales of both sides there
#define SWIZZLED(at, span) ((at) ^ ((at) >> 3 & ((span) - 16)))
#define ALONG_A (!TRANS_A || ALIGNED & 1)
#define ALONG_B (TRANS_B || ALIGNED & 2)
#if SWAP
#define ROWS BN
#define COLUMNS BM
#define ALONG_L ALONG_B
#define ALONG_R ALONG_A
#else
#define ROWS BM
#define COLUMNS BN
#define ALONG_L ALONG_A
#define ALONG_R ALONG_B
#endif

#ifdef PRECISION_EMULATED
#define PLANES 2
#define SPLIT_PLACES \
    const INDEX at_a, const INDEX at_b, const INDEX at_e, const INDEX at_f, const INDEX at_maxima, const INDEX slab
#define WORDS_AT(scratch, lines) (const int *)(scratch) + (lines) * 32
#define EXPONENTS(scratch) WORDS_AT(scratch, SWAP ? at_f : at_e), WORDS_AT(scratch, SWAP ? at_e : at_f)
#else
#define PLANES 1
#define SPLIT_PLACES const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b
#define EXPONENTS(scratch) nullptr, nullptr
#endif
#if PLANES == 2 || ALONG_L
#define CROSS_L 0
#else
#define CROSS_L 1
#endif
#if PLANES == 2 || ALONG_R
#define CROSS_R 0
#else
#define CROSS_R 1
#endif
#if defined(PRECISION_TF32) && CROSS_R
#error "32-bit elements of the right side are multiplied along k alone"
#endif
#if defined(PRECISION_TF32) && CROSS_L
#define HELD_L 1
#else
#define HELD_L 0
#endif

// One producer is enough; a group of four warps is what can hand on its registers. Where sides may be across k it brings
// more boxes and keeps more; all have what the block began with: 168 each of two consumers and it, 128 of three.
#define THREADS (128 * CONSUMERS + (CONSUMERS > 1 ? 128 : 32))
#if CONSUMERS == 2 && PLANES == 2
#define GIVE_REGISTERS() FEWER_REGISTERS(24)
#define GET_REGISTERS() MORE_REGISTERS(240)
#elif CONSUMERS == 2
#define GIVE_REGISTERS() FEWER_REGISTERS(40)
#define GET_REGISTERS() MORE_REGISTERS(232)
#elif CONSUMERS == 3
#define GIVE_REGISTERS() FEWER_REGISTERS(32)
#define GET_REGISTERS() MORE_REGISTERS(160)
#else
#define GIVE_REGISTERS()
#define GET_REGISTERS()
#endif
#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

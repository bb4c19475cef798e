// The loader of one operand's tile, and a thread's fragments.
#define SLICE_THREADS (BM / TM * (BN / TN))
#define THREADS (SLICE_K * SLICE_THREADS)
// On sm_90 as many warps on an SM as fit with the registers that a thread's accumulators want
// beside others: a few more for an epilogue would cost each SM sub-partition a warp. Elsewhere some
// tiles would spill then; but those that copy more of both operands, by 4 or 8 bytes, spill if the
// compiler keeps all of their addresses. Of stream-K's blocks as many run as there are.
#define ACCUMULATORS (TM * TN)
#define WARPS_ON_SM                                           \
    (ACCUMULATORS <= 16   ? (K_MAJOR ? 16 : 20)               \
     : ACCUMULATORS <= 32 ? (K_MAJOR ? 12 : 16)               \
     : ACCUMULATORS <= 64 ? (K_MAJOR ? 8 : 12)                \
                          : 8)
#define IS_NARROW (CP_SIZE_A < 16 && CP_SIZE_B < 16 && TN < 16 && BK > 8)
#define IS_BOUNDED (!STREAM_K_SMS && (__CUDA_ARCH__ == 900 || IS_NARROW))
#define LEAST_BLOCKS \
    (IS_BOUNDED ? LARGER(MIN_BLOCKS, WARPS_ON_SM * 32 / THREADS) : MIN_BLOCKS)
#define PACKS_M (TM / WIDE)
#define PACKS_N (TN / WIDE)
#define ACC PACK(WIDE)
#define ACC_WIDTH WIDE
#define ACC_PACKS (TM * PACKS_N)
#define OUT_PACKS (ACC_PACKS / SLICE_K)
#include "smem_tile.h"
// Copies beside each other in a line are a power of two, that the rounds lie alike: of a side of 96
// a third. A warp that copies less than 16 bytes at once makes at most 32 of them, and then the
// next ones: most addresses are constants apart. A tile that stays K-major has a line for each of
// C's rows or columns, with all of its k.
#define POWER_OF_2(x) ((x) & -(x))
#undef LINE_PACKS
#define LINE_PACKS                                                            \
    ((K_MAJOR                                    ? BK / w                     \
      : transpose                                ? 32 / (int)sizeof(REAL)     \
      : w < WIDE && POWER_OF_2(side / w) > 32 ? 32 : POWER_OF_2(side / w)))
#undef SMEM_AT
#define SMEM_AT(item)                                                     \
    (K_MAJOR     ? Y_OF(item) * LD_K + X_OF(item)                         \
     : transpose ? X_OF(item) * LD(side, transpose) + Y_OF(item)          \
                 : Y_OF(item) * LD(side, transpose) + X_OF(item))
#include "slice_k.h"
// A warp is LANES_M x LANES_N threads, and neighbours read neighbouring packs of A and of B: there
// are no bank conflicts, a pack is broadcast to all who read it, and a warp's stores to C fill
// whole sectors.
#define LANES_N (WN / TN)
#define LANES_M (32 / LANES_N)
#define THREAD_ROW \
    (SLICE_THREAD / 32 / (BN / WN) * LANES_M * TM + SLICE_THREAD % 32 / LANES_N * WIDE)
#define THREAD_COL (SLICE_THREAD / 32 % (BN / WN) * WN + SLICE_THREAD % LANES_N * WIDE)
#define LINE_A (THREAD_ROW - SLICE_THREAD % 32 / LANES_N * (WIDE - 1)) // where tiles stay K-major
#define LINE_B (THREAD_COL - SLICE_THREAD % LANES_N * (WIDE - 1))
#define ACC_ROW(i) (THREAD_ROW + (i) / WIDE * LANES_M * WIDE + (i) % WIDE)
#define ACC_COL(pack) (THREAD_COL + (pack) * LANES_N * WIDE)
#define TRANSPOSE_A (!TRANS_A && !PACK_MN)
#define TRANSPOSE_B (TRANS_B && !PACK_MN)
#if K_MAJOR && !(TRANSPOSE_A && TRANSPOSE_B)
#error "K_MAJOR is for two K-major operands"
#endif
#define LD_A LD(BM, TRANSPOSE_A)
#define LD_B LD(BN, TRANSPOSE_B)
#define LD_K (BK + 4) // eight lines' packs of the same k are on banks of their own
#define TILE_SIZE_A (K_MAJOR ? BM * LD_K : BK * LD_A)
#define STAGE_SIZE (TILE_SIZE_A + (K_MAJOR ? BN * LD_K : BK * LD_B))
#define SLICE_BK (BK / SLICE_K)
#define FIRST_A \
    (K_MAJOR ? LINE_A * LD_K + SLICE_IDX * SLICE_BK : THREAD_ROW + SLICE_IDX * SLICE_BK * LD_A)
#define FIRST_B \
    (K_MAJOR ? LINE_B * LD_K + SLICE_IDX * SLICE_BK : THREAD_COL + SLICE_IDX * SLICE_BK * LD_B)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define STAGES_SIZE LARGER(STAGES *STAGE_SIZE, SLICE_K == 1 ? 0 : SLICE_K * BM * BN)
// A row of each thread of a warp on its way to C, each so far from the next that all their stores
// of an element are on different banks. With stream-K the next tile's copies are in flight then.
#define STAGED_ROW(m) \
    ((m) * WN + AMONG_BANKS(m) % 4 + AMONG_BANKS(m) / 4 * LANES_N * 4)
#define AMONG_BANKS(m) (WN % 32 == 0 ? (m) : (m) / 2)
#define STAGED_SIZE (32 * TN + 32)
#define STAGING_SIZE (STAGE_C ? THREADS / 32 * STAGED_SIZE : 0)
#define STAGING_AT (STREAM_K_SMS ? STAGES_SIZE : 0)
// A row of packs for each of a thread's rows of C.
#define DEALT_ROWS (TM / SLICE_K)
#define ROW_PACKS PACKS_N
#include "cluster_reduce.h"
#define RECEIVED_FROM LARGER(STAGES_SIZE, STAGING_AT + STAGING_SIZE)
#define SMEM_SIZE (RECEIVED_FROM + RECEIVED_SIZE)
#define LINES_TO_ELEMENTS(lines) ((INDEX)(lines) * (128 / (int)sizeof(REAL)))
#define LOADER_A BM, TRANSPOSE_A, CP_SIZE_A, LANES_M
#define LOADER_B BN, TRANSPOSE_B, CP_SIZE_B, LANES_N
#define BURSTS 2                // parts in which the copies of a k tile are issued
#define IN_ORDER() __syncwarp() // keeps program order: loads are issued ahead of FMAs

// Loads BM rows of A or BN columns of B: the next addresses of a thread's copies, and a mask of
// those inside C.
template <int side, int transpose, int cp_size, int lanes> struct TileLoader {
    static constexpr int w = transpose && !K_MAJOR ? 1 : cp_size / (int)sizeof(REAL),
                         turns = LOADS_PER_THREAD(side) / w;
    const REAL *start, *from;
    REAL *const smem;
    const INDEX pitch;
    int sides;
    unsigned to, kept;

    __device__ __forceinline__ TileLoader(REAL *smem, const INDEX pitch) : smem(smem), pitch(pitch)
    {
    }

    static __device__ __forceinline__ int is_aligned(const REAL *operand, const INDEX pitch)
    {
        return w == 1 || (pitch % w == 0 && ADDRESS(operand) % (w * (int)sizeof(REAL)) == 0);
    }

    // C's row or column of a line of a tile: where one stays K-major, what a warp's lanes read
    // together lies in lines beside each other.
    static constexpr __device__ __forceinline__ int side_of(const int line)
    {
        return !K_MAJOR ? line
                        : line / (lanes * WIDE) * (lanes * WIDE) + line % lanes * WIDE +
                              line / lanes % WIDE;
    }

    // Rows and columns past C's edge are never copied: what is found there adds to accumulators
    // that are not stored.
    __device__ __forceinline__ void begin(const REAL *start, const int sides)
    {
        this->start = start;
        this->sides = sides;
        kept = 0;
        from = start + (side_of(Y_OF(ME)) * pitch + X_OF(ME));
        to = (unsigned)__cvta_generic_to_shared(smem + SMEM_AT(ME));
        if (THREADS % LINE_PACKS > 0 && !K_MAJOR) { // rounds lie along a line
            EACH(i, turns) {
                kept |= (unsigned)(X_OF(ME) + X_OF(i * THREADS) < sides) << i;
            }
            return;
        }
        if (K_MAJOR && THREADS / LINE_PACKS % (lanes * WIDE) > 0) { // part of a warp's lines
            EACH(i, turns) {
                kept |= (unsigned)(side_of(Y_OF(ME)) + side_of(Y_OF(i * THREADS)) < sides) << i;
            }
            return;
        }
        // Rows or columns that lie `apart` are copied in rounds that follow each other: in `each`
        // of them columns are the same, and every `period` rounds rows are.
        constexpr int lines = transpose ? side : BK, of_round = LARGER(THREADS / LINE_PACKS, 1),
                      each = transpose || of_round >= lines ? 1 : lines / of_round,
                      period = !transpose ? turns : of_round >= lines ? 1 : lines / of_round,
                      apart = transpose           ? of_round
                              : of_round >= lines ? of_round / lines * LINE_PACKS * w
                                                  : LINE_PACKS * w;
        const int left = sides - (transpose ? side_of(Y_OF(ME)) : X_OF(ME)),
                  inside = each * (left > 0 ? (left + apart - 1) / apart : 0);
        const unsigned some = inside < period ? (1u << inside) - 1 : LOW_BITS(period);
        EACH(i, turns / period) {
            kept |= some << i * period;
        }
    }

    __device__ __forceinline__ void advance(const int step)
    {
        to += step * (int)sizeof(REAL);
        from += transpose ? BK : BK * pitch;
    }

    // Keeps the copies of a k tile that has `tail` of k, and stores zeros where others would go.
    __device__ __forceinline__ void cut(const int tail, const int stage)
    {
        unsigned before = 0;
        EACH(i, turns) {
            const int y = Y_OF(ME) + Y_OF(i * THREADS), x = X_OF(ME) + X_OF(i * THREADS);
            if ((transpose ? x : y) < tail) {
                before |= 1u << i;
            } else {
                REAL *const at = smem + stage * STAGE_SIZE + SMEM_AT(ME) + SMEM_AT(i * THREADS);
                if (w == WIDE) {
                    STORE(WIDE, ZERO_PACK(WIDE), at);
                } else {
                    EACH(e, w) {
                        at[e] = 0;
                    }
                }
            }
        }
        kept &= before;
    }

    // Issues one of `bursts` parts of a thread's copies, those in `now`.
    __device__ __forceinline__ void copy(const int burst, const int bursts, const unsigned now)
    {
        const int line = (int)pitch; // that of a full k tile fits in 32 bits
        EACH(i, turns) {
            if (i * bursts / turns == burst) {
                const unsigned at = to + SMEM_AT(i * THREADS) * (int)sizeof(REAL);
                const REAL *const source =
                    from + ((INDEX)line * side_of(Y_OF(i * THREADS)) + X_OF(i * THREADS));
                if (w == WIDE) {
                    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.b32 p, t, "
                                 "0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(at),
                                 "l"(source), "r"(now), "r"(1u << i)
                                 : "memory");
                } else {
                    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.b32 p, t, "
                                 "0; @p cp.async.ca.shared.global [%0], [%1], %4;}" ::"r"(at),
                                 "l"(source), "r"(now), "r"(1u << i), "n"(w * sizeof(REAL))
                                 : "memory");
                }
            }
        }
    }

    // Loads k tile `p` of any depth and alignment, with zeros past the edges.
    __device__ __forceinline__ void copy_predicated(const int p, const INDEX depth, const int wide)
    {
        const REAL *const k_tile = start + (INDEX)p * BK * (transpose ? 1 : pitch);
        const int deep = depth - (INDEX)p * BK < BK ? (int)(depth - (INDEX)p * BK) : BK;
        if (!transpose && wide) {
            copy_all<WIDE>(smem + p % STAGES * STAGE_SIZE, k_tile, deep);
        } else {
            copy_all<1>(smem + p % STAGES * STAGE_SIZE, k_tile, deep);
        }
    }

    template <int w> __device__ __forceinline__ void copy_all(REAL *to, const REAL *from,
                                                              const int deep)
    {
#pragma unroll 1
        for (int i = 0; i < (side * BK / w + THREADS - 1) / THREADS; i++) {
            const int x = X_OF(ME + i * THREADS), y = side_of(Y_OF(ME + i * THREADS));
            const int inside = x < (transpose ? deep : sides) && y < (transpose ? sides : deep);
            if (side * BK / w % THREADS == 0 || ME + i * THREADS < side * BK / w) {
                cp_async(w, to + SMEM_AT(ME + i * THREADS), from + (y * pitch + x), inside);
            }
        }
    }
};

#include "fragments.h"
#include "stream_k_tile.h"

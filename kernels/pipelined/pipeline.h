// What kernel.cu is made of: a side of the tile on its way into shared memory, and a thread's operands for one k.
#define TEAM (BM / TM * (BN / TN))
#define THREADS (SLICES * TEAM)
#define PACKS_M (TM / WIDE)
#define PACKS_N (TN / WIDE)
#define SUM PACK(WIDE)
#define SUM_RUN WIDE
#define OWN_SUMS (TM * PACKS_N)
#define SUMS (OWN_SUMS / SLICES)
#include "smem_tile.h"
// A warp that copies single elements has 32 of a line, and turns to the next 32: most addresses are constants apart.
#undef SPAN
#define SPAN ((cross ? 32 / (int)sizeof(REAL) : w == 1 && side > 32 ? 32 : side / w))
#include "slice_k.h"
// A warp is LANES_M x LANES_N threads, and neighbours read neighbouring packs of A and of B: no bank is asked twice,
// one read serves all who want the same pack, and what the warp writes of C fills whole sectors.
#define LANES_N (WN / TN)
#define LANES_M (32 / LANES_N)
#define TOP (MATE / 32 / (BN / WN) * LANES_M * TM + MATE % 32 / LANES_N * WIDE)
#define LEFT (MATE / 32 % (BN / WN) * WN + MATE % LANES_N * WIDE)
#define ROW(i) (TOP + (i) / WIDE * LANES_M * WIDE + (i) % WIDE)
#define COLUMN(pack) (LEFT + (pack) * LANES_N * WIDE)
#define CROSS_A (!TRANS_A && !REPACK)
#define CROSS_B (TRANS_B && !REPACK)
#define LINE_A LINE(BM, CROSS_A)
#define LINE_B LINE(BN, CROSS_B)
#define SIZE_A (BK * LINE_A)
#define STAGE (SIZE_A + BK * LINE_B)
#define DEPTH (BK / SLICES)
#define ROOM (STAGES * STAGE > SLICES * BM * BN || SLICES == 1 ? STAGES * STAGE : SLICES * BM * BN)
#define IN_SCRATCH(lines) ((INDEX)(lines) * (128 / (int)sizeof(REAL)))
#define KIND_A BM, CROSS_A
#define KIND_B BN, CROSS_B
#define BURSTS 2 // so many times a phase copies are sent off
#define IN_ORDER() __syncwarp() // what stands before is issued before what stands after: reads run ahead of FMAs

// BM rows of A or BN columns of B: where a thread's next copies come from and go to, and which of them are inside C.
template <int side, int cross> struct Side {
    static constexpr int w = cross ? 1 : VECTOR, turns = SHARE(side) / w;
    const REAL *start, *from;
    REAL *const pool;
    const INDEX pitch;
    int sides;
    unsigned to, kept;

    __device__ __forceinline__ Side(REAL *pool, const INDEX pitch) : pool(pool), pitch(pitch) {}

    // What is past C's edge is never copied: what is found there adds to sums that nobody stores.
    __device__ __forceinline__ void begin(const REAL *start, const int sides)
    {
        this->start = start, this->sides = sides, kept = 0;
        from = start + (ACROSS(ME) * pitch + ALONG(ME));
        to = (unsigned)__cvta_generic_to_shared(pool + PLACE(ME));
        EACH(i, turns) {
            const int at = cross ? ACROSS(ME) + ACROSS(i * THREADS) : ALONG(ME) + ALONG(i * THREADS);
            kept |= (unsigned)(at < sides) << i;
        }
    }

    __device__ __forceinline__ void next(const int step)
    {
        to += step * (int)sizeof(REAL);
        from += cross ? BK : BK * pitch;
    }

    // One of `bursts` parts of this thread's copies, where it is to copy at all.
    __device__ __forceinline__ void bring(const int burst, const int bursts, const int copies)
    {
        const unsigned now = copies ? kept : 0;
        const int line = (int)pitch; // a quick side's is short
        EACH(i, turns) if (i * bursts / turns == burst) {
            const unsigned at = to + PLACE(i * THREADS) * (int)sizeof(REAL);
            const REAL *const source = from + ((INDEX)line * ACROSS(i * THREADS) + ALONG(i * THREADS));
            if (w > 1)
                asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.b32 p, t, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
                             ::"r"(at), "l"(source), "r"(now), "r"(1u << i) : "memory");
            else
                asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.b32 p, t, 0; @p cp.async.ca.shared.global [%0], [%1], %4;}"
                             ::"r"(at), "l"(source), "r"(now), "r"(1u << i), "n"(sizeof(REAL)) : "memory");
        }
    }

    // Phase `p` of a depth and alignment of any kind, with zeros past the edges.
    __device__ __forceinline__ void bring_slowly(const int p, const INDEX depth, const int wide)
    {
        const REAL *const phase = start + (INDEX)p * BK * (cross ? 1 : pitch);
        const int deep = depth - (INDEX)p * BK < BK ? (int)(depth - (INDEX)p * BK) : BK;
        if (!cross && wide) copy_all<WIDE>(pool + p % STAGES * STAGE, phase, deep);
        else copy_all<1>(pool + p % STAGES * STAGE, phase, deep);
    }

    template <int w> __device__ __forceinline__ void copy_all(REAL *to, const REAL *from, const int deep)
    {
#pragma unroll 1
        for (int i = 0; i < SHARE(side) / w; i++) {
            const int x = ALONG(ME + i * THREADS), y = ACROSS(ME + i * THREADS);
            const int inside = x < (cross ? deep : sides) && y < (cross ? sides : deep);
            COPY(w, to + PLACE(ME + i * THREADS), from + (y * pitch + x), inside);
        }
    }
};

// A thread's TM + TN elements of one k, which serve TM * TN FMAs: to and fro along the shorter side, so that an operand
// that was just used is used again, and comes from the FMA units' own cache instead of a register bank.
struct Operands {
    PACK(WIDE) x[PACKS_M], y[PACKS_N];

    __device__ __forceinline__ void read(const REAL *as, const REAL *bs, const int q)
    {
        EACH(i, PACKS_M) x[i] = LOAD(WIDE, as + q * LINE_A + i * LANES_M * WIDE);
        EACH(j, PACKS_N) y[j] = LOAD(WIDE, bs + q * LINE_B + j * LANES_N * WIDE);
    }

    __device__ __forceinline__ void add(SUM *sums) const
    {
        constexpr int outer = TN >= TM ? TN : TM, inner = TN >= TM ? TM : TN;
        EACH(o, outer) EACH(n, inner) {
            const int back = o % 2 ? inner - 1 - n : n, i = TN >= TM ? back : o, j = TN >= TM ? o : back;
            REAL &sum = sums[i * PACKS_N + j / WIDE].element[j % WIDE];
            sum = FMA(x[i / WIDE].element[i % WIDE], y[j / WIDE].element[j % WIDE], sum);
        }
    }
};
#include "stream_k_tile.h"

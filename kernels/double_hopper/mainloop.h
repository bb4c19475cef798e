// A consumer warp's sums of one tile, from a ring that goes on from tile to tile. A `barrier` is
// full where a stage's loads have come, and STAGES further on empty where all warps of all blocks
// that fill it have read it.
struct Mainloop {
    unsigned barriers, lane;
    FragmentAddresses at;
    PipelineState state;
    REAL x[1 + AHEAD][MMAS_LEFT][2 * SLOTS], y[1 + AHEAD][MMAS_RIGHT][SLOTS];

    __device__ __forceinline__ void wait() const
    {
        mbarrier_wait(barriers + 8 * state.index, state.phase);
    }

    // Gives a stage back, which all of the warp's threads have read. An arrival does not wait for
    // loads that are on their way: TMA's stores to the stage could overtake them without the fence
    // (PTX ISA, "Async proxy").
    __device__ __forceinline__ void release(const unsigned index) const
    {
        fence_proxy_async();
        __syncwarp();
        if (lane < CLUSTER) {
            mbarrier_arrive(barriers + 8 * (STAGES + index), lane);
        }
    }

    __device__ __forceinline__ void advance()
    {
        at.advance(state.index == STAGES - 1 ? -(STAGES - 1) * STAGE_BYTES : STAGE_BYTES);
        state.advance();
    }

    // Loads the fragments of the stage's step `q`: of the side that all rounds multiply, and of one
    // round.
    __device__ __forceinline__ void load_shared(const int q, const int to)
    {
        EACH(e, ROUND_MMAS) {
            if (BY_RIGHT) {
                load_left(at, q, e, x[to][e]);
            } else {
                load_right(at, q, e, y[to][e]);
            }
        }
    }

    __device__ __forceinline__ void load_round(const int q, const int round, const int to)
    {
        if (BY_RIGHT) {
            load_right(at, q, round, y[to][round]);
        } else {
            load_left(at, q, round, x[to][round]);
        }
    }

    __device__ __forceinline__ void multiply(ACC *acc, const int round, const int from) const
    {
        EACH(e, ROUND_MMAS) {
            const int i = BY_RIGHT ? e : round, j = BY_RIGHT ? round : e;
            mma(acc + 2 * (i * MMAS_RIGHT + j), x[from][i], y[from][j]);
        }
    }

    __device__ __forceinline__ void load(const int q, const int to)
    {
        load_shared(q, to);
        EACH(round, ROUNDS) {
            load_round(q, round, to);
        }
    }

    // A k tile whose first fragments are loaded already; `half` is its number modulo TURN.
    __device__ __forceinline__ void run_ahead(ACC *acc, const int half, const bool last)
    {
        EACH(q, STEPS) {
            const int from = (half * STEPS + q) % 2;
            if (q < STEPS - 1) {
                load(q + 1, 1 - from);
            } else {
                release(state.index); // all of its loads are issued, the last ones a step ago
                advance();
                if (!last) {
                    wait();
                    load(0, 1 - from);
                }
            }
            EACH(round, ROUNDS) {
                multiply(acc, round, from);
            }
        }
    }

    __device__ __forceinline__ void run_behind(ACC *acc)
    {
        wait();
        EACH(q, STEPS) {
            load_shared(q, 0);
            EACH(round, ROUNDS) {
                load_round(q, round, 0);
                multiply(acc, round, 0);
            }
        }
        release(state.index);
        advance();
    }

    __device__ __forceinline__ void run(ACC *acc, const int k_tiles)
    {
        if (AHEAD) {
            wait();
            load(0, 0);
        }
#pragma unroll 1
        for (int p = 0; p < k_tiles; p += TURN) {
            EACH(half, TURN) {
                if (!AHEAD) {
                    run_behind(acc);
                } else if (half == 0 || p + half < k_tiles) {
                    run_ahead(acc, half, p + half + 1 == k_tiles);
                }
            }
        }
    }
};

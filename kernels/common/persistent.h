// The work of persistent blocks, and their ring of stages. The including file defines CLUSTER_SIZE,
// the blocks of a cluster.

// Persistent blocks: cluster by cluster, each takes every so many-th work tile.
struct TileScheduler {
    unsigned tile_idx = BLOCK / CLUSTER_SIZE;
    const INDEX num_tiles;

    __device__ __forceinline__ TileScheduler(const INDEX num_tiles) : num_tiles(num_tiles)
    {
    }

    __device__ __forceinline__ bool has_tile() const
    {
        return tile_idx < num_tiles;
    }

    // Whether the block has another tile after this one.
    __device__ __forceinline__ bool has_next() const
    {
        return tile_idx + gridDim.x / CLUSTER_SIZE < num_tiles;
    }

    __device__ __forceinline__ void advance(const unsigned turns = 1)
    {
        tile_idx += gridDim.x / CLUSTER_SIZE * turns;
    }
};

// Stage of the ring and the parity of its barriers' current phase.
struct PipelineState {
    unsigned index = 0, phase = 0;

    __device__ __forceinline__ void advance()
    {
        if (++index == STAGES) {
            index = 0;
            phase ^= 1;
        }
    }

    // Past so many stages, which others read.
    __device__ __forceinline__ void advance(const unsigned stages)
    {
        phase ^= (index + stages) / STAGES & 1;
        index = (index + stages) % STAGES;
    }
};

// Waits until all stages are released, those that a producer would fill from `state` on: until then
// other blocks of a cluster arrive at this block's barriers, and read what it loaded for them.
INNER void wait_until_released(const unsigned empty_barriers, PipelineState state)
{
    if (CLUSTER > 1) {
#pragma unroll 1
        for (int i = 0; i < STAGES; i++, state.advance()) {
            mbarrier_wait(empty_barriers + 8 * state.index, state.phase ^ 1);
        }
    }
}

// Threads of a block in SLICES teams: each adds up a part of every phase along k for the whole tile, and in the end
// each has the sums of all for a part of the tile, added in the teams' order. The including file defines before:
//
// TEAM     threads of a team     SUM, SUM_RUN  a PACK of sums, and how many they are
// SLICES   teams of a block      OWN_SUMS      packs of sums that a thread has before; SUMS  after
#define MATE (SLICES == 1 ? THREAD_X : THREAD_X % TEAM)
#define TEAM_AT (SLICES == 1 ? 0 : THREAD_X / TEAM)
// Neighbouring threads have neighbouring packs in the pool: nobody waits for a bank.
#define POOL_AT(team, e) ((((team) * OWN_SUMS + (e)) * TEAM + MATE) * SUM_RUN)

INNER void join_teams(LOCAL REAL *pool, SUM *sums)
{
    BARRIER(); // all have read the last tiles: their place is free
    EACH(e, OWN_SUMS) STORE(SUM_RUN, sums[e], pool + POOL_AT(TEAM_AT, e));
    BARRIER();
    EACH(e, SUMS) {
        sums[e] = LOAD(SUM_RUN, pool + POOL_AT(0, TEAM_AT * SUMS + e));
        EACH(i, SLICES - 1)
            sums[e] = SCALED(SUM_RUN, 1, LOAD(SUM_RUN, pool + POOL_AT(i + 1, TEAM_AT * SUMS + e)), sums[e]);
    }
}

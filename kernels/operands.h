// A thread's operands, and what it does with a phase of them. The including file defines, beside what stream.h wants:
//
// TL, TS            how much of C's long and short side a thread has      RUN_L  neighbours of the long side
// MY_L, MY_S        where its part of both begins in the warp's           SUM    PACK(RUN(TS))
// AT_L(i), AT_S(j)  how far from there its elements are                   PACKS  of them in TS
//
// LAID packs along k are laid out one after the other: few, so that their text is soon here, and an even number of them
// where operands are read ahead, for what is ahead and what is used take turns.
#define STEPS (LAID * WIDE < BK ? LAID * WIDE : BK)
#define STRIDE (DEEP ? 1 : SPAN)
#define EDGE (STEPS - (DEEP ? WIDE : 1)) // from this step on what is read is the next phase's
typedef struct { PACK(WIDE) deep[2 * TL]; PACK(RUN(TL)) x[2 * TL / RUN(TL)]; SUM y[2 * PACKS]; } Operands;

INNER void read_small(Operands *o, const LOCAL REAL *small, const int s)
{
    EACH(j, PACKS) o->y[s % 2 * PACKS + j] = LOAD(RUN(TS), small + MY_S + AT_S(j * RUN(TS)));
}

// Along k WIDE steps are read at once, in `parts`, each between other steps' FMAs.
INNER void read_large(Operands *o, const LOCAL REAL *large, const int s, const int part, const int parts)
{
    EACH(i, DEEP * TL) if (i * parts / TL == part)
        o->deep[s / WIDE % 2 * TL + i] = LOAD(WIDE, large + PLACE(MY_L) + PLACE(AT_L(i)));
    EACH(i, !DEEP * TL / RUN(TL))
        o->x[s % 2 * (TL / RUN(TL)) + i] = LOAD(RUN(TL), large + MY_L + AT_L(i * RUN(TL)));
}

INNER void add_step(const Operands *o, const int s, SUM *sums)
{
#define X_OF(l) (DEEP ? ELEMENT(o->deep[s / WIDE % 2 * TL + (l)], s % WIDE) \
                      : ELEMENT(o->x[s % 2 * (TL / RUN(TL)) + (l) / RUN(TL)], (l) % RUN(TL)))
    EACH(l, TL) ADD(X_OF(l), o->y + s % 2 * PACKS, sums + l * PACKS, l % 2);
}

// One phase. Operands of the next step are read before this one's FMAs, past the end of the phase too.
PART void add_phase(const LOCAL REAL *small, LOCAL REAL *const phase, const LOCAL REAL *next_small,
                    const LOCAL REAL *next_phase, Stream *stream, Operands *o, SUM *sums)
{
    const LOCAL REAL *large = phase;
    TURNS(turn, BK / STEPS, 1) {
        const int over = turn == BK / STEPS - 1;
        const LOCAL REAL *then = large + STEPS * STRIDE;
        EACH(s, STEPS) {
            if (STAGES == 1) {
                if ((s % WIDE == 0) | !DEEP) read_large(o, large + s * STRIDE, s, 0, 1);
                read_small(o, small + s * LINE, s);
            }
            else {
                if (s == EDGE && over) {
                    COPIES_LEFT(STAGES - 2);
                    WARP_BARRIER(); // the next phase is whole, and this one's place free: all lanes have read it
                    send(stream, phase);
                    then = next_phase;
                }
                const int to = DEEP ? s / WIDE * WIDE + WIDE : s + 1;
                read_large(o, to < STEPS ? large + to * STRIDE : then, to % STEPS, s % WIDE, DEEP ? WIDE : 1);
                const LOCAL REAL *const after = over ? next_small : small + STEPS * LINE;
                read_small(o, s + 1 < STEPS ? small + (s + 1) * LINE : after, (s + 1) % STEPS);
                IN_ORDER();
            }
            add_step(o, s, sums);
        }
        small += STEPS * LINE, large = then;
    }
}

// The sum, modulo 2^64, of the 64-bit words of each block of BLOCK_BYTES of a matrix, whatever its
// elements are. Past its end there are zeros.
//
// BLOCK_BYTES  bytes of a block
#if !defined(BLOCK_BYTES)
#error "BLOCK_BYTES must be defined"
#endif
#include "portable.h"
#define THREADS 256
#define WORD unsigned INDEX
#define WORDS (BLOCK_BYTES / 8 / THREADS)

// Word `at` of the matrix of `nbytes`.
INNER WORD word_at(const GLOBAL WORD *words, const INDEX at, const INDEX nbytes)
{
    const GLOBAL unsigned char *const bytes = (const GLOBAL unsigned char *)words;
    WORD word = 0;
    if ((at + 1) * 8 <= nbytes) {
        return words[at];
    }
    for (INDEX i = at * 8; i < nbytes; i++) {
        word |= (WORD)bytes[i] << (i - at * 8) * 8;
    }
    return word;
}

KERNEL(THREADS, 1)
word_sums(const GLOBAL WORD *RESTRICT words, const GLOBAL WORD *RESTRICT unused,
          GLOBAL WORD *RESTRICT sums, const INDEX m, const INDEX n, const INDEX k,
          GLOBAL WORD *workspace, const INDEX nbytes)
{
    SHARED WORD shares[THREADS];
    const INDEX first = BLOCK * (BLOCK_BYTES / 8) + THREAD_X;
    WORD sum = 0;
    if ((BLOCK + 1) * BLOCK_BYTES <= nbytes) {
        TURNS(i, WORDS, WORDS) {
            sum += words[first + i * THREADS];
        }
    } else {
        TURNS(i, WORDS, 1) {
            sum += word_at(words, first + i * THREADS, nbytes);
        }
    }
    shares[THREAD_X] = sum;
    BARRIER();
    if (THREAD_X == 0) {
        for (int i = 1; i < THREADS; i++) {
            sum += shares[i];
        }
        sums[BLOCK] = sum;
    }
}

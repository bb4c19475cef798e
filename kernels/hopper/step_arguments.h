// STEP_ARGUMENTS: the arguments that a launch shares with the steps before and after it.
#ifdef PRECISION_EMULATED
#define STEP_ARGUMENTS                                                                             \
    const INDEX at_a, const INDEX at_b, const INDEX at_e, const INDEX at_f, const INDEX at_maxima, \
        const INDEX slab
#else
#define STEP_ARGUMENTS const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b
#endif

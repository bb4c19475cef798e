// Division by a number that the launch knows: some ten cycles in place of a hundred.

// `of`, which is less than 2^31, over the divisor that division.py makes multiplier and shift of.
INNER INDEX quotient(const unsigned of, const INDEX multiplier, const INDEX shift)
{
    return (INDEX)((unsigned long long)of * (unsigned)multiplier >> (int)shift);
}

// Division by a number that the launch knows: some fifteen cycles in place of over a hundred.

// `of`, which is less than 2^31, over the divisor that division.py makes `divider` of: bits 62 and
// up of their product.
INNER unsigned quotient(const unsigned of, const INDEX divider)
{
    const unsigned low = (unsigned)divider, high = (unsigned)(divider >> 32);
    const unsigned INDEX above = (unsigned INDEX)of * low >> 32;
    return (unsigned)(((unsigned INDEX)of * high + above) >> 30);
}

// Division by a number that the launch knows: two multiplications and a shift.

// `of`, which is less than 2^31, over the divisor that division.py makes `divider` of: bits 62 and
// up of their product.
INNER unsigned quotient(const unsigned of, const INDEX divider)
{
    const unsigned low = (unsigned)divider, high = (unsigned)(divider >> 32);
    const unsigned INDEX above = (unsigned INDEX)of * low >> 32;
    return (unsigned)(((unsigned INDEX)of * high + above) >> 30);
}

// The same where it is often zero. A block's first loads wait for its tile's indices.
INNER unsigned quotient_or_zero(const unsigned of, const unsigned divisor, const INDEX divider)
{
    return of < divisor ? 0 : quotient(of, divider);
}

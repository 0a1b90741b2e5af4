/* Functions of doubles made of plain operations, so that their bits are the same on every
 * processor: compilers may not fuse them (compiler.py). Schemes and constants of FreeBSD's msun
 * (e_log.c, k_sin.c, k_cos.c, e_rem_pio2.c), without branches.
 */
#ifndef FOREWORD_EXACT_H
#define FOREWORD_EXACT_H

#include <stdint.h>
#include <string.h>

/* Natural logarithm of a positive normal double. */
static inline double ln(double x) {
    int64_t bits;
    memcpy(&bits, &x, 8);
    /* So that the mantissa is in [sqrt(1/2), sqrt(2)). */
    int64_t shifted = bits - 0x3fe6a09e667f3bcd;
    /* 32 bits: AVX2 cannot convert 64 to a double. */
    const int32_t exponent = (int32_t)(shifted >> 32) >> 20;
    const int64_t mantissa = bits - (shifted & (int64_t)0xfff0000000000000);
    double m, k = (double)exponent;
    memcpy(&m, &mantissa, 8);
    double f = m - 1, s = f / (2 + f), z = s * s, w = z * z, half = 0.5 * f * f;
    double even =
        w * (0.3999999999940941908 + w * (0.2222219843214978396 + w * 0.1531383769920937332));
    double odd =
        z
        * (0.6666666666666735130
           + w * (0.2857142874366239149 + w * (0.1818357216161805012 + w * 0.1479819860511658591)));
    return k * 6.93147180369123816490e-01
           - ((half - (s * (half + even + odd) + k * 1.90821492927058770002e-10)) - f);
}

/* Cosine and sine of an angle of at most a million radians; error below 1e-15. */
static inline void turn(double angle, double *cos, double *sin) {
    const double nearest = 6755399441055744.0; /* 1.5 2^52: the sum has no bits for fractions */
    const double n = (angle * 6.36619772367581382433e-01 + nearest) - nearest;
    /* A quarter turn in three parts. The first two have 33 bits: their products are exact. */
    const double r = ((angle - n * 1.57079632673412561417e+00) - n * 6.07710050630396597660e-11)
                     - n * 2.02226624879595063154e-21;
    const double z = r * r;
    double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11;
    s = -2.50507602534068634195e-08 + z * s;
    s = 2.75573137070700676789e-06 + z * s;
    s = -1.98412698298579493134e-04 + z * s;
    s = 8.33333333332248946124e-03 + z * s;
    s = -1.66666666666666324348e-01 + z * s;
    s = r + r * z * s;
    c = 2.08757232129817482790e-09 + z * c;
    c = -2.75573143513906633035e-07 + z * c;
    c = 2.48015872894767294178e-05 + z * c;
    c = -1.38888888888741095749e-03 + z * c;
    c = 4.16666666666666019037e-02 + z * c;
    c = 1 - 0.5 * z + z * z * c;
    const int64_t quarter = (int64_t)n & 3;
    *cos = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    *sin = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

#endif

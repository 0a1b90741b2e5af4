/* Exponentials and activations of vectors. */
#ifndef FOREWORD_ACTIVATIONS_H
#define FOREWORD_ACTIVATIONS_H

#include "model.h"

/* exp in float32: 2^n times a polynomial of degree 6 on |r| <= ln(2)/2; relative error about 2e-7.
 * x is clamped to +-87, so neither the result nor its reciprocal is denormal, which takes a
 * processor a hundred times as long. */
static inline floats vexp(floats x) {
    x = minimum(maximum(x, all(-87.0f)), all(87.0f));
    floats n = rounded(mul(x, all(1.442695041f)));
    floats r = fused(n, all(-0.693359375f), x);
    r = fused(n, all(2.12194440e-4f), r);
    floats p = all(1.0f / 720);
    p = fused(p, r, all(1.0f / 120));
    p = fused(p, r, all(1.0f / 24));
    p = fused(p, r, all(1.0f / 6));
    p = fused(p, r, all(0.5f));
    p = fused(p, r, all(1.0f));
    p = fused(p, r, all(1.0f));
    return scaled(p, n);
}

static inline float exp_of(float x) {
    float each[LANES];
    store(each, vexp(all(x)));
    return each[0];
}

static inline floats sigmoid(floats x) {
    const floats one = all(1.0f);
    return quotient(one, add(one, vexp(sub(all(0), x))));
}

/* cap tanh(x / cap); x if cap is 0 */
static inline floats capped(floats x, float cap) {
    if (cap == 0) return x;
    const floats twice = mul(x, all(2.0f / cap));
    return mul(fused(all(2.0f), sigmoid(twice), all(-1.0f)), all(cap));
}

/* SiLU: x sigmoid(x); tanh GELU: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)). */
static inline floats activated(floats x, int64_t activation) {
    floats slope = x;
    if (activation == GELU) {
        const floats cube = mul(mul(x, x), x);
        slope = mul(fused(cube, all(0.044715f), x), all(1.5957691216f));
    }
    return mul(x, sigmoid(slope));
}

#define CLAMP 7 /* numbers of a clamped gate and of what it multiplies */

static inline floats at_most_seven(floats x) {
    return sub(all(0), maximum(sub(all(0), x), all(-CLAMP)));
}

/* What a gated MLP makes of a gate and of what it lets through; CLAMPED: g sigmoid(1.702 g) (u +
 * 1), both clamped (gpt-oss). */
static inline floats gated_by(floats gate, floats up, int64_t activation) {
    if (activation != CLAMPED) return mul(activated(gate, activation), up);
    gate = at_most_seven(gate), up = maximum(at_most_seven(up), all(-CLAMP));
    return mul(mul(gate, sigmoid(mul(gate, all(1.702f)))), add(up, all(1)));
}

/* GELU, x times the normal distribution function: max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, off by
 * at most 1e-7 |x| (Abramowitz and Stegun, 7.1.26). */
static inline floats normal_gate(floats x) {
    const floats size = maximum(x, sub(all(0), x)),
                 t = quotient(all(1), fused(size, all(0.3275911f * 0.70710678f), all(1)));
    floats p = all(1.061405429f);
    p = fused(p, t, all(-1.453152027f));
    p = fused(p, t, all(1.421413741f));
    p = fused(p, t, all(-0.284496736f));
    p = fused(p, t, all(0.254829592f));
    const floats beyond = mul(mul(p, t), vexp(mul(all(-0.5f), mul(size, size))));
    return fused(mul(all(-0.5f), size), beyond, maximum(x, all(0)));
}

/* Activation of an ungated MLP. */
static inline floats plainly_activated(floats x, int64_t activation) {
    const floats positive = maximum(x, all(0));
    if (activation == GELU_ERF) return normal_gate(x);
    if (activation == RELU) return positive;
    if (activation == RELU_SQUARED) return mul(positive, positive);
    return activated(x, activation);
}

#endif

/* Functions of numbers and rows: activations, norms, rotary embeddings. */

static inline void narrow_store(bf16 *to, floats value) { store_halves(to, narrow(value)); }

/* exp in float32: 2^n times a polynomial of degree 6 on |r| <= ln(2)/2; relative error about 2e-7. x is clamped
 * to +-87, so neither the result nor its reciprocal is denormal, which takes a processor a hundred times as long. */
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

static inline floats at_most_seven(floats x) { return sub(all(0), maximum(sub(all(0), x), all(-CLAMP))); }

/* What a gated MLP makes of a gate and of what it lets through; CLAMPED: g sigmoid(1.702 g) (u + 1), both clamped (gpt-oss). */
static inline floats gated_by(floats gate, floats up, int64_t activation) {
    if (activation != CLAMPED) return mul(activated(gate, activation), up);
    gate = at_most_seven(gate), up = maximum(at_most_seven(up), all(-CLAMP));
    return mul(mul(gate, sigmoid(mul(gate, all(1.702f)))), add(up, all(1)));
}

/* GELU, x times the normal distribution function: max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, off by at most 1e-7 |x| (Abramowitz and Stegun, 7.1.26). */
static inline floats normal_gate(floats x) {
    const floats size = maximum(x, sub(all(0), x)), t = quotient(all(1), fused(size, all(0.3275911f * 0.70710678f), all(1)));
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

static inline floats length_of(const float *x, float eps, int64_t n) {
    floats sum = all(0);
    for (int64_t i = 0; i < n; i += LANES) { floats v = load(x + i); sum = fused(v, v, sum); }
    return all(1.0f / sqrtf(sum_of(sum) / (float)n + eps));
}

/* Without weights the row is copied. */
static void rms_norm(const float *x, const float *weight, float eps, int64_t n, factor *to) {
    if (!weight) {
        for (int64_t i = 0; i < n; i += LANES) store_factors(to + i, load(x + i));
        return;
    }
    const floats size = length_of(x, eps, n);
    for (int64_t i = 0; i < n; i += LANES)
        store_factors(to + i, mul(mul(load(x + i), size), load(weight + i)));
}

/* LayerNorm of n numbers. */
static void layer_norm(const float *x, const float *weight, const float *bias, float eps, int64_t n, factor *to) {
    floats sum = all(0), squares = all(0);
    for (int64_t i = 0; i < n; i += LANES) sum = add(sum, load(x + i));
    const floats mean = all(sum_of(sum) / (float)n);
    for (int64_t i = 0; i < n; i += LANES) { const floats v = sub(load(x + i), mean); squares = fused(v, v, squares); }
    const floats size = all(1.0f / sqrtf(sum_of(squares) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES)
        store_factors(to + i, fused(mul(sub(load(x + i), mean), size), load(weight + i), bias ? load(bias + i) : all(0)));
}

static void rms_norm_in_place(float *x, const float *weight, float eps, int64_t n) {
    const floats size = length_of(x, eps, n);
    for (int64_t i = 0; i < n; i += LANES)
        store(x + i, mul(mul(load(x + i), size), load(weight + i)));
}

/* Rotate the first `rotary_dim` numbers of one head in place. */
static void apply_rotary(float *x, const float *cos, const float *sin, int64_t rotary_dim) {
    int64_t half = cos ? rotary_dim / 2 : 0, i = 0;
    for (; i + LANES <= half; i += LANES) { /* stored in the width it is loaded in next, or store forwarding fails */
        const floats a = load(x + i), b = load(x + i + half);
        store(x + i, fused_from(b, load(sin + i), mul(a, load(cos + i))));
        store(x + i + half, fused(a, load(sin + i + half), mul(b, load(cos + i + half))));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(a, cos[i], -(b * sin[i]));
        x[i + half] = fmaf(b, cos[i + half], a * sin[i + half]);
    }
}

/* Norm (if the model does) and rotate one head. */
static void norm_and_rotate(const Model *m, float *x, const float *norm, const float *cos, const float *sin) {
    if (norm && !m->norm_after_rotary) rms_norm_in_place(x, norm, m->eps, m->dim);
    apply_rotary(x, cos, sin, m->rotary_dim);
    if (norm && m->norm_after_rotary) rms_norm_in_place(x, norm, m->eps, m->dim);
}

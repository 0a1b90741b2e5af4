#include "norms.h"

INTERNAL void rms_norm(const float *x, const float *weight, float eps, int64_t n, factor *to) {
    if (!weight) {
        for (int64_t i = 0; i < n; i += LANES) store_factors(to + i, load(x + i));
        return;
    }
    const floats size = length_of(x, eps, n);
    for (int64_t i = 0; i < n; i += LANES)
        store_factors(to + i, mul(mul(load(x + i), size), load(weight + i)));
}

INTERNAL void layer_norm(const float *x, const float *weight, const float *bias, float eps,
                         int64_t n, factor *to) {
    floats sum = all(0), squares = all(0);
    for (int64_t i = 0; i < n; i += LANES) sum = add(sum, load(x + i));
    const floats mean = all(sum_of(sum) / (float)n);
    for (int64_t i = 0; i < n; i += LANES) {
        const floats v = sub(load(x + i), mean);
        squares = fused(v, v, squares);
    }
    const floats size = all(1.0f / sqrtf(sum_of(squares) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES)
        store_factors(to + i, fused(mul(sub(load(x + i), mean), size), load(weight + i),
                                    bias ? load(bias + i) : all(0)));
}

INTERNAL void rms_norm_in_place(float *x, const float *weight, float eps, int64_t n) {
    const floats size = length_of(x, eps, n);
    for (int64_t i = 0; i < n; i += LANES)
        store(x + i, mul(mul(load(x + i), size), load(weight + i)));
}

INTERNAL void apply_rotary(float *x, const float *cos, const float *sin, int64_t rotary_dim) {
    int64_t half = cos ? rotary_dim / 2 : 0, i = 0;
    /* Stored in the width it is loaded in next, or store forwarding fails. */
    for (; i + LANES <= half; i += LANES) {
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

INTERNAL void norm_and_rotate(const Model *m, float *x, const float *norm, const float *cos,
                              const float *sin) {
    if (norm && !m->norm_after_rotary) rms_norm_in_place(x, norm, m->eps, m->dim);
    apply_rotary(x, cos, sin, m->rotary_dim);
    if (norm && m->norm_after_rotary) rms_norm_in_place(x, norm, m->eps, m->dim);
}

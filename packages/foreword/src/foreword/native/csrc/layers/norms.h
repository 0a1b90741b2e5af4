/* Norms of rows, and rotary embeddings. */
#ifndef FOREWORD_NORMS_H
#define FOREWORD_NORMS_H

#include "../model.h"

static inline floats length_of(const float *x, float eps, int64_t n) {
    floats sum = all(0);
    for (int64_t i = 0; i < n; i += LANES) {
        const floats v = load(x + i);
        sum = fused(v, v, sum);
    }
    return all(1.0f / sqrtf(sum_of(sum) / (float)n + eps));
}

/* RMSNorm of n numbers; without weights they are copied. */
INTERNAL void rms_norm(const float *x, const float *weight, float eps, int64_t n, factor *to);
INTERNAL void rms_norm_in_place(float *x, const float *weight, float eps, int64_t n);

/* LayerNorm of n numbers; `bias` may be NULL. */
INTERNAL void layer_norm(const float *x, const float *weight, const float *bias, float eps,
                         int64_t n, factor *to);

/* Rotate the first `rotary_dim` numbers of one head in place; `cos` may be NULL. */
INTERNAL void apply_rotary(float *x, const float *cos, const float *sin, int64_t rotary_dim);

/* Norm (if the model does) and rotate one head. */
INTERNAL void norm_and_rotate(const Model *m, float *x, const float *norm, const float *cos,
                              const float *sin);

#endif

/* Products with 4-bit weights, which are widened to bfloat16 in registers; sums as in panel.c.
 *
 * A panel here is 16 outputs: its scales [depth / GROUP][16] in bfloat16, then its codes. 64 bytes of codes are 16 outputs by
 * 8 depths, as 32 words of four nibbles: word 2 o + i belongs to output o and depths 2 n + i. A nibble is looked up in a table
 * of 16 bfloat16 numbers.
 */

#define GROUP 32 /* depths that share a scale */
#define CLIPS 6  /* scales tried for a group; the largest weight may be cut by a few steps of 1/24 */

/* Quantiles of a normal distribution (NF4: Dettmers et al. 2023, appendix E), closer to that of weights than a uniform grid. */
static const float NORMAL[16] = {
    -1.0f, -0.6961928f, -0.5250731f, -0.3949175f, -0.2844414f, -0.1847734f, -0.0910500f, 0.0f,
    0.0795803f, 0.1609302f, 0.2461123f, 0.3379152f, 0.4407098f, 0.5626170f, 0.7229568f, 1.0f,
};
#define LOADS (GROUP / 8) /* 64-byte loads of codes per group */

static inline int64_t panel_bytes(int64_t depth) { return depth / GROUP * (LANES * 2 + LOADS * 64); }

INLINE void coded_tile(const Product *p, int64_t row, int64_t panel, const int R, const int P) {
    const int64_t groups = p->depth / GROUP, stride = panel_bytes(p->depth);
    const uint8_t *scales = (const uint8_t *)p->weight + panel * stride, *codes = scales + groups * LANES * 2;
    const factor *x = p->x + row * p->depth;
    const table levels = table_of(NORMAL);
    floats sum[MOST_CODED][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) sum[r][i] = all(0);
    for (int64_t g = 0; g < groups; g++) {
        floats group[MOST_CODED][2];
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) group[r][i] = all(0);
#pragma GCC unroll 4
        for (int64_t load = 0; load < LOADS; load++) {
            pairs word[2];
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                const uint8_t *at = codes + i * stride + (g * LOADS + load) * 64;
                word[i] = load_pairs(at);
                prefetch(at + 2048);
            }
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) {
                const int64_t k = g * GROUP + load * 8 + n * 2;
                pairs weight[2];
#pragma GCC unroll 2
                for (int i = 0; i < P; i++) weight[i] = looked_up(levels, word[i], n);
#pragma GCC unroll 6
                for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                    for (int i = 0; i < P; i++) group[r][i] = dot(group[r][i], weight[i], x + r * p->depth + k);
            }
        }
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            floats scale = widen(load_halves((const bf16 *)(scales + i * stride + g * LANES * 2)));
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) sum[r][i] = fused(group[r][i], scale, sum[r][i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) finish(p, row + r, panel * LANES, sum[r][0], sum[r][P - 1], P);
}

#define CODED(n) case n: if (n > MOST_CODED) break; else if (wide == 2) coded_tile(p, row, panel, n, 2); else coded_tile(p, row, panel, n, 1); break;
static void coded(const Product *p, int64_t row, int64_t half, int rows) { /* `half`: a panel of 32 outputs, or the remaining 16 */
    const int wide = (half + 1) * PANEL <= p->outputs ? 2 : 1;
    const int64_t panel = 2 * half;
    switch (rows) { CODED(1) CODED(2) CODED(3) CODED(4) CODED(5) CODED(6) }
}

/* ---- quantization: of 16 outputs together, in loops that the compiler vectorises */

/* Compute the codes of one group with a scale per output, and the sums of squared errors. */
static void encode(float weight[GROUP][LANES], const float *scale, int32_t code[GROUP][LANES], float *error) {
    memset(error, 0, LANES * sizeof *error);
    for (int k = 0; k < GROUP; k++)
        for (int o = 0; o < LANES; o++) {
            const float x = weight[k][o] / scale[o];
            float level = NORMAL[0];
            int32_t place = 0;
            for (int i = 0; i < 15; i++) { /* the nearest of NORMAL */
                const int beyond = x > (NORMAL[i] + NORMAL[i + 1]) / 2;
                place = beyond ? i + 1 : place, level = beyond ? NORMAL[i + 1] : level;
            }
            const float off = weight[k][o] - level * scale[o];
            code[k][o] = place, error[o] += off * off;
        }
}

static void encode_group(const bf16 *from, int64_t wide, bf16 *scales, uint8_t *codes) {
    float weight[GROUP][LANES], top[LANES], least[LANES], best[LANES], scale[LANES], error[LANES];
    int32_t code[GROUP][LANES], kept[GROUP][LANES];
    for (int o = 0; o < LANES; o++) top[o] = 1e-20f, least[o] = INFINITY; /* a group of zeros has zero codes under any scale */
    for (int k = 0; k < GROUP; k++)
        for (int o = 0; o < LANES; o++) {
            const uint32_t bits_of = (uint32_t)from[(k / 2 * wide + o) * 2 + k % 2] << 16;
            memcpy(&weight[k][o], &bits_of, 4);
            top[o] = fabsf(weight[k][o]) > top[o] ? fabsf(weight[k][o]) : top[o];
        }
    for (int clip = 0; clip < CLIPS; clip++) {
        const float share = 1.0f - (float)clip / 24;
        store(scale, widen(narrow(mul(load(top), all(share)))));
        encode(weight, scale, code, error);
        for (int o = 0; o < LANES; o++)
            if (error[o] < least[o]) {
                least[o] = error[o], best[o] = scale[o];
                for (int k = 0; k < GROUP; k++) kept[k][o] = code[k][o];
            }
    }
    narrow_store(scales, load(best));
    for (int k = 0; k < GROUP; k++)
        for (int o = 0; o < LANES; o++) codes[k / 8 * 64 + (2 * o + k % 2) * 2 + k % 8 / 4] |= (uint8_t)(kept[k][o] << (k % 4 / 2 * 4));
}

/* Quantize packed bfloat16 panels; `to` must hold foreword_coded_bytes zeros. */
void foreword_quantize(const bf16 *from, uint8_t *to, int64_t outputs, int64_t depth, int coding) {
    if (coding == BYTES) {
        encode_bytes(from, (char *)to, outputs, depth);
        return;
    }
    for (int64_t first = 0; first < outputs; first += LANES) {
        const int64_t whole = first / PANEL * PANEL, wide = outputs - whole < PANEL ? LANES : PANEL;
        uint8_t *scales = to + first / LANES * panel_bytes(depth), *codes = scales + depth / GROUP * LANES * 2;
        for (int64_t g = 0; g < depth / GROUP; g++)
            encode_group(from + whole * depth + (g * GROUP / 2 * wide + first - whole) * 2, wide, (bf16 *)scales + g * LANES, codes + g * LOADS * 64);
    }
}

int64_t foreword_coded_bytes(int64_t outputs, int64_t depth, int coding) {
    return coding == BYTES ? outputs * (depth + (int64_t)sizeof(float)) : outputs / LANES * panel_bytes(depth);
}

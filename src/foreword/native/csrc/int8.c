/* Products with 8-bit weights: rows are quantized to integers as well, so every sum is exact in any order.
 *
 * Each output and each row has its own scale. A panel is 32 outputs (the last may have 16): their scales in float32,
 * then their codes [depth / 4][32][4]. A row of `depth` factors is quantized in place: to 16-bit integers, or
 * for matrix registers to all high bytes, then all low bytes.
 */

#define QUAD 4 /* consecutive depths of an output */
#define TOP (127 * LOW) /* largest integer of a quantized row */

#define STRETCH 1024 /* depths whose sums of products fit in 32 bits; a multiple of QUAD */

/* Quantize a row to integers and return its scale. */
static float to_integers(factor *x, int64_t depth) {
    floats most = all(0);
    for (int64_t i = 0; i < depth; i += LANES) {
        const floats v = load_factors(x + i);
        most = maximum(most, maximum(v, sub(all(0), v)));
    }
    const int halves = in_halves(depth);
    const float limit = TOP, top = maximum_of(most);
    if (!(top > 0)) {
        memset(x, 0, depth * sizeof(int16_t));
        return 0;
    }
    const floats by = all(limit / top);
    char low[halves ? depth : 1], *to = (char *)x;
    for (int64_t i = 0; i < depth; i += LANES) {
        const floats whole = rounded(mul(load_factors(x + i), by));
        if (halves) {
            const floats high = rounded(mul(whole, all(1.0f / LOW)));
            store_bytes(to + i, high), store_bytes(low + i, sub(whole, mul(high, all(LOW))));
        } else store_words(to + 2 * i, whole);
    }
    if (halves) memcpy(to + depth, low, sizeof low);
    return top / limit;
}

/* R rows by P times 16 outputs. A load of codes is 8 outputs by 4 depths, so each sum is two adjacent partial sums. */
INLINE void byte_tile(const Product *p, int64_t row, int64_t panel, const int R, const int P) {
    const float *scales = (const float *)((const char *)p->weight + panel * byte_panel(p->depth));
    const int8_t *codes = (const int8_t *)(scales + P * LANES);
    const int64_t stride = p->depth * (int64_t)sizeof(factor);
    const char *x = (const char *)p->x + row * stride;
    const int side = 2 * R * P > SUMS ? 1 : P;
    floats out[MOST_CODED][2];
    double total[MOST_CODED][PANEL]; /* whole numbers, exact */
#pragma GCC unroll 2
    for (int from = 0; from < P; from += side)
        for (int64_t start = 0, stop; start < p->depth; start = stop) {
            stop = at_most(start + STRETCH, p->depth);
            counts sum[MOST_CODED][4];
#pragma GCC unroll 6
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int i = 0; i < 2 * side; i++) sum[r][i] = none();
            for (int64_t k = start / QUAD; k < stop / QUAD; k++) {
                words weight[4];
#pragma GCC unroll 4
                for (int i = 0; i < 2 * side; i++) {
                    const int8_t *at = codes + (k * P + from) * QUAD * LANES + i * 2 * LANES;
                    weight[i] = load_bytes(at);
                }
#pragma GCC unroll 2
                for (int i = 0; i < P && from == 0; i++) prefetch(codes + (k * P + i) * QUAD * LANES + 2048); /* for the other half too */
#pragma GCC unroll 6
                for (int r = 0; r < R; r++) {
                    const words four = four_words(x + r * stride + k * QUAD * (int64_t)sizeof(int16_t));
#pragma GCC unroll 4
                    for (int i = 0; i < 2 * side; i++) sum[r][i] = word_dot(sum[r][i], weight[i], four);
                }
            }
#pragma GCC unroll 6
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int i = 0; i < side; i++) {
                    const floats scale = mul(all(p->steps[row + r]), load(scales + (from + i) * LANES));
                    out[r][from + i] = mul(scale, pair_sums(sum[r][2 * i], sum[r][2 * i + 1], total[r] + (from + i) * LANES, start == 0, stop == p->depth));
                }
        }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) finish(p, row + r, panel * PANEL, out[r][0], out[r][P - 1], P);
}

#define BYTE_ROWS(n) case n: if (n > MOST_CODED) break; else if (wide) byte_tile(p, row, panel, n, 2); else byte_tile(p, row, panel, n, 1); break;
SUMS_STAY static void byte_coded(const Product *p, int64_t row, int64_t panel, int rows) {
    const int wide = (panel + 1) * PANEL <= p->outputs;
    switch (rows) { BYTE_ROWS(1) BYTE_ROWS(2) BYTE_ROWS(3) BYTE_ROWS(4) BYTE_ROWS(5) BYTE_ROWS(6) }
}

/* A panel times all rows. */
static void in_bytes(const Product *p, int64_t panel) {
    const int64_t passes = parts_of(p->rows, MOST_CODED), each = parts_of(p->rows, passes);
    for (int64_t row = 0; row < p->rows; row += each) byte_coded(p, row, panel, (int)(p->rows - row < each ? p->rows - row : each));
}

/* Quantize packed bfloat16 panels to 8 bits: the largest weight of an output is 127 steps of its scale. */
static void encode_bytes(const bf16 *from, char *to, int64_t outputs, int64_t depth) {
    for (int64_t first = 0; first < outputs; first += LANES) {
        const int64_t start = first / PANEL * PANEL, wide = outputs - start < PANEL ? LANES : PANEL;
        const bf16 *pair = from + start * depth + (first - start) * 2;
        float *scales = (float *)(to + start * (depth + (int64_t)sizeof(float)));
        int8_t *codes = (int8_t *)(scales + wide) + (first - start) * QUAD;
        floats top = all(1e-20f);
        for (int64_t k = 0; k < depth; k += 2, pair += 2 * wide) {
            const floats even = even_of(load_pairs(pair)), odd = odd_of(load_pairs(pair));
            top = maximum(top, maximum(maximum(even, sub(all(0), even)), maximum(odd, sub(all(0), odd))));
        }
        const floats scale = mul(top, all(1.0f / 127)), by = quotient(all(127), top);
        store(scales + first - start, scale);
        pair = from + start * depth + (first - start) * 2;
        for (int64_t k = 0; k < depth; k += 2, pair += 2 * wide) {
            float whole[2][LANES];
            store(whole[0], rounded(mul(even_of(load_pairs(pair)), by))), store(whole[1], rounded(mul(odd_of(load_pairs(pair)), by)));
            int8_t *at = codes + k / QUAD * wide * QUAD + k % QUAD;
            for (int o = 0; o < LANES; o++) at[o * QUAD] = (int8_t)whole[0][o], at[o * QUAD + 1] = (int8_t)whole[1][o];
        }
    }
}

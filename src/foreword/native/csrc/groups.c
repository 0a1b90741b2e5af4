/* Products with weights in groups: codes of 4 or 8 bits, whole-number levels, a scale for each group of an output's depths.
 *
 * weight = scale of the group * level of the code + offset of the group (model/quantized/coded.py). Rows are quantized to 8 bits
 * in the same groups, so the sum of a group is a whole number, exact in any order; groups are then added up in float32, the
 * first group first. So products have the same bits for any number of rows and on any processor.
 *
 * A matrix is a header, then strips of 16 outputs. A strip holds for every group its scales, its offsets and its codes, and
 * before each span of groups the numbers that the factors of two-level scales multiply. 64 bytes of 4-bit codes are 16 outputs by
 * 8 depths: byte 4 o + i belongs to output o, its low nibble to depth i and its high one to depth 4 + i. Of 8 bits they are 16
 * outputs by 4 depths, the levels themselves.
 */

/* A quantized row: codes [depth], then by group the scale of the codes, their sum, and the product of both. */
typedef struct {
    const int8_t *code;
    const float *step;
    const int32_t *sum;
    const float *moment;
} GroupedRow;

static inline GroupedRow grouped_row(const factor *x, int64_t depth, int64_t groups) {
    const int8_t *code = (const int8_t *)x;
    const float *step = (const float *)(code + depth);
    return (GroupedRow){code, step, (const int32_t *)(step + groups), step + 2 * groups};
}

/* Quantize a row in place. */
static void to_groups(factor *x, int64_t depth, int64_t size) {
    const int64_t groups = depth / size;
    float step[groups], moment[groups];
    int32_t sums[groups];
    int8_t *code = (int8_t *)x;
    for (int64_t g = 0; g < groups; g++) {
        floats most = all(0);
        for (int64_t i = 0; i < size; i += LANES) {
            const floats v = load_factors(x + g * size + i);
            most = maximum(most, maximum(v, sub(all(0), v)));
        }
        const float top = maximum_of(most);
        const floats by = all(top > 0 ? 127 / top : 0);
        int32_t sum = 0;
        for (int64_t i = 0; i < size; i += LANES) { /* codes take less room than what they replace, and trail it */
            int8_t *to = code + g * size + i;
            store_bytes(to, rounded(mul(load_factors(x + g * size + i), by)));
            for (int k = 0; k < LANES; k++) sum += to[k];
        }
        step[g] = top / 127, sums[g] = sum, moment[g] = step[g] * (float)sum;
    }
    memcpy(code + depth, step, sizeof step);
    memcpy(code + depth + sizeof step, sums, sizeof sums);
    memcpy(code + depth + sizeof step + sizeof sums, moment, sizeof moment);
}

/* Scales and offsets of a group of 16 outputs. */
typedef struct { floats scale, offset; } Fields;

/* Read the next scales or offsets. `by`: what bytes are multiplied by. */
INLINE floats field(int64_t kind, const char **at, floats by) {
    const char *from = *at;
    if (kind == BF16_FIELD) return *at += 32, widen(load_halves((const bf16 *)from));
    if (kind == F16_FIELD) return *at += 32, load_f16(from);
    if (kind == F32_FIELD) return *at += 64, load((const float *)from);
    return *at += 16, mul(load_signed((const int8_t *)from), by);
}

/* Read those of group g; `span` keeps where its span began. */
INLINE void next_fields(const Grouped *h, int64_t g, const char **at, const char **span, Fields *f) {
    const int scales = h->scale == FACTOR_FIELD, offsets = h->offset == FACTOR_FIELD;
    if (h->span && g % h->span == 0) *span = *at, *at += 64 * (scales + offsets);
    f->scale = field(h->scale, at, scales ? load((const float *)*span) : all(0));
    if (h->offset) f->offset = field(h->offset, at, h->offset == ZERO_FIELD ? f->scale : offsets ? load((const float *)*span + LANES * scales) : all(0));
}

/* Add the products of 16 outputs by 4 depths and R rows, whose codes are `stride` bytes apart. */
INLINE void add_products(counts *sum, codes levels, const char *near, int64_t stride, const int R) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        if (r && r % 3 == 0) near += 3 * stride;
        if (r % 3 == 0) AS_IT_IS(near);
        sum[r] = byte_dot(sum[r], levels, near + r % 3 * stride);
    }
}

/* Sums of R rows and one strip, in vector registers. */
INLINE void strip_tile(const Product *p, const Grouped *h, int64_t row, const char *at, floats *out, const int R, const int NIBBLES) {
    const int64_t groups = p->depth / h->group, loads = h->group * LANES / 64 / (NIBBLES ? 2 : 1), stride = p->depth * (int64_t)sizeof(factor);
    const GroupedRow x = grouped_row(p->x + row * p->depth, p->depth, groups);
    const codes levels = table_of(h->level);
    floats total[MOST_GROUPED];
    const char *span = at;
    Fields f = {all(0), all(0)};
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) total[r] = all(0);
    for (int64_t g = 0; g < groups; g++) {
        counts sum[MOST_GROUPED];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sum[r] = begun(*(const int32_t *)((const char *)(x.sum + g) + r * stride));
        next_fields(h, g, &at, &span, &f);
        const char *quad = (const char *)x.code + g * h->group;
        for (int64_t i = 0; i < loads; i++, at += 64) {
            const codes stored = load_codes(at), low = NIBBLES ? low_levels(levels, stored) : as_levels(stored);
            prefetch(at + 2048);
            add_products(sum, low, quad, stride, R);
            quad += QUAD;
            if (!NIBBLES) continue;
            const codes high = high_levels(levels, stored);
            add_products(sum, high, quad, stride, R);
            quad += QUAD;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const float step = *(const float *)((const char *)(x.step + g) + r * stride);
            total[r] = fused_exactly(whole_floats(sum[r]), mul(f.scale, all(step)), total[r]);
        }
        if (!h->offset) continue;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) total[r] = fused_exactly(f.offset, all(*(const float *)((const char *)(x.moment + g) + r * stride)), total[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) out[r] = total[r];
}

#define STRIP_ROWS(n) case n: if (n > MOST_GROUPED) break; else if (h->bits == 4) strip_tile(p, h, row, at, out, n, 1); else strip_tile(p, h, row, at, out, n, 0); break;
SUMS_STAY static void strip_sums(const Product *p, const Grouped *h, int64_t row, int rows, const char *at, floats *out) {
    switch (rows) { STRIP_ROWS(1) STRIP_ROWS(2) STRIP_ROWS(3) STRIP_ROWS(4) STRIP_ROWS(5) STRIP_ROWS(6) STRIP_ROWS(7) STRIP_ROWS(8) }
}

/* A panel times some rows, in vector registers. */
static void grouped_panel(const Product *p, const Grouped *h, int64_t row, int rows, int64_t panel) {
    const char *at = (const char *)p->weight + panel * 2 * h->strip;
    const int strips = (panel + 1) * PANEL <= p->outputs ? 2 : 1;
    floats out[2][MOST_GROUPED];
    for (int i = 0; i < strips; i++) strip_sums(p, h, row, rows, at + i * h->strip, out[i]);
    for (int r = 0; r < rows; r++) finish(p, row + r, panel * PANEL, out[0][r], out[strips - 1][r], strips);
}

#ifdef MATRICES

#define MOST_GROUP 128  /* depths of the largest group */
#define FEW_IN_MATRICES 5 /* rows from which on matrix registers are faster */

typedef struct { _Alignas(64) int8_t code[2][MOST_GROUP / QUAD][WIDTH]; } Widened; /* [strip][quad][output, depth] */

/* Widen the codes of one group of 16 outputs to levels. */
INLINE void widen_codes(const Grouped *h, codes levels, const char *at, int8_t (*to)[WIDTH]) {
    for (int64_t i = 0; i < h->group / (2 * QUAD); i++, at += 64) {
        const codes stored = load_codes(at);
        prefetch(at + 2048);
        _mm512_store_si512(to[2 * i], _mm512_shuffle_epi8(levels, _mm512_and_si512(stored, _mm512_set1_epi8(15))));
        _mm512_store_si512(to[2 * i + 1], _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srli_epi16(stored, 4), _mm512_set1_epi8(15))));
    }
}

/* Registers 0 to 3: sums of two strips, twice; 4: rows; 5 and 6: weights. */
static void shape_for_groups(int rows, int64_t group) {
    struct { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    const int64_t depth = at_most(group, WIDTH);
    for (int i = 0; i < 4; i++) shape.bytes[i] = 64, shape.rows[i] = (uint8_t)rows;
    shape.bytes[4] = (uint16_t)depth, shape.rows[4] = (uint8_t)rows;
    for (int i = 5; i < 7; i++) shape.bytes[i] = 64, shape.rows[i] = (uint8_t)(depth / QUAD);
    written(&shape);
    _tile_loadconfig(&shape);
}

/* Sums of one group of P strips times the rows, and their way to memory. */
#define MULTIPLY_GROUP(first, second)                            \
    do {                                                         \
        _tile_zero(first);                                       \
        if (P == 2) _tile_zero(second);                          \
        for (int64_t k = 0; k < h->group; k += WIDTH) {          \
            _tile_loadd(4, x.code + g * h->group + k, stride);   \
            _tile_loadd(5, ready[g & 1][0] + k * LANES, WIDTH);  \
            _tile_dpbssd(first, 4, 5);                           \
            if (P == 1) continue;                                \
            _tile_loadd(6, ready[g & 1][1] + k * LANES, WIDTH);  \
            _tile_dpbssd(second, 4, 6);                          \
        }                                                        \
    } while (0)
#define STORE_GROUP(first, second)                               \
    do {                                                         \
        _tile_stored(first, sums[(g - 1) & 1][0][0], WIDTH);     \
        if (P == 2) _tile_stored(second, sums[(g - 1) & 1][1][0], WIDTH); \
    } while (0)

/* At most 16 rows times a panel of P strips. While a group is multiplied, the codes of the next are widened, the sums of the last
 * go to memory and those of the one before are added up: each of these would wait for the one before it. */
INLINE void grouped_matrix(const Product *p, const Grouped *h, int64_t row, int rows, int64_t panel, const int P) {
    const int64_t groups = p->depth / h->group, stride = p->depth * (int64_t)sizeof(factor);
    const int64_t code_bytes = h->group * LANES * h->bits / 8;
    const GroupedRow x = grouped_row(p->x + row * p->depth, p->depth, groups);
    const codes levels = signed_table(h->level);
    const char *at[2] = {(const char *)p->weight + panel * 2 * h->strip, (const char *)p->weight + (panel * 2 + P - 1) * h->strip};
    const char *span[2] = {0, 0}, *ready[2][2];
    Widened scratch[2];
    _Alignas(64) int32_t sums[2][2][BLOCK][LANES];
    floats total[2][BLOCK];
    Fields fields[4][2]; /* by group and strip */
    for (int i = 0; i < P; i++)
        for (int r = 0; r < rows; r++) total[i][r] = all(0);
    for (int64_t g = -1; g < groups + 2; g++) {
        if (g + 1 < groups) { /* widen group g + 1 */
            const int turn = (g + 1) & 1;
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                next_fields(h, g + 1, at + i, span + i, &fields[(g + 1) & 3][i]);
                ready[turn][i] = at[i];
                if (h->bits == 4) widen_codes(h, levels, at[i], scratch[turn].code[i]), ready[turn][i] = (const char *)scratch[turn].code[i];
                else for (int64_t k = 0; k < code_bytes; k += 64) prefetch(at[i] + k + 2048);
                at[i] += code_bytes;
            }
            written(scratch);
        }
        if (g > 1) /* add up group g - 2 */
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                const Fields f = fields[(g - 2) & 3][i];
                const char *step = (const char *)(x.step + g - 2), *moment = (const char *)(x.moment + g - 2);
                for (int r = 0; r < rows; r++, step += stride, moment += stride) {
                    floats sum = fused(whole_floats(_mm512_load_si512(sums[g & 1][i][r])), mul(f.scale, all(*(const float *)step)), total[i][r]);
                    if (h->offset) sum = fused(f.offset, all(*(const float *)moment), sum);
                    total[i][r] = sum;
                }
            }
        if (g >= 0 && g < groups) {
            if (g & 1) MULTIPLY_GROUP(2, 3);
            else MULTIPLY_GROUP(0, 1);
        }
        if (g > 0 && g <= groups) {
            if (g & 1) STORE_GROUP(0, 1);
            else STORE_GROUP(2, 3);
        }
    }
    for (int r = 0; r < rows; r++) finish(p, row + r, panel * PANEL, total[0][r], total[P - 1][r], P);
}

static void in_grouped_matrices(const Product *p, const Grouped *h, Matrices *m, int64_t panel) {
    const int64_t passes = parts_of(p->rows, BLOCK), each = parts_of(p->rows, passes);
    for (int64_t row = 0; row < p->rows; row += each) {
        const int rows = (int)at_most(each, p->rows - row);
        if (rows != m->shaped) shape_for_groups(m->shaped = rows, h->group);
        if ((panel + 1) * PANEL <= p->outputs) grouped_matrix(p, h, row, rows, panel, 2);
        else grouped_matrix(p, h, row, rows, panel, 1);
    }
}

#endif

/* A panel times all rows. */
static void in_groups(const Product *p, Matrices *m, int64_t panel) {
    const Grouped *h = p->grouped;
#ifdef MATRICES
    if (matrix_registers && p->rows >= FEW_IN_MATRICES) {
        in_grouped_matrices(p, h, m, panel);
        return;
    }
#endif
    (void)m;
    const int64_t passes = parts_of(p->rows, MOST_GROUPED), each = parts_of(p->rows, passes);
    for (int64_t row = 0; row < p->rows; row += each) grouped_panel(p, h, row, (int)at_most(each, p->rows - row), panel);
}

/* ---- quantization of packed bfloat16 weights to 4 bits, or to 8 (int8.c) */

#define MOST 64  /* depths of the larger of two sizes of groups */
#define CLIPS 6  /* scales tried for a group; the largest weight may be cut by a few steps of 1/24 */

/* Quantiles of a normal distribution (NF4: Dettmers et al. 2023, appendix E) in whole 127ths, closer to that of weights than a
 * uniform grid. */
static const int8_t NORMAL[16] = {-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127};

static Grouped quantized(int64_t outputs, int64_t depth) {
    const int64_t size = depth % MOST ? MOST / 2 : MOST;
    Grouped h = {.bits = 4, .group = size, .scale = BF16_FIELD, .strip = depth / size * (LANES * 2 + LANES * size / 2)};
    h.matrix = (int64_t)sizeof h + outputs / LANES * h.strip;
    memcpy(h.level, NORMAL, sizeof NORMAL);
    return h;
}

/* Compute the codes of one group with a scale per output, and the sums of squared errors. */
static void encode(int64_t size, float weight[MOST][LANES], const float *scale, float code[MOST][LANES], float *error) {
    memset(error, 0, LANES * sizeof *error);
    for (int k = 0; k < size; k++) {
        const floats given = load(weight[k]), by = load(scale), x = quotient(given, by);
        floats level = all(NORMAL[0]), place = all(0);
#pragma GCC unroll 15
        for (int i = 0; i < 15; i++) { /* the nearest of NORMAL */
            const floats middle = all((float)(NORMAL[i] + NORMAL[i + 1]) / 2);
            level = add(level, where_above(x, middle, all((float)(NORMAL[i + 1] - NORMAL[i])))), place = add(place, where_above(x, middle, all(1)));
        }
        const floats off = fused_exactly(sub(all(0), level), by, given);
        store(code[k], place), store(error, fused_exactly(off, off, load(error)));
    }
}

/* Quantize 16 outputs by `size` depths; `wide` outputs are beside one another in `from`. */
static void encode_group(const bf16 *from, int64_t size, int64_t wide, bf16 *scales) {
    float weight[MOST][LANES], top[LANES], least[LANES], best[LANES], scale[LANES], error[LANES];
    float code[MOST][LANES], kept[MOST][LANES];
    uint8_t *codes = (uint8_t *)(scales + LANES);
    for (int o = 0; o < LANES; o++) top[o] = 1e-20f, least[o] = INFINITY; /* a group of zeros has zero codes under any scale */
    for (int k = 0; k < size; k++)
        for (int o = 0; o < LANES; o++) {
            const uint32_t bits_of = (uint32_t)from[(k / 2 * wide + o) * 2 + k % 2] << 16;
            memcpy(&weight[k][o], &bits_of, 4);
            top[o] = fabsf(weight[k][o]) > top[o] ? fabsf(weight[k][o]) : top[o];
        }
    for (int clip = 0; clip < CLIPS; clip++) {
        const float share = (1.0f - (float)clip / 24) / 127;
        store(scale, widen(narrow(mul(load(top), all(share)))));
        encode(size, weight, scale, code, error);
        for (int o = 0; o < LANES; o++)
            if (error[o] < least[o]) {
                least[o] = error[o], best[o] = scale[o];
                for (int k = 0; k < size; k++) kept[k][o] = code[k][o];
            }
    }
    narrow_store(scales, load(best));
    for (int k = 0; k < size; k++)
        for (int o = 0; o < LANES; o++) codes[k / 8 * 64 + o * QUAD + k % QUAD] |= (uint8_t)((int)kept[k][o] << (k % 8 / QUAD * 4));
}

/* Quantize packed bfloat16 panels; `to` must hold foreword_coded_bytes zeros. */
void foreword_quantize(const bf16 *from, uint8_t *to, int64_t outputs, int64_t depth, int coding) {
    if (coding == BYTES) {
        encode_bytes(from, (char *)to, outputs, depth);
        return;
    }
    const Grouped h = quantized(outputs, depth);
    memcpy(to, &h, sizeof h);
    for (int64_t first = 0; first < outputs; first += LANES) {
        const int64_t whole = first / PANEL * PANEL, wide = outputs - whole < PANEL ? LANES : PANEL;
        uint8_t *strip = to + sizeof h + first / LANES * h.strip;
        for (int64_t g = 0; g < depth / h.group; g++)
            encode_group(from + whole * depth + (g * h.group / 2 * wide + first - whole) * 2, h.group, wide, (bf16 *)(strip + g * (h.strip / (depth / h.group))));
    }
}

int64_t foreword_coded_bytes(int64_t outputs, int64_t depth, int coding) {
    return coding == BYTES ? outputs * (depth + (int64_t)sizeof(float)) : quantized(outputs, depth).matrix;
}

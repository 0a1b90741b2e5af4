/* Products with weights in groups, in matrix registers (AMX). */
#include "amx.h"
#include "groups.h"

#ifdef MATRICES

#define MOST_GROUP 128 /* depths of the largest group */

/* [strip][quad][output, depth]. */
typedef struct {
    _Alignas(64) int8_t code[2][MOST_GROUP / QUAD][WIDTH];
} Widened;

/* Widen the codes of one group of 16 outputs to levels; return where they end. */
INLINE const char *widen_codes(const Grouped *h, const Levels *levels, const char *at,
                               int8_t (*to)[WIDTH], const int FORM) {
    const int fours = fours_of(FORM), least = FORM == TABLE ? 0 : (int)h->least;
    for (int64_t i = 0; i < h->group / QUAD; i += fours, at += bytes_of(FORM)) {
        prefetch(at + 2048);
#pragma GCC unroll 8
        for (int four = 0; four < fours; four++)
            _mm512_store_si512(to[i + four], lifted(four_levels(levels, at, four, FORM), least));
    }
    return at;
}

/* The levels of the next group, widened where they are stored in fewer bits than 8. */
INLINE const char *open_codes(const Grouped *h, const Levels *levels, const char **at,
                              int8_t (*to)[WIDTH]) {
    const char *stored = *at;
    const int form = form_of(h);
    if (form == EIGHTS) {
        *at += h->group * LANES;
        for (int64_t k = 0; k < h->group * LANES; k += 64) prefetch(stored + k + 2048);
        return stored;
    }
    *at = form == TABLE   ? widen_codes(h, levels, stored, to, TABLE)
          : form == FOURS ? widen_codes(h, levels, stored, to, FOURS)
          : form == FIVES ? widen_codes(h, levels, stored, to, FIVES)
                          : widen_codes(h, levels, stored, to, SIXES);
    return (const char *)to[0];
}

/* Registers 0 to 3: sums of two strips, twice; 4: rows; 5 and 6: weights. */
static void shape_for_groups(int rows, int64_t group) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    const int64_t depth = at_most(group, WIDTH);
    for (int i = 0; i < 4; i++) shape.bytes[i] = 64, shape.rows[i] = (uint8_t)rows;
    shape.bytes[4] = (uint16_t)depth, shape.rows[4] = (uint8_t)rows;
    for (int i = 5; i < 7; i++) shape.bytes[i] = 64, shape.rows[i] = (uint8_t)(depth / QUAD);
    written(&shape);
    _tile_loadconfig(&shape);
}

/* Sums of one group of P strips times the rows, and their way to memory. */
#define MULTIPLY_GROUP(first, second)                                                              \
    do {                                                                                           \
        _tile_zero(first);                                                                         \
        if (P == 2) _tile_zero(second);                                                            \
        for (int64_t k = 0; k < h->group; k += WIDTH) {                                            \
            _tile_loadd(4, x.code + g * h->group + k, stride);                                     \
            _tile_loadd(5, ready[g & 1][0] + k * LANES, WIDTH);                                    \
            _tile_dpbssd(first, 4, 5);                                                             \
            if (P == 1) continue;                                                                  \
            _tile_loadd(6, ready[g & 1][1] + k * LANES, WIDTH);                                    \
            _tile_dpbssd(second, 4, 6);                                                            \
        }                                                                                          \
    } while (0)
#define STORE_GROUP(first, second)                                                                 \
    do {                                                                                           \
        _tile_stored(first, sums[(g - 1) & 1][0][0], WIDTH);                                       \
        if (P == 2) _tile_stored(second, sums[(g - 1) & 1][1][0], WIDTH);                          \
    } while (0)

/* Sums of one strip, whose groups are added up as in_floats and in_spans do (groups.c). */
typedef struct {
    floats total[BLOCK];
    counts whole[BLOCK];     /* in the span */
    counts moment[2][BLOCK]; /* of offsets, in the last two spans */
    SpanFactors factors;
} Summed;

/* What a group is multiplied by. */
typedef struct {
    Fields f;
    counts factor; /* in whole numbers; f has what factors multiply */
} Scaled;

/* Read the numbers of the next group of a strip; at the end of a span, add up its offsets. */
INLINE void next_numbers(const Grouped *h, const GroupedRow *x, int64_t stride, int rows, int64_t g,
                         const char **at, Spanned *span, Scaled *n, Summed *s) {
    if (!in_whole_numbers(h)) {
        next_fields(h, at, span, &n->f);
        return;
    }
    const int64_t i = g % h->span, offsets = h->offset ? LANES : 0;
    SpanFactors *f = &s->factors;
    if (!i) f->top = (const float *)*at, *at += 4 * (LANES + offsets);
    const int8_t *factor = (const int8_t *)*at;
    n->f.scale = load(f->top), n->factor = signed_counts(factor);
    *at += LANES + offsets;
    if (!offsets) return;
    n->f.offset = load(f->top + LANES);
    if (i % 2) f->shifts[i / 2] = paired(f->before + LANES, factor + LANES);
    f->before = factor;
    if (i < h->span - 1) return;
    const int16_t *sums = x->sum + g - i;
    counts *moment = s->moment[g / h->span & 1];
    for (int r = 0; r < rows; r++) moment[r] = begun(0);
    add_moments(moment, f->shifts, sums, h->span, stride, rows);
}

/* Add the sums of a group. */
INLINE void add_up(const Grouped *h, const GroupedRow *x, int64_t stride, int rows, int64_t g,
                   int32_t (*sums)[LANES], const Scaled *n, Summed *s) {
    const int whole = in_whole_numbers(h);
    const Fields f = n->f;
    for (int r = 0; r < rows; r++) {
        const counts sum = _mm512_load_si512(sums[r]);
        if (!whole) {
            const floats by = mul(f.scale, all(OF_ROW(x->step + g, float)));
            s->total[r] = fused(whole_floats(sum), by, s->total[r]);
            if (h->offset)
                s->total[r] = fused(f.offset, all(OF_ROW(x->moment + g, float)), s->total[r]);
            continue;
        }
        const int32_t bits = OF_ROW(x->begin + 2 * g + 1, int32_t);
        s->whole[r] = plus(s->whole[r], shifted(multiplied(sum, n->factor), bits));
        if ((g + 1) % h->span) continue;
        const int64_t at = g / h->span;
        floats scaled = mul(whole_floats(s->whole[r]), f.scale);
        if (h->offset) scaled = fused(whole_floats(s->moment[at & 1][r]), f.offset, scaled);
        s->total[r] = fused(scaled, all(OF_ROW(x->step + at, float)), s->total[r]);
        s->whole[r] = begun(0);
    }
}

/* At most 16 rows times a panel of P strips. While a group is multiplied, the codes of the next are
 * widened, the sums of the last go to memory and those of the one before are added up: each of
 * these would wait for the one before it. */
INLINE void grouped_matrix(const Product *p, const Grouped *h, int64_t row, int rows, int64_t panel,
                           const int P) {
    const int64_t groups = p->depth / h->group, stride = p->depth * (int64_t)sizeof(factor);
    const GroupedRow x = grouped_row(p->x + row * p->depth, p->depth, h);
    const Levels levels = levels_of(h, 0);
    const char *first = (const char *)p->weight + place_of(p, panel) * 2 * h->strip;
    const char *at[2] = {first, first + (P - 1) * h->strip};
    const char *ready[2][2];
    Spanned span[2] = {{0, 0}, {0, 0}};
    Widened scratch[2];
    _Alignas(64) int32_t sums[2][2][BLOCK][LANES];
    Summed summed[2];
    Scaled numbers[4][2]; /* by group and strip */
    for (int i = 0; i < P; i++)
        for (int r = 0; r < rows; r++) {
            summed[i].total[r] = all(0);
            summed[i].whole[r] = begun(0);
        }
    for (int64_t g = -1; g < groups + 2; g++) {
        if (g + 1 < groups) { /* widen group g + 1 */
            const int turn = (g + 1) & 1;
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                next_numbers(h, &x, stride, rows, g + 1, at + i, span + i, &numbers[(g + 1) & 3][i],
                             summed + i);
                ready[turn][i] = open_codes(h, &levels, at + i, scratch[turn].code[i]);
            }
            written(scratch);
        }
        if (g > 1) /* add up group g - 2 */
#pragma GCC unroll 2
            for (int i = 0; i < P; i++)
                add_up(h, &x, stride, rows, g - 2, sums[g & 1][i], &numbers[(g - 2) & 3][i],
                       summed + i);
        if (g >= 0 && g < groups) {
            if (g & 1) MULTIPLY_GROUP(2, 3);
            else MULTIPLY_GROUP(0, 1);
        }
        if (g > 0 && g <= groups) {
            if (g & 1) STORE_GROUP(0, 1);
            else STORE_GROUP(2, 3);
        }
    }
    for (int r = 0; r < rows; r++)
        finish(p, row + r, panel * PANEL, summed[0].total[r], summed[P - 1].total[r], P);
}

/* A panel times all rows. */
static void in_grouped_matrices(const Product *p, Matrices *m, int64_t row, int64_t last,
                                int64_t panel, const char *next) {
    const Grouped *h = p->grouped;
    const int64_t passes = parts_of(last - row, BLOCK), each = parts_of(last - row, passes);
    (void)next;
    for (; row < last; row += each) {
        const int rows = (int)at_most(each, last - row);
        if (rows != m->shaped) shape_for_groups(m->shaped = rows, h->group);
        if ((panel + 1) * PANEL <= p->outputs) grouped_matrix(p, h, row, rows, panel, 2);
        else grouped_matrix(p, h, row, rows, panel, 1);
    }
}

INTERNAL const Coding groups_in_matrices = {.turn = in_grouped_matrices, .bytes = group_bytes};

#endif

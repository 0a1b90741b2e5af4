/* Products with weights in groups, in matrix registers (AMX). */
#include "amx.h"
#include "groups.h"

#ifdef MATRICES

#define MOST_GROUP 128 /* depths of the largest group */

/* [strip][quad][output, depth]. */
typedef struct {
    _Alignas(64) int8_t code[2][MOST_GROUP / QUAD][WIDTH];
} Widened;

/* Widen the codes of one group of 16 outputs to levels. */
INLINE void widen_codes(const Grouped *h, const Levels *levels, const char *at, int8_t (*to)[WIDTH],
                        const int BITS) {
    const int fours = fours_of(BITS);
    for (int64_t i = 0; i < h->group / QUAD; i += fours, at += 8 * BITS * fours) {
        prefetch(at + 2048);
#pragma GCC unroll 8
        for (int four = 0; four < fours; four++)
            _mm512_store_si512(to[i + four], four_levels(levels, at, four, BITS));
    }
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

/* At most 16 rows times a panel of P strips. While a group is multiplied, the codes of the next are
 * widened, the sums of the last go to memory and those of the one before are added up: each of
 * these would wait for the one before it. */
INLINE void grouped_matrix(const Product *p, const Grouped *h, int64_t row, int rows, int64_t panel,
                           const int P) {
    const int64_t groups = p->depth / h->group, stride = p->depth * (int64_t)sizeof(factor);
    const int64_t code_bytes = h->group * LANES * h->bits / 8;
    const GroupedRow x = grouped_row(p->x + row * p->depth, p->depth, h);
    const Levels levels = levels_of(h, 0);
    const char *first = (const char *)p->weight + place_of(p, panel) * 2 * h->strip;
    const char *at[2] = {first, first + (P - 1) * h->strip};
    const char *ready[2][2];
    Spanned span[2] = {{0, 0}, {0, 0}};
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
                next_fields(h, at + i, span + i, &fields[(g + 1) & 3][i]);
                ready[turn][i] = at[i];
                int8_t(*to)[WIDTH] = scratch[turn].code[i];
                if (h->bits == 4) widen_codes(h, &levels, at[i], to, 4);
                else if (h->bits == 5) widen_codes(h, &levels, at[i], to, 5);
                else if (h->bits == 6) widen_codes(h, &levels, at[i], to, 6);
                if (h->bits < 8) ready[turn][i] = (const char *)to[0];
                else
                    for (int64_t k = 0; k < code_bytes; k += 64) prefetch(at[i] + k + 2048);
                at[i] += code_bytes;
            }
            written(scratch);
        }
        if (g > 1) /* add up group g - 2 */
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                const Fields f = fields[(g - 2) & 3][i];
                const char *step = (const char *)(x.step + g - 2),
                           *moment = (const char *)(x.moment + g - 2);
                for (int r = 0; r < rows; r++, step += stride, moment += stride) {
                    floats sum = fused(whole_floats(_mm512_load_si512(sums[g & 1][i][r])),
                                       mul(f.scale, all(*(const float *)step)), total[i][r]);
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
    for (int r = 0; r < rows; r++)
        finish(p, row + r, panel * PANEL, total[0][r], total[P - 1][r], P);
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

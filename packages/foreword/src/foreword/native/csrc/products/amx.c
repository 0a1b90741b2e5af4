/* Products in matrix registers (AMX): 16 rows by 16 outputs by 32 depths an instruction, or 64
 * depths with 8-bit weights.
 *
 * A sum of bfloat16 takes its depths 32 at a time, alternating between the first half and the
 * second, for any number of rows. That is not the order of panel.c, so all products of a process
 * are computed here, or none. A quantized row (int8.c) is two rows here: its high bytes, then its
 * low bytes.
 */
#include "amx.h"

#include "int8.h"

#ifdef MATRICES
#include <sys/syscall.h>
#include <unistd.h>

INTERNAL int matrix_registers;

/* Registers 0 to 3 hold sums, 4 to 7 rows and weights. With two blocks of rows, 0, 1 and 4 belong
 * to the first, which is full. They have only as many lines as there are rows, so nothing beyond
 * these is read. */
INTERNAL void shape_registers(int rows) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    const uint8_t first = (uint8_t)(rows < BLOCK ? rows : BLOCK), second = (uint8_t)(rows - first);
    const uint8_t sizes[2][8] = {{first, first, first, first, first, 16, 16, 16},
                                 {first, first, second, second, first, second, 16, 16}};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = sizes[second > 0][i];
    written(&shape);
    _tile_loadconfig(&shape);
}

INTERNAL void release_registers(void) { _tile_release(); }

/* The operands: rows, the codes of a panel, and the distance in bytes to the next panel. */
typedef struct {
    const char *x, *w;
    int64_t stride, panel_stride;
} Factors;

#define TIMES(sum, rows, weights)                                                                  \
    do {                                                                                           \
        if (B) _tile_dpbssd(sum, rows, weights);                                                   \
        else _tile_dpbf16ps(sum, rows, weights);                                                   \
    } while (0)

/* The `k`th step of R blocks of rows times P times 16 outputs; P = 4 is two panels. B: 8-bit
 * weights. */
INLINE void multiply(const Factors *f, int64_t k, const int R, const int P, const int B) {
    const char *x = f->x + k * WIDTH, *w = f->w + k * (P == 1 ? 1 : 2) * BLOCK * WIDTH;
    fetch(w + NEAR, 16);
    _tile_loadd(4, x, f->stride);
    if (R == 2) _tile_loadd(5, x + BLOCK * f->stride, f->stride);
    _tile_loadd(6, w, P == 1 ? 64 : 128);
    TIMES(0, 4, 6);
    if (R == 2) TIMES(2, 5, 6);
    if (P == 1) return;
    fetch(w + NEAR + 1024, 16);
    _tile_loadd(7, w + 64, 128);
    TIMES(1, 4, 7);
    if (R == 2) TIMES(3, 5, 7);
    if (P == 2) return;
    w += f->panel_stride;
    fetch(w + NEAR, 16);
    _tile_loadd(5, w, 128);
    TIMES(2, 4, 5);
    fetch(w + NEAR + 1024, 16);
    _tile_loadd(6, w + 64, 128);
    TIMES(3, 4, 6);
}

/* Combine sums of high and low bytes, times the scales of the row and the outputs: the exact sum,
 * rounded once, as in int8.c. */
INLINE floats counted(const int32_t *high, const int32_t *low, float step, const float *scales) {
    __m256 sum[2];
    for (int i = 0; i < 2; i++) {
        const __m512d above =
                          _mm512_cvtepi32_pd(_mm256_load_si256((const __m256i *)(high + 8 * i))),
                      below = _mm512_cvtepi32_pd(_mm256_load_si256((const __m256i *)(low + 8 * i)));
        sum[i] = _mm512_cvtpd_ps(_mm512_fmadd_pd(above, _mm512_set1_pd(LOW), below));
    }
    return mul(mul(all(step), load(scales)),
               _mm512_insertf32x8(_mm512_castps256_ps512(sum[0]), sum[1], 1));
}

INLINE Factors factors_of(const Product *p, int64_t row, int64_t panel, const int P, const int B) {
    const int64_t depth = p->depth, panel_stride = B ? byte_panel(depth) : 2 * PANEL * depth;
    const char *at = (const char *)p->weight + place_of(p, panel) * panel_stride;
    return (Factors){(const char *)(p->x + row * depth),
                     B ? at + (P == 1 ? 1 : 2) * LANES * sizeof(float) : at, B ? depth : 2 * depth,
                     panel_stride};
}

INLINE void begin_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Store the sums of row `row` of one panel, or of 16 outputs; sums of low bytes are `width`
 * further. */
INLINE void put(const Product *p, int64_t row, int64_t panel, const float *sums, int64_t width,
                const int P, const int B) {
    const int64_t place = place_of(p, panel) * byte_panel(p->depth);
    const float *scales = (const float *)((const char *)p->weight + place);
    floats sum[2] = {all(0), all(0)};
    for (int i = 0; i < P; i++)
        sum[i] = B ? counted((const int32_t *)sums + i * LANES,
                             (const int32_t *)sums + width + i * LANES, p->steps[row],
                             scales + i * LANES)
                   : load(sums + i * LANES);
    finish(p, row, panel * PANEL, sum[0], sum[P - 1], P);
}

/* `rows` rows, which are R blocks, by P times 16 outputs. At the end prefetches the start of
 * `next`. */
INLINE void matrix(const Product *p, int64_t row, int rows, int64_t panel, const char *next,
                   const int R, const int P, const int B) {
    const int64_t depth = p->depth, steps = B ? depth / WIDTH : depth / STEP, half = steps / 2,
                  bytes = P == 1 ? 64 * 16 : 128 * 16;
    const Factors f = factors_of(p, row, panel, P, B);
    _Alignas(64) float sums[R * BLOCK][P * LANES];
    begin_sums();
    for (int64_t k = 0; k < half; k++) {
        multiply(&f, k, R, P, B);
        multiply(&f, half + k, R, P, B);
        if (k >= half - EARLY) wake_unit();
    }
    if (steps % 2) multiply(&f, 2 * half, R, P, B);
    fetch(next, 16), fetch(next + half * bytes, 16);
    if (P == 4) fetch(next + f.panel_stride, 16), fetch(next + f.panel_stride + half * bytes, 16);
    _tile_stored(0, sums[0], sizeof sums[0]);
    if (P > 1) _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
    if (R == 2) _tile_stored(2, sums[BLOCK], sizeof sums[0]);
    if (P == 4) {
        _tile_stored(2, sums[0] + 2 * LANES, sizeof sums[0]);
        _tile_stored(3, sums[0] + 3 * LANES, sizeof sums[0]);
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < P; i += 2)
            put(p, row + r, panel + i / 2, sums[B ? 2 * r : r] + i * LANES, P * LANES,
                P > 1 ? 2 : 1, B);
}

INLINE void put_next(const Product *p, Due *due, const int B) {
    put(p, due->row + due->done, due->panel, due->sums[B ? 2 * due->done : due->done], PANEL, 2, B);
    due->done++;
}

/* More than `BLOCK` rows by a panel. */
INLINE void square(const Product *p, Matrices *m, int64_t row, int rows, int64_t panel,
                   const char *next, const int B) {
    const int64_t steps = B ? p->depth / WIDTH : p->depth / STEP, half = steps / 2;
    const Factors f = factors_of(p, row, panel, 2, B);
    Due *before = m->due + m->turn, *due = m->due + (m->turn ^= 1);
    begin_sums();
    for (int64_t k = 0; k < half; k++) {
        multiply(&f, k, 2, 2, B);
        multiply(&f, half + k, 2, 2, B);
        if (k >= half - EARLY) wake_unit();
        while (before->done * half < before->rows * (k + 1)) put_next(p, before, B);
    }
    if (steps % 2) multiply(&f, 2 * half, 2, 2, B);
    while (before->done < before->rows) put_next(p, before, B); /* if there was a single step */
    fetch(next, 16), fetch(next + 128 * 16 * half, 16);
    _tile_stored(0, due->sums[0], sizeof due->sums[0]);
    _tile_stored(1, due->sums[0] + LANES, sizeof due->sums[0]);
    _tile_stored(2, due->sums[BLOCK], sizeof due->sums[0]);
    _tile_stored(3, due->sums[BLOCK] + LANES, sizeof due->sums[0]);
    written(due->sums);
    due->row = row, due->panel = panel, due->rows = rows, due->done = 0;
}

/* The panels taken together, two or one, times the rows [from, to). */
INLINE void in_registers(const Product *p, Matrices *m, int64_t from, int64_t to, int64_t panel,
                         const char *next, const int B) {
    const int64_t most = B ? MOST_ROWS / 2 : MOST_ROWS, few = most / 2;
    const int64_t passes = parts_of(to - from, most), each = parts_of(to - from, passes);
    const int64_t left = p->outputs - panel * PANEL;
    for (int64_t row = from; row < to; row += each) {
        const int rows = (int)(to - row < each ? to - row : each), held = B ? 2 * rows : rows;
        if (held != m->shaped) shape_registers(m->shaped = held);
        if (rows > few && left >= PANEL) square(p, m, row, rows, panel, next, B);
        else if (rows > few) matrix(p, row, rows, panel, next, 2, 1, B);
        else if (left >= 2 * PANEL && p->rows <= few) matrix(p, row, rows, panel, next, 1, 4, B);
        else {
            if (left >= PANEL) matrix(p, row, rows, panel, next, 1, 2, B);
            else matrix(p, row, rows, panel, next, 1, 1, B);
            if (p->rows <= few && left > PANEL) matrix(p, row, rows, panel + 1, next, 1, 1, B);
        }
    }
}

static void whole_turn(const Product *p, Matrices *m, int64_t row, int64_t last, int64_t panel,
                       const char *next) {
    in_registers(p, m, row, last, panel, next, 0);
}
static void byte_turn(const Product *p, Matrices *m, int64_t row, int64_t last, int64_t panel,
                      const char *next) {
    in_registers(p, m, row, last, panel, next, 1);
}

static const Coding whole_in_matrices = {
    .turn = whole_turn, .bytes = whole_bytes, .pair = BLOCK, .banded = 1};
static const Coding bytes_in_matrices = {
    .turn = byte_turn, .bytes = byte_bytes, .pair = BLOCK / 2, .banded = 1};

#define FEW_IN_MATRICES                                                                            \
    5 /* rows of a product in groups from which on matrix registers are faster */

INTERNAL const Coding *matrix_coding(const Product *p) {
    if (!matrix_registers) return 0;
    if (p->coding == BYTES) return p->depth % WIDTH ? 0 : &bytes_in_matrices;
    if (p->coding == GROUPS) return p->rows < FEW_IN_MATRICES ? 0 : &groups_in_matrices;
    return p->depth % STEP ? 0 : &whole_in_matrices;
}

INTERNAL void begin_product(Matrices *m) {
    m->turn = m->shaped = 0;
    for (int i = 0; i < 2; i++) m->due[i].rows = m->due[i].done = 0;
}

INTERNAL void put_due(const Product *p, Matrices *m) {
    Due *due = m->due + m->turn;
    while (due->done < due->rows)
        if (p->coding == BYTES) put_next(p, due, 1);
        else put_next(p, due, 0);
}

INTERNAL void end_product(const Matrices *m) {
    if (m->shaped) release_registers();
}

/* Turn AMX on or off; return whether it is on, which the operating system must allow. */
int foreword_use_amx(int enabled) {
    const long request = 0x1023, registers = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return matrix_registers = enabled && syscall(SYS_arch_prctl, request, registers) == 0;
}

int foreword_uses_amx(void) { return matrix_registers; }

#else

int foreword_use_amx(int enabled) { return (void)enabled, 0; }
int foreword_uses_amx(void) { return 0; }

#endif

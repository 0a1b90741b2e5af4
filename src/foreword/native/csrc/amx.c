/* Products in matrix registers (AMX): 16 rows by 16 outputs by 32 depths an instruction, or 64 depths with 8-bit weights.
 *
 * A sum of bfloat16 takes its depths 32 at a time, alternating between the first half and the second, for any number of
 * rows. That is not the order of panel.c, so all products of a process are computed here, or none. A quantized row (int8.c)
 * is two rows here: its high bytes, then its low bytes.
 */
#define STEP 32         /* bfloat16 of one register of weights */
#define WIDTH 64        /* bytes of a row in a register */
#define BLOCK 16        /* rows of one register */
#define NEAR 1024       /* bytes of prefetch distance; more and less were both slower */
#define MOST_ROWS (2 * BLOCK)
#define EARLY 3         /* loop iterations before its sums are stored: see wake_unit */
#define LOW 128         /* value of one unit of a high byte */

#if (defined __AMX_BF16__ && defined __AMX_INT8__) || (defined __AMXBF16__ && defined __AMXINT8__) /* names in older clangs */
#define MATRICES
#endif

static inline int64_t byte_panel(int64_t depth) { return PANEL * (depth + (int64_t)sizeof(float)); } /* bytes of an 8-bit panel: scales, then codes */

#ifdef MATRICES
#include <sys/syscall.h>

static int matrix_registers; /* set by foreword_use_amx */

/* Whether rows are quantized to separate high and low bytes. */
static inline int in_halves(int64_t depth) { return matrix_registers && depth % WIDTH == 0; }

static inline int in_matrices(const Product *p) {
    return p->coding == BYTES ? in_halves(p->depth) : matrix_registers && p->coding == WHOLE && p->depth % STEP == 0;
}

/* Compiler barrier: earlier stores are in memory. Not every compiler knows that the AMX intrinsics read memory. */
static inline void written(const void *at) { __asm__ volatile("" : : "r"(at) : "memory"); }

/* Registers 0 to 3 hold sums, 4 to 7 rows and weights. With two blocks of rows, 0, 1 and 4 belong to the first, which is full.
 * They have only as many lines as there are rows, so nothing beyond these is read. */
static void shape_registers(int rows) {
    struct { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    const uint8_t first = (uint8_t)(rows < BLOCK ? rows : BLOCK), second = (uint8_t)(rows - first);
    const uint8_t sizes[2][8] = {{first, first, first, first, first, 16, 16, 16}, {first, first, second, second, first, second, 16, 16}};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = sizes[second > 0][i];
    written(&shape);
    _tile_loadconfig(&shape);
}

static inline __attribute__((always_inline)) void fetch(const char *at, int lines) {
#pragma GCC unroll 16
    for (int i = 0; i < lines; i++) _mm_prefetch(at + 64 * i, _MM_HINT_T0);
}

static void release_registers(void) { _tile_release(); }

/* The operands: rows, the codes of a panel, and the distance in bytes to the next panel. */
typedef struct {
    const char *x, *w;
    int64_t stride, panel_stride;
} Factors;

#define TIMES(sum, rows, weights) do { if (B) _tile_dpbssd(sum, rows, weights); else _tile_dpbf16ps(sum, rows, weights); } while (0)

/* The `k`th step of R blocks of rows times P times 16 outputs; P = 4 is two panels. B: 8-bit weights. */
static inline __attribute__((always_inline)) void multiply(const Factors *f, int64_t k, const int R, const int P, const int B) {
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

/* Combine sums of high and low bytes, times the scales of the row and the outputs: the exact sum, rounded once, as in int8.c. */
static inline __attribute__((always_inline)) floats counted(const int32_t *high, const int32_t *low, float step, const float *scales) {
    __m256 sum[2];
    for (int i = 0; i < 2; i++) {
        const __m512d above = _mm512_cvtepi32_pd(_mm256_load_si256((const __m256i *)(high + 8 * i))), below = _mm512_cvtepi32_pd(_mm256_load_si256((const __m256i *)(low + 8 * i)));
        sum[i] = _mm512_cvtpd_ps(_mm512_fmadd_pd(above, _mm512_set1_pd(LOW), below));
    }
    return mul(mul(all(step), load(scales)), _mm512_insertf32x8(_mm512_castps256_ps512(sum[0]), sum[1], 1));
}

static inline __attribute__((always_inline)) Factors factors_of(const Product *p, int64_t row, int64_t panel, const int P, const int B) {
    const int64_t depth = p->depth, panel_stride = B ? byte_panel(depth) : 2 * PANEL * depth;
    const char *at = (const char *)p->weight + panel * panel_stride;
    return (Factors){(const char *)(p->x + row * depth), B ? at + (P == 1 ? 1 : 2) * LANES * sizeof(float) : at, B ? depth : 2 * depth, panel_stride};
}

static inline __attribute__((always_inline)) void begin_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Store the sums of row `row` of one panel, or of 16 outputs; sums of low bytes are `width` further. */
static inline __attribute__((always_inline)) void put(const Product *p, int64_t row, int64_t panel, const float *sums, int64_t width, const int P, const int B) {
    const float *scales = (const float *)((const char *)p->weight + panel * byte_panel(p->depth));
    floats sum[2] = {all(0), all(0)};
    for (int i = 0; i < P; i++)
        sum[i] = B ? counted((const int32_t *)sums + i * LANES, (const int32_t *)sums + width + i * LANES, p->steps[row], scales + i * LANES) : load(sums + i * LANES);
    finish(p, row, panel * PANEL, sum[0], sum[P - 1], P);
}

/* `rows` rows, which are R blocks, by P times 16 outputs. At the end prefetches the start of `next`. */
static inline __attribute__((always_inline)) void matrix(const Product *p, int64_t row, int rows, int64_t panel, const char *next, const int R, const int P, const int B) {
    const int64_t depth = p->depth, steps = B ? depth / WIDTH : depth / STEP, half = steps / 2, bytes = P == 1 ? 64 * 16 : 128 * 16;
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
        for (int i = 0; i < P; i += 2) put(p, row + r, panel + i / 2, sums[B ? 2 * r : r] + i * LANES, P * LANES, P > 1 ? 2 : 1, B);
}

/* Sums of a panel times two blocks of rows, stored to their place while the next ones are multiplied. */
typedef struct {
    _Alignas(64) float sums[MOST_ROWS][PANEL];
    int64_t row, panel;
    int rows, done;
} Due;

/* State of a thread during a product. */
typedef struct {
    Due due[2];
    int turn;   /* the one filled last */
    int shaped; /* rows that the registers are shaped for; 0 = not shaped yet */
} Matrices;

static inline __attribute__((always_inline)) void put_next(const Product *p, Due *due, const int B) {
    put(p, due->row + due->done, due->panel, due->sums[B ? 2 * due->done : due->done], PANEL, 2, B);
    due->done++;
}

/* More than `BLOCK` rows by a panel. */
static inline __attribute__((always_inline)) void square(const Product *p, Matrices *m, int64_t row, int rows, int64_t panel, const char *next, const int B) {
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
static inline __attribute__((always_inline)) void in_registers_as(const Product *p, Matrices *m, int64_t from, int64_t to, int64_t panel, const char *next, const int B) {
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

static void in_registers(const Product *p, Matrices *m, int64_t from, int64_t to, int64_t panel, const char *next) {
    if (p->coding == BYTES) in_registers_as(p, m, from, to, panel, next, 1);
    else in_registers_as(p, m, from, to, panel, next, 0);
}

static void begin_product(Matrices *m) {
    m->turn = m->shaped = 0;
    for (int i = 0; i < 2; i++) m->due[i].rows = m->due[i].done = 0;
}

/* Store all sums that are still pending. */
static void put_due(const Product *p, Matrices *m) {
    Due *due = m->due + m->turn;
    while (due->done < due->rows)
        if (p->coding == BYTES) put_next(p, due, 1);
        else put_next(p, due, 0);
}

static void end_product(const Matrices *m) {
    if (m->shaped) release_registers();
}

/* Turn AMX on or off; return whether it is on, which the operating system must allow. */
int foreword_use_amx(int enabled) {
    const long request = 0x1023, registers = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return matrix_registers = enabled && syscall(SYS_arch_prctl, request, registers) == 0;
}

int foreword_uses_amx(void) { return matrix_registers; }

#else

static inline int in_halves(int64_t depth) { return (void)depth, 0; }
static inline int in_matrices(const Product *p) { return (void)p, 0; }
typedef struct { char none; } Matrices;

static void begin_product(Matrices *m) { (void)m; }
static void put_due(const Product *p, Matrices *m) { (void)p, (void)m; }
static void end_product(const Matrices *m) { (void)m; }
static void in_registers(const Product *p, Matrices *m, int64_t from, int64_t to, int64_t panel, const char *next) { (void)p, (void)m, (void)from, (void)to, (void)panel, (void)next; }
int foreword_use_amx(int enabled) { return (void)enabled, 0; }
int foreword_uses_amx(void) { return 0; }

#endif

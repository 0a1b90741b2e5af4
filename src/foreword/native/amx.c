/* Products of bfloat16 weights in matrix registers (AMX): 16 rows by 16 outputs by 32 depths an instruction.
 *
 * A sum takes its depths 32 at a time, in turn from the first half and from the second, whatever the number of rows. That
 * is not the order of llama.c, so all products of a process are made here, or none.
 */
#define STEP 32         /* depths of one register of weights */
#define BLOCK 16        /* rows of one register */
#define NEAR 1024       /* bytes ahead of what is multiplied; more or less of them was slower, in every arrangement */
#define MOST_ROWS (2 * BLOCK)

#if defined __AMX_BF16__ || defined __AMXBF16__ /* as older clangs have it */
#define MATRICES
#endif

#ifdef MATRICES
#include <sys/syscall.h>

static int matrix_registers; /* may be used: foreword_use_amx */

static inline int in_matrices(const Product *p) { return matrix_registers && p->coding == WHOLE && p->depth % STEP == 0; }

/* What was stored before is in memory now: the intrinsics that read memory do not say so to every compiler. */
static inline void written(const void *at) { __asm__ volatile("" : : "r"(at) : "memory"); }

/* Registers 0 to 3 hold sums, 4 to 7 rows and weights. Of two blocks of rows 0, 1 and 4 belong to the first, which is full.
 * They are no taller than there are rows, so that nothing beyond these is read. */
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

/* One step of R blocks of rows times P times 16 outputs; four of them are two panels. */
static inline __attribute__((always_inline)) void multiply(const bf16 *x, const char *w, int64_t depth, const int R, const int P) {
    fetch(w + NEAR, 16);
    _tile_loadd(4, x, 2 * depth);
    if (R == 2) _tile_loadd(5, x + BLOCK * depth, 2 * depth);
    _tile_loadd(6, w, P == 1 ? 64 : 128);
    _tile_dpbf16ps(0, 4, 6);
    if (R == 2) _tile_dpbf16ps(2, 5, 6);
    if (P == 1) return;
    fetch(w + NEAR + 1024, 16);
    _tile_loadd(7, w + 64, 128);
    _tile_dpbf16ps(1, 4, 7);
    if (R == 2) _tile_dpbf16ps(3, 5, 7);
    if (P == 2) return;
    w += 2 * PANEL * depth;
    fetch(w + NEAR, 16);
    _tile_loadd(5, w, 128);
    _tile_dpbf16ps(2, 4, 5);
    fetch(w + NEAR + 1024, 16);
    _tile_loadd(6, w + 64, 128);
    _tile_dpbf16ps(3, 4, 6);
}

/* `rows` rows, which are R blocks, by P times 16 outputs. At the end the beginnings of what comes `next` are fetched. */
static inline __attribute__((always_inline)) void matrix(const Product *p, int64_t row, int rows, int64_t panel, const char *next, const int R, const int P) {
    const int64_t depth = p->depth, steps = depth / STEP, half = steps / 2, bytes = P == 1 ? 64 * 16 : 128 * 16;
    const bf16 *x = p->x + row * depth;
    const char *w = (const char *)p->weight + panel * 2 * PANEL * depth;
    _Alignas(64) float sums[R * BLOCK][P * LANES];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < half; k++) {
        multiply(x + k * STEP, w + k * bytes, depth, R, P);
        multiply(x + (half + k) * STEP, w + (half + k) * bytes, depth, R, P);
    }
    if (steps % 2) multiply(x + 2 * half * STEP, w + 2 * half * bytes, depth, R, P);
    fetch(next, 16), fetch(next + half * bytes, 16);
    if (P == 4) fetch(next + 2 * PANEL * depth, 16), fetch(next + 2 * PANEL * depth + half * bytes, 16);
    _tile_stored(0, sums[0], sizeof sums[0]);
    if (P > 1) _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
    float *rest = R == 2 ? sums[BLOCK] : sums[0] + 2 * LANES;
    if (R == 2 || P == 4) _tile_stored(2, rest, sizeof sums[0]);
    if (R == 2 ? P > 1 : P == 4) _tile_stored(3, rest + LANES, sizeof sums[0]);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < P; i += 2) {
            __m512 sum[2] = {_mm512_load_ps(sums[r] + i * LANES), P > 1 ? _mm512_load_ps(sums[r] + (i + 1) * LANES) : _mm512_setzero_ps()};
            finish(p, row + r, panel * PANEL + i * LANES, sum, P > 1 ? 2 : 1);
        }
}

/* The panels of one turn, two or one, times all rows. */
static void in_registers(const Product *p, int64_t panel, int64_t after, int *shaped) {
    const int64_t passes = (p->rows + MOST_ROWS - 1) / MOST_ROWS, each = (p->rows + passes - 1) / passes;
    const int64_t left = p->outputs - panel * PANEL;
    const char *next = (const char *)p->weight + after * 2 * PANEL * p->depth;
    for (int64_t row = 0; row < p->rows; row += each) {
        const int rows = (int)(p->rows - row < each ? p->rows - row : each);
        if (rows != *shaped) shape_registers(*shaped = rows);
        if (rows > BLOCK && left >= PANEL) matrix(p, row, rows, panel, next, 2, 2);
        else if (rows > BLOCK) matrix(p, row, rows, panel, next, 2, 1);
        else if (left >= 2 * PANEL && p->rows <= BLOCK) matrix(p, row, rows, panel, next, 1, 4);
        else {
            if (left >= PANEL) matrix(p, row, rows, panel, next, 1, 2);
            else matrix(p, row, rows, panel, next, 1, 1);
            if (p->rows <= BLOCK && left > PANEL) matrix(p, row, rows, panel + 1, next, 1, 1);
        }
    }
}

/* Says whether products are made here from now on: if the operating system allows it. */
int foreword_use_amx(int wanted) {
    const long request = 0x1023, registers = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return matrix_registers = wanted && syscall(SYS_arch_prctl, request, registers) == 0;
}

int foreword_uses_amx(void) { return matrix_registers; }

#else

static inline int in_matrices(const Product *p) { return (void)p, 0; }
static void in_registers(const Product *p, int64_t panel, int64_t after, int *shaped) { (void)p, (void)panel, (void)after, (void)shaped; }
static void release_registers(void) {}
int foreword_use_amx(int wanted) { return (void)wanted, 0; }
int foreword_uses_amx(void) { return 0; }

#endif

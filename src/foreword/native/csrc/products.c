/* Products of rows and packed weights, shared by threads. */

#include "amx.c"
#include "int8.c"
#include "groups.c"

#define ALONE 8 /* rows. Most in one pass: with more, a core does not read while it multiplies, unless another pass prefetches */

/* Find the header of a matrix in groups; one without groups has bfloat16 panels behind it. */
static Product stored(const Product *p) {
    Product found = *p;
    if (p->coding != GROUPS || p->grouped) return found;
    const Grouped *h = p->weight;
    found.weight = h + 1;
    if (h->bits == 16) found.coding = WHOLE;
    else found.grouped = h;
    return found;
}

/* Quantize a row in place, as the matrix that it is multiplied by needs. */
static inline void quantize_for(const void *matrix, int64_t coding, factor *x, int64_t depth, float *step) {
    const Grouped *h = matrix;
    if (coding == BYTES) *step = to_integers(x, depth);
    else if (coding == GROUPS && h->bits < 16) to_groups(x, depth, h->group);
}

/* Multiply a panel by all rows. It is read once from memory; further passes read it from the nearest cache. */
static void in_passes(const Product *p, int64_t panel, const char *next) {
    const int64_t passes = at_least(parts_of(p->rows, MOST_TILED), p->rows > ALONE ? 2 : 1), each = parts_of(p->rows, passes);
    const int sides = sides_of((int)each, 2);
    for (int64_t row = 0, pass = 0; row < p->rows; row += each, pass += sides) {
        const int rows = (int)(p->rows - row < each ? p->rows - row : each);
        const char *later = next + pass * PANEL * p->depth;
        tiled(p, row, panel, passes * sides > 1 && pass < 2 ? later : 0, rows);
    }
}

#define OWN (1 << 19) /* bytes of each operand that fit in a core's own cache together */
#define CHUNKS 4      /* chunks per thread: with fewer, threads wait long for the last one; more cost overhead */

static inline int64_t coded_bytes(int64_t outputs, int64_t depth, int64_t coding) {
    return coding == WHOLE ? outputs * depth * (int64_t)sizeof(bf16) : foreword_coded_bytes(outputs, depth, (int)coding);
}

static inline int64_t panel_bytes(const Product *p) { return p->grouped ? 2 * p->grouped->strip : coded_bytes(PANEL, p->depth, p->coding); }
static inline const char *panel_at(const Product *p, int64_t panel) { return (const char *)p->weight + panel * panel_bytes(p); }

/* Panels multiplied together. */
static inline int64_t side_of(const Product *p) { return in_matrices(p) && p->rows <= (p->coding == BYTES ? BLOCK / 2 : BLOCK) ? 2 : 1; }

/* How the panels of a product are shared: in chunks of `size`. If the rows do not fit in the cache, each band of them is
 * multiplied by all panels of a chunk, which then stay in the cache. */
typedef struct { int64_t panels, size, chunks, band; } Dealt;

static int64_t band_of(const Product *p) {
    return in_matrices(p) ? at_least(OWN / (p->depth * (int64_t)sizeof *p->x) / MOST_ROWS, 1) * MOST_ROWS : p->rows;
}

static Dealt dealt(const Product *p, int threads) {
    Dealt s = {.panels = parts_of(p->outputs, PANEL), .band = band_of(p)};
    const int64_t side = side_of(p), turns = parts_of(s.panels, side);
    int64_t size = threads == 1 ? turns : at_least(parts_of(turns, CHUNKS * threads), 2 / side);
    if (p->rows > s.band) size = at_most(size, OWN / (PANEL * p->depth * (int64_t)sizeof(bf16)) + 1);
    s.size = size * side, s.chunks = parts_of(turns, size);
    return s;
}

/* Multiply some rows by the panels from `panel` on that are taken together; prefetches `next`. */
static inline void turn_of(const Product *p, Matrices *m, int64_t row, int64_t last, int64_t panel, const char *next) {
    if (in_matrices(p)) in_registers(p, m, row, last, panel, next);
    else if (p->coding == BYTES) in_bytes(p, panel);
    else if (p->grouped) in_groups(p, m, panel);
    else in_passes(p, panel, next);
}

static void product(const Product *given, Worker *w) {
    const Product own = stored(given), *p = &own;
    const Dealt s = dealt(p, w->threads);
    const int64_t side = side_of(p);
    Matrices m;
    begin_product(&m);
    for (int64_t chunk = claim(w, s.chunks); chunk >= 0; finished(w)) {
        const int64_t from = chunk * s.size, to = at_most(from + s.size, s.panels);
        for (int64_t row = 0, last; row < p->rows; row = last) {
            last = at_most(row + s.band, p->rows);
            for (int64_t panel = from; panel < to; panel += side) {
                const int end = panel + side >= to;
                if (end && last == p->rows) chunk = claim(w, s.chunks); /* claimed now, to prefetch the start of the next chunk */
                const int64_t next = !end ? panel + side : last < p->rows ? from : chunk < 0 ? panel : chunk * s.size;
                turn_of(p, &m, row, last, panel, panel_at(p, next));
            }
        }
        if (in_matrices(p)) put_due(p, &m);
    }
    end_product(&m);
    wait(w, s.chunks);
}

#include "product.h"

#include "amx.h"
#include "groups.h"
#include "int8.h"

/* The only place that chooses how a matrix is multiplied. */
static const Coding *coding_of(const Product *p) {
    static const Coding *const in_vectors[] = {
        [WHOLE] = &whole_coding, [BYTES] = &byte_coding, [GROUPS] = &group_coding};
#ifdef BF16_PRODUCTS
    if (p->portable && p->coding == WHOLE) return &plain_coding;
#endif
    const Coding *in_matrices = matrix_coding(p);
    return in_matrices ? in_matrices : in_vectors[p->coding];
}

/* A matrix without groups among those with a header has bfloat16 panels behind it. */
INTERNAL Product stored(const Product *p) {
    Product found = *p;
    if (p->coding == GROUPS && !p->grouped) {
        const Grouped *h = p->weight;
        found.weight = h + 1;
        if (h->bits == 16) found.coding = WHOLE;
        else found.grouped = h;
    }
    found.by = coding_of(&found);
    return found;
}

INTERNAL void quantize_for(const void *matrix, int64_t coding, factor *x, int64_t depth,
                           float *step) {
    const Grouped *h = matrix;
    if (coding == BYTES) *step = to_integers(x, depth);
    else if (coding == GROUPS && h->bits < 16) to_groups(x, depth, h);
}

/* The panel is read once from memory; further passes read it from the nearest cache, and prefetch
 * the next one. */
INTERNAL void in_passes(const Product *p, Matrices *m, int64_t row, int64_t last, int64_t panel,
                        const char *next) {
    const Coding *by = p->by;
    const int64_t rows = last - row,
                  passes = at_least(parts_of(rows, by->most), rows > by->alone ? 2 : 1),
                  each = parts_of(rows, passes);
    const int sides = sides_of((int)each, 2);
    (void)m;
    for (int64_t pass = 0; row < last; row += each, pass += sides) {
        const char *later = next + pass * PANEL * p->depth;
        by->tile[at_most(last - row, each) - 1](p, row, panel,
                                                passes * sides > 1 && pass < 2 ? later : 0);
    }
}

#define OWN (1 << 19) /* bytes of each operand that fit in a core's own cache together */

/* How the panels of a product are shared: in chunks of `size`. If the rows do not fit in the cache,
 * each band of them is multiplied by all panels of a chunk, which then stay in the cache. */
typedef struct {
    int64_t panels, size, chunks, band;
} Dealt;

INTERNAL int64_t band_of(const Product *p) {
    return p->by->banded
               ? at_least(OWN / (p->depth * (int64_t)sizeof *p->x) / MOST_ROWS, 1) * MOST_ROWS
               : p->rows;
}

static Dealt dealt(const Product *p, int threads) {
    Dealt s = {.panels = parts_of(p->outputs, PANEL), .band = band_of(p)};
    const int64_t side = side_of(p), turns = parts_of(s.panels, side);
    int64_t size = turns_of_chunk(turns, side, threads);
    if (p->rows > s.band)
        size = at_most(size, OWN / (PANEL * p->depth * (int64_t)sizeof(bf16)) + 1);
    s.size = size * side, s.chunks = parts_of(turns, size);
    return s;
}

INTERNAL void product(const Product *given, Worker *w) {
    const Product own = stored(given), *p = &own;
    const Dealt s = dealt(p, w->threads);
    const int64_t side = side_of(p);
    Matrices m;
    begin_product(&m);
    for (int64_t chunk = claim(w, s.chunks); chunk >= 0;) {
        const int64_t from = chunk * s.size, to = at_most(from + s.size, s.panels);
        for (int64_t row = 0, last; row < p->rows; row = last) {
            last = at_most(row + s.band, p->rows);
            for (int64_t panel = from; panel < to; panel += side) {
                const int end = panel + side >= to;
                /* Claimed now, to prefetch the start of the next chunk. */
                if (end && last == p->rows) chunk = claim(w, s.chunks);
                const int64_t next = !end             ? panel + side
                                     : last < p->rows ? from
                                     : chunk < 0      ? panel
                                                      : chunk * s.size;
                p->by->turn(p, &m, row, last, panel, panel_at(p, next));
            }
        }
        if (p->by->banded) put_due(p, &m);
    }
    end_product(&m);
    end_phase(w, s.chunks);
}

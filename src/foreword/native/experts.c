/* Experts: many small MLPs of which a row asks a few, those that a router trusts most (Shazeer et al. 2017, 1701.06538).
 *
 * Rows that ask the same expert are gathered, so that its weights are read once for all of them. Experts lie one after the
 * other in `gate_up` and `down`. An MLP that all rows share is cut into further ones as large as these, which all rows ask.
 * What those say that a row asks is added in the order in which it asks, so that its bits do not depend on other rows.
 */

typedef struct Experts {
    int64_t count, asked, shared, inner; /* how many; those that a row asks; further ones that all ask; numbers within each */
    int64_t sigmoid, normed; /* trust: a sigmoid each, or else a softmax of all; normed: in those that a row asks it is 1 together */
    int64_t gated; /* trust in those that all ask is a sigmoid of what the router says last, or else 1 */
    float scale; /* of trust; 0 = none */
} Experts;

typedef struct Asked { /* scratch; `each` is asked + shared, a place a row's question to one of them */
    int32_t *expert, *place; /* [rows, each] */
    float *trust; /* [rows, each] */
    int32_t *row; /* [places]: which one asks, expert after expert */
    int64_t *first; /* [experts + 1]: the first place of each */
    factor *gathered, *gated; /* [places, hidden], [places, inner] */
    float *said, *steps; /* [places, hidden], [places] */
} Asked;

static inline int64_t each_of(const Experts *e) { return e->asked + e->shared; }
static inline int64_t routed_of(const Experts *e) { return parts_of(e->count + e->gated, LANES) * LANES; }

/* Whom row r asks: of equals the first. What the router said of it is made trust where it lies. */
static void ask(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    const Experts *e = m->experts;
    const int64_t size = routed_of(e), each = each_of(e);
    float *trust = f->wide + r * size, all_ask = 1, top = trust[0], sum = 0, asked = 0, rank[size];
    if (e->gated) all_ask = 1 / (1 + expf(-trust[e->count]));
    for (int64_t i = 1; i < e->count; i++) top = trust[i] > top ? trust[i] : top;
    for (int64_t i = 0; i < size; i += LANES) store(trust + i, e->sigmoid ? sigmoid(load(trust + i)) : vexp(sub(load(trust + i), all(top))));
    for (int64_t i = 0; i < e->count; i++) sum += trust[i], rank[i] = trust[i] + (layer->leaning ? layer->leaning[i] : 0);
    int32_t *expert = f->asked->expert + r * each;
    float *given = f->asked->trust + r * each;
    for (int64_t k = 0; k < e->asked; k++) {
        int64_t best = 0;
        for (int64_t i = 1; i < e->count; i++) best = rank[i] > rank[best] ? i : best;
        expert[k] = (int32_t)best, given[k] = trust[best], asked += trust[best], rank[best] = -INFINITY;
    }
    const float whole = e->normed ? asked + (e->sigmoid ? 1e-6f : 0) : e->sigmoid ? 1 : sum;
    for (int64_t k = 0; k < e->asked; k++) given[k] *= (e->scale ? e->scale : 1) / whole;
    for (int64_t k = 0; k < e->shared; k++) expert[e->asked + k] = (int32_t)(e->count + k), given[e->asked + k] = all_ask;
}

/* Places for all questions, those to one expert side by side. */
static void assort(const Experts *e, int64_t rows, const Asked *a) {
    const int64_t experts = e->count + e->shared, each = each_of(e);
    int64_t next[experts + 1];
    memset(next, 0, sizeof next);
    for (int64_t i = 0; i < rows * each; i++) next[a->expert[i] + 1]++;
    for (int64_t i = 0; i < experts; i++) next[i + 1] += next[i];
    memcpy(a->first, next, sizeof next);
    for (int64_t i = 0; i < rows * each; i++) {
        const int64_t place = next[a->expert[i]]++;
        a->place[i] = (int32_t)place, a->row[place] = (int32_t)(i / each);
    }
}

static void bring(const Model *m, const Forward *f, int64_t place) {
    const Asked *a = f->asked;
    factor *to = a->gathered + place * m->hidden;
    memcpy(to, f->narrow + a->row[place] * m->hidden, m->hidden * sizeof *to);
    if (m->coding == BYTES) a->steps[place] = made_whole(to, m->hidden);
}

/* Products of the places of every expert that is asked: `one` is that of all places and of the first expert's weights. */
static int64_t products_of(const Experts *e, const Asked *a, const Product *one, Product *each) {
    int64_t count = 0;
    for (int64_t i = 0; i < e->count + e->shared; i++) {
        const int64_t at = a->first[i], rows = a->first[i + 1] - at;
        if (rows == 0) continue;
        Product *p = each + count++;
        *p = *one;
        p->rows = rows, p->weight = (const char *)one->weight + i * coded_bytes(one->outputs, one->depth, one->coding);
        p->x += at * one->depth, p->steps += at;
        if (p->kind == GATE) p->gated += at * (one->outputs / 2);
        else p->to += at * one->outputs;
    }
    return count;
}

/* Their panels one after the other, dealt in pairs. A thread that is late must not look at what was asked: by then it may be
 * of a later layer. Chunks are as many whatever was asked, and who holds one knows that the others wait for it. */
static void with_experts(const Model *m, const Asked *a, const Product *one, Worker *w) {
    const int64_t panels = parts_of(one->outputs, PANEL), pairs = parts_of(panels, 2), chunks = w->threads == 1 ? 1 : CHUNKS * w->threads;
    Product each[m->experts->count + m->experts->shared];
    int64_t count = 0;
    Matrices registers;
    begin_product(&registers);
    for (int64_t chunk; (chunk = claim(w, chunks)) >= 0; finished(w)) {
        if (count == 0) count = products_of(m->experts, a, one, each);
        for (int64_t pair = count * pairs * chunk / chunks; pair < count * pairs * (chunk + 1) / chunks; pair++) {
            const Product *p = each + pair / pairs;
            const int64_t from = pair % pairs * 2, to = at_most(from + 2, panels), side = side_of(p), band = band_of(p);
            const char *after = to < panels ? panel_at(p, to) : pair + 1 < count * pairs ? p[1].weight : panel_at(p, from);
            for (int64_t row = 0; row < p->rows; row += band)
                for (int64_t panel = from; panel < to; panel += side) {
                    const int end = panel + side >= to, more = row + band < p->rows;
                    turn_of(p, &registers, row, at_most(row + band, p->rows), panel, !end ? panel_at(p, panel + side) : more ? panel_at(p, from) : after);
                }
            if (in_matrices(p)) put_due(p, &registers);
        }
    }
    end_product(&registers);
    wait(w, chunks);
}

/* What those said whom row r asked, in place of what one MLP says. */
static void add_experts(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    const Asked *a = f->asked;
    const int64_t each = each_of(m->experts);
    const floats scale = all(m->residual_scale ? m->residual_scale : 1);
    for (int64_t i = 0; i < m->hidden; i += LANES) {
        floats sum = all(0);
        for (int64_t k = r * each; k < (r + 1) * each; k++) sum = fused(all(a->trust[k]), load(a->said + a->place[k] * m->hidden + i), sum);
        float *to = layer->mlp_said_norm ? f->wide + r * m->hidden + i : f->residual + r * m->hidden + i;
        store(to, layer->mlp_said_norm ? sum : fused(sum, scale, load(to)));
    }
}

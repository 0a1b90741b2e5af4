/* Experts: many small MLPs, of which a router chooses the top k of each row (Shazeer et al. 2017,
 * 1701.06538).
 *
 * Rows of the same expert are gathered, so its weights are read once for all of them. Experts are
 * stored consecutively in `gate_up` and `down`. A shared expert is cut into further experts of the
 * same size, which every row uses. The outputs of a row's experts are added in the order of its
 * choice, so its bits do not depend on other rows.
 */
#include "experts.h"

#include "../activations.h"
#include "../products/amx.h"

INTERNAL void route(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    const Experts *e = m->experts;
    const int64_t size = routed_of(e), each = each_of(e);
    float *weight = f->wide + r * size, shared_weight = 1, top = weight[0], sum = 0, chosen = 0,
          rank[size];
    if (e->gated) shared_weight = 1 / (1 + exp_of(-weight[e->count]));
    for (int64_t i = 1; i < e->count; i++) top = weight[i] > top ? weight[i] : top;
    for (int64_t i = 0; i < size; i += LANES)
        store(weight + i,
              e->sigmoid ? sigmoid(load(weight + i)) : vexp(sub(load(weight + i), all(top))));
    for (int64_t i = 0; i < e->count; i++)
        sum += weight[i], rank[i] = weight[i] + (layer->expert_bias ? layer->expert_bias[i] : 0);
    int32_t *expert = f->routing->expert + r * each;
    float *given = f->routing->weight + r * each;
    for (int64_t k = 0; k < e->top_k; k++) {
        int64_t best = 0;
        for (int64_t i = 1; i < e->count; i++) best = rank[i] > rank[best] ? i : best;
        expert[k] = (int32_t)best, given[k] = weight[best], chosen += weight[best],
        rank[best] = -INFINITY;
    }
    const float whole = e->normed ? chosen + (e->sigmoid ? 1e-6f : 0) : e->sigmoid ? 1 : sum;
    for (int64_t k = 0; k < e->top_k; k++) given[k] *= (e->scale ? e->scale : 1) / whole;
    for (int64_t k = 0; k < e->shared; k++)
        expert[e->top_k + k] = (int32_t)(e->count + k), given[e->top_k + k] = shared_weight;
}

/* Assign places to all (row, expert) pairs, grouped by expert. */
INTERNAL void group_by_expert(const Experts *e, int64_t rows, const Routing *a) {
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

INTERNAL void gather_row(const Model *m, const Layer *layer, const Forward *f, int64_t place) {
    const Routing *a = f->routing;
    factor *to = a->gathered + place * m->hidden;
    memcpy(to, f->narrow + a->row[place] * m->hidden, m->hidden * sizeof *to);
    quantize_for(layer->gate_up, m->coding, to, m->hidden, a->steps + place);
}

/* Split `one`, a product of all places and the first expert's weights, into a product per used
 * expert; return how many. */
static int64_t products_of(const Experts *e, const Routing *a, const Product *one, Product *each) {
    int64_t count = 0;
    const Product tall = stored(one);
    for (int64_t i = 0; i < e->count + e->shared; i++) {
        const int64_t at = a->first[i], rows = a->first[i + 1] - at;
        if (rows == 0) continue;
        Product *p = each + count++;
        *p = tall;
        p->rows = rows,
        p->weight = (const char *)tall.weight + i * tall.by->bytes(&tall, tall.outputs);
        *p = stored(p); /* again: how it is multiplied depends on the number of rows */
        p->x += at * one->depth, p->steps += at;
        if (p->bias) p->bias += i * one->outputs;
        if (p->kind == GATE) p->gated += at * (one->outputs / 2);
        else p->to += at * one->outputs;
    }
    return count;
}

/* Compute the products of all experts, whose panels are shared among threads in pairs. The number
 * of chunks does not depend on the routing: a late thread must not read the routing without holding
 * a chunk, since it may be of a later layer by then. */
INTERNAL void expert_products(const Model *m, const Routing *a, const Product *one, Worker *w) {
    const int64_t panels = parts_of(one->outputs, PANEL), pairs = parts_of(panels, 2),
                  chunks = w->threads == 1 ? 1 : CHUNKS * w->threads;
    Product each[m->experts->count + m->experts->shared];
    int64_t count = 0;
    Matrices registers;
    begin_product(&registers);
    for (int64_t chunk; (chunk = claim(w, chunks)) >= 0;) {
        if (count == 0) count = products_of(m->experts, a, one, each);
        for (int64_t pair = count * pairs * chunk / chunks;
             pair < count * pairs * (chunk + 1) / chunks; pair++) {
            const Product *p = each + pair / pairs;
            const int64_t from = pair % pairs * 2, to = at_most(from + 2, panels),
                          side = side_of(p), band = band_of(p);
            const char *after = to < panels                ? panel_at(p, to)
                                : pair + 1 < count * pairs ? p[1].weight
                                                           : panel_at(p, from);
            for (int64_t row = 0; row < p->rows; row += band)
                for (int64_t panel = from; panel < to; panel += side) {
                    const int end = panel + side >= to, more = row + band < p->rows;
                    p->by->turn(p, &registers, row, at_most(row + band, p->rows), panel,
                                !end   ? panel_at(p, panel + side)
                                : more ? panel_at(p, from)
                                       : after);
                }
            if (p->by->banded) put_due(p, &registers);
        }
    }
    end_product(&registers);
    end_phase(w, chunks);
}

/* Add the weighted outputs of the experts of row r, in place of an MLP's output. */
INTERNAL void add_experts(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    const Routing *a = f->routing;
    const int64_t each = each_of(m->experts);
    const floats scale = all(m->residual_scale ? m->residual_scale : 1);
    for (int64_t i = 0; i < m->hidden; i += LANES) {
        floats sum = all(0);
        for (int64_t k = r * each; k < (r + 1) * each; k++)
            sum = fused(all(a->weight[k]), load(a->outputs + a->place[k] * m->hidden + i), sum);
        float *to =
            layer->mlp_said_norm ? f->wide + r * m->hidden + i : f->residual + r * m->hidden + i;
        store(to, layer->mlp_said_norm ? sum : fused(sum, scale, load(to)));
    }
}

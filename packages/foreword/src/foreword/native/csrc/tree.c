/* A draft tree grown in one call: with one forward of a draft model per level, or from given
 * distributions of every depth. Reference: CoupledTree in draft/tree/coupled.py, level by level.
 */
#include "activations.h"
#include "foreword.h"
#include "layers/rows.h"
#include "noise.h"

/* 16 words of the noise, for the head's outputs from `at` on. */
static void words_at(const CoupledTree *g, const int32_t *ids, int64_t count, int64_t at,
                     uint32_t *word) {
    if (!ids) memcpy(word, g->words + at, LANES * sizeof *word);
    else if (count >= LANES) store((float *)word, gathered((const float *)g->words, ids + at));
    else for (int64_t i = 0; i < LANES; i++) word[i] = i < count ? g->words[ids[at + i]] : 0;
}

/* The `breadth` largest of logits / temperature + noise, best first and the first of equals;
 * `share` gets their probabilities under softmax(. / scale) over the whole vocabulary. Noise is
 * computed in full where gumbel_near may reach the largest; elsewhere the sum takes gumbel_near. */
static void children(const CoupledTree *g, const Model *m, const float *logits, const uint64_t *key,
                     float *scratch, int64_t *child, float *value, float *share) {
    const int64_t most = g->breadth, vocab = m->vocab;
    const int32_t *ids = g->ids ? g->ids : m->ids;
    const floats by = all(g->temperature > 0 ? g->temperature : 1.0f);
    for (int64_t i = 0; i < most; i++) child[i] = -1, value[i] = -INFINITY, share[i] = 0;
    for (int64_t at = 0; key && at < g->target; at += NOISE_BLOCK)
        noise_words(*key, 0, 0, 0, at, g->words + at);
    floats least = all(-INFINITY);
    for (int64_t at = 0; at < vocab; at += LANES) {
        const int64_t left = vocab - at;
        uint32_t word[LANES];
        float score[LANES], noise[LANES];
        floats v = quotient(load_first(logits + at, left, -INFINITY), by);
        store(score, v);
        if (g->ids) {
            for (int64_t i = 0; i < LANES && i < left; i++)
                if (ids[at + i] == g->target) score[i] = -INFINITY;
            v = load(score);
        }
        if (key) {
            words_at(g, ids, left, at, word);
            for (int i = 0; i < LANES; i++) noise[i] = gumbel_near(word[i]);
            v = add(v, load(noise));
        }
        store(scratch + at, v);
        for (uint32_t set = above(v, least); set; set &= set - 1) {
            const int64_t lane = __builtin_ctz(set), token = at + lane;
            if (key) scratch[token] = score[lane] + gumbel(word[lane]);
            const float found = scratch[token];
            int64_t place = most;
            if (!(found > value[most - 1])) continue;
            while (place && found > value[place - 1]) place--;
            for (int64_t i = most - 1; i > place; i--)
                child[i] = child[i - 1], value[i] = value[i - 1];
            child[place] = token, value[place] = found;
            least = all(value[most - 1]);
        }
    }
    const floats best = all(value[0]), slope = all(1.0f / g->scale);
    floats sum = all(0);
    for (int64_t at = 0; at < vocab; at += LANES)
        sum = add(sum, vexp(mul(sub(load(scratch + at), best), slope)));
    float total = sum_of(sum);
    for (int64_t i = 0; i < most && child[i] >= 0; i++) {
        share[i] = expf((value[i] - value[0]) / g->scale) / total;
        if (m->ids) child[i] = m->ids[child[i]];
    }
}

/* The `rank`th largest probability of all draft tokens so far, counted from 0. */
static double ranked(const double *probabilities, int64_t count, int64_t rank) {
    double best[rank + 1];
    for (int64_t i = 0; i <= rank; i++) best[i] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (probabilities[i] <= best[rank]) continue;
        int64_t place = rank;
        while (place && probabilities[i] > best[place - 1]) best[place] = best[place - 1], place--;
        best[place] = probabilities[i];
    }
    return best[rank];
}

/* Select the draft tokens from `first` on whose children may be among the best, best first; return
 * how many. */
static int64_t expandable(const CoupledTree *g, int64_t first, int64_t *open) {
    double last = g->count >= g->most ? ranked(g->probabilities, g->count, g->most - 1) : 0;
    int64_t most = g->width < g->reads - g->held ? g->width : g->reads - g->held, count = 0;
    for (int64_t node = first; node < g->count && most; node++) {
        int ended = 0;
        for (int64_t i = 0; i < g->ends; i++) ended |= g->tokens[node] == g->end[i];
        if (ended || g->probabilities[node] < last || g->probabilities[node] <= g->expand) continue;
        int64_t place = count;
        while (place && g->probabilities[node] > g->probabilities[open[place - 1]]) place--;
        if (place == most) continue;
        if (count < most) count++;
        for (int64_t i = count - 1; i > place; i--) open[i] = open[i - 1];
        open[place] = node;
    }
    return count;
}

/* Choose the best `most` draft tokens, likeliest first and the first of equals; a parent is never
 * less likely than its child. */
static void choose_best(CoupledTree *g) {
    int64_t order[g->most], place[g->count + 1];
    g->chosen = 0;
    for (int64_t node = 0; node < g->count; node++) {
        int64_t at = g->chosen;
        while (at && g->probabilities[node] > g->probabilities[order[at - 1]]) at--;
        if (at == g->most) continue;
        if (g->chosen < g->most) g->chosen++;
        for (int64_t i = g->chosen - 1; i > at; i--) order[i] = order[i - 1];
        order[at] = node;
    }
    for (int64_t at = 0; at < g->chosen; at++) {
        int64_t node = order[at], parent = g->parents[node];
        place[node] = at;
        g->best_tokens[at] = g->tokens[node], g->best_probabilities[at] = g->probabilities[node];
        g->best_parents[at] = parent < 0 ? -1 : place[parent];
    }
}

/* Logits after each of `rows` tokens at a depth with a given distribution: that distribution plus
 * the model's head applied to the token's embedding. Without a head, one row for all: the
 * distribution alone. */
static const float *next_logits(const Model *m, const Forward *f, const float *distribution,
                                int64_t rows, const int64_t *tokens, const int64_t *keep,
                                int threads) {
    if (!m->head) return distribution;
    Forward next = *f;
    next.rows = next.kept = rows, next.spans = next.image_layers = 0, next.tokens = tokens,
    next.keep = keep;
    for (int64_t r = 0; r < rows; r++) embed(m, &next, r);
    foreword_forward(m, &next, threads);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < m->vocab; i += LANES) {
            float *to = f->logits + r * m->vocab + i;
            const int64_t count = m->vocab - i;
            store_first(to, add(load_first(to, count, 0), load_first(distribution + i, count, 0)),
                        count);
        }
    return f->logits;
}

/* `f` is the forward that reads the end of the sequence, its last row kept; its logits and scratch
 * have room for `width` rows, `scratch` for one row of logits. If `f` returns hidden states, a
 * draft token is given that of its parent: one state per row, with room for `reads` rows after
 * those of `f`. With distributions, `f` has one row, the last token. */
void foreword_grow(const Model *m, const Forward *f, CoupledTree *g, float *scratch, int threads) {
    const Span text = *f->span;
    const int64_t past = text.past + text.held + text.stop - text.start,
                  base = f->positions[f->rows - 1] + 1;
    int64_t open[g->width], tokens[g->width], positions[g->width], keep[g->width], opened = 1;
    int64_t place[(g->reads + 1) * g->breadth]; /* index of a draft token among those read */
    int32_t parents[g->reads + 1];
    const float *given[g->width];
    uint64_t keys[g->reads + 1]; /* of the end of the sequence, then of each draft token read */
    /* Logits differ between draft tokens of a level. */
    const int per_node = !g->distributions || m->head;
    float share[g->breadth];
    open[0] = -1;
    keys[0] = g->key ? *g->key : 0;
    g->count = g->held = 0;
    const float *logits = f->logits;
    if (g->distributions)
        logits = next_logits(m, f, g->distributions, 1, f->tokens, f->keep, threads);
    else foreword_forward(m, f, threads);
    for (int64_t depth = 0;; depth++) {
        /* In child and value. */
        int64_t fresh = g->count, row = open[0] < 0 ? 0 : g->held - opened + 1;
        for (int64_t i = 0; i < opened; i++) {
            int64_t *child = g->child + (row + i) * g->breadth;
            float *value = g->value + (row + i) * g->breadth;
            if (per_node || g->key || !i)
                children(g, m, logits + (per_node ? i * m->vocab : 0),
                         g->key ? keys + row + i : 0, scratch, child, value, share);
            else
                memcpy(child, child - i * g->breadth, g->breadth * sizeof *child),
                    memcpy(value, value - i * g->breadth, g->breadth * sizeof *value);
            double reached = open[i] < 0 ? 1 : g->probabilities[open[i]];
            for (int64_t c = 0; c < g->breadth && child[c] >= 0; c++) {
                if (!(reached * share[c] > g->floor)) continue;
                g->tokens[g->count] = child[c], g->parents[g->count] = open[i],
                g->probabilities[g->count++] = reached * share[c];
            }
        }
        if (depth + 1 >= g->deep || !(opened = expandable(g, fresh, open))) break;
        for (int64_t i = 0; i < opened; i++) {
            int64_t node = open[i], parent = g->parents[node];
            place[node] = g->held + i;
            parents[g->held + i] = parent < 0 ? -1 : (int32_t)place[parent];
            g->read_tokens[g->held + i] = g->tokens[node],
                                     g->read_parents[g->held + i] = parents[g->held + i];
            keys[g->held + i + 1] =
                extended(keys[parents[g->held + i] + 1],
                         g->ids ? g->ids[g->tokens[node]] : g->tokens[node]);
            tokens[i] = g->tokens[node], positions[i] = base + depth, keep[i] = i;
            if (f->hidden_layer_count)
                given[i] =
                    f->hidden_states + (f->rows + (parent < 0 ? -1 : place[parent])) * m->hidden;
        }
        if (g->distributions) {
            logits = next_logits(m, f, g->distributions + (depth + 1) * m->vocab, opened, tokens,
                                 keep, threads);
            g->held += opened;
            continue;
        }
        Span span = {.start = 0,
                     .stop = opened,
                     .pages = text.pages,
                     .past = past,
                     .held = g->held,
                     .first_chain = 0,
                     .parents = parents,
                     .state = text.state,
                     .source = text.source,
                     .source_pages = text.source_pages,
                     .adapter = text.adapter};
        Forward next = *f;
        next.rows = next.kept = opened, next.spans = 1, next.image_layers = 0;
        next.tokens = tokens, next.positions = positions, next.keep = keep, next.span = &span;
        if (f->hidden_layer_count)
            next.given = given,
            next.hidden_states = f->hidden_states + (f->rows + g->held) * m->hidden;
        foreword_forward(m, &next, threads);
        g->held += opened;
    }
    choose_best(g);
}

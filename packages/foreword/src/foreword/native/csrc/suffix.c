/* Suffix lookup: earlier occurrences of the last tokens, votes for what followed them, and draft
 * trees from the votes. References: draft/lookup/suffix_index.py and draft/lookup/suffix_votes.py,
 * which has the same constants.
 */

#include "layout.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, VOTERS = 32, STEPS = 4, KINDS = 64 };
static const int64_t SIZES[ROWS] = {16, 8, 4, 2, 1}, WEIGHTS[ROWS] = {256, 64, 16, 4, 1};
static const uint64_t BASE = 0x9E3779B97F4A7C15u;
static const int32_t GAP = -1;
static const double PRIOR_WEIGHT = 4.0, DECAY = 0.99;

typedef struct {
    int32_t *tokens; /* [capacity], and so on */
    uint64_t *hashes;
    int64_t *latest[ROWS], *before[ROWS];
    int64_t capacity, shift;
} History;

typedef struct {
    int64_t count, length; /* voters; tokens that each may predict */
    int32_t *followed;     /* [VOTERS, length] */
    int64_t reach[VOTERS], weight[VOTERS];
} Votes;

typedef struct {
    double right[2][KINDS], tried[2][KINDS]; /* [depth 0 or deeper][weight class of the votes] */
} Acceptance;

typedef struct {
    int64_t most, branches, ends;
    const int64_t *end; /* tokens that end a sequence */
    double floor, novelty;
} Bounds;

static const Field fields[] = {
    /* clang-format off */
    WHOLE_OF(History),
    FIELD(History, tokens), FIELD(History, hashes), FIELD(History, latest), FIELD(History, before),
    FIELD(History, capacity), FIELD(History, shift),
    WHOLE_OF(Votes),
    FIELD(Votes, count), FIELD(Votes, length), FIELD(Votes, followed), FIELD(Votes, reach),
    FIELD(Votes, weight),
    WHOLE_OF(Acceptance),
    FIELD(Acceptance, right), FIELD(Acceptance, tried),
    WHOLE_OF(Bounds),
    FIELD(Bounds, most), FIELD(Bounds, branches), FIELD(Bounds, ends), FIELD(Bounds, end),
    FIELD(Bounds, floor), FIELD(Bounds, novelty),
    /* clang-format on */
    {0, 0, 0, 0},
};

const Field *foreword_layout(void) { return fields; }

static uint64_t rolled(uint64_t hash, int64_t token) {
    return (hash + (uint64_t)(token - GAP + 1)) * BASE;
}

static uint64_t power(int64_t size) {
    uint64_t product = 1;
    while (size--) product *= BASE;
    return product;
}

static uint64_t run(const History *h, int64_t place, int row) {
    return h->hashes[place % h->capacity]
           - h->hashes[(place - SIZES[row]) % h->capacity] * power(SIZES[row]);
}

void foreword_note(History *h, int64_t end, const int64_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t place = end + i + 1, at = place % h->capacity,
                      last = (place - 1) % h->capacity;
        h->tokens[last] = (int32_t)tokens[i];
        h->hashes[at] = rolled(h->hashes[last], tokens[i]);
        for (int row = 0; row < ROWS; row++) {
            if (SIZES[row] > place) continue;
            int64_t *latest = h->latest[row] + (run(h, place, row) >> h->shift);
            h->before[row][at] = *latest, *latest = place;
        }
    }
}

/* Find positions after earlier occurrences of a suffix of the context, longest first, and the row
 * of each; return how many. */
static int find(const History *h, int64_t end, const uint64_t *prefix, int64_t known,
                int64_t *found, int *rows) {
    int count = 0;
    for (int row = 0; row < ROWS; row++) {
        if (SIZES[row] > known) continue;
        const uint64_t hash = prefix[known] - prefix[known - SIZES[row]] * power(SIZES[row]);
        int64_t place = h->latest[row][hash >> h->shift];
        for (int step = 0; step < STEPS * VOTERS; step++) {
            if (place == 0 || place - SIZES[row] <= end - h->capacity) break;
            if (place < end && run(h, place, row) == hash) {
                int same = 0;
                while (same < count && found[same] != place) same++;
                if (same == count) {
                    found[count] = place, rows[count++] = row;
                    if (count == VOTERS) return count;
                }
            }
            place = h->before[row][place % h->capacity];
        }
    }
    return count;
}

/* Copy `length` tokens from a position on, fewer before a gap; a run at the end repeats. */
static int64_t after(const History *h, int64_t end, int64_t place, int64_t length, int32_t *run) {
    const int64_t held = end - place < length ? end - place : length;
    for (int64_t i = 0; i < held; i++) {
        run[i] = h->tokens[(place + i) % h->capacity];
        if (run[i] == GAP) return i;
    }
    for (int64_t i = held; i < length; i++) run[i] = run[i - held];
    return length;
}

static void vote(Votes *v, const History *h, int64_t end, int64_t place, int row) {
    int32_t *mine = v->followed + v->count * v->length;
    const int64_t reach = after(h, end, place, v->length, mine);
    for (int64_t i = 0; i < v->count; i++) {
        if (v->reach[i] != reach
            || memcmp(v->followed + i * v->length, mine, (size_t)reach * sizeof *mine))
            continue;
        v->weight[i] += WEIGHTS[row];
        return;
    }
    v->reach[v->count] = reach, v->weight[v->count++] = WEIGHTS[row];
}

/* `past` may be NULL. */
void foreword_votes(const History *own, int64_t end, const History *past, int64_t past_end,
                    const int64_t *context, int64_t known, Votes *v) {
    uint64_t prefix[17] = {0};
    int64_t mine[VOTERS], theirs[VOTERS];
    int mine_row[VOTERS], their_row[VOTERS];
    for (int64_t i = 0; i < known; i++) prefix[i + 1] = rolled(prefix[i], context[i]);
    const int here = find(own, end, prefix, known, mine, mine_row);
    const int there = past ? find(past, past_end, prefix, known, theirs, their_row) : 0;
    v->count = 0;
    for (int i = 0, j = 0; i + j < VOTERS && i + j < here + there;) {
        if (j == there || (i < here && mine_row[i] <= their_row[j]))
            vote(v, own, end, mine[i], mine_row[i]), i++;
        else vote(v, past, past_end, theirs[j], their_row[j]), j++;
    }
}

typedef struct {
    int64_t total, count;
    int32_t token[VOTERS];
    int64_t weight[VOTERS];
    uint32_t voters[VOTERS];
} Split;

/* Split voters (bits) by the token they predict at `depth`. */
static void divide(const Votes *v, uint32_t voters, int64_t depth, Split *s) {
    s->total = s->count = 0;
    for (; voters; voters &= voters - 1) {
        const int voter = __builtin_ctz(voters);
        if (depth >= v->reach[voter]) continue;
        const int32_t token = v->followed[voter * v->length + depth];
        int64_t at = 0;
        while (at < s->count && s->token[at] != token) at++;
        if (at == s->count) s->token[at] = token, s->weight[at] = 0, s->voters[at] = 0, s->count++;
        s->weight[at] += v->weight[voter], s->voters[at] |= 1u << voter,
            s->total += v->weight[voter];
    }
}

static int kind(int64_t weight) { return 64 - __builtin_clzll((unsigned long long)weight); }

static double acceptance(const Acceptance *t, int64_t weight, int64_t depth, double novelty) {
    const double prior = (double)weight / ((double)weight + novelty);
    return (t->right[depth == 0][kind(weight)] + PRIOR_WEIGHT * prior)
           / (t->tried[depth == 0][kind(weight)] + PRIOR_WEIGHT);
}

typedef struct {
    double probability;
    int64_t serial, parent, depth;
    uint32_t voters;
    int32_t token;
} Branch;

static int sooner(const Branch *one, const Branch *other) {
    return one->probability > other->probability
           || (one->probability == other->probability && one->serial < other->serial);
}

static void push(Branch *heap, int64_t at, Branch one) {
    for (int64_t up; at && sooner(&one, heap + (up = (at - 1) / 2)); at = up) heap[at] = heap[up];
    heap[at] = one;
}

/* Remove and return the first of `count` branches. */
static Branch pop(Branch *heap, int64_t count) {
    const Branch top = heap[0], last = heap[count - 1];
    int64_t at = 0;
    for (int64_t down; (down = 2 * at + 1) < count - 1; at = down) {
        if (down + 1 < count - 1 && sooner(heap + down + 1, heap + down)) down++;
        if (!sooner(heap + down, &last)) break;
        heap[at] = heap[down];
    }
    heap[at] = last;
    return top;
}

/* Grow a draft tree; return its number of tokens, -1 if out of memory. */
int64_t foreword_poll(const Votes *v, const Acceptance *t, const Bounds *b, int64_t *tokens,
                      int64_t *parents, double *probabilities) {
    /* Every voter supports at most one branch per depth. */
    Branch *heap = malloc((size_t)(v->count * v->length + 1) * sizeof *heap);
    if (!heap) return -1;
    int64_t count = 0, waiting = 0, serial = 0;
    Branch from = {.probability = 1.0, .parent = -1, .voters = (uint32_t)((1ull << v->count) - 1)};
    for (int64_t node = -1;;) {
        int ended = 0;
        for (int64_t i = 0; node >= 0 && i < b->ends; i++) ended |= b->end[i] == tokens[node];
        Split s = {0};
        if (!ended) divide(v, from.voters, from.depth, &s);
        if (s.total) {
            const double probability =
                from.probability
                * (acceptance(t, s.total, from.depth, b->novelty) / (double)s.total);
            Branch best = {.probability = -1.0};
            for (int64_t i = 0; i < s.count; i++) {
                const Branch one = {probability * (double)s.weight[i],
                                    serial++,
                                    node,
                                    from.depth + 1,
                                    s.voters[i],
                                    s.token[i]};
                if (!b->branches) best = sooner(&one, &best) ? one : best;
                else if (one.probability > b->floor) push(heap, waiting++, one);
            }
            if (!b->branches && best.probability > b->floor) push(heap, waiting++, best);
        }
        if (!waiting || count == b->most) break;
        from = pop(heap, waiting--);
        node = count++;
        tokens[node] = from.token, parents[node] = from.parent,
        probabilities[node] = from.probability;
    }
    free(heap);
    return count;
}

void foreword_close(const Votes *v, Acceptance *t, const int64_t *emitted, int64_t count) {
    uint32_t voters = (uint32_t)((1ull << v->count) - 1);
    for (int64_t depth = 0; depth < count; depth++) {
        Split s;
        divide(v, voters, depth, &s);
        if (!s.total) return;
        int64_t at = 0;
        while (at < s.count && s.token[at] != emitted[depth]) at++;
        double *right = &t->right[depth == 0][kind(s.total)],
               *tried = &t->tried[depth == 0][kind(s.total)];
        *right = DECAY * *right + (at < s.count), *tried = DECAY * *tried + 1;
        if (at == s.count) return;
        voters = s.voters[at];
    }
}

/* Gumbel noise, draws and top-k on CPU, one call each. References: sampling/noise.py and
 * sampling/draw.py, in torch.
 *
 * Loops are written so that the compiler vectorises them; where it cannot, they use simd.h.
 */
#include "noise.h"
#include "simd/simd.h"

/* The key after `count` more tokens. */
uint64_t foreword_extend(uint64_t key, const int64_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) key = extended(key, tokens[i]);
    return key;
}

/* Standard Gumbel noise, [rows, vocab]; row r belongs to (keys[r], depths[r], streams[r],
 * rounds[r]). */
void foreword_gumbel(const uint64_t *keys, const int64_t *depths, const int64_t *streams,
                     const int64_t *rounds, int64_t rows, int64_t vocab, float *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < vocab; at += NOISE_BLOCK) {
            uint32_t word[NOISE_BLOCK];
            float noise[NOISE_BLOCK];
            noise_words(keys[r], (uint32_t)depths[r], (uint32_t)streams[r], (uint32_t)rounds[r], at,
                        word);
            for (int i = 0; i < NOISE_BLOCK; i++) noise[i] = gumbel(word[i]);
            const size_t count = (size_t)at_most(vocab - at, NOISE_BLOCK);
            memcpy(out + r * vocab + at, noise, count * sizeof *noise);
        }
}

/* The target's noise after the text of a key, of these tokens alone. */
void foreword_gumbel_of(uint64_t key, const int64_t *tokens, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t word[NOISE_BLOCK];
        noise_words(key, 0, 0, 0, tokens[i] / 4 * 4, word);
        out[i] = gumbel(word[tokens[i] % 4]);
    }
}

/* argmax(row), the first of equals. */
static int64_t likeliest(const float *row, int64_t vocab) {
    float best[LANES];
    int32_t where[LANES];
    for (int i = 0; i < LANES; i++) best[i] = -INFINITY, where[i] = i;
    int64_t whole = vocab / LANES * LANES;
    for (int64_t at = 0; at < whole; at += LANES)
        for (int i = 0; i < LANES; i++) {
            float value = row[at + i];
            where[i] = value > best[i] ? (int32_t)at + i : where[i];
            best[i] = value > best[i] ? value : best[i];
        }
    for (int64_t at = whole; at < vocab; at++)
        if (row[at] > best[at % LANES]) best[at % LANES] = row[at], where[at % LANES] = (int32_t)at;
    int winner = 0;
    for (int i = 1; i < LANES; i++)
        if (best[i] > best[winner] || (best[i] == best[winner] && where[i] < where[winner]))
            winner = i;
    return where[winner];
}

/* argmax(row / temperature + noise of the key), the first of equals. Only where a bound of the
 * noise may beat the best so far is the noise itself computed: rounding keeps the order. */
static int64_t drawn(const float *row, uint64_t key, float temperature, int64_t vocab) {
    const floats by = all(temperature);
    float best = -INFINITY;
    int64_t winner = 0;
    for (int64_t first = 0; first < vocab; first += NOISE_BLOCK) {
        uint32_t word[NOISE_BLOCK];
        float bound[NOISE_BLOCK];
        noise_words(key, 0, 0, 0, first, word);
        for (int i = 0; i < NOISE_BLOCK; i++) bound[i] = gumbel_bound(word[i]);
        for (int64_t i = 0; i < NOISE_BLOCK && first + i < vocab; i += LANES) {
            const int64_t at = first + i;
            const floats score = quotient(load_first(row + at, vocab - at, -INFINITY), by);
            for (uint32_t set = above(add(score, load(bound + i)), all(best)); set;
                 set &= set - 1) {
                const int64_t lane = __builtin_ctz(set);
                const float value = row[at + lane] / temperature + gumbel(word[i + lane]);
                if (value > best) best = value, winner = at + lane;
            }
        }
    }
    return winner;
}

/* One of them, as `keys` is NULL at temperature 0. */
static int64_t chosen_token(const float *row, const uint64_t *key, float temperature,
                            int64_t vocab) {
    return key ? drawn(row, *key, temperature, vocab) : likeliest(row, vocab);
}

/* Walk the tree from the root: draw a token, go to the child with that token, stop where there is
 * none. Parents come before children. `path` gets the accepted nodes, `added` the token after them.
 * `key` is that of the root; NULL: temperature 0. Returns the number of accepted nodes.
 */
int64_t foreword_follow(const float *logits, const uint64_t *key, float temperature, int64_t vocab,
                        const int64_t *tokens, const int64_t *parents, int64_t nodes, int64_t *path,
                        int64_t *added) {
    int64_t kept = 0;
    uint64_t now = key ? *key : 0;
    for (int64_t here = -1;; path[kept++] = here) {
        *added = chosen_token(logits + (here + 1) * vocab, key ? &now : 0, temperature, vocab);
        const int64_t after = here;
        for (here++; here < nodes && (parents[here] != after || tokens[here] != *added); here++) {}
        if (here == nodes) return kept;
        now = extended(now, *added);
    }
}

/* The `most` largest of each row, best first and the first of equals, and their indices; a shorter
 * row is filled with -INFINITY at 0. */
void foreword_best(const float *rows, int64_t count, int64_t vocab, int64_t most, float *values,
                   int64_t *places) {
    for (int64_t r = 0; r < count; r++, values += most, places += most) {
        const float *row = rows + r * vocab;
        for (int64_t i = 0; i < most; i++) values[i] = -INFINITY, places[i] = 0;
        floats least = all(-INFINITY);
        for (int64_t at = 0; at < vocab; at += LANES)
            for (uint32_t set = above(load_first(row + at, vocab - at, -INFINITY), least); set;
                 set &= set - 1) {
                const int64_t place = at + __builtin_ctz(set);
                const float found = row[place];
                int64_t i = 0, end = most - 1; /* binary search for the first smaller value */
                if (!(found > values[end])) continue;
                while (i < end) {
                    const int64_t middle = (i + end) / 2;
                    if (values[middle] >= found) i = middle + 1;
                    else end = middle;
                }
                memmove(values + i + 1, values + i, (size_t)(most - 1 - i) * sizeof *values);
                memmove(places + i + 1, places + i, (size_t)(most - 1 - i) * sizeof *places);
                values[i] = found, places[i] = place;
                least = all(values[most - 1]);
            }
    }
}

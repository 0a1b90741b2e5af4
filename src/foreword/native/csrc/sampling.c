/* Gumbel noise, draws and top-k on CPU, one call each. References: sampling/noise.py and
 * sampling/draw.py, in torch.
 *
 * Loops are written so that the compiler vectorises them; where it cannot, they use simd.h.
 */
#include "exact.h"
#include "simd/simd.h"

/* Counters computed together. More than GCC unrolls: loops that it unrolls before vectorising take
 * twice as long. */
#define WIDE 32

/* Philox4x32-10 (Salmon et al. 2011, section 4), WIDE counters side by side. */
static void philox(uint32_t c[4][WIDE], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < WIDE; i++) {
            uint64_t p0 = (uint64_t)c[0][i] * 0xD2511F53u, p1 = (uint64_t)c[2][i] * 0xCD9E8D57u;
            uint32_t a = (uint32_t)(p1 >> 32) ^ c[1][i] ^ k0,
                     b = (uint32_t)(p0 >> 32) ^ c[3][i] ^ k1;
            c[0][i] = a, c[1][i] = (uint32_t)p1, c[2][i] = b, c[3][i] = (uint32_t)p0;
        }
}

/* Standard Gumbel noise, [rows, vocab]; row r belongs to (seeds[r], positions[r], streams[r],
 * rounds[r]). */
void foreword_gumbel(const int64_t *seeds, const int64_t *positions, const int64_t *streams,
                     const int64_t *rounds, int64_t rows, int64_t vocab, float *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t quad = 0; quad * 4 < vocab; quad += WIDE) {
            uint32_t c[4][WIDE];
            float noise[WIDE * 4];
            for (int i = 0; i < WIDE; i++)
                c[0][i] = (uint32_t)(quad + i), c[1][i] = (uint32_t)positions[r],
                c[2][i] = (uint32_t)streams[r], c[3][i] = (uint32_t)rounds[r];
            philox(c, (uint32_t)seeds[r], (uint32_t)(seeds[r] >> 32));
            for (int word = 0; word < 4; word++)
                for (int i = 0; i < WIDE; i++)
                    noise[i * 4 + word] = (float)-ln(-ln((c[word][i] + 0.5) * 0x1p-32));
            int64_t left = vocab - quad * 4;
            memcpy(out + r * vocab + quad * 4, noise,
                   sizeof(float) * (left < WIDE * 4 ? left : WIDE * 4));
        }
}

/* argmax(row / temperature + extra), the first of equals; temperature 0: argmax(row). extra may be
 * NULL.
 *
 * Not inlined: GCC would test that in every iteration and not vectorise, which is 20 times as slow.
 */
__attribute__((noinline)) static int64_t likeliest(const float *row, const float *extra,
                                                   float temperature, int64_t vocab) {
    float best[LANES];
    int32_t where[LANES];
    for (int i = 0; i < LANES; i++) best[i] = -INFINITY, where[i] = i;
    int64_t whole = vocab / LANES * LANES;
    int divide = temperature > 0 && temperature != 1;
    for (int64_t at = 0; at < whole; at += LANES)
        for (int i = 0; i < LANES; i++) {
            float value = divide ? row[at + i] / temperature : row[at + i];
            if (extra) value += extra[at + i];
            where[i] = value > best[i] ? (int32_t)at + i : where[i];
            best[i] = value > best[i] ? value : best[i];
        }
    for (int64_t at = whole; at < vocab; at++) {
        float value = (divide ? row[at] / temperature : row[at]) + (extra ? extra[at] : 0);
        if (value > best[at % LANES]) best[at % LANES] = value, where[at % LANES] = (int32_t)at;
    }
    int winner = 0;
    for (int i = 1; i < LANES; i++)
        if (best[i] > best[winner] || (best[i] == best[winner] && where[i] < where[winner]))
            winner = i;
    return where[winner];
}

/* The same for each row of the logits, with row places[r] of the noise, which may be NULL. */
void foreword_likeliest(const float *logits, const float *noise, const int64_t *places,
                        float temperature, int64_t rows, int64_t vocab, int64_t *out) {
    for (int64_t r = 0; r < rows; r++)
        out[r] = likeliest(logits + r * vocab, noise ? noise + places[r] * vocab : 0, temperature,
                           vocab);
}

/* Walk the tree from the root: draw a token, go to the child with that token, stop where there is
 * none. Parents come before children. `path` gets the accepted nodes, `added` the token after them.
 * Noise, which may be NULL, has a row for each token drawn. Returns the number of accepted nodes.
 */
int64_t foreword_follow(const float *logits, const float *noise, float temperature, int64_t vocab,
                        const int64_t *tokens, const int64_t *parents, int64_t nodes, int64_t *path,
                        int64_t *added) {
    int64_t kept = 0;
    for (int64_t here = -1;; path[kept++] = here) {
        *added = likeliest(logits + (here + 1) * vocab, noise ? noise + kept * vocab : 0,
                           temperature, vocab);
        const int64_t after = here;
        for (here++; here < nodes && (parents[here] != after || tokens[here] != *added); here++) {}
        if (here == nodes) return kept;
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

/* A read of memory at full bandwidth: several streams in parallel, each prefetched, as the forward
 * reads weights. */
#include <stdint.h>

#define STREAMS 4
#define WORDS 128  /* of 8 bytes, read from a stream before the next one */
#define AHEAD 2048 /* bytes of prefetch distance */

/* Return the sum of `bytes` bytes as 64-bit words; aligned to a word, a multiple of STREAMS * WORDS
 * words. */
uint64_t foreword_read(const uint64_t *from, int64_t bytes) {
    const int64_t each = bytes / 8 / STREAMS;
    uint64_t sum[8] = {0};
    for (int64_t at = 0; at < each; at += WORDS)
        for (int s = 0; s < STREAMS; s++) {
            const uint64_t *words = from + s * each + at;
            for (int i = 0; i < WORDS; i += 8) {
                __builtin_prefetch((const char *)(words + i) + AHEAD);
                for (int k = 0; k < 8; k++) sum[k] += words[i + k];
            }
        }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

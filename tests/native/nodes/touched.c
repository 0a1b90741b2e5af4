/* Prints how many pages of a matrix were written by another thread than the one that has their panels, or by none.
 * Arguments: threads. One thread plays them all. */
#include <foreword.c>
#include <stdio.h>

#define BYTES_MOST (1 << 22)

/* The thread whose share of a product has a panel. */
static int reader(int64_t panel, const Dealt *s, int threads) {
    int thread = 0;
    while (share_start(s->chunks, thread + 1, threads) * s->size <= panel) thread++;
    return thread;
}

int main(int count, char **argument) {
    (void)count;
    static _Alignas(PAGE_BYTES) char memory[BYTES_MOST];
    const int threads = atoi(argument[1]);
    int wrong = 0, pages = 0;
    for (int64_t outputs = LANES; outputs < 3000; outputs += 7 * LANES) {
        const Product p = {.outputs = outputs, .depth = 512, .rows = 1, .by = &whole_coding};
        const Dealt s = dealt(&p, threads);
        Touch touch = {.to = memory + 64, .bytes = outputs * 512 * 2, .outputs = outputs};
        Share share[threads];
        memset(share, 0, sizeof share);
        const Job job = {.touch = &touch, .share = share, .threads = threads};
        memset(memory, -1, sizeof memory);
        for (int me = 0; me < threads; me++) {
            touch_share(&job, me);
            for (int64_t at = PAGE_BYTES; at < 64 + touch.bytes; at += PAGE_BYTES) {
                const int owner = reader((at - 64) / (512 * 2 * PANEL), &s, threads);
                const int writes = owner == me ? me > 0 : owner == 0 && me == 1;
                pages += me == 0, wrong += writes != !memory[at];
                memory[at] = -1;
            }
        }
        wrong += touch.shares != threads || memory[0] != -1 || memory[64 + touch.bytes] != -1;
    }
    printf("%d of %d\n", wrong, pages);
    return 0;
}

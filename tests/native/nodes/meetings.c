/* Threads do the chunks of thousands of phases in groups, and each phase reads what the one before wrote; prints what
 * test_nodes.py compares. Arguments: threads, threads of a group, phases. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>

#define MOST 8        /* threads */
#define CHUNK_MOST 19 /* chunks of a phase: fewer than threads, as many, or more */

static Share share[MOST];
static Meeting meeting[MOST + 1];
static int first[MOST + 1], threads, nodes, phases;
static int64_t cell[2][CHUNK_MOST]; /* written in a phase, read in the next one: not atomic */
static atomic_llong done;

static void *run(void *argument) {
    const int me = (int)(intptr_t)argument;
    Worker worker = {.share = share, .meeting = meeting, .first = first, .me = me, .threads = threads,
                     .node = home_of(first, me), .nodes = nodes}, *w = &worker;
    int64_t before = 0;
    for (int phase = 0; phase < phases; phase++) {
        const int64_t chunks = 1 + phase % CHUNK_MOST;
        for (int64_t chunk; (chunk = claim(w, chunks)) >= 0;) {
            int64_t sum = 1;
            for (int64_t i = 0; i < before; i++) sum += cell[phase % 2][i];
            cell[(phase + 1) % 2][chunk] = sum % 1000003;
            atomic_fetch_add_explicit(&done, 1, memory_order_relaxed);
        }
        end_phase(w, chunks);
        if (phase % 7 == 0) end_phase(w, 0);
        before = chunks;
    }
    return 0;
}

int main(int count, char **argument) {
    (void)count;
    pthread_t thread[MOST];
    threads = atoi(argument[1]), phases = atoi(argument[3]);
    for (int at = 0; at < threads; at += atoi(argument[2])) first[nodes++] = at;
    first[nodes] = threads;
    for (intptr_t i = 0; i < threads; i++) pthread_create(thread + i, 0, run, (void *)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
    printf("%lld", (long long)done);
    for (int i = 0; i < CHUNK_MOST; i++) printf(" %lld", (long long)cell[phases % 2][i]);
    printf("\n");
    return 0;
}

/* Sharing of the work of a forward among its threads.
 *
 * A phase is a number of chunks. Each thread has a share of them, the same ones in every forward:
 * what it reads may still be in its core's caches, and its progress counter is on its own cache
 * line. A thread that is done takes chunks from the shares of others, so a preempted thread delays
 * only the chunk that it holds, not its whole share.
 */
#ifndef FOREWORD_THREADS_H
#define FOREWORD_THREADS_H

#include <sched.h>
#include <stdatomic.h>

#include "base.h"

/* Chunks per thread: with fewer, threads wait long for the last one; more cost overhead. */
#define CHUNKS 4

typedef struct {
    _Alignas(64) atomic_llong taken; /* chunks taken, and the number of their phase: see in_phase */
} Share;

typedef struct {
    _Alignas(64) atomic_llong done; /* chunks done by all threads */
} Phase;

/* One thread in a forward. */
typedef struct {
    Share *share; /* [threads] */
    Phase *phase; /* [phases] */
    int me, threads;
    /* Its current phase; chunks done there that are not yet added to Phase.done. */
    int64_t at, done;
} Worker;

/* The value of Share.taken if nothing was taken in this phase. It may still be of an earlier phase,
 * if its thread is late. */
static inline long long in_phase(int64_t at) { return (at + 1LL) << 32; }

/* Take a chunk of the share of thread `whose`; -1 = none left. */
static inline int64_t take(const Worker *w, int whose, int64_t chunks) {
    const int64_t first = parts_of(chunks * whose, w->threads),
                  stop = parts_of(chunks * (whose + 1), w->threads);
    atomic_llong *taken = &w->share[whose].taken;
    const long long none = in_phase(w->at);
    for (long long seen = atomic_load_explicit(taken, memory_order_relaxed);;) {
        const long long count = at_least(seen - none, 0);
        if (count >= stop - first) return -1;
        if (atomic_compare_exchange_weak_explicit(taken, &seen, none + count + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
            return first + count;
    }
}

/* Claim a chunk to do; -1 = none is left in this phase. */
static inline int64_t claim(const Worker *w, int64_t chunks) {
    int64_t chunk = -1;
    for (int i = 0; i < w->threads && chunk < 0; i++)
        chunk = take(w, (w->me + i) % w->threads, chunks);
    return chunk;
}

static inline void finished(Worker *w) { w->done++; }

/* Wait until all chunks of the phase are done, and enter the next one. */
static inline void wait(Worker *w, int64_t chunks) {
    atomic_llong *done = &w->phase[w->at++].done;
    if (w->done) atomic_fetch_add_explicit(done, w->done, memory_order_release);
    w->done = 0;
    for (int64_t spins = 0; atomic_load_explicit(done, memory_order_acquire) < chunks; spins++)
        if (spins < 4096) pause_briefly();
        else sched_yield();
}

/* Share a loop over rows or heads among threads, `size` of them a chunk. */
#define SHARE(total, size, item, work)                                                             \
    do {                                                                                           \
        const int64_t chunks_ = parts_of(total, size);                                             \
        for (int64_t c_; (c_ = claim(w, chunks_)) >= 0; finished(w)) {                             \
            const int64_t stop_ = at_most((c_ + 1) * (size), total);                               \
            for (int64_t item = c_ * (size); item < stop_; item++) work;                           \
        }                                                                                          \
        wait(w, chunks_);                                                                          \
    } while (0)

#endif

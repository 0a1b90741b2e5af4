/* Shares the work of a forward among its threads.
 *
 * A phase is so many chunks, of which each thread has a share, the same ones in every forward: what it reads may still
 * be in its core's own caches then, and nobody else writes where it notes how far it is. Whoever is done takes from
 * the shares of others: a thread that the machine has taken off its core is waited for with the chunk that it holds,
 * not with its share, as it would be at a barrier.
 */
#include <sched.h>
#include <stdatomic.h>

static inline int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }
static inline int64_t at_least(int64_t n, int64_t least) { return n > least ? n : least; }
static inline int64_t parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }

typedef struct {
    _Alignas(64) atomic_llong taken; /* chunks, beside the number of the phase that they are of: see in_phase */
} Share;

typedef struct {
    _Alignas(64) atomic_llong done; /* chunks, whoever did them */
} Phase;

/* One thread in a forward. */
typedef struct {
    Share *share; /* [threads] */
    Phase *phase; /* [phases] */
    int me, threads;
    int64_t at, done; /* the phase that it is in; chunks it did there, of which nobody was told so far */
} Worker;

/* What a share notes when nothing of it was taken in a phase. It may still be of an earlier one, whose thread is late. */
static inline long long in_phase(int64_t at) { return (at + 1LL) << 32; }

/* A chunk of the share of thread `whose`, or -1. */
static inline int64_t take(const Worker *w, int whose, int64_t chunks) {
    const int64_t first = parts_of(chunks * whose, w->threads), stop = parts_of(chunks * (whose + 1), w->threads);
    atomic_llong *taken = &w->share[whose].taken;
    const long long none = in_phase(w->at);
    for (long long seen = atomic_load_explicit(taken, memory_order_relaxed);;) {
        const long long count = at_least(seen - none, 0);
        if (count >= stop - first) return -1;
        if (atomic_compare_exchange_weak_explicit(taken, &seen, none + count + 1, memory_order_relaxed, memory_order_relaxed)) return first + count;
    }
}

/* A chunk to do, or -1: nothing is left in this phase. */
static inline int64_t claim(const Worker *w, int64_t chunks) {
    int64_t chunk = -1;
    for (int i = 0; i < w->threads && chunk < 0; i++) chunk = take(w, (w->me + i) % w->threads, chunks);
    return chunk;
}

static inline void finished(Worker *w) { w->done++; }

/* Until all chunks of the phase are done; then the thread is in the next one. */
static inline void wait(Worker *w, int64_t chunks) {
    atomic_llong *done = &w->phase[w->at++].done;
    if (w->done) atomic_fetch_add_explicit(done, w->done, memory_order_release);
    w->done = 0;
    for (int64_t spins = 0; atomic_load_explicit(done, memory_order_acquire) < chunks; spins++)
        if (spins < 4096) pause_briefly();
        else sched_yield();
}

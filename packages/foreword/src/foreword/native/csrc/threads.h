/* Sharing of the work of a forward among its threads.
 *
 * A phase is a number of chunks. Each thread has a share of them, the same ones in every forward:
 * what it reads may still be in its core's caches, and its progress counter is on its own cache
 * line. A thread that is done takes chunks from the shares of others, first on its own NUMA node,
 * so a preempted thread delays only the chunk that it holds, not its whole share.
 *
 * A phase has ended when all its chunks are done, by any threads: it waits for no thread. With
 * several nodes, the chunks in the shares of a node are counted on a line of that node, and only
 * the thread that does the last of them goes to the line of all nodes. Each thread waits on a line
 * of its node.
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

/* Where the threads of a node meet. Both count chunks of all phases since the forward began, so
 * that a late thread sees that its phase has ended. */
typedef struct {
    _Alignas(64) atomic_llong done;  /* in the shares of this node's threads */
    _Alignas(64) atomic_llong ended; /* in phases that have ended; unused if there is one node */
} Meeting;

#define MOST_NODES 32 /* two sockets of sixteen L3 caches each */

/* One thread in a forward. */
typedef struct {
    Share *share;     /* [threads] */
    Meeting *meeting; /* [nodes + 1], the last one of all nodes: chunks of nodes that are done */
    const int *first; /* [nodes + 1]: the first thread of each node; the last entry is `threads` */
    int me, threads, node, nodes;
    int64_t at, all; /* its current phase; chunks of all phases before it */
    /* Of each node: chunks of its shares in these phases; chunks that this thread took from them
     * and has not added to Meeting.done yet. */
    int64_t due[MOST_NODES], done[MOST_NODES];
} Worker;

/* The value of Share.taken if nothing was taken in this phase. It may still be of an earlier phase,
 * if its thread is late. */
static inline long long in_phase(int64_t at) { return (at + 1LL) << 32; }

/* The node of a thread. */
static inline int home_of(const int *first, int thread) {
    int node = 0;
    while (thread >= first[node + 1]) node++;
    return node;
}

/* The first chunk of a thread's share. */
static inline int64_t share_start(int64_t chunks, int64_t thread, int threads) {
    return parts_of(chunks * thread, threads);
}

/* Take a chunk of the share of thread `whose`; -1 = none left. */
static inline int64_t take(const Worker *w, int whose, int64_t chunks) {
    const int64_t first = share_start(chunks, whose, w->threads),
                  stop = share_start(chunks, whose + 1, w->threads);
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

/* Claim a chunk, to be done before the wait; -1 = none is left in this phase. */
static inline int64_t claim(Worker *w, int64_t chunks) {
    const int first = w->first[w->node], size = w->first[w->node + 1] - first;
    for (int i = 0; i < w->threads; i++) {
        const int whose = i < size ? first + (w->me - first + i) % size : (first + i) % w->threads;
        const int64_t chunk = take(w, whose, chunks);
        if (chunk < 0) continue;
        w->done[home_of(w->first, whose)]++;
        return chunk;
    }
    return -1;
}

/* Add the chunks that this thread has done in shares of a node, which are `share` of the phase's
 * `chunks`; with the last of all, let all nodes go on. Ends are added, not stored: the next phase
 * may end without a node whose `ended` still lacks this one, and be counted there first. */
static inline void end_chunks(Worker *w, int node, int64_t share, int64_t chunks) {
    Meeting *m = w->meeting;
    const int64_t count = w->done[node];
    w->due[node] += share, w->done[node] = 0;
    if (!count) return;
    const int64_t done =
        count + atomic_fetch_add_explicit(&m[node].done, count, memory_order_acq_rel);
    if (done < w->due[node]) return;
    if (share + atomic_fetch_add_explicit(&m[w->nodes].done, share, memory_order_acq_rel) == w->all)
        for (int i = 0; i < w->nodes; i++)
            atomic_fetch_add_explicit(&m[i].ended, chunks, memory_order_release);
}

/* Wait until all chunks of the phase are done, and enter the next one. */
static inline void end_phase(Worker *w, int64_t chunks) {
    Meeting *here = w->meeting + w->node;
    const atomic_llong *ended = &here->done;
    w->at++, w->all += chunks;
    if (w->nodes == 1) {
        if (w->done[0]) atomic_fetch_add_explicit(&here->done, w->done[0], memory_order_release);
        w->done[0] = 0;
    } else {
        ended = &here->ended;
        for (int i = 0; i < w->nodes; i++) {
            const int64_t from = share_start(chunks, w->first[i], w->threads),
                          to = share_start(chunks, w->first[i + 1], w->threads);
            end_chunks(w, i, to - from, chunks);
        }
    }
    for (int64_t spins = 0; atomic_load_explicit(ended, memory_order_acquire) < w->all; spins++)
        if (spins < 4096) pause_briefly();
        else sched_yield();
}

/* Share a loop over rows or heads among threads, `size` of them a chunk. */
#define SHARE(total, size, item, work)                                                             \
    do {                                                                                           \
        const int64_t chunks_ = parts_of(total, size);                                             \
        for (int64_t c_; (c_ = claim(w, chunks_)) >= 0;) {                                         \
            const int64_t stop_ = at_most((c_ + 1) * (size), total);                               \
            for (int64_t item = c_ * (size); item < stop_; item++) work;                           \
        }                                                                                          \
        end_phase(w, chunks_);                                                                     \
    } while (0)

#endif

/* Sharing of the work of a forward among its threads, and a thread that reads weights from a file.
 *
 * A phase is a number of chunks. Each thread has a share of them, the same ones in every forward: what it reads may still
 * be in its core's caches, and its progress counter is on its own cache line. A thread that is done takes chunks from
 * the shares of others, so a preempted thread delays only the chunk that it holds, not its whole share.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#ifndef O_DIRECT
#define O_DIRECT 0
#endif

static inline int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }
static inline int64_t at_least(int64_t n, int64_t least) { return n > least ? n : least; }
static inline int64_t parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }

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
    int64_t at, done; /* its current phase; chunks done there that are not yet added to Phase.done */
} Worker;

/* The value of Share.taken if nothing was taken in this phase. It may still be of an earlier phase, if its thread is late. */
static inline long long in_phase(int64_t at) { return (at + 1LL) << 32; }

/* Take a chunk of the share of thread `whose`; -1 = none left. */
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

/* Claim a chunk to do; -1 = none is left in this phase. */
static inline int64_t claim(const Worker *w, int64_t chunks) {
    int64_t chunk = -1;
    for (int i = 0; i < w->threads && chunk < 0; i++) chunk = take(w, (w->me + i) % w->threads, chunks);
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

/* ---- weights larger than memory: layers that are read from a file in every forward, by a thread that reads ahead.
 *
 * Parts, the matrices of a layer each, are numbered on from forward to forward; part k is read into slot k % SLOTS. A
 * layer waits for its part, and gives the slot of the layer before to a later one. The first parts of the next forward
 * are read while none runs. */

#define SLOTS 2
#define READ (8 << 20) /* bytes of a read; larger ones are no faster */

typedef struct Stream {
    int file, stopped;
    atomic_int failed; /* errno of a read */
    int64_t first, parts; /* the first layer that is read, and the number of them: a multiple of SLOTS */
    int64_t *start; /* [parts + 1]: where each part starts in the file */
    char *slot; /* [SLOTS, size] */
    int64_t size;
    int64_t used, base; /* parts that are done with; the first one of this forward */
    atomic_llong read;
    pthread_mutex_t lock;
    pthread_cond_t some_read, some_used;
    pthread_t reader;
} Stream;

/* Read a part into its slot; 0, or errno. */
static int read_part(const Stream *s, int64_t number) {
    const int64_t part = number % s->parts, bytes = s->start[part + 1] - s->start[part];
    char *to = s->slot + number % SLOTS * s->size;
    for (int64_t at = 0; at < bytes;) {
        const ssize_t got = pread(s->file, to + at, at_most(bytes - at, READ), s->start[part] + at);
        if (got > 0) at += got;
        else if (!got || errno != EINTR) return got ? errno : ENODATA;
    }
    return 0;
}

static void *read_on(void *argument) {
    Stream *s = argument;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        int64_t next = at_least(atomic_load(&s->read), s->used); /* a forward may have ended before its last layer */
        while (!s->stopped && next >= s->used + SLOTS) pthread_cond_wait(&s->some_used, &s->lock), next = at_least(next, s->used);
        if (s->stopped) break;
        pthread_mutex_unlock(&s->lock);
        const int failed = read_part(s, next);
        pthread_mutex_lock(&s->lock);
        if (failed) atomic_store(&s->failed, failed);
        atomic_store(&s->read, next + 1);
        pthread_cond_broadcast(&s->some_read);
    }
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static void release_parts(Stream *s, int64_t used) {
    pthread_mutex_lock(&s->lock);
    s->used = at_least(used, s->used);
    pthread_cond_signal(&s->some_used);
    pthread_mutex_unlock(&s->lock);
}

/* Wait until the weights of a layer are in memory; those of the layer before are done with. */
static void enter_layer(Stream *s, int64_t layer, int me) {
    const int64_t number = s->base + layer - s->first;
    if (layer < s->first) return;
    if (!me && layer > s->first) release_parts(s, number);
    if (atomic_load(&s->read) > number) return;
    pthread_mutex_lock(&s->lock);
    while (atomic_load(&s->read) <= number) pthread_cond_wait(&s->some_read, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* End a forward, which no thread is in any more. */
static void end_forward(Stream *s) { release_parts(s, s->base += s->parts); }

/* Start to read a file; `start` as in Stream. NULL: it cannot be opened (errno). */
Stream *foreword_stream(const char *path, int64_t first, int64_t parts, const int64_t *start, char *slot, int64_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file < 0) file = open(path, O_RDONLY | O_CLOEXEC); /* not every file system reads past the page cache */
    if (file < 0) return 0;
    Stream *s = calloc(1, sizeof *s);
    s->start = malloc((parts + 1) * sizeof *start);
    memcpy(s->start, start, (parts + 1) * sizeof *start);
    s->file = file, s->first = first, s->parts = parts, s->slot = slot, s->size = size;
    pthread_mutex_init(&s->lock, 0), pthread_cond_init(&s->some_read, 0), pthread_cond_init(&s->some_used, 0);
    if (!(errno = pthread_create(&s->reader, 0, read_on, s))) return s;
    close(file), free(s->start), free(s);
    return 0;
}

/* errno of a read that failed; 0 = none did. */
int foreword_stream_failed(const Stream *s) { return atomic_load(&s->failed); }

void foreword_end_stream(Stream *s) {
    pthread_mutex_lock(&s->lock);
    s->stopped = 1;
    pthread_cond_signal(&s->some_used);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->reader, 0);
    close(s->file), free(s->start), free(s);
}

/* One forward of a Llama-like model in one call: bfloat16 weights, float32 sums, keys and values
 * read in place.
 *
 * Every number is computed for its own row in one fixed order, so a row's bits do not depend on how
 * many rows a forward has, on the rows beside it, or on the number of threads. Reference: the
 * Hugging Face model it was packed from.
 *
 * Threads join a forward if they are running; no forward waits for one to start.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "attention/kv.h"
#include "foreword.h"
#include "layers/layer.h"
#include "layers/recurrent.h"
#include "stream.h"
#include "threads.h"

#define PHASES_A_LAYER 28
#define MOST_THREADS 256
#define SPINS                                                                                      \
    50000 /* iterations; a fraction of a millisecond, about the time between two forwards of a     \
             small model */

typedef struct {
    const Model *model;
    const Forward *forward;
    Share *share;
    Phase *phase;
    int threads;
} Job;

static struct {
    /* Owner: held by the one forward that has helpers; lock: guards wake, for sleeping helpers. */
    pthread_mutex_t owner, lock;
    pthread_cond_t wake;
    atomic_long epoch;
    atomic_int active, asleep;
    _Atomic(Job *) job;
    int started;
    pid_t process; /* a forked child has no helpers yet */
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER};

static void work(const Job *job, int me) {
    run_layers(
        job->model, job->forward,
        &(Worker){.share = job->share, .phase = job->phase, .me = me, .threads = job->threads});
}

static void *help(void *argument) {
    const int me = (int)(intptr_t)argument;
    for (long seen = 0;;) {
        for (long spins = 0; atomic_load(&pool.epoch) == seen; spins++) {
            if (spins < SPINS) {
                pause_briefly();
                continue;
            }
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.asleep, 1);
            while (atomic_load(&pool.epoch) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.asleep, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        seen = atomic_load(&pool.epoch);
        atomic_fetch_add(&pool.active, 1);
        Job *job = atomic_load(&pool.job);
        if (job && me < job->threads) work(job, me);
        atomic_fetch_sub(&pool.active, 1);
    }
    return 0;
}

static int gather(int threads) {
    if (pool.process != getpid()) {
        pool.process = getpid(), pool.started = 0;
        atomic_store(&pool.active, 0), atomic_store(&pool.asleep, 0);
        pthread_mutex_init(&pool.lock, 0), pthread_cond_init(&pool.wake, 0);
    }
    while (pool.started < threads - 1 && pool.started < MOST_THREADS - 1) {
        pthread_t thread;
        if (pthread_create(&thread, 0, help, (void *)(intptr_t)(pool.started + 1))) break;
        pthread_detach(thread);
        pool.started++;
    }
    return pool.started + 1 < threads ? pool.started + 1 : threads;
}

void foreword_forward(const Model *m, const Forward *f, int threads) {
    const int alone = threads < 2 || pthread_mutex_trylock(&pool.owner);
    const int together = alone ? 1 : gather(threads);
    Share share[together];
    Phase phase[m->layers * PHASES_A_LAYER + 5];
    memset(share, 0, sizeof share);
    memset(phase, 0, sizeof phase);
    Job job = {m, f, share, phase, together};
    if (!alone) {
        atomic_store(&pool.job, &job);
        atomic_fetch_add(&pool.epoch, 1);
        if (atomic_load(&pool.asleep)) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_broadcast(&pool.wake);
            pthread_mutex_unlock(&pool.lock);
        }
    }
    work(&job, 0);
    if (!alone) {
        atomic_store(&pool.job, 0);
        /* A helper may still read the job. */
        for (long spins = 0; atomic_load(&pool.active); spins++)
            if (spins < SPINS) pause_briefly();
            else sched_yield();
        pthread_mutex_unlock(&pool.owner);
    }
    if (m->stream && m->layers) end_forward(m->stream);
    commit_states(m, f);
}

int foreword_factor_bytes(void) { return sizeof(factor); }

/* [outputs, depth] to panels [depth / 2][32][2], the last of which may have 16; unused outputs are
 * 0. */
void foreword_pack(const bf16 *from, bf16 *to, int64_t outputs, int64_t depth) {
    for (int64_t first = 0; first < outputs; first += PANEL) {
        const int64_t wide = outputs - first > LANES ? PANEL : LANES;
        for (int64_t o = 0; o < wide; o++)
            for (int64_t k = 0; k < depth; k++)
                to[first * depth + (k / 2 * wide + o) * 2 + k % 2] =
                    first + o < outputs ? from[(first + o) * depth + k] : 0;
    }
}

/* Write the keys and values of a layer, [row][key, value][kv_head][dim], to the first rows of a
 * sequence with these pages. */
void foreword_write(const Model *m, int64_t layer, bf16 *const *page, const int64_t *pages,
                    int64_t rows, const float *kv) {
    const Forward f = {.page = page};
    const Span span = {.pages = pages};
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < m->kv_heads; head++)
            write_kv(m, m->layer + layer, &f, &span, kv + (2 * row * m->kv_heads + head) * m->dim,
                     row, head);
}

/* One forward of a Llama-like model in one call: bfloat16 weights, float32 sums, keys and values
 * read in place.
 *
 * Every number is computed for its own row in one fixed order, so a row's bits do not depend on how
 * many rows a forward has, on the rows beside it, or on the number of threads. Reference: the
 * Hugging Face model it was packed from.
 *
 * Threads join a forward if they are running; no forward waits for one to start. With several NUMA
 * nodes, each helper runs on the processors of its node. The caller runs anywhere, since what it
 * starts later would inherit its processors.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* cpu_set_t */
#endif
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "attention/kv.h"
#include "foreword.h"
#include "layers/layer.h"
#include "layers/recurrent.h"
#include "stream.h"
#include "threads.h"

#define MOST_THREADS 256
#define SPINS                                                                                      \
    50000 /* iterations; a fraction of a millisecond, about the time between two forwards of a     \
             small model */

#define PAGE_BYTES 4096 /* the least that a system maps at once */

/* Memory of a packed matrix. The thread that reads a page is the first to write it. */
typedef struct {
    char *to;
    int64_t bytes, outputs;
    atomic_int shares; /* that are written */
} Touch;

typedef struct {
    const Model *model;
    const Forward *forward;
    Touch *touch; /* not NULL: in place of a forward */
    Share *share;
    Meeting *meeting;
    const int *first;
    int threads, nodes;
} Job;

static struct {
    int count, first[MOST_NODES + 1]; /* node i has the threads [first[i], first[i + 1]) */
#ifdef CPU_SETSIZE
    cpu_set_t processors[MOST_NODES]; /* empty: any */
#endif
} nodes = {.count = 1, .first = {0, MOST_THREADS}};

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

/* Write to the pages that begin in the panels of a thread's share of a product with one row. The
 * caller's share is written by the first helper, which runs on the node. */
static void touch_share(const Job *job, int me) {
    Touch *t = job->touch;
    const int threads = job->threads;
    const int64_t panels = parts_of(t->outputs, PANEL), size = turns_of_chunk(panels, 1, threads),
                  chunks = parts_of(panels, size);
    const int64_t from = share_start(chunks, me == 1 ? 0 : me, threads) * size * PANEL,
                  to = share_start(chunks, me + 1, threads) * size * PANEL;
    const uintptr_t begin = (uintptr_t)t->to + t->bytes * at_most(from, t->outputs) / t->outputs,
                    end = (uintptr_t)t->to + t->bytes * at_most(to, t->outputs) / t->outputs;
    for (uintptr_t at = (begin + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; me && at < end;
         at += PAGE_BYTES)
        *(volatile char *)at = 0;
    /* A helper that woke late for an earlier job may come twice. */
    if (!atomic_exchange(&job->share[me].taken, 1)) atomic_fetch_add(&t->shares, 1);
}

static void work(const Job *job, int me) {
    if (job->touch) touch_share(job, me);
    else
        run_layers(job->model, job->forward,
                   &(Worker){.share = job->share,
                             .meeting = job->meeting,
                             .first = job->first,
                             .me = me,
                             .threads = job->threads,
                             .node = home_of(job->first, me),
                             .nodes = job->nodes});
}

/* Let this thread run on the processors of its node alone. Where the system refuses, it runs
 * anywhere. */
static void stay_on_node(int me) {
#ifdef CPU_SETSIZE
    const cpu_set_t *processors = nodes.processors + home_of(nodes.first, me);
    if (CPU_COUNT(processors))
        pthread_setaffinity_np(pthread_self(), sizeof *processors, processors);
#else
    (void)me;
#endif
}

static void *help(void *argument) {
    const int me = (int)(intptr_t)argument;
    stay_on_node(me);
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

/* Run a job by its threads; the first is this one, and the others help unless it is alone. */
static void run_job(Job *job, int alone) {
    int first[MOST_NODES + 1];
    job->nodes = 0;
    while (job->nodes < nodes.count && nodes.first[job->nodes] < job->threads)
        first[job->nodes] = nodes.first[job->nodes], job->nodes++;
    first[job->nodes] = job->threads;
    Share share[job->threads];
    Meeting meeting[job->nodes + 1];
    memset(share, 0, sizeof share);
    memset(meeting, 0, sizeof meeting);
    job->share = share, job->meeting = meeting, job->first = first;
    if (!alone) {
        atomic_store(&pool.job, job);
        atomic_fetch_add(&pool.epoch, 1);
        if (atomic_load(&pool.asleep)) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_broadcast(&pool.wake);
            pthread_mutex_unlock(&pool.lock);
        }
    }
    work(job, 0);
    /* A forward needs no helper; of shares, each is written by its thread. */
    while (job->touch && atomic_load(&job->touch->shares) < job->threads) sched_yield();
    if (alone) return;
    atomic_store(&pool.job, 0);
    /* A helper may still read the job. */
    for (long spins = 0; atomic_load(&pool.active); spins++)
        if (spins < SPINS) pause_briefly();
        else sched_yield();
    pthread_mutex_unlock(&pool.owner);
}

void foreword_forward(const Model *m, const Forward *f, int threads) {
    const int alone = threads < 2 || pthread_mutex_trylock(&pool.owner);
    Job job = {.model = m, .forward = f, .threads = alone ? 1 : gather(threads)};
    run_job(&job, alone);
    if (m->stream && m->layers) end_forward(m->stream);
    commit_states(m, f);
}

/* Have each page of new memory for a packed matrix, `outputs` in whole strips, first written by the
 * thread that will read it, so that a page lies on its node. */
void foreword_touch(void *to, int64_t bytes, int64_t outputs, int threads) {
    if (threads < 2) return;
    pthread_mutex_lock(&pool.owner);
    Touch touch = {.to = to, .bytes = bytes, .outputs = outputs};
    Job job = {.touch = &touch, .threads = gather(threads)};
    run_job(&job, 0);
}

/* Divide threads into nodes: so many each, the last has the rest. `node` is that of each processor,
 * -1 = none; NULL: helpers run anywhere. Before the first forward: running helpers stay. */
void foreword_nodes(int count, const int32_t *threads, int64_t processors, const int32_t *node) {
    pthread_mutex_lock(&pool.owner);
    nodes.count = (int)at_most(count, MOST_NODES);
    for (int i = 0; i < nodes.count; i++) nodes.first[i + 1] = nodes.first[i] + threads[i];
    nodes.first[nodes.count] = MOST_THREADS;
#ifdef CPU_SETSIZE
    memset(nodes.processors, 0, sizeof nodes.processors);
    for (int64_t i = 0; node && i < at_most(processors, CPU_SETSIZE); i++)
        if (node[i] >= 0 && node[i] < nodes.count) CPU_SET(i, nodes.processors + node[i]);
#else
    (void)processors, (void)node;
#endif
    pthread_mutex_unlock(&pool.owner);
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

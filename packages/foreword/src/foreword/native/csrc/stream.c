/* Weights larger than memory: layers that are read from a file in every forward, by a thread that
 * reads ahead.
 *
 * Parts, the matrices of a layer each, are numbered on from forward to forward; part k is read into
 * slot k % SLOTS. A layer waits for its part, and gives the slot of the layer before to a later
 * one. The first parts of the next forward are read while none runs.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT */
#endif

#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "foreword.h"

#ifdef _WIN32
#include <io.h>
#define O_CLOEXEC (O_NOINHERIT | O_BINARY)
/* One thread reads, so it may move the place in the file. */
static ssize_t pread(int file, void *to, size_t bytes, int64_t at) {
    return _lseeki64(file, at, SEEK_SET) < 0 ? -1 : read(file, to, (unsigned)bytes);
}
#endif
#ifndef O_DIRECT
#define O_DIRECT 0
#endif

#define SLOTS 2
#define READ (8 << 20) /* bytes of a read; larger ones are no faster */

struct Stream {
    int file, stopped;
    atomic_int failed; /* errno of a read */
    /* The first layer that is read, and the number of them: a multiple of SLOTS. */
    int64_t first, parts;
    int64_t *start; /* [parts + 1]: where each part starts in the file */
    char *slot;     /* [SLOTS, size] */
    int64_t size;
    int64_t used, base; /* parts that are done with; the first one of this forward */
    atomic_llong read;
    pthread_mutex_t lock;
    pthread_cond_t some_read, some_used;
    pthread_t reader;
};

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
        /* A forward may have ended before its last layer. */
        int64_t next = at_least(atomic_load(&s->read), s->used);
        while (!s->stopped && next >= s->used + SLOTS)
            pthread_cond_wait(&s->some_used, &s->lock), next = at_least(next, s->used);
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

/* Wait until the weights of a layer are in memory; the layer before is done with. */
INTERNAL void enter_layer(Stream *s, int64_t layer, int me) {
    const int64_t number = s->base + layer - s->first;
    if (layer < s->first) return;
    if (!me && layer > s->first) release_parts(s, number);
    if (atomic_load(&s->read) > number) return;
    pthread_mutex_lock(&s->lock);
    while (atomic_load(&s->read) <= number) pthread_cond_wait(&s->some_read, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* End a forward, which no thread is in any more. */
INTERNAL void end_forward(Stream *s) { release_parts(s, s->base += s->parts); }

/* Start to read a file; `start` as in Stream. NULL: it cannot be opened (errno). */
Stream *foreword_stream(const char *path, int64_t first, int64_t parts, const int64_t *start,
                        char *slot, int64_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    /* Not every file system reads past the page cache. */
    if (file < 0) file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    Stream *s = calloc(1, sizeof *s);
    s->start = malloc((parts + 1) * sizeof *start);
    memcpy(s->start, start, (parts + 1) * sizeof *start);
    s->file = file, s->first = first, s->parts = parts, s->slot = slot, s->size = size;
    pthread_mutex_init(&s->lock, 0), pthread_cond_init(&s->some_read, 0),
        pthread_cond_init(&s->some_used, 0);
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

/* Recurrent layers, in place of attention (recurrent.c). */
#ifndef FOREWORD_RECURRENT_H
#define FOREWORD_RECURRENT_H

#include "../foreword.h"

/* Convolve 16 channels of all rows of a span in place. */
INTERNAL void convolve(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                       int64_t channel);

/* Without a delta rule: the gates of a row before the convolution and after it. */
INTERNAL void gate_input(const Recurrence *a, float *x);
INTERNAL void gate_output(const Recurrence *a, const float *x, factor *to);

/* Update one head of a sequence by the rows of its span. `room` holds copies of states. */
INTERNAL void update_head(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                          int64_t head, float *room);

/* After a forward: its committed rows are part of the state. */
INTERNAL void commit_states(const Model *m, const Forward *f);

#endif

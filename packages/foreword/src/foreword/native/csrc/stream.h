/* Weights larger than memory: layers that a thread reads from a file ahead of every forward. */
#ifndef FOREWORD_STREAM_H
#define FOREWORD_STREAM_H

#include "base.h"

typedef struct Stream Stream;

/* Wait until the weights of a layer are in memory; the layer before is done with. */
INTERNAL void enter_layer(Stream *s, int64_t layer, int me);

/* End a forward, which no thread is in any more. */
INTERNAL void end_forward(Stream *s);

#endif

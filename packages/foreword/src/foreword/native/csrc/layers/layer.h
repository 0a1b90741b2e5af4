/* The layers of a model (layer.c). */
#ifndef FOREWORD_LAYER_H
#define FOREWORD_LAYER_H

#include "../foreword.h"
#include "../threads.h"

/* A thread's part of a forward. All threads call it, and leave each phase together. */
INTERNAL void run_layers(const Model *m, const Forward *f, Worker *w);

#endif

/* Quantized rows and panels of 8 bits (int8.c). */
#ifndef FOREWORD_INT8_H
#define FOREWORD_INT8_H

#include "product.h"

#define LOW 128 /* value of one unit of a high byte */

/* Bytes of a panel: scales, then codes. */
static inline int64_t byte_panel(int64_t depth) { return PANEL * (depth + (int64_t)sizeof(float)); }

/* Quantize a row to integers and return its scale. */
INTERNAL float to_integers(factor *x, int64_t depth);

#endif

/* Matrix registers (AMX): whether they are used, their shapes, and the sums that wait in them. */
#ifndef FOREWORD_AMX_H
#define FOREWORD_AMX_H

#include "product.h"

#define STEP 32   /* bfloat16 of one register of weights */
#define WIDTH 64  /* bytes of a row in a register */
#define BLOCK 16  /* rows of one register */
#define NEAR 1024 /* bytes of prefetch distance; more and less were both slower */
#define MOST_ROWS (2 * BLOCK)
#define EARLY 3 /* loop iterations before its sums are stored: see wake_unit */

#if (defined __AMX_BF16__ && defined __AMX_INT8__)                                                 \
    || (defined __AMXBF16__ && defined __AMXINT8__) /* names in older clangs */
#define MATRICES
#endif

#ifdef MATRICES

DECLARED int matrix_registers; /* set by foreword_use_amx */

/* Whether rows are quantized to separate high and low bytes. */
static inline int in_halves(int64_t depth) { return matrix_registers && depth % WIDTH == 0; }

/* Compiler barrier: earlier stores are in memory. Not every compiler knows that the AMX intrinsics
 * read memory. */
static inline void written(const void *at) { __asm__ volatile("" : : "r"(at) : "memory"); }

INTERNAL void shape_registers(int rows);
INTERNAL void release_registers(void);

INLINE void fetch(const char *at, int lines) {
#pragma GCC unroll 16
    for (int i = 0; i < lines; i++) _mm_prefetch(at + 64 * i, _MM_HINT_T0);
}

/* Sums of a panel times two blocks of rows, stored to their place while the next ones are
 * multiplied. */
typedef struct {
    _Alignas(64) float sums[MOST_ROWS][PANEL];
    int64_t row, panel;
    int rows, done;
} Due;

/* State of a thread during a product. */
struct Matrices {
    Due due[2];
    int turn;   /* the one filled last */
    int shaped; /* rows that the registers are shaped for; 0 = not shaped yet */
};

DECLARED const Coding groups_in_matrices; /* groups_amx.c */

/* How a matrix is multiplied in matrix registers; NULL = in vector registers. */
INTERNAL const Coding *matrix_coding(const Product *p);

/* Begin and end a product in a thread; store all sums that are still pending. */
INTERNAL void begin_product(Matrices *m);
INTERNAL void put_due(const Product *p, Matrices *m);
INTERNAL void end_product(const Matrices *m);

#else

struct Matrices {
    char none;
};

static inline int in_halves(int64_t depth) { return (void)depth, 0; }
static inline const Coding *matrix_coding(const Product *p) { return (void)p, (const Coding *)0; }
static inline void begin_product(Matrices *m) { (void)m; }
static inline void put_due(const Product *p, Matrices *m) { (void)p, (void)m; }
static inline void end_product(const Matrices *m) { (void)m; }

#endif

#endif

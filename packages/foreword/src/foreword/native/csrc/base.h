/* What every file of the C forward uses: linkage, inlining, prefetches and small integers.
 *
 * foreword.c includes all files, so that compilers see them as one and inline across them. Each
 * file also compiles alone, with its own includes.
 */
#ifndef FOREWORD_BASE_H
#define FOREWORD_BASE_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined __x86_64__
#include <immintrin.h>
#elif defined __ARM_NEON
#include <arm_neon.h>
#endif

/* Linkage of what several files use: of functions and definitions, and of declared constants. */
#ifdef FOREWORD_IN_ONE
#define INTERNAL static
#define DECLARED static
#else
#define INTERNAL
#define DECLARED extern
#endif

#define INLINE static inline __attribute__((always_inline))

/* Attribute of functions with product loops: gcc would hoist code that follows the loop, or add
 * products to one another before it adds them to sums, and then keep sums in memory. */
#if defined __GNUC__ && !defined __clang__
#define SUMS_STAY __attribute__((optimize("no-tree-pre", "no-tree-reassoc")))
#else
#define SUMS_STAY
#endif

/* Hide the origin of an address from the compiler, so that it does not keep related addresses in
 * registers. */
#define AS_IT_IS(at) __asm__("" : "+r"(at))

/* Prefetch into the nearest cache, or into the next level. */
INLINE void prefetch(const void *at) { __builtin_prefetch(at, 0, 3); }
INLINE void prefetch_behind(const void *at) { __builtin_prefetch(at, 0, 2); }

/* Pause in a spin loop. */
INLINE void pause_briefly(void) {
#if defined __x86_64__
    _mm_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static inline int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }
static inline int64_t at_least(int64_t n, int64_t least) { return n > least ? n : least; }
static inline int64_t parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }

#endif

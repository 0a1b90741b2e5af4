/* Matrix registers (AMX) in plain C, for processors that have none: what test_simd.py includes before the forward, so that
 * the code for them runs on every processor with AVX512.
 */
#ifndef FOREWORD_MATRICES_H
#define FOREWORD_MATRICES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define __AMX_BF16__ 1
#define __AMX_INT8__ 1

static __thread struct {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} shapes;
static __thread char registers[8][16][64];

static void load_matrix(int to, const void *from, int64_t stride) {
    memset(registers[to], 0, sizeof registers[to]);
    for (int row = 0; row < shapes.rows[to]; row++) memcpy(registers[to][row], (const char *)from + row * stride, shapes.bytes[to]);
}

static void store_matrix(int from, void *to, int64_t stride) {
    for (int row = 0; row < shapes.rows[from]; row++) memcpy((char *)to + row * stride, registers[from][row], shapes.bytes[from]);
}

/* Add the products of bytes, four to a sum. */
static void multiply_bytes(int sums, int a, int b) {
    for (int row = 0; row < shapes.rows[sums]; row++)
        for (int column = 0; column < shapes.bytes[sums] / 4; column++) {
            int32_t sum;
            memcpy(&sum, registers[sums][row] + 4 * column, 4);
            for (int k = 0; k < shapes.bytes[a]; k++) sum += (int8_t)registers[a][row][k] * (int8_t)registers[b][k / 4][4 * column + k % 4];
            memcpy(registers[sums][row] + 4 * column, &sum, 4);
        }
}

static float widened(const char *from) {
    uint32_t bits = 0;
    float whole;
    memcpy((char *)&bits + 2, from, 2);
    memcpy(&whole, &bits, 4);
    return whole;
}

/* The same of bfloat16, two to a sum. */
static void multiply_halves(int sums, int a, int b) {
    for (int row = 0; row < shapes.rows[sums]; row++)
        for (int column = 0; column < shapes.bytes[sums] / 4; column++) {
            float sum;
            memcpy(&sum, registers[sums][row] + 4 * column, 4);
            for (int k = 0; k < shapes.bytes[a] / 2; k++) sum += widened(registers[a][row] + 2 * k) * widened(registers[b][k / 2] + 4 * column + k % 2 * 2);
            memcpy(registers[sums][row] + 4 * column, &sum, 4);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) memcpy(&shapes, from, sizeof shapes)
#define _tile_release() memset(&shapes, 0, sizeof shapes)
#define _tile_zero(to) memset(registers[to], 0, sizeof registers[to])
#define _tile_loadd load_matrix
#define _tile_stream_loadd load_matrix
#define _tile_stored store_matrix
#define _tile_dpbssd multiply_bytes
#define _tile_dpbf16ps multiply_halves

#endif

/* Matrices of GGUF files packed into strips (groups.c), block by block. Defined by the readers of
 * model/quantized/gguf.py and by `packed` in executors/native/grouped.py. */
#include "../foreword.h"
#include "groups.h"

#define BLOCK_MOST 256 /* depths of the largest block */

/* Numbers to which rows are unpacked: float32, bfloat16, or float32 rounded to bfloat16. */
enum { AS_FLOAT32, AS_BF16, ROUNDED };

/* A block of a row, unpacked. */
typedef struct {
    uint8_t code[BLOCK_MOST];
    int8_t factor[BLOCK_MOST / 16], shift[BLOCK_MOST / 16]; /* of each group: scale, offset */
    uint16_t half[2]; /* scale and offset, float16 */
    float top[2];     /* of types with factors */
} Opened;

/* A type: bytes and depths of a block; depths of a group; bits of a code; whether groups have
 * factors, and offsets; the level of code 0. */
typedef struct {
    int bytes, depths, group, bits, factors, offsets, least;
    void (*unpack)(const uint8_t *from, Opened *to);
} Type;

static uint16_t half_at(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return half;
}

static float number(uint16_t half) {
    const uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31,
                   rest = half & 1023;
    uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | rest << 13;
    float value;
    if (!exponent) {
        value = (float)rest * 0x1p-24f;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* `count` bytes with two codes of 4 bits each: all low halves, then all high ones. */
static void fours_apart(const uint8_t *from, uint8_t *to, int count) {
    for (int i = 0; i < count; i++) to[i] = from[i] & 15, to[count + i] = from[i] >> 4;
}

static void unpack_q4_0(const uint8_t *from, Opened *to) {
    to->half[0] = half_at(from);
    fours_apart(from + 2, to->code, 16);
}

static void unpack_q4_1(const uint8_t *from, Opened *to) {
    to->half[0] = half_at(from), to->half[1] = half_at(from + 2);
    fours_apart(from + 4, to->code, 16);
}

static void unpack_q5_0(const uint8_t *from, Opened *to) {
    to->half[0] = half_at(from);
    fours_apart(from + 6, to->code, 16);
    for (int i = 0; i < 32; i++) to->code[i] |= (from[2 + i / 8] >> i % 8 & 1) << 4;
}

static void unpack_q8_0(const uint8_t *from, Opened *to) {
    to->half[0] = half_at(from);
    memcpy(to->code, from + 2, 32);
}

/* Scale, offset, and 12 bytes with 8 scales and 8 offsets of 6 bits. */
static void unpack_levels(const uint8_t *from, Opened *to) {
    const uint8_t *first = from + 4, *second = from + 8, *both = from + 12;
    to->top[0] = number(half_at(from)), to->top[1] = -number(half_at(from + 2));
    for (int i = 0; i < 4; i++) {
        to->factor[i] = first[i] & 63, to->shift[i] = second[i] & 63;
        to->factor[4 + i] = (both[i] & 15) | (first[i] >> 2 & 48);
        to->shift[4 + i] = both[i] >> 4 | (second[i] >> 2 & 48);
    }
}

static void unpack_q4_k(const uint8_t *from, Opened *to) {
    unpack_levels(from, to);
    for (int at = 0; at < 128; at += 32) fours_apart(from + 16 + at, to->code + 2 * at, 32);
}

static void unpack_q5_k(const uint8_t *from, Opened *to) {
    unpack_levels(from, to);
    for (int at = 0; at < 128; at += 32) fours_apart(from + 48 + at, to->code + 2 * at, 32);
    for (int run = 0; run < 8; run++)
        for (int i = 0; i < 32; i++) to->code[32 * run + i] |= (from[16 + i] >> run & 1) << 4;
}

static void unpack_q6_k(const uint8_t *from, Opened *to) {
    for (int at = 0; at < 128; at += 64) fours_apart(from + at, to->code + 2 * at, 64);
    for (int half = 0; half < 2; half++)
        for (int run = 0; run < 4; run++)
            for (int i = 0; i < 32; i++)
                to->code[128 * half + 32 * run + i] |=
                    (from[128 + 32 * half + i] >> 2 * run & 3) << 4;
    memcpy(to->factor, from + 192, 16);
    to->top[0] = number(half_at(from + 208));
}

/* In the order of BLOCKS in native/forward.py. */
static const Type TYPES[] = {
    {18, 32, 32, 4, 0, 0, -8, unpack_q4_0},  {20, 32, 32, 4, 0, 1, 0, unpack_q4_1},
    {22, 32, 32, 5, 0, 0, -16, unpack_q5_0}, {34, 32, 32, 8, 0, 0, 0, unpack_q8_0},
    {144, 256, 32, 4, 1, 1, 0, unpack_q4_k}, {176, 256, 32, 5, 1, 1, 0, unpack_q5_k},
    {210, 256, 16, 6, 1, 0, -32, unpack_q6_k},
};

/* Store the codes of one output and group; fours of depths of an output are LANES apart. */
static void store_codes(const uint8_t *code, uint32_t *to, int size, int bits) {
    const int fours = bits == 8 ? 1 : fours_of(bits == 5 ? FIVES : bits == 6 ? SIXES : FOURS);
    uint32_t four[8];
    for (int at = 0; at < size; at += QUAD * fours) {
        uint32_t above = 0;
        memcpy(four, code + at, sizeof *four * fours);
        if (bits == 8) {
            *to = *four, to += LANES;
            continue;
        }
        for (int i = 0; i < fours; i += 2, to += LANES)
            *to = (four[i] & 0x0F0F0F0F) | (four[i + 1] & 0x0F0F0F0F) << 4;
        if (bits == 4) continue;
        for (int i = 0; i < fours; i++) above |= (four[i] >> 4 & 0x03030303) << i * (bits - 4);
        *to = above, to += LANES;
    }
}

/* Store a block of one of the 16 outputs of a strip; return the bytes of the block of all. */
static int64_t store_block(const Type *type, const Opened *block, uint8_t *strip, int lane) {
    const int64_t code_bytes = type->group * LANES * type->bits / 8;
    uint8_t *at = strip;
    for (int i = 0; type->factors && i <= type->offsets; i++, at += LANES * sizeof *block->top)
        memcpy(at + lane * sizeof *block->top, block->top + i, sizeof *block->top);
    for (int group = 0; group < type->depths / type->group; group++) {
        for (int i = 0; i <= type->offsets; i++) {
            if (type->factors) {
                at[lane] = (uint8_t)(i ? block->shift : block->factor)[group];
                at += LANES;
                continue;
            }
            memcpy(at + lane * sizeof *block->half, block->half + i, sizeof *block->half);
            at += LANES * sizeof *block->half;
        }
        store_codes(block->code + group * type->group, (uint32_t *)at + lane, type->group,
                    type->bits);
        at += code_bytes;
    }
    return at - strip;
}

/* Pack `outputs` rows of a type, `depth` long; strips begin `step` bytes apart. Outputs beyond the
 * last are zero. */
void foreword_strips(int kind, const uint8_t *from, int64_t outputs, int64_t depth, uint8_t *to,
                     int64_t step) {
    const Type *type = TYPES + kind;
    const int64_t blocks = depth / type->depths, row = blocks * type->bytes;
    Opened block = {.half = {0}};
    for (int64_t output = 0; output < parts_of(outputs, LANES) * LANES; output++) {
        const int lane = output % LANES;
        const uint8_t *read = from + at_most(output, outputs - 1) * row;
        uint8_t *strip = to + output / LANES * step;
        for (int64_t i = 0; i < blocks; i++, read += type->bytes) {
            type->unpack(read, &block);
            if (output >= outputs) memset(block.half, 0, sizeof block.half),
                memset(block.top, 0, sizeof block.top);
            strip += store_block(type, &block, strip, lane);
        }
    }
}

/* The same rows as numbers: `Coded.dense`. */
void foreword_numbers(int kind, const uint8_t *from, int64_t outputs, int64_t depth, void *to,
                      int form) {
    const Type *type = TYPES + kind;
    const int64_t blocks = outputs * (depth / type->depths);
    Opened block = {.half = {0}};
    for (int64_t i = 0; i < blocks; i++, from += type->bytes) {
        type->unpack(from, &block);
        for (int k = 0; !type->factors && k < 2; k++) block.top[k] = number(block.half[k]);
        for (int at = 0; at < type->depths; at += LANES) {
            const int64_t place = i * type->depths + at;
            const int group = at / type->group;
            const float scale = type->factors ? block.top[0] * block.factor[group] : block.top[0],
                        offset = type->factors ? block.top[1] * block.shift[group] : block.top[1];
            float level[LANES];
            for (int k = 0; k < LANES; k++)
                level[k] = type->bits == 8 ? (int8_t)block.code[at + k]
                                           : block.code[at + k] + type->least;
            floats value = mul(all(scale), load(level));
            if (type->offsets) value = add(value, all(offset));
            if (form == AS_BF16) store_halves((bf16 *)to + place, narrow(value));
            else store((float *)to + place, form == ROUNDED ? widen(narrow(value)) : value);
        }
    }
}

INTERNAL void unpack_row(int kind, const void *rows, int64_t row, int64_t depth, float *to) {
    const Type *type = TYPES + kind;
    const int64_t bytes = depth / type->depths * type->bytes;
    foreword_numbers(kind, (const uint8_t *)rows + row * bytes, 1, depth, to, ROUNDED);
}

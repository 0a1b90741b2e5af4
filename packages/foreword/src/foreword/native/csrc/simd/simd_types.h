/* Types of vectors of sixteen numbers that are several parts of PART numbers each.
 *
 * simd_avx2.h or simd_generic.h defines PART, SAME (a part of equal numbers), PARTS (a structure of
 * parts), EQUAL (equal parts), EACH and its kin (a function of each part).
 */
#ifndef FOREWORD_SIMD_TYPES_H
#define FOREWORD_SIMD_TYPES_H

typedef float part __attribute__((vector_size(4 * PART)));
typedef int32_t numbers __attribute__((vector_size(4 * PART)));
typedef uint32_t bits __attribute__((vector_size(4 * PART)));
typedef uint16_t shorts __attribute__((vector_size(2 * PART)));
typedef PARTS(part) floats;
typedef PARTS(bits) pairs;
typedef PARTS(shorts) halves;
typedef int16_t word_part __attribute__((vector_size(4 * PART)));
typedef int8_t code_part __attribute__((vector_size(4 * PART)));
typedef int16_t short_part __attribute__((vector_size(2 * PART)));
typedef PARTS(numbers) counts;
typedef PARTS(word_part) words;
typedef PARTS(code_part) codes;

#endif

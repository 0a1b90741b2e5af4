/* Instruction sets that a wheel has libraries for (recipes/wheels.py), and those that this
 * processor runs. Compiled for any processor of its architecture. */
#include <stddef.h>
#include <stdint.h>

/* A set, and the bits of FEATURES words that it needs. */
enum { BASIC, SEVEN_B, SEVEN_C, SEVEN_D, SEVEN_1, EXTENDED, SAVED, FEATURES };
typedef struct {
    const char *name;
    uint32_t needs[FEATURES];
} Level;

#define BIT(n) (1u << (n))

#if defined __x86_64__

#include <cpuid.h>

/* Intel's manual, volume 2, CPUID; x86-64-v2 to v4 of the System V ABI. SAVED are the registers
 * that the operating system saves, as bits of XCR0. */
#define V2 (BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23))
#define V3 (V2 | BIT(12) | BIT(22) | BIT(27) | BIT(28) | BIT(29))
#define V3_SEVEN (BIT(3) | BIT(5) | BIT(8))
#define V4_SEVEN (V3_SEVEN | BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31))
#define V3_EXTENDED (BIT(0) | BIT(5))
#define VNNI BIT(11)
#define AVX_VNNI BIT(4)
#define BF16 BIT(5)
#define MATRICES (BIT(22) | BIT(24) | BIT(25)) /* of bfloat16, registers, of bytes */
#define V3_SAVED 0x6
#define V4_SAVED 0xe6
#define MATRICES_SAVED 0x600e6

static const Level levels[] = {
    {"amx", {V3, V4_SEVEN, VNNI, MATRICES, BF16, V3_EXTENDED, MATRICES_SAVED}},
    {"avx512-bf16", {V3, V4_SEVEN, VNNI, 0, BF16, V3_EXTENDED, V4_SAVED}},
    {"avx512-vnni", {V3, V4_SEVEN, VNNI, 0, 0, V3_EXTENDED, V4_SAVED}},
    {"avx512", {V3, V4_SEVEN, 0, 0, 0, V3_EXTENDED, V4_SAVED}},
    {"avx-vnni", {V3, V3_SEVEN, 0, 0, AVX_VNNI, V3_EXTENDED, V3_SAVED}},
    {"avx2", {V3, V3_SEVEN, 0, 0, 0, V3_EXTENDED, V3_SAVED}},
    {"sse4", {V2}},
};

static void read_features(uint32_t *has) {
    uint32_t a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) has[BASIC] = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        const uint32_t last = a;
        has[SEVEN_B] = b, has[SEVEN_C] = c, has[SEVEN_D] = d;
        if (last && __get_cpuid_count(7, 1, &a, &b, &c, &d)) has[SEVEN_1] = a;
    }
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) has[EXTENDED] = c;
    if (has[BASIC] & BIT(27)) /* else the instruction does not exist */
        __asm__ volatile("xgetbv" : "=a"(has[SAVED]), "=d"(d) : "c"(0));
}

#elif defined __aarch64__

#define DOTPROD BIT(20) /* of AT_HWCAP in Linux */

static const Level levels[] = {{"dotprod", {DOTPROD}}, {"neon", {0}}};

#if defined __linux__
#include <sys/auxv.h>
static void read_features(uint32_t *has) { has[BASIC] = (uint32_t)getauxval(AT_HWCAP); }
#else /* all processors of Apple's have it */
static void read_features(uint32_t *has) { has[BASIC] = DOTPROD; }
#endif

#else

static const Level levels[1];
static void read_features(uint32_t *has) { has[BASIC] = 0; }

#endif

/* Return the name of a set that this processor runs, the fastest one at 0; NULL after the last. */
const char *foreword_level(int number) {
    uint32_t has[FEATURES] = {0};
    read_features(has);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        int runs = levels[i].name != NULL;
        for (int k = 0; k < FEATURES; k++) runs &= (levels[i].needs[k] & ~has[k]) == 0;
        if (runs && number-- == 0) return levels[i].name;
    }
    return NULL;
}

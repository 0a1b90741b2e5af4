/* Products with weights of 4 or 8 bits, which are read as they lie and widened to bfloat16 in registers; sums as in llama.c.
 *
 * Here a panel is 16 outputs: its scales [depth / GROUP][16] in bfloat16, then its codes. 64 bytes of codes are 16 outputs by
 * 8 (NIBBLES) or 4 (BYTES) depths, as 32 words of four nibbles: word 2 o + i belongs to output o and depths 2 n + i.
 * A nibble is looked up in a table of 16 bfloat16 numbers; of a byte the high one counts sixteenfold, exactly.
 */

#define GROUP 32 /* depths that share a scale */
#define CLIPS 6  /* scales tried for a group; the largest weight may be cut by a few steps of 1/24 */

/* Quantiles of a normal law (NF4: Dettmers et al. 2023, appendix E), which weights follow better than they do a ruler. */
static const float NORMAL[16] = {
    -1.0f, -0.6961928f, -0.5250731f, -0.3949175f, -0.2844414f, -0.1847734f, -0.0910500f, 0.0f,
    0.0795803f, 0.1609302f, 0.2461123f, 0.3379152f, 0.4407098f, 0.5626170f, 0.7229568f, 1.0f,
};
static const float LOW[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const float HIGH[16] = {0, 16, 32, 48, 64, 80, 96, 112, -128, -112, -96, -80, -64, -48, -32, -16};

/* Twice over, so that the fifth bit of an index, which belongs to the next nibble, does not matter. */
static inline __m512i table(const float *levels) {
    __m512 once = _mm512_loadu_ps(levels);
    return (__m512i)_mm512_cvtne2ps_pbh(once, once);
}

static inline int64_t loads_of(int coding) { return coding == BYTES ? GROUP / 4 : GROUP / 8; }
static inline int64_t panel_bytes(int coding, int64_t depth) { return depth / GROUP * (LANES * 2 + loads_of(coding) * 64); }

static inline __attribute__((always_inline)) void coded_tile(const Product *p, int64_t row, int64_t panel, const int coding, const int R, const int P) {
    const int64_t groups = p->depth / GROUP, loads = loads_of(coding), stride = panel_bytes(coding, p->depth);
    const uint8_t *scales = (const uint8_t *)p->weight + panel * stride, *codes = scales + groups * LANES * 2;
    const bf16 *x = p->x + row * p->depth;
    const __m512i even = table(coding == BYTES ? LOW : NORMAL), odd = coding == BYTES ? table(HIGH) : even;
    __m512 sum[6][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) sum[r][i] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++) {
        __m512 part[6][2];
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) part[r][i] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int64_t load = 0; load < loads; load++) {
            __m512i word[2];
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                const uint8_t *at = codes + i * stride + (g * loads + load) * 64;
                word[i] = _mm512_loadu_si512(at);
                _mm_prefetch((const char *)(at + 2048), _MM_HINT_T0);
            }
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) {
                const int64_t k = g * GROUP + (coding == BYTES ? load * 4 + n / 2 * 2 : load * 8 + n * 2);
#pragma GCC unroll 6
                for (int r = 0; r < R; r++) {
                    int32_t pair;
                    memcpy(&pair, x + r * p->depth + k, 4);
#pragma GCC unroll 2
                    for (int i = 0; i < P; i++) {
                        __m512i weight = _mm512_permutexvar_epi16(n ? _mm512_srli_epi16(word[i], 4 * n) : word[i], n % 2 ? odd : even);
                        part[r][i] = _mm512_dpbf16_ps(part[r][i], (__m512bh)weight, (__m512bh)_mm512_set1_epi32(pair));
                    }
                }
            }
        }
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            __m512 scale = widen(_mm256_loadu_si256((const __m256i *)(scales + i * stride + g * LANES * 2)));
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) sum[r][i] = _mm512_fmadd_ps(part[r][i], scale, sum[r][i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) finish(p, row + r, panel * LANES, sum[r], P);
}

#define CODED(n) case n: if (wide == 2) coded_tile(p, row, panel, coding, n, 2); else coded_tile(p, row, panel, coding, n, 1); break;
static inline __attribute__((always_inline)) void coded_as(const Product *p, int64_t row, int64_t panel, int wide, int rows, const int coding) {
    switch (rows) { CODED(1) CODED(2) CODED(3) CODED(4) CODED(5) CODED(6) }
}
static void coded(const Product *p, int64_t row, int64_t panel, int rows) { /* one of 32 outputs, or what is left of one */
    const int wide = (panel + 1) * PANEL <= p->outputs ? 2 : 1;
    if (p->coding == BYTES) coded_as(p, row, 2 * panel, wide, rows, BYTES);
    else coded_as(p, row, 2 * panel, wide, rows, NIBBLES);
}

/* ---- making them, 16 outputs side by side */

static inline __m512i nearest(__m512 x) { /* of NORMAL */
    __m512i code = _mm512_setzero_si512();
    for (int i = 0; i < 15; i++)
        code = _mm512_mask_add_epi32(code, _mm512_cmp_ps_mask(x, _mm512_set1_ps((NORMAL[i] + NORMAL[i + 1]) / 2), _CMP_GT_OQ), code, _mm512_set1_epi32(1));
    return code;
}

/* Codes of one group under a scale; returns the sum of squared errors of each output. */
static __m512 encode(const __m512 *weight, __m512 scale, int coding, __m512i *code) {
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), scale), levels = _mm512_loadu_ps(NORMAL);
    __m512 error = _mm512_setzero_ps();
    for (int k = 0; k < GROUP; k++) {
        __m512 x = _mm512_mul_ps(weight[k], inverse), said;
        if (coding == BYTES) {
            said = _mm512_roundscale_ps(_mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(127)), _mm512_set1_ps(-127)), 0);
            code[k] = _mm512_cvtps_epi32(said);
        } else {
            code[k] = nearest(x);
            said = _mm512_permutexvar_ps(code[k], levels);
        }
        __m512 off = _mm512_sub_ps(weight[k], _mm512_mul_ps(said, scale));
        error = _mm512_fmadd_ps(off, off, error);
    }
    return error;
}

static void encode_group(const bf16 *from, int64_t wide, int coding, bf16 *scales, uint8_t *codes) {
    __m512 weight[GROUP], top = _mm512_setzero_ps(), least = _mm512_set1_ps(INFINITY), best = top;
    __m512i code[GROUP], kept[GROUP];
    for (int k = 0; k < GROUP; k++) {
        float lanes[LANES];
        for (int o = 0; o < LANES; o++) lanes[o] = (float)0, memcpy((char *)&lanes[o] + 2, from + (k / 2 * wide + o) * 2 + k % 2, 2);
        weight[k] = _mm512_loadu_ps(lanes);
        top = _mm512_max_ps(top, _mm512_abs_ps(weight[k]));
    }
    top = _mm512_max_ps(top, _mm512_set1_ps(1e-20f)); /* a group of zeros has zeros for codes, under any scale */
    for (int clip = 0; clip < CLIPS; clip++) {
        float share = (1.0f - (float)clip / 24) / (coding == BYTES ? 127 : 1);
        __m512 scale = widen((__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(top, _mm512_set1_ps(share))));
        __m512 error = encode(weight, scale, coding, code);
        __mmask16 better = _mm512_cmp_ps_mask(error, least, _CMP_LT_OQ);
        least = _mm512_mask_mov_ps(least, better, error), best = _mm512_mask_mov_ps(best, better, scale);
        for (int k = 0; k < GROUP; k++) kept[k] = _mm512_mask_mov_epi32(clip ? kept[k] : code[k], better, code[k]);
    }
    narrow_store(scales, best);
    for (int k = 0; k < GROUP; k++) {
        int32_t lanes[LANES];
        _mm512_storeu_si512(lanes, kept[k]);
        for (int o = 0; o < LANES; o++) {
            if (coding == BYTES) codes[k / 4 * 64 + (2 * o + k % 2) * 2 + k % 4 / 2] = (uint8_t)lanes[o];
            else codes[k / 8 * 64 + (2 * o + k % 2) * 2 + k % 8 / 4] |= (uint8_t)(lanes[o] << (k % 4 / 2 * 4));
        }
    }
}

/* Packed panels of bfloat16 to coded ones; `to` holds foreword_coded_bytes zeros. */
void foreword_quantize(const bf16 *from, uint8_t *to, int64_t outputs, int64_t depth, int coding) {
    for (int64_t first = 0; first < outputs; first += LANES) {
        const int64_t whole = first / PANEL * PANEL, wide = outputs - whole < PANEL ? LANES : PANEL;
        uint8_t *scales = to + first / LANES * panel_bytes(coding, depth), *codes = scales + depth / GROUP * LANES * 2;
        for (int64_t g = 0; g < depth / GROUP; g++)
            encode_group(from + whole * depth + (g * GROUP / 2 * wide + first - whole) * 2, wide, coding, (bf16 *)scales + g * LANES, codes + g * loads_of(coding) * 64);
    }
}

int64_t foreword_coded_bytes(int64_t outputs, int64_t depth, int coding) { return outputs / LANES * panel_bytes(coding, depth); }

// Panel kernels over quantised weights. Only the weights are quantised: codes become numbers in registers and meet
// the same activations as everywhere. A block of 32 inputs is summed in codes first, then scaled once and added,
// in block order.
//
//   int8   [k / 2][64][2] codes; the outputs' scales are applied after the whole sum
//   q8_0   per 32 inputs: codes [16][64][2], then fp16 d [64];             weight = d q
//   q4_1   per 32 inputs: 4 bits [4][64][8], then fp16 d [64] and m [64];  weight = d q + m
//          In the 32-bit unit of an output, nibble i of the low and of the high half hold inputs 8 g + 2 i and + 1.
#pragma once
#include "panel.h"

namespace IG_NS {

constexpr int64_t QUANT_BLOCK = 32;
constexpr int64_t Q8_BYTES = PANEL * QUANT_BLOCK + PANEL * 2;
constexpr int64_t Q4_BYTES = PANEL * QUANT_BLOCK / 2 + PANEL * 4;

// Sums of a block, scaled, onto c; `plus` holds per row what m multiplies, or is null.
template <int R, int N>
IG_INLINE void put_scaled(V (&acc)[R][N], const uint16_t* d, const uint16_t* m, const V* plus, float* c, bool first) {
    for (int v = 0; v < N; v++) {
        const V scale = v_from_fp16(d + v * W), offset = m ? v_from_fp16(m + v * W) : v_zero();
        for (int r = 0; r < R; r++) {
            float* at = c + r * PANEL + v * W;
            V sum = first ? v_zero() : v_load(at);
            if (m) sum = v_fma(offset, plus[r], sum);
            v_store(at, v_fma(scale, acc[r][v], sum));
        }
    }
}

// fp32 activations: one input at a time. Low and High name the two inputs of a 16-bit pair of codes.
template <int R, int N>
IG_INLINE void pair_wide(V (&acc)[R][N], const float* x, int64_t ldx, const uint16_t* w) {
    for (int half = 0; half < 2; half++) {
        V wv[N];
        for (int v = 0; v < N; v++) wv[v] = half ? v_high_int8(w + v * W) : v_low_int8(w + v * W);
        for (int r = 0; r < R; r++) {
            V b = v_set(x[r * ldx + half]);
            for (int v = 0; v < N; v++) acc[r][v] = v_fma(b, wv[v], acc[r][v]);
        }
    }
}

struct Int8Wide {
    using Act = float;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t) { return 0; }
    template <int R, int N, int AHEAD>
    static void block(const float* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t*) {
        const uint16_t* w = (const uint16_t*)panel + k0 / 2 * PANEL + v0 * W;
        V acc[R][N];
        clear<R, N>(acc);
        for (int64_t i = 0; i < k; i += 2, w += PANEL) pair_wide<R, N>(acc, x + i, ldx, w);
        put<R, N>(acc, c, first);
    }
};

struct Q8Wide {
    using Act = float;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t) { return 0; }
    template <int R, int N, int AHEAD>
    static void block(const float* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t*) {
        const uint8_t* at = panel + k0 / QUANT_BLOCK * Q8_BYTES;
        for (int64_t i = 0; i < k; i += QUANT_BLOCK, at += Q8_BYTES) {
            const uint16_t* w = (const uint16_t*)at + v0 * W;
            V acc[R][N];
            clear<R, N>(acc);
            for (int64_t j = 0; j < QUANT_BLOCK; j += 2, w += PANEL) pair_wide<R, N>(acc, x + i + j, ldx, w);
            put_scaled<R, N>(acc, (const uint16_t*)(at + PANEL * QUANT_BLOCK) + v0 * W, nullptr, nullptr, c,
                             first && i == 0);
        }
    }
};

struct Q4Wide {
    using Act = float;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t) { return 0; }
    template <int R, int N, int AHEAD>
    static void block(const float* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t*) {
        const uint8_t* at = panel + k0 / QUANT_BLOCK * Q4_BYTES;
        for (int64_t i = 0; i < k; i += QUANT_BLOCK, at += Q4_BYTES) {
            const uint32_t* w = (const uint32_t*)at + v0 * W;
            V acc[R][N], plus[R];
            clear<R, N>(acc);
            for (int r = 0; r < R; r++) {
                V sum = v_zero();
                for (int64_t j = 0; j < QUANT_BLOCK; j += W) sum = v_add(sum, v_load(x + r * ldx + i + j));
                plus[r] = v_set(v_hsum(sum));
            }
            for (int g = 0; g < 4; g++, w += PANEL)
                for (int j = 0; j < 8; j++) {
                    // Input 2 i sits at nibble i of the low half, 2 i + 1 at nibble i of the high half.
                    const int shift = j / 2 * 4 + j % 2 * 16;
                    V wv[N];
                    for (int v = 0; v < N; v++) wv[v] = v_nibble(w + v * W, shift);
                    for (int r = 0; r < R; r++) {
                        V b = v_set(x[r * ldx + i + g * 8 + j]);
                        for (int v = 0; v < N; v++) acc[r][v] = v_fma(b, wv[v], acc[r][v]);
                    }
                }
            const uint16_t* d = (const uint16_t*)(at + PANEL * QUANT_BLOCK / 2) + v0 * W;
            put_scaled<R, N>(acc, d, d + PANEL, plus, c, first && i == 0);
        }
    }
};

#if defined(IG_TARGET_AVX512BF16)

// 32 codes as bf16, exactly: eight bits fit its mantissa.
IG_INLINE __m512bh codes_int8(const uint8_t* p) {
    __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
    __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(p + 16))));
    return _mm512_cvtne2ps_pbh(high, low);
}

IG_INLINE __m512bh pair_of(const uint16_t* x) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
}

template <int R, int N>
IG_INLINE void pair_dot(V (&acc)[R][N], const uint16_t* x, int64_t ldx, const uint8_t* w) {
    __m512bh wv[N];
    for (int v = 0; v < N; v++) wv[v] = codes_int8(w + v * 2 * W);
    for (int r = 0; r < R; r++) {
        __m512bh b = pair_of(x + r * ldx);
        for (int v = 0; v < N; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], b, wv[v]);
    }
}

struct Int8Dot {
    using Act = uint16_t;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t) { return 0; }
    template <int R, int N, int AHEAD>
    static void block(const uint16_t* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t*) {
        const uint8_t* w = panel + (k0 / 2 * PANEL + v0 * W) * 2;
        V acc[R][N];
        clear<R, N>(acc);
        for (int64_t i = 0; i < k; i += 2, w += 2 * PANEL) pair_dot<R, N>(acc, x + i, ldx, w);
        put<R, N>(acc, c, first);
    }
};

struct Q8Dot {
    using Act = uint16_t;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t) { return 0; }
    template <int R, int N, int AHEAD>
    static void block(const uint16_t* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t*) {
        const uint8_t* at = panel + k0 / QUANT_BLOCK * Q8_BYTES;
        for (int64_t i = 0; i < k; i += QUANT_BLOCK, at += Q8_BYTES) {
            const uint8_t* w = at + v0 * W * 2;
            V acc[R][N];
            clear<R, N>(acc);
            for (int64_t j = 0; j < QUANT_BLOCK; j += 2, w += 2 * PANEL) pair_dot<R, N>(acc, x + i + j, ldx, w);
            put_scaled<R, N>(acc, (const uint16_t*)(at + PANEL * QUANT_BLOCK) + v0 * W, nullptr, nullptr, c,
                             first && i == 0);
        }
    }
};

struct Q4Dot {
    using Act = uint16_t;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = 4;  // codes in flight take registers too
    static int64_t lines(int64_t) { return 0; }
    template <int R, int N, int AHEAD>
    static void block(const uint16_t* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t*) {
        // 0 .. 15 as bf16, twice: a lookup reads five bits, and the fifth belongs to the next code.
        const __m256i half = _mm256_setr_epi16(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100,
                                               0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
        const __m512i table = _mm512_broadcast_i64x4(half);
        const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
        const uint8_t* at = panel + k0 / QUANT_BLOCK * Q4_BYTES;
        for (int64_t i = 0; i < k; i += QUANT_BLOCK, at += Q4_BYTES) {
            V acc[R][N], plus[R];
            clear<R, N>(acc);
            for (int r = 0; r < R; r++) {
                const __m512bh all = (__m512bh)_mm512_loadu_si512(x + r * ldx + i);
                plus[r] = v_set(v_hsum(_mm512_dpbf16_ps(v_zero(), all, ones)));
            }
            for (int g = 0; g < 4; g++) {
                __m512i raw[N];
                for (int v = 0; v < N; v++)
                    raw[v] = _mm512_loadu_si512((const uint32_t*)at + g * PANEL + (v0 + v) * W);
                for (int j = 0; j < 4; j++)
                    for (int v = 0; v < N; v++) {
                        const __m512bh w = (__m512bh)_mm512_permutexvar_epi16(raw[v], table);
                        raw[v] = _mm512_srli_epi16(raw[v], 4);
                        for (int r = 0; r < R; r++)
                            acc[r][v] = _mm512_dpbf16_ps(acc[r][v], pair_of(x + r * ldx + i + g * 8 + j * 2), w);
                    }
            }
            const uint16_t* d = (const uint16_t*)(at + PANEL * QUANT_BLOCK / 2) + v0 * W;
            put_scaled<R, N>(acc, d, d + PANEL, plus, c, first && i == 0);
        }
    }
};
#endif

}  // namespace IG_NS

// Rows times one panel of 64 packed outputs: the inner loops of every linear and of attention.
//
// The loops differ in how many rows and outputs they hold in registers, never in the order of an output's
// additions: blocks of K in order, inside a block K in order, each output in its own lane. That is why a row's
// bits do not depend on its companions.
#pragma once
#include "layout.h"
#include "vexp.h"

namespace IG_NS {

using ig::PANEL;

constexpr int VP = PANEL / W;  // vectors of one panel

// Rows held at once, and how many vectors of outputs go with them: as many sums as the registers carry.
#if defined(IG_AVX512)
constexpr int MAX_ROWS = 6;
constexpr int vectors_for(int) { return 4; }
#elif defined(IG_TARGET_NEON)
constexpr int MAX_ROWS = 6;
constexpr int vectors_for(int rows) { return rows == 1 ? 16 : rows == 2 ? 8 : 4; }
#elif defined(IG_TARGET_AVX2)
constexpr int MAX_ROWS = 6;
constexpr int vectors_for(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
#else
constexpr int MAX_ROWS = 4;
constexpr int vectors_for(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
#endif

template <int R, int N>
IG_INLINE void clear(V (&acc)[R][N]) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) acc[r][v] = v_zero();
}

// Sums of one K block into c [R][64]: `first` overwrites, else they are added.
template <int R, int N>
IG_INLINE void put(V (&acc)[R][N], float* c, bool first) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) {
            float* at = c + r * PANEL + v * W;
            v_store(at, first ? acc[r][v] : v_add(v_load(at), acc[r][v]));
        }
}

// Each kernel: block<R, N>(x, ldx, panel, v, k0, k, c, first) computes R rows times the N vectors of outputs
// from the v-th of a panel over inputs [k0, k0 + k), x pointing at input k0, c at output vector v.
struct Fp32 {
    using Act = float;
    static constexpr int ROWS = MAX_ROWS;
    template <int R, int N>
    static void block(const float* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first) {
        const float* w = (const float*)panel + k0 * PANEL + v0 * W;
        V acc[R][N];
        clear<R, N>(acc);
        for (int64_t i = 0; i < k; i++, w += PANEL) {
            V wv[N];
            for (int v = 0; v < N; v++) wv[v] = v_load(w + v * W);
            for (int r = 0; r < R; r++) {
                V b = v_set(x[r * ldx + i]);
                for (int v = 0; v < N; v++) acc[r][v] = v_fma(b, wv[v], acc[r][v]);
            }
        }
        put<R, N>(acc, c, first);
    }
};

// bf16 weights in pairs along K against fp32 activations: either half becomes an fp32 by its position alone.
struct Bf16Wide {
    using Act = float;
    static constexpr int ROWS = MAX_ROWS;
    template <int R, int N>
    static void block(const float* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first) {
        const uint32_t* w = (const uint32_t*)panel + k0 / 2 * PANEL + v0 * W;
        V acc[R][N];
        clear<R, N>(acc);
        for (int64_t i = 0; i < k; i += 2, w += PANEL) {
            V wv[N];
            for (int v = 0; v < N; v++) wv[v] = v_low(w + v * W);
            for (int r = 0; r < R; r++) {
                V b = v_set(x[r * ldx + i]);
                for (int v = 0; v < N; v++) acc[r][v] = v_fma(b, wv[v], acc[r][v]);
            }
            for (int v = 0; v < N; v++) wv[v] = v_high(w + v * W);
            for (int r = 0; r < R; r++) {
                V b = v_set(x[r * ldx + i + 1]);
                for (int v = 0; v < N; v++) acc[r][v] = v_fma(b, wv[v], acc[r][v]);
            }
        }
        put<R, N>(acc, c, first);
    }
};

#if defined(IG_TARGET_AVX512BF16)
struct Bf16Dot {
    using Act = uint16_t;
    static constexpr int ROWS = MAX_ROWS;
    template <int R, int N>
    static void block(const uint16_t* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first) {
        const uint32_t* w = (const uint32_t*)panel + k0 / 2 * PANEL + v0 * W;
        V acc[R][N];
        clear<R, N>(acc);
        for (int64_t i = 0; i < k; i += 2, w += PANEL) {
            __m512bh wv[N];
            for (int v = 0; v < N; v++) wv[v] = (__m512bh)_mm512_loadu_si512(w + v * W);
            for (int r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, x + r * ldx + i, 4);
                __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
                for (int v = 0; v < N; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], b, wv[v]);
            }
        }
        put<R, N>(acc, c, first);
    }
};
#endif

template <class Kernel, int R>
IG_INLINE void rows_block(const typename Kernel::Act* x, int64_t ldx, const uint8_t* panel, int vectors, int64_t k0,
                          int64_t k, float* c, bool first) {
    constexpr int N = vectors_for(R);
    for (int v = 0; v < vectors; v += N) Kernel::template block<R, N>(x, ldx, panel, v, k0, k, c + v * W, first);
}

// Rows [rows] times inputs [k0, k0 + k) of one panel; only its first `vectors` vectors need be right.
template <class Kernel>
static void times_panel(const typename Kernel::Act* x, int64_t ldx, int64_t rows, const uint8_t* panel, int vectors,
                        int64_t k0, int64_t k, float* c, bool first) {
    int64_t r = 0;
    for (; r + Kernel::ROWS <= rows; r += Kernel::ROWS)
        rows_block<Kernel, Kernel::ROWS>(x + r * ldx, ldx, panel, vectors, k0, k, c + r * PANEL, first);
    x += r * ldx;
    c += r * PANEL;
    switch (rows - r) {
        case 1: rows_block<Kernel, 1>(x, ldx, panel, vectors, k0, k, c, first); break;
        case 2: rows_block<Kernel, 2>(x, ldx, panel, vectors, k0, k, c, first); break;
        case 3: rows_block<Kernel, 3>(x, ldx, panel, vectors, k0, k, c, first); break;
        case 4: rows_block<Kernel, 4>(x, ldx, panel, vectors, k0, k, c, first); break;
        case 5: rows_block<Kernel, 5>(x, ldx, panel, vectors, k0, k, c, first); break;
        default: break;
    }
}

}  // namespace IG_NS

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

// Up to this many rows a step waits for weights from memory, and asking for them early is worth its instructions.
constexpr int64_t FEW_ROWS = 24;

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

// Sums so far, from c [R][64].
template <int R, int N>
IG_INLINE void take(V (&acc)[R][N], const float* c, bool first) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) acc[r][v] = first ? v_zero() : v_load(c + r * PANEL + v * W);
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

template <int LINES>
IG_INLINE void ask(const uint8_t* ahead, int64_t step) {
    for (int i = 0; i < LINES; i++) prefetch(ahead + (step * LINES + i) * 64);
}

// Each kernel: block<R, N, AHEAD>(x, ldx, panel, v, k0, k, c, first, ahead) computes R rows times the N vectors of
// outputs from the v-th of a panel over inputs [k0, k0 + k), x pointing at input k0, c at output vector v. It also asks
// for AHEAD cache lines from `ahead` on with each of its lines(k) steps. A CHAINED kernel goes on from the sums in c as
// if K had not been divided, so that the length of its blocks is free; the others add each block's own sums.
struct Fp32 {
    using Act = float;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t k) { return k; }
    template <int R, int N, int AHEAD>
    static void block(const float* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t* ahead) {
        const float* w = (const float*)panel + k0 * PANEL + v0 * W;
        V acc[R][N];
        clear<R, N>(acc);
        for (int64_t i = 0; i < k; i++, w += PANEL) {
            ask<AHEAD>(ahead, i);
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
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t k) { return k / 2; }
    template <int R, int N, int AHEAD>
    static void block(const float* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t* ahead) {
        const uint32_t* w = (const uint32_t*)panel + k0 / 2 * PANEL + v0 * W;
        V acc[R][N];
        clear<R, N>(acc);
        for (int64_t i = 0; i < k; i += 2, w += PANEL) {
            ask<AHEAD>(ahead, i / 2);
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
    static constexpr bool CHAINED = true;
    static constexpr int ROWS = MAX_ROWS;
    static int64_t lines(int64_t k) { return k / 2; }
    template <int R, int N, int AHEAD>
    static void block(const uint16_t* x, int64_t ldx, const uint8_t* panel, int v0, int64_t k0, int64_t k, float* c,
                      bool first, const uint8_t* ahead) {
        const uint32_t* w = (const uint32_t*)panel + k0 / 2 * PANEL + v0 * W;
        V acc[R][N];
        take<R, N>(acc, c, first);
        for (int64_t i = 0; i < k; i += 2, w += PANEL) {
            ask<AHEAD>(ahead, i / 2);
            __m512bh wv[N];
            for (int v = 0; v < N; v++) wv[v] = (__m512bh)_mm512_loadu_si512(w + v * W);
            for (int r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, x + r * ldx + i, 4);
                __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
                for (int v = 0; v < N; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], b, wv[v]);
            }
        }
        put<R, N>(acc, c, true);
    }
};
#endif

template <class Kernel, int AHEAD, int R>
IG_INLINE void rows_block(const typename Kernel::Act* x, int64_t ldx, const uint8_t* panel, int vectors, int64_t k0,
                          int64_t k, float* c, bool first, const uint8_t* ahead) {
    constexpr int N = vectors_for(R);
    Kernel::template block<R, N, AHEAD>(x, ldx, panel, 0, k0, k, c, first, ahead);
    for (int v = N; v < vectors; v += N)
        Kernel::template block<R, N, 0>(x, ldx, panel, v, k0, k, c + v * W, first, nullptr);
}

// One pass over a panel's block: at most Kernel::ROWS rows.
template <class Kernel, int AHEAD>
static void one_pass(const typename Kernel::Act* x, int64_t ldx, int64_t rows, const uint8_t* panel, int vectors,
                     int64_t k0, int64_t k, float* c, bool first, const uint8_t* ahead) {
    switch (rows) {
        case 1: return rows_block<Kernel, AHEAD, 1>(x, ldx, panel, vectors, k0, k, c, first, ahead);
        case 2: return rows_block<Kernel, AHEAD, 2>(x, ldx, panel, vectors, k0, k, c, first, ahead);
        case 3: return rows_block<Kernel, AHEAD, 3>(x, ldx, panel, vectors, k0, k, c, first, ahead);
        case 4: return rows_block<Kernel, AHEAD, 4>(x, ldx, panel, vectors, k0, k, c, first, ahead);
        case 5: return rows_block<Kernel, AHEAD, 5>(x, ldx, panel, vectors, k0, k, c, first, ahead);
        default: return rows_block<Kernel, AHEAD, Kernel::ROWS>(x, ldx, panel, vectors, k0, k, c, first, ahead);
    }
}

// Rows [rows] times inputs [k0, k0 + k) of one panel; only its first `vectors` vectors need be right.
template <class Kernel>
static void times_panel(const typename Kernel::Act* x, int64_t ldx, int64_t rows, const uint8_t* panel, int vectors,
                        int64_t k0, int64_t k, float* c, bool first) {
    for (int64_t r = 0; r < rows; r += Kernel::ROWS)
        one_pass<Kernel, 0>(x + r * ldx, ldx, min_of(rows - r, Kernel::ROWS), panel, vectors, k0, k, c + r * PANEL,
                                first, nullptr);
}

// The same for weights that are still in memory, `next` being the block that follows them there: together the passes
// over this block, which the one before has brought near, ask for each line of the next.
template <class Kernel>
static void times_fresh_panel(const typename Kernel::Act* x, int64_t ldx, int64_t rows, const uint8_t* panel, int64_t k0,
                              int64_t k, float* c, bool first, const uint8_t* next) {
    const int64_t passes = (rows + Kernel::ROWS - 1) / Kernel::ROWS;
    // A single pass asks for what it comes to itself a little later.
    if (passes == 1)
        return one_pass<Kernel, 4>(x, ldx, rows, panel, VP, k0, k, c, first, panel + Kernel::lines(k0) * PANEL * 4 + 4096);
    for (int64_t r = 0; r < rows; r += Kernel::ROWS) {
        const int64_t count = min_of(rows - r, Kernel::ROWS);
        const bool twice = passes == 2 || (passes == 3 && r == 0);
        if (twice) one_pass<Kernel, 2>(x + r * ldx, ldx, count, panel, VP, k0, k, c + r * PANEL, first, next);
        else one_pass<Kernel, 1>(x + r * ldx, ldx, count, panel, VP, k0, k, c + r * PANEL, first, next);
        next += (twice ? 2 : 1) * Kernel::lines(k) * 64;
    }
}

}  // namespace IG_NS

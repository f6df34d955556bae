// The two products of one tile for few query rows, straight from where 16 tokens lie in a bf16 store: keys are turned
// and values paired in registers, so that nothing is written that only one small group of queries would read back.
// Every sum is the chain of additions that the panel loop makes: the same bits.
#pragma once
#include "tile.h"

#if defined(IG_TARGET_AVX512BF16)

namespace IG_NS {

constexpr int64_t FEW_QUERIES = 6;
constexpr int64_t STRIP = 16;
constexpr int64_t STRIPS = KEY_TILE / STRIP;

// One head's keys or values of 16 tokens, `stride` bytes apart.
struct Strip {
    const uint8_t* at;
    int64_t stride;
};

// Strip g of a tile, `offset` bytes into its tokens: in place if all of its tokens are there and lie `token` bytes apart
// (0: they may not), else copied to `room`, zeros for those that nobody sees.
static Strip strip_of(const uint8_t* const* sources, int64_t g, int64_t offset, int64_t bytes, int64_t token,
                      uint8_t* room) {
    sources += g * STRIP;
    if (token && sources[0] && sources[STRIP - 1]) return {sources[0] + offset, token};
    room += g * STRIP * bytes;
    for (int64_t i = 0; i < STRIP; i++) memcpy(room + i * bytes, sources[i] ? sources[i] + offset : ZEROS, size_t(bytes));
    return {room, bytes};
}

IG_INLINE __m512bh pair_at(const uint16_t* x) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
}

// Scores of R rows with the keys of `count` strips to [R][64].
template <int R>
static void few_scores(const uint16_t* q, int64_t ldq, const Strip* strips, int64_t count, int64_t dim, Ahead& ahead,
                       float* scores) {
    const int64_t share = ahead.lines() / (2 * count * (dim / 32)) + 1;
    for (int64_t d = 0; d < dim; d += 32)
        for (int64_t g = 0; g < count; g++) {
            const uint8_t* rows[STRIP];
            for (int64_t i = 0; i < STRIP; i++) rows[i] = strips[g].at + i * strips[g].stride + d * 2;
            __m512i units[STRIP];
            transpose16(rows, units);
            ahead.bring(share);
            V sum[R];
            for (int r = 0; r < R; r++) sum[r] = d ? v_load(scores + r * PANEL + g * STRIP) : v_zero();
            for (int u = 0; u < STRIP; u++)
                for (int r = 0; r < R; r++)
                    sum[r] = _mm512_dpbf16_ps(sum[r], (__m512bh)units[u], pair_at(q + r * ldq + d + 2 * u));
            for (int r = 0; r < R; r++) v_store(scores + r * PANEL + g * STRIP, sum[r]);
        }
}

// N * 16 dimensions of the weights [R][64] times `keys` values (even), added to `out` [R][ld].
template <int R, int N>
static void few_values(const uint16_t* p, const Strip* strips, int64_t keys, int64_t d, Ahead& ahead, int64_t share,
                       float* out, int64_t ld) {
    const __m512i low = _mm512_load_si512(PAIR_ORDER), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    V sum[R][N];
    clear<R, N>(sum);
    for (int64_t k = 0; k < keys; k += 2) {
        const Strip& strip = strips[k / STRIP];
        const uint8_t* even = strip.at + k % STRIP * strip.stride + d * 2;
        __m512bh pairs[N];
        for (int n = 0; n < N; n += 2) {
            const __m512i a = _mm512_loadu_si512(even + n * 32), b = _mm512_loadu_si512(even + strip.stride + n * 32);
            pairs[n] = (__m512bh)_mm512_permutex2var_epi16(a, low, b);
            pairs[n + 1] = (__m512bh)_mm512_permutex2var_epi16(a, high, b);
        }
        ahead.bring(share);
        for (int r = 0; r < R; r++) {
            const __m512bh weight = pair_at(p + r * KEY_TILE + k);
            for (int n = 0; n < N; n++) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], weight, pairs[n]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) {
            float* at = out + r * ld + d + n * W;
            v_store(at, v_add(v_load(at), sum[r][n]));
        }
}

template <int R>
static void few_sums(const uint16_t* p, const Strip* strips, int64_t keys, int64_t dim, Ahead& ahead, float* out,
                     int64_t ld) {
    const int64_t share = ahead.lines() / (keys * ((dim + PANEL - 1) / PANEL)) + 1;
    int64_t d = 0;
    for (; d + PANEL <= dim; d += PANEL) few_values<R, 4>(p, strips, keys, d, ahead, share, out, ld);
    if (d < dim) few_values<R, 2>(p, strips, keys, d, ahead, share, out, ld);
}

// What runs for a number of rows in 1 ... FEW_QUERIES.
struct Few {
    void (*scores)(const uint16_t*, int64_t, const Strip*, int64_t, int64_t, Ahead&, float*);
    void (*sums)(const uint16_t*, const Strip*, int64_t, int64_t, Ahead&, float*, int64_t);
};

IG_INLINE const Few& few(int64_t rows) {
    static constexpr Few BY_ROWS[FEW_QUERIES] = {{few_scores<1>, few_sums<1>}, {few_scores<2>, few_sums<2>},
                                                 {few_scores<3>, few_sums<3>}, {few_scores<4>, few_sums<4>},
                                                 {few_scores<5>, few_sums<5>}, {few_scores<6>, few_sums<6>}};
    return BY_ROWS[rows - 1];
}

}  // namespace IG_NS

#endif

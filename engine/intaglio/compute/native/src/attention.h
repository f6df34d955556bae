// Paged attention with an online softmax over key tiles at fixed absolute positions.
//
// A tile's keys are packed with the keys in the lanes and its values with the head's dimensions in the lanes, so
// that both products are the panel loop of the linears. One task is one kv head of one row for a run of tokens;
// its query rows are tokens times the heads that share the kv head. Prefill and decode differ only in how many
// rows a task has: each row's state sees the same tiles in the same order, and a tile or key that it cannot see
// adds exact zeros. Nothing outside the keys that some query of the task sees is ever read.
#pragma once
#include "kernels.h"
#include "panel.h"
#include "rows.h"

namespace IG_NS {

using ig::AttentionJob;
using ig::KEY_TILE;

// Where a task's temporaries lie in the scratch of its thread.
struct AttentionSpace {
    float *top, *shrink, *out, *scores, *part;
    float* total;  // [rows][W]: sums stay in lanes until the end
    uint8_t *q, *p, *keys, *values;
    const uint8_t* sources[2][KEY_TILE];  // this tile's keys and the next one's
};

static AttentionSpace carve(uint8_t* scratch, int64_t rows, int64_t dim) {
    AttentionSpace s;
    const int64_t wide = ig::round_up(dim, PANEL), row_cap = ig::round_up(rows, 16);
    auto take = [&](int64_t bytes) {
        uint8_t* at = scratch;
        scratch += ig::round_up(bytes, 64);
        return at;
    };
    s.top = (float*)take(row_cap * 4);
    s.shrink = (float*)take(row_cap * 4);
    s.total = (float*)take(row_cap * W * 4);
    s.out = (float*)take(row_cap * wide * 4);
    s.scores = (float*)take(row_cap * PANEL * 4);
    s.part = (float*)take(row_cap * PANEL * 4);
    s.q = take(row_cap * ig::act_stride(dim) * 4);
    s.p = take(row_cap * KEY_TILE * 4);
    s.keys = take(KEY_TILE * ig::act_stride(dim) * 4);
    s.values = take(KEY_TILE * wide * 4);
    return s;
}

#if defined(IG_AVX512)
// 16 rows of 16 units to 16 columns.
IG_INLINE void transpose16(const uint8_t* const* rows, int64_t offset, uint32_t* to) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(rows[i] + offset);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(to + (i)*PANEL, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_si512(to + (i + 8) * PANEL, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
        _mm512_storeu_si512(to + (i + 4) * PANEL, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_storeu_si512(to + (i + 12) * PANEL, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
    }
}
#endif

// A step walks far more memory than the caches keep, and the rows of one head lie too far apart for the hardware to
// guess the next: the next tile's lines are asked for a few at a time between the work on this one.
IG_INLINE void fetch(const uint8_t* const* next, int64_t count, int64_t offset) {
    for (int64_t i = 0; i < count; i++)
        if (next[i]) prefetch(next[i] + offset);
}

// `units` 32-bit units of each of 64 keys (null: a key that nobody sees, zeros) to [unit][64].
static void transpose_units(const uint8_t* const* rows, const uint8_t* const* next, int64_t units, uint32_t* to) {
    int64_t done = 0;
#if defined(IG_AVX512)
    alignas(64) static const uint8_t zeros[64] = {0};
    for (; done + 16 <= units; done += 16)
        for (int64_t key = 0; key < KEY_TILE; key += 16) {
            const uint8_t* from[16];
            fetch(next + key, 16, done * 4);
            for (int i = 0; i < 16; i++) from[i] = rows[key + i] ? rows[key + i] + done * 4 : zeros;
            transpose16(from, 0, to + done * PANEL + key);
        }
#endif
    for (int64_t key = 0; key < KEY_TILE; key++)
        for (int64_t u = done; u < units; u++) {
            uint32_t unit = 0;
            if (rows[key]) memcpy(&unit, rows[key] + u * 4, 4);
            to[u * PANEL + key] = unit;
        }
}

// bf16 pairs [dim / 2][64][2] to fp32 [dim][64], from the last pair down so that it can be done in place.
static void widen_pairs(uint32_t* units, int64_t pairs) {
    for (int64_t u = pairs - 1; u >= 0; u--)
        for (int v = VP - 1; v >= 0; v--) {
            V low = v_low(units + u * PANEL + v * W), high = v_high(units + u * PANEL + v * W);
            v_store((float*)units + (2 * u + 1) * PANEL + v * W, high);
            // The low half overwrites only units that have been read: u <= 2 u, and equal only at u = 0.
            v_store((float*)units + 2 * u * PANEL + v * W, low);
        }
}

// Values of `keys` keys to a panel per 64 dimensions: fp32 [panel][64 keys][64], or bf16 pairs of keys
// [panel][32][64][2].
static void pack_values(const uint8_t* const* rows, int64_t keys, int64_t dim, bool half, bool pairs, uint8_t* to) {
    for (int64_t at = 0; at < dim; at += PANEL, to += KEY_TILE * PANEL * (pairs ? 2 : 4)) {
        const int64_t count = min_of(PANEL, dim - at);
        for (int64_t key = 0; key < keys; key++) {
            const uint8_t* row = rows[key];
            for (int64_t i = 0; i < count; i++) {
                if (pairs) {
                    uint16_t h = row ? ((const uint16_t*)row)[at + i] : 0;
                    ((uint16_t*)to)[(key / 2 * PANEL + i) * 2 + key % 2] = h;
                } else {
                    float x = !row ? 0.0f : half ? from_bf16(((const uint16_t*)row)[at + i]) : ((const float*)row)[at + i];
                    ((float*)to)[key * PANEL + i] = x;
                }
            }
        }
    }
}

#if defined(IG_TARGET_AVX512BF16)
static void pack_value_pairs(const uint8_t* const* rows, const uint8_t* const* next, int64_t step, int64_t keys,
                             int64_t dim, uint8_t* to) {
    for (int64_t key = 0; key < keys; key += 2) {
        for (int64_t b = 0; b < dim * 2; b += 64) fetch(next + key, 2, step + b);
        const uint16_t *a = (const uint16_t*)rows[key], *b = (const uint16_t*)rows[key + 1];
        for (int64_t i = 0; i < dim; i += 16) {
            __m256i low = a ? _mm256_loadu_si256((const __m256i*)(a + i)) : _mm256_setzero_si256();
            __m256i high = b ? _mm256_loadu_si256((const __m256i*)(b + i)) : _mm256_setzero_si256();
            __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
            uint8_t* panel = to + i / PANEL * (KEY_TILE * PANEL * 2);
            _mm512_storeu_si512(panel + (key / 2 * PANEL + i % PANEL) * 4, both);
        }
    }
}
#endif

// Pointers to the tile's keys that lie in [low, high]; null for the others.
static void find_keys(const AttentionJob& job, const IgRow& row, int64_t kv_head, int64_t start, int64_t low,
                      int64_t high, const uint8_t** sources) {
    const int64_t width = job.kv.format == IG_BF16 ? 2 : 4, size = job.kv.block_tokens;
    const int64_t token = 2 * job.kv_heads * job.head_dim * width;
    const int64_t from = max_of(start, low), to = min_of(start + KEY_TILE - 1, high);
    for (int64_t i = 0; i < from - start; i++) sources[i] = nullptr;
    // One division for the first key, then block by block.
    int64_t p = from, block = from / size, offset = from % size;
    while (p <= to) {
        const int64_t slot = int64_t(job.tables[row.table + block]) * size + offset + row.slot_offset;
        const uint8_t* at = job.kv.base + slot * token + kv_head * job.head_dim * width;
        for (; offset < size && p <= to; offset++, p++, at += token) sources[p - start] = at;
        offset = 0;
        block++;
    }
    for (int64_t i = max_of(to + 1 - start, 0); i < KEY_TILE; i++) sources[i] = nullptr;
}

// Keys and values of a tile into the two panels, the next tile's on their way. Returns the number of keys to walk,
// even.
static int64_t pack_tile(const AttentionJob& job, int64_t last_key, bool dot, const uint8_t** rows,
                         const uint8_t* const* next, AttentionSpace& s) {
    const bool half = job.kv.format == IG_BF16;
    const int64_t dim = job.head_dim, keys = min_of(KEY_TILE, ig::round_up(last_key + 1, 2));
    const int64_t step = job.kv_heads * dim * (half ? 2 : 4);
    transpose_units(rows, next, half ? dim / 2 : dim, (uint32_t*)s.keys);
    if (half && !dot) widen_pairs((uint32_t*)s.keys, dim / 2);
    for (int64_t i = 0; i < KEY_TILE; i++)
        if (rows[i]) rows[i] += step;
#if defined(IG_TARGET_AVX512BF16)
    if (dot && dim % 16 == 0) {
        pack_value_pairs(rows, next, step, keys, dim, s.values);
        return keys;
    }
#endif
    pack_values(rows, keys, dim, half, dot, s.values);
    return keys;
}

// One row's scores to weights: which keys [from, to) it sees, its maximum, sum and weights.
IG_INLINE void weigh(float* scores, int64_t from, int64_t to, float scale, float top, float* total, void* p, bool dot) {
    const V lanes = v_lanes(), factor = v_set(scale), shift = v_set(-top);
    V sum = v_load(total);
    for (int v = 0; v < VP; v++) {
        V w = v_exp2_negative(v_fma(v_load(scores + v * W), factor, shift));
        if (from > v * W) w = v_below(lanes, v_set(float(from - v * W)), v_zero(), w);
        if (to < (v + 1) * W) w = v_below(lanes, v_set(float(to - v * W)), w, v_zero());
        sum = v_add(sum, w);
        if (dot) v_to_bf16((uint16_t*)p + v * W, w);
        else v_store((float*)p + v * W, w);
    }
    v_store(total, sum);
}

IG_INLINE float highest(const float* scores, int64_t from, int64_t to) {
    const V lanes = v_lanes(), none = v_set(-__builtin_inff());
    V high = none;
    for (int v = 0; v < VP; v++) {
        V s = v_load(scores + v * W);
        if (from > v * W) s = v_below(lanes, v_set(float(from - v * W)), none, s);
        if (to < (v + 1) * W) s = v_below(lanes, v_set(float(to - v * W)), s, none);
        high = v_max(high, s);
    }
    return v_hmax(high);
}

// Queries of a task as rows [token][head of the group] of activations.
static void load_queries(const AttentionJob& job, const IgRow& row, int64_t kv_head, int64_t first, int64_t count,
                         bool dot, AttentionSpace& s) {
    const int64_t group = job.heads / job.kv_heads, dim = job.head_dim, ld = ig::act_stride(dim);
    for (int64_t r = 0; r < count * group; r++) {
        const int64_t token = row.start + first + r / group, head = kv_head * group + r % group;
        const float* q = job.q + token * job.ldq + head * dim;
        for (int64_t i = 0; i < dim; i += W) store_act(s.q, r * ld + i, load_up_to(q + i, dim - i), dim - i, dot);
    }
}

static void finish(const AttentionJob& job, const IgRow& row, int64_t kv_head, int64_t first, int64_t rows,
                   AttentionSpace& s) {
    const int64_t group = job.heads / job.kv_heads, dim = job.head_dim, wide = ig::round_up(dim, PANEL);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t token = row.start + first + r / group, head = kv_head * group + r % group;
        const float total = v_hsum(v_load(s.total + r * W));
        const V by = v_set(total);
        for (int64_t i = 0; i < dim; i += W) {
            // Adding +0 makes a zero's sign the same whether or not keys behind the query lay in its tile.
            V a = v_add(v_div(v_load(s.out + r * wide + i), by), v_zero());
            store_act(job.out, token * job.ldo + head * dim + i, a, dim - i, job.acts_bf16);
        }
        if (job.lse) job.lse[token * job.heads + head] = (s.top[r] + __builtin_log2f(total)) * 0.693147181f;
    }
}

template <class Kernel>
static void attend(const AttentionJob& job, const IgRow& row, int64_t kv_head, int64_t first, int64_t count,
                   uint8_t* scratch) {
    constexpr bool dot = sizeof(typename Kernel::Act) == 2;
    using Act = typename Kernel::Act;
    const int64_t group = job.heads / job.kv_heads, dim = job.head_dim, rows = count * group;
    const int64_t wide = ig::round_up(dim, PANEL), ld = ig::act_stride(dim);
    const int64_t position = row.context + first, final = position + count - 1;
    const int64_t low = job.window > 0 ? max_of(0, position - job.window + 1) : 0;
    const float scale = 1.44269504f / __builtin_sqrtf(float(dim));
    AttentionSpace s = carve(scratch, rows, dim);
    load_queries(job, row, kv_head, first, count, dot, s);
    for (int64_t r = 0; r < rows; r++) s.top[r] = -1e30f;
    memset(s.total, 0, size_t(rows * W * 4));
    memset(s.out, 0, size_t(rows * wide * 4));
    int now = 0;
    const int64_t begin = low / KEY_TILE * KEY_TILE;
    find_keys(job, row, kv_head, begin, low, final, s.sources[now]);
    for (int64_t start = begin; start <= final; start += KEY_TILE, now ^= 1) {
        find_keys(job, row, kv_head, start + KEY_TILE, low, final, s.sources[now ^ 1]);
        const int64_t keys = pack_tile(job, min_of(final - start, KEY_TILE - 1), dot, s.sources[now], s.sources[now ^ 1], s);
        times_panel<Kernel>((const Act*)s.q, ld, rows, s.keys, int((keys + W - 1) / W), 0, dim, s.scores, true);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = position + r / group;
            const int64_t to = min_of(at - start + 1, KEY_TILE);
            const int64_t from = job.window > 0 ? max_of(0, at - job.window + 1 - start) : 0;
            const float high = to > from && to > 0 ? highest(s.scores + r * PANEL, from, to) * scale : -1e30f;
            const float top = s.top[r] > high ? s.top[r] : high;
            s.shrink[r] = s.top[r] - top;
            s.top[r] = top;
        }
        for (int64_t r = 0; r < rows; r += W) v_store(s.shrink + r, v_exp2_negative(v_load(s.shrink + r)));
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = position + r / group;
            const int64_t to = max_of(0, min_of(at - start + 1, KEY_TILE));
            const int64_t from = job.window > 0 ? max_of(0, at - job.window + 1 - start) : 0;
            if (s.shrink[r] != 1.0f) {
                const V by = v_set(s.shrink[r]);
                v_store(s.total + r * W, v_mul(v_load(s.total + r * W), by));
                for (int64_t i = 0; i < wide; i += W) v_store(s.out + r * wide + i, v_mul(v_load(s.out + r * wide + i), by));
            }
            weigh(s.scores + r * PANEL, from, to, scale, s.top[r], s.total + r * W, (Act*)s.p + r * KEY_TILE, dot);
        }
        for (int64_t at = 0; at < dim; at += PANEL) {
            const int64_t count_here = min_of(PANEL, dim - at);
            times_panel<Kernel>((const Act*)s.p, KEY_TILE, rows, s.values + at * KEY_TILE * (dot ? 2 : 4),
                                int((count_here + W - 1) / W), 0, keys, s.part, true);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < PANEL; i += W) {
                    float* to = s.out + r * wide + at + i;
                    v_store(to, v_add(v_load(to), v_load(s.part + r * PANEL + i)));
                }
        }
    }
    finish(job, row, kv_head, first, rows, s);
}

static void attention(const AttentionJob& job, const IgRow& row, int64_t kv_head, int64_t first, int64_t count,
                      uint8_t* scratch) {
#if defined(IG_TARGET_AVX512BF16)
    if (job.rounded && job.kv.format == IG_BF16) return attend<Bf16Dot>(job, row, kv_head, first, count, scratch);
#endif
    attend<Fp32>(job, row, kv_head, first, count, scratch);
}

}  // namespace IG_NS

// A tile of keys and values from a paged store into panels, and its scores into weights.
#pragma once
#include "kernels.h"
#include "panel.h"
#include "rows.h"

namespace IG_NS {

using ig::AttentionJob;
using ig::KEY_TILE;

// Pointers to the tokens [low, high] of a tile; null for the others.
static void find_keys(const AttentionJob& job, const IgRow& row, int64_t start, int64_t low, int64_t high,
                      const uint8_t** sources) {
    const int64_t size = job.kv.block_tokens;
    const int64_t token = ig::kv_token_bytes(job.kv.format, job.kv_heads, job.head_dim);
    const int64_t from = max_of(start, low), to = min_of(start + KEY_TILE - 1, high);
    for (int64_t i = 0; i < KEY_TILE; i++) sources[i] = nullptr;
    // One division for the first key, then block by block.
    int64_t p = from, block = from / size, offset = from % size;
    for (; p <= to; block++, offset = 0) {
        const int64_t slot = int64_t(job.tables[row.table + block]) * size + offset + row.slot_offset;
        const uint8_t* at = job.kv.base + slot * token;
        for (; offset < size && p <= to; offset++, p++, at += token) sources[p - start] = at;
    }
}

// A step walks far more memory than the caches keep. Its first tile a task of all heads reads once in the order its
// tokens lie in: a plain stream, which the hardware runs ahead of much faster than single requests are served.
IG_INLINE void stream(const uint8_t* const* sources, int64_t bytes) {
    uint64_t any = 0;
    for (int64_t i = 0; i < KEY_TILE; i++)
        for (int64_t b = 0; sources[i] && b < bytes; b += 64) {
            uint64_t word;
            memcpy(&word, sources[i] + min_of(b, bytes - 8), 8);
            any |= word;
        }
    asm volatile("" : : "r"(any));
}

// Lines of the next tile, asked for a few at a time between the work on this one: `parts` runs of `bytes` bytes, `step`
// apart from `key` on, of each of its tokens [from, to). A task of one head asks for that head's keys and values, a task
// of all heads for whole tokens, in every head's turn a share of them; `together` tokens that lie one behind the other,
// the first of them at a multiple of `together`, are one run.
class Ahead {
  public:
    Ahead(const uint8_t* const* next, int64_t key, int64_t step, int64_t bytes, int64_t parts, int64_t from, int64_t to,
          int64_t together = 1)
        : next_(next), key_(key), step_(step), bytes_(bytes), parts_(parts), to_(to), together_(together),
          lines_(parts * (to - from) * ((bytes + 63) / 64)), token_(from) {
        open();
    }

    int64_t lines() const { return lines_; }

    void bring(int64_t count) {
        for (; count > 0 && at_; count--) {
            prefetch(at_);
            at_ += 64;
            if (at_ >= stop_) turn();
        }
    }

  private:
    void turn() {
        part_ = part_ + 1 < parts_ ? part_ + 1 : 0;
        if (part_ == 0) token_ += count_;
        open();
    }

    void open() {
        at_ = token_ < to_ ? next_[token_] : nullptr;
        if (!at_) return;
        count_ = 1;
        if (together_ > 1) {
            const int64_t end = min_of(to_, token_ / together_ * together_ + together_);
            if (next_[end - 1]) count_ = end - token_;
        }
        at_ += key_ + part_ * step_;
        stop_ = at_ + count_ * bytes_;
    }

    const uint8_t* const* next_;
    const int64_t key_, step_, bytes_, parts_, to_, together_, lines_;
    int64_t token_, part_ = 0, count_ = 1;
    const uint8_t *at_ = nullptr, *stop_ = nullptr;
};

// What a key or value that nobody sees is made of.
constexpr int64_t MAX_HEAD_BYTES = 2048;
alignas(64) static const uint8_t ZEROS[MAX_HEAD_BYTES] = {0};

#if defined(IG_AVX512)
// 16 rows of 16 units to 16 columns.
IG_INLINE void transpose16(const uint8_t* const* rows, __m512i* to) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(rows[i]);
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
        to[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
        to[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
        to[i + 4] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88);
        to[i + 12] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd);
    }
}
#endif

// `units` 32-bit units at `offset` of each of 64 tokens (null: a key that nobody sees, zeros) to [unit][64].
static void transpose_units(const uint8_t* const* sources, int64_t offset, int64_t units, Ahead& ahead, uint32_t* to) {
    int64_t done = 0;
#if defined(IG_AVX512)
    const int64_t share = units >= 16 ? ahead.lines() / (2 * (units / 16) * (KEY_TILE / 16)) : 0;
    for (; done + 16 <= units; done += 16)
        for (int64_t key = 0; key < KEY_TILE; key += 16) {
            const uint8_t* from[16];
            for (int i = 0; i < 16; i++) from[i] = sources[key + i] ? sources[key + i] + offset + done * 4 : ZEROS;
            __m512i columns[16];
            transpose16(from, columns);
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + (done + i) * PANEL + key, columns[i]);
            ahead.bring(share);
        }
#else
    (void)ahead;
#endif
    for (int64_t key = 0; key < KEY_TILE; key++)
        for (int64_t u = done; u < units; u++) {
            uint32_t unit = 0;
            if (sources[key]) memcpy(&unit, sources[key] + offset + u * 4, 4);
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

// Keys to a panel over the head's dimensions: bf16 pairs [dim / 2][64][2] if `pairs`, else fp32 [dim][64].
static void pack_keys(const uint8_t* const* sources, int64_t offset, int64_t dim, bool half, bool pairs, Ahead& ahead,
                      uint8_t* to) {
    transpose_units(sources, offset, half ? dim / 2 : dim, ahead, (uint32_t*)to);
    if (half && !pairs) widen_pairs((uint32_t*)to, dim / 2);
}

#if defined(IG_TARGET_AVX512BF16)
// Which of the numbers of two vectors follow each other once they are paired: the lower half; the upper is 16 further.
alignas(64) static const uint16_t PAIR_ORDER[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};

// bf16 pairs of two tokens, whole vectors of 32 dimensions at a time.
static void pair_values(const uint8_t* const* sources, int64_t offset, int64_t keys, int64_t dim, Ahead& ahead,
                        uint32_t* to) {
    const __m512i low = _mm512_load_si512(PAIR_ORDER), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const int64_t share = ahead.lines() / keys + 1;
    for (int64_t key = 0; key < keys; key += 2, to += PANEL) {
        const uint8_t* even = sources[key] ? sources[key] + offset : ZEROS;
        const uint8_t* odd = sources[key + 1] ? sources[key + 1] + offset : ZEROS;
        ahead.bring(share);
        for (int64_t i = 0; i < dim; i += 32) {
            const __m512i a = _mm512_loadu_si512(even + i * 2), b = _mm512_loadu_si512(odd + i * 2);
            uint32_t* at = to + i / PANEL * (KEY_TILE / 2 * PANEL) + i % PANEL;
            _mm512_storeu_si512(at, _mm512_permutex2var_epi16(a, low, b));
            _mm512_storeu_si512(at + 16, _mm512_permutex2var_epi16(a, high, b));
        }
    }
}
#endif

// One token's value at `from`, `count` dimensions of it, as fp32 at `to`.
IG_INLINE void widen_value(const uint8_t* from, int64_t count, bool half, float* to) {
    for (int64_t i = 0; i < count; i += W) {
        const int64_t n = count - i;
        if (n >= W) {
            v_store(to + i, half ? v_from_bf16((const uint16_t*)from + i) : v_load((const float*)from + i));
            continue;
        }
        for (int64_t j = i; j < count; j++) to[j] = half ? from_bf16(((const uint16_t*)from)[j]) : ((const float*)from)[j];
    }
}

// Values of `keys` tokens (even) to a panel per 64 dimensions: bf16 pairs of tokens [panel][32][64][2] if `pairs`,
// else fp32 [panel][64 tokens][64].
static void pack_values(const uint8_t* const* sources, int64_t offset, int64_t keys, int64_t dim, bool half, bool pairs,
                        Ahead& ahead, uint8_t* to) {
#if defined(IG_TARGET_AVX512BF16)
    if (pairs && dim % 32 == 0) return pair_values(sources, offset, keys, dim, ahead, (uint32_t*)to);
#endif
    const int64_t share = ahead.lines() / (2 * keys) + 1;
    for (int64_t key = 0; key < keys; key++) {
        const uint8_t* value = sources[key] ? sources[key] + offset : ZEROS;
        ahead.bring(share);
        for (int64_t i = 0; i < dim; i += PANEL) {
            const int64_t count = min_of(PANEL, dim - i);
            if (!pairs) {
                widen_value(value + i * (half ? 2 : 4), count, half, (float*)to + i * KEY_TILE + key * PANEL);
                continue;
            }
            uint16_t* units = (uint16_t*)to + (i * KEY_TILE / 2 + key / 2 * PANEL) * 2 + key % 2;
            for (int64_t j = 0; j < count; j++) units[2 * j] = ((const uint16_t*)value)[i + j];
        }
    }
}

// Weights of the keys [from, to) that a row sees; their sum is added to `total` lane by lane.
IG_INLINE void weights(const float* scores, int64_t from, int64_t to, float scale, float top, float* total, void* p,
                       bool dot) {
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

}  // namespace IG_NS

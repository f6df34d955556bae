// One head's keys or values of one token into a quantised store and back. The arithmetic is that of
// intaglio/state/kv_codec.py, bit for bit: both write the same bytes, since every operation rounds once and none is
// a sum whose order could matter. (A code of four bits times a bf16 step is exact, so its fused sum rounds once too.)
#pragma once
#include "kernels.h"
#include "kv_layout.h"
#include "kv_simd.h"

namespace IG_NS {

constexpr float KV_SATURATION = 0x1p126f, KV_SMALLEST_STEP = 0x1p-126f;
// Added and taken away it rounds to the nearest even whole number, for sizes below 2^22.
constexpr float KV_ROUNDER = 12582912.0f;

IG_INLINE float kv_whole(float x) { return (x + KV_ROUNDER) - KV_ROUNDER; }
IG_INLINE float kv_bounded(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// Least and greatest number of a head, and 0 where all are finite, else NaN.
struct KvSpread {
    float low, high, spoiled;
};

static KvSpread kv_spread(const float* x, int64_t dim) {
    V low = v_set(KV_SATURATION), high = v_set(-KV_SATURATION), spoiled = v_zero();
    int64_t i = 0;
    for (; i + W <= dim; i += W) {
        const V a = v_load(x + i);
        spoiled = v_add(spoiled, v_mul(a, v_zero()));
        low = v_min(a, low);
        high = v_max(a, high);
    }
    KvSpread s = {-v_hmax(v_sub(v_zero(), low)), v_hmax(high), v_hsum(spoiled)};
    for (; i < dim; i++) {
        s.spoiled += x[i] * 0.0f;
        s.low = x[i] < s.low ? x[i] : s.low;
        s.high = x[i] > s.high ? x[i] : s.high;
    }
    return s;
}

// |x| <= 448 to the nearest e4m3 (ties to even): whole steps of 2^-9 below 2^-6, three bits of fraction above.
IG_INLINE uint8_t kv_to_e4m3(float x) {
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffffu;
    const float small = (float_of(size) + 0x1.8p14f) - 0x1.8p14f;
    const uint32_t fine = uint32_t(int32_t(small * 512.0f));
    const uint32_t coarse = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
    return uint8_t((size < 0x3c800000u ? fine : coarse) | (bits >> 24 & 0x80u));
}

IG_INLINE float kv_held(float x) { return kv_bounded(x, -KV_SATURATION, KV_SATURATION); }

static void kv_encode_scaled(const float* __restrict x, int64_t dim, bool e4m3, uint8_t* parameters,
                             uint8_t* __restrict codes) {
    const float most = e4m3 ? 448.0f : 127.0f;
    const KvSpread s = kv_spread(x, dim);
    const bool sound = s.spoiled == 0.0f;
    float scale = kv_bounded(-s.low > s.high ? -s.low : s.high, 0.0f, KV_SATURATION) / most;
    scale = !sound ? float_of(0x7fc00000u) : scale < KV_SMALLEST_STEP ? KV_SMALLEST_STEP : scale;
    memcpy(parameters, &scale, 4);
    if (!sound) {
        memset(codes, 0, size_t(dim));
    } else if (e4m3) {
        for (int64_t i = 0; i < dim; i++) codes[i] = kv_to_e4m3(kv_bounded(kv_held(x[i]) / scale, -448.0f, 448.0f));
    } else {
        for (int64_t i = 0; i < dim; i++)
            codes[i] = uint8_t(int32_t(kv_whole(kv_bounded(kv_held(x[i]) / scale, -127.0f, 127.0f))));
    }
}

static void kv_encode_int4(const float* __restrict x, int64_t dim, uint8_t* parameters, uint8_t* __restrict codes) {
    const KvSpread s = kv_spread(x, dim);
    const bool sound = s.spoiled == 0.0f;
    // Adding +0 makes a zero's sign the same in whatever order the numbers were compared.
    const uint16_t low = sound ? to_bf16(kv_held(s.low) + 0.0f) : uint16_t(0);
    const float base = from_bf16(low), spread = kv_held(s.high) / 15.0f - base / 15.0f;
    const uint16_t step = sound ? to_bf16(spread < KV_SMALLEST_STEP ? KV_SMALLEST_STEP : spread) : uint16_t(0x7fc0);
    memcpy(parameters, &step, 2);
    memcpy(parameters + 2, &low, 2);
    const int64_t half = dim / 2;
    const float* __restrict upper = x + half;
    const float by = from_bf16(step);
    if (!sound) {
        memset(codes, 0, size_t(half));
        return;
    }
    for (int64_t i = 0; i < half; i++) {
        const int32_t a = int32_t(kv_whole(kv_bounded((kv_held(x[i]) - base) / by, 0.0f, 15.0f)));
        const int32_t b = int32_t(kv_whole(kv_bounded((kv_held(upper[i]) - base) / by, 0.0f, 15.0f)));
        codes[i] = uint8_t(a | b << 4);
    }
}

// Keys (part 0) or values (part 1) of head h of the token whose record is at `record`.
static void kv_encode(const float* x, int64_t format, int64_t kv_heads, int64_t dim, int64_t part, int64_t h,
                      uint8_t* record) {
    const int64_t number = part * kv_heads + h;
    uint8_t* parameters = record + number * 4;
    uint8_t* codes = record + ig::kv_parameter_bytes(format, kv_heads) + number * ig::kv_head_bytes(format, dim);
    // The padding is written as well: equal tokens are equal bytes, whatever the block held before.
    uint8_t* end = record + ig::kv_token_bytes(format, kv_heads, dim);
    if (number == 2 * kv_heads - 1)
        for (uint8_t* at = codes + ig::kv_head_bytes(format, dim); at < end; at++) *at = 0;
    if (format == IG_KV_INT4) return kv_encode_int4(x, dim, parameters, codes);
    kv_encode_scaled(x, dim, format == IG_KV_FP8, parameters, codes);
}

// `count` numbers of which `each(codes)` makes W at a time, to fp32 or bf16 at element `at` of `to`.
template <class Each>
IG_INLINE void kv_widen(const uint8_t* codes, int64_t count, void* to, int64_t at, bool half, Each each) {
    float* wide = (float*)to + at;
    uint16_t* narrow = (uint16_t*)to + at;
    int64_t i = 0;
    for (; i + W <= count; i += W) {
        if (half) v_to_bf16(narrow + i, each(codes + i));
        else v_store(wide + i, each(codes + i));
    }
    if (i == count) return;
    uint8_t rest[W] = {0};
    float last[W];
    for (int64_t j = i; j < count; j++) rest[j - i] = codes[j];
    v_store(last, each(rest));
    for (int64_t j = i; j < count; j++) {
        if (half) narrow[j] = to_bf16(last[j - i]);
        else wide[j] = last[j - i];
    }
}

// The inverse for a tile of tokens: row i of `to` becomes the `dim` numbers, fp32 or bf16 if `half`, of the record at
// records[i] (null: none), and rows[i] points at it.
template <bool half>
static void kv_decode(const uint8_t* const* records, int64_t tokens, int64_t format, int64_t kv_heads, int64_t dim,
                      int64_t part, int64_t h, uint8_t* to, const uint8_t** rows) {
    const int64_t number = part * kv_heads + h, row = dim * (half ? 2 : 4), middle = dim / 2;
    const int64_t first = ig::kv_parameter_bytes(format, kv_heads) + number * ig::kv_head_bytes(format, dim);
    auto each = [&](auto decode) {
        for (int64_t i = 0; i < tokens; i++, to += row) {
            rows[i] = records[i] ? to : nullptr;
            if (records[i]) decode(records[i] + number * 4, records[i] + first);
        }
    };
    auto scale_at = [](const uint8_t* parameters) {
        float scale;
        memcpy(&scale, parameters, 4);
        return v_set(scale);
    };
    if (format == IG_KV_INT8)
        return each([&](const uint8_t* parameters, const uint8_t* codes) {
            const V scale = scale_at(parameters);
            kv_widen(codes, dim, to, 0, half, [&](const uint8_t* p) { return v_mul(v_from_s8(p), scale); });
        });
    if (format == IG_KV_FP8)
        return each([&](const uint8_t* parameters, const uint8_t* codes) {
            const V scale = scale_at(parameters);
            kv_widen(codes, dim, to, 0, half, [&](const uint8_t* p) { return v_mul(v_from_e4m3(p), scale); });
        });
    each([&](const uint8_t* parameters, const uint8_t* codes) {
        uint16_t numbers[2];
        memcpy(numbers, parameters, 4);
        const V step = v_set(from_bf16(numbers[0])), low = v_set(from_bf16(numbers[1]));
        kv_widen(codes, middle, to, 0, half, [&](const uint8_t* p) { return v_fma(v_low_nibbles(p), step, low); });
        kv_widen(codes, middle, to, middle, half,
                 [&](const uint8_t* p) { return v_fma(v_high_nibbles(p), step, low); });
    });
}

}  // namespace IG_NS

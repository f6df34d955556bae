// One head's keys or values of one token into a quantised store and back. The arithmetic is that of
// intaglio/state/kv_codec.py, bit for bit: both write the same bytes. Plain loops without branches, which the compiler
// turns into vectors of the unit's instruction set; every operation in them rounds once, so vectors change nothing.
#pragma once
#include "kernels.h"
#include "kv_layout.h"
#include "simd.h"

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

IG_INLINE float kv_from_e4m3(uint8_t code) {
    const uint32_t size = code & 0x7fu;
    const float small = float(int32_t(size)) * 0x1p-9f, large = float_of((size << 20) + (120u << 23));
    return float_of(bits_of(size < 8 ? small : large) | uint32_t(code & 0x80u) << 24);
}

static void kv_encode_scaled(const float* x, int64_t dim, bool e4m3, uint8_t* parameters, uint8_t* codes) {
    const float most = e4m3 ? 448.0f : 127.0f;
    const KvSpread s = kv_spread(x, dim);
    const float size = kv_bounded(-s.low > s.high ? -s.low : s.high, 0.0f, KV_SATURATION);
    float scale = size / most;
    scale = scale < KV_SMALLEST_STEP ? KV_SMALLEST_STEP : scale;
    const bool sound = s.spoiled == 0.0f;
    const float noted = sound ? scale : float_of(0x7fc00000u);
    memcpy(parameters, &noted, 4);
    for (int64_t i = 0; i < dim; i++) {
        const float step = kv_bounded(kv_bounded(x[i], -KV_SATURATION, KV_SATURATION) / scale, -most, most);
        codes[i] = !sound ? 0 : e4m3 ? kv_to_e4m3(step) : uint8_t(int8_t(int32_t(kv_whole(step))));
    }
}

static void kv_encode_int4(const float* x, int64_t dim, uint8_t* parameters, uint8_t* codes) {
    const KvSpread s = kv_spread(x, dim);
    const bool sound = s.spoiled == 0.0f;
    // Adding +0 makes a zero's sign the same in whatever order the numbers were compared.
    const uint16_t low = sound ? to_bf16(kv_bounded(s.low, -KV_SATURATION, KV_SATURATION) + 0.0f) : uint16_t(0);
    const float base = from_bf16(low);
    float spread = kv_bounded(s.high, -KV_SATURATION, KV_SATURATION) / 15.0f - base / 15.0f;
    const uint16_t step = sound ? to_bf16(spread < KV_SMALLEST_STEP ? KV_SMALLEST_STEP : spread) : uint16_t(0x7fc0);
    spread = from_bf16(step);
    memcpy(parameters, &step, 2);
    memcpy(parameters + 2, &low, 2);
    const int64_t half = dim / 2;
    auto code = [&](float a) {
        const float at = (kv_bounded(a, -KV_SATURATION, KV_SATURATION) - base) / spread;
        return sound ? uint8_t(int32_t(kv_whole(kv_bounded(at, 0.0f, 15.0f)))) : uint8_t(0);
    };
    for (int64_t i = 0; i < half; i++) codes[i] = uint8_t(code(x[i]) | code(x[half + i]) << 4);
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

// The inverse: `dim` numbers of fp32, or of bf16 if `half`.
static void kv_decode(const uint8_t* record, int64_t format, int64_t kv_heads, int64_t dim, int64_t part, int64_t h,
                      bool half, void* to) {
    const int64_t number = part * kv_heads + h;
    const uint8_t* codes = record + ig::kv_parameter_bytes(format, kv_heads) + number * ig::kv_head_bytes(format, dim);
    float scale;
    memcpy(&scale, record + number * 4, 4);
    float wide[ig::KV_MAX_DIM];
    float* out = half ? wide : (float*)to;
    if (format == IG_KV_INT8) {
        for (int64_t i = 0; i < dim; i++) out[i] = float(int8_t(codes[i])) * scale;
    } else if (format == IG_KV_FP8) {
        for (int64_t i = 0; i < dim; i++) out[i] = kv_from_e4m3(codes[i]) * scale;
    } else {
        uint16_t numbers[2];
        memcpy(numbers, record + number * 4, 4);
        const float step = from_bf16(numbers[0]), low = from_bf16(numbers[1]);
        const int64_t middle = dim / 2;
        for (int64_t i = 0; i < middle; i++) {
            out[i] = float(codes[i] & 15) * step + low;
            out[middle + i] = float(codes[i] >> 4) * step + low;
        }
    }
    if (!half) return;
    int64_t i = 0;
    for (; i + W <= dim; i += W) v_to_bf16((uint16_t*)to + i, v_load(wide + i));
    for (; i < dim; i++) ((uint16_t*)to)[i] = to_bf16(wide[i]);
}

}  // namespace IG_NS

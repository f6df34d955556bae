// One vector of fp32 lanes per instruction set, and the few operations that the kernels are written in. A
// translation unit is compiled for one set (IG_TARGET_*), inside its own namespace IG_NS: nothing here may be
// shared between units, or the linker could hand an AVX-512 body to a processor that has none.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(IG_TARGET_AVX512BF16) || defined(IG_TARGET_AVX512)
#define IG_AVX512 1
#include <immintrin.h>
#elif defined(IG_TARGET_AVX2)
#include <immintrin.h>
#elif defined(IG_TARGET_NEON)
#include <arm_neon.h>
#endif

#define IG_INLINE static inline __attribute__((always_inline))

namespace IG_NS {

IG_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
IG_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

IG_INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
IG_INLINE float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
IG_INLINE float from_bf16(uint16_t h) { return float_of(uint32_t(h) << 16); }
// Nearest even; a NaN stays a quiet NaN.
IG_INLINE uint16_t to_bf16(float x) {
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#if defined(IG_AVX512)

constexpr int W = 16;
using V = __m512;
IG_INLINE V v_zero() { return _mm512_setzero_ps(); }
IG_INLINE V v_set(float x) { return _mm512_set1_ps(x); }
IG_INLINE V v_load(const float* p) { return _mm512_loadu_ps(p); }
IG_INLINE void v_store(float* p, V a) { _mm512_storeu_ps(p, a); }
IG_INLINE V v_load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p); }
IG_INLINE void v_store_n(float* p, V a, int64_t n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a); }
IG_INLINE V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
IG_INLINE V v_add(V a, V b) { return _mm512_add_ps(a, b); }
IG_INLINE V v_sub(V a, V b) { return _mm512_sub_ps(a, b); }
IG_INLINE V v_mul(V a, V b) { return _mm512_mul_ps(a, b); }
IG_INLINE V v_div(V a, V b) { return _mm512_div_ps(a, b); }
// The second operand wins against a NaN in the first, and a NaN in the second is kept.
IG_INLINE V v_max(V a, V b) { return _mm512_max_ps(a, b); }
IG_INLINE V v_min(V a, V b) { return _mm512_min_ps(a, b); }
IG_INLINE V v_round(V a) { return _mm512_roundscale_ps(a, 8); }
// a * 2^n for whole n
IG_INLINE V v_scale(V a, V n) { return _mm512_scalef_ps(a, n); }
// `yes` where lane < bound, else `no`
IG_INLINE V v_below(V lane, V bound, V yes, V no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(lane, bound, _CMP_LT_OQ), no, yes);
}
IG_INLINE float v_hmax(V a) { return _mm512_reduce_max_ps(a); }
IG_INLINE V v_from_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
#if defined(IG_TARGET_AVX512BF16)
IG_INLINE void v_to_bf16(uint16_t* p, V a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a)); }
#else
IG_INLINE void v_to_bf16(uint16_t* p, V a) {
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff)), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
}
#endif
// The two bf16 halves of 16 32-bit units.
IG_INLINE V v_low(const uint32_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
IG_INLINE V v_high(const uint32_t* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000u))));
}
IG_INLINE V v_from_fp16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
// Codes: the signed bytes of 16 pairs, or four bits of 16 units from bit `shift` on.
IG_INLINE V v_low_int8(const uint16_t* p) {
    __m512i pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24));
}
IG_INLINE V v_high_int8(const uint16_t* p) {
    __m512i pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 8));
}
IG_INLINE V v_nibble(const uint32_t* p, int shift) {
    __m512i units = _mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128(shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(units, _mm512_set1_epi32(15)));
}
IG_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

#elif defined(IG_TARGET_AVX2)

constexpr int W = 8;
using V = __m256;
IG_INLINE __m256i mask_n(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
IG_INLINE V v_zero() { return _mm256_setzero_ps(); }
IG_INLINE V v_set(float x) { return _mm256_set1_ps(x); }
IG_INLINE V v_load(const float* p) { return _mm256_loadu_ps(p); }
IG_INLINE void v_store(float* p, V a) { _mm256_storeu_ps(p, a); }
IG_INLINE V v_load_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, mask_n(n)); }
IG_INLINE void v_store_n(float* p, V a, int64_t n) { _mm256_maskstore_ps(p, mask_n(n), a); }
IG_INLINE V v_fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
IG_INLINE V v_add(V a, V b) { return _mm256_add_ps(a, b); }
IG_INLINE V v_sub(V a, V b) { return _mm256_sub_ps(a, b); }
IG_INLINE V v_mul(V a, V b) { return _mm256_mul_ps(a, b); }
IG_INLINE V v_div(V a, V b) { return _mm256_div_ps(a, b); }
IG_INLINE V v_max(V a, V b) { return _mm256_max_ps(a, b); }
IG_INLINE V v_min(V a, V b) { return _mm256_min_ps(a, b); }
IG_INLINE V v_round(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// In two steps, so that a result below the normal range keeps its exponent in range; n in [-252, 252].
IG_INLINE V v_scale(V a, V n) {
    __m256i whole = _mm256_cvtps_epi32(n);
    __m256i half = _mm256_srai_epi32(whole, 1);
    __m256i rest = _mm256_sub_epi32(whole, half);
    __m256i bias = _mm256_set1_epi32(127);
    V first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    V second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(a, first), second);
}
IG_INLINE V v_below(V lane, V bound, V yes, V no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(lane, bound, _CMP_LT_OQ));
}
IG_INLINE float v_hmax(V a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
IG_INLINE V v_from_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
IG_INLINE void v_to_bf16(uint16_t* p, V a) {
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff)), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40)), nan);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128((__m128i*)p, packed);
}
IG_INLINE V v_low(const uint32_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)p), 16));
}
IG_INLINE V v_high(const uint32_t* p) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_loadu_si256((const __m256i*)p), _mm256_set1_epi32(int(0xffff0000u))));
}
// Shifted into place and multiplied by 2^112: right for every finite fp16, small ones included.
IG_INLINE V v_from_fp16(const uint16_t* p) {
    __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
    __m256i body = _mm256_slli_epi32(_mm256_and_si256(h, _mm256_set1_epi32(0x7fff)), 13);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(h, _mm256_set1_epi32(0x8000)), 16);
    V size = _mm256_mul_ps(_mm256_castsi256_ps(body), _mm256_set1_ps(0x1p112f));
    return _mm256_or_ps(size, _mm256_castsi256_ps(sign));
}
IG_INLINE V v_low_int8(const uint16_t* p) {
    __m256i pairs = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(pairs, 24), 24));
}
IG_INLINE V v_high_int8(const uint16_t* p) {
    __m256i pairs = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 8));
}
IG_INLINE V v_nibble(const uint32_t* p, int shift) {
    __m256i units = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i*)p), _mm_cvtsi32_si128(shift));
    return _mm256_cvtepi32_ps(_mm256_and_si256(units, _mm256_set1_epi32(15)));
}
IG_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

#else  // NEON and portable: four lanes of the compiler's own vector type

constexpr int W = 4;
#if defined(IG_TARGET_NEON)
using V = float32x4_t;
IG_INLINE V v_fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
IG_INLINE V v_round(V a) { return vrndnq_f32(a); }
#else
typedef float V __attribute__((vector_size(16)));
// A product and a sum, each rounded: without a fused unit this is the order that every row gets.
IG_INLINE V v_fma(V a, V b, V c) { return a * b + c; }
// Adding and taking away 1.5 * 2^23 rounds to the nearest even for |a| < 2^22.
IG_INLINE V v_round(V a) {
    const V big = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
    V sum = a + big;
    return sum - big;
}
#endif
typedef uint32_t U __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
IG_INLINE V v_set(float x) { return V{x, x, x, x}; }
IG_INLINE V v_zero() { return v_set(0.0f); }
IG_INLINE V v_load(const float* p) {
    V a;
    memcpy(&a, p, 16);
    return a;
}
IG_INLINE void v_store(float* p, V a) { memcpy(p, &a, 16); }
IG_INLINE V v_load_n(const float* p, int64_t n) {
    float t[4] = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; i++) t[i] = p[i];
    return v_load(t);
}
IG_INLINE void v_store_n(float* p, V a, int64_t n) {
    float t[4];
    v_store(t, a);
    for (int64_t i = 0; i < n; i++) p[i] = t[i];
}
IG_INLINE V v_add(V a, V b) { return a + b; }
IG_INLINE V v_sub(V a, V b) { return a - b; }
IG_INLINE V v_mul(V a, V b) { return a * b; }
IG_INLINE V v_div(V a, V b) { return a / b; }
IG_INLINE V v_pick(I mask, V yes, V no) { return (V)(((I)yes & mask) | ((I)no & ~mask)); }
IG_INLINE V v_max(V a, V b) { return v_pick((I)(a > b), a, b); }
IG_INLINE V v_min(V a, V b) { return v_pick((I)(a < b), a, b); }
IG_INLINE V v_below(V lane, V bound, V yes, V no) { return v_pick((I)(lane < bound), yes, no); }
IG_INLINE V v_scale(V a, V n) {
    const V big = v_set(12582912.0f);
    I whole = (I)(n + big) - (I)big;
    I half = whole >> 1;
    U first = (U)(half + 127) << 23, second = (U)(whole - half + 127) << 23;
    return a * (V)first * (V)second;
}
IG_INLINE float v_hmax(V a) {
    float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
}
IG_INLINE V v_from_bf16(const uint16_t* p) {
    U u = {p[0], p[1], p[2], p[3]};
    return (V)(u << 16);
}
IG_INLINE void v_to_bf16(uint16_t* p, V a) {
    for (int i = 0; i < 4; i++) p[i] = to_bf16(a[i]);
}
IG_INLINE U u_load(const uint32_t* p) {
    U u;
    memcpy(&u, p, 16);
    return u;
}
IG_INLINE V v_low(const uint32_t* p) { return (V)(u_load(p) << 16); }
IG_INLINE V v_high(const uint32_t* p) { return (V)(u_load(p) & 0xffff0000u); }
IG_INLINE V v_from_fp16(const uint16_t* p) {
    U h = {p[0], p[1], p[2], p[3]};
    V size = (V)((h & 0x7fffu) << 13) * v_set(0x1p112f);
    return (V)((U)size | ((h & 0x8000u) << 16));
}
IG_INLINE V v_low_int8(const uint16_t* p) {
    return V{float(int8_t(p[0])), float(int8_t(p[1])), float(int8_t(p[2])), float(int8_t(p[3]))};
}
IG_INLINE V v_high_int8(const uint16_t* p) {
    return V{float(int8_t(p[0] >> 8)), float(int8_t(p[1] >> 8)), float(int8_t(p[2] >> 8)), float(int8_t(p[3] >> 8))};
}
IG_INLINE V v_nibble(const uint32_t* p, int shift) {
    return V{float(p[0] >> shift & 15u), float(p[1] >> shift & 15u), float(p[2] >> shift & 15u),
             float(p[3] >> shift & 15u)};
}
IG_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

#endif

// Sum of the lanes in one fixed order: halves onto each other.
IG_INLINE float v_hsum(V a) {
    float t[W];
    v_store(t, a);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}

IG_INLINE V v_lanes() {
    float t[W];
    for (int i = 0; i < W; i++) t[i] = float(i);
    return v_load(t);
}

}  // namespace IG_NS

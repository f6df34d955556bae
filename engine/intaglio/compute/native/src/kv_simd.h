// W codes of a quantised store to fp32 lanes, without their scales.
#pragma once
#include "simd.h"

namespace IG_NS {

#if defined(IG_AVX512)

IG_INLINE __m512i codes_at(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
IG_INLINE V v_from_s8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
IG_INLINE V v_low_nibbles(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(codes_at(p), _mm512_set1_epi32(15)));
}
IG_INLINE V v_high_nibbles(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_srli_epi32(codes_at(p), 4)); }
// Three bits of fraction and four of exponent move into place; below 2^-6 a code is whole steps of 2^-9.
IG_INLINE V v_from_e4m3(const uint8_t* p) {
    const __m512i code = codes_at(p), size = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(code, size), 24);
    const __m512i large = _mm512_add_epi32(_mm512_slli_epi32(size, 20), _mm512_set1_epi32(120 << 23));
    const V small = _mm512_mul_ps(_mm512_cvtepi32_ps(size), _mm512_set1_ps(0x1p-9f));
    const __mmask16 few = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(8));
    const V both = _mm512_mask_blend_ps(few, _mm512_castsi512_ps(large), small);
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(both), sign));
}

#elif defined(IG_TARGET_AVX2)

IG_INLINE __m256i codes_at(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
IG_INLINE V v_from_s8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
IG_INLINE V v_low_nibbles(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(codes_at(p), _mm256_set1_epi32(15)));
}
IG_INLINE V v_high_nibbles(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(codes_at(p), 4)); }
IG_INLINE V v_from_e4m3(const uint8_t* p) {
    const __m256i code = codes_at(p), size = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(code, size), 24);
    const __m256i large = _mm256_add_epi32(_mm256_slli_epi32(size, 20), _mm256_set1_epi32(120 << 23));
    const V small = _mm256_mul_ps(_mm256_cvtepi32_ps(size), _mm256_set1_ps(0x1p-9f));
    const V few = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), size));
    const V both = _mm256_blendv_ps(_mm256_castsi256_ps(large), small, few);
    return _mm256_or_ps(both, _mm256_castsi256_ps(sign));
}

#else

IG_INLINE float from_e4m3(uint8_t code) {
    const uint32_t size = code & 0x7fu;
    const float value = size < 8 ? float(size) * 0x1p-9f : float_of((size << 20) + (120u << 23));
    return float_of(bits_of(value) | uint32_t(code & 0x80u) << 24);
}
IG_INLINE V v_from_s8(const uint8_t* p) {
    return V{float(int8_t(p[0])), float(int8_t(p[1])), float(int8_t(p[2])), float(int8_t(p[3]))};
}
IG_INLINE V v_low_nibbles(const uint8_t* p) {
    return V{float(p[0] & 15), float(p[1] & 15), float(p[2] & 15), float(p[3] & 15)};
}
IG_INLINE V v_high_nibbles(const uint8_t* p) {
    return V{float(p[0] >> 4), float(p[1] >> 4), float(p[2] >> 4), float(p[3] >> 4)};
}
IG_INLINE V v_from_e4m3(const uint8_t* p) {
    return V{from_e4m3(p[0]), from_e4m3(p[1]), from_e4m3(p[2]), from_e4m3(p[3])};
}

#endif

}  // namespace IG_NS

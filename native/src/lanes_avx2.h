// Sixteen lanes as two registers of AVX2, with F16C. Each operation is that of lanes_generic.h.
#pragma once
#include <immintrin.h>

#include "floats.h"

namespace kvassay {
namespace KVASSAY_ISA {
namespace {

struct Lanes {
  struct Floats {
    __m256 low, high;
  };
  struct Ints {
    __m256i low, high;
  };

  static KV_INLINE Floats set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static KV_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static KV_INLINE __m128i load_halves(const std::uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static KV_INLINE Floats load_float16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(load_halves(p)), _mm256_cvtph_ps(load_halves(p + 8))};
  }
  static KV_INLINE __m256 widen_bfloat16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
  static KV_INLINE Floats load_bfloat16(const std::uint16_t* p) {
    return {widen_bfloat16(load_halves(p)), widen_bfloat16(load_halves(p + 8))};
  }
  static KV_INLINE void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  static KV_INLINE void store_float16(std::uint16_t* p, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static KV_INLINE __m256i rounded_bfloat16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  }
  // Sixteen integers of 16 bits in order.
  static KV_INLINE __m256i narrow(__m256i low, __m256i high) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
  }
  static KV_INLINE void store_bfloat16(std::uint16_t* p, Floats x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(rounded_bfloat16(x.low), rounded_bfloat16(x.high)));
  }

  static KV_INLINE Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static KV_INLINE Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static KV_INLINE Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static KV_INLINE Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static KV_INLINE Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static KV_INLINE Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static KV_INLINE __m256 absolute(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), x); }
  static KV_INLINE Floats absolute(Floats x) { return {absolute(x.low), absolute(x.high)}; }
  static KV_INLINE float reduce_min(Floats x) {
    const __m256 y = _mm256_min_ps(x.low, x.high);
    __m128 z = _mm_min_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_min_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_min_ss(z, _mm_shuffle_ps(z, z, 1)));
  }
  static KV_INLINE float reduce_max(Floats x) {
    const __m256 y = _mm256_max_ps(x.low, x.high);
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
  }
  static KV_INLINE bool has_nan(Floats x) { return _mm256_movemask_ps(_mm256_cmp_ps(x.low, x.high, _CMP_UNORD_Q)) != 0; }

  static KV_INLINE Floats round(Floats x) {
    return {_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static KV_INLINE bool are_nearer(Floats a, Floats b, float bound) {
    const Floats between = absolute(sub(a, b));
    const __m256 limit = _mm256_set1_ps(bound), low = _mm256_cmp_ps(between.low, limit, _CMP_NLT_UQ);
    return _mm256_movemask_ps(_mm256_or_ps(low, _mm256_cmp_ps(between.high, limit, _CMP_NLT_UQ))) == 0;
  }
  static KV_INLINE Ints to_ints(Floats whole) { return {_mm256_cvtps_epi32(whole.low), _mm256_cvtps_epi32(whole.high)}; }
  static KV_INLINE Ints plus(Ints x, std::int32_t y) {
    return {_mm256_add_epi32(x.low, _mm256_set1_epi32(y)), _mm256_add_epi32(x.high, _mm256_set1_epi32(y))};
  }
  static KV_INLINE Ints count_reached(Floats x, const float* edges) {
    Ints count{_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < 15; ++i) {
      const __m256 edge = _mm256_set1_ps(edges[i]);  // a comparison that holds is -1
      count.low = _mm256_sub_epi32(count.low, _mm256_castps_si256(_mm256_cmp_ps(x.low, edge, _CMP_GE_OQ)));
      count.high = _mm256_sub_epi32(count.high, _mm256_castps_si256(_mm256_cmp_ps(x.high, edge, _CMP_GE_OQ)));
    }
    return count;
  }
  static KV_INLINE __m256i to_e4m3(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    const __m256 shifted = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(kE4M3Shifter));
    const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(kE4M3ShifterBits));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
    const __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(magnitude, odd), _mm256_set1_epi32(kE4M3Rebias)), 20);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(kE4M3SmallestNormal), magnitude);
    return _mm256_or_si256(sign, _mm256_blendv_epi8(normal, subnormal, is_small));
  }
  static KV_INLINE Ints to_e4m3(Floats x) { return {to_e4m3(x.low), to_e4m3(x.high)}; }

  static KV_INLINE __m128i bytes(Ints x) {
    const __m256i mask = _mm256_set1_epi32(0xFF);
    const __m256i narrowed = narrow(_mm256_and_si256(x.low, mask), _mm256_and_si256(x.high, mask));
    return _mm_packus_epi16(_mm256_castsi256_si128(narrowed), _mm256_extracti128_si256(narrowed, 1));
  }
  static KV_INLINE void put_8_bits(std::uint8_t* to, Ints x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes(x)); }
  static KV_INLINE void put_4_bits(std::uint8_t* to, Ints x) {
    const __m128i pairs = _mm_maddubs_epi16(bytes(x), _mm_set1_epi16(0x1001));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(pairs, pairs));
  }
  static KV_INLINE void put_2_bits(std::uint8_t* to, Ints x) {
    const __m128i pairs = _mm_maddubs_epi16(bytes(x), _mm_set1_epi16(0x0401));
    const __m128i quads = _mm_madd_epi16(pairs, _mm_set1_epi32(0x00100001));
    const __m128i words = _mm_packus_epi32(quads, quads);
    const std::int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    __builtin_memcpy(to, &four, 4);
  }

  template <int kStride>
  static KV_INLINE __m256 butterfly(__m256 x) {
    __m256 partner;
    if constexpr (kStride == 1) partner = _mm256_permute_ps(x, 0xB1);
    else if constexpr (kStride == 2) partner = _mm256_permute_ps(x, 0x4E);
    else partner = _mm256_permute2f128_ps(x, x, 1);
    constexpr int kSecond = kStride == 1 ? 0xAA : kStride == 2 ? 0xCC : 0xF0;
    return _mm256_blend_ps(_mm256_add_ps(x, partner), _mm256_sub_ps(partner, x), kSecond);
  }
  template <int kStride>
  static KV_INLINE Floats butterfly(Floats x) {
    if constexpr (kStride == 8) return {_mm256_add_ps(x.low, x.high), _mm256_sub_ps(x.low, x.high)};
    else return {butterfly<kStride>(x.low), butterfly<kStride>(x.high)};
  }
};

}  // namespace
}  // namespace KVASSAY_ISA
}  // namespace kvassay

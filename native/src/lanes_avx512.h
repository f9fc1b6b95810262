// Sixteen lanes as one register of AVX-512 (F, BW, VL, DQ). Each operation is that of lanes_generic.h.
#pragma once
#include <immintrin.h>

#include "floats.h"

namespace kvassay {
namespace KVASSAY_ISA {
namespace {

struct Lanes {
  using Floats = __m512;
  using Ints = __m512i;

  static KV_INLINE Floats set(float x) { return _mm512_set1_ps(x); }
  static KV_INLINE Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static KV_INLINE __m256i load_halves(const std::uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static KV_INLINE Floats load_float16(const std::uint16_t* p) { return _mm512_cvtph_ps(load_halves(p)); }
  static KV_INLINE Floats load_bfloat16(const std::uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(p)), 16));
  }
  static KV_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static KV_INLINE void store_halves(std::uint16_t* p, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  static KV_INLINE void store_float16(std::uint16_t* p, Floats x) {
    store_halves(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static KV_INLINE void store_bfloat16(std::uint16_t* p, Floats x) {
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    store_halves(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }

  static KV_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static KV_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static KV_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static KV_INLINE Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static KV_INLINE Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static KV_INLINE Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static KV_INLINE Floats absolute(Floats x) { return _mm512_abs_ps(x); }
  static KV_INLINE float reduce_min(Floats x) { return _mm512_reduce_min_ps(x); }
  static KV_INLINE float reduce_max(Floats x) { return _mm512_reduce_max_ps(x); }
  static KV_INLINE bool has_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

  static KV_INLINE Floats round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static KV_INLINE bool are_nearer(Floats a, Floats b, float bound) {
    return _mm512_cmp_ps_mask(absolute(sub(a, b)), set(bound), _CMP_NLT_UQ) == 0;
  }
  static KV_INLINE Ints to_ints(Floats whole) { return _mm512_cvtps_epi32(whole); }
  static KV_INLINE Ints plus(Ints x, std::int32_t y) { return _mm512_add_epi32(x, _mm512_set1_epi32(y)); }
  template <int kStep>
  static KV_INLINE Ints halve(Ints count, Floats x, Floats edges) {
    const Floats edge = _mm512_permutexvar_ps(plus(count, kStep - 1), edges);
    return _mm512_mask_add_epi32(count, _mm512_cmp_ps_mask(x, edge, _CMP_GE_OQ), count, _mm512_set1_epi32(kStep));
  }
  static KV_INLINE Ints count_reached(Floats x, const float* edges) {
    const Floats all = _mm512_maskz_loadu_ps(0x7FFF, edges);
    return halve<1>(halve<2>(halve<4>(halve<8>(_mm512_setzero_si512(), x, all), x, all), x, all), x, all);
  }
  static KV_INLINE Ints to_e4m3(Floats x) {
    const __m512i bits = _mm512_castps_si512(x), sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i subnormal = _mm512_sub_epi32(_mm512_castps_si512(add(_mm512_castsi512_ps(magnitude), set(kE4M3Shifter))),
                                               _mm512_set1_epi32(kE4M3ShifterBits));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    const __m512i normal = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(magnitude, odd), _mm512_set1_epi32(kE4M3Rebias)), 20);
    const __mmask16 is_small = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(kE4M3SmallestNormal));
    return _mm512_or_si512(sign, _mm512_mask_mov_epi32(normal, is_small, subnormal));
  }

  static KV_INLINE void put_8_bits(std::uint8_t* to, Ints x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
  }
  static KV_INLINE void put_4_bits(std::uint8_t* to, Ints x) {
    // Of each pair the second is moved beside the first.
    const __m512i pairs = _mm512_or_si512(x, _mm512_srli_epi64(x, 28));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm512_cvtepi64_epi8(pairs));
  }
  static KV_INLINE void put_2_bits(std::uint8_t* to, Ints x) {
    const __m128i pairs = _mm_maddubs_epi16(_mm512_cvtepi32_epi8(x), _mm_set1_epi16(0x0401));
    const __m128i quads = _mm_madd_epi16(pairs, _mm_set1_epi32(0x00100001));
    const std::int32_t bytes = _mm_cvtsi128_si32(_mm_cvtepi32_epi8(quads));
    __builtin_memcpy(to, &bytes, 4);
  }

  // Each lane and its partner: their sum in the first of the two, their difference in the second.
  template <int kStride>
  static KV_INLINE Floats butterfly(Floats x) {
    Floats partner;
    if constexpr (kStride == 1) partner = _mm512_permute_ps(x, 0xB1);
    else if constexpr (kStride == 2) partner = _mm512_permute_ps(x, 0x4E);
    else if constexpr (kStride == 4) partner = _mm512_shuffle_f32x4(x, x, 0xB1);
    else partner = _mm512_shuffle_f32x4(x, x, 0x4E);
    constexpr __mmask16 kSecond = kStride == 1 ? 0xAAAA : kStride == 2 ? 0xCCCC : kStride == 4 ? 0xF0F0 : 0xFF00;
    return _mm512_mask_sub_ps(add(x, partner), kSecond, partner, x);
  }
};

}  // namespace
}  // namespace KVASSAY_ISA
}  // namespace kvassay

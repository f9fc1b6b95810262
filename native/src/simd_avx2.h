// Eight lanes of AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>
#include <cstdint>

#include "unroll.h"

namespace kvassay {
namespace KVASSAY_ISA {

struct Simd {
  static constexpr int kLanes = 8;
  using Ints = __m256i;
  using Floats = __m256;

  static KV_INLINE Ints zero_ints() { return _mm256_setzero_si256(); }
  static KV_INLINE Floats zero() { return _mm256_setzero_ps(); }
  static KV_INLINE Floats set(float x) { return _mm256_set1_ps(x); }
  static KV_INLINE Ints load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static KV_INLINE Ints load_first(const void* p, int lanes) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_epi32(static_cast<const int*>(p), _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), index));
  }
  static KV_INLINE Floats loadf(const float* p) { return _mm256_loadu_ps(p); }
  static KV_INLINE void storef(float* p, Floats x) { _mm256_storeu_ps(p, x); }
  static KV_INLINE Ints broadcast_word(const void* p) {
    int word;
    __builtin_memcpy(&word, p, 4);
    return _mm256_set1_epi32(word);
  }
  static KV_INLINE Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static KV_INLINE Floats as_floats(Ints x) { return _mm256_castsi256_ps(x); }
  static KV_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static KV_INLINE Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static KV_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static KV_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static KV_INLINE Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static KV_INLINE Floats absolute(Floats x) { return _mm256_andnot_ps(set(-0.f), x); }
  static KV_INLINE Floats round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static KV_INLINE float reduce_max(Floats x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
  static KV_INLINE float reduce_add(Floats x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
  }

  // Lane i of the result is lane order[i].
  static constexpr bool kReorders = true;
  static KV_INLINE Floats reorder(Floats x, Ints order) { return _mm256_permutevar8x32_ps(x, order); }

  // acc[lane] += sum of products of two pairs of 16-bit integers.
  static KV_INLINE Ints dot2(Ints acc, Ints a, Ints b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }

  template <int kShift>
  static KV_INLINE Ints shift_right16(Ints x) {
    if constexpr (kShift == 0) return x;
    return _mm256_srli_epi16(x, kShift);
  }
  template <int kShift>
  static KV_INLINE Ints shift_right32(Ints x) {
    if constexpr (kShift == 0) return x;
    return _mm256_srli_epi32(x, kShift);
  }
  template <int kShift>
  static KV_INLINE Ints shift_left32(Ints x) {
    if constexpr (kShift == 0) return x;
    return _mm256_slli_epi32(x, kShift);
  }
  static KV_INLINE Ints mask16(Ints x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi16(static_cast<short>(mask))); }
  static KV_INLINE Ints mask32(Ints x, unsigned mask) { return _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(mask))); }
  // The even (or odd) signed bytes of each word as a pair of 16-bit integers.
  static KV_INLINE Ints even_bytes_signed(Ints x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
  static KV_INLINE Ints odd_bytes_signed(Ints x) { return _mm256_srai_epi16(x, 8); }
  // float8 e4m3fn in the top byte of each lane.
  static KV_INLINE Floats top_e4m3(Ints x) {
    const __m256i bits = mask32(_mm256_srli_epi32(x, 4), 0x07F00000u);
    // Exponent 0 (biased) stands for 2^-6 without the implied one: y = 2 * ((1 + m / 8) * 2^-7 - 2^-7).
    const __m256i subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), bits);
    const __m256 y = as_floats(_mm256_add_epi32(bits, _mm256_set1_epi32(120 << 23)));
    const __m256 small = _mm256_fmadd_ps(y, set(2.f), set(-0x1p-6f));
    const __m256 magnitude = _mm256_blendv_ps(y, small, as_floats(subnormal));
    return _mm256_or_ps(magnitude, as_floats(mask32(x, 0x80000000u)));
  }

  static KV_INLINE Floats load_float16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static KV_INLINE Floats load_bfloat16(const void* p) {
    return as_floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
  }
  // The low halves of the words, side by side.
  static KV_INLINE __m128i low_halves(Ints x) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, order), 0x08));
  }
  static KV_INLINE Floats low_float16(Ints x) { return _mm256_cvtph_ps(low_halves(x)); }
  static KV_INLINE Floats high_float16(Ints x) { return _mm256_cvtph_ps(low_halves(_mm256_srli_epi32(x, 16))); }
  // Sixteen floats by the low four bits of each lane.
  struct Table {
    Floats low, high;
  };
  static KV_INLINE Table load_table(const float* p) { return {loadf(p), loadf(p + 8)}; }
  static KV_INLINE Floats look_up(const Table& table, Ints index) {
    const Floats low = _mm256_permutevar8x32_ps(table.low, index), high = _mm256_permutevar8x32_ps(table.high, index);
    return _mm256_blendv_ps(low, high, as_floats(_mm256_slli_epi32(index, 28)));
  }

  static KV_INLINE void store_narrow(std::int16_t* p, Ints x) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, x), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  // What quads of bytes would take (products.h).
  static constexpr bool kHasDot4 = false, kDot4TakesSigns = false;
  static KV_INLINE void store_quads(std::int16_t*, Floats) {}
  // Rounded to nearest even, as 16-bit integers; of each quad the two in the middle change places.
  static KV_INLINE void store_pairs16(std::int16_t* p, Floats x) {
    store_narrow(p, _mm256_shuffle_epi32(_mm256_cvtps_epi32(x), 0xD8));
  }
  static KV_INLINE void store_int16(std::int16_t* p, Floats x) { store_narrow(p, _mm256_cvtps_epi32(x)); }
  // e^x for x <= 0, minus infinity included; relative error below 2e-7. Cephes expf (Moshier): ln 2 taken off in two parts.
  static KV_INLINE Floats exp_open(Floats x) {
    const Floats open = _mm256_cmp_ps(x, set(-87.3f), _CMP_GE_OQ);
    x = _mm256_max_ps(x, set(-87.3f));
    const Floats n = round(mul(x, set(1.44269504088896341f)));
    x = _mm256_fnmadd_ps(n, set(0.693359375f), x);
    x = _mm256_fnmadd_ps(n, set(-2.12194440e-4f), x);
    Floats p = set(1.9875691500E-4f);
    p = fma(p, x, set(1.3981999507E-3f));
    p = fma(p, x, set(8.3334519073E-3f));
    p = fma(p, x, set(4.1665795894E-2f));
    p = fma(p, x, set(1.6666665459E-1f));
    p = fma(p, x, set(5.0000001201E-1f));
    p = fma(p, mul(x, x), add(x, set(1.f)));
    const __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_and_ps(as_floats(scaled), open);
  }
};

}  // namespace KVASSAY_ISA
}  // namespace kvassay

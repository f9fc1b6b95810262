// Sixteen lanes of AVX-512 (F, BW, VL, DQ) with the dot products of VNNI.
#pragma once
#include <immintrin.h>
#include <cstdint>

#include "unroll.h"

namespace kvassay {
namespace KVASSAY_ISA {

struct Simd {
  static constexpr int kLanes = 16;
  using Ints = __m512i;
  using Floats = __m512;

  static KV_INLINE Ints zero_ints() { return _mm512_setzero_si512(); }
  static KV_INLINE Floats zero() { return _mm512_setzero_ps(); }
  static KV_INLINE Floats set(float x) { return _mm512_set1_ps(x); }
  static KV_INLINE Ints load(const void* p) { return _mm512_loadu_si512(p); }
  static KV_INLINE Ints load_first(const void* p, int lanes) {
    return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << lanes) - 1), p);
  }
  static KV_INLINE Floats loadf(const float* p) { return _mm512_loadu_ps(p); }
  static KV_INLINE void storef(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static KV_INLINE Ints broadcast_word(const void* p) {
    int word;
    __builtin_memcpy(&word, p, 4);
    return _mm512_set1_epi32(word);
  }
  static KV_INLINE Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static KV_INLINE Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static KV_INLINE Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }
  static KV_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static KV_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static KV_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static KV_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static KV_INLINE Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static KV_INLINE Floats absolute(Floats x) { return _mm512_abs_ps(x); }
  static KV_INLINE Floats round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static KV_INLINE float reduce_max(Floats x) { return _mm512_reduce_max_ps(x); }
  static KV_INLINE float reduce_add(Floats x) { return _mm512_reduce_add_ps(x); }

  // Lane i of the result is lane order[i].
  static constexpr bool kReorders = true;
  static KV_INLINE Floats reorder(Floats x, Ints order) { return _mm512_permutexvar_ps(order, x); }

  // acc[lane] += sum of products of two pairs of 16-bit integers.
  static KV_INLINE Ints dot2(Ints acc, Ints a, Ints b) { return _mm512_dpwssd_epi32(acc, a, b); }
  // acc[lane] += sum of products of four bytes without a sign and four with one.
  static constexpr bool kHasDot4 = true, kDot4TakesSigns = false;
  static KV_INLINE Ints dot4(Ints acc, Ints codes, Ints steps) {
    // As an intrinsic, GCC 12 copies sums around the loop.
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(steps));
    return acc;
  }
  static KV_INLINE Ints mask8(Ints x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask))); }

  template <int kShift>
  static KV_INLINE Ints shift_right16(Ints x) {
    if constexpr (kShift == 0) return x;
    return _mm512_srli_epi16(x, kShift);
  }
  template <int kShift>
  static KV_INLINE Ints shift_right32(Ints x) {
    if constexpr (kShift == 0) return x;
    return _mm512_srli_epi32(x, kShift);
  }
  template <int kShift>
  static KV_INLINE Ints shift_left32(Ints x) {
    if constexpr (kShift == 0) return x;
    return _mm512_slli_epi32(x, kShift);
  }
  // float8 e4m3fn in the top byte of each lane.
  static KV_INLINE Floats top_e4m3(Ints x) {
    const __m512i bits = mask32(_mm512_srli_epi32(x, 4), 0x07F00000u);
    // Exponent 0 (biased) stands for 2^-6 without the implied one: y = 2 * ((1 + m / 8) * 2^-7 - 2^-7).
    const __mmask16 subnormal = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x07800000));
    Floats y = as_floats(_mm512_add_epi32(bits, _mm512_set1_epi32(120 << 23)));
    y = _mm512_mask_fmadd_ps(y, subnormal, set(2.f), set(-0x1p-6f));
    return as_floats(_mm512_ternarylogic_epi32(_mm512_castps_si512(y), x, _mm512_set1_epi32(INT32_MIN), 0xF8));
  }
  static KV_INLINE Ints mask16(Ints x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi16(static_cast<short>(mask))); }
  static KV_INLINE Ints mask32(Ints x, unsigned mask) { return _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(mask))); }
  // The even (or odd) signed bytes of each word as a pair of 16-bit integers.
  static KV_INLINE Ints even_bytes_signed(Ints x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
  static KV_INLINE Ints odd_bytes_signed(Ints x) { return _mm512_srai_epi16(x, 8); }

  static KV_INLINE Floats load_float16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static KV_INLINE Floats load_bfloat16(const void* p) {
    return as_floats(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
  }
  static KV_INLINE Floats low_float16(Ints x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
  static KV_INLINE Floats high_float16(Ints x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16))); }
  // Sixteen floats by the low four bits of each lane.
  struct Table { Floats all; };
  static KV_INLINE Table load_table(const float* p) { return {loadf(p)}; }
  static KV_INLINE Floats look_up(Table table, Ints index) { return _mm512_permutexvar_ps(index, table.all); }

  // Rounded to nearest even, as 16-bit steps in quads of bytes: [4 high bytes][4 low bytes] for each four lanes.
  static KV_INLINE void store_quads(std::int16_t* p, Floats x) {
    // high = (step + 128) >> 8; low = step - 256 * high, which is the low byte of step + 128 with its top bit flipped.
    const __m512i half = _mm512_set1_epi32(128);
    const __m512i raised = _mm512_xor_si512(_mm512_add_epi32(_mm512_cvtps_epi32(x), half), half);
    const __m512i quads = _mm512_shuffle_epi8(raised, _mm512_set4_epi32(-1, -1, 0x0C080400, 0x0D090501));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(_mm512_maskz_compress_epi64(0x55, quads)));
  }
  // Rounded to nearest even, as 16-bit integers; of each quad the two in the middle change places.
  static KV_INLINE void store_pairs16(std::int16_t* p, Floats x) {
    const __m512i ints = _mm512_shuffle_epi32(_mm512_cvtps_epi32(x), static_cast<_MM_PERM_ENUM>(0xD8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(ints));
  }
  static KV_INLINE void store_int16(std::int16_t* p, Floats x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
  }
  // e^x for x <= 0, minus infinity included; relative error below 2e-7. Cephes expf (Moshier): ln 2 taken off in two parts.
  static KV_INLINE Floats exp_open(Floats x) {
    x = max(x, set(-104.f));
    const Floats n = _mm512_roundscale_ps(_mm512_mul_ps(x, set(1.44269504088896341f)), 0);
    x = _mm512_fnmadd_ps(n, set(0.693359375f), x);
    x = _mm512_fnmadd_ps(n, set(-2.12194440e-4f), x);
    Floats p = set(1.9875691500E-4f);
    p = fma(p, x, set(1.3981999507E-3f));
    p = fma(p, x, set(8.3334519073E-3f));
    p = fma(p, x, set(4.1665795894E-2f));
    p = fma(p, x, set(1.6666665459E-1f));
    p = fma(p, x, set(5.0000001201E-1f));
    p = fma(p, mul(x, x), add(x, set(1.f)));
    return _mm512_scalef_ps(p, n);
  }
};

}  // namespace KVASSAY_ISA
}  // namespace kvassay

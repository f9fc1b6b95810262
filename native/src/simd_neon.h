// Four lanes of NEON, which every ARM64 processor has; with SDOT where it is compiled for (`isa_neon_dot.cpp`).
#pragma once
#include <arm_neon.h>
#include <string.h>
#include <cstdint>

#include "unroll.h"

namespace kvassay {
namespace KVASSAY_ISA {

struct Simd {
  static constexpr int kLanes = 4;
  using Ints = int32x4_t;
  using Floats = float32x4_t;

  static KV_INLINE Ints zero_ints() { return vdupq_n_s32(0); }
  static KV_INLINE Floats zero() { return vdupq_n_f32(0.f); }
  static KV_INLINE Floats set(float x) { return vdupq_n_f32(x); }
  static KV_INLINE Ints load(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p))); }
  static KV_INLINE Ints load_first(const void* p, int lanes) {
    std::int32_t words[kLanes] = {};
    memcpy(words, p, sizeof(std::int32_t) * static_cast<std::size_t>(lanes));
    return vld1q_s32(words);
  }
  static KV_INLINE Floats loadf(const float* p) { return vreinterpretq_f32_s32(load(p)); }
  static KV_INLINE void storef(float* p, Floats x) {
    vst1q_u8(reinterpret_cast<std::uint8_t*>(p), vreinterpretq_u8_f32(x));
  }
  static KV_INLINE Ints broadcast_word(const void* p) {
    std::int32_t word;
    memcpy(&word, p, 4);
    return vdupq_n_s32(word);
  }
  static KV_INLINE Floats to_floats(Ints x) { return vcvtq_f32_s32(x); }
  static KV_INLINE Floats as_floats(Ints x) { return vreinterpretq_f32_s32(x); }
  static KV_INLINE Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
  static KV_INLINE Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
  static KV_INLINE Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
  static KV_INLINE Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static KV_INLINE Floats max(Floats a, Floats b) { return vmaxq_f32(a, b); }
  static KV_INLINE Floats absolute(Floats x) { return vabsq_f32(x); }
  static KV_INLINE Floats round(Floats x) { return vrndnq_f32(x); }
  static KV_INLINE float reduce_max(Floats x) { return vmaxvq_f32(x); }
  static KV_INLINE float reduce_add(Floats x) { return vaddvq_f32(x); }

  static constexpr bool kReorders = false;
  static KV_INLINE Floats reorder(Floats x, Ints) { return x; }

  // acc[lane] += sum of products of two pairs of 16-bit integers.
  static KV_INLINE Ints dot2(Ints acc, Ints a, Ints b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
  }

  template <int kShift>
  static KV_INLINE Ints shift_right16(Ints x) {
    if constexpr (kShift == 0) return x;
    else return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(x), kShift));
  }
  template <int kShift>
  static KV_INLINE Ints shift_right32(Ints x) {
    if constexpr (kShift == 0) return x;
    else return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), kShift));
  }
  template <int kShift>
  static KV_INLINE Ints shift_left32(Ints x) {
    if constexpr (kShift == 0) return x;
    else return vshlq_n_s32(x, kShift);
  }
  static KV_INLINE Ints mask16(Ints x, int mask) {
    return vandq_s32(x, vreinterpretq_s32_u16(vdupq_n_u16(static_cast<std::uint16_t>(mask))));
  }
  static KV_INLINE Ints mask32(Ints x, unsigned mask) { return vandq_s32(x, vreinterpretq_s32_u32(vdupq_n_u32(mask))); }
  // The even (or odd) signed bytes of each word as a pair of 16-bit integers.
  static KV_INLINE Ints even_bytes_signed(Ints x) {
    return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(x), 8), 8));
  }
  static KV_INLINE Ints odd_bytes_signed(Ints x) { return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(x), 8)); }
  // float8 e4m3fn in the top byte of each lane.
  static KV_INLINE Floats top_e4m3(Ints x) {
    const Ints bits = mask32(shift_right32<4>(x), 0x07F00000u);
    // Exponent 0 (biased) stands for 2^-6 without the implied one: y = 2 * ((1 + m / 8) * 2^-7 - 2^-7).
    const Floats y = as_floats(vaddq_s32(bits, vdupq_n_s32(120 << 23)));
    const Floats small = fma(y, set(2.f), set(-0x1p-6f));
    const Floats magnitude = vbslq_f32(vcltq_s32(bits, vdupq_n_s32(0x00800000)), small, y);
    return as_floats(vorrq_s32(vreinterpretq_s32_f32(magnitude), mask32(x, 0x80000000u)));
  }

  static KV_INLINE Floats load_float16(const void* p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const std::uint8_t*>(p))));
  }
  static KV_INLINE Floats load_bfloat16(const void* p) {
    const uint16x4_t halves = vreinterpret_u16_u8(vld1_u8(static_cast<const std::uint8_t*>(p)));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
  }
  static KV_INLINE Floats low_float16(Ints x) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(x))));
  }
  static KV_INLINE Floats high_float16(Ints x) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(vreinterpretq_u32_s32(x), 16)));
  }
  // Sixteen floats by the low four bits of each lane: 64 bytes, which one instruction looks up.
  struct Table {
    uint8x16x4_t bytes;
  };
  static KV_INLINE Table load_table(const float* p) {
    const auto* all = reinterpret_cast<const std::uint8_t*>(p);
    return {{{vld1q_u8(all), vld1q_u8(all + 16), vld1q_u8(all + 32), vld1q_u8(all + 48)}}};
  }
  static KV_INLINE Floats look_up(const Table& table, Ints index) {
    // Bytes 4 i to 4 i + 3 of entry i.
    const uint32x4_t first = vshlq_n_u32(vandq_u32(vreinterpretq_u32_s32(index), vdupq_n_u32(15)), 2);
    const uint32x4_t places = vaddq_u32(vmulq_n_u32(first, 0x01010101u), vdupq_n_u32(0x03020100u));
    return vreinterpretq_f32_u8(vqtbl4q_u8(table.bytes, vreinterpretq_u8_u32(places)));
  }

#if defined(__ARM_FEATURE_DOTPROD)
  // acc[lane] += sum of products of four bytes and four bytes, with their signs.
  static constexpr bool kHasDot4 = true, kDot4TakesSigns = true;
  static KV_INLINE Ints dot4(Ints acc, Ints codes, Ints steps) {
    return vdotq_s32(acc, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(steps));
  }
  static KV_INLINE Ints add_ints(Ints a, Ints b) { return vaddq_s32(a, b); }
  static KV_INLINE Ints mask8(Ints x, int mask) {
    return vandq_s32(x, vreinterpretq_s32_u8(vdupq_n_u8(static_cast<std::uint8_t>(mask))));
  }
  // Rounded to nearest even, as 16-bit steps in quads of bytes: [4 high bytes][4 low bytes].
  static KV_INLINE void store_quads(std::int16_t* p, Floats x) {
    const int32x4_t step = vcvtnq_s32_f32(x);
    const int16x4_t high = vshrn_n_s32(vaddq_s32(step, vdupq_n_s32(128)), 8);
    vst1_s8(reinterpret_cast<std::int8_t*>(p), vmovn_s16(vcombine_s16(high, vmovn_s32(step))));
  }
#else
  // What quads of bytes would take (products.h).
  static constexpr bool kHasDot4 = false, kDot4TakesSigns = false;
  static KV_INLINE void store_quads(std::int16_t*, Floats) {}
#endif
  // Rounded to nearest even, as 16-bit integers; of each quad the two in the middle change places.
  static KV_INLINE void store_pairs16(std::int16_t* p, Floats x) {
    const int16x4_t quad = vqmovn_s32(vcvtnq_s32_f32(x));
    const int16x4_t low = quad, high = vext_s16(quad, quad, 2);
    vst1_s16(p, vzip1_s16(low, high));
  }
  static KV_INLINE void store_int16(std::int16_t* p, Floats x) { vst1_s16(p, vqmovn_s32(vcvtnq_s32_f32(x))); }
  // e^x for x <= 0, minus infinity included; relative error below 2e-7. Cephes expf (Moshier): ln 2 taken off in two parts.
  static KV_INLINE Floats exp_open(Floats x) {
    const uint32x4_t open = vcgeq_f32(x, set(-87.3f));
    x = max(x, set(-87.3f));
    const Floats n = round(mul(x, set(1.44269504088896341f)));
    x = vfmsq_f32(x, n, set(0.693359375f));
    x = vfmsq_f32(x, n, set(-2.12194440e-4f));
    Floats p = set(1.9875691500E-4f);
    p = fma(p, x, set(1.3981999507E-3f));
    p = fma(p, x, set(8.3334519073E-3f));
    p = fma(p, x, set(4.1665795894E-2f));
    p = fma(p, x, set(1.6666665459E-1f));
    p = fma(p, x, set(5.0000001201E-1f));
    p = fma(p, mul(x, x), add(x, set(1.f)));
    const Ints scaled = vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtnq_s32_f32(n), 23));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(scaled), open));
  }
};

}  // namespace KVASSAY_ISA
}  // namespace kvassay

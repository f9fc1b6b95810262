// Sixteen lanes as four vectors of four, in the compilers' own notation (GCC, Clang): SSE2 and NEON serve it, and any
// other processor does with single numbers. What the other forms are tested against.
#pragma once
#include "floats.h"

namespace kvassay {
namespace KVASSAY_ISA {
namespace {

struct Lanes {
  static constexpr int kParts = 4;
  typedef float F __attribute__((vector_size(16)));
  typedef std::int32_t I __attribute__((vector_size(16)));
  typedef std::uint32_t U __attribute__((vector_size(16)));
  typedef std::uint16_t Halves __attribute__((vector_size(8)));

  struct Floats {
    F part[kParts];
  };
  struct Ints {
    I part[kParts];
  };

  template <class Of>
  static KV_INLINE Floats floats(Of of) {
    return {{of(0), of(1), of(2), of(3)}};
  }
  template <class Of>
  static KV_INLINE Ints ints(Of of) {
    return {{of(0), of(1), of(2), of(3)}};
  }
  static KV_INLINE F all(float x) { return F{x, x, x, x}; }
  static KV_INLINE U all(std::uint32_t x) { return U{x, x, x, x}; }
  static KV_INLINE F choose(I where, F yes, F no) { return (F)((where & (I)yes) | (~where & (I)no)); }
  static KV_INLINE U choose(I where, U yes, U no) { return ((U)where & yes) | (~(U)where & no); }

  static KV_INLINE Floats set(float x) {
    return floats([&](int) { return all(x); });
  }
  static KV_INLINE Floats load(const float* p) {
    Floats out;
    std::memcpy(out.part, p, sizeof out.part);
    return out;
  }
  static KV_INLINE void store(float* p, const Floats& x) { std::memcpy(p, x.part, sizeof x.part); }

  static KV_INLINE U load_halves(const std::uint16_t* p) {
    Halves halves;
    std::memcpy(&halves, p, sizeof halves);
    return __builtin_convertvector(halves, U);
  }
  static KV_INLINE void store_halves(std::uint16_t* p, U x) {
    const Halves halves = __builtin_convertvector(x, Halves);
    std::memcpy(p, &halves, sizeof halves);
  }
  // Four at once, as floats.h does it with one.
  static KV_INLINE F widen_float16(U half) {
    const U sign = (half & 0x8000u) << 16, special = 0x7F800000u | (half & 0x3FFu) << 13;
    const U finite = (U)((F)((half & 0x7FFFu) << 13) * all(0x1p112f));
    return (F)(sign | choose((half & 0x7C00u) == 0x7C00u, special, finite));
  }
  static KV_INLINE U narrow_float16(F x) {
    const U bits = (U)x, sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    const U subnormal = (U)((F)magnitude + all(0.5f)) - 0x3F000000u;
    const U rebased = magnitude - 0x38000000u, normal = (rebased + 0xFFFu + (rebased >> 13 & 1u)) >> 13;
    const U finite = choose((I)magnitude < 0x38800000, subnormal, normal);
    return sign | choose((I)magnitude >= 0x47800000, all(0x7C00u), finite);
  }
  static KV_INLINE U narrow_bfloat16(F x) { return ((U)x + 0x7FFFu + ((U)x >> 16 & 1u)) >> 16; }

  static KV_INLINE Floats load_float16(const std::uint16_t* p) {
    return floats([&](int i) { return widen_float16(load_halves(p + 4 * i)); });
  }
  static KV_INLINE Floats load_bfloat16(const std::uint16_t* p) {
    return floats([&](int i) { return (F)(load_halves(p + 4 * i) << 16); });
  }
  static KV_INLINE void store_float16(std::uint16_t* p, const Floats& x) {
    for (int i = 0; i < kParts; ++i) store_halves(p + 4 * i, narrow_float16(x.part[i]));
  }
  static KV_INLINE void store_bfloat16(std::uint16_t* p, const Floats& x) {
    for (int i = 0; i < kParts; ++i) store_halves(p + 4 * i, narrow_bfloat16(x.part[i]));
  }

  static KV_INLINE Floats add(const Floats& a, const Floats& b) {
    return floats([&](int i) { return a.part[i] + b.part[i]; });
  }
  static KV_INLINE Floats sub(const Floats& a, const Floats& b) {
    return floats([&](int i) { return a.part[i] - b.part[i]; });
  }
  static KV_INLINE Floats mul(const Floats& a, const Floats& b) {
    return floats([&](int i) { return a.part[i] * b.part[i]; });
  }
  static KV_INLINE Floats div(const Floats& a, const Floats& b) {
    return floats([&](int i) { return a.part[i] / b.part[i]; });
  }
  static KV_INLINE F lesser(F a, F b) { return choose(a < b, a, b); }
  static KV_INLINE F greater(F a, F b) { return choose(a > b, a, b); }
  static KV_INLINE Floats min(const Floats& a, const Floats& b) {
    return floats([&](int i) { return lesser(a.part[i], b.part[i]); });
  }
  static KV_INLINE Floats max(const Floats& a, const Floats& b) {
    return floats([&](int i) { return greater(a.part[i], b.part[i]); });
  }
  static KV_INLINE F absolute(F x) { return (F)((U)x & 0x7FFFFFFFu); }
  static KV_INLINE Floats absolute(const Floats& x) {
    return floats([&](int i) { return absolute(x.part[i]); });
  }
  static KV_INLINE float reduce_min(const Floats& x) {
    const F four = lesser(lesser(x.part[0], x.part[1]), lesser(x.part[2], x.part[3]));
    const float low = four[0] < four[1] ? four[0] : four[1], high = four[2] < four[3] ? four[2] : four[3];
    return low < high ? low : high;
  }
  static KV_INLINE float reduce_max(const Floats& x) {
    const F four = greater(greater(x.part[0], x.part[1]), greater(x.part[2], x.part[3]));
    const float low = four[0] > four[1] ? four[0] : four[1], high = four[2] > four[3] ? four[2] : four[3];
    return low > high ? low : high;
  }
  static KV_INLINE bool is_any(I where) { return (where[0] | where[1] | where[2] | where[3]) != 0; }
  static KV_INLINE bool has_nan(const Floats& x) {
    I found = x.part[0] != x.part[0];
    for (int i = 1; i < kParts; ++i) found |= x.part[i] != x.part[i];
    return is_any(found);
  }

  // To nearest even, for |x| < 2^22.
  static KV_INLINE Floats round(const Floats& x) {
    return floats([&](int i) { return (x.part[i] + all(0x1.8p23f)) - all(0x1.8p23f); });
  }
  // Whether |a - b| < bound in all lanes; never for NaN.
  static KV_INLINE bool are_nearer(const Floats& a, const Floats& b, float bound) {
    I far = ~(absolute(a.part[0] - b.part[0]) < all(bound));
    for (int i = 1; i < kParts; ++i) far |= ~(absolute(a.part[i] - b.part[i]) < all(bound));
    return !is_any(far);
  }
  static KV_INLINE Ints to_ints(const Floats& whole) {
    return ints([&](int i) { return __builtin_convertvector(whole.part[i], I); });
  }
  static KV_INLINE Ints plus(const Ints& x, std::int32_t y) {
    return ints([&](int i) { return x.part[i] + y; });
  }
  // How many of fifteen edges, which rise, each lane reaches.
  static KV_INLINE Ints count_reached(const Floats& x, const float* edges) {
    return ints([&](int i) {
      I count = {};  // a comparison that holds is -1
      for (int edge = 0; edge < 15; ++edge) count -= x.part[i] >= all(edges[edge]);
      return count;
    });
  }
  static KV_INLINE Ints to_e4m3(const Floats& x) {
    return ints([&](int i) {
      const U bits = (U)x.part[i], sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu;
      const U subnormal = (U)((F)magnitude + all(kE4M3Shifter)) - static_cast<std::uint32_t>(kE4M3ShifterBits);
      const U normal = (magnitude + (magnitude >> 20 & 1u) + static_cast<std::uint32_t>(kE4M3Rebias)) >> 20;
      return (I)(sign | choose((I)magnitude < kE4M3SmallestNormal, subnormal, normal));
    });
  }

  // The lowest 8, 4 or 2 bits of each lane side by side: 16, 8 or 4 bytes.
  static KV_INLINE void put_8_bits(std::uint8_t* to, const Ints& x) {
    for (int i = 0; i < kParts; ++i)
      for (int j = 0; j < 4; ++j) to[4 * i + j] = static_cast<std::uint8_t>(x.part[i][j]);
  }
  static KV_INLINE void put_4_bits(std::uint8_t* to, const Ints& x) {
    for (int i = 0; i < kParts; ++i)
      for (int j = 0; j < 4; j += 2) to[2 * i + j / 2] = static_cast<std::uint8_t>(x.part[i][j] | x.part[i][j + 1] << 4);
  }
  static KV_INLINE void put_2_bits(std::uint8_t* to, const Ints& x) {
    for (int i = 0; i < kParts; ++i)
      to[i] = static_cast<std::uint8_t>(x.part[i][0] | x.part[i][1] << 2 | x.part[i][2] << 4 | x.part[i][3] << 6);
  }

  // Lanes i and i + kStride (of a run of 2 kStride) become their sum and their difference.
  template <int kStride>
  static KV_INLINE Floats butterfly(const Floats& x) {
    if constexpr (kStride >= 4) {
      constexpr int kOther = kStride / 4;
      return floats([&](int i) { return i & kOther ? x.part[i ^ kOther] - x.part[i] : x.part[i] + x.part[i ^ kOther]; });
    } else {
      return floats([&](int i) {
        const F y = x.part[i];
        if constexpr (kStride == 1) return F{y[0] + y[1], y[0] - y[1], y[2] + y[3], y[2] - y[3]};
        else return F{y[0] + y[2], y[1] + y[3], y[0] - y[2], y[1] - y[3]};
      });
    }
  }
};

}  // namespace
}  // namespace KVASSAY_ISA
}  // namespace kvassay

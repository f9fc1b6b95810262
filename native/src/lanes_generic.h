// Sixteen lanes as arrays: what any processor runs, and what the others are tested against.
#pragma once
#include <cmath>
#include <cstring>

#include "floats.h"

namespace kvassay {
namespace KVASSAY_ISA {
namespace {

struct Lanes {
  struct Floats {
    float at[16];
  };
  struct Ints {
    std::int32_t at[16];
  };

  template <class Of>
  static KV_INLINE Floats floats(Of of) {
    Floats out;
    for (int i = 0; i < 16; ++i) out.at[i] = of(i);
    return out;
  }
  template <class Of>
  static KV_INLINE Ints ints(Of of) {
    Ints out;
    for (int i = 0; i < 16; ++i) out.at[i] = of(i);
    return out;
  }

  static KV_INLINE Floats set(float x) { return floats([&](int) { return x; }); }
  static KV_INLINE Floats load(const float* p) { return floats([&](int i) { return p[i]; }); }
  static KV_INLINE Floats load_float16(const std::uint16_t* p) { return floats([&](int i) { return widened_float16(p[i]); }); }
  static KV_INLINE Floats load_bfloat16(const std::uint16_t* p) { return floats([&](int i) { return from_bfloat16(p[i]); }); }
  static KV_INLINE void store(float* p, const Floats& x) { std::memcpy(p, x.at, sizeof x.at); }
  static KV_INLINE void store_float16(std::uint16_t* p, const Floats& x) {
    for (int i = 0; i < 16; ++i) p[i] = to_float16(x.at[i]);
  }
  static KV_INLINE void store_bfloat16(std::uint16_t* p, const Floats& x) {
    for (int i = 0; i < 16; ++i) p[i] = to_bfloat16(x.at[i]);
  }

  static KV_INLINE Floats add(const Floats& a, const Floats& b) { return floats([&](int i) { return a.at[i] + b.at[i]; }); }
  static KV_INLINE Floats sub(const Floats& a, const Floats& b) { return floats([&](int i) { return a.at[i] - b.at[i]; }); }
  static KV_INLINE Floats mul(const Floats& a, const Floats& b) { return floats([&](int i) { return a.at[i] * b.at[i]; }); }
  static KV_INLINE Floats div(const Floats& a, const Floats& b) { return floats([&](int i) { return a.at[i] / b.at[i]; }); }
  static KV_INLINE Floats min(const Floats& a, const Floats& b) { return floats([&](int i) { return a.at[i] < b.at[i] ? a.at[i] : b.at[i]; }); }
  static KV_INLINE Floats max(const Floats& a, const Floats& b) { return floats([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; }); }
  static KV_INLINE Floats absolute(const Floats& x) { return floats([&](int i) { return std::fabs(x.at[i]); }); }
  static KV_INLINE float reduce_min(const Floats& x) {
    float out = x.at[0];
    for (int i = 1; i < 16; ++i) out = x.at[i] < out ? x.at[i] : out;
    return out;
  }
  static KV_INLINE float reduce_max(const Floats& x) {
    float out = x.at[0];
    for (int i = 1; i < 16; ++i) out = x.at[i] > out ? x.at[i] : out;
    return out;
  }
  static KV_INLINE bool has_nan(const Floats& x) {
    int found = 0;
    for (int i = 0; i < 16; ++i) found |= x.at[i] != x.at[i];
    return found;
  }

  // To nearest even, for |x| < 2^22.
  static KV_INLINE Floats round(const Floats& x) {
    return floats([&](int i) {
      const float shifted = x.at[i] + 0x1.8p23f;
      return shifted - 0x1.8p23f;
    });
  }
  // Whether `less` holds for all lanes of |a - b| < bound; never for NaN.
  static KV_INLINE bool are_nearer(const Floats& a, const Floats& b, float bound) {
    int far = 0;
    for (int i = 0; i < 16; ++i) far |= !(std::fabs(a.at[i] - b.at[i]) < bound);
    return !far;
  }
  static KV_INLINE Ints to_ints(const Floats& whole) {
    return ints([&](int i) { return static_cast<std::int32_t>(whole.at[i]); });
  }
  static KV_INLINE Ints plus(const Ints& x, std::int32_t y) { return ints([&](int i) { return x.at[i] + y; }); }
  // How many of fifteen edges, which rise, each lane reaches.
  static KV_INLINE Ints count_reached(const Floats& x, const float* edges) {
    Ints count = ints([](int) { return 0; });
    for (int edge = 0; edge < 15; ++edge) count = ints([&](int i) { return count.at[i] + (x.at[i] >= edges[edge]); });
    return count;
  }
  static KV_INLINE Ints to_e4m3(const Floats& x) {
    return ints([&](int i) { return static_cast<std::int32_t>(to_float8_e4m3(x.at[i])); });
  }

  // The lowest 8, 4 or 2 bits of each lane side by side: 16, 8 or 4 bytes.
  static KV_INLINE void put_8_bits(std::uint8_t* to, const Ints& x) {
    for (int i = 0; i < 16; ++i) to[i] = static_cast<std::uint8_t>(x.at[i]);
  }
  static KV_INLINE void put_4_bits(std::uint8_t* to, const Ints& x) {
    for (int i = 0; i < 8; ++i) to[i] = static_cast<std::uint8_t>(x.at[2 * i] | x.at[2 * i + 1] << 4);
  }
  static KV_INLINE void put_2_bits(std::uint8_t* to, const Ints& x) {
    for (int i = 0; i < 4; ++i)
      to[i] = static_cast<std::uint8_t>(x.at[4 * i] | x.at[4 * i + 1] << 2 | x.at[4 * i + 2] << 4 | x.at[4 * i + 3] << 6);
  }

  // Lanes i and i + kStride (of a run of 2 kStride) become their sum and their difference.
  template <int kStride>
  static KV_INLINE Floats butterfly(const Floats& x) {
    return floats([&](int i) { return i & kStride ? x.at[i ^ kStride] - x.at[i] : x.at[i] + x.at[i ^ kStride]; });
  }
};

}  // namespace
}  // namespace KVASSAY_ISA
}  // namespace kvassay

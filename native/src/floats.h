// Floats of 16 bits, to and from the floats that are computed with. Rounding is to the nearest, ties to even.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvassay {

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Infinity for what does not fit, and for NaN.
inline std::uint16_t to_float16(float x) {
  const std::uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u)  // subnormal: adding 0.5 leaves the bits that count at the end
    return static_cast<std::uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u));
  const std::uint32_t rebased = magnitude - 0x38000000u;
  return static_cast<std::uint16_t>(sign | ((rebased + 0xFFFu + (rebased >> 13 & 1u)) >> 13));
}

// Infinity and NaN come out as finite numbers beyond 65504.
inline float from_float16(std::uint16_t half) {
  const float magnitude = float_of(static_cast<std::uint32_t>(half & 0x7FFFu) << 13) * 0x1p112f;
  return float_of(bits_of(magnitude) | static_cast<std::uint32_t>(half & 0x8000u) << 16);
}

inline std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(x);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

inline float from_bfloat16(std::uint16_t half) { return float_of(static_cast<std::uint32_t>(half) << 16); }

}  // namespace kvassay

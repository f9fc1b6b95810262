// Floats of 16 bits, to and from the floats that are computed with. Rounding is to the nearest, ties to even.
#pragma once
#include <cstdint>
#include <cstring>

#include "tile_format.h"

namespace kvassay {

KV_INLINE std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

KV_INLINE float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Infinity for what does not fit, and for NaN. Without a branch, so that loops become vectors.
KV_INLINE std::uint16_t to_float16(float x) {
  const std::uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  // Adding 0.5 to a subnormal leaves the bits that count at the end.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u;
  const std::uint32_t rebased = magnitude - 0x38000000u;
  const std::uint32_t normal = (rebased + 0xFFFu + (rebased >> 13 & 1u)) >> 13;
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  return static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000u ? 0x7C00u : finite));
}

// Infinity and NaN come out as finite numbers beyond 65504.
KV_INLINE float from_float16(std::uint16_t half) {
  const float magnitude = float_of(static_cast<std::uint32_t>(half & 0x7FFFu) << 13) * 0x1p112f;
  return float_of(bits_of(magnitude) | static_cast<std::uint32_t>(half & 0x8000u) << 16);
}

KV_INLINE std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(x);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

KV_INLINE float from_bfloat16(std::uint16_t half) { return float_of(static_cast<std::uint32_t>(half) << 16); }

// float8 e4m3fn of |x| <= 448. Adding the shifter leaves the bits that count of a subnormal at the end; its own last bit
// is 2^-9, the smallest subnormal.
constexpr float kE4M3Shifter = 0x1p14f;
constexpr std::int32_t kE4M3ShifterBits = 0x46800000, kE4M3SmallestNormal = 0x3C800000;
constexpr std::int32_t kE4M3Rebias = ((7 - 127) * (1 << 23)) + 0x7FFFF;  // and half of the last bit, less one

}  // namespace kvassay

// Scales and minimums as they are stored: rounded outward where their type has 16 bits, so that no value saturates.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode.h"
#include "floats.h"

namespace kvassay {

struct Stored {
  std::uint32_t bits;
  float value;
  bool is_finite;
};

KV_INLINE float stored_value(std::uint16_t bits, ScaleType type) {
  return type == ScaleType::kFloat16 ? from_float16(bits) : from_bfloat16(bits);
}

KV_INLINE std::uint16_t nearest_stored(float x, ScaleType type) {
  return type == ScaleType::kFloat16 ? to_float16(x) : to_bfloat16(x);
}

KV_INLINE Stored stored_as(std::uint32_t bits, ScaleType type) {
  const std::uint32_t infinity = type == ScaleType::kFloat16 ? 0x7C00 : 0x7F80;
  return {bits, stored_value(static_cast<std::uint16_t>(bits), type), (bits & 0x7FFF) < infinity};
}

// The scale for steps of x >= 0, rounded up; one, where it would be zero.
KV_INLINE Stored stored_scale(float x, ScaleType type) {
  if (type == ScaleType::kFloat32) {
    x = x == 0 ? 1.f : x;
    return {bits_of(x), x, std::isfinite(x)};
  }
  std::uint32_t bits = nearest_stored(x, type);
  bits += stored_value(static_cast<std::uint16_t>(bits), type) < x;  // neighbours among floats are neighbours in bits
  const std::uint32_t one = type == ScaleType::kFloat16 ? 0x3C00 : 0x3F80;
  return stored_as((bits & 0x7FFF) == 0 ? one : bits, type);
}

// A minimum, rounded down.
KV_INLINE Stored stored_down(float x, ScaleType type) {
  if (type == ScaleType::kFloat32) return {bits_of(x), x, std::isfinite(x)};
  const std::uint32_t bits = nearest_stored(x, type);
  const float value = stored_value(static_cast<std::uint16_t>(bits), type);
  // Away from zero for what is negative; below zero stands the smallest negative one.
  const std::uint32_t below = value > 0 ? bits - 1 : (bits | 0x8000) + 1;
  return stored_as(value > x ? below : bits, type);
}

KV_INLINE void put_parameter(std::uint8_t* to, std::size_t index, const Stored& x, ScaleType type) {
  if (type == ScaleType::kFloat32) {
    std::memcpy(to + 4 * index, &x.bits, 4);
  } else {
    const auto half = static_cast<std::uint16_t>(x.bits);
    std::memcpy(to + 2 * index, &half, 2);
  }
}

// What a range is divided by for its scale: the largest code, or what stands for it.
KV_INLINE float top_of(const CodeGrid& grid) {
  if (grid.method == GridMethod::kTable) return 1.f;
  if (grid.method == GridMethod::kFloat8E4M3) return 448.f;
  return static_cast<float>((1 << (grid.num_bits - grid.symmetric)) - 1);
}

KV_INLINE std::int32_t offset_of(const CodeGrid& grid) {
  return grid.method == GridMethod::kInteger && grid.symmetric && !grid.is_signed ? 1 << (grid.num_bits - 1) : 0;
}

}  // namespace kvassay

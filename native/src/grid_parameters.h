// Scales and minimums as they are stored: rounded outward where their type has 16 bits, so that no value saturates.
#pragma once
#include <cstdint>
#include <cstring>

#include "encode.h"
#include "floats.h"

namespace kvassay {
namespace KVASSAY_ISA {
namespace {

// What a range is divided by for its scale: the largest code, or what stands for it.
KV_INLINE float top_of(const CodeGrid& grid) {
  if (grid.method == GridMethod::kTable) return 1.f;
  if (grid.method == GridMethod::kFloat8E4M3) return 448.f;
  return static_cast<float>((1 << (grid.num_bits - grid.symmetric)) - 1);
}

KV_INLINE std::int32_t offset_of(const CodeGrid& grid) {
  return grid.method == GridMethod::kInteger && grid.symmetric && !grid.is_signed ? 1 << (grid.num_bits - 1) : 0;
}

template <ScaleType kType>
KV_INLINE std::uint16_t nearest_half(float x) {
  if constexpr (kType == ScaleType::kFloat16) return to_float16(x);
  else return to_bfloat16(x);
}

template <ScaleType kType>
KV_INLINE float half_value(std::uint32_t bits) {
  if constexpr (kType == ScaleType::kFloat16) return from_float16(static_cast<std::uint16_t>(bits));
  else return from_bfloat16(static_cast<std::uint16_t>(bits));
}

// The bits of x >= 0, rounded up; of one, where they would be zero.
template <ScaleType kType>
KV_INLINE std::uint32_t scale_bits(float x) {
  if constexpr (kType == ScaleType::kFloat32) {
    return bits_of(x == 0 ? 1.f : x);
  } else {
    constexpr std::uint32_t kOne = kType == ScaleType::kFloat16 ? 0x3C00 : 0x3F80;
    std::uint32_t bits = nearest_half<kType>(x);
    bits += half_value<kType>(bits) < x;  // neighbours among floats are neighbours in bits
    return (bits & 0x7FFFu) == 0 ? kOne : bits;
  }
}

// The bits of x, rounded down: away from zero what is negative, and below zero stands the smallest negative number.
template <ScaleType kType>
KV_INLINE std::uint32_t minimum_bits(float x) {
  if constexpr (kType == ScaleType::kFloat32) {
    return bits_of(x);
  } else {
    const std::uint32_t bits = nearest_half<kType>(x);
    const float value = half_value<kType>(bits);
    const std::uint32_t below = value > 0 ? bits - 1 : (bits | 0x8000u) + 1;
    return value > x ? below : bits;
  }
}

template <ScaleType kType>
KV_INLINE float stored_value(std::uint32_t bits) {
  if constexpr (kType == ScaleType::kFloat32) return float_of(bits);
  else return half_value<kType>(bits);
}

// Stores the first `count` of sixteen from number `index` on. False where one is not finite.
template <ScaleType kType>
KV_INLINE bool put_bits(const std::uint32_t* bits, int count, std::size_t index, std::uint8_t* to) {
  constexpr std::uint32_t kInfinity = kType == ScaleType::kFloat32 ? 0x7F800000u : kType == ScaleType::kFloat16 ? 0x7C00u : 0x7F80u;
  constexpr std::uint32_t kMagnitude = kType == ScaleType::kFloat32 ? 0x7FFFFFFFu : 0x7FFFu;
  std::uint32_t largest = 0;
  std::uint16_t halves[16];
  for (int i = 0; i < 16; ++i) {
    largest = (bits[i] & kMagnitude) > largest ? bits[i] & kMagnitude : largest;
    halves[i] = static_cast<std::uint16_t>(bits[i]);
  }
  const std::size_t itemsize = nbytes_of(kType);
  const void* from = kType == ScaleType::kFloat32 ? static_cast<const void*>(bits) : halves;
  std::memcpy(to + index * itemsize, from, static_cast<std::size_t>(count) * itemsize);
  return largest < kInfinity;
}

// Sixteen groups: their extents, and what follows from them. `low` counts on an asymmetric grid alone.
struct Parameters {
  float low[16] = {}, high[16] = {}, minimum[16] = {}, scale[16], inverse[16];
};

template <ScaleType kType>
bool put_parameters_as(const CodeGrid& grid, Parameters& all, int count, std::size_t index, std::uint8_t* scales,
                       std::uint8_t* minimums) {
  const float top = top_of(grid);
  std::uint32_t bits[16];
  bool fits = true;
  if (!grid.symmetric) {
    // Zero has one sign, whichever lane it came from.
    for (int i = 0; i < 16; ++i) bits[i] = minimum_bits<kType>(all.low[i] + 0.f);
    for (int i = 0; i < 16; ++i) all.minimum[i] = stored_value<kType>(bits[i]);
    for (int i = 0; i < 16; ++i) all.high[i] = all.high[i] > all.minimum[i] ? all.high[i] - all.minimum[i] : 0.f;
    fits = put_bits<kType>(bits, count, index, minimums);
  }
  for (int i = 0; i < 16; ++i) bits[i] = scale_bits<kType>(all.high[i] / top);
  for (int i = 0; i < 16; ++i) all.scale[i] = stored_value<kType>(bits[i]);
  for (int i = 0; i < 16; ++i) all.inverse[i] = 1.f / all.scale[i];
  return put_bits<kType>(bits, count, index, scales) && fits;
}

// Works out and stores the parameters of `count` groups as numbers `index` and on. False where one does not fit its type.
inline bool put_parameters(const CodeGrid& grid, Parameters& all, int count, std::size_t index, std::uint8_t* scales,
                           std::uint8_t* minimums) {
  switch (grid.scale_type) {
    case ScaleType::kFloat16: return put_parameters_as<ScaleType::kFloat16>(grid, all, count, index, scales, minimums);
    case ScaleType::kBFloat16: return put_parameters_as<ScaleType::kBFloat16>(grid, all, count, index, scales, minimums);
    default: return put_parameters_as<ScaleType::kFloat32>(grid, all, count, index, scales, minimums);
  }
}

}  // namespace
}  // namespace KVASSAY_ISA
}  // namespace kvassay

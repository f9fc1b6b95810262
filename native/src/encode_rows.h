// Rows of values to codes, compiled once for each instruction set: loops over 16 lanes, which a compiler turns into
// vectors without changing a result. Nothing here may become a product and sum in one operation (-ffp-contract=off),
// and every function is part of its translation unit alone: one that is shared could be taken from the wrong one.
#pragma once
#include <cmath>
#include <cstring>

#include "encode.h"
#include "floats.h"
#include "tile_format.h"

namespace kvassay {
namespace KVASSAY_ISA {
namespace {

// A scale or minimum as it is stored, rounded up or down where the type has 16 bits, so that no value saturates.
struct Stored {
  std::uint32_t bits;
  float value;
  bool is_finite;
};

inline Stored outward(float x, ScaleType type, bool up) {
  if (type == ScaleType::kFloat32) return {bits_of(x), x, std::isfinite(x)};
  const bool half = type == ScaleType::kFloat16;
  const auto read = [half](std::uint16_t bits) {
    return half ? from_float16(bits) : float_of(static_cast<std::uint32_t>(bits) << 16);
  };
  const int infinity = half ? 0x7C00 : 0x7F80;
  std::uint16_t bits = half ? to_float16(x) : to_bfloat16(x);
  if ((bits & 0x7FFF) >= infinity) return {bits, x, false};
  float value = read(bits);
  if (up ? value < x : value > x) {
    if (value == 0) bits = up ? 1 : 0x8001;
    else if ((value > 0) == up) ++bits;
    else --bits;
    value = read(bits);
  }
  return {bits, value, (bits & 0x7FFF) < infinity};
}

inline void store(void* to, std::size_t index, const Stored& x, ScaleType type) {
  if (type == ScaleType::kFloat32) std::memcpy(static_cast<char*>(to) + 4 * index, &x.bits, 4);
  else static_cast<std::uint16_t*>(to)[index] = static_cast<std::uint16_t>(x.bits);
}

// To nearest even, for |x| < 2^22.
KV_INLINE float rounded(float x) {
  const float shifted = x + 0x1.8p23f;
  return shifted - 0x1.8p23f;
}

constexpr int kLanes = 16;

struct Extent {
  float low, high;
  bool is_finite;
};

// Of `count` values, a multiple of kLanes or few.
inline Extent extent_of(const float* x, int count) {
  float low[kLanes], high[kLanes], all[kLanes];
  const int lanes = count % kLanes == 0 ? kLanes : 1;
  for (int j = 0; j < lanes; ++j) low[j] = high[j] = x[j], all[j] = 0;
  if (lanes == kLanes) {
    for (int i = 0; i < count; i += kLanes)
      for (int j = 0; j < kLanes; ++j) {
        low[j] = x[i + j] < low[j] ? x[i + j] : low[j];
        high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
        all[j] += x[i + j] * 0.f;  // NaN where a value is not finite
      }
  } else {
    for (int i = 0; i < count; ++i) {
      low[0] = x[i] < low[0] ? x[i] : low[0];
      high[0] = x[i] > high[0] ? x[i] : high[0];
      all[0] += x[i] * 0.f;
    }
  }
  for (int j = 1; j < lanes; ++j) {
    low[0] = low[j] < low[0] ? low[j] : low[0];
    high[0] = high[j] > high[0] ? high[j] : high[0];
    all[0] += all[j];
  }
  return {low[0] + 0.f, high[0], all[0] == 0.f};  // zero has one sign, whichever lane it came from
}

template <int kBits>
inline void pack(const std::int32_t* codes, int count, std::uint8_t* to) {
  constexpr int kPerByte = 8 / kBits;
  constexpr std::int32_t kMask = (1 << kBits) - 1;
  for (int i = 0; i < count / kPerByte; ++i) {
    std::int32_t byte = 0;
    for (int j = 0; j < kPerByte; ++j) byte |= (codes[i * kPerByte + j] & kMask) << (j * kBits);
    to[i] = static_cast<std::uint8_t>(byte);
  }
}

}  // namespace

bool encode_integers(const IntegerGrid& grid, const float* values, std::size_t rows, int dim, std::uint8_t* codes,
                     void* scales, void* minimums) {
  const int groups = dim / grid.group;
  const int largest = grid.symmetric ? (1 << (grid.num_bits - 1)) - 1 : (1 << grid.num_bits) - 1;
  const float top = static_cast<float>(largest), bottom = grid.symmetric ? -top : 0.f;
  const std::int32_t offset = grid.symmetric && !grid.is_signed ? 1 << (grid.num_bits - 1) : 0;
  const std::size_t group_nbytes = static_cast<std::size_t>(grid.group * grid.num_bits / 8);
  constexpr int kPiece = 64;
  std::int32_t steps[kPiece];
  for (std::size_t index = 0; index < rows * static_cast<std::size_t>(groups); ++index) {
    const float* x = values + index * static_cast<std::size_t>(grid.group);
    const Extent extent = extent_of(x, grid.group);
    if (!extent.is_finite) return false;
    float minimum = 0, range;
    if (grid.symmetric) {
      range = -extent.low > extent.high ? -extent.low : extent.high;
    } else {
      const Stored stored = outward(extent.low, grid.scale_type, false);
      if (!stored.is_finite) return false;
      store(minimums, index, stored, grid.scale_type);
      minimum = stored.value;
      range = extent.high - minimum;
      range = range > 0 ? range : 0;
    }
    Stored scale = outward(range / top, grid.scale_type, true);
    if (!scale.is_finite) return false;
    if (scale.value == 0) scale = outward(1.f, grid.scale_type, true);
    store(scales, index, scale, grid.scale_type);
    std::uint8_t* out = codes + index * group_nbytes;
    for (int first = 0; first < grid.group; first += kPiece) {
      const int count = grid.group - first < kPiece ? grid.group - first : kPiece;
      for (int i = 0; i < count; ++i) {
        float step = rounded((x[first + i] - minimum) / scale.value);
        step = step < bottom ? bottom : step;
        step = step > top ? top : step;
        steps[i] = static_cast<std::int32_t>(step) + offset;
      }
      std::uint8_t* to = out + first * grid.num_bits / 8;
      switch (grid.num_bits) {
        case 2: pack<2>(steps, count, to); break;
        case 4: pack<4>(steps, count, to); break;
        default: pack<8>(steps, count, to); break;
      }
    }
  }
  return true;
}

bool round_floats(float* values, int count, FloatType type, void* to) {
  float all[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int j = 0; j < kLanes; ++j) all[j] += values[i + j] * 0.f;
  for (; i < count; ++i) all[0] += values[i] * 0.f;
  for (int j = 1; j < kLanes; ++j) all[0] += all[j];
  if (!(all[0] == 0.f)) return false;
  if (type == FloatType::kFloat32) {
    std::memcpy(to, values, static_cast<std::size_t>(count) * 4);
    return true;
  }
  auto* half = static_cast<std::uint16_t*>(to);
  std::uint32_t largest = 0;  // of magnitudes: infinity, for what does not fit, is above all finite ones
  if (type == FloatType::kFloat16) {
    for (i = 0; i < count; ++i) {
      half[i] = to_float16(values[i]);
      values[i] = from_float16(half[i]);
      largest = (half[i] & 0x7FFFu) > largest ? half[i] & 0x7FFFu : largest;
    }
    return largest < 0x7C00u;
  }
  for (i = 0; i < count; ++i) {
    half[i] = to_bfloat16(values[i]);
    values[i] = from_bfloat16(half[i]);
    largest = (half[i] & 0x7FFFu) > largest ? half[i] & 0x7FFFu : largest;
  }
  return largest < 0x7F80u;
}

void widen_floats(const void* from, FloatType type, int count, float* to) {
  if (type == FloatType::kFloat32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
    return;
  }
  const auto* half = static_cast<const std::uint16_t*>(from);
  if (type == FloatType::kFloat16)
    for (int i = 0; i < count; ++i) to[i] = widened_float16(half[i]);
  else
    for (int i = 0; i < count; ++i) to[i] = from_bfloat16(half[i]);
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

#include "encode.h"

#include <cmath>
#include <cstring>

#include "floats.h"

namespace kvassay {
namespace {

// A scale or minimum as it is stored, rounded up or down where the type has 16 bits, so that no value saturates.
struct Stored {
  std::uint32_t bits;
  float value;
  bool is_finite;
};

Stored outward(float x, ScaleType type, bool up) {
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

void store(void* to, std::size_t index, const Stored& x, ScaleType type) {
  if (type == ScaleType::kFloat32) std::memcpy(static_cast<char*>(to) + 4 * index, &x.bits, 4);
  else static_cast<std::uint16_t*>(to)[index] = static_cast<std::uint16_t>(x.bits);
}

// To nearest even, for |x| < 2^22.
float rounded(float x) {
  const float shifted = x + 0x1.8p23f;
  return shifted - 0x1.8p23f;
}

}  // namespace

bool encode_integers(const IntegerGrid& grid, const float* values, std::size_t rows, int dim, std::uint8_t* codes,
                     void* scales, void* minimums) {
  const int groups = dim / grid.group, per_byte = 8 / grid.num_bits;
  const int largest = grid.symmetric ? (1 << (grid.num_bits - 1)) - 1 : (1 << grid.num_bits) - 1;
  const float top = static_cast<float>(largest), bottom = grid.symmetric ? -top : 0.f;
  const int offset = grid.symmetric && !grid.is_signed ? 1 << (grid.num_bits - 1) : 0;
  const std::size_t row_nbytes = static_cast<std::size_t>(dim / per_byte);
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint8_t* out = codes + row * row_nbytes;
    std::memset(out, 0, row_nbytes);
    for (int g = 0; g < groups; ++g) {
      const float* x = values + row * static_cast<std::size_t>(dim) + g * grid.group;
      float low = x[0], high = x[0], all = 0;
      for (int i = 0; i < grid.group; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        all += x[i] * 0.f;  // NaN where a value is not finite
      }
      if (!(all == 0.f)) return false;
      const std::size_t index = row * static_cast<std::size_t>(groups) + static_cast<std::size_t>(g);
      float minimum = 0, range;
      if (grid.symmetric) {
        range = -low > high ? -low : high;
      } else {
        const Stored stored = outward(low, grid.scale_type, false);
        if (!stored.is_finite) return false;
        store(minimums, index, stored, grid.scale_type);
        minimum = stored.value;
        range = high - minimum;
        range = range > 0 ? range : 0;
      }
      Stored scale = outward(range / top, grid.scale_type, true);
      if (!scale.is_finite) return false;
      if (scale.value == 0) scale = outward(1.f, grid.scale_type, true);
      store(scales, index, scale, grid.scale_type);
      const int first = g * grid.group;
      for (int i = 0; i < grid.group; ++i) {
        float step = rounded((x[i] - minimum) / scale.value);
        step = step < bottom ? bottom : step > top ? top : step;
        const int code = static_cast<int>(step) + offset, place = first + i;
        out[place / per_byte] |= static_cast<std::uint8_t>((code & ((1 << grid.num_bits) - 1))
                                                           << (place % per_byte * grid.num_bits));
      }
    }
  }
  return true;
}

}  // namespace kvassay

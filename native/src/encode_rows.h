// Vectors to codes, compiled once for each instruction set over its `Lanes`. Nothing here may become a product and sum
// in one operation (-ffp-contract=off), and every function is part of its translation unit alone: one that is shared
// could be taken from the wrong one.
//
// A row is rounded to what tokens are kept in (take_row), turned where its grid says so (rotate_row), and coded by group
// (encode_row) or, together with the other tokens of its block, by channel (encode_channels).
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "encode.h"
#include "floats.h"
#include "grid_parameters.h"

namespace kvassay {
namespace KVASSAY_ISA {
namespace {

constexpr int kLanes = 16;

// --- Values as they are kept -------------------------------------------------------------------------------------------

template <FloatType kType>
KV_INLINE Lanes::Floats load_as(const std::uint8_t* p, int i) {
  if constexpr (kType == FloatType::kFloat32) return Lanes::load(reinterpret_cast<const float*>(p) + i);
  else if constexpr (kType == FloatType::kFloat16) return Lanes::load_float16(reinterpret_cast<const std::uint16_t*>(p) + i);
  else return Lanes::load_bfloat16(reinterpret_cast<const std::uint16_t*>(p) + i);
}

template <FloatType kType>
KV_INLINE void store_as(std::uint8_t* p, int i, const Lanes::Floats& x) {
  if constexpr (kType == FloatType::kFloat32) Lanes::store(reinterpret_cast<float*>(p) + i, x);
  else if constexpr (kType == FloatType::kFloat16) Lanes::store_float16(reinterpret_cast<std::uint16_t*>(p) + i, x);
  else Lanes::store_bfloat16(reinterpret_cast<std::uint16_t*>(p) + i, x);
}

// Sixteen values of one type as another keeps them, whose bytes go to `kept`; what does not fit becomes infinity.
template <FloatType kGiven, FloatType kKept>
KV_INLINE void take_lanes(const std::uint8_t* from, int i, std::uint8_t* kept, float* values, Lanes::Floats& check) {
  Lanes::Floats x = load_as<kGiven>(from, i);
  store_as<kKept>(kept, i, x);
  if constexpr (kGiven != kKept && kKept != FloatType::kFloat32) x = load_as<kKept>(kept, i);
  Lanes::store(values + i, x);
  check = Lanes::add(check, Lanes::mul(x, Lanes::set(0.f)));  // NaN from a value that is not finite
}

template <FloatType kGiven, FloatType kKept>
bool take_row(const std::uint8_t* from, int dim, std::uint8_t* kept, float* values) {
  Lanes::Floats check = Lanes::set(0.f);
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) take_lanes<kGiven, kKept>(from, i, kept, values, check);
  if (i < dim) {  // the rest by way of sixteen, of which the last are zeros
    const std::size_t left = static_cast<std::size_t>(dim - i);
    alignas(64) std::uint8_t given_lanes[4 * kLanes] = {}, kept_lanes[4 * kLanes];
    float lanes[kLanes];
    std::memcpy(given_lanes, from + static_cast<std::size_t>(i) * nbytes_of(kGiven), left * nbytes_of(kGiven));
    take_lanes<kGiven, kKept>(given_lanes, 0, kept_lanes, lanes, check);
    std::memcpy(kept + static_cast<std::size_t>(i) * nbytes_of(kKept), kept_lanes, left * nbytes_of(kKept));
    std::memcpy(values + i, lanes, left * sizeof(float));
  }
  return !Lanes::has_nan(check);
}

using TakeRow = bool (*)(const std::uint8_t* from, int dim, std::uint8_t* kept, float* values);

TakeRow take_row_of(FloatType given, FloatType kept) {
  constexpr FloatType k32 = FloatType::kFloat32, k16 = FloatType::kFloat16, kB16 = FloatType::kBFloat16;
  static constexpr TakeRow kWays[3][3] = {
      {take_row<k32, k32>, take_row<k32, k16>, take_row<k32, kB16>},
      {take_row<k16, k32>, take_row<k16, k16>, take_row<k16, kB16>},
      {take_row<kB16, k32>, take_row<kB16, k16>, take_row<kB16, kB16>},
  };
  return kWays[static_cast<int>(given)][static_cast<int>(kept)];
}

// --- Rotation ----------------------------------------------------------------------------------------------------------

template <int kStride>
void butterflies_within(float* x, int dim) {
  for (int i = 0; i < dim; i += kLanes) Lanes::store(x + i, Lanes::butterfly<kStride>(Lanes::load(x + i)));
}

// Strides of 16 and more, and any for a block that is not whole vectors.
void butterflies_across(float* x, int dim, int stride) {
  for (int first = 0; first < dim; first += 2 * stride)
    for (int i = first; i < first + stride; ++i) {
      const float even = x[i], odd = x[i + stride];
      x[i] = even + odd;
      x[i + stride] = even - odd;
    }
}

// As formats/rotation.py: signs, single additions with strides 1, 2, 4, ..., and the factor last.
void rotate_row(const CodeGrid& grid, float* x, int dim) {
  for (int i = 0; i < dim; ++i) x[i] *= grid.signs[static_cast<std::size_t>(i)];
  int stride = 1;
  if (grid.rotation_block % kLanes == 0) {
    butterflies_within<1>(x, dim);
    butterflies_within<2>(x, dim);
    butterflies_within<4>(x, dim);
    butterflies_within<8>(x, dim);
    stride = kLanes;
  }
  for (; stride < grid.rotation_block; stride *= 2) butterflies_across(x, dim, stride);
  const float factor = static_cast<float>(1 / std::sqrt(static_cast<double>(grid.rotation_block)));
  for (int i = 0; i < dim; ++i) x[i] *= factor;
}

// --- Codes -------------------------------------------------------------------------------------------------------------

// The lowest bits of sixteen codes, from channel i of a row on.
KV_INLINE void put_codes(std::uint8_t* row, int i, int num_bits, const Lanes::Ints& codes) {
  switch (num_bits) {
    case 2: return Lanes::put_2_bits(row + i / 4, codes);
    case 4: return Lanes::put_4_bits(row + i / 2, codes);
    default: return Lanes::put_8_bits(row + i, codes);
  }
}

// x / scale, rounded to a whole number as if by a division. A product with 1 / scale is within 2^-13 of the quotient,
// which is below 256 or clamped, so the two round alike unless the product is about as near to a half.
KV_INLINE Lanes::Floats rounded_quotient(const Lanes::Floats& x, const Lanes::Floats& scale, const Lanes::Floats& inverse) {
  const Lanes::Floats product = Lanes::mul(x, inverse), rounded = Lanes::round(product);
  if (__builtin_expect(Lanes::are_nearer(product, rounded, 0.5f - 0x1p-12f), 1)) return rounded;
  return Lanes::round(Lanes::div(x, scale));
}

struct Steps {
  Lanes::Floats minimum, scale, inverse;
};

KV_INLINE Lanes::Ints code_of(const CodeGrid& grid, const Lanes::Floats& x, const Steps& steps) {
  if (grid.method == GridMethod::kInteger) {
    const Lanes::Floats centred = grid.symmetric ? x : Lanes::sub(x, steps.minimum);
    Lanes::Floats step = rounded_quotient(centred, steps.scale, steps.inverse);
    step = Lanes::max(Lanes::min(step, Lanes::set(top_of(grid))), Lanes::set(grid.symmetric ? -top_of(grid) : 0.f));
    return Lanes::plus(Lanes::to_ints(step), offset_of(grid));
  }
  const Lanes::Floats share = Lanes::div(x, steps.scale);
  if (grid.method == GridMethod::kFloat8E4M3)
    return Lanes::to_e4m3(Lanes::max(Lanes::min(share, Lanes::set(448.f)), Lanes::set(-448.f)));
  Lanes::Ints count = Lanes::zeros();
  for (const float edge : grid.boundaries) count = Lanes::count_if_reached(count, share, edge);
  return count;
}

// The scale (and minimum) of values from low to high, stored as number `index`.
KV_INLINE bool put_parameters(const CodeGrid& grid, float low, float high, std::size_t index, std::uint8_t* scales,
                              std::uint8_t* minimums, float& minimum, float& scale) {
  minimum = 0;
  if (!grid.symmetric) {
    const Stored stored = stored_down(low + 0.f, grid.scale_type);  // zero has one sign, whichever lane it came from
    if (!stored.is_finite) return false;
    put_parameter(minimums, index, stored, grid.scale_type);
    minimum = stored.value;
    high = high > minimum ? high - minimum : 0.f;
  }
  const Stored stored = stored_scale(high / top_of(grid), grid.scale_type);
  put_parameter(scales, index, stored, grid.scale_type);
  scale = stored.value;
  return stored.is_finite;
}

// One row whose groups are whole vectors, or shorter ones by way of vectors that are filled up with copies of a value.
bool encode_row(const CodeGrid& grid, const float* x, int dim, std::uint8_t* codes, std::uint8_t* scales,
                std::uint8_t* minimums) {
  const int group = grid.group;
  const bool is_whole = group % kLanes == 0;
  for (int first = 0; first < dim; first += group) {
    const float* own = x + first;
    float filled[kLanes];
    const auto lanes_at = [&](int i) {
      if (is_whole || group - i >= kLanes) return Lanes::load(own + i);
      for (int j = 0; j < kLanes; ++j) filled[j] = own[i + j < group ? i + j : i];
      return Lanes::load(filled);
    };
    Lanes::Floats low = lanes_at(0), high = grid.symmetric ? Lanes::absolute(low) : low;
    for (int i = kLanes; i < group; i += kLanes) {
      const Lanes::Floats values = lanes_at(i);
      if (!grid.symmetric) low = Lanes::min(low, values);
      high = Lanes::max(high, grid.symmetric ? Lanes::absolute(values) : values);
    }
    float minimum, scale;
    if (!put_parameters(grid, Lanes::reduce_min(low), Lanes::reduce_max(high), static_cast<std::size_t>(first / group),
                        scales, minimums, minimum, scale))
      return false;
    const Steps steps{Lanes::set(minimum), Lanes::set(scale), Lanes::set(1.f / scale)};
    for (int i = 0; i < group; i += kLanes) {
      const Lanes::Ints found = code_of(grid, lanes_at(i), steps);
      if (is_whole || group - i >= kLanes) {
        put_codes(codes, first + i, grid.num_bits, found);
      } else {
        std::uint8_t bytes[kLanes];
        put_codes(bytes, 0, grid.num_bits, found);
        std::memcpy(codes + (first + i) * grid.num_bits / 8, bytes, static_cast<std::size_t>((group - i) * grid.num_bits / 8));
      }
    }
  }
  return true;
}

// A block of tokens `[block_tokens][dim]` with a scale for each channel; `dim` is whole vectors.
bool encode_channels(const CodeGrid& grid, const float* x, int dim, std::uint8_t* codes, std::uint8_t* scales,
                     std::uint8_t* minimums) {
  const std::size_t row_nbytes = static_cast<std::size_t>(dim * grid.num_bits / 8);
  for (int first = 0; first < dim; first += kLanes) {
    const float* own = x + first;
    Lanes::Floats low = Lanes::load(own), high = grid.symmetric ? Lanes::absolute(low) : low;
    for (int token = 1; token < grid.block_tokens; ++token) {
      const Lanes::Floats values = Lanes::load(own + token * dim);
      if (!grid.symmetric) low = Lanes::min(low, values);
      high = Lanes::max(high, grid.symmetric ? Lanes::absolute(values) : values);
    }
    float lows[kLanes], highs[kLanes], channel_minimums[kLanes], channel_scales[kLanes];
    Lanes::store(lows, low);
    Lanes::store(highs, high);
    for (int j = 0; j < kLanes; ++j)
      if (!put_parameters(grid, lows[j], highs[j], static_cast<std::size_t>(first + j), scales, minimums, channel_minimums[j],
                          channel_scales[j]))
        return false;
    Steps steps{Lanes::load(channel_minimums), Lanes::load(channel_scales), {}};
    steps.inverse = Lanes::div(Lanes::set(1.f), steps.scale);
    for (int token = 0; token < grid.block_tokens; ++token)
      put_codes(codes + static_cast<std::size_t>(token) * row_nbytes, first, grid.num_bits,
                code_of(grid, Lanes::load(own + token * dim), steps));
  }
  return true;
}

}  // namespace

bool encode_rows(const CodeGrid* grid, const Vectors& vectors, int dim, FloatType kept, const EncodedRows& to) {
  // Kept from call to call, so that no memory is asked for while decoding.
  static thread_local std::vector<float> values;
  static thread_local std::vector<std::uint8_t> kept_row;
  const int block = grid ? grid->block_tokens : 1;
  const std::size_t width = static_cast<std::size_t>(dim), kept_nbytes = width * nbytes_of(kept);
  if (values.size() < width * static_cast<std::size_t>(block)) values.resize(width * static_cast<std::size_t>(block));
  if (kept_row.size() < kept_nbytes) kept_row.resize(kept_nbytes);
  const TakeRow take = take_row_of(vectors.type, kept);
  const std::size_t code_nbytes = grid ? width * static_cast<std::size_t>(grid->num_bits) / 8 : 0;
  const std::size_t scale_nbytes =
      grid ? static_cast<std::size_t>(grid->scales_of_block(dim)) * (grid->scale_type == ScaleType::kFloat32 ? 4 : 2) : 0;
  std::size_t row = 0, number = 0;  // of tokens and of blocks
  for (std::int64_t sequence = 0; sequence < vectors.sequences; ++sequence)
    for (std::int64_t head = 0; head < vectors.heads; ++head) {
      const std::ptrdiff_t first = sequence * vectors.sequence_stride + head * vectors.head_stride;
      for (std::int64_t token = 0; token < vectors.tokens; token += block, ++number) {
        for (int i = 0; i < block; ++i) {
          const std::ptrdiff_t element = first + (token + i) * vectors.token_stride;
          const std::uint8_t* from = vectors.data + element * static_cast<std::ptrdiff_t>(nbytes_of(vectors.type));
          std::uint8_t* kept_to = to.kept ? to.kept + (row + static_cast<std::size_t>(i)) * kept_nbytes : kept_row.data();
          float* own = values.data() + static_cast<std::size_t>(i) * width;
          if (!take(from, dim, kept_to, own)) return false;
          if (grid && !grid->signs.empty()) rotate_row(*grid, own, dim);
        }
        if (grid) {
          std::uint8_t* minimums = grid->symmetric ? nullptr : to.minimums + number * scale_nbytes;
          const auto encode = block > 1 ? encode_channels : encode_row;
          if (!encode(*grid, values.data(), dim, to.codes + row * code_nbytes, to.scales + number * scale_nbytes, minimums))
            return false;
        }
        row += static_cast<std::size_t>(block);
      }
    }
  return true;
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

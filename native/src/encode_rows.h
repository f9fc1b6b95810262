// Vectors to codes, compiled once for each instruction set over its `Lanes`. Nothing here may become a product and sum
// in one operation (-ffp-contract=off), and every function is part of its translation unit alone: one that is shared
// could be taken from the wrong one. So there are no templates of the standard library.
//
// A row is rounded to what tokens are kept in (take_row), turned where its grid says so (rotate_row), and coded with some
// others: by group (encode_groups) or, with all tokens of its block, by channel (encode_channels).
#pragma once
#include <cstring>

#include "encode.h"
#include "floats.h"
#include "grid_parameters.h"
#include "unroll.h"

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
  const Lanes::Floats zero = Lanes::set(0.f);
  // Rounding to bfloat16 carries some NaN over into zero, so they are looked for before it too.
  if constexpr (kGiven != kKept && kKept == FloatType::kBFloat16) check = Lanes::add(check, Lanes::mul(x, zero));
  if constexpr (kGiven != kKept && kKept != FloatType::kFloat32) x = load_as<kKept>(kept, i);
  Lanes::store(values + i, x);
  check = Lanes::add(check, Lanes::mul(x, zero));  // NaN from a value that is not finite
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

template <int kVectors, int kStride = 1>
KV_INLINE void butterflies_across(Lanes::Floats* x) {
  if constexpr (kStride < kVectors) {
    unroll<kVectors>([&](auto at) {
      constexpr int i = decltype(at){};
      if constexpr (!(i & kStride)) {
        const Lanes::Floats even = x[i], odd = x[i + kStride];
        x[i] = Lanes::add(even, odd);
        x[i + kStride] = Lanes::sub(even, odd);
      }
    });
    butterflies_across<kVectors, 2 * kStride>(x);
  }
}

// A block of 16 kVectors channels, in registers: strides 1 to 8 stay within a vector, the others go across them.
template <int kVectors>
void rotate_vectors(float* x, const float* signs, float factor) {
  Lanes::Floats all[kVectors];
  unroll<kVectors>([&](auto at) {
    constexpr int i = decltype(at){};
    const Lanes::Floats turned = Lanes::mul(Lanes::load(x + i * kLanes), Lanes::load(signs + i * kLanes));
    all[i] = Lanes::butterfly<8>(Lanes::butterfly<4>(Lanes::butterfly<2>(Lanes::butterfly<1>(turned))));
  });
  butterflies_across<kVectors>(all);
  unroll<kVectors>([&](auto at) {
    constexpr int i = decltype(at){};
    Lanes::store(x + i * kLanes, Lanes::mul(all[i], Lanes::set(factor)));
  });
}

// A block of any size, number by number.
void rotate_numbers(float* x, const float* signs, int block, float factor) {
  for (int i = 0; i < block; ++i) x[i] *= signs[i];
  for (int stride = 1; stride < block; stride *= 2)
    for (int first = 0; first < block; first += 2 * stride)
      for (int i = first; i < first + stride; ++i) {
        const float even = x[i], odd = x[i + stride];
        x[i] = even + odd;
        x[i + stride] = even - odd;
      }
  for (int i = 0; i < block; ++i) x[i] *= factor;
}

// As formats/rotation.py: signs, single additions with strides 1, 2, 4, ..., and the factor last.
void rotate_row(const CodeGrid& grid, float* x, int dim) {
  const int block = grid.rotation_block;
  const float factor = grid.rotation_factor;
  for (int first = 0; first < dim; first += block) {
    const float* signs = grid.signs + first;
    switch (block) {
      case 16: rotate_vectors<1>(x + first, signs, factor); break;
      case 32: rotate_vectors<2>(x + first, signs, factor); break;
      case 64: rotate_vectors<4>(x + first, signs, factor); break;
      case 128: rotate_vectors<8>(x + first, signs, factor); break;
      default: rotate_numbers(x + first, signs, block, factor); break;
    }
  }
}

// --- Codes -------------------------------------------------------------------------------------------------------------

// A grid whose method, bits and symmetry are known where loops are compiled.
template <GridMethod kMethod, int kBits, bool kSymmetric>
struct Coder {
  Lanes::Floats top, bottom;
  std::int32_t offset;

  explicit Coder(const CodeGrid& grid)
      : top(Lanes::set(top_of(grid))), bottom(Lanes::set(kSymmetric ? -top_of(grid) : 0.f)), offset(offset_of(grid)) {}

  static KV_INLINE void widen(const Lanes::Floats& x, Lanes::Floats& low, Lanes::Floats& high) {
    if constexpr (!kSymmetric) low = Lanes::min(low, x);
    high = Lanes::max(high, magnitude(x));
  }
  static KV_INLINE Lanes::Floats magnitude(const Lanes::Floats& x) {
    if constexpr (kSymmetric) return Lanes::absolute(x);
    else return x;
  }

  KV_INLINE Lanes::Ints codes(const CodeGrid& grid, const Lanes::Floats& x, const Lanes::Floats& minimum,
                              const Lanes::Floats& scale, const Lanes::Floats& inverse) const {
    if constexpr (kMethod == GridMethod::kInteger) {
      const Lanes::Floats step = rounded_quotient(kSymmetric ? x : Lanes::sub(x, minimum), scale, inverse);
      return Lanes::plus(Lanes::to_ints(Lanes::max(Lanes::min(step, top), bottom)), offset);
    } else {
      const Lanes::Floats share = Lanes::div(x, scale);
      if constexpr (kMethod == GridMethod::kFloat8E4M3) {
        return Lanes::to_e4m3(Lanes::max(Lanes::min(share, top), bottom));
      } else {
        return Lanes::count_reached(share, grid.boundaries);
      }
    }
  }

  // x / scale, rounded to a whole number as if by a division. A product with 1 / scale is within 2^-13 of the quotient,
  // which is below 256 or clamped, so the two round alike unless the product is about as near to a half.
  static KV_INLINE Lanes::Floats rounded_quotient(const Lanes::Floats& x, const Lanes::Floats& scale,
                                                  const Lanes::Floats& inverse) {
    const Lanes::Floats product = Lanes::mul(x, inverse), rounded = Lanes::round(product);
    if (__builtin_expect(Lanes::are_nearer(product, rounded, 0.5f - 0x1p-12f), 1)) return rounded;
    return Lanes::round(Lanes::div(x, scale));
  }

  static constexpr int kNbytes = kLanes * kBits / 8;  // of sixteen codes
  static KV_INLINE void put(std::uint8_t* to, const Lanes::Ints& codes) {
    if constexpr (kBits == 2) Lanes::put_2_bits(to, codes);
    else if constexpr (kBits == 4) Lanes::put_4_bits(to, codes);
    else Lanes::put_8_bits(to, codes);
  }
};

// `count` groups of values one after the other, whose scales and codes follow each other too. Extents of many groups are
// found before their parameters are worked out, since each is a chain of operations that wait for one another.
template <class C>
bool encode_groups(const CodeGrid& grid, const float* x, int count, const EncodedRows& to) {
  const C coder(grid);
  const int group = grid.group;
  const std::size_t group_nbytes = static_cast<std::size_t>(group * grid.num_bits / 8);
  // Values i to i + 15 of a group; in place of what is beyond it, a value of it.
  const auto lanes_at = [group](const float* own, int i) {
    if (group - i >= kLanes) return Lanes::load(own + i);
    float filled[kLanes];
    for (int j = 0; j < kLanes; ++j) filled[j] = own[i + j < group ? i + j : i];
    return Lanes::load(filled);
  };
  for (int first = 0; first < count; first += kLanes) {
    const int here = count - first < kLanes ? count - first : kLanes;
    const float* values = x + static_cast<std::ptrdiff_t>(first) * group;
    Parameters parameters;
    for (int i = 0; i < here; ++i) {
      const float* own = values + static_cast<std::ptrdiff_t>(i) * group;
      Lanes::Floats low = lanes_at(own, 0), high = C::magnitude(low);
      for (int k = kLanes; k < group; k += kLanes) C::widen(lanes_at(own, k), low, high);
      if (!grid.symmetric) parameters.low[i] = Lanes::reduce_min(low);
      parameters.high[i] = Lanes::reduce_max(high);
    }
    if (!put_parameters(grid, parameters, here, static_cast<std::size_t>(first), to.scales, to.minimums)) return false;
    for (int i = 0; i < here; ++i) {
      const float* own = values + static_cast<std::ptrdiff_t>(i) * group;
      std::uint8_t* codes = to.codes + static_cast<std::size_t>(first + i) * group_nbytes;
      const Lanes::Floats minimum = Lanes::set(parameters.minimum[i]), scale = Lanes::set(parameters.scale[i]);
      const Lanes::Floats inverse = Lanes::set(parameters.inverse[i]);
      for (int k = 0; k < group; k += kLanes, codes += C::kNbytes) {
        const Lanes::Ints found = coder.codes(grid, lanes_at(own, k), minimum, scale, inverse);
        if (group - k >= kLanes) {
          C::put(codes, found);
        } else {
          std::uint8_t bytes[C::kNbytes];
          C::put(bytes, found);
          std::memcpy(codes, bytes, static_cast<std::size_t>((group - k) * grid.num_bits / 8));
        }
      }
    }
  }
  return true;
}

// A block of tokens `[block_tokens][dim]` with a scale for each channel; `dim` is whole vectors.
template <class C>
bool encode_channels(const CodeGrid& grid, const float* x, int dim, const EncodedRows& to) {
  const C coder(grid);
  const std::size_t row_nbytes = static_cast<std::size_t>(dim * grid.num_bits / 8);
  for (int first = 0; first < dim; first += kLanes) {
    const float* own = x + first;
    Lanes::Floats low = Lanes::load(own), high = C::magnitude(low);
    for (int token = 1; token < grid.block_tokens; ++token) C::widen(Lanes::load(own + token * dim), low, high);
    Parameters parameters;
    Lanes::store(parameters.low, low);
    Lanes::store(parameters.high, high);
    if (!put_parameters(grid, parameters, kLanes, static_cast<std::size_t>(first), to.scales, to.minimums)) return false;
    const Lanes::Floats minimum = Lanes::load(parameters.minimum), scale = Lanes::load(parameters.scale);
    const Lanes::Floats inverse = Lanes::load(parameters.inverse);
    std::uint8_t* codes = to.codes + first * grid.num_bits / 8;
    for (int token = 0; token < grid.block_tokens; ++token, codes += row_nbytes)
      C::put(codes, coder.codes(grid, Lanes::load(own + token * dim), minimum, scale, inverse));
  }
  return true;
}

// How the values of a batch become codes: `[count groups][group]`, or a block `[block_tokens][dim]`.
using EncodeBatch = bool (*)(const CodeGrid& grid, const float* x, int count_or_dim, const EncodedRows& to);

template <class C>
EncodeBatch batch_by(const CodeGrid& grid) {
  return grid.block_tokens > 1 ? encode_channels<C> : encode_groups<C>;
}

EncodeBatch encode_batch_of(const CodeGrid& grid) {
  constexpr GridMethod kInteger = GridMethod::kInteger;
  if (grid.method == GridMethod::kTable) return batch_by<Coder<GridMethod::kTable, 4, true>>(grid);
  if (grid.method == GridMethod::kFloat8E4M3) return batch_by<Coder<GridMethod::kFloat8E4M3, 8, true>>(grid);
  switch (grid.num_bits) {
    case 2: return grid.symmetric ? batch_by<Coder<kInteger, 2, true>>(grid) : batch_by<Coder<kInteger, 2, false>>(grid);
    case 4: return grid.symmetric ? batch_by<Coder<kInteger, 4, true>>(grid) : batch_by<Coder<kInteger, 4, false>>(grid);
    default: return grid.symmetric ? batch_by<Coder<kInteger, 8, true>>(grid) : batch_by<Coder<kInteger, 8, false>>(grid);
  }
}

}  // namespace

bool encode_rows(const CodeGrid* grid, const Vectors& vectors, int dim, FloatType kept, const EncodedRows& to,
                 const EncodeScratch& scratch) {
  const bool by_channel = grid && grid->block_tokens > 1;
  const std::size_t width = static_cast<std::size_t>(dim), kept_nbytes = width * nbytes_of(kept);
  const std::size_t groups = grid && !by_channel ? width / static_cast<std::size_t>(grid->group) : 1;
  const std::size_t batch = static_cast<std::size_t>(encode_batch_rows(grid, dim));
  const TakeRow take = take_row_of(vectors.type, kept);
  const EncodeBatch encode = grid ? encode_batch_of(*grid) : nullptr;
  const std::size_t code_nbytes = grid ? width * static_cast<std::size_t>(grid->num_bits) / 8 : 0;
  const std::size_t scale_nbytes = grid ? static_cast<std::size_t>(grid->scales_of_block(dim)) * nbytes_of(grid->scale_type) : 0;
  EncodedRows next = to;
  std::size_t waiting = 0;  // rows of the batch
  const auto encode_waiting = [&] {
    if (!encode(*grid, scratch.values, by_channel ? dim : static_cast<int>(waiting * groups), next)) return false;
    const std::size_t numbers = (by_channel ? 1 : waiting) * scale_nbytes;
    next.codes += waiting * code_nbytes;
    next.scales += numbers;
    if (!grid->symmetric) next.minimums += numbers;
    waiting = 0;
    return true;
  };
  for (std::int64_t sequence = 0; sequence < vectors.sequences; ++sequence)
    for (std::int64_t head = 0; head < vectors.heads; ++head)
      for (std::int64_t token = 0; token < vectors.tokens; ++token) {
        const std::ptrdiff_t element = sequence * vectors.sequence_stride + head * vectors.head_stride + token * vectors.token_stride;
        const std::uint8_t* from = vectors.data + element * static_cast<std::ptrdiff_t>(nbytes_of(vectors.type));
        float* own = scratch.values + waiting * width;
        if (!take(from, dim, next.kept ? next.kept : scratch.kept_row, own)) return false;
        if (next.kept) next.kept += kept_nbytes;
        if (!grid) continue;
        if (grid->signs) rotate_row(*grid, own, dim);
        if (++waiting == batch && !encode_waiting()) return false;
      }
  return !waiting || encode_waiting();
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

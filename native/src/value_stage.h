// Weighted sums of the values of one tile.
//
// Value codes lie [quad of tokens][byte of the row][token of the quad]: a lane is a byte column, and a word holds four
// tokens of it. Plain floats lie in rows. Sums of codes are kept as the lanes have them: [vector of columns][code of the
// byte][lane], each group of channels from a new vector on; `channel_sums` brings them into the order of channels.
#pragma once
#include <math.h>
#include <string.h>

#include "key_stage.h"
#include "workspace.h"

namespace kvassay {
namespace KVASSAY_ISA {

// Weights of tokens low to high - 1 times their scales for group `g`, up to whole vectors, and the largest of each row;
// adds what offset and minimum contribute to every channel of the group.
template <class S, int kRows>
KV_INLINE void scale_weights(const TileFormat& format, const std::uint8_t* tile, int g, int low, int high,
                             const float* const* weights, float (*scaled)[kMaxPageTokens], float* const* constants,
                             float* largest) {
  using Floats = typename S::Floats;
  const bool by_token = format.scale_mode == ScaleMode::kToken;
  Floats most[kRows], base[kRows];
  unroll<kRows>([&](auto r) KV_LAMBDA { most[r] = base[r] = S::zero(); });
  for (int t = low; t < high; t += S::kLanes) {
    Floats scale = S::set(1.f), minimum = S::zero();
    const int index = g * format.page_tokens + t;
    if (by_token) scale = load_parameter<S>(tile + format.scales_offset, index, format.scale_type);
    if (by_token && format.has_minimum)
      minimum = load_parameter<S>(tile + format.minimums_offset, index, format.scale_type);
    minimum = S::fma(scale, S::set(-format.offset), minimum);
    unroll<kRows>([&](auto r) KV_LAMBDA {
      const Floats weight = S::loadf(weights[r] + t), product = S::mul(weight, scale);
      base[r] = S::fma(weight, minimum, base[r]);
      most[r] = S::max(most[r], S::absolute(product));  // ggml has scales below zero
      S::storef(scaled[r] + t, product);
    });
  }
  unroll<kRows>([&](auto r) KV_LAMBDA { largest[r] = S::reduce_max(most[r]); });
  if (format.has_minimum || format.offset != 0)
    unroll<kRows>([&](auto r) KV_LAMBDA {
      float* constant = constants[r] + g * S::kLanes;
      S::storef(constant, S::add(S::loadf(constant), base[r]));
    });
}

// Weights become 16-bit steps; returns what one step is worth.
template <class S, Code kCode>
KV_INLINE float round_weights(const float* scaled, int low, int high, float largest, float most, std::int16_t* steps) {
  const auto inverse = S::set(step_factor(largest, most));
  for (int t = low; t < high; t += S::kLanes) {
    const auto weights = S::mul(S::loadf(scaled + t), inverse);
    if constexpr (takes_quads<S>(kCode)) S::store_quads(steps + t, weights);
    else S::store_pairs16(steps + t, weights);
  }
  return largest / most;
}

// Integer codes: quads low to high of kVectors vectors of byte columns from `column` on; of each byte the codes number
// kFirst to kFirst + kSubs - 1, so that sums stay in registers.
template <class S, Code kCode, int kRows, int kVectors, int kFirst, int kSubs>
KV_INLINE void sub_sums(const std::uint8_t* tile, int columns, int column, int slot, int lanes, int low, int high,
                        const WeightSteps& weights, float* const* sums, std::ptrdiff_t ahead) {
  using Ints = typename S::Ints;
  using P = Products<S, kCode>;
  constexpr int kPerByte = codes_per_byte(kCode), kLanes = S::kLanes;
  typename P::Sum sum[kVectors * kSubs * kRows];
  unroll<kVectors * kSubs * kRows>([&](auto i) KV_LAMBDA { sum[i] = P::zero(); });
  const std::uint8_t* place = tile + static_cast<std::size_t>(column) * 4;
  // Memory is asked for in the order in which it lies, which is not the order of the columns.
  const std::uint8_t* next = tile + ahead + static_cast<std::size_t>(column) * (high - low) * 4;
  for (int quad = low; quad < high; ++quad) {
    const std::uint8_t* row = place + static_cast<std::size_t>(quad) * columns * 4;
    Ints word[kVectors];
    unroll<kVectors>([&](auto v) KV_LAMBDA {
      word[v] = lanes == kLanes ? S::load(row + v * kLanes * 4) : S::load_first(row, lanes);
      if constexpr (kFirst == 0 && v * kLanes % 16 == 0) prefetch(next + v * kLanes * 4);
    });
    next += kVectors * kLanes * 4;
    unroll<P::kParts>([&](auto part) KV_LAMBDA {
      constexpr int kSub = P::sub_of(part) - kFirst;
      if constexpr (kSub >= 0 && kSub < kSubs)
        unroll<kVectors>([&](auto v) KV_LAMBDA {
          const Ints codes = P::template codes<part>(word[v]);
          unroll<kRows>([&](auto r) KV_LAMBDA {
            P::add(sum[(v * kSubs + kSub) * kRows + r], codes, weights.steps[r] + quad * 4 + P::value_steps(part));
          });
        });
    });
  }
  unroll<kVectors * kSubs>([&](auto part) KV_LAMBDA {
    unroll<kRows>([&](auto r) KV_LAMBDA {
      constexpr int kPlace = part / kSubs * kPerByte + kFirst + part % kSubs;
      float* out = sums[r] + (slot * kPerByte + kPlace) * kLanes;
      S::storef(out, S::fma(S::to_floats(P::total(sum[part * kRows + r])), S::set(weights.unit[r]), S::loadf(out)));
    });
  });
}

template <class S, Code kCode, int kRows, int kVectors>
KV_INLINE void integer_sums(const std::uint8_t* tile, int columns, int column, int slot, int lanes, int low, int high,
                            const WeightSteps& weights, float* const* sums, std::ptrdiff_t ahead) {
  constexpr int kPerByte = codes_per_byte(kCode);
  constexpr bool kHalved = takes_quads<S>(kCode) && kPerByte * kRows > 8;  // quads have two sums for one
  constexpr int kSubs = kHalved ? kPerByte / 2 : kPerByte;
  sub_sums<S, kCode, kRows, kVectors, 0, kSubs>(tile, columns, column, slot, lanes, low, high, weights, sums, ahead);
  if constexpr (kHalved)
    sub_sums<S, kCode, kRows, kVectors, kSubs, kSubs>(tile, columns, column, slot, lanes, low, high, weights, sums, ahead);
}

// Codes that are multiplied as floats, in quads.
template <class S, Code kCode, int kRows>
KV_INLINE void float_sums(const TileFormat& format, const std::uint8_t* tile, int columns, int column, int slot, int lanes,
                          int low, int high, const ValueWork& work, float* const* sums, std::ptrdiff_t ahead) {
  using Floats = typename S::Floats;
  constexpr int kPerByte = codes_per_byte(kCode), kLanes = S::kLanes;
  typename S::Table table{};
  if constexpr (is_table(kCode)) table = S::load_table(format.table);
  Floats sum[kPerByte * kRows];
  unroll<kPerByte * kRows>([&](auto i) KV_LAMBDA { sum[i] = S::zero(); });
  const std::uint8_t* place = tile + static_cast<std::size_t>(column) * 4;
  for (int quad = low; quad < high; ++quad) {
    const std::uint8_t* row = place + static_cast<std::size_t>(quad) * columns * 4;
    const auto word = lanes == kLanes ? S::load(row) : S::load_first(row, lanes);
    prefetch(row + ahead);
    unroll<4 * kPerByte>([&](auto e) KV_LAMBDA {
      constexpr int kToken = e / kPerByte, kSub = e % kPerByte;
      const Floats value = element<S, kCode, e>(word, table);
      unroll<kRows>([&](auto r) KV_LAMBDA {
        sum[kSub * kRows + r] = S::fma(value, S::set(work.scaled[r][quad * 4 + kToken]), sum[kSub * kRows + r]);
      });
    });
  }
  unroll<kPerByte>([&](auto part) KV_LAMBDA {
    unroll<kRows>([&](auto r) KV_LAMBDA {
      float* out = sums[r] + (slot * kPerByte + part) * kLanes;
      S::storef(out, S::add(sum[part * kRows + r], S::loadf(out)));
    });
  });
}

// Rows of plain floats.
template <class S, Code kCode>
KV_INLINE typename S::Floats row_floats(const std::uint8_t* p) {
  if constexpr (kCode == Code::kFloat32) return S::loadf(reinterpret_cast<const float*>(p));
  else if constexpr (kCode == Code::kBFloat16) return S::load_bfloat16(p);
  else return S::load_float16(p);
}

template <class S, Code kCode, int kRows, int kVectors>
KV_INLINE void row_sums(const std::uint8_t* tile, int dim, int column, int first, int last, const ValueWork& work,
                        float* const* sums, std::ptrdiff_t ahead) {
  using Floats = typename S::Floats;
  constexpr int kBytes = code_bits(kCode) / 8, kLanes = S::kLanes;
  Floats sum[kVectors * kRows];
  unroll<kVectors>([&](auto v) KV_LAMBDA {
    unroll<kRows>([&](auto r) KV_LAMBDA { sum[v * kRows + r] = S::loadf(sums[r] + column + v * kLanes); });
  });
  for (int t = first; t < last; ++t) {
    const std::uint8_t* row = tile + (static_cast<std::size_t>(t) * dim + column) * kBytes;
    unroll<kVectors>([&](auto v) KV_LAMBDA {
      const Floats value = row_floats<S, kCode>(row + v * kLanes * kBytes);
      if constexpr (v * kLanes * kBytes % 64 == 0) prefetch(row + v * kLanes * kBytes + ahead);
      unroll<kRows>([&](auto r) KV_LAMBDA {
        sum[v * kRows + r] = S::fma(value, S::set(work.scaled[r][t]), sum[v * kRows + r]);
      });
    });
  }
  unroll<kVectors>([&](auto v) KV_LAMBDA {
    unroll<kRows>([&](auto r) KV_LAMBDA { S::storef(sums[r] + column + v * kLanes, sum[v * kRows + r]); });
  });
}

// Weights of tokens low to high - 1, of which those that are not meant (first to last - 1 are) weigh nothing.
template <int kRows>
KV_INLINE void meant_weights(float* const* weights, int first, int last, int low, int high, float (*own)[kMaxPageTokens],
                             const float** given) {
  for (int r = 0; r < kRows; ++r) {
    given[r] = weights[r];
    if (low == first && high == last) continue;
    fill(own[r] + low, own[r] + high, 0.f);
    copy(weights[r] + first, weights[r] + last, own[r] + first);
    given[r] = own[r];
  }
}

// Adds the tokens first to last - 1 of a page. `weights[row][token]` count from the first place of the page.
// `constants[row][group][lane]` collects what is the same for all channels of a group.
template <class S, Code kCode, int kRows>
void value_stage(const TileFormat& format, const std::uint8_t* tile, int first, int last, float* const* weights,
                 float* const* sums, float* const* constants, ValueWork& work, std::ptrdiff_t ahead) {
  constexpr int kLanes = S::kLanes;
  const int low = first / kBlockTokens * kBlockTokens;
  const int high = smaller((last + kBlockTokens - 1) / kBlockTokens * kBlockTokens, kMaxPageTokens);
  alignas(64) float own[kRows][kMaxPageTokens];
  const float* given[kRows];
  meant_weights<kRows>(weights, first, last, low, high, own, given);
  if constexpr (code_bits(kCode) >= 16) {
    for (int r = 0; r < kRows; ++r) copy(given[r] + first, given[r] + last, work.scaled[r] + first);
    constexpr int kWide = kRows <= 2 ? 4 : 2;
    int column = 0;
    for (; column + kWide * kLanes <= format.dim; column += kWide * kLanes)
      row_sums<S, kCode, kRows, kWide>(tile, format.dim, column, first, last, work, sums, ahead);
    for (; column + kLanes <= format.dim; column += kLanes)
      row_sums<S, kCode, kRows, 1>(tile, format.dim, column, first, last, work, sums, ahead);
    return;
  } else {
    constexpr int kPerByte = codes_per_byte(kCode);
    const int columns = format.dim / kPerByte, groups = format.groups(), group_columns = columns / groups;
    const int low_quad = first / kQuadTokens, high_quad = (last + kQuadTokens - 1) / kQuadTokens;
    const int group_vectors = (group_columns + kLanes - 1) / kLanes;
    if constexpr (is_integer(kCode)) {
      // The steps of all groups first: products of one group need not wait for the weights of the next.
      const float most = largest_step<S>(kCode, format.page_tokens);
      for (int g = 0; g < groups; ++g) {
        float largest[kRows];
        scale_weights<S, kRows>(format, tile, g, low, high, given, work.scaled, constants, largest);
        for (int r = 0; r < kRows; ++r)
          work.groups[g].unit[r] =
              round_weights<S, kCode>(work.scaled[r], low, high, largest[r], most, work.groups[g].steps[r]);
      }
      for (int g = 0; g < groups; ++g) {
        const WeightSteps& steps = work.groups[g];
        const int end = (g + 1) * group_columns;
        int column = g * group_columns, slot = g * group_vectors;
        constexpr int kWide = kPerByte * kRows <= 4 ? 2 : 1;
        for (; column + kWide * kLanes <= end; column += kWide * kLanes, slot += kWide)
          integer_sums<S, kCode, kRows, kWide>(tile, columns, column, slot, kLanes, low_quad, high_quad, steps, sums, ahead);
        for (; column < end; column += kLanes, ++slot)
          integer_sums<S, kCode, kRows, 1>(tile, columns, column, slot, smaller(kLanes, end - column), low_quad, high_quad,
                                           steps, sums, ahead);
      }
    } else {
      for (int g = 0; g < groups; ++g) {
        float largest[kRows];
        scale_weights<S, kRows>(format, tile, g, low, high, given, work.scaled, constants, largest);
        const int end = (g + 1) * group_columns;
        for (int column = g * group_columns, slot = g * group_vectors; column < end; column += kLanes, ++slot)
          float_sums<S, kCode, kRows>(format, tile, columns, column, slot, smaller(kLanes, end - column), low_quad, high_quad,
                                      work, sums, ahead);
      }
    }
  }
}

// Adds sums in the order of lanes, times `factor`, to sums in the order of channels.
template <class S>
void channel_sums(const TileFormat& format, const float* sums, const float* constants, float factor, float* out) {
  constexpr int kLanes = S::kLanes;
  const int per_byte = codes_per_byte(format.code);
  const int groups = format.groups(), group_columns = format.dim / per_byte / groups;
  const int vectors = (group_columns + kLanes - 1) / kLanes;
  for (int g = 0; g < groups; ++g) {
    const float constant = S::reduce_add(S::loadf(constants + g * kLanes));
    for (int c = 0; c < group_columns; ++c)
      for (int sub = 0; sub < per_byte; ++sub) {
        const int slot = g * vectors + c / kLanes;
        const float sum = sums[(slot * per_byte + sub) * kLanes + c % kLanes];
        out[(g * group_columns + c) * per_byte + sub] += factor * (sum + constant);
      }
  }
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

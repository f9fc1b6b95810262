// Scores of some queries and the tokens of one tile of keys.
//
// Key words lie [block of 16 tokens][word][token]: a lane is a token, so a dot product over channels needs no sum across
// lanes. Queries stand in the order of the codes in a word; kRows of them share each word that is unpacked.
#pragma once
#include <math.h>
#include <string.h>

#include "call.h"
#include "products.h"
#include "workspace.h"

namespace kvassay {
namespace KVASSAY_ISA {

// For each lane of a vector of codes in the order of steps, the lane of the channel that stands there.
template <class S>
KV_INLINE typename S::Ints step_order(Code code) {
  const int per_word = codes_per_word(code);
  alignas(64) std::int32_t order[S::kLanes];
  for (int lane = 0; lane < S::kLanes; ++lane) order[lane] = lane;
  for (int word = 0; per_word <= S::kLanes && word < S::kLanes; word += per_word)
    for (int e = 0; e < per_word; ++e) order[word + step_place<S>(code, e)] = word + e;
  return S::load(order);
}

// Rounds `values`, dim floats up to `largest`, to 16-bit steps as Products takes them; `sums` gets the steps of each group
// added up.
template <class S>
void round_query(const TileFormat& format, const float* values, float largest, int group, std::int16_t* steps, float* unit,
                 float* sums) {
  using Floats = typename S::Floats;
  const float most = largest_step<S>(format.code, format.dim);
  const Floats inverse = S::set(step_factor(largest, most));
  *unit = largest / most;
  const bool by_vector = S::kReorders && codes_per_word(format.code) <= S::kLanes;
  const auto order = step_order<S>(format.code);
  alignas(64) std::int16_t plain[kMaxDim];
  for (int g = 0; g * group < format.dim; ++g) {
    Floats sum = S::zero();
    for (int c = g * group; c < (g + 1) * group; c += S::kLanes) {
      const Floats rounded = S::round(S::mul(S::loadf(values + c), inverse));
      sum = S::add(sum, rounded);
      if (!by_vector) S::store_int16(plain + c, rounded);
      else if (takes_quads<S>(format.code)) S::store_quads(steps + c, S::reorder(rounded, order));
      else S::store_int16(steps + c, S::reorder(rounded, order));
    }
    sums[g] = S::reduce_add(sum);
  }
  if (!by_vector) order_steps<S>(format.code, plain, format.dim, steps);
}

template <class S>
KV_INLINE float largest_magnitude(const float* values, int dim) {
  typename S::Floats most = S::zero();
  for (int c = 0; c < dim; c += S::kLanes) most = S::max(most, S::absolute(S::loadf(values + c)));
  return S::reduce_max(most);
}

// Channel scales multiply the queries, once for each block of tokens.
template <class S>
void fold_channel_scales(const TileFormat& format, const std::uint8_t* tile, int block, KeyQueries& q,
                         ScaledQueries& scaled) {
  using Floats = typename S::Floats;
  const int index = block * format.dim;
  Floats most[kMaxRows], constant[kMaxRows];
  unroll<kMaxRows>([&](auto r) KV_LAMBDA { most[r] = constant[r] = S::zero(); });
  for (int c = 0; c < format.dim; c += S::kLanes) {
    const Floats scale = load_parameter<S>(tile + format.scales_offset, index + c, format.scale_type);
    Floats minimum = S::mul(scale, S::set(-format.offset));
    if (format.has_minimum)
      minimum = S::add(minimum, load_parameter<S>(tile + format.minimums_offset, index + c, format.scale_type));
    unroll<kMaxRows>([&](auto r) KV_LAMBDA {
      if (r >= q.rows) return;
      const Floats value = S::loadf(q.given[r] + c), product = S::mul(value, scale);
      most[r] = S::max(most[r], S::absolute(product));
      constant[r] = S::fma(value, minimum, constant[r]);
      S::storef(scaled.plain[r] + c, product);
    });
  }
  unroll<kMaxRows>([&](auto r) KV_LAMBDA {
    if (r >= q.rows) return;
    q.constant[r] = S::reduce_add(constant[r]);
    if (is_integer(format.code)) {
      float sum;
      q.steps[r] = scaled.steps[r];
      round_query<S>(format, scaled.plain[r], S::reduce_max(most[r]), format.dim, q.steps[r], &q.unit[r], &sum);
    } else {
      q.plain[r] = scaled.plain[r];
    }
  });
}

// Scores of tokens `block * 16` on, kVectors vectors of them from number kFirst on, into `out[row][vector * lanes]`.
template <class S, Code kCode, int kRows, int kVectors, int kFirst = 0>
KV_INLINE void integer_scores(const TileFormat& format, const std::uint8_t* tile, int block, const KeyQueries& q,
                              float* const* out, std::ptrdiff_t ahead) {
  using Ints = typename S::Ints;
  using Floats = typename S::Floats;
  using P = Products<S, kCode>;
  constexpr int kPerWord = codes_per_word(kCode), kLanes = S::kLanes;
  const int words = format.words();
  const bool grouped = format.scale_mode == ScaleMode::kToken;
  const int groups = format.groups(), group_words = words / groups;
  const std::uint8_t* lines = tile + static_cast<std::size_t>(block) * words * 64;
  const std::uint8_t* next = lines + ahead;
  Floats total[kVectors * kRows];
  unroll<kVectors * kRows>([&](auto i) KV_LAMBDA { total[i] = S::zero(); });
  for (int g = 0; g < groups; ++g) {
    typename P::Sum sum[kVectors * kRows];
    unroll<kVectors * kRows>([&](auto i) KV_LAMBDA { sum[i] = P::zero(); });
    for (int w = g * group_words; w < (g + 1) * group_words; ++w) {
      Ints word[kVectors];
      unroll<kVectors>([&](auto v) KV_LAMBDA {
        constexpr int kToken = (kFirst + v) * kLanes;
        word[v] = S::load(lines + (static_cast<std::size_t>(kToken / kBlockTokens) * words + w) * 64 + kToken % kBlockTokens * 4);
        if constexpr (kToken % kBlockTokens == 0) prefetch(next + kToken * 4);
      });
      next += larger(kVectors * kLanes, kBlockTokens) * 4;
      unroll<P::kParts>([&](auto part) KV_LAMBDA {
        unroll<kVectors>([&](auto v) KV_LAMBDA {
          const Ints codes = P::template codes<part>(word[v]);
          unroll<kRows>([&](auto r) KV_LAMBDA {
            P::add(sum[v * kRows + r], codes, q.steps[r] + w * kPerWord + P::key_steps(part));
          });
        });
      });
    }
    unroll<kVectors>([&](auto v) KV_LAMBDA {
      if (grouped) {
        const int index = g * format.page_tokens + block * kBlockTokens + (kFirst + v) * kLanes;
        const Floats scale = load_parameter<S>(tile + format.scales_offset, index, format.scale_type);
        const Floats minimum = format.has_minimum
                                   ? load_parameter<S>(tile + format.minimums_offset, index, format.scale_type)
                                   : S::zero();
        unroll<kRows>([&](auto r) KV_LAMBDA {
          const Floats steps = S::set(q.group_sums[r][g]);
          const Floats base = S::fma(S::mul(S::set(-format.offset), scale), steps, S::mul(minimum, steps));
          total[v * kRows + r] =
              S::add(S::fma(S::to_floats(P::total(sum[v * kRows + r])), scale, base), total[v * kRows + r]);
        });
      } else {
        unroll<kRows>([&](auto r) KV_LAMBDA { total[v * kRows + r] = S::to_floats(P::total(sum[v * kRows + r])); });
      }
    });
  }
  unroll<kRows>([&](auto r) KV_LAMBDA {
    unroll<kVectors>([&](auto v) KV_LAMBDA {
      S::storef(out[r] + (kFirst + v) * kLanes,
                S::fma(total[v * kRows + r], S::set(q.unit[r]), S::set(q.constant[r])));
    });
  });
}

// The same for values that are multiplied as floats: plain floats, float8, tables.
template <class S, Code kCode, int kRows, int kVectors>
KV_INLINE void float_scores(const TileFormat& format, const std::uint8_t* tile, int block, const KeyQueries& q,
                            float* const* out, std::ptrdiff_t ahead) {
  using Floats = typename S::Floats;
  constexpr int kPerWord = codes_per_word(kCode), kLanes = S::kLanes;
  const int words = format.words();
  const bool grouped = format.scale_mode == ScaleMode::kToken;
  const int groups = format.groups(), group_words = words / groups;
  const std::uint8_t* lines = tile + static_cast<std::size_t>(block) * words * 64;
  typename S::Table table{};
  if constexpr (is_table(kCode)) table = S::load_table(format.table);
  Floats total[kVectors * kRows];
  unroll<kVectors * kRows>([&](auto i) KV_LAMBDA { total[i] = S::zero(); });
  for (int g = 0; g < groups; ++g) {
    Floats sum[kVectors * kRows];
    unroll<kVectors * kRows>([&](auto i) KV_LAMBDA { sum[i] = S::zero(); });
    for (int w = g * group_words; w < (g + 1) * group_words; ++w) {
      unroll<kVectors>([&](auto v) KV_LAMBDA {
        const std::uint8_t* line = lines + (static_cast<std::size_t>(v * kLanes / kBlockTokens) * words + w) * 64;
        const auto word = S::load(line + v * kLanes % kBlockTokens * 4);
        if constexpr (v * kLanes % kBlockTokens == 0) prefetch(line + ahead);
        unroll<kPerWord>([&](auto e) KV_LAMBDA {
          const Floats key = element<S, kCode, e>(word, table);
          unroll<kRows>([&](auto r) KV_LAMBDA {
            sum[v * kRows + r] = S::fma(key, S::set(q.plain[r][w * kPerWord + e]), sum[v * kRows + r]);
          });
        });
      });
    }
    unroll<kVectors>([&](auto v) KV_LAMBDA {
      Floats scale = S::set(1.f), minimum = S::zero();
      if (grouped) {
        const int index = g * format.page_tokens + block * kBlockTokens + v * kLanes;
        scale = load_parameter<S>(tile + format.scales_offset, index, format.scale_type);
        if (format.has_minimum) minimum = load_parameter<S>(tile + format.minimums_offset, index, format.scale_type);
      }
      unroll<kRows>([&](auto r) KV_LAMBDA {
        Floats scaled = sum[v * kRows + r];
        if (grouped) scaled = S::sub(scaled, S::mul(S::set(format.offset), S::set(q.group_sums[r][g])));
        Floats part = S::fma(scaled, scale, total[v * kRows + r]);
        if (grouped && format.has_minimum) part = S::fma(minimum, S::set(q.group_sums[r][g]), part);
        total[v * kRows + r] = part;
      });
    });
  }
  unroll<kRows>([&](auto r) KV_LAMBDA {
    unroll<kVectors>([&](auto v) KV_LAMBDA {
      S::storef(out[r] + v * kLanes, S::fma(total[v * kRows + r], S::set(q.unit[r]), S::set(q.constant[r])));
    });
  });
}

template <class S, Code kCode, int kRows, int kVectors>
KV_INLINE void block_scores(const TileFormat& format, const std::uint8_t* tile, int block, const KeyQueries& q,
                            float* const* out, std::ptrdiff_t ahead) {
  // Quads have two sums for one, which must stay in registers.
  if constexpr (is_integer(kCode) && takes_quads<S>(kCode) && kVectors * kRows > 8) {
    integer_scores<S, kCode, kRows, kVectors / 2>(format, tile, block, q, out, ahead);
    integer_scores<S, kCode, kRows, kVectors / 2, kVectors / 2>(format, tile, block, q, out, ahead);
  } else if constexpr (is_integer(kCode))
    integer_scores<S, kCode, kRows, kVectors>(format, tile, block, q, out, ahead);
  else
    float_scores<S, kCode, kRows, kVectors>(format, tile, block, q, out, ahead);
}

// Scores of tokens `first` to `last - 1` of a page into `scores[row][token]` (token 0: the first place of the page).
// `ahead`: bytes from this tile to the one that is read next.
template <class S, Code kCode, int kRows>
void key_stage(const TileFormat& format, const std::uint8_t* tile, int first, int last, const KeyQueries& q,
               float* const* scores, std::ptrdiff_t ahead) {
  constexpr int kTogether = larger(kBlockTokens, S::kLanes * (8 / kRows >= 1 ? 8 / kRows : 1)) / kBlockTokens;
  constexpr int kWide = kTogether > 4 ? 4 : kTogether;
  int block = first / kBlockTokens;
  const int end = (last + kBlockTokens - 1) / kBlockTokens;
  float partial[kRows][kBlockTokens];
  while (block < end) {
    const int begin = block * kBlockTokens;
    const bool whole = begin >= first && begin + kBlockTokens <= last;
    float* out[kRows];
    if (whole && begin + kWide * kBlockTokens <= last) {
      for (int r = 0; r < kRows; ++r) out[r] = scores[r] + begin;
      block_scores<S, kCode, kRows, kWide * kBlockTokens / S::kLanes>(format, tile, block, q, out, ahead);
      block += kWide;
      continue;
    }
    for (int r = 0; r < kRows; ++r) out[r] = whole ? scores[r] + begin : partial[r];
    block_scores<S, kCode, kRows, kBlockTokens / S::kLanes>(format, tile, block, q, out, ahead);
    if (!whole) {
      const int low = larger(first, begin), high = smaller(last, begin + kBlockTokens);
      for (int r = 0; r < kRows; ++r)
        memcpy(scores[r] + low, partial[r] + (low - begin), sizeof(float) * static_cast<std::size_t>(high - low));
    }
    ++block;
  }
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

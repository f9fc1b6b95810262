// Sums of products of codes and 16-bit steps, which stand for a query's numbers or a token's weight.
//
// In pairs: codes become 16-bit integers, two a lane (bytes k and k + 2 of its word), and `dot2` multiplies both with their
// steps. In quads, where the processor has `dot4`: a step is two signed bytes, 256 * high + low; codes stay bytes, four a
// lane, and are multiplied twice. Both sums are the same integers. A word's codes come in parts, each with its own steps.
#pragma once
#include "elements.h"

namespace kvassay {
namespace KVASSAY_ISA {

// Whole bytes are multiplied in pairs where `dot4` takes none with a sign: to unpack them takes little.
template <class S>
KV_INLINE constexpr bool takes_quads(Code code) {
  return S::kHasDot4 && (code_bits(code) < 8 || (code == Code::kInt8 && S::kDot4TakesSigns));
}

template <class S, Code kCode, bool kQuads = takes_quads<S>(kCode)>
struct Products;

template <class S, Code kCode>
struct Products<S, kCode, false> {
  using Ints = typename S::Ints;
  static constexpr int kPerByte = codes_per_byte(kCode);
  static constexpr int kParts = 2 * kPerByte;
  struct Sum { Ints all; };

  // Which code of its byte a part takes, and where its steps stand: among a word's channels, among a quad's tokens.
  static constexpr int sub_of(int part) { return part / 2; }
  static constexpr int key_steps(int part) { return part * 2; }
  static constexpr int value_steps(int part) { return part % 2 * 2; }

  static KV_INLINE Sum zero() { return {S::zero_ints()}; }
  template <int kPart>
  static KV_INLINE Ints codes(Ints word) { return pair16<S, kCode, kPart / 2, kPart % 2>(word); }
  static KV_INLINE void add(Sum& sum, Ints codes, const std::int16_t* steps) {
    sum.all = S::dot2(sum.all, codes, S::broadcast_word(steps));
  }
  static KV_INLINE Ints total(const Sum& sum) { return sum.all; }
};

template <class S, Code kCode>
struct Products<S, kCode, true> {
  using Ints = typename S::Ints;
  static constexpr int kPerByte = codes_per_byte(kCode);
  static constexpr int kParts = kPerByte;
  struct Sum { Ints high, low; };

  static constexpr int sub_of(int part) { return part; }
  static constexpr int key_steps(int part) { return part * 4; }
  static constexpr int value_steps(int) { return 0; }

  static KV_INLINE Sum zero() { return {S::zero_ints(), S::zero_ints()}; }
  template <int kPart>
  static KV_INLINE Ints codes(Ints word) {
    if constexpr (kPerByte == 1) return word;
    else return S::mask8(S::template shift_right16<kPart * code_bits(kCode)>(word), (1 << code_bits(kCode)) - 1);
  }
  static KV_INLINE void add(Sum& sum, Ints codes, const std::int16_t* steps) {
    sum.high = S::dot4(sum.high, codes, S::broadcast_word(steps));
    sum.low = S::dot4(sum.low, codes, S::broadcast_word(steps + 2));
  }
  static KV_INLINE Ints total(const Sum& sum) { return S::add_ints(S::template shift_left32<8>(sum.high), sum.low); }
};

// The largest step with which no sum over `count` products leaves 32 bits. Of quads the high byte must fit, rounded up.
template <class S>
KV_INLINE float largest_step(Code code, int count) {
  const int largest_code = code == Code::kInt8 ? 128 : (1 << code_bits(code)) - 1;
  const float most = S::kHasDot4 ? 32639.f : 32767.f;
  const float sum = 2147483000.f / (static_cast<float>(count) * static_cast<float>(largest_code));
  return smaller(most, static_cast<float>(static_cast<int>(smaller(sum, most))));
}

// What numbers up to `largest` are multiplied with to become steps up to `most`. Those for which it would be infinite
// become zero: a sum of their steps would be no number.
KV_INLINE float step_factor(float largest, float most) {
  constexpr float kLeast = 1e-34f;  // the largest `most` divided by it is a float
  return largest > kLeast ? most / largest : 0.f;
}

// Place among the steps of a word of the code number `element`.
template <class S>
KV_INLINE constexpr int step_place(Code code, int element) {
  const int per_byte = codes_per_byte(code), byte = element / per_byte, sub = element % per_byte;
  return takes_quads<S>(code) ? sub * 4 + byte : (sub * 2 + byte % 2) * 2 + byte / 2;
}

// Steps in the order of channels go into that in which words of codes take them, and as they take them.
template <class S>
void order_steps(Code code, const std::int16_t* steps, int dim, std::int16_t* to) {
  const int per_word = codes_per_word(code);
  for (int w = 0; w < dim; w += per_word)
    for (int e = 0; e < per_word; ++e) {
      const int place = w + step_place<S>(code, e);
      if (takes_quads<S>(code)) {
        const int high = (steps[w + e] + 128) >> 8;
        auto* quad = reinterpret_cast<std::int8_t*>(to + place / 4 * 4);
        quad[place % 4] = static_cast<std::int8_t>(high);
        quad[4 + place % 4] = static_cast<std::int8_t>(steps[w + e] - 256 * high);
      } else {
        to[place] = steps[w + e];
      }
    }
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

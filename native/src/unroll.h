// Small things that every stage uses. Nothing here or in the stages calls inline functions of the standard library:
// each instruction set has a translation unit of its own, and the linker keeps one copy of such a function for all.
#pragma once

#include "tile_format.h"

#define KV_LAMBDA __attribute__((always_inline))

namespace kvassay {
namespace KVASSAY_ISA {

template <int kValue>
struct Constant {
  constexpr operator int() const { return kValue; }
};

template <int kCount, int... kIndex>
struct Indices : Indices<kCount - 1, kCount - 1, kIndex...> {};
template <int... kIndex>
struct Indices<0, kIndex...> {
  template <class F>
  static KV_INLINE void each(F&& body) {
    (body(Constant<kIndex>{}), ...);
  }
};

// body(0), body(1), ... as constants, so that the compiler keeps arrays of vectors in registers.
template <int kCount, class F>
KV_INLINE void unroll(F&& body) {
  Indices<kCount>::each(body);
}

// So many tiles ahead of the one that is read, memory is asked for, and into the second level of cache: the first holds few
// requests at a time, and what waits for memory there stops what is at hand.
constexpr int kTilesAhead = 2;
KV_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

constexpr float kInfinity = __builtin_inff();

template <class T>
KV_INLINE constexpr T smaller(T a, T b) { return b < a ? b : a; }
template <class T>
KV_INLINE constexpr T larger(T a, T b) { return a < b ? b : a; }

KV_INLINE void fill(float* first, float* last, float value) {
  for (; first < last; ++first) *first = value;
}
KV_INLINE void copy(const float* first, const float* last, float* to) {
  for (; first < last; ++first, ++to) *to = *first;
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

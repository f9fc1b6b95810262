// Four lanes in the vector extensions of GCC and Clang, for any processor.
#pragma once
#include <math.h>
#include <string.h>
#include <cstdint>

#include "elements.h"
#include "unroll.h"

namespace kvassay {
namespace KVASSAY_ISA {

struct Simd {
  static constexpr int kLanes = 4;
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  typedef std::int16_t Shorts __attribute__((vector_size(16)));
  typedef std::uint16_t Halves __attribute__((vector_size(16)));
  typedef float Floats __attribute__((vector_size(16)));

  static KV_INLINE Ints zero_ints() { return Ints{}; }
  static KV_INLINE Floats zero() { return Floats{}; }
  static KV_INLINE Floats set(float x) { return Floats{x, x, x, x}; }
  static KV_INLINE Ints load(const void* p) {
    Ints x;
    memcpy(&x, p, sizeof x);
    return x;
  }
  static KV_INLINE Ints load_first(const void* p, int lanes) {
    Ints x{};
    memcpy(&x, p, sizeof(std::int32_t) * static_cast<std::size_t>(lanes));
    return x;
  }
  static KV_INLINE Floats loadf(const float* p) {
    Floats x;
    memcpy(&x, p, sizeof x);
    return x;
  }
  static KV_INLINE void storef(float* p, Floats x) { memcpy(p, &x, sizeof x); }
  static KV_INLINE Ints broadcast_word(const void* p) {
    std::int32_t word;
    memcpy(&word, p, 4);
    return Ints{word, word, word, word};
  }
  static KV_INLINE Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
  static KV_INLINE Floats as_floats(Ints x) { return reinterpret_cast<Floats>(x); }
  static KV_INLINE Floats add(Floats a, Floats b) { return a + b; }
  static KV_INLINE Floats sub(Floats a, Floats b) { return a - b; }
  static KV_INLINE Floats mul(Floats a, Floats b) { return a * b; }
  static KV_INLINE Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
  static KV_INLINE Floats max(Floats a, Floats b) { return a > b ? a : b; }
  static KV_INLINE Floats absolute(Floats x) { return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & 0x7FFFFFFF); }
  // To nearest even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits behind the point.
  static KV_INLINE Floats round(Floats x) {
    const Floats shifted = x + 0x1.8p23f;
    return shifted - 0x1.8p23f;
  }
  static KV_INLINE float reduce_max(Floats x) { return larger(larger(x[0], x[1]), larger(x[2], x[3])); }
  static KV_INLINE float reduce_add(Floats x) { return (x[0] + x[1]) + (x[2] + x[3]); }

  static constexpr bool kReorders = false;
  static KV_INLINE Floats reorder(Floats x, Ints) { return x; }

  // acc[lane] += sum of products of two pairs of 16-bit integers.
  static KV_INLINE Ints dot2(Ints acc, Ints a, Ints b) {
    return acc + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
  }

  template <int kShift>
  static KV_INLINE Ints shift_right16(Ints x) { return reinterpret_cast<Ints>(reinterpret_cast<Halves>(x) >> kShift); }
  template <int kShift>
  static KV_INLINE Ints shift_right32(Ints x) { return reinterpret_cast<Ints>(reinterpret_cast<Words>(x) >> kShift); }
  template <int kShift>
  static KV_INLINE Ints shift_left32(Ints x) { return x << kShift; }
  static KV_INLINE Ints mask16(Ints x, int mask) {
    return reinterpret_cast<Ints>(reinterpret_cast<Halves>(x) & static_cast<std::uint16_t>(mask));
  }
  static KV_INLINE Ints mask32(Ints x, unsigned mask) { return x & static_cast<std::int32_t>(mask); }
  // The even (or odd) signed bytes of each word as a pair of 16-bit integers.
  static KV_INLINE Ints even_bytes_signed(Ints x) {
    return reinterpret_cast<Ints>((reinterpret_cast<Shorts>(x) << 8) >> 8);
  }
  static KV_INLINE Ints odd_bytes_signed(Ints x) { return reinterpret_cast<Ints>(reinterpret_cast<Shorts>(x) >> 8); }
  // float8 e4m3fn in the top byte of each lane.
  static KV_INLINE Floats top_e4m3(Ints x) {
    const Ints bits = mask32(shift_right32<4>(x), 0x07F00000u);
    // Exponent 0 (biased) stands for 2^-6 without the implied one: y = 2 * ((1 + m / 8) * 2^-7 - 2^-7).
    const Floats y = as_floats(bits + (120 << 23));
    const Floats magnitude = bits < 0x00800000 ? y * 2.f - 0x1p-6f : y;
    return as_floats(reinterpret_cast<Ints>(magnitude) | mask32(x, 0x80000000u));
  }

  static KV_INLINE Floats load_float16(const void* p) {
    Floats x;
    for (int i = 0; i < kLanes; ++i) x[i] = half_to_float(load_half(p, i));
    return x;
  }
  static KV_INLINE Floats load_bfloat16(const void* p) {
    Ints x;
    for (int i = 0; i < kLanes; ++i) x[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(load_half(p, i)) << 16);
    return as_floats(x);
  }
  static KV_INLINE std::uint16_t load_half(const void* p, int i) {
    std::uint16_t half;
    memcpy(&half, static_cast<const char*>(p) + 2 * i, 2);
    return half;
  }
  static KV_INLINE Floats low_float16(Ints x) {
    Floats y;
    for (int i = 0; i < kLanes; ++i) y[i] = half_to_float(static_cast<std::uint16_t>(x[i]));
    return y;
  }
  static KV_INLINE Floats high_float16(Ints x) { return low_float16(shift_right32<16>(x)); }
  // Sixteen floats by the low four bits of each lane.
  struct Table {
    const float* all;
  };
  static KV_INLINE Table load_table(const float* p) { return {p}; }
  static KV_INLINE Floats look_up(const Table& table, Ints index) {
    Floats y;
    for (int i = 0; i < kLanes; ++i) y[i] = table.all[index[i] & 15];
    return y;
  }

  // What quads of bytes would take (products.h).
  static constexpr bool kHasDot4 = false, kDot4TakesSigns = false;
  static KV_INLINE void store_quads(std::int16_t*, Floats) {}
  // Rounded to nearest even, as 16-bit integers; of each quad the two in the middle change places.
  static KV_INLINE void store_pairs16(std::int16_t* p, Floats x) {
    const Floats y = round(x);
    const std::int16_t quad[4] = {static_cast<std::int16_t>(y[0]), static_cast<std::int16_t>(y[2]),
                                  static_cast<std::int16_t>(y[1]), static_cast<std::int16_t>(y[3])};
    memcpy(p, quad, sizeof quad);
  }
  static KV_INLINE void store_int16(std::int16_t* p, Floats x) {
    const Floats y = round(x);
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int16_t>(y[i]);
  }
  // e^x for x <= 0, minus infinity included.
  static KV_INLINE Floats exp_open(Floats x) {
    Floats y;
    for (int i = 0; i < kLanes; ++i) y[i] = expf(x[i]);
    return y;
  }
};

}  // namespace KVASSAY_ISA
}  // namespace kvassay

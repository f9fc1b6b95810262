// From 4-byte words of codes to numbers that can be multiplied.
#pragma once
#include <string.h>

#include "tile_format.h"
#include "unroll.h"

namespace kvassay {
namespace KVASSAY_ISA {

KV_INLINE constexpr int codes_per_byte(Code code) { return code_bits(code) < 8 ? 8 / code_bits(code) : 1; }
KV_INLINE constexpr int codes_per_word(Code code) { return 32 / code_bits(code); }

// Two 16-bit integers a word: the codes number `kSub` of bytes kOdd and kOdd + 2.
template <class S, Code kCode, int kSub, int kOdd>
KV_INLINE typename S::Ints pair16(typename S::Ints word) {
  if constexpr (kCode == Code::kInt8) {
    if constexpr (kOdd) return S::odd_bytes_signed(word);
    else return S::even_bytes_signed(word);
  } else {
    constexpr int kBits = code_bits(kCode), kShift = kBits * kSub + 8 * kOdd;
    const auto moved = S::template shift_right16<kShift>(word);
    if constexpr (kShift + kBits == 16) return moved;
    else return S::mask16(moved, (1 << kBits) - 1);
  }
}

// The code number kElement of each word as a float.
template <class S, Code kCode, int kElement>
KV_INLINE typename S::Floats element(typename S::Ints word, const typename S::Table& table) {
  if constexpr (kCode == Code::kFloat32) {
    return S::as_floats(word);
  } else if constexpr (kCode == Code::kBFloat16) {
    if constexpr (kElement) return S::as_floats(S::mask32(word, 0xFFFF0000u));
    else return S::as_floats(S::template shift_left32<16>(word));
  } else if constexpr (kCode == Code::kFloat16) {
    if constexpr (kElement) return S::high_float16(word);
    else return S::low_float16(word);
  } else if constexpr (kCode == Code::kFloat8E4M3) {
    return S::top_e4m3(S::template shift_left32<24 - 8 * kElement>(word));
  } else {
    static_assert(is_table(kCode), "integers are not taken one by one");
    return S::look_up(table, S::template shift_right32<code_bits(kCode) * kElement>(word));
  }
}

template <class S>
KV_INLINE typename S::Floats load_parameter(const std::uint8_t* base, int index, ScaleType type) {
  switch (type) {
    case ScaleType::kFloat16: return S::load_float16(base + 2 * index);
    case ScaleType::kBFloat16: return S::load_bfloat16(base + 2 * index);
    default: return S::loadf(reinterpret_cast<const float*>(base) + index);
  }
}

KV_INLINE float half_to_float(std::uint16_t bits) {
  // 2^112 moves the exponent of a half, shifted into place, to that of a float; subnormal halves come out right too.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7FFF) << 13, sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  float value;
  memcpy(&value, &magnitude, 4);
  value *= 0x1p112f;
  std::uint32_t out;
  memcpy(&out, &value, 4);
  out |= sign;
  memcpy(&value, &out, 4);
  return value;
}

KV_INLINE void read_parameters(const std::uint8_t* base, int first, int count, ScaleType type, float* out) {
  for (int i = 0; i < count; ++i) {
    if (type == ScaleType::kFloat32) {
      memcpy(out + i, base + 4 * (first + i), 4);
    } else {
      std::uint16_t bits;
      memcpy(&bits, base + 2 * (first + i), 2);
      if (type == ScaleType::kFloat16) {
        out[i] = half_to_float(bits);
      } else {
        const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
        memcpy(out + i, &wide, 4);
      }
    }
  }
}

KV_INLINE void float_row(const TileFormat& format, const std::uint8_t* tile, int token, float* out) {
  const ScaleType type = format.code == Code::kFloat32   ? ScaleType::kFloat32
                         : format.code == Code::kFloat16 ? ScaleType::kFloat16
                                                         : ScaleType::kBFloat16;
  read_parameters(tile, token * format.dim, format.dim, type, out);
}

}  // namespace KVASSAY_ISA
}  // namespace kvassay

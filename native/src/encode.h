// Uniform integer grids, value for value what kvassay.formats.integer computes, and floats of 16 bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tile_format.h"

namespace kvassay {

enum class FloatType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

struct IntegerGrid {
  int num_bits = 8;     // 2, 4 or 8
  bool symmetric = true;
  bool is_signed = true;  // codes of 8 bits without an offset
  int group = 0;          // values that share a scale
  ScaleType scale_type = ScaleType::kFloat16;
};

// Rows of `dim` values: codes densely packed, the lowest bits first, one scale (and minimum) a group. False where a value
// is not finite or a scale does not fit its type: nothing that was written then means anything.
bool encode_integers(const IntegerGrid& grid, const float* values, std::size_t rows, int dim, std::uint8_t* codes,
                     void* scales, void* minimums);

// Rounds values in place to what a type holds, to nearest even, and writes its bytes. False where one is not finite, or
// does not fit: nothing that was written then means anything.
bool round_floats(float* values, int count, FloatType type, void* to);

void widen_floats(const void* from, FloatType type, int count, float* to);

}  // namespace kvassay

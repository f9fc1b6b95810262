// From the vectors that a model gives to the bytes that pages hold: codes of a grid with their scales, value for value
// what the codecs in kvassay.formats compute, or plain floats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "tile_format.h"

namespace kvassay {

enum class FloatType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

KV_INLINE constexpr std::size_t nbytes_of(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }
KV_INLINE constexpr std::size_t nbytes_of(ScaleType type) { return type == ScaleType::kFloat32 ? 4 : 2; }

enum class GridMethod : int {
  kInteger = 0,     // formats/integer.py
  kTable = 1,       // the nearest of some levels after division by the largest magnitude: formats/nf4.py
  kFloat8E4M3 = 2,  // formats/float8.py
};

// How codes are made. Values are rotated first where there are signs; a scale serves `group` channels of a token, or a
// channel of `block_tokens` tokens.
struct CodeGrid {
  GridMethod method = GridMethod::kInteger;
  int num_bits = 8;       // 2, 4 or 8
  bool symmetric = true;
  bool is_signed = true;  // codes of 8 bits without an offset
  int group = 0;
  int block_tokens = 1;   // above 1, scales are those of channels
  ScaleType scale_type = ScaleType::kFloat16;
  float boundaries[15] = {};      // of a table, rising: a code is the number of them that a value reaches
  const float* signs = nullptr;   // a rotation's, one a channel; null without one
  int rotation_block = 0;         // channels that are rotated together
  float rotation_factor = 1;      // what they are multiplied with at last

  KV_INLINE int scales_of_block(int dim) const { return block_tokens > 1 ? dim : dim / group; }
};

// Vectors `[sequences][heads][tokens][dim]`; the last axis is dense, strides of the others are in elements.
struct Vectors {
  const std::uint8_t* data = nullptr;
  FloatType type = FloatType::kFloat32;
  std::int64_t sequences = 1, heads = 1, tokens = 1;
  std::ptrdiff_t sequence_stride = 0, head_stride = 0, token_stride = 0;
};

// Where rows go, `[sequences][heads][tokens or blocks][bytes]` each; null where they are not wanted.
struct EncodedRows {
  std::uint8_t* kept = nullptr;  // values as they are rounded first
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  std::uint8_t* minimums = nullptr;
};

// Memory that a call works in.
struct EncodeScratch {
  float* values = nullptr;          // of encode_batch_rows() rows
  std::uint8_t* kept_row = nullptr;
};

// One compiled form of `encode_rows`.
using EncodeRows = bool (*)(const CodeGrid* grid, const Vectors& vectors, int dim, FloatType kept, const EncodedRows& to,
                            const EncodeScratch& scratch);

// Rows that are coded together: those of a block, or as many as have sixteen scales.
KV_INLINE int encode_batch_rows(const CodeGrid* grid, int dim) {
  if (!grid) return 1;
  if (grid->block_tokens > 1) return grid->block_tokens;
  return dim / grid->group < 16 ? 16 / (dim / grid->group) : 1;
}

// The form that is compiled for an instruction set of `instruction_sets()`; for the fastest, where the name is empty.
// Throws std::invalid_argument for another.
EncodeRows encode_rows_of(const std::string& instruction_set);

// Values are rounded to `kept`, as tokens are that wait, and then coded by `grid` (null: no codes are wanted). False
// where a value is not finite in `kept` or a scale does not fit its type; what was written then means nothing.
bool encode_rows(EncodeRows form, const CodeGrid* grid, const Vectors& vectors, int dim, FloatType kept, const EncodedRows& to);

}  // namespace kvassay

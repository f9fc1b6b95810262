// What a kernel must know of one side's tiles. docs/design/tile-layout.md draws the layout.
#pragma once
#include <cstddef>
#include <cstdint>

// What translation units of several instruction sets share is always inlined: the linker keeps one copy of a function,
// and a processor may lack the instructions of that copy.
#define KV_INLINE inline __attribute__((always_inline))

namespace kvassay {

// How a stored value is told from its bits.
enum class Code : int {
  kInt8 = 0,   // signed
  kUint4 = 1,  // x = (code - offset) * scale + minimum
  kUint2 = 2,
  kFloat8E4M3 = 3,
  kTable4 = 4,  // 4-bit index into 16 floats
  kFloat16 = 5,
  kBFloat16 = 6,
  kFloat32 = 7,
  kUint8 = 8,
  kTable2 = 9,  // 2-bit index into 4 floats, which the table repeats
};

KV_INLINE constexpr int code_bits(Code code) {
  switch (code) {
    case Code::kUint4:
    case Code::kTable4: return 4;
    case Code::kUint2:
    case Code::kTable2: return 2;
    case Code::kFloat16:
    case Code::kBFloat16: return 16;
    case Code::kFloat32: return 32;
    default: return 8;
  }
}

KV_INLINE constexpr bool is_integer(Code code) {
  return code == Code::kInt8 || code == Code::kUint8 || code == Code::kUint4 || code == Code::kUint2;
}

KV_INLINE constexpr bool is_table(Code code) { return code == Code::kTable4 || code == Code::kTable2; }

enum class ScaleMode : int {
  kNone = 0,     // one factor a head, given with the call (1 for plain floats)
  kToken = 1,    // [group][token]: each token has a scale for each group of channels
  kChannel = 2,  // [channel] for each block of tokens
};

enum class ScaleType : int { kFloat16 = 0, kFloat32 = 1, kBFloat16 = 2 };

constexpr int kBlockTokens = 16;  // tokens of a line of key words: 64 bytes
constexpr int kQuadTokens = 4;    // tokens of a word of value codes

struct TileFormat {
  Code code = Code::kFloat32;
  int dim = 0;
  ScaleMode scale_mode = ScaleMode::kNone;
  ScaleType scale_type = ScaleType::kFloat16;
  int group = 0;  // channels that share a scale of a token
  bool has_minimum = false;
  float offset = 0;  // taken from a code before it is scaled
  int page_tokens = 0;
  int block_tokens = 1;       // tokens that share channel scales
  std::size_t tile_nbytes = 0;  // one head's part of a page
  std::size_t scales_offset = 0;
  std::size_t minimums_offset = 0;
  const float* table = nullptr;

  KV_INLINE int bits() const { return code_bits(code); }
  KV_INLINE bool is_float() const { return bits() >= 16; }
  KV_INLINE int groups() const { return scale_mode == ScaleMode::kToken ? dim / group : 1; }
  KV_INLINE int words() const { return dim * bits() / 32; }  // 4-byte words of a token's codes
};

// Consecutive tokens in pages of one format.
struct Segment {
  const TileFormat* format = nullptr;
  const std::int64_t* pages = nullptr;  // address of each page, [row][page]
  std::int64_t row_stride = 0;          // entries from one row to the next
  std::int64_t start = 0;               // column of the first place of the first page
  std::int64_t begin = 0, end = 0;      // columns that count
  const float* head_scale = nullptr;    // [kv_heads], for ScaleMode::kNone; null means 1
};

}  // namespace kvassay

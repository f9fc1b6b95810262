// One call of attention: a layer's queries, the pages they look at, and room to work in.
#pragma once
#include <cstdint>
#include <string.h>

#include "tile_format.h"

namespace kvassay {

constexpr int kMaxDim = 1024;
constexpr int kMaxSegments = 4;  // sinks, coded tokens, tail; one more after a cut
constexpr int kMaxQueries = 64;  // of one KV head
constexpr int kMaxRows = 4;    // queries that are worked on together
constexpr int kMaxGroups = 32;  // of channels

struct AttentionCall {
  const float* query = nullptr;  // [rows][kv_heads * ratio][queries][head_dim]
  float* out = nullptr;          // [rows][kv_heads * ratio][queries][value_dim]
  // What coded keys are multiplied with, and the sums of coded values apart: where codes hold the channels of another
  // basis (a rotation) than plain tokens. Null where they do not.
  const float* coded_query = nullptr;
  float* coded_out = nullptr;
  int rows = 0, kv_heads = 0, ratio = 0, queries = 0, head_dim = 0, value_dim = 0;
  float scaling = 1, softcap = 0;
  const float* sinks = nullptr;  // [kv_heads * ratio]
  Segment keys[kMaxSegments], values[kMaxSegments];
  int num_keys = 0, num_values = 0;
  std::int64_t first_column = 0;    // of the first segments
  std::int64_t columns = 0;         // end of the last segments
  std::int64_t own_column = 0;  // of query 0; query i sees columns up to own_column + i
  // Optional: bytes, nonzero where a query may look; strides in elements, 0 where an axis has one entry.
  const std::uint8_t* mask = nullptr;
  std::int64_t mask_row = 0, mask_head = 0, mask_query = 0;

  KV_INLINE const float* query_of(const float* all, int row, int kv_head, int q) const {
    const std::int64_t head = kv_head * ratio + q / queries;
    return all + ((static_cast<std::int64_t>(row) * kv_heads * ratio + head) * queries + q % queries) * head_dim;
  }

  KV_INLINE void mask_scores(int row, int head, int q, std::int64_t low, std::int64_t high, float* scores) const {
    const float closed = -__builtin_inff();
    if (mask) {
      const std::uint8_t* open = mask + row * mask_row + head * mask_head + q * mask_query;
      for (std::int64_t c = low; c < high; ++c)
        if (!open[c]) scores[c - low] = closed;
    } else {
      for (std::int64_t c = own_column + q + 1 > low ? own_column + q + 1 : low; c < high; ++c) scores[c - low] = closed;
    }
  }
};

// What a range of tokens adds to the softmax of one query.
struct Partial {
  float largest;
  float total;
  float* sums;        // [value_dim], in the order of channels
  float* coded_sums;  // the same, of coded values; may be `sums`
};

// What one thread works on at a time: some KV heads of a row, some of the queries of each, over a range of columns.
struct RangeTask {
  int row, first_head, heads, first_query, queries;
  std::int64_t begin, end;
  Partial* partials;           // of the first head's query 0
  std::int64_t head_partials;  // from one head's to the next
};

}  // namespace kvassay

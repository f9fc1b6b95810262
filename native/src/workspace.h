// Room that one thread works in; it does not depend on the length of the text.
//
// The outline: some KV heads of a row are worked on together, page by page, so that memory is read in the order in which
// it lies. What each of their queries needs meanwhile (itself as the formats of keys take it, scores of a chunk, sums)
// is laid out in one piece of memory, whose size follows from the call.
#pragma once
#include "call.h"

namespace kvassay {

constexpr int kChunkTokens = 256;     // tokens whose scores are held at once
constexpr int kMaxPageTokens = 256;
constexpr int kMargin = 64;           // vectors may write beyond a chunk
constexpr int kMostLanes = 16;        // of all instruction sets
constexpr std::size_t kTaskNbytes = 768 << 10;  // what the queries of a task may take; one block of them always may

// Up to kMaxRows queries of a KV head, ready for one format of keys.
struct KeyQueries {
  int rows;
  float* given[kMaxRows];           // in the order of channels, multiplied by the softmax scale; null where not needed again
  const float* plain[kMaxRows];     // what codes are multiplied with as floats
  std::int16_t* steps[kMaxRows];    // the same in integer steps, as Products takes them
  float unit[kMaxRows];             // what one step is worth
  float* group_sums[kMaxRows];      // sum of the steps over each group of channels; not filled for scales of channels
  float constant[kMaxRows];         // score that offset and minimum of channel scales add
};

// Up to kMaxRows queries of a KV head: scores of a chunk, and sums of coded values in the order of lanes.
struct QueryBlock {
  int first, rows;  // of the head's queries
  float* scores[kMaxRows];
  float* coded[kMaxRows];
  float* constants[kMaxRows];
};

// Weights of a page's tokens times the scales of one group of channels, as integer steps.
struct WeightSteps {
  alignas(64) std::int16_t steps[kMaxRows][kMaxPageTokens];
  float unit[kMaxRows];  // what one step is worth
};

struct ValueWork {
  alignas(64) float scaled[kMaxRows][kMaxPageTokens];  // of one group, as floats
  WeightSteps groups[kMaxGroups];
};

// Queries times the scales of channels of the tile at hand, as floats and as integer steps.
struct ScaledQueries {
  alignas(64) float plain[kMaxRows][kMaxDim];
  alignas(64) std::int16_t steps[kMaxRows][kMaxDim];
};

struct Workspace {
  ScaledQueries scaled;
  ValueWork values;
  std::uint8_t* memory = nullptr;  // task_nbytes of it, on a bound of 64 bytes
};

// What is laid out for a task.
struct TaskRoom {
  int blocks = 0;       // of each head's queries
  int coded_room = 0;   // floats of QueryBlock::coded
  int constants = 0;    // floats of QueryBlock::constants: a vector for each group of channels
  KeyQueries* keys = nullptr;     // [segment][head][block]
  QueryBlock* queries = nullptr;  // [head][block]
};

// Takes arrays one after the other; only counts while there is no memory.
struct Carver {
  std::uint8_t* memory;
  std::size_t used = 0;

  template <class T>
  KV_INLINE T* take(int count) {
    const std::size_t at = used;
    used += (sizeof(T) * static_cast<std::size_t>(count) + 63) / 64 * 64;
    return memory ? reinterpret_cast<T*>(memory + at) : nullptr;
  }
};

// Floats that sums of codes take with so many lanes: each group of channels begins a new vector.
KV_INLINE int sums_room(const TileFormat& format, int lanes) {
  const int per_byte = 8 / format.bits() > 1 ? 8 / format.bits() : 1, groups = format.groups();
  const int group_columns = format.dim / per_byte / groups;
  return groups * ((group_columns + lanes - 1) / lanes) * per_byte * lanes;
}

KV_INLINE bool keeps_given(const TileFormat& format) {
  return format.scale_mode == ScaleMode::kChannel || !is_integer(format.code);
}

// Lays out what `queries` queries of each of `heads` KV heads need.
KV_INLINE TaskRoom lay_out(const AttentionCall& call, int heads, int queries, Carver& carver) {
  TaskRoom room;
  room.blocks = (queries + kMaxRows - 1) / kMaxRows;
  for (int k = 0; k < call.num_values; ++k) {
    const TileFormat& format = *call.values[k].format;
    const int needed = format.is_float() ? 0 : sums_room(format, kMostLanes);
    if (needed > room.coded_room) room.coded_room = needed;
    if (!format.is_float() && kMostLanes * format.groups() > room.constants) room.constants = kMostLanes * format.groups();
  }
  room.keys = carver.take<KeyQueries>(call.num_keys * heads * room.blocks);
  room.queries = carver.take<QueryBlock>(heads * room.blocks);
  for (int h = 0; h < heads; ++h)
    for (int b = 0; b < room.blocks; ++b) {
      const int first = b * kMaxRows, rows = queries - first < kMaxRows ? queries - first : kMaxRows;
      QueryBlock unused, &block = room.queries ? room.queries[h * room.blocks + b] : unused;
      block.first = first;
      block.rows = rows;
      for (int r = 0; r < rows; ++r) {
        block.scores[r] = carver.take<float>(kChunkTokens + kMargin);
        block.coded[r] = carver.take<float>(room.coded_room);
        block.constants[r] = carver.take<float>(room.constants);
      }
      for (int k = 0; k < call.num_keys; ++k) {
        const TileFormat& format = *call.keys[k].format;
        KeyQueries idle, &q = room.keys ? room.keys[(k * heads + h) * room.blocks + b] : idle;
        q.rows = rows;
        for (int r = 0; r < rows; ++r) {
          q.given[r] = keeps_given(format) ? carver.take<float>(format.dim) : nullptr;
          q.steps[r] = keeps_given(format) ? nullptr : carver.take<std::int16_t>(format.dim);
          q.group_sums[r] = carver.take<float>(format.groups());
        }
      }
    }
  return room;
}

KV_INLINE std::size_t task_nbytes(const AttentionCall& call, int heads, int queries) {
  Carver count{nullptr};
  lay_out(call, heads, queries, count);
  return count.used;
}

}  // namespace kvassay

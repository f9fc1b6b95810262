// Room that one thread works in; it does not depend on the length of the text.
#pragma once
#include "call.h"

namespace kvassay {

constexpr int kChunkTokens = 256;     // tokens whose scores are held at once
constexpr int kMaxPageTokens = 256;
constexpr int kMargin = 64;           // vectors may write beyond a chunk

// The queries of a block, made ready for one format of keys.
struct KeyBuffers {
  alignas(64) float plain[kMaxRows][kMaxDim];
  alignas(64) float scaled[kMaxRows][kMaxDim];   // times the scales of channels
  alignas(64) std::int16_t pairs[kMaxRows][kMaxDim];
  float sums[kMaxRows][kMaxGroups];
};

// Weights of a page's tokens times the scales of one group of channels, as floats and as integer steps.
struct ValueWork {
  alignas(64) float scaled[kMaxRows][kMaxPageTokens];
  alignas(64) std::int16_t pairs[kMaxRows][kMaxPageTokens];
  float unit[kMaxRows];
};

struct Workspace {
  alignas(64) float queries[kMaxQueries][kMaxDim];  // multiplied by the scaling
  alignas(64) float coded_queries[kMaxQueries][kMaxDim];
  KeyBuffers keys[kMaxSegments];
  alignas(64) float coded[kMaxRows][kMaxSums];      // sums of coded values, in the order of lanes
  alignas(64) float constants[kMaxRows][kMaxGroups];
  alignas(64) float scores[kMaxRows][kChunkTokens + kMargin];
  ValueWork values;
};

}  // namespace kvassay

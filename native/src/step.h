// One token of every sequence and head, written where its pages have room: what decoding does at each step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "encode.h"
#include "pages.h"

namespace kvassay {

// Where single tokens of one stored array go: a page for each sequence, and the place of the next one in it.
struct StepArray {
  PagedRegion region;
  std::vector<std::int64_t> pages;
};

// One side (keys or values) of a layer, between two bounds of its pages. A token is rounded to `kept` first, as tokens
// are that wait. Then it is coded, or it enters the tail; or it enters the tail and the tail's oldest token is coded.
struct StepSide {
  int sequences = 0, heads = 0, dim = 0;
  FloatType kept = FloatType::kFloat32;
  bool enters_tail = false, is_coded = false;
  std::shared_ptr<const CodeGrid> grid;  // none: codes are the floats themselves
  EncodeRows encode = nullptr;
  StepArray codes, scales, minimums;
  StepArray tail, oldest;           // the same array, with the pages of its last and of its first token
  std::int64_t coded_place = 0, tail_place = 0, oldest_place = 0;
};

// Appends one token `[sequences, heads, dim]` to each side. False, with nothing written, where a value is not finite in `kept` or its scale does
// not fit; places then stay as they were.
bool append_step(StepSide* const* sides, const Vectors* vectors, std::size_t count);

}  // namespace kvassay

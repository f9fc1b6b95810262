#include "step.h"

namespace kvassay {
namespace {

std::size_t itemsize(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

// What a step writes for one side, worked out before anything is written: rows `[sequences, heads, row_nbytes]`.
struct Rows {
  std::vector<std::uint8_t> tail, codes, scales, minimums;
};

std::size_t row_nbytes(const StepSide& side, const StepArray& array) {
  return static_cast<std::size_t>(side.sequences * side.heads) * array.region.row_nbytes;
}

bool work_out(const StepSide& side, const NewVectors& vectors, std::vector<float>& scratch, Rows& rows) {
  const std::size_t dim = static_cast<std::size_t>(side.dim), kept_nbytes = dim * itemsize(side.kept);
  const std::size_t count = static_cast<std::size_t>(side.sequences * side.heads);
  scratch.resize(count * dim);
  rows.tail.resize(count * kept_nbytes);
  std::size_t index = 0;
  for (int sequence = 0; sequence < side.sequences; ++sequence)
    for (int head = 0; head < side.heads; ++head, ++index) {
      const std::ptrdiff_t element = sequence * vectors.sequence_stride + head * vectors.head_stride;
      float* values = scratch.data() + index * dim;
      widen_floats(vectors.data + element * static_cast<std::ptrdiff_t>(itemsize(vectors.type)), vectors.type, side.dim, values);
      if (!round_floats(values, side.dim, side.kept, rows.tail.data() + index * kept_nbytes)) return false;
    }
  if (!side.is_coded) return true;
  rows.codes.resize(row_nbytes(side, side.codes));
  if (side.enters_tail) {
    std::vector<std::uint8_t>& oldest = rows.codes;  // floats take more room than their codes, so both fit in turn
    oldest.resize(count * kept_nbytes);
    read_rows(side.oldest.region, side.oldest.pages.data(), 1, side.sequences, side.oldest_place, 1, oldest.data());
    for (std::size_t i = 0; i < count; ++i)
      widen_floats(oldest.data() + i * kept_nbytes, side.kept, side.dim, scratch.data() + i * dim);
    if (side.grid) oldest.resize(row_nbytes(side, side.codes));
  } else if (!side.grid) {
    rows.codes.swap(rows.tail);
  }
  if (!side.grid) return true;
  rows.scales.resize(row_nbytes(side, side.scales));
  if (!side.grid->symmetric) rows.minimums.resize(row_nbytes(side, side.minimums));
  return encode_integers(*side.grid, scratch.data(), count, side.dim, rows.codes.data(), rows.scales.data(),
                         rows.minimums.data());
}

void put(const StepSide& side, const StepArray& array, std::int64_t place, const std::vector<std::uint8_t>& rows) {
  write_rows(array.region, array.pages.data(), 1, side.sequences, place, 1, rows.data());
}

void write(StepSide& side, const Rows& rows) {
  if (side.is_coded) {
    put(side, side.codes, side.coded_place, rows.codes);
    if (side.grid) put(side, side.scales, side.coded_place, rows.scales);
    if (side.grid && !side.grid->symmetric) put(side, side.minimums, side.coded_place, rows.minimums);
    ++side.coded_place;
  }
  if (side.enters_tail) {
    put(side, side.tail, side.tail_place++, rows.tail);
    side.oldest_place += side.is_coded;
  }
}

}  // namespace

bool append_step(StepSide* const* sides, const NewVectors* vectors, std::size_t count) {
  // Kept from step to step, so that no memory is asked for while decoding.
  static thread_local std::vector<Rows> rows;
  static thread_local std::vector<float> scratch;
  if (rows.size() < count) rows.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    if (!work_out(*sides[i], vectors[i], scratch, rows[i])) return false;
  for (std::size_t i = 0; i < count; ++i) write(*sides[i], rows[i]);
  return true;
}

}  // namespace kvassay

#include "step.h"

namespace kvassay {
namespace {

// What a step writes for one side, worked out before anything is written: rows `[sequences, heads, row_nbytes]`.
struct Rows {
  std::vector<std::uint8_t> tail, codes, scales, minimums, oldest;
};

std::size_t row_count(const StepSide& side) { return static_cast<std::size_t>(side.sequences * side.heads); }

// Values that are stored as they are kept, `[sequences, heads, dim]`.
bool keep(const StepSide& side, const Vectors& given, std::vector<std::uint8_t>& rows) {
  rows.resize(row_count(side) * static_cast<std::size_t>(side.dim) * nbytes_of(side.kept));
  EncodedRows to;
  to.kept = rows.data();
  return encode_rows(side.encode, nullptr, given, side.dim, side.kept, to);
}

bool code(const StepSide& side, const Vectors& given, Rows& rows) {
  rows.codes.resize(row_count(side) * side.codes.region.row_nbytes);
  rows.scales.resize(row_count(side) * side.scales.region.row_nbytes);
  if (!side.grid->symmetric) rows.minimums.resize(rows.scales.size());
  EncodedRows to;
  to.codes = rows.codes.data();
  to.scales = rows.scales.data();
  to.minimums = rows.minimums.data();
  return encode_rows(side.encode, side.grid.get(), given, side.dim, side.kept, to);
}

// The tail's oldest token, as the tail holds it.
Vectors read_oldest(const StepSide& side, std::vector<std::uint8_t>& rows) {
  rows.resize(row_count(side) * side.oldest.region.row_nbytes);
  read_rows(side.oldest.region, side.oldest.pages.data(), 1, side.sequences, side.oldest_place, 1, rows.data());
  Vectors oldest;
  oldest.data = rows.data();
  oldest.type = side.kept;
  oldest.sequences = side.sequences;
  oldest.heads = side.heads;
  oldest.head_stride = side.dim;
  oldest.sequence_stride = oldest.head_stride * side.heads;
  return oldest;
}

bool work_out(const StepSide& side, const Vectors& given, Rows& rows) {
  if (!side.enters_tail) return side.grid ? code(side, given, rows) : keep(side, given, rows.codes);
  if (!keep(side, given, rows.tail)) return false;
  if (!side.is_coded) return true;
  if (!side.grid) {
    read_oldest(side, rows.codes);
    return true;
  }
  return code(side, read_oldest(side, rows.oldest), rows);
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

bool append_step(StepSide* const* sides, const Vectors* vectors, std::size_t count) {
  // Kept from step to step, so that no memory is asked for while decoding.
  static thread_local std::vector<Rows> rows;
  if (rows.size() < count) rows.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    if (!work_out(*sides[i], vectors[i], rows[i])) return false;
  for (std::size_t i = 0; i < count; ++i) write(*sides[i], rows[i]);
  return true;
}

}  // namespace kvassay

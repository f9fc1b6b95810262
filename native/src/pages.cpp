#include "pages.h"

#include <cstring>

namespace kvassay {
namespace {

// Copies the units of one row to or from their places, which are `step` bytes apart.
template <int kUnit, bool kWrite>
void copy_units(std::uint8_t* place, std::size_t step, std::uint8_t* row, std::size_t units) {
  for (std::size_t unit = 0; unit < units; ++unit) {
    if constexpr (kWrite) std::memcpy(place + unit * step, row + unit * kUnit, kUnit);
    else std::memcpy(row + unit * kUnit, place + unit * step, kUnit);
  }
}

template <bool kWrite>
void copy_row(const PagedRegion& region, std::uint8_t* array, int place, std::uint8_t* row) {
  const std::size_t together = static_cast<std::size_t>(region.together), unit = static_cast<std::size_t>(region.unit_nbytes);
  const std::size_t group = static_cast<std::size_t>(place) / together, within = static_cast<std::size_t>(place) % together;
  std::uint8_t* to = array + group * together * region.row_nbytes + within * unit;
  if (together == 1) {
    if constexpr (kWrite) std::memcpy(to, row, region.row_nbytes);
    else std::memcpy(row, to, region.row_nbytes);
    return;
  }
  const std::size_t units = region.row_nbytes / unit, step = together * unit;
  switch (region.unit_nbytes) {
    case 1: copy_units<1, kWrite>(to, step, row, units); break;
    case 2: copy_units<2, kWrite>(to, step, row, units); break;
    default: copy_units<4, kWrite>(to, step, row, units); break;
  }
}

template <bool kWrite>
void copy_rows(const PagedRegion& region, const std::int64_t* pages, std::int64_t page_stride, int sequences,
               std::int64_t first, std::int64_t count, std::uint8_t* rows) {
  for (int sequence = 0; sequence < sequences; ++sequence)
    for (int head = 0; head < region.heads; ++head) {
      std::uint8_t* row = rows + static_cast<std::size_t>((sequence * region.heads + head) * count) * region.row_nbytes;
      for (std::int64_t i = first; i < first + count; ++i, row += region.row_nbytes) {
        auto* page = reinterpret_cast<std::uint8_t*>(pages[sequence * page_stride + i / region.rows_in_page]);
        std::uint8_t* array = page + region.offset + static_cast<std::size_t>(head) * region.head_nbytes;
        copy_row<kWrite>(region, array, static_cast<int>(i % region.rows_in_page), row);
      }
    }
}

}  // namespace

void write_rows(const PagedRegion& region, const std::int64_t* pages, std::int64_t page_stride, int sequences,
                std::int64_t first, std::int64_t count, const std::uint8_t* rows) {
  copy_rows<true>(region, pages, page_stride, sequences, first, count, const_cast<std::uint8_t*>(rows));
}

void read_rows(const PagedRegion& region, const std::int64_t* pages, std::int64_t page_stride, int sequences,
               std::int64_t first, std::int64_t count, std::uint8_t* rows) {
  copy_rows<false>(region, pages, page_stride, sequences, first, count, rows);
}

}  // namespace kvassay

#include "pages.h"

#include <algorithm>
#include <cstring>

namespace kvassay {
namespace {

// One row of units to its places, or from them.
template <class Unit, int kTogether, bool kWrite>
void copy_single(Unit* place, std::uint8_t* row, std::size_t units) {
  for (std::size_t unit = 0; unit < units; ++unit)
    if constexpr (kWrite) std::memcpy(place + unit * kTogether, row + unit * sizeof(Unit), sizeof(Unit));
    else std::memcpy(row + unit * sizeof(Unit), place + unit * kTogether, sizeof(Unit));
}

// kTogether rows that fill their places: unit by unit, so that whole words or lines are written.
template <class Unit, int kTogether, bool kWrite>
void copy_group(Unit* places, std::uint8_t* rows, std::size_t row_nbytes) {
  const std::size_t units = row_nbytes / sizeof(Unit);
  std::uint8_t* row[kTogether];
  for (int i = 0; i < kTogether; ++i) row[i] = rows + static_cast<std::size_t>(i) * row_nbytes;
  for (std::size_t unit = 0; unit < units; ++unit)
    for (int i = 0; i < kTogether; ++i)
      if constexpr (kWrite) std::memcpy(places + unit * kTogether + i, row[i] + unit * sizeof(Unit), sizeof(Unit));
      else std::memcpy(row[i] + unit * sizeof(Unit), places + unit * kTogether + i, sizeof(Unit));
}

// Rows `first` to `end - 1` of one head's array in a page.
template <class Unit, int kTogether, bool kWrite>
void copy_in_page(std::uint8_t* array, std::size_t row_nbytes, int first, int end, std::uint8_t* rows) {
  const std::size_t units = row_nbytes / sizeof(Unit);
  for (int i = first; i < end;) {
    const int group = i / kTogether, within = i % kTogether;
    Unit* places = reinterpret_cast<Unit*>(array + static_cast<std::size_t>(group) * kTogether * row_nbytes);
    if (within == 0 && end - i >= kTogether) {
      copy_group<Unit, kTogether, kWrite>(places, rows, row_nbytes);
      i += kTogether;
      rows += kTogether * row_nbytes;
    } else {
      copy_single<Unit, kTogether, kWrite>(places + within, rows, units);
      ++i;
      rows += row_nbytes;
    }
  }
}

// Any other number of rows together, as scales of a whole page stand: unit by unit, so that places follow each other.
template <class Unit, bool kWrite>
void copy_spread(std::uint8_t* array, std::size_t row_nbytes, int together, int first, int end, std::uint8_t* rows) {
  const std::size_t units = row_nbytes / sizeof(Unit);
  for (int i = first; i < end;) {
    const int within = i % together, count = std::min(end - i, together - within);
    std::uint8_t* group = array + static_cast<std::size_t>(i - within) * row_nbytes;
    for (std::size_t unit = 0; unit < units; ++unit) {
      std::uint8_t* place = group + (unit * static_cast<std::size_t>(together) + static_cast<std::size_t>(within)) * sizeof(Unit);
      std::uint8_t* row = rows + unit * sizeof(Unit);
      for (int k = 0; k < count; ++k, place += sizeof(Unit), row += row_nbytes)
        if constexpr (kWrite) std::memcpy(place, row, sizeof(Unit));
        else std::memcpy(row, place, sizeof(Unit));
    }
    i += count;
    rows += static_cast<std::size_t>(count) * row_nbytes;
  }
}

template <bool kWrite>
void copy_rows_of_head(const PagedRegion& region, std::uint8_t* array, int first, int end, std::uint8_t* rows) {
  const std::size_t nbytes = region.row_nbytes;
  if (region.together == 1) {
    std::uint8_t* at = array + static_cast<std::size_t>(first) * nbytes;
    const std::size_t length = static_cast<std::size_t>(end - first) * nbytes;
    if constexpr (kWrite) std::memcpy(at, rows, length);
    else std::memcpy(rows, at, length);
  } else if (region.unit_nbytes == 1 && region.together == 4) {
    copy_in_page<std::uint8_t, 4, kWrite>(array, nbytes, first, end, rows);
  } else if (region.unit_nbytes == 4 && region.together == 16) {
    copy_in_page<std::uint32_t, 16, kWrite>(array, nbytes, first, end, rows);
  } else {
    switch (region.unit_nbytes) {
      case 1: return copy_spread<std::uint8_t, kWrite>(array, nbytes, region.together, first, end, rows);
      case 2: return copy_spread<std::uint16_t, kWrite>(array, nbytes, region.together, first, end, rows);
      default: return copy_spread<std::uint32_t, kWrite>(array, nbytes, region.together, first, end, rows);
    }
  }
}

template <bool kWrite>
void copy_rows(const PagedRegion& region, const std::int64_t* pages, std::int64_t page_stride, int sequences,
               std::int64_t first, std::int64_t count, std::uint8_t* rows) {
  const std::int64_t in_page = region.rows_in_page;
  for (int sequence = 0; sequence < sequences; ++sequence)
    for (int head = 0; head < region.heads; ++head)
      for (std::int64_t i = first, end; i < first + count; i = end) {
        const std::int64_t number = i / in_page, begin = number * in_page;
        end = std::min(first + count, begin + in_page);
        auto* page = reinterpret_cast<std::uint8_t*>(pages[sequence * page_stride + number]);
        copy_rows_of_head<kWrite>(region, page + region.offset + static_cast<std::size_t>(head) * region.head_nbytes,
                                  static_cast<int>(i - begin), static_cast<int>(end - begin), rows);
        rows += static_cast<std::size_t>(end - i) * region.row_nbytes;
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

// Rows of a stored array into pages and back: the order of bytes that docs/design/tile-layout.md draws.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvassay {

// One stored array of a page: rows `[rows_in_page][units]` as `[rows_in_page / together][units][together]`.
struct PagedRegion {
  std::size_t offset = 0;       // from the begin of a head's tile, or of the page for an array that heads share
  std::size_t head_nbytes = 0;  // from one head's part to the next
  int heads = 0;
  int rows_in_page = 0;
  int together = 1;
  int unit_nbytes = 1;
  std::size_t row_nbytes = 0;
};

// Rows first to first + count - 1, counted from the first row of the first page, of `sequences` sequences;
// `rows` is [sequence][head][count][row_nbytes], `pages` [sequence][page_stride].
void write_rows(const PagedRegion& region, const std::int64_t* pages, std::int64_t page_stride, int sequences,
                std::int64_t first, std::int64_t count, const std::uint8_t* rows);
void read_rows(const PagedRegion& region, const std::int64_t* pages, std::int64_t page_stride, int sequences,
               std::int64_t first, std::int64_t count, std::uint8_t* rows);

}  // namespace kvassay

// The Python module: rows of arrays in pages, codes of values, appends of single tokens.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "bind.h"
#include "encode.h"
#include "pages.h"
#include "step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvassay {
namespace {

using ByteArray = nb::ndarray<const std::uint8_t, nb::device::cpu, nb::c_contig>;
using OutBytes = nb::ndarray<std::uint8_t, nb::device::cpu, nb::c_contig>;

PagedRegion make_region(std::size_t offset, std::size_t head_nbytes, int heads, int rows_in_page, int together,
                        int unit_nbytes, std::size_t row_nbytes) {
  require(heads > 0 && rows_in_page > 0 && row_nbytes > 0, "a region has heads, rows and bytes");
  require(together > 0 && rows_in_page % together == 0, "rows that stand together fill the page");
  require((unit_nbytes == 1 || unit_nbytes == 2 || unit_nbytes == 4) &&
              row_nbytes % static_cast<std::size_t>(unit_nbytes) == 0,
          "a row is whole units of 1, 2 or 4 bytes");
  return {offset, head_nbytes, heads, rows_in_page, together, unit_nbytes, row_nbytes};
}

void require_rows(const PagedRegion& region, const PageArray& pages, std::int64_t first, std::int64_t count,
                  std::size_t nbytes) {
  require(first >= 0 && count > 0 && first + count <= static_cast<std::int64_t>(pages.shape(1)) * region.rows_in_page,
          "rows reach beyond their pages");
  require(nbytes == pages.shape(0) * static_cast<std::size_t>(region.heads) * static_cast<std::size_t>(count) *
                        region.row_nbytes,
          "bytes are not those of so many rows");
}

void write_rows_bound(const PagedRegion& region, PageArray pages, std::int64_t first, std::int64_t count, ByteArray rows) {
  require_rows(region, pages, first, count, rows.size());
  write_rows(region, pages.data(), static_cast<std::int64_t>(pages.shape(1)), static_cast<int>(pages.shape(0)), first,
             count, rows.data());
}

void read_rows_bound(const PagedRegion& region, PageArray pages, std::int64_t first, std::int64_t count, OutBytes rows) {
  require_rows(region, pages, first, count, rows.size());
  read_rows(region, pages.data(), static_cast<std::int64_t>(pages.shape(1)), static_cast<int>(pages.shape(0)), first,
            count, rows.data());
}

FloatType float_type(int type) {
  require(type >= 0 && type <= 2, "unknown type of floats");
  return static_cast<FloatType>(type);
}

// A grid and the signs it owns.
struct BoundGrid {
  CodeGrid grid;
  std::vector<float> signs;
};

std::shared_ptr<BoundGrid> make_grid(int method, int num_bits, bool symmetric, bool is_signed, int group, int block_tokens,
                                     int scale_type, const std::vector<float>& boundaries, std::vector<float> signs,
                                     int rotation_block) {
  require(method >= 0 && method <= 2, "unknown method");
  require(num_bits == 2 || num_bits == 4 || num_bits == 8, "codes have 2, 4 or 8 bits");
  require(!is_signed || (num_bits == 8 && symmetric), "signed codes have 8 bits and a symmetric grid");
  require(method == 0 || (symmetric && !is_signed), "only integers have a minimum or a sign");
  require(method != 1 || (num_bits == 4 && boundaries.size() == 15), "a table has 16 levels, and 15 boundaries");
  require(method != 2 || num_bits == 8, "float8 has 8 bits");
  require(scale_type >= 0 && scale_type <= 2, "unknown scale type");
  require(block_tokens > 0 && group > 0 && group * num_bits % 8 == 0, "a group fills bytes");
  require(signs.empty() || (rotation_block > 0 && (rotation_block & (rotation_block - 1)) == 0 &&
                            signs.size() % static_cast<std::size_t>(rotation_block) == 0),
          "a rotation has a sign for each channel, in blocks that are a power of two");
  auto bound = std::make_shared<BoundGrid>();
  bound->signs = std::move(signs);
  CodeGrid& grid = bound->grid;
  grid.method = static_cast<GridMethod>(method);
  grid.num_bits = num_bits;
  grid.symmetric = symmetric;
  grid.is_signed = is_signed;
  grid.group = group;
  grid.block_tokens = block_tokens;
  grid.scale_type = static_cast<ScaleType>(scale_type);
  if (method == 1) std::copy(boundaries.begin(), boundaries.end(), grid.boundaries);
  if (!bound->signs.empty()) {
    grid.signs = bound->signs.data();
    grid.rotation_block = rotation_block;
    grid.rotation_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(rotation_block)));
  }
  return bound;
}

void require_serves(const BoundGrid& bound, int dim) {
  const CodeGrid& grid = bound.grid;
  require(dim > 0, "rows have values");
  require(bound.signs.empty() || bound.signs.size() == static_cast<std::size_t>(dim), "a rotation is for another dim");
  require(grid.block_tokens > 1 ? dim % 16 == 0 : dim % grid.group == 0, "groups must divide rows");
}

std::size_t scale_nbytes(const CodeGrid& grid, int dim) {
  return static_cast<std::size_t>(grid.scales_of_block(dim)) * nbytes_of(grid.scale_type);
}

using ValueArray = nb::ndarray<nb::ro, nb::ndim<4>, nb::device::cpu>;

Vectors vectors_of(const ValueArray& values) {
  const auto given = values.dtype();
  require(given.lanes == 1 && (given.bits == 16 || given.bits == 32), "values are floats of 16 or 32 bits");
  const bool is_bfloat = given.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat);
  require(given.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) || is_bfloat, "values are floats");
  require(values.stride(3) == 1, "channels lie side by side");
  return {static_cast<const std::uint8_t*>(values.data()),
          given.bits == 32 ? FloatType::kFloat32 : is_bfloat ? FloatType::kBFloat16 : FloatType::kFloat16,
          static_cast<std::int64_t>(values.shape(0)),
          static_cast<std::int64_t>(values.shape(1)),
          static_cast<std::int64_t>(values.shape(2)),
          values.stride(0),
          values.stride(1),
          values.stride(2)};
}

bool encode_rows_bound(const BoundGrid& bound, ValueArray values, int kept, OutBytes codes, OutBytes scales,
                       std::optional<OutBytes> minimums, const std::string& instruction_set) {
  const Vectors vectors = vectors_of(values);
  const CodeGrid& grid = bound.grid;
  const int dim = static_cast<int>(values.shape(3));
  require_serves(bound, dim);
  require(vectors.tokens % grid.block_tokens == 0, "tokens are whole blocks");
  const auto rows = static_cast<std::size_t>(vectors.sequences * vectors.heads * vectors.tokens);
  const std::size_t expected = rows / static_cast<std::size_t>(grid.block_tokens) * scale_nbytes(grid, dim);
  require(codes.size() == rows * static_cast<std::size_t>(dim) * static_cast<std::size_t>(grid.num_bits) / 8, "codes do not fit");
  require(scales.size() == expected, "scales do not fit");
  require(grid.symmetric || (minimums && minimums->size() == expected), "minimums do not fit");
  EncodedRows to;
  to.codes = codes.data();
  to.scales = scales.data();
  if (minimums) to.minimums = minimums->data();
  const FloatType kept_type = float_type(kept);
  const EncodeRows form = encode_rows_of(instruction_set);
  nb::gil_scoped_release release;
  return encode_rows(form, &grid, vectors, dim, kept_type, to);
}

// Values as `kept` holds them. False where one is not finite then; without an array of rows that is all it says.
bool keep_rows_bound(ValueArray values, int kept, std::optional<OutBytes> rows, const std::string& instruction_set) {
  const Vectors vectors = vectors_of(values);
  const FloatType kept_type = float_type(kept);
  require(!rows || rows->size() == values.size() * nbytes_of(kept_type), "rows do not fit");
  EncodedRows to;
  if (rows) to.kept = rows->data();
  const EncodeRows form = encode_rows_of(instruction_set);
  nb::gil_scoped_release release;
  return encode_rows(form, nullptr, vectors, static_cast<int>(values.shape(3)), kept_type, to);
}

StepArray make_step_array(const PagedRegion& region, PageArray pages) {
  require(pages.shape(1) == 1, "a step writes to one page of each sequence");
  return {region, {pages.data(), pages.data() + pages.shape(0)}};
}

// A side whose tokens have room in their pages for `steps` appends.
std::shared_ptr<StepSide> make_step_side(int sequences, int heads, int dim, int kept,
                                         const std::shared_ptr<BoundGrid>& grid, const std::vector<StepArray>& coded, std::int64_t coded_place,
                                         const std::vector<StepArray>& tail, std::int64_t tail_place,
                                         std::int64_t oldest_place, std::int64_t steps,
                                         const std::string& instruction_set) {
  auto side = std::make_shared<StepSide>();
  side->sequences = sequences;
  side->heads = heads;
  side->dim = dim;
  side->kept = float_type(kept);
  if (grid) side->grid = std::shared_ptr<const CodeGrid>(grid, &grid->grid);
  side->encode = encode_rows_of(instruction_set);
  side->is_coded = !coded.empty();
  side->enters_tail = !tail.empty();
  side->coded_place = coded_place;
  side->tail_place = tail_place;
  side->oldest_place = oldest_place;
  require(sequences > 0 && heads > 0 && dim > 0 && steps > 0, "a side has sequences, heads, dim and steps");
  require(side->is_coded || side->enters_tail, "a token goes somewhere");
  const std::size_t width = static_cast<std::size_t>(dim), kept_nbytes = width * (kept == 0 ? 4 : 2);
  const auto place = [&](const StepArray& from, std::size_t row_nbytes, std::int64_t first, StepArray& to) {
    require(from.region.heads == heads && from.region.row_nbytes == row_nbytes &&
                from.pages.size() == static_cast<std::size_t>(sequences),
            "an array is not of so many sequences, heads and bytes");
    require(first >= 0 && first + steps <= from.region.rows_in_page, "steps reach beyond the page");
    to = from;
  };
  if (side->is_coded && grid) {
    require_serves(*grid, dim);
    require(side->grid->block_tokens == 1, "single tokens have no scales of channels");
    require(coded.size() == (side->grid->symmetric ? 2u : 3u), "codes, scales and minimums have an array each");
    const std::size_t scales = scale_nbytes(*side->grid, dim);
    place(coded[0], width * static_cast<std::size_t>(side->grid->num_bits) / 8, coded_place, side->codes);
    place(coded[1], scales, coded_place, side->scales);
    if (!side->grid->symmetric) place(coded[2], scales, coded_place, side->minimums);
  } else if (side->is_coded) {
    require(coded.size() == 1, "floats are one array");
    place(coded[0], kept_nbytes, coded_place, side->codes);
  }
  if (side->enters_tail) {
    require(tail.size() == (side->is_coded ? 2u : 1u), "a tail that is coded has a first and a last page");
    place(tail[0], kept_nbytes, tail_place, side->tail);
    if (side->is_coded) place(tail[1], kept_nbytes, oldest_place, side->oldest);
  }
  return side;
}

// The sides of a layer, and how many steps they have room for.
struct BoundStep {
  std::vector<std::shared_ptr<StepSide>> sides;
  std::int64_t left = 0;
};

std::shared_ptr<BoundStep> make_step(std::vector<std::shared_ptr<StepSide>> sides, std::int64_t steps) {
  require(sides.size() == 2, "a layer has keys and values");
  return std::make_shared<BoundStep>(BoundStep{std::move(sides), steps});
}

bool append_bound(BoundStep& step, std::uintptr_t keys, std::uintptr_t values, int type, std::int64_t key_sequence,
                  std::int64_t key_head, std::int64_t value_sequence, std::int64_t value_head) {
  require(step.left > 0, "the pages are full");
  const FloatType given = float_type(type);
  const auto vectors_at = [&](std::size_t side, std::uintptr_t data, std::int64_t sequence, std::int64_t head) {
    return Vectors{reinterpret_cast<const std::uint8_t*>(data), given, step.sides[side]->sequences, step.sides[side]->heads, 1,
                   sequence, head, 0};
  };
  const Vectors vectors[2] = {vectors_at(0, keys, key_sequence, key_head), vectors_at(1, values, value_sequence, value_head)};
  StepSide* sides[2] = {step.sides[0].get(), step.sides[1].get()};
  if (!append_step(sides, vectors, 2)) return false;
  --step.left;
  return true;
}

}  // namespace

void bind_append(nb::module_& module) {
  nb::class_<PagedRegion>(module, "PagedRegion")
      .def(nb::new_(&make_region), "offset"_a, "head_nbytes"_a, "heads"_a, "rows_in_page"_a, "together"_a,
           "unit_nbytes"_a, "row_nbytes"_a);
  module.def("write_rows", &write_rows_bound, "region"_a, "pages"_a, "first"_a, "count"_a, "rows"_a);
  module.def("read_rows", &read_rows_bound, "region"_a, "pages"_a, "first"_a, "count"_a, "rows"_a);
  nb::class_<BoundGrid>(module, "CodeGrid")
      .def(nb::new_(&make_grid), "method"_a, "num_bits"_a, "symmetric"_a, "is_signed"_a, "group"_a, "block_tokens"_a,
           "scale_type"_a, "boundaries"_a, "signs"_a, "rotation_block"_a);
  module.def("encode_rows", &encode_rows_bound, "grid"_a, "values"_a, "kept"_a, "codes"_a, "scales"_a, "minimums"_a.none(),
             "instruction_set"_a);
  module.def("keep_rows", &keep_rows_bound, "values"_a, "kept"_a, "rows"_a.none(), "instruction_set"_a);
  nb::class_<StepArray>(module, "StepArray").def(nb::new_(&make_step_array), "region"_a, "pages"_a);
  nb::class_<StepSide>(module, "StepSide")
      .def(nb::new_(&make_step_side), "sequences"_a, "heads"_a, "dim"_a, "kept"_a, "grid"_a.none(), "coded"_a,
           "coded_place"_a, "tail"_a, "tail_place"_a, "oldest_place"_a, "steps"_a, "instruction_set"_a);
  nb::class_<BoundStep>(module, "Step")
      .def(nb::new_(&make_step), "sides"_a, "steps"_a)
      .def("append", &append_bound, "keys"_a, "values"_a, "type"_a, "key_sequence"_a, "key_head"_a, "value_sequence"_a,
           "value_head"_a);
}

}  // namespace kvassay

// The Python module: formats of tiles, segments of pages, one call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bind.h"
#include "dispatch.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvassay {
namespace {

using FloatArray = nb::ndarray<const float, nb::device::cpu, nb::c_contig>;
using OutArray = nb::ndarray<float, nb::device::cpu, nb::c_contig>;
using MaskArray = nb::ndarray<const std::uint8_t, nb::ndim<4>, nb::device::cpu>;

// A format and the table it owns.
struct BoundFormat {
  TileFormat format;
  float table[16] = {};
};

std::shared_ptr<BoundFormat> make_format(int code, int dim, int scale_mode, int scale_type, int group, bool has_minimum,
                                         float offset, int page_tokens, int block_tokens, std::size_t tile_nbytes,
                                         std::size_t scales_offset, std::size_t minimums_offset,
                                         std::optional<FloatArray> table) {
  auto bound = std::make_shared<BoundFormat>();
  TileFormat& format = bound->format;
  require(code >= 0 && code <= 9 && scale_mode >= 0 && scale_mode <= 2 && scale_type >= 0 && scale_type <= 2,
          "unknown code, scale mode or scale type");
  format.code = static_cast<Code>(code);
  format.scale_mode = static_cast<ScaleMode>(scale_mode);
  format.scale_type = static_cast<ScaleType>(scale_type);
  format.dim = dim;
  format.group = group;
  format.has_minimum = has_minimum;
  format.offset = offset;
  format.page_tokens = page_tokens;
  format.block_tokens = block_tokens;
  format.tile_nbytes = tile_nbytes;
  format.scales_offset = scales_offset;
  format.minimums_offset = minimums_offset;
  require(dim > 0 && dim <= kMaxDim && dim % 16 == 0, "dim must be a multiple of 16, at most 1024");
  require(page_tokens > 0 && page_tokens <= kMaxPageTokens, "a page has 1 to 256 tokens");
  require(format.is_float() || page_tokens % kBlockTokens == 0, "a page of codes has a multiple of 16 tokens");
  if (format.scale_mode == ScaleMode::kToken)
    require(group > 0 && group % 16 == 0 && dim % group == 0 && dim / group <= kMaxGroups,
            "a group must be a multiple of 16 that divides dim, in at most 32 groups");
  if (format.scale_mode == ScaleMode::kChannel)
    require(block_tokens > 0 && block_tokens % kBlockTokens == 0 && page_tokens % block_tokens == 0,
            "blocks of channel scales have a multiple of 16 tokens and fill the page");
  if (format.code == Code::kTable4 || format.code == Code::kTable2) {
    require(table && table->size() == 16, "a table has 16 floats");
    for (int i = 0; i < 16; ++i) bound->table[i] = table->data()[i];
  }
  format.table = bound->table;
  const std::size_t codes = static_cast<std::size_t>(dim) * format.bits() / 8 * page_tokens;
  require(codes <= tile_nbytes && scales_offset <= tile_nbytes && minimums_offset <= tile_nbytes,
          "arrays reach beyond the tile");
  return bound;
}

// A segment keeps its format and its arrays alive.
struct BoundSegment {
  std::shared_ptr<BoundFormat> format;
  PageArray pages;
  std::optional<FloatArray> head_scale;
  Segment segment;
};

std::shared_ptr<BoundSegment> make_segment(std::shared_ptr<BoundFormat> format, PageArray pages, std::int64_t start,
                                           std::int64_t begin, std::int64_t end, std::optional<FloatArray> head_scale) {
  require(start >= 0 && start <= begin && begin <= end, "a segment needs 0 <= start <= begin <= end");
  const std::int64_t page_tokens = format->format.page_tokens;
  require(begin == end || (end - start + page_tokens - 1) / page_tokens <= static_cast<std::int64_t>(pages.shape(1)),
          "a segment reaches beyond its pages");
  auto bound = std::make_shared<BoundSegment>(BoundSegment{format, pages, head_scale, {}});
  Segment& segment = bound->segment;
  segment.format = &bound->format->format;
  segment.pages = bound->pages.data();
  segment.row_stride = static_cast<std::int64_t>(pages.shape(1));
  segment.start = start;
  segment.begin = begin;
  segment.end = end;
  segment.head_scale = head_scale ? bound->head_scale->data() : nullptr;
  return bound;
}

using Segments = std::vector<std::shared_ptr<BoundSegment>>;

// Copies what the call needs of the segments; returns their last column.
std::int64_t take_segments(const Segments& from, int rows, int kv_heads, int dim, Segment* to, int* count) {
  require(!from.empty() && from.size() <= static_cast<std::size_t>(kMaxSegments), "a side has 1 to 4 segments");
  std::int64_t end = from[0]->segment.begin;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Segment& segment = from[i]->segment;
    require(static_cast<int>(from[i]->pages.shape(0)) == rows, "pages need one row for each row of the query");
    require(segment.format->dim == dim, "dim of the format and of the query (or out) differ");
    require(segment.begin == end, "segments must follow each other without a gap");
    require(!segment.head_scale || static_cast<int>(from[i]->head_scale->size()) == kv_heads,
            "head_scale needs one factor for each KV head");
    end = segment.end;
    to[i] = segment;
  }
  *count = static_cast<int>(from.size());
  return end;
}

void attend_bound(FloatArray query, std::optional<FloatArray> coded_query, const Segments& keys, const Segments& values, OutArray out, std::optional<OutArray> coded_out,
                  int kv_heads, float scaling, float softcap, std::optional<FloatArray> sinks, std::int64_t own_column,
                  std::optional<MaskArray> mask, int threads, const std::string& instruction_set) {
  require(query.ndim() == 4 && out.ndim() == 4, "query and out are [rows, query_heads, queries, dim]");
  for (int axis = 0; axis < 3; ++axis) require(query.shape(axis) == out.shape(axis), "query and out differ in shape");
  const int heads = static_cast<int>(query.shape(1));
  require(kv_heads > 0 && heads % kv_heads == 0, "query heads must be a multiple of kv_heads");
  AttentionCall call;
  call.query = query.data();
  call.out = out.data();
  if (coded_query) {
    require(coded_query->size() == query.size(), "coded_query and query differ in shape");
    call.coded_query = coded_query->data();
  }
  if (coded_out) {
    require(coded_out->size() == out.size(), "coded_out and out differ in shape");
    call.coded_out = coded_out->data();
  }
  call.rows = static_cast<int>(query.shape(0));
  call.kv_heads = kv_heads;
  call.ratio = heads / kv_heads;
  call.queries = static_cast<int>(query.shape(2));
  call.head_dim = static_cast<int>(query.shape(3));
  call.value_dim = static_cast<int>(out.shape(3));
  require(call.ratio * call.queries <= kMaxQueries, "at most 64 queries share a KV head; split the call");
  require(threads > 0, "threads must be positive");
  call.scaling = scaling;
  call.softcap = softcap;
  if (sinks) {
    require(static_cast<int>(sinks->size()) == heads, "sinks need one score for each query head");
    call.sinks = sinks->data();
  }
  call.columns = take_segments(keys, call.rows, kv_heads, call.head_dim, call.keys, &call.num_keys);
  require(call.columns == take_segments(values, call.rows, kv_heads, call.value_dim, call.values, &call.num_values),
          "keys and values end at different columns");
  require(call.keys[0].begin == call.values[0].begin, "keys and values begin at different columns");
  call.first_column = call.keys[0].begin;
  call.own_column = own_column;
  if (mask) {
    const std::size_t wanted[3] = {query.shape(0), query.shape(1), query.shape(2)};
    std::int64_t stride[3];
    for (int axis = 0; axis < 3; ++axis) {
      require(mask->shape(axis) == wanted[axis] || mask->shape(axis) == 1, "mask does not fit the query");
      stride[axis] = mask->shape(axis) == 1 ? 0 : mask->stride(axis);
    }
    require(mask->stride(3) == 1 && static_cast<std::int64_t>(mask->shape(3)) == call.columns - call.first_column,
            "mask needs one byte for each column that the segments hold");
    call.mask = mask->data() - call.first_column;
    call.mask_row = stride[0];
    call.mask_head = stride[1];
    call.mask_query = stride[2];
  }
  nb::gil_scoped_release release;
  attend(call, threads, instruction_set);
}

}  // namespace
}  // namespace kvassay

NB_MODULE(_native, module) {
  using namespace kvassay;
  module.doc() = "Fused attention over packed KV tiles. kvassay.kernels says what takes part and how.";
  nb::class_<BoundFormat>(module, "TileFormat")
      .def(nb::new_(&make_format), "code"_a, "dim"_a, "scale_mode"_a, "scale_type"_a, "group"_a, "has_minimum"_a,
           "offset"_a, "page_tokens"_a, "block_tokens"_a, "tile_nbytes"_a, "scales_offset"_a, "minimums_offset"_a,
           "table"_a.none());
  nb::class_<BoundSegment>(module, "Segment")
      .def(nb::new_(&make_segment), "format"_a, "pages"_a, "start"_a, "begin"_a, "end"_a, "head_scale"_a.none());
  module.def("attend", &attend_bound, "query"_a, "coded_query"_a.none(), "keys"_a,
             "values"_a, "out"_a, "coded_out"_a.none(), "kv_heads"_a, "scaling"_a, "softcap"_a,
             "sinks"_a.none(), "own_column"_a, "mask"_a.none(), "threads"_a, "instruction_set"_a);
  bind_append(module);
  module.def("instruction_sets", &instruction_sets);
  module.def("thread_source", &thread_source);
}

// Attention of the queries of some KV heads over a range of tokens, chunk by chunk: scores, running softmax, values.
//
// Running softmax: Milakov and Gimelshein 2018 (arXiv:1805.02867), section 3; over chunks and merged over ranges as in
// flash decoding (Dao et al. 2022, arXiv:2205.14135, section 3.1).
#pragma once
#include <math.h>
#include <string.h>

#include "call.h"
#include "key_stage.h"
#include "value_stage.h"
#include "workspace.h"

namespace kvassay {
namespace KVASSAY_ISA {

namespace detail {

using KeyFunction = void (*)(const TileFormat&, const std::uint8_t*, int, int, const KeyQueries&, float* const*,
                             std::ptrdiff_t);
using ValueFunction = void (*)(const TileFormat&, const std::uint8_t*, int, int, float* const*, float* const*,
                               float* const*, ValueWork&, std::ptrdiff_t);

// Both stages for one kind of code and some queries.
struct Stages {
  KeyFunction key;
  ValueFunction value;
};

template <class S, Code kCode>
Stages stages_of(int rows) {
  switch (rows) {
    case 1: return {key_stage<S, kCode, 1>, value_stage<S, kCode, 1>};
    case 2: return {key_stage<S, kCode, 2>, value_stage<S, kCode, 2>};
    case 3: return {key_stage<S, kCode, 3>, value_stage<S, kCode, 3>};
    default: return {key_stage<S, kCode, 4>, value_stage<S, kCode, 4>};
  }
}

template <class S>
Stages stages_of(Code code, int rows) {
  switch (code) {
    case Code::kInt8: return stages_of<S, Code::kInt8>(rows);
    case Code::kUint8: return stages_of<S, Code::kUint8>(rows);
    case Code::kUint4: return stages_of<S, Code::kUint4>(rows);
    case Code::kUint2: return stages_of<S, Code::kUint2>(rows);
    case Code::kFloat8E4M3: return stages_of<S, Code::kFloat8E4M3>(rows);
    case Code::kTable4: return stages_of<S, Code::kTable4>(rows);
    case Code::kTable2: return stages_of<S, Code::kTable2>(rows);
    case Code::kFloat16: return stages_of<S, Code::kFloat16>(rows);
    case Code::kBFloat16: return stages_of<S, Code::kBFloat16>(rows);
    default: return stages_of<S, Code::kFloat32>(rows);
  }
}

// Scores of a page of plain floats in rows, which pages of few tokens are.
template <class S>
void row_scores(const TileFormat& format, const std::uint8_t* tile, int first, int last, const KeyQueries& q,
                float* const* scores) {
  for (int t = first; t < last; ++t) {
    float row[kMaxDim];
    float_row(format, tile, t, row);
    for (int r = 0; r < q.rows; ++r) {
      float sum = 0;
      for (int c = 0; c < format.dim; ++c) sum += row[c] * q.plain[r][c];
      scores[r][t] = sum;
    }
  }
}

}  // namespace detail

// The queries of a task. Memory is read in the order in which it lies: page by page, in each the tiles of all heads.
template <class S>
class RangeAttention {
 public:
  RangeAttention(const AttentionCall& call, const RangeTask& task, Workspace& work) : call_(call), task_(task), work_(work) {
    Carver carver{work.memory};
    room_ = lay_out(call, task.heads, task.queries, carver);
  }

  // Writes one Partial for each query.
  void run() {
    for_each_block([&](int head, QueryBlock& block) {
      begin_sums(head, block);
      for (int k = 0; k < call_.num_keys; ++k)
        if (call_.keys[k].begin < task_.end && call_.keys[k].end > task_.begin)
          prepare(call_.keys[k], head, block, keys_of(k, head, block));
    });
    for (std::int64_t low = task_.begin; low < task_.end;) {
      const std::int64_t high = smaller(task_.end, next_bound(low));
      for (int k = 0; k < call_.num_keys; ++k) key_pages(k, low, high);
      for_each_block([&](int head, QueryBlock& block) { soften_block(head, block, low, high); });
      for (int k = 0; k < call_.num_values; ++k) value_pages(call_.values[k], low, high);
      low = high;
    }
    for_each_block([&](int head, QueryBlock& block) { add_coded_sums(head, block); });
  }

 private:
  template <class F>
  void for_each_block(F&& body) {
    for (int head = 0; head < task_.heads; ++head)
      for (int b = 0; b < room_.blocks; ++b) body(head, room_.queries[head * room_.blocks + b]);
  }

  KeyQueries& keys_of(int segment, int head, const QueryBlock& block) {
    return room_.keys[(segment * task_.heads + head) * room_.blocks + block.first / kMaxRows];
  }

  // Heads are counted from the task's first, queries of a block from the task's first.
  int kv_head(int head) const { return task_.first_head + head; }
  int query_number(const QueryBlock& block, int r) const { return task_.first_query + block.first + r; }
  int query_head(int head, int query) const { return kv_head(head) * call_.ratio + query / call_.queries; }
  Partial& partial_of(int head, const QueryBlock& block, int r) const {
    return task_.partials[head * task_.head_partials + query_number(block, r)];
  }
  float head_factor(const Segment& segment, int head) const {
    return segment.head_scale ? segment.head_scale[kv_head(head)] : 1.f;
  }

  void begin_sums(int head, QueryBlock& block) {
    const bool has_sinks = call_.sinks && task_.begin == call_.first_column;
    for (int r = 0; r < block.rows; ++r) {
      Partial& partial = partial_of(head, block, r);
      partial.largest = has_sinks ? call_.sinks[query_head(head, query_number(block, r))] : -kInfinity;
      partial.total = has_sinks ? 1.f : 0.f;
      const std::size_t nbytes = sizeof(float) * static_cast<std::size_t>(call_.value_dim);
      memset(partial.sums, 0, nbytes);
      memset(partial.coded_sums, 0, nbytes);
      memset(block.coded[r], 0, sizeof(float) * static_cast<std::size_t>(room_.coded_room));
      memset(block.constants[r], 0, sizeof(float) * static_cast<std::size_t>(room_.constants));
    }
  }

  // Makes the queries of a block ready for the keys of a segment.
  void prepare(const Segment& segment, int head, const QueryBlock& block, KeyQueries& q) {
    const TileFormat& format = *segment.format;
    const float factor = head_factor(segment, head);
    for (int r = 0; r < q.rows; ++r) {
      const bool coded = call_.coded_query && !format.is_float();
      const float* from = call_.query_of(coded ? call_.coded_query : call_.query, task_.row, kv_head(head), query_number(block, r));
      float* values = q.given[r] ? q.given[r] : work_.scaled.plain[r];
      for (int c = 0; c < format.dim; ++c) values[c] = from[c] * call_.scaling * factor;
      q.plain[r] = values;
      q.unit[r] = 1.f;
      q.constant[r] = 0.f;
      if (format.scale_mode == ScaleMode::kChannel) continue;
      const int group = format.scale_mode == ScaleMode::kToken ? format.group : format.dim;
      if (is_integer(format.code)) {
        const float largest = largest_magnitude<S>(values, format.dim);
        round_query<S>(format, values, largest, group, q.steps[r], &q.unit[r], q.group_sums[r]);
      } else {
        for (int g = 0; g * group < format.dim; ++g) {
          q.group_sums[r][g] = 0;
          for (int c = g * group; c < (g + 1) * group; ++c) q.group_sums[r][g] += values[c];
        }
      }
      // Offset codes without scales of tokens: what the offset takes is the same for all tokens.
      if (format.scale_mode == ScaleMode::kNone && format.offset != 0)
        q.constant[r] = -format.offset * q.unit[r] * q.group_sums[r][0];
    }
  }

  // Chunks end where pages of coded keys end, so that no line of keys is read twice.
  std::int64_t next_bound(std::int64_t low) const {
    for (int k = 0; k < call_.num_keys; ++k) {
      const Segment& segment = call_.keys[k];
      if (!segment.format->is_float() && low >= segment.begin && low < segment.end)
        return segment.start + ((low - segment.start) / kChunkTokens + 1) * kChunkTokens;
    }
    for (int k = 0; k < call_.num_keys; ++k)
      if (low < call_.keys[k].begin) return smaller(low + kChunkTokens, call_.keys[k].begin);
    return low + kChunkTokens;
  }

  const std::uint8_t* tile_of(const Segment& segment, std::int64_t page, int head) const {
    return reinterpret_cast<const std::uint8_t*>(segment.pages[task_.row * segment.row_stride + page]) +
           static_cast<std::size_t>(kv_head(head)) * segment.format->tile_nbytes;
  }

  // Calls body(tile, bytes from it to the one that is asked for meanwhile or 0, head, place of column `low` as seen from the
  // page's first, first and last place that count) for the tiles of a segment's columns low to high - 1.
  template <class F>
  void for_each_tile(const Segment& segment, std::int64_t low, std::int64_t high, F&& body) {
    const std::int64_t begin = larger(low, segment.begin), end = smaller(high, segment.end);
    if (begin >= end) return;
    const TileFormat& format = *segment.format;
    const int page = format.page_tokens;
    for (std::int64_t p = (begin - segment.start) / page; segment.start + p * page < end; ++p) {
      const std::int64_t base = segment.start + p * page;
      const int first = static_cast<int>(larger<std::int64_t>(begin - base, 0));
      const int last = static_cast<int>(smaller<std::int64_t>(end - base, page));
      for (int head = 0; head < task_.heads; ++head) {
        const std::uint8_t* tile = tile_of(segment, p, head);
        const int next = head + kTilesAhead;
        const std::int64_t next_page = p + next / task_.heads;
        const bool is_there = segment.start + next_page * page < segment.end;
        const std::ptrdiff_t ahead = is_there ? tile_of(segment, next_page, next % task_.heads) - tile : 0;
        body(tile, ahead, head, base - low, first, last);
        if (ahead) prefetch_parameters(format, tile + ahead);
      }
    }
  }

  static void prefetch_parameters(const TileFormat& format, const std::uint8_t* tile) {
    for (std::size_t at = format.scales_offset; format.scales_offset && at < format.tile_nbytes; at += 64)
      prefetch(tile + at);
  }

  void key_pages(int number, std::int64_t low, std::int64_t high) {
    const Segment& segment = call_.keys[number];
    const TileFormat& format = *segment.format;
    for_each_tile(segment, low, high, [&](const std::uint8_t* tile, std::ptrdiff_t ahead, int head, std::int64_t place,
                                          int first, int last) {
      for (int b = 0; b < room_.blocks; ++b, ahead = 0) {
        QueryBlock& block = room_.queries[head * room_.blocks + b];
        float* out[kMaxRows];
        for (int r = 0; r < block.rows; ++r) out[r] = block.scores[r] + place;
        tile_scores(format, tile, first, last, keys_of(number, head, block), out, ahead);
      }
    });
  }

  void tile_scores(const TileFormat& format, const std::uint8_t* tile, int first, int last, KeyQueries& q,
                   float* const* scores, std::ptrdiff_t ahead) {
    const auto function = detail::stages_of<S>(format.code, q.rows).key;
    if (format.is_float() && format.page_tokens % kBlockTokens) {
      detail::row_scores<S>(format, tile, first, last, q, scores);
    } else if (format.scale_mode == ScaleMode::kChannel) {
      for (int at = first; at < last;) {
        const int block = at / format.block_tokens, stop = smaller(last, (block + 1) * format.block_tokens);
        fold_channel_scales<S>(format, tile, block, q, work_.scaled);
        function(format, tile, at, stop, q, scores, ahead);
        at = stop;
      }
    } else {
      function(format, tile, first, last, q, scores, ahead);
    }
  }

  void value_pages(const Segment& segment, std::int64_t low, std::int64_t high) {
    const TileFormat& format = *segment.format;
    const bool plain = format.is_float();
    if (!plain && segment.begin < high && segment.end > low) coded_values_ = &segment;
    for_each_tile(segment, low, high, [&](const std::uint8_t* tile, std::ptrdiff_t ahead, int head, std::int64_t place,
                                          int first, int last) {
      for (int b = 0; b < room_.blocks; ++b, ahead = 0) {
        QueryBlock& block = room_.queries[head * room_.blocks + b];
        float *weights[kMaxRows], *sums[kMaxRows];
        for (int r = 0; r < block.rows; ++r) {
          weights[r] = block.scores[r] + place;
          sums[r] = plain ? partial_of(head, block, r).sums : block.coded[r];
        }
        detail::stages_of<S>(format.code, block.rows)
            .value(format, tile, first, last, weights, sums, block.constants, work_.values, ahead);
      }
    });
  }

  void add_coded_sums(int head, QueryBlock& block) {
    if (!coded_values_) return;
    for (int r = 0; r < block.rows; ++r)
      channel_sums<S>(*coded_values_->format, block.coded[r], block.constants[r], head_factor(*coded_values_, head),
                      partial_of(head, block, r).coded_sums);
  }

  // Scores of a chunk become weights; sums of earlier chunks shrink where a larger score was found.
  void soften_block(int head, QueryBlock& block, std::int64_t low, std::int64_t high) {
    for (int r = 0; r < block.rows; ++r) {
      Partial& partial = partial_of(head, block, r);
      const float shrink = soften(head, query_number(block, r), low, high, block.scores[r], partial);
      if (shrink == 1.f) continue;
      rescale(partial.sums, call_.value_dim, shrink);
      rescale(block.coded[r], room_.coded_room, shrink);
      rescale(block.constants[r], room_.constants, shrink);
    }
  }

  // Scores become weights exp(score - largest); returns what earlier sums are multiplied with.
  float soften(int head, int q, std::int64_t low, std::int64_t high, float* scores, Partial& partial) {
    using Floats = typename S::Floats;
    const int count = static_cast<int>(high - low);
    if (call_.softcap > 0)
      for (int i = 0; i < count; ++i) scores[i] = call_.softcap * tanhf(scores[i] / call_.softcap);
    call_.mask_scores(task_.row, query_head(head, q), q % call_.queries, low, high, scores);
    const float closed = -kInfinity;
    const int padded = (count + S::kLanes - 1) / S::kLanes * S::kLanes;
    fill(scores + count, scores + padded, closed);
    Floats most = S::set(closed);
    for (int i = 0; i < padded; i += S::kLanes) most = S::max(most, S::loadf(scores + i));
    const float largest = larger(partial.largest, S::reduce_max(most));
    if (largest == closed) {
      fill(scores, scores + padded, 0.f);
      return 1.f;
    }
    const float shrink = partial.largest == closed ? 0.f : expf(partial.largest - largest);
    Floats total = S::zero();
    for (int i = 0; i < padded; i += S::kLanes) {
      const Floats weight = S::exp_open(S::sub(S::loadf(scores + i), S::set(largest)));
      total = S::add(total, weight);
      S::storef(scores + i, weight);
    }
    partial.total = partial.total * shrink + S::reduce_add(total);
    partial.largest = largest;
    return shrink;
  }

  static void rescale(float* sums, int count, float factor) {
    for (int i = 0; i < count; ++i) sums[i] *= factor;
  }

  const AttentionCall& call_;
  const RangeTask& task_;
  Workspace& work_;
  TaskRoom room_;
  const Segment* coded_values_ = nullptr;
};

}  // namespace KVASSAY_ISA
}  // namespace kvassay

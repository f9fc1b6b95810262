// Attention of the queries of one KV head over a range of tokens, chunk by chunk: scores, running softmax, values.
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

// The queries of one KV head of one row of the batch.
template <class S>
class HeadAttention {
 public:
  HeadAttention(const AttentionCall& call, int row, int kv_head, Workspace& work)
      : call_(call), row_(row), kv_head_(kv_head), work_(work), queries_(call.ratio * call.queries) {
    scale_queries();
  }

  // Attends to columns begin to end - 1; writes one Partial for each query.
  void run(std::int64_t begin, std::int64_t end, Partial* partials) {
    for (int q = 0; q < queries_; ++q) {
      partials[q].largest = call_.sinks && begin == call_.first_column ? sink_of(q) : -kInfinity;
      partials[q].total = call_.sinks && begin == call_.first_column ? 1.f : 0.f;
      const std::size_t nbytes = sizeof(float) * static_cast<std::size_t>(call_.value_dim);
      memset(partials[q].sums, 0, nbytes);
      memset(partials[q].coded_sums, 0, nbytes);
    }
    for (int first = 0; first < queries_; first += kMaxRows)
      block(first, smaller(kMaxRows, queries_ - first), begin, end, partials);
  }

 private:
  void scale_queries() {
    for (int q = 0; q < queries_; ++q) {
      scale_query(call_.query_of(call_.query, row_, kv_head_, q), work_.queries[q]);
      if (call_.coded_query)
        scale_query(call_.query_of(call_.coded_query, row_, kv_head_, q), work_.coded_queries[q]);
    }
  }

  void scale_query(const float* from, float* to) const {
    for (int c = 0; c < call_.head_dim; ++c) to[c] = from[c] * call_.scaling;
  }

  float sink_of(int q) const { return call_.sinks[kv_head_ * call_.ratio + q / call_.queries]; }

  // Queries first to first + rows - 1, ready for the keys of a segment.
  void prepare(const Segment& segment, int first, int rows, KeyQueries& q, KeyBuffers& buffers) {
    const TileFormat& format = *segment.format;
    q.rows = rows;
    const float factor = segment.head_scale ? segment.head_scale[kv_head_] : 1.f;
    for (int r = 0; r < rows; ++r) {
      const bool coded = call_.coded_query && !format.is_float();
      const float* plain = coded ? work_.coded_queries[first + r] : work_.queries[first + r];
      for (int c = 0; c < format.dim; ++c) buffers.plain[r][c] = plain[c] * factor;
      q.plain[r] = buffers.plain[r];
      q.pairs[r] = buffers.pairs[r];
      q.group_sums[r] = buffers.sums[r];
      q.unit[r] = 1.f;
      q.constant[r] = 0.f;
      if (format.scale_mode == ScaleMode::kChannel) continue;
      const int group = format.scale_mode == ScaleMode::kToken ? format.group : format.dim;
      if (is_integer(format.code)) {
        const float largest = largest_magnitude<S>(buffers.plain[r], format.dim);
        round_query<S>(format, buffers.plain[r], largest, group, q.pairs[r], &q.unit[r], buffers.sums[r]);
      } else {
        for (int g = 0; g * group < format.dim; ++g) {
          buffers.sums[r][g] = 0;
          for (int c = g * group; c < (g + 1) * group; ++c) buffers.sums[r][g] += buffers.plain[r][c];
        }
      }
      // Offset codes without scales of tokens: what the offset takes is the same for all tokens.
      if (format.scale_mode == ScaleMode::kNone && format.offset != 0)
        q.constant[r] = -format.offset * q.unit[r] * buffers.sums[r][0];
    }
  }

  void block(int first, int rows, std::int64_t begin, std::int64_t end, Partial* partials) {
    const int num_keys = call_.num_keys;
    KeyQueries prepared[kMaxSegments];
    for (int k = 0; k < num_keys; ++k)
      if (call_.keys[k].begin < end && call_.keys[k].end > begin)
        prepare(call_.keys[k], first, rows, prepared[k], work_.keys[k]);
    const int room = coded_room();
    float* sums[kMaxRows];
    float* coded[kMaxRows];
    float* constants[kMaxRows];
    for (int r = 0; r < rows; ++r) {
      sums[r] = partials[first + r].sums;
      coded[r] = work_.coded[r];
      constants[r] = work_.constants[r];
      memset(coded[r], 0, sizeof(float) * static_cast<std::size_t>(room));
      memset(constants[r], 0, sizeof(work_.constants[r]));
    }
    const TileFormat* coded_format = nullptr;
    float coded_factor = 1.f;
    float* scores[kMaxRows];
    for (int r = 0; r < rows; ++r) scores[r] = work_.scores[r];
    for (std::int64_t low = begin; low < end;) {
      const std::int64_t high = smaller(end, next_bound(low));
      for (int k = 0; k < num_keys; ++k)
        key_pages(call_.keys[k], prepared[k], work_.keys[k], low, high, scores);
      for (int r = 0; r < rows; ++r) {
        Partial& partial = partials[first + r];
        const float shrink = soften(first + r, low, high, scores[r], partial);
        if (shrink != 1.f) {
          rescale(sums[r], call_.value_dim, shrink);
          rescale(coded[r], room, shrink);
          for (int g = 0; g < kMaxGroups; ++g) constants[r][g] *= shrink;
        }
      }
      for (int k = 0; k < call_.num_values; ++k) {
        const Segment& segment = call_.values[k];
        const bool plain = segment.format->is_float();
        if (!plain && segment.begin < high && segment.end > low) {
          coded_format = segment.format;
          coded_factor = segment.head_scale ? segment.head_scale[kv_head_] : 1.f;
        }
        value_pages(segment, rows, low, high, scores, plain ? sums : coded, constants);
      }
      low = high;
    }
    if (coded_format)
      for (int r = 0; r < rows; ++r)
        channel_sums<S>(*coded_format, coded[r], constants[r], coded_factor, partials[first + r].coded_sums);
  }

  // Sums that coded values take, whichever format they have.
  int coded_room() const {
    int room = 0;
    for (int k = 0; k < call_.num_values; ++k)
      if (!call_.values[k].format->is_float()) room = larger(room, num_sums<S>(*call_.values[k].format));
    return room;
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

  const std::uint8_t* tile_of(const Segment& segment, std::int64_t page) const {
    return reinterpret_cast<const std::uint8_t*>(segment.pages[row_ * segment.row_stride + page]) +
           static_cast<std::size_t>(kv_head_) * segment.format->tile_nbytes;
  }

  // Bytes from a page's tile to the one that is asked for while it is read; 0 behind the last.
  std::ptrdiff_t ahead_of(const Segment& segment, std::int64_t page) const {
    const std::int64_t next = page + kPagesAhead;
    const bool is_there = segment.start + next * segment.format->page_tokens < segment.end;
    return is_there ? tile_of(segment, next) - tile_of(segment, page) : 0;
  }

  void key_pages(const Segment& segment, KeyQueries& q, KeyBuffers& buffers, std::int64_t low, std::int64_t high,
                 float* const* scores) {
    const std::int64_t begin = larger(low, segment.begin), end = smaller(high, segment.end);
    if (begin >= end) return;
    const TileFormat& format = *segment.format;
    const int page = format.page_tokens;
    const auto function = detail::stages_of<S>(format.code, q.rows).key;
    for (std::int64_t p = (begin - segment.start) / page; segment.start + p * page < end; ++p) {
      const std::int64_t base = segment.start + p * page;
      const int first = static_cast<int>(larger<std::int64_t>(begin - base, 0));
      const int last = static_cast<int>(smaller<std::int64_t>(end - base, page));
      const std::uint8_t* tile = tile_of(segment, p);
      const std::ptrdiff_t ahead = ahead_of(segment, p);
      float* out[kMaxRows];
      for (int r = 0; r < q.rows; ++r) out[r] = scores[r] + (base - low);
      if (format.is_float() && page % kBlockTokens) {
        detail::row_scores<S>(format, tile, first, last, q, out);
      } else if (format.scale_mode == ScaleMode::kChannel) {
        for (int at = first; at < last;) {
          const int block = at / format.block_tokens, stop = smaller(last, (block + 1) * format.block_tokens);
          fold_channel_scales<S>(format, tile, block, q, buffers);
          function(format, tile, at, stop, q, out, ahead);
          at = stop;
        }
      } else {
        function(format, tile, first, last, q, out, ahead);
      }
      if (ahead) prefetch_parameters(format, tile + ahead);
    }
  }

  void value_pages(const Segment& segment, int rows, std::int64_t low, std::int64_t high, float* const* weights,
                   float* const* sums, float* const* constants) {
    const std::int64_t begin = larger(low, segment.begin), end = smaller(high, segment.end);
    if (begin >= end) return;
    const TileFormat& format = *segment.format;
    const int page = format.page_tokens;
    const auto function = detail::stages_of<S>(format.code, rows).value;
    for (std::int64_t p = (begin - segment.start) / page; segment.start + p * page < end; ++p) {
      const std::int64_t base = segment.start + p * page;
      const int first = static_cast<int>(larger<std::int64_t>(begin - base, 0));
      const int last = static_cast<int>(smaller<std::int64_t>(end - base, page));
      const std::uint8_t* tile = tile_of(segment, p);
      const std::ptrdiff_t ahead = ahead_of(segment, p);
      float* own[kMaxRows];
      for (int r = 0; r < rows; ++r) own[r] = weights[r] + (base - low);
      function(format, tile, first, last, own, sums, constants, work_.values, ahead);
      if (ahead) prefetch_parameters(format, tile + ahead);
    }
  }

  static void prefetch_parameters(const TileFormat& format, const std::uint8_t* tile) {
    for (std::size_t at = format.scales_offset; format.scales_offset && at < format.tile_nbytes; at += 64)
      prefetch(tile + at);
  }

  // Scores become weights exp(score - largest); returns what earlier sums are multiplied with.
  float soften(int q, std::int64_t low, std::int64_t high, float* scores, Partial& partial) {
    using Floats = typename S::Floats;
    const int count = static_cast<int>(high - low);
    if (call_.softcap > 0)
      for (int i = 0; i < count; ++i) scores[i] = call_.softcap * tanhf(scores[i] / call_.softcap);
    call_.mask_scores(row_, kv_head_ * call_.ratio + q / call_.queries, q % call_.queries, low, high, scores);
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
  int row_, kv_head_;
  Workspace& work_;
  int queries_;
};

}  // namespace KVASSAY_ISA
}  // namespace kvassay

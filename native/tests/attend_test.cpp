// Attention of every tile format against a scalar reading of the same bytes, for each instruction set that is here.
//
// The reference knows the layout (docs/design/tile-layout.md) and nothing of the kernels, and computes in double. It needs
// no Python, so it runs under an emulator too: `make arm`.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "../src/dispatch.h"

namespace {

using namespace kvassay;

constexpr int kPage = 64;

struct Case {
  Code code;
  const char* name;
  ScaleMode scales;
  ScaleType type;
  int group;  // 0: the whole head
  bool minimum;
  float offset;
  bool keys_only;
};

const Case kCases[] = {
    {Code::kInt8, "int8, one scale a token", ScaleMode::kToken, ScaleType::kFloat32, 0, false, 0, false},
    {Code::kUint8, "uint8 in groups, minimum", ScaleMode::kToken, ScaleType::kFloat16, 16, true, 0, false},
    {Code::kUint4, "4 bit in groups, minimum", ScaleMode::kToken, ScaleType::kFloat16, 32, true, 0, false},
    {Code::kUint4, "4 bit, symmetric, bfloat16 scales", ScaleMode::kToken, ScaleType::kBFloat16, 32, false, 8, false},
    {Code::kUint2, "2 bit in groups, minimum", ScaleMode::kToken, ScaleType::kFloat16, 16, true, 0, false},
    {Code::kUint4, "4 bit by channel, minimum", ScaleMode::kChannel, ScaleType::kFloat16, 0, true, 0, true},
    {Code::kInt8, "int8, static scale of a head", ScaleMode::kNone, ScaleType::kFloat32, 0, false, 0, false},
    {Code::kFloat8E4M3, "float8, one scale a token", ScaleMode::kToken, ScaleType::kFloat16, 0, false, 0, false},
    {Code::kTable4, "table of 16 in groups", ScaleMode::kToken, ScaleType::kFloat16, 32, false, 0, false},
    {Code::kTable2, "table of 4 in groups", ScaleMode::kToken, ScaleType::kFloat32, 16, false, 0, false},
    {Code::kFloat16, "float16", ScaleMode::kNone, ScaleType::kFloat16, 0, false, 0, false},
    {Code::kBFloat16, "bfloat16", ScaleMode::kNone, ScaleType::kFloat16, 0, false, 0, false},
    {Code::kFloat32, "float32", ScaleMode::kNone, ScaleType::kFloat16, 0, false, 0, false},
};

std::mt19937 random_bits(7);

double normal() {
  static std::normal_distribution<double> drawn;
  return drawn(random_bits);
}

double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

double bfloat_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

double e4m3_value(int bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const double magnitude = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
  return bits & 128 ? -magnitude : magnitude;
}

// 16 bits near 1: half precision, or the same number as bfloat16.
void put_scale(std::uint8_t* to, ScaleType type, int index, double value) {
  const float as_float = static_cast<float>(value);
  if (type == ScaleType::kFloat32) {
    std::memcpy(to + 4 * index, &as_float, 4);
    return;
  }
  std::uint32_t bits;
  std::memcpy(&bits, &as_float, 4);
  std::uint16_t half;
  if (type == ScaleType::kBFloat16) {
    half = static_cast<std::uint16_t>(bits >> 16);
  } else {
    const int exponent = static_cast<int>(bits >> 23 & 255) - 112;  // in range for what is drawn here
    half = static_cast<std::uint16_t>((bits >> 16 & 0x8000) | (exponent > 0 ? exponent << 10 | (bits >> 13 & 1023) : 0));
  }
  std::memcpy(to + 2 * index, &half, 2);
}

double get_scale(const std::uint8_t* from, ScaleType type, int index) {
  if (type == ScaleType::kFloat32) {
    float value;
    std::memcpy(&value, from + 4 * index, 4);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, from + 2 * index, 2);
  return type == ScaleType::kBFloat16 ? bfloat_value(half) : half_value(half);
}

// Pages of one side with random bytes that stand for numbers of ordinary size.
struct Side {
  TileFormat format;
  bool keys;
  int heads;
  float table[16];
  std::vector<std::vector<std::uint8_t>> memory;
  std::vector<std::int64_t> addresses;
  std::vector<float> head_scale;
  Segment segment;

  Side(const Case& given, bool is_keys, int rows, int num_heads, int tokens, int start, int dim)
      : keys(is_keys), heads(num_heads) {
    format.code = given.code;
    format.dim = dim;
    format.scale_mode = given.scales;
    format.scale_type = given.type;
    format.group = given.group ? given.group : dim;
    format.has_minimum = given.minimum;
    format.offset = given.offset;
    format.page_tokens = kPage;
    format.block_tokens = given.scales == ScaleMode::kChannel ? 32 : 1;
    const int entries = given.scales == ScaleMode::kChannel ? kPage / 32 * dim : kPage * format.groups();
    const std::size_t codes = static_cast<std::size_t>(dim * format.bits() / 8 * kPage);
    const std::size_t parameters = static_cast<std::size_t>(entries * 4 + 63) / 64 * 64;
    const bool scaled = given.scales != ScaleMode::kNone;
    format.scales_offset = scaled ? codes : 0;
    format.minimums_offset = given.minimum ? codes + parameters : 0;
    format.tile_nbytes = codes + (scaled ? parameters : 0) + (given.minimum ? parameters : 0);
    const int distinct = given.code == Code::kTable2 ? 4 : 16;
    for (int i = 0; i < 16; ++i) table[i] = static_cast<float>(i < distinct ? normal() : table[i % distinct]);
    format.table = table;
    const int pages = (start + tokens + kPage - 1) / kPage;
    for (int p = 0; p < rows * pages; ++p) {
      memory.emplace_back(format.tile_nbytes * static_cast<std::size_t>(heads));
      for (int head = 0; head < heads; ++head) fill_tile(memory.back().data() + static_cast<std::size_t>(head) * format.tile_nbytes, entries);
    }
    for (auto& page : memory) addresses.push_back(reinterpret_cast<std::int64_t>(page.data()));
    for (int head = 0; head < heads; ++head) head_scale.push_back(static_cast<float>(0.02 * (1 + head)));
    segment.format = &format;
    segment.pages = addresses.data();
    segment.row_stride = pages;
    segment.start = -start;
    segment.begin = 0;
    segment.end = tokens;
    segment.head_scale = format.scale_mode == ScaleMode::kNone && !format.is_float() ? head_scale.data() : nullptr;
  }

  void fill_tile(std::uint8_t* tile, int entries) {
    const std::size_t codes = static_cast<std::size_t>(format.dim * format.bits() / 8 * kPage);
    for (std::size_t i = 0; i < codes; ++i) tile[i] = static_cast<std::uint8_t>(random_bits());
    // No infinity and no NaN: exponents of what is a float stay in the middle.
    for (std::size_t i = 0; i < codes; ++i) {
      if (format.code == Code::kFloat8E4M3 && (tile[i] & 127) == 127) tile[i] &= 0xFE;
      if (format.code == Code::kFloat16 && i % 2) tile[i] = static_cast<std::uint8_t>((tile[i] & 0x83) | (tile[i] & 4) | 0x38);
      const std::size_t top = format.code == Code::kFloat32 ? 3 : 1;
      if ((format.code == Code::kFloat32 || format.code == Code::kBFloat16) && i % (top + 1) == top)
        tile[i] = static_cast<std::uint8_t>((tile[i] & 0x80) | 0x3F);
      if ((format.code == Code::kFloat32 || format.code == Code::kBFloat16) && i % (top + 1) == top - 1) tile[i] |= 0x80 & tile[i];
    }
    const double step = is_table(format.code) ? 1 : 4 / (format.code == Code::kFloat8E4M3 ? 448 : std::ldexp(1, format.bits()));
    for (int i = 0; format.scales_offset && i < entries; ++i)
      put_scale(tile + format.scales_offset, format.scale_type, i, step * (1 + 0.5 * std::sin(i)));
    for (int i = 0; format.minimums_offset && i < entries; ++i)
      put_scale(tile + format.minimums_offset, format.scale_type, i, -2 + 0.3 * std::cos(i));
  }

  // The number that the bytes stand for; `token` counts columns.
  double at(int row, int head, int token, int channel) const {
    const int place = token - static_cast<int>(segment.start), t = place % kPage, bits = format.bits();
    const std::uint8_t* tile = reinterpret_cast<const std::uint8_t*>(addresses[static_cast<std::size_t>(row * segment.row_stride + place / kPage)]) +
                               static_cast<std::size_t>(head) * format.tile_nbytes;
    const int byte = channel * bits / 8;  // of the token's row
    const auto address = [&](int b) {
      if (keys) return (t / 16 * (format.dim * bits / 32) + b / 4) * 64 + t % 16 * 4 + b % 4;
      if (bits >= 16) return t * format.dim * bits / 8 + b;
      return (t / 4 * (format.dim * bits / 8) + b) * 4 + t % 4;
    };
    std::uint8_t raw[4] = {};
    for (int i = 0; i < (bits >= 16 ? bits / 8 : 1); ++i) raw[i] = tile[address(byte + i)];
    std::uint16_t half;
    std::memcpy(&half, raw, 2);
    if (format.code == Code::kFloat32) {
      float value;
      std::memcpy(&value, raw, 4);
      return value;
    }
    if (format.code == Code::kFloat16) return half_value(half);
    if (format.code == Code::kBFloat16) return bfloat_value(half);
    const int code = raw[0] >> channel * bits % 8 & ((1 << bits) - 1);
    double value = code;
    if (format.code == Code::kInt8) value = static_cast<std::int8_t>(code);
    if (format.code == Code::kFloat8E4M3) value = e4m3_value(code);
    if (is_table(format.code)) value = table[code];
    value -= format.offset;
    if (segment.head_scale) return value * segment.head_scale[head];
    if (format.scale_mode == ScaleMode::kNone) return value;
    const int index = format.scale_mode == ScaleMode::kChannel ? t / format.block_tokens * format.dim + channel
                                                               : channel / format.group * kPage + t;
    value *= get_scale(tile + format.scales_offset, format.scale_type, index);
    if (format.has_minimum) value += get_scale(tile + format.minimums_offset, format.scale_type, index);
    return value;
  }
};

struct Shape {
  int rows, kv_heads, ratio, queries, key_dim, value_dim, tokens, start;
};

double relative_error(const Shape& shape, const Case& key_case, const Case& value_case, const std::string& set) {
  Side keys(key_case, true, shape.rows, shape.kv_heads, shape.tokens, shape.start, shape.key_dim);
  Side values(value_case, false, shape.rows, shape.kv_heads, shape.tokens, shape.start, shape.value_dim);
  const int heads = shape.kv_heads * shape.ratio, outputs = shape.rows * heads * shape.queries;
  std::vector<float> query(static_cast<std::size_t>(outputs * shape.key_dim));
  for (float& each : query) each = static_cast<float>(normal());
  // Poison shows what is not written.
  std::vector<float> out(static_cast<std::size_t>(outputs * shape.value_dim), NAN);
  AttentionCall call;
  call.query = query.data();
  call.out = out.data();
  call.rows = shape.rows;
  call.kv_heads = shape.kv_heads;
  call.ratio = shape.ratio;
  call.queries = shape.queries;
  call.head_dim = shape.key_dim;
  call.value_dim = shape.value_dim;
  call.scaling = 1 / std::sqrt(static_cast<float>(shape.key_dim));
  call.keys[0] = keys.segment;
  call.values[0] = values.segment;
  call.num_keys = call.num_values = 1;
  call.columns = shape.tokens;
  call.own_column = shape.tokens - shape.queries;
  attend(call, 2, set);
  double difference = 0, size = 0;
  for (int i = 0; i < outputs; ++i) {
    const int q = i % shape.queries, head = i / shape.queries % heads, row = i / shape.queries / heads;
    const int kv = head / shape.ratio, seen = shape.tokens - shape.queries + q + 1;
    std::vector<double> weights;
    double largest = -INFINITY, total = 0;
    for (int t = 0; t < seen; ++t) {
      double score = 0;
      for (int c = 0; c < shape.key_dim; ++c) score += query[static_cast<std::size_t>(i * shape.key_dim + c)] * keys.at(row, kv, t, c);
      weights.push_back(score * call.scaling);
      largest = std::fmax(largest, weights.back());
    }
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (int c = 0; c < shape.value_dim; ++c) {
      double sum = 0;
      for (int t = 0; t < seen; ++t) sum += weights[static_cast<std::size_t>(t)] * values.at(row, kv, t, c);
      const double found = out[static_cast<std::size_t>(i * shape.value_dim + c)] - sum / total;
      difference += found * found;
      size += sum / total * sum / total;
    }
  }
  return std::sqrt(difference / size);
}

}  // namespace

int main() {
  const Shape shapes[] = {
      {1, 3, 3, 1, 64, 64, 200, 0},     // SmolLM2, a last page that is not full
      {2, 1, 4, 3, 80, 80, 77, 5},      // an odd head size, three queries, a first page that was cut
      {1, 1, 16, 1, 576, 512, 130, 0},  // a latent key and value of unequal size
  };
  int failures = 0, checks = 0;
  for (const std::string& set : instruction_sets()) {
    double worst = 0;
    for (const Shape& shape : shapes)
      for (const Case& key_case : kCases)
        for (const Case& value_case : kCases) {
          // Every format of keys with itself as values, and with one other.
          const bool same = &key_case == &value_case, other = &value_case - kCases == (&key_case - kCases + 3) % 13;
          if ((!same && !other) || value_case.keys_only) continue;
          const auto fits = [](const Case& one, int dim) { return dim % (one.group ? one.group : dim) == 0 && dim / (one.group ? one.group : dim) <= 32; };
          if (!fits(key_case, shape.key_dim) || !fits(value_case, shape.value_dim)) continue;
          const double error = relative_error(shape, key_case, value_case, set);
          const double allowed = is_integer(key_case.code) || is_integer(value_case.code) ? 4e-4 : 3e-6;
          ++checks;
          worst = std::fmax(worst, error / allowed);
          if (error <= allowed) continue;  // also false for NaN
          ++failures;
          std::printf("%s: keys %s, values %s, K %d V %d: relative error %.2g, allowed %.2g\n", set.c_str(), key_case.name,
                      value_case.name, shape.key_dim, shape.value_dim, error, allowed);
        }
    std::printf("%s: worst error is %.2f of what is allowed\n", set.c_str(), worst);
  }
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures || !checks ? 1 : 0;
}

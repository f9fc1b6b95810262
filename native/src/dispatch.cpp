#include "dispatch.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "parallel.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kvassay {
namespace {

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
#endif
#if defined(__aarch64__)
bool has_dot() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
  return true;  // every processor of theirs that runs this
#else
  return false;
#endif
}
#endif
bool always() { return true; }

const InstructionSet kSets[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, avx512::attend},
    {"avx2", has_avx2, avx2::attend},
#endif
#if defined(__aarch64__)
    {"neon_dot", has_dot, neon_dot::attend},
    {"neon", always, neon::attend},
#endif
    {"generic", always, generic::attend},
};

const InstructionSet& set_of(const std::string& name) {
  for (const InstructionSet& set : kSets)
    if (set.is_present() && (name.empty() || name == set.name)) return set;
  throw std::invalid_argument("instruction set '" + name + "' is not compiled in, or this processor does not have it");
}

// Ranges begin at fixed columns: a row's result depends neither on the other rows nor on the number of threads.
constexpr std::int64_t kRangeTokens = 4096;

static_assert(sizeof(Workspace) + kTaskNbytes < 1 << 20, "a thread works in less than 1 MiB");

Workspace& workspace_of_thread(std::size_t task_nbytes) {
  thread_local std::unique_ptr<Workspace> work;
  thread_local std::vector<std::uint8_t> memory;
  if (!work) work.reset(new Workspace);
  if (memory.size() < task_nbytes + 64) memory.resize(task_nbytes + 64);
  work->memory = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  return *work;
}

// How a call is cut into tasks: results depend on the ranges of columns alone, so the rest is free.
struct Cut {
  int heads;    // KV heads of a task
  int queries;  // of each
};

Cut cut_of(const AttentionCall& call, int num_ranges, int threads) {
  const int queries = call.ratio * call.queries;
  Cut cut{1, queries};
  while (cut.queries > kMaxRows && task_nbytes(call, 1, cut.queries) > kTaskNbytes) cut.queries -= kMaxRows;
  if (cut.queries < queries) return cut;
  // More heads in a task read memory in longer stretches; enough tasks keep every thread busy.
  const auto tasks = [&](int heads) { return static_cast<std::int64_t>(call.rows) * num_ranges * ((call.kv_heads + heads - 1) / heads); };
  const int enough = threads > 1 ? 8 * threads : 1;
  const int most = std::min(call.kv_heads, std::max(1, static_cast<int>(kTaskNbytes / task_nbytes(call, 1, queries))));
  while (cut.heads < most && tasks(cut.heads + 1) >= enough) ++cut.heads;
  return cut;
}

void merge(const AttentionCall& call, const Partial* ranges, int num_ranges, int queries, int q, float* out,
           float* coded_out) {
  float largest = -INFINITY;
  for (int i = 0; i < num_ranges; ++i) largest = std::fmax(largest, ranges[i * queries + q].largest);
  float total = 0;
  for (int d = 0; d < call.value_dim; ++d) out[d] = 0;
  for (int d = 0; coded_out && d < call.value_dim; ++d) coded_out[d] = 0;
  for (int i = 0; i < num_ranges; ++i) {
    const Partial& part = ranges[i * queries + q];
    if (part.largest == -INFINITY) continue;
    const float factor = std::exp(part.largest - largest);
    total += factor * part.total;
    for (int d = 0; d < call.value_dim; ++d) out[d] += factor * part.sums[d];
    for (int d = 0; coded_out && d < call.value_dim; ++d) coded_out[d] += factor * part.coded_sums[d];
  }
  // A query that may look at nothing, as padding does, gets zeros.
  const float inverse = total > 0 ? 1.f / total : 0.f;
  for (int d = 0; d < call.value_dim; ++d) out[d] *= inverse;
  for (int d = 0; coded_out && d < call.value_dim; ++d) coded_out[d] *= inverse;
}

}  // namespace

std::string chosen_set(const std::string& asked) { return set_of(asked).name; }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : kSets)
    if (set.is_present()) names.push_back(set.name);
  return names;
}

void attend(const AttentionCall& call, int threads, const std::string& instruction_set) {
  const AttendRange attend_range = set_of(instruction_set).attend;
  const int queries = call.ratio * call.queries;
  const std::int64_t first_range = call.first_column / kRangeTokens;
  const int num_ranges = static_cast<int>((call.columns + kRangeTokens - 1) / kRangeTokens - first_range);
  const int heads = call.rows * call.kv_heads;
  std::vector<Partial> partials(static_cast<std::size_t>(heads) * num_ranges * queries);
  const std::size_t apart = call.coded_out ? 2 : 1, dim = static_cast<std::size_t>(call.value_dim);
  std::vector<float> sums(partials.size() * dim * apart);
  for (std::size_t i = 0; i < partials.size(); ++i) {
    partials[i].sums = sums.data() + i * apart * dim;
    partials[i].coded_sums = partials[i].sums + (apart - 1) * dim;
  }
  const Cut cut = cut_of(call, num_ranges, threads);
  const int head_groups = (call.kv_heads + cut.heads - 1) / cut.heads, query_groups = (queries + cut.queries - 1) / cut.queries;
  const std::size_t nbytes = task_nbytes(call, cut.heads, cut.queries);
  parallel_items(call.rows * num_ranges * head_groups * query_groups, threads, [&](int item) {
    RangeTask task;
    const int query_group = item % query_groups, head_group = item / query_groups % head_groups;
    const int range = item / query_groups / head_groups % num_ranges;
    task.row = item / query_groups / head_groups / num_ranges;
    task.first_head = head_group * cut.heads;
    task.heads = std::min(cut.heads, call.kv_heads - task.first_head);
    task.first_query = query_group * cut.queries;
    task.queries = std::min(cut.queries, queries - task.first_query);
    const std::int64_t bound = (first_range + range) * kRangeTokens;
    task.begin = std::max(bound, call.first_column);
    task.end = std::min(bound + kRangeTokens, call.columns);
    task.head_partials = static_cast<std::int64_t>(num_ranges) * queries;
    const std::size_t first = static_cast<std::size_t>(task.row * call.kv_heads + task.first_head);
    task.partials = partials.data() + (first * num_ranges + range) * static_cast<std::size_t>(queries);
    attend_range(call, task, workspace_of_thread(nbytes));
  });
  parallel_items(heads, threads, [&](int head) {
    const Partial* ranges = partials.data() + static_cast<std::size_t>(head) * num_ranges * queries;
    for (int q = 0; q < queries; ++q) {
      const std::size_t place = (static_cast<std::size_t>(head) * queries + q) * dim;
      merge(call, ranges, num_ranges, queries, q, call.out + place, call.coded_out ? call.coded_out + place : nullptr);
    }
  });
}

}  // namespace kvassay

// The instruction sets that attention is compiled for, one translation unit each.
#pragma once
#include "call.h"
#include "workspace.h"

namespace kvassay {

// Attention of the queries of one KV head of one row over columns begin to end - 1; one Partial a query.
using AttendRange = void (*)(const AttentionCall& call, int row, int kv_head, std::int64_t begin, std::int64_t end,
                             Partial* partials, Workspace& work);

struct InstructionSet {
  const char* name;
  bool (*is_present)();
  AttendRange attend;
};

namespace avx512 {
void attend(const AttentionCall&, int, int, std::int64_t, std::int64_t, Partial*, Workspace&);
}
namespace avx2 {
void attend(const AttentionCall&, int, int, std::int64_t, std::int64_t, Partial*, Workspace&);
}
namespace neon {
void attend(const AttentionCall&, int, int, std::int64_t, std::int64_t, Partial*, Workspace&);
}
namespace generic {
void attend(const AttentionCall&, int, int, std::int64_t, std::int64_t, Partial*, Workspace&);
}

}  // namespace kvassay

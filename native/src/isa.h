// The instruction sets that attention is compiled for, one translation unit each.
#pragma once
#include "call.h"
#include "workspace.h"

namespace kvassay {

// Attention of a task's queries over its columns; one Partial a query.
using AttendRange = void (*)(const AttentionCall& call, const RangeTask& task, Workspace& work);

struct InstructionSet {
  const char* name;
  bool (*is_present)();
  AttendRange attend;
};

namespace avx512 {
void attend(const AttentionCall&, const RangeTask&, Workspace&);
}
namespace avx2 {
void attend(const AttentionCall&, const RangeTask&, Workspace&);
}
namespace neon {
void attend(const AttentionCall&, const RangeTask&, Workspace&);
}
namespace neon_dot {
void attend(const AttentionCall&, const RangeTask&, Workspace&);
}
namespace generic {
void attend(const AttentionCall&, const RangeTask&, Workspace&);
}

}  // namespace kvassay

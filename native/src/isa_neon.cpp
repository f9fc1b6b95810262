#define KVASSAY_ISA neon
#include "attend.h"
#include "isa.h"
#include "simd_neon.h"

namespace kvassay {
namespace neon {

void attend(const AttentionCall& call, const RangeTask& task, Workspace& work) {
  RangeAttention<Simd>(call, task, work).run();
}

}  // namespace neon
}  // namespace kvassay

#define KVASSAY_ISA neon_dot
#include "attend.h"
#include "isa.h"
#include "simd_neon.h"

namespace kvassay {
namespace neon_dot {

void attend(const AttentionCall& call, const RangeTask& task, Workspace& work) {
  RangeAttention<Simd>(call, task, work).run();
}

}  // namespace neon_dot
}  // namespace kvassay

#define KVASSAY_ISA generic
#include "attend.h"
#include "isa.h"
#include "simd_generic.h"

namespace kvassay {
namespace generic {

void attend(const AttentionCall& call, const RangeTask& task, Workspace& work) {
  RangeAttention<Simd>(call, task, work).run();
}

}  // namespace generic
}  // namespace kvassay

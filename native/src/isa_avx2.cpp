#define KVASSAY_ISA avx2
#include "attend.h"
#include "isa.h"
#include "simd_avx2.h"

namespace kvassay {
namespace avx2 {

void attend(const AttentionCall& call, const RangeTask& task, Workspace& work) {
  RangeAttention<Simd>(call, task, work).run();
}

}  // namespace avx2
}  // namespace kvassay

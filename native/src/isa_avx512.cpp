#define KVASSAY_ISA avx512
#include "attend.h"
#include "isa.h"
#include "simd_avx512.h"

namespace kvassay {
namespace avx512 {

void attend(const AttentionCall& call, const RangeTask& task, Workspace& work) {
  RangeAttention<Simd>(call, task, work).run();
}

}  // namespace avx512
}  // namespace kvassay

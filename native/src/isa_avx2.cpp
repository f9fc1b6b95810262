#define KVASSAY_ISA avx2
#include "attend.h"
#include "isa.h"
#include "simd_avx2.h"

namespace kvassay {
namespace avx2 {

void attend(const AttentionCall& call, int row, int kv_head, std::int64_t begin, std::int64_t end, Partial* partials,
            Workspace& work) {
  HeadAttention<Simd>(call, row, kv_head, work).run(begin, end, partials);
}

}  // namespace avx2
}  // namespace kvassay

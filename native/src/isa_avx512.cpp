#define KVASSAY_ISA avx512
#include "attend.h"
#include "isa.h"
#include "simd_avx512.h"

namespace kvassay {
namespace avx512 {

void attend(const AttentionCall& call, int row, int kv_head, std::int64_t begin, std::int64_t end, Partial* partials,
            Workspace& work) {
  HeadAttention<Simd>(call, row, kv_head, work).run(begin, end, partials);
}

}  // namespace avx512
}  // namespace kvassay

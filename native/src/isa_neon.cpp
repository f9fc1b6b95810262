#define KVASSAY_ISA neon
#include "attend.h"
#include "isa.h"
#include "simd_neon.h"

namespace kvassay {
namespace neon {

void attend(const AttentionCall& call, int row, int kv_head, std::int64_t begin, std::int64_t end, Partial* partials,
            Workspace& work) {
  HeadAttention<Simd>(call, row, kv_head, work).run(begin, end, partials);
}

}  // namespace neon
}  // namespace kvassay

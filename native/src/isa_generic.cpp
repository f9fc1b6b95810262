#define KVASSAY_ISA generic
#include "attend.h"
#include "isa.h"
#include "simd_generic.h"

namespace kvassay {
namespace generic {

void attend(const AttentionCall& call, int row, int kv_head, std::int64_t begin, std::int64_t end, Partial* partials,
            Workspace& work) {
  HeadAttention<Simd>(call, row, kv_head, work).run(begin, end, partials);
}

}  // namespace generic
}  // namespace kvassay

#include "encode.h"

namespace kvassay {

#define KVASSAY_ENCODE_IN(isa)                                                                                     \
  namespace isa {                                                                                                  \
  bool encode_integers(const IntegerGrid&, const float*, std::size_t, int, std::uint8_t*, void*, void*);           \
  bool round_floats(float*, int, FloatType, void*);                                                                \
  void widen_floats(const void*, FloatType, int, float*);                                                          \
  }
KVASSAY_ENCODE_IN(generic)
#if defined(__x86_64__)
KVASSAY_ENCODE_IN(avx2)
#endif

namespace {

#if defined(__x86_64__)
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#define KVASSAY_CHOSEN(name) (kHasAvx2 ? avx2::name : generic::name)
#else
#define KVASSAY_CHOSEN(name) (generic::name)
#endif

}  // namespace

bool encode_integers(const IntegerGrid& grid, const float* values, std::size_t rows, int dim, std::uint8_t* codes,
                     void* scales, void* minimums) {
  return KVASSAY_CHOSEN(encode_integers)(grid, values, rows, dim, codes, scales, minimums);
}

bool round_floats(float* values, int count, FloatType type, void* to) {
  return KVASSAY_CHOSEN(round_floats)(values, count, type, to);
}

void widen_floats(const void* from, FloatType type, int count, float* to) {
  KVASSAY_CHOSEN(widen_floats)(from, type, count, to);
}

}  // namespace kvassay

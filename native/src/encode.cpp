#include "encode.h"

#include "dispatch.h"

namespace kvassay {

#define KVASSAY_ENCODE_IN(isa)                                                                                 \
  namespace isa {                                                                                              \
  bool encode_rows(const CodeGrid*, const Vectors&, int, FloatType, const EncodedRows&);                       \
  }
KVASSAY_ENCODE_IN(generic)
#if defined(__x86_64__)
KVASSAY_ENCODE_IN(avx2)
KVASSAY_ENCODE_IN(avx512)
#endif

EncodeRows encode_rows_of(const std::string& instruction_set) {
  const std::string name = chosen_set(instruction_set);
#if defined(__x86_64__)
  if (name == "avx512") return avx512::encode_rows;
  if (name == "avx2") return avx2::encode_rows;
#endif
  return generic::encode_rows;  // NEON too: compilers make vectors of its loops
}

}  // namespace kvassay

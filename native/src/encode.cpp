#include "encode.h"

#include <vector>

#include "dispatch.h"

namespace kvassay {

#define KVASSAY_ENCODE_IN(isa)                                                                                 \
  namespace isa {                                                                                              \
  bool encode_rows(const CodeGrid*, const Vectors&, int, FloatType, const EncodedRows&, const EncodeScratch&); \
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

bool encode_rows(EncodeRows form, const CodeGrid* grid, const Vectors& vectors, int dim, FloatType kept, const EncodedRows& to) {
  // Kept from call to call, so that no memory is asked for while decoding. Here, since templates of the standard library
  // must not be part of what is compiled for one instruction set.
  static thread_local std::vector<float> values;
  static thread_local std::vector<std::uint8_t> kept_row;
  const std::size_t width = static_cast<std::size_t>(dim), numbers = width * static_cast<std::size_t>(encode_batch_rows(grid, dim));
  if (values.size() < numbers) values.resize(numbers);
  if (kept_row.size() < width * sizeof(float)) kept_row.resize(width * sizeof(float));
  return form(grid, vectors, dim, kept, to, {values.data(), kept_row.data()});
}

}  // namespace kvassay

// What the files of the Python module share.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>

namespace kvassay {

// Addresses of pages, [row][page].
using PageArray = nanobind::ndarray<const std::int64_t, nanobind::ndim<2>, nanobind::device::cpu, nanobind::c_contig>;

inline void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

// Pages, codes and appends (bind_append.cpp).
void bind_append(nanobind::module_& module);

}  // namespace kvassay

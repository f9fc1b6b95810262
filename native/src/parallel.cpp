#include "parallel.h"

#include <atomic>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>

#include <cstring>
#endif

namespace kvassay {
namespace {

// The entry that GCC's OpenMP runtime has for a parallel region, and that LLVM's and Intel's have too.
using ParallelRegion = void (*)(void (*)(void*), void*, unsigned, unsigned);

#if defined(__linux__)
int find_openmp(dl_phdr_info* library, std::size_t, void* found) {
  const char* name = std::strrchr(library->dlpi_name, '/');
  name = name ? name + 1 : library->dlpi_name;
  if (std::strncmp(name, "libgomp", 7) && std::strncmp(name, "libomp", 6) && std::strncmp(name, "libiomp", 7)) return 0;
  void* handle = dlopen(library->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return 0;
  void* region = dlsym(handle, "GOMP_parallel");
  dlclose(handle);  // it stays loaded by whoever loaded it
  if (!region) return 0;
  *static_cast<void**>(found) = region;
  return 1;
}
#endif

// Threads of torch's runtime spin for a while after each of its operations. Threads of our own would have to share the
// cores with them; so a region of the same runtime is opened, where one is loaded.
ParallelRegion loaded_runtime() {
#if defined(__linux__)
  static void* const region = [] {
    void* found = nullptr;
    dl_iterate_phdr(find_openmp, &found);
    return found;
  }();
  return reinterpret_cast<ParallelRegion>(region);
#else
  return nullptr;
#endif
}

struct Work {
  const std::function<void(int)>* item;
  std::atomic<int> next{0};
  int items;
};

void take_items(void* data) {
  Work& work = *static_cast<Work*>(data);
  for (int i = work.next.fetch_add(1); i < work.items; i = work.next.fetch_add(1)) (*work.item)(i);
}

}  // namespace

void parallel_items(int items, int threads, const std::function<void(int)>& item) {
  Work work{&item, {}, items};
  if (threads > items) threads = items;
  if (threads <= 1) {
    take_items(&work);
  } else if (const ParallelRegion region = loaded_runtime()) {
    region(take_items, &work, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(take_items, &work);
    take_items(&work);
    for (std::thread& each : others) each.join();
  }
}

const char* thread_source() { return loaded_runtime() ? "openmp" : "own"; }

}  // namespace kvassay

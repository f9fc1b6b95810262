// Work items on several threads.
#pragma once
#include <functional>

namespace kvassay {

// Calls item(i) for i in [0, items), each once, on up to `threads` threads, the caller's among them.
void parallel_items(int items, int threads, const std::function<void(int)>& item);

// Whose threads: "openmp" (those of the OpenMP runtime that is already loaded, which torch uses), or "own".
const char* thread_source();

}  // namespace kvassay

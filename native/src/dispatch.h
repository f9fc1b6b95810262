// From a call to its result: which instruction set, which parts on which thread, and how parts are put together.
#pragma once
#include <string>
#include <vector>

#include "isa.h"

namespace kvassay {

// Names of instruction sets that were compiled and that this processor has, the best first.
std::vector<std::string> instruction_sets();

// A name of instruction_sets(): the one that is asked for, or the first where none is.
// Throws std::invalid_argument for another.
std::string chosen_set(const std::string& asked);

// Fills call.out. Throws std::invalid_argument for a name that is not among instruction_sets().
void attend(const AttentionCall& call, int threads, const std::string& instruction_set);

}  // namespace kvassay

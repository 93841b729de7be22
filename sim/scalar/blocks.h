// The 2^32 inputs as 256 blocks of 2^24, shared out over threads. Private to the room.
#pragma once

#include <functional>

namespace qattn::scalar {

/// Calls work(block) once for each of 0 ... 255 on `threads` threads (0: all of the machine's), then progress(number
/// done so far), never twice at the same time. An exception of either ends the run and is passed on.
void for_each_block(int threads, const std::function<void(int)>& work, const std::function<void(int)>& progress);

}  // namespace qattn::scalar

// Work that may crash or never end, tried in a process of its own first.
#pragma once

#include <functional>

namespace qattn::io {

enum class TrialEnd { finished, crashed, hung };

/// Runs `work` in a copy of this process, whose memory and output are thrown away, and says how it ended: `hung` when
/// it took more than `cpu_seconds` of processor time. An exception that leaves `work` is no crash. Where the system has
/// no process to give, nothing is tried and the answer is `finished`. Locks that other threads hold stay locked in the
/// copy, so `work` must take none of them; malloc is safe.
TrialEnd try_apart(const std::function<void()>& work, unsigned cpu_seconds);

}  // namespace qattn::io

// What a file holds before anything is run: calls, ranges, channel statistics, block statistics; cases of vector files.
#pragma once

#include <string>
#include <string_view>

#include "lab/dump_set.h"
#include "lab/report.h"
#include "quant/groups.h"

namespace qattn::lab {

/// One row for each call and tensor (q, k, v): shape, dtype, range, NaN and Inf, channel bias and outliers, and what
/// smoothing would buy: the mean ratio of amax after and before it, for the groups of SageAttention2 (Q and K per
/// block of 128x64 tiles, V per channel). Figures over heads: mean or worst, with the head where it is.
Report inspect_dump(const DumpSet& dumps, int threads);

/// One row for each call, batch, head and tensor: how the scales of a micro-scaled format ("nvfp4", "mxfp8_e4m3", ...)
/// spread over its blocks, and what is lost in them.
Report inspect_blocks(const DumpSet& dumps, std::string_view format, int threads);

/// One row for each case of a file of recorded vectors.
Report inspect_vectors(const std::string& file);

/// One row for each scale group of a `tokens` x `channels` operand and its members.
Report inspect_groups(const quant::GroupSpec& spec, std::int64_t tokens, std::int64_t channels);

}  // namespace qattn::lab

// How far a kernel's output may be from float64 attention: in units of what its recipe itself loses.
#pragma once

#include <string>

#include "format/format.h"
#include "metric/accuracy.h"
#include "tensor/matrix.h"

namespace qattn::lab {

/// Largest errors that pass.
struct RelativeLimit {
  double rel_l1 = 0;
  double max_abs = 0;
};

/// `factor` times the errors of the recipe's own output, but never less than what one rounding to `o_format` costs:
/// half a unit in the last place on the average, one at the largest magnitude of the reference.
RelativeLimit relative_limit(const metric::Accuracy& recipe, double factor, const format::Format& o_format,
                             double largest_reference);

/// Finite, and both errors within the limit. A reference of zeros has no relative error; max_abs decides alone then.
bool within(const metric::Accuracy& output, const RelativeLimit& limit);

/// The factor that --factor has unless it is given.
inline constexpr double kUsualFactor = 2;

/// What a limit is worth: the first of the plainly wrong outputs (all zeros; channels in reverse) that it would let
/// pass, in words; empty when it lets none. A wrong output that equals the reference is no wrong output; nor is a
/// permuted one that differs by less than a quarter and that `usual`, the limit of the usual factor, lets pass too:
/// then the output hardly varies, and it is not the limit that is at fault.
std::string guard(const MatrixD& reference, const RelativeLimit& limit, const RelativeLimit& usual,
                  const format::Format& o_format);

/// The same for an output whose rows are in reverse. Heads whose rows are all alike cannot tell, so it takes a whole
/// call without any head that can to condemn a limit.
bool rows_in_reverse_pass(const MatrixD& reference, const RelativeLimit& limit, const RelativeLimit& usual,
                          const format::Format& o_format);

/// As guard(), for the limit that each element may be `allowed` units in the last place of `o_format` from `target`:
/// zeros, an output twice as large, channels in reverse.
std::string ulp_guard(const MatrixD& target, std::uint64_t allowed, const format::Format& o_format);
bool rows_in_reverse_pass(const MatrixD& target, std::uint64_t allowed, const format::Format& o_format);

}  // namespace qattn::lab

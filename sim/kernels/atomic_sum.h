// Sums that thread blocks form by f32 atomic additions, in whatever order they finish.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace qattn::kernels {

/// Up to this many terms every order is tried.
inline constexpr std::size_t kMostTermsOfAllOrders = 6;
/// And of more terms this many orders: ascending, descending, and seeded random ones.
inline constexpr std::size_t kSampledOrders = 300;

using AdditionOrder = std::vector<std::size_t>;

/// The orders that are tried for `terms` terms, the same ones at every call; of at most two terms one, since no order
/// can matter there. Safe to call from several threads.
std::span<const AdditionOrder> addition_orders(std::size_t terms);

/// "all 24 orders of 4", "ascending, descending and 298 seeded orders of 8".
std::string describe_orders(std::size_t terms);

/// The terms added to 0 one after the other, `stride` elements apart. The additions of global memory round to nearest
/// even and flush subnormal operands and results to zero of their sign (PTX ISA, red and atom). Needs a FpEnvironment.
float atomic_sum(const float* terms, std::size_t stride, const AdditionOrder& order);

}  // namespace qattn::kernels

#include "kernels/atomic_sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "base/random.h"
#include "kernels/numbers.h"

namespace qattn::kernels {
namespace {

constexpr std::uint64_t kSeed = 2;

/// Fisher and Yates' shuffle. The remainder's bias, at most terms / 2^64, is no matter here.
AdditionOrder shuffled(AdditionOrder order, std::uint64_t stream) {
  for (std::size_t i = order.size(); i > 1; --i) {
    const std::uint64_t other = random_bits(kSeed, stream, i) % i;
    std::swap(order[i - 1], order[static_cast<std::size_t>(other)]);
  }
  return order;
}

std::vector<AdditionOrder> make_orders(std::size_t terms) {
  AdditionOrder order(terms);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<AdditionOrder> orders{order};
  if (terms <= 2) return orders;
  if (terms <= kMostTermsOfAllOrders) {
    while (std::next_permutation(order.begin(), order.end())) orders.push_back(order);
    return orders;
  }
  orders.emplace_back(order.rbegin(), order.rend());
  while (orders.size() < kSampledOrders) orders.push_back(shuffled(order, orders.size()));
  return orders;
}

}  // namespace

std::span<const AdditionOrder> addition_orders(std::size_t terms) {
  static std::mutex mutex;
  static std::map<std::size_t, std::vector<AdditionOrder>> made;
  const std::lock_guard lock(mutex);
  const auto found = made.find(terms);
  return found != made.end() ? found->second : made.emplace(terms, make_orders(terms)).first->second;
}

std::string describe_orders(std::size_t terms) {
  if (terms <= kMostTermsOfAllOrders) return fmt::format("all {} orders of {}", addition_orders(terms).size(), terms);
  return fmt::format("ascending, descending and {} seeded orders of {}", kSampledOrders - 2, terms);
}

float atomic_sum(const float* terms, std::size_t stride, const AdditionOrder& order) {
  float sum = 0;
  for (const std::size_t term : order) sum = flush_subnormal(sum + flush_subnormal(terms[term * stride]));
  return sum;
}

}  // namespace qattn::kernels

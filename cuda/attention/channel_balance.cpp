#include "attention/channel_balance.h"

#include "attention/basis.h"

namespace qattn::gpu {
namespace {

quant::GroupMap channels_of(std::int64_t rows, std::int64_t channels) {
  return {{.granularity = quant::Granularity::per_channel}, rows, channels};
}

}  // namespace

ChannelBalance::ChannelBalance(std::int64_t q_rows, std::int64_t k_rows, std::int64_t channels)
    : q_channels_(channels_of(q_rows, channels)),
      k_channels_(channels_of(k_rows, channels)),
      q_amax_(allocate<std::uint32_t>(channels)),
      k_amax_(allocate<std::uint32_t>(channels)),
      factors_(allocate<float>(channels)) {}

void ChannelBalance::apply(const DeviceMatrix& q, const DeviceMatrix& k) {
  auto* const q_amax = q_amax_.data<std::uint32_t>();
  auto* const k_amax = k_amax_.data<std::uint32_t>();
  auto* const factors = factors_.data<float>();
  check_cuda(find_largest(q, q_channels_.view(), q_amax), "largest magnitudes of Q's channels");
  check_cuda(find_largest(k, k_channels_.view(), k_amax), "largest magnitudes of K's channels");
  check_cuda(find_balance(q_amax, k_amax, q.columns, factors), "balance factors");
  check_cuda(divide_channels(q, factors), "balancing Q");
  check_cuda(multiply_channels(k, factors), "balancing K");
}

std::vector<float> ChannelBalance::factors() const { return download<float>(factors_, q_channels_.map().columns()); }

}  // namespace qattn::gpu

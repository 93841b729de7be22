// The table of distributions and how their elements are drawn.
#include "lab/synth_distribution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "lab/synth_random.h"

namespace qattn::lab {
namespace {

/// What random numbers are drawn for. The numbers are part of the bits.
enum class Purpose : std::uint64_t { values = 0, outlier_choice = 1, outlier_values = 2, channels = 3, signs = 4 };

/// The stream of one purpose in one head: the tensor's place in "q k v do" and all else mixed in one after the other.
std::uint64_t stream_of(const SynthHead& head, Purpose purpose) {
  constexpr std::string_view kTensors[] = {"q", "k", "v", "do"};
  const auto tensor = std::find(std::begin(kTensors), std::end(kTensors), head.tensor) - std::begin(kTensors);
  std::uint64_t stream = static_cast<std::uint64_t>(purpose);
  for (const std::int64_t part : {head.call, std::int64_t{tensor}, head.batch, head.head}) {
    stream = mix64(stream) ^ static_cast<std::uint64_t>(part);
  }
  return stream;
}

/// element(index) for every element, index = token * head_dim + channel.
template <class Element>
MatrixD matrix_of(const SynthHead& head, const Element& element) {
  MatrixD x(head.tokens, head.head_dim);
  for (std::int64_t i = 0; i < x.size(); ++i) x.data()[i] = element(static_cast<std::uint64_t>(i));
  return x;
}

MatrixD normal(const SynthHead& head, double sigma) {
  const std::uint64_t stream = stream_of(head, Purpose::values);
  return matrix_of(head, [&](std::uint64_t i) { return sigma * random_normal(head.seed, stream, i); });
}

MatrixD draw_normal(const SynthHead& head, const SynthValues& values) { return normal(head, values.at("sigma")); }

/// Only scores feel sigma; V and the gradient stay at 1.
MatrixD draw_sagebwd(const SynthHead& head, const SynthValues& values) {
  const bool is_score = head.tensor == "q" || head.tensor == "k";
  return normal(head, is_score ? values.at("sigma") : 1.0);
}

MatrixD draw_outliers(const SynthHead& head, const SynthValues& values) {
  const double rate = values.at("outlier-rate"), sigma = values.at("outlier-sigma");
  const std::uint64_t base = stream_of(head, Purpose::values), choice = stream_of(head, Purpose::outlier_choice);
  const std::uint64_t more = stream_of(head, Purpose::outlier_values);
  return matrix_of(head, [&](std::uint64_t i) {
    const double x = random_normal(head.seed, base, i);
    return random_unit(head.seed, choice, i) < rate ? x + sigma * random_normal(head.seed, more, i) : x;
  });
}

/// The bias of each channel in units of sigma. A model's weights make it, so that all batches and tokens of a head
/// share it: the `count` channels of the smallest random bits, each with a random sign.
std::vector<double> channel_biases(SynthHead head, double bias, std::int64_t count) {
  head.batch = 0;
  const std::uint64_t choice = stream_of(head, Purpose::channels), signs = stream_of(head, Purpose::signs);
  std::vector<std::uint64_t> channels(static_cast<std::size_t>(head.head_dim));
  std::iota(channels.begin(), channels.end(), std::uint64_t{0});
  std::sort(channels.begin(), channels.end(), [&](std::uint64_t a, std::uint64_t b) {
    return std::pair(random_bits(head.seed, choice, a), a) < std::pair(random_bits(head.seed, choice, b), b);
  });
  std::vector<double> biases(channels.size(), 0.0);
  for (std::size_t i = 0; i < std::min(channels.size(), static_cast<std::size_t>(count)); ++i) {
    biases[channels[i]] = random_bits(head.seed, signs, channels[i]) >> 63 != 0 ? -bias : bias;
  }
  return biases;
}

MatrixD draw_channel_bias(const SynthHead& head, const SynthValues& values) {
  const std::uint64_t stream = stream_of(head, Purpose::values);
  const std::vector<double> biases = channel_biases(head, values.at(std::string(head.tensor) + "-bias"),
                                                    static_cast<std::int64_t>(values.at("biased-channels")));
  const double sigma = values.at("sigma");
  return matrix_of(
      head, [&](std::uint64_t i) { return sigma * (random_normal(head.seed, stream, i) + biases[i % biases.size()]); });
}

/// Weak and strong layers in one dump. A model's layers differ, and a paper's average over them cannot be had of like
/// ones: an error that is independent of the output gives cosine 1 / sqrt(1 + e^2) at relative error e, so that the
/// relative L1 of 0.39 without smoothing would come with a cosine of 0.93 where the paper has 0.80. Its worst layer has
/// lost all (cosine 0.05, relative L1 1.00): a few such layers among mild ones give both averages.
MatrixD draw_layers(const SynthHead& head, const SynthValues& values) {
  const auto every = static_cast<std::int64_t>(values.at("strong-every"));
  if (every == 0 || head.call % every != every - 1) return draw_channel_bias(head, values);
  SynthValues strong = values;
  strong["sigma"] = values.at("strong-sigma");
  strong["k-bias"] = values.at("strong-k-bias");
  return draw_channel_bias(head, strong);
}

constexpr SynthParameter kSigma = {"sigma", 1.0, 0.0, 1e30, "standard deviation"};

}  // namespace

std::span<const Distribution> distributions() {
  static const std::vector<Distribution> kAll = {
      {"normal",
       "every element N(0, sigma^2)",
       "SageAttention (2410.02367), Table 9",
       {kSigma},
       {"q", "k", "v"},
       draw_normal},
      {"channel-bias",
       "N(0, sigma^2), and in each head a few random channels shifted by a bias, as K and Q of real models have it",
       "SageAttention (2410.02367), section 4.2; SageAttention2 (2411.10958), A.3 for V",
       {kSigma,
        {"q-bias", 4.0, 0.0, 1e6, "bias of Q's biased channels, in units of sigma"},
        {"k-bias", 8.0, 0.0, 1e6, "bias of K's biased channels, in units of sigma"},
        {"v-bias", 0.0, 0.0, 1e6, "bias of V's biased channels, in units of sigma"},
        {"biased-channels", 4.0, 0.0, 65536.0, "number of biased channels in each head; a whole number", true}},
       {"q", "k", "v"},
       draw_channel_bias},
      {"cogvideox-like",
       "a stand-in for CogVideoX, whose tensors are not public: channel-bias in which the last of every strong-every "
       "calls has sizes of its own. Averaged over five calls (--calls 5) SageAttention2-4b loses about as much without "
       "smoothing and with K or Q smoothed as the paper's Table 4 says",
       "sized after SageAttention2 (2411.10958 v7), Tables 4 and 17; nothing of it is measured on the model",
       {{"sigma", 0.36, 0.0, 1e30, "standard deviation"},
        {"q-bias", 10.0, 0.0, 1e6, "bias of Q's biased channels, in units of sigma"},
        {"k-bias", 8.0, 0.0, 1e6, "bias of K's biased channels, in units of sigma"},
        {"v-bias", 0.02, 0.0, 1e6, "bias of V's biased channels, in units of sigma"},
        {"biased-channels", 10.0, 0.0, 65536.0, "number of biased channels in each head; a whole number", true},
        {"strong-every", 5.0, 0.0, 1e9, "one call of so many is strong; 0: none; a whole number", false, true},
        {"strong-sigma", 0.9, 0.0, 1e30, "standard deviation in strong calls"},
        {"strong-k-bias", 100.0, 0.0, 1e6, "bias of K's biased channels in strong calls, in units of strong-sigma"}},
       {"q", "k", "v"},
       draw_layers},
      {"fa3-outlier",
       "N(0, 1) + N(0, outlier-sigma^2) * Bernoulli(outlier-rate): FlashAttention-3's test",
       "FlashAttention-3 (2407.08608), section 4.3",
       {{"outlier-rate", 0.001, 0.0, 1.0, "probability that an element is an outlier"},
        {"outlier-sigma", 10.0, 0.0, 1e30, "standard deviation of what an outlier adds"}},
       {"q", "k", "v"},
       draw_outliers},
      {"sagebwd",
       "Q and K N(0, sigma^2), V and the upstream gradient do N(0, 1)",
       "SageBwd follow-up (2603.02170), Table 1",
       {kSigma},
       {"q", "k", "v", "do"},
       draw_sagebwd},
  };
  return kAll;
}

const Distribution& find_distribution(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Distribution& d : distributions()) {
    if (d.name == name) return d;
    names.push_back(d.name);
  }
  throw Error(ErrorKind::usage, fmt::format("unknown distribution '{}'; known are {}", name, fmt::join(names, ", ")));
}

SynthValues resolve_values(const Distribution& distribution, const SynthValues& given, std::int64_t head_dim) {
  SynthValues values;
  std::vector<std::string_view> names;
  for (const SynthParameter& p : distribution.parameters) {
    const auto found = given.find(p.name);
    const double highest = p.counts_channels ? static_cast<double>(head_dim) : p.highest;
    const double value = found == given.end() ? std::min(p.standard, highest) : found->second;
    if (!(value >= p.lowest && value <= highest)) {
      throw Error(ErrorKind::usage, fmt::format("--{} {}: is to lie in {} to {}", p.name, value, p.lowest, highest));
    }
    if ((p.counts_channels || p.is_whole) && value != std::floor(value)) {
      throw Error(ErrorKind::usage, fmt::format("--{} {}: is to be a whole number", p.name, value));
    }
    values.emplace(p.name, value);
    names.push_back(p.name);
  }
  for (const auto& [name, value] : given) {
    if (values.contains(name)) continue;
    throw Error(ErrorKind::usage, fmt::format("--{}: distribution {} has no such parameter; it has {}", name,
                                              distribution.name, fmt::join(names, ", ")));
  }
  return values;
}

}  // namespace qattn::lab

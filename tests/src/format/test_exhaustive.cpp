// All 2^32 floats, in every format of 4 to 8 bits, under every deterministic rounding. Deterministic roundings are
// monotone, so the exact oracle is asked only for the first float of each code; every float is then encoded and
// compared with the code of the stretch that it lies in.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "format/encode.h"
#include "format/fast_encode.h"
#include "mismatches.h"
#include "oracle.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::format;

namespace {

constexpr std::uint32_t kInf = 0x7F800000;

/// The floats with bit patterns first..last have this code.
struct Stretch {
  std::uint32_t first, last;
  std::uint64_t code;
};

std::uint64_t oracle_code(const Format& format, std::uint32_t bits, const Policy& policy) {
  return oracle::encode(format, static_cast<double>(std::bit_cast<float>(bits)), policy);
}

/// All 2^32 bit patterns in stretches of one code each.
std::vector<Stretch> stretches(const Format& format, const Policy& policy) {
  std::vector<Stretch> result;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    std::uint32_t first = sign;
    while (first < sign + kInf) {
      const std::uint64_t code = oracle_code(format, first, policy);
      std::uint32_t last = first, beyond = sign + kInf;
      while (beyond - last > 1) {
        const std::uint32_t middle = last + (beyond - last) / 2;
        (oracle_code(format, middle, policy) == code ? last : beyond) = middle;
      }
      result.push_back({first, last, code});
      first = last + 1;
    }
    result.push_back({sign + kInf, sign + kInf, oracle_code(format, sign + kInf, policy)});
    result.push_back({sign + kInf + 1, sign + 0x7FFFFFFF, oracle_code(format, sign + kInf + 1, policy)});
  }
  return result;
}

enum class Form { span, plain };

/// Compares the floats of a stretch, converted by encode_span or one by one by encode.
void check_stretch(const Format& format, const Policy& policy, const Stretch& stretch, Form form,
                   Mismatches& mismatches) {
  constexpr std::uint32_t kChunk = 2048;
  std::array<float, kChunk> x;
  std::array<std::uint32_t, kChunk> codes;
  for (std::uint64_t start = stretch.first; start <= stretch.last; start += kChunk) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, stretch.last - start + 1));
    for (std::size_t i = 0; i < count; ++i) x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(start + i));
    if (form == Form::span) {
      encode_span(format, std::span(x).first(count), policy, std::span(codes).first(count));
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        codes[i] = static_cast<std::uint32_t>(format::encode(format, x[i], policy));
      }
    }
    std::uint64_t different = 0;
    for (std::size_t i = 0; i < count; ++i) different |= codes[i] ^ stretch.code;
    if (different == 0) continue;
    for (std::size_t i = 0; i < count; ++i) mismatches.compare(format, x[i], policy, codes[i], stretch.code);
  }
}

struct Job {
  const Format* format;
  Policy policy;
};

/// Every format of at most 8 bits and every deterministic rounding: both overflow policies with subnormals kept, and
/// flushed with one of them. encode() is compared once a rounding, where Inf or NaN show the overflows; a format
/// without a fast encoder has it in encode_span.
std::vector<Job> jobs(Form form) {
  std::vector<Job> result;
  for (const Format* format : formats()) {
    if (format->bits > 8) continue;
    for (const Policy& policy : oracle::deterministic_policies()) {
      const bool shows_overflow = policy.overflow == Overflow::inf_or_nan;
      const bool flushes = policy.subnormals == Subnormals::flush;
      if (flushes && !(shows_overflow && has_subnormals(*format))) continue;
      const bool fast = has_fast_encoder(*format, policy.rounding);
      if (form == Form::plain && !(fast && shows_overflow && !flushes)) continue;
      result.push_back({format, policy});
    }
  }
  return result;
}

/// Does the jobs on a thread a core; prints a line for each, so that a log shows how far the run is and what it
/// compared.
std::int64_t run(const std::vector<Job>& all, Form form, std::string& text) {
  std::atomic<std::size_t> next = 0;
  std::int64_t wrong = 0;
  std::size_t done = 0;
  std::mutex mutex;
  const auto began = std::chrono::steady_clock::now();
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      Mismatches mismatches;
      const std::vector<Stretch> parts = stretches(*all[i].format, all[i].policy);
      for (const Stretch& part : parts) check_stretch(*all[i].format, all[i].policy, part, form, mismatches);
      const std::lock_guard lock(mutex);
      wrong += mismatches.count();
      text += mismatches.text();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
      std::printf(
          "[%3zu/%zu] %7.1f s  %s %-8s rounding %d overflow %d subnormals %d: 2^32 floats in %zu stretches, %lld "
          "wrong\n",
          ++done, all.size(), elapsed.count(), form == Form::span ? "encode_span" : "encode",
          std::string(all[i].format->name).c_str(), static_cast<int>(all[i].policy.rounding),
          static_cast<int>(all[i].policy.overflow), static_cast<int>(all[i].policy.subnormals), parts.size(),
          static_cast<long long>(mismatches.count()));
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> threads(std::max(1u, std::thread::hardware_concurrency()));
  for (std::thread& thread : threads) thread = std::thread(work);
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

}  // namespace

TEST_CASE("the stretches of one code cover all floats without a gap, and their ends have that code") {
  for (const Job& job : jobs(Form::span)) {
    CAPTURE(job.format->name, static_cast<int>(job.policy.rounding));
    Mismatches mismatches;
    std::uint64_t expected = 0;
    for (const Stretch& part : stretches(*job.format, job.policy)) {
      REQUIRE(part.first == expected);
      REQUIRE(part.last >= part.first);
      expected = std::uint64_t{part.last} + 1;
      for (const Form form : {Form::span, Form::plain}) {
        check_stretch(*job.format, job.policy, {part.first, part.first, part.code}, form, mismatches);
        check_stretch(*job.format, job.policy, {part.last, part.last, part.code}, form, mismatches);
      }
    }
    CHECK(expected == std::uint64_t{1} << 32);
    INFO(mismatches.text());
    CHECK(mismatches.count() == 0);
  }
}

TEST_CASE("all floats, every format of 4 to 8 bits, every deterministic rounding, by spans", "[.][exhaustive]") {
  std::string text;
  const std::int64_t wrong = run(jobs(Form::span), Form::span, text);
  INFO(text);
  CHECK(wrong == 0);
}

TEST_CASE("all floats, every format of 4 to 8 bits, every deterministic rounding, one by one", "[.][exhaustive]") {
  std::string text;
  const std::int64_t wrong = run(jobs(Form::plain), Form::plain, text);
  INFO(text);
  CHECK(wrong == 0);
}

TEST_CASE("a seeded sample of floats, every format of 4 to 8 bits, stochastic rounding", "[.][exhaustive]") {
  constexpr std::uint64_t kSample = 1 << 20;
  for (const Format* format : formats()) {
    if (format->bits > 8) continue;
    Mismatches mismatches;
    for (std::uint64_t i = 0; i < kSample; ++i) {
      const std::uint64_t bits = random_bits(31, static_cast<std::uint64_t>(format->exponent_bits), i);
      const auto random = static_cast<std::uint32_t>(bits >> 32);
      // Half of the sample within a few binades of the format's own range, where fractions are kept.
      const auto exponent = static_cast<std::uint32_t>(127 - 12 + mix64(bits) % 24);
      const auto any = static_cast<std::uint32_t>(bits);
      const float x = std::bit_cast<float>(i % 2 == 0 ? any : (any & 0x807FFFFF) | exponent << 23);
      for (const Overflow overflow : {Overflow::saturate, Overflow::inf_or_nan}) {
        const Policy policy{.rounding = Rounding::stochastic, .overflow = overflow};
        mismatches.compare(*format, x, policy, format::encode(*format, x, policy, random),
                           oracle::encode(*format, static_cast<double>(x), policy, random));
      }
    }
    std::printf("%-8s stochastic: %lld compared, %lld wrong\n", std::string(format->name).c_str(),
                static_cast<long long>(mismatches.compared()), static_cast<long long>(mismatches.count()));
    std::fflush(stdout);
    INFO(mismatches.text());
    CHECK(mismatches.count() == 0);
  }
}

// `qattn-gpu record --scalar` and `check --scalar`: functions of one argument.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "commands.h"
#include "device.h"
#include "io/vectors.h"
#include "kernels.h"
#include "report.h"
#include "scalar/digest.h"
#include "scalar/function.h"
#include "scalar/ptx.h"

namespace qattn::gpu {
namespace {

constexpr std::size_t kSample = 16384;             ///< recorded inputs of a 32-bit function
constexpr std::size_t kInputsPerRound = 1u << 22;  ///< compared at a time

struct ScalarFunction {
  const ScalarKernel* kernel;
  scalar::Build build;
  const scalar::Function* model;  ///< nullptr where sim/scalar has none

  std::string name() const {
    return build == scalar::Build::fast_math ? std::string(kernel->name) + ".fast_math" : kernel->name;
  }
  std::uint64_t inputs() const { return std::uint64_t{1} << kernel->input_bits; }
};

std::string build_text(scalar::Build build) {
  const std::string options = build == scalar::Build::fast_math ? " --use_fast_math" : "";
  return fmt::format("nvcc {}.{} -O3 -arch=sm_{}{}", QATTN_NVCC_MAJOR, QATTN_NVCC_MINOR,
                     device().capability == 90 ? "90a" : "80", options);
}

std::vector<ScalarFunction> functions_of(const Device& device, const std::regex& only) {
  std::vector<ScalarFunction> functions;
  const auto add = [&](const ScalarKernels& kernels, scalar::Build build) {
    for (const ScalarKernel* kernel = kernels.begin; kernel != kernels.begin + kernels.count; ++kernel) {
      const ScalarFunction function{kernel, build, scalar::find_or_null(kernel->name, build)};
      if (device.capability < kernel->least_capability || !std::regex_search(function.name(), only)) continue;
      functions.push_back(function);
    }
  };
  add(scalar_ptx_kernels(), scalar::Build::any);
  add(scalar_library_kernels(), scalar::Build::plain);
  add(scalar_library_fast_math_kernels(), scalar::Build::fast_math);
  return functions;
}

std::vector<ScalarFunction> recorded_functions(const Options& options) {
  std::vector<ScalarFunction> functions = functions_of(device(), options.only);
  if (functions.empty()) throw Error(ErrorKind::usage, "no scalar function's name matches --only");
  return functions;
}

std::span<const std::byte> bytes_of(const std::vector<std::uint32_t>& codes) { return std::as_bytes(std::span(codes)); }

/// f(x) on the device.
std::vector<std::uint32_t> evaluate(const ScalarFunction& function, const std::vector<std::uint32_t>& x) {
  const DeviceBuffer in(bytes_of(x)), out(x.size() * sizeof(std::uint32_t));
  check_cuda(function.kernel->run({in.data<std::uint32_t>(), 0, x.size(), out.data<std::uint32_t>(), nullptr}),
             "starting " + function.name());
  synchronize("running " + function.name());
  std::vector<std::uint32_t> y(x.size());
  out.read(std::as_writable_bytes(std::span(y)));
  return y;
}

/// All inputs of a narrow function; of a 32-bit one a sample, zeros, infinities, NaN and range ends first.
std::vector<std::uint32_t> recorded_inputs(const ScalarFunction& function, std::uint64_t seed) {
  std::vector<std::uint32_t> x;
  if (function.kernel->input_bits < 32) {
    for (std::uint32_t code = 0; code < function.inputs(); ++code) x.push_back(code);
    return x;
  }
  for (const std::uint32_t magnitude : {0u, 1u, 0x007FFFFFu, 0x00800000u, 0x3F7FFFFFu, 0x3F800000u, 0x3F800001u,
                                        0x7F7FFFFFu, 0x7F800000u, 0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu}) {
    x.push_back(magnitude);
    x.push_back(magnitude | 0x80000000u);
  }
  while (x.size() < kSample) x.push_back(static_cast<std::uint32_t>(random_bits(seed, 0, x.size())));
  return x;
}

int result_bits(const ScalarFunction& function) {
  return function.model != nullptr ? function.model->output->bits : 32;
}

io::Codes to_codes(const std::vector<std::uint32_t>& values, int bits) {
  const std::size_t bytes = bits <= 8 ? 1 : bits <= 16 ? 2 : 4;
  io::Codes codes = io::make_codes({static_cast<std::int64_t>(values.size())}, bytes);
  for (std::size_t i = 0; i < values.size(); ++i) codes.set(static_cast<std::int64_t>(i), values[i]);
  return codes;
}

scalar::Digest device_digest(const ScalarFunction& function) {
  DeviceBuffer sums(sizeof(scalar::Digest));
  sums.fill_with_zeros();
  for (std::uint32_t block = 0; block < scalar::kDigestBlocks; ++block) {
    auto* sum = sums.data<unsigned long long>() + block;
    check_cuda(function.kernel->run({nullptr, block << 24, scalar::kDigestBlockInputs, nullptr, sum}),
               "starting " + function.name());
  }
  synchronize("digesting " + function.name());
  scalar::Digest digest;
  sums.read(std::as_writable_bytes(std::span(digest)));
  return digest;
}

std::vector<std::uint32_t> random_codes(std::uint64_t seed, std::uint64_t stream, std::size_t count, int threads) {
  std::vector<std::uint32_t> codes(count);
  constexpr std::size_t run = 1u << 16;
  parallel_for(static_cast<std::int64_t>((count + run - 1) / run), threads, [&](std::int64_t part) {
    const std::size_t begin = static_cast<std::size_t>(part) * run;
    for (std::size_t i = begin; i < std::min(begin + run, count); ++i) {
      codes[i] = static_cast<std::uint32_t>(random_bits(seed, stream, i));
    }
  });
  return codes;
}

struct Count {
  std::int64_t inputs = 0;
  std::int64_t mismatches = 0;
  std::uint32_t x = 0, from_device = 0, from_model = 0;  ///< of the first mismatch
};

void compare(const std::vector<std::uint32_t>& x, const std::vector<std::uint32_t>& from_device,
             const std::vector<std::uint32_t>& from_model, Count& count) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    ++count.inputs;
    if (from_device[i] == from_model[i]) continue;
    if (count.mismatches++ == 0) {
      count.x = x[i];
      count.from_device = from_device[i];
      count.from_model = from_model[i];
    }
  }
}

/// model(x) on the CPU, in parallel runs.
template <class Model>
std::vector<std::uint32_t> model_results(std::size_t count, int threads, const Model& model) {
  std::vector<std::uint32_t> y(count);
  constexpr std::size_t run = 1u << 14;
  parallel_for(static_cast<std::int64_t>((count + run - 1) / run), threads, [&](std::int64_t part) {
    const std::size_t begin = static_cast<std::size_t>(part) * run;
    model(begin, std::min(begin + run, count), y);
  });
  return y;
}

void check_function(const ScalarFunction& function, std::uint64_t round, const Options& options, Count& count) {
  const bool is_narrow = function.kernel->input_bits < 32;
  if (is_narrow && round > 0) return;  // all inputs were compared
  const std::vector<std::uint32_t> x = is_narrow ? recorded_inputs(function, options.seed)
                                                 : random_codes(options.seed, round, kInputsPerRound, options.threads);
  const std::vector<std::uint32_t> expected =
      model_results(x.size(), options.threads, [&](std::size_t begin, std::size_t end, std::vector<std::uint32_t>& y) {
        function.model->span(std::span(x).subspan(begin, end - begin), std::span(y).subspan(begin, end - begin));
      });
  compare(x, evaluate(function, x), expected, count);
}

using Division = int (*)(const std::uint32_t*, const std::uint32_t*, std::uint32_t*, std::uint64_t);
using DivisionModel = std::uint32_t (*)(std::uint32_t, std::uint32_t);

void check_division(Division division, DivisionModel model, std::uint64_t round, const Options& options, Count& count) {
  const std::vector<std::uint32_t> x =
      random_codes(options.seed, 2 * round + 1000001, kInputsPerRound, options.threads);
  const std::vector<std::uint32_t> y =
      random_codes(options.seed, 2 * round + 1000002, kInputsPerRound, options.threads);
  const DeviceBuffer x_in(bytes_of(x)), y_in(bytes_of(y)), out(x.size() * sizeof(std::uint32_t));
  check_cuda(division(x_in.data<std::uint32_t>(), y_in.data<std::uint32_t>(), out.data<std::uint32_t>(), x.size()),
             "starting __fdividef");
  synchronize("running __fdividef");
  std::vector<std::uint32_t> quotient(x.size());
  out.read(std::as_writable_bytes(std::span(quotient)));
  const std::vector<std::uint32_t> expected =
      model_results(x.size(), options.threads, [&](std::size_t begin, std::size_t end, std::vector<std::uint32_t>& q) {
        for (std::size_t i = begin; i < end; ++i) q[i] = model(x[i], y[i]);
      });
  // A mismatch is shown by its divisor; the numerator follows from the seed.
  compare(y, quotient, expected, count);
}

bool add_row(const std::string& name, std::string_view evidence, const Count& count, Report& report) {
  const std::string first = count.mismatches == 0 ? ""
                                                  : fmt::format("x 0x{:08X}: device 0x{:X}, emulator 0x{:X}", count.x,
                                                                count.from_device, count.from_model);
  report.text("{:<40} {:>12} {:>12}\n{}", name, count.inputs, count.mismatches,
              first.empty() ? "" : "  " + first + "\n");
  report.row({{"name", name},
              {"kind", "scalar"},
              {"elements", count.inputs},
              {"mismatches", count.mismatches},
              {"evidence", evidence.empty() ? Json() : Json(evidence)},
              {"first", first.empty() ? Json() : Json(first)}});
  return count.mismatches == 0;
}

/// What was written where.
void report_file(const std::string& path, int functions, std::string_view inputs, bool json) {
  Report report("record", json);
  report.text("{}: {} functions{}\n", path, functions, inputs);
  report.row({{"file", path}, {"functions", functions}});
  report.finish(device().description, {{"functions", functions}});
}

}  // namespace

void record_scalar(const std::string& path, const Options& options) {
  const std::vector<ScalarFunction> functions = recorded_functions(options);
  io::VectorWriter writer(path, io::kScalarSchema);
  int cases = 0;
  for (const ScalarFunction& function : functions) {
    const std::vector<std::uint32_t> x = recorded_inputs(function, options.seed);
    io::ScalarCase vectors;
    vectors.name = function.name();
    vectors.function = function.kernel->name;
    vectors.gpu = device().description;
    vectors.attributes["build"] = build_text(function.build);
    vectors.x = to_codes(x, function.kernel->input_bits);
    vectors.y = to_codes(evaluate(function, x), result_bits(function));
    writer.add(vectors);
    ++cases;
  }
  writer.commit();
  report_file(path, cases, "", options.json);
}

void record_scalar_digests(const std::string& path, const Options& options) {
  const std::vector<ScalarFunction> functions = recorded_functions(options);
  io::VectorWriter writer(path, io::kDigestSchema);
  int cases = 0;
  for (const ScalarFunction& function : functions) {
    if (function.kernel->input_bits != 32) continue;
    const scalar::Digest digest = device_digest(function);
    io::DigestCase result;
    result.name = function.name();
    result.function = function.kernel->name;
    result.gpu = device().description;
    result.build = build_text(function.build);
    result.digest.assign(digest.begin(), digest.end());
    writer.add(result);
    ++cases;
  }
  writer.commit();
  report_file(path, cases, ", all 2^32 inputs each", options.json);
}

bool check_scalar(const Options& options) {
  const std::vector<ScalarFunction> functions = functions_of(device(), options.only);
  std::vector<Count> counts(functions.size());
  Count plain_division, fast_division;
  const bool divides = std::regex_search("__fdividef", options.only);
  if (functions.empty() && !divides) throw Error(ErrorKind::usage, "no scalar function's name matches --only");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  std::uint64_t round = 0;
  do {
    for (std::size_t i = 0; i < functions.size(); ++i) {
      if (functions[i].model != nullptr) check_function(functions[i], round, options, counts[i]);
    }
    if (divides) {
      check_division(divide, scalar::cuda::fdividef, round, options, plain_division);
      check_division(divide_fast_math, scalar::cuda_fast::fdividef, round, options, fast_division);
    }
    ++round;
  } while (std::chrono::steady_clock::now() < end);

  Report report("check", options.json);
  report.text("{:<40} {:>12} {:>12}\n", "function", "inputs", "mismatches");
  bool same = true;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    if (functions[i].model == nullptr) {
      report.text("{:<40} has no model\n", functions[i].name());
    } else {
      same &= add_row(functions[i].name(), scalar::to_string(functions[i].model->evidence), counts[i], report);
    }
  }
  if (divides) {
    same &= add_row("__fdividef", "", plain_division, report);
    same &= add_row("__fdividef.fast_math", "", fast_division, report);
  }
  report.text("{}: {}\n", device().description, same ? "no mismatch" : "some functions differ");
  report.finish(device().description, {{"passed", same}});
  return same;
}

}  // namespace qattn::gpu

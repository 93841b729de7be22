// The slow program: accuracy of quantized attention on a real dump by the plainest means, for the values that the
// pipeline is tested against. It shares nothing with src/ and sim/.
//
//   slow_attention run FILE CALL BATCH HEAD|all RECIPE [CHOICE=VALUE ...]
//   slow_attention pins                 the pinned values, computed anew, as pinned_values.h holds them
//   slow_attention check [NUMBER ...]   the same, compared with pinned_values.h; exit status 1 when they differ
//   slow_attention figures              one quantity quantized at a time, layer 18 of SmolLM2
//   slow_attention leave-outs           how far each pinned value moves when one ingredient is left out
#include <hdf5.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "dump.h"
#include "options.h"
#include "pinned_values.h"

namespace {

using oracle::Errors;

const std::string kData = QATTN_SOURCE_DIR "/data/real/";

Errors errors_of(const std::string& path, const std::string& call, int batch, int first_head, int last_head,
                 const oracle::Options& options) {
  Errors errors;
  for (int h = first_head; h <= last_head; ++h) {
    const oracle::Head head = oracle::read_head(path, call, batch, h);
    errors.add(oracle::attention(options, head), oracle::attention({}, head));
  }
  return errors;
}

Errors errors_of(const pinned::Value& value, const std::vector<std::string>& changes = {}) {
  std::vector<std::string> choices = oracle::find_recipe(std::string(value.recipe)).choices;
  choices.insert(choices.end(), changes.begin(), changes.end());
  return errors_of(kData + std::string(value.file), std::string(value.call), value.batch, value.head, value.head,
                   oracle::options_of(choices));
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 5) throw std::runtime_error("run needs FILE CALL BATCH HEAD|all RECIPE");
  std::vector<std::string> choices = oracle::find_recipe(arguments[4]).choices;
  choices.insert(choices.end(), arguments.begin() + 5, arguments.end());
  const bool all = arguments[3] == "all";
  const int first = all ? 0 : std::stoi(arguments[3]);
  const int last = all ? oracle::heads_of_call(arguments[0], arguments[1]) - 1 : first;
  const Errors e =
      errors_of(arguments[0], arguments[1], std::stoi(arguments[2]), first, last, oracle::options_of(choices));
  std::printf("cosine %.17g  relative L1 %.9g  RMSE %.9g\n", e.cosine(), e.relative_l1(), e.rmse());
  return 0;
}

int pins() {
  for (const pinned::Value& v : pinned::kValues) {
    const Errors e = errors_of(v);
    std::printf("    {\"%s\", \"%s\", \"%s\", %d, %d, %.16g, %.9g, %.9g},\n", std::string(v.recipe).c_str(),
                std::string(v.file).c_str(), std::string(v.call).c_str(), v.batch, v.head, e.cosine(), e.relative_l1(),
                e.rmse());
    std::fflush(stdout);
  }
  return 0;
}

/// The pins have 9 digits, and libm's exp may differ in its last bit from one machine to the next.
bool agrees(double computed, double expected) { return std::fabs(computed - expected) <= 1e-7 * std::fabs(expected); }

int check(const std::vector<std::string>& arguments) {
  std::vector<std::size_t> numbers;
  for (const std::string& a : arguments) numbers.push_back(std::stoul(a));
  if (numbers.empty())
    for (std::size_t i = 0; i < pinned::kValues.size(); ++i) numbers.push_back(i);
  int failures = 0;
  for (const std::size_t i : numbers) {
    const pinned::Value& v = pinned::kValues.at(i);
    const Errors e = errors_of(v);
    const bool ok = agrees(1 - e.cosine(), 1 - v.cosine) || std::fabs(e.cosine() - v.cosine) < 1e-15;
    const bool good = ok && agrees(e.relative_l1(), v.relative_l1) && agrees(e.rmse(), v.rmse);
    std::printf("%zu %s %s %d %d: cosine %.16g  relative L1 %.9g  RMSE %.9g  %s\n", i, std::string(v.recipe).c_str(),
                std::string(v.call).c_str(), v.batch, v.head, e.cosine(), e.relative_l1(), e.rmse(),
                good ? "as pinned" : "DIFFERS");
    failures += good ? 0 : 1;
  }
  return failures == 0 ? 0 : 1;
}

struct Figure {
  const char* what;
  double percent;  ///< relative L1 of the layer, as the plan of this work states it
  std::vector<std::string> choices;
};

int figures() {
  const std::vector<Figure> all = {
      {"INT8 Q,K per tensor, K smoothed", 3.45, {"qk=int8/tensor", "smooth=k"}},
      {"INT8 Q,K per block, K smoothed", 3.00, {"qk=int8/block", "smooth=k"}},
      {"INT8 Q,K per thread, K smoothed", 2.67, {"qk=int8/thread", "smooth=k"}},
      {"INT8 Q,K per token, K smoothed", 2.31, {"qk=int8/token", "smooth=k"}},
      {"INT4 Q,K per thread", 60.2, {"qk=int4/thread"}},
      {"INT4 Q,K per thread, K smoothed", 43.0, {"qk=int4/thread", "smooth=k"}},
      {"INT4 Q,K per thread, Q and K smoothed", 19.7, {"qk=int4/thread", "smooth=qk"}},
      {"P, V in E4M3", 2.06, {"p=e4m3", "v=e4m3/channel"}},
      {"P, V in E5M2", 4.20, {"p=e5m2", "v=e5m2/channel"}},
      {"P, V in INT8", 5.19, {"p=int8", "v=int8/channel"}},
  };
  int failures = 0;
  for (const Figure& f : all) {
    const Errors e = errors_of(kData + "smollm2_2.h5", "layer_18", 0, 0, 8, oracle::options_of(f.choices));
    const double percent = 100 * e.relative_l1();
    const double last_digit = f.percent < 10 ? 0.01 : 0.1;
    const bool good = std::fabs(percent - f.percent) <= 0.51 * last_digit;
    std::printf("%-40s %8.4f %%  (%g %%)  %s\n", f.what, percent, f.percent, good ? "agrees" : "DIFFERS");
    std::fflush(stdout);
    failures += good ? 0 : 1;
  }
  return failures == 0 ? 0 : 1;
}

struct LeaveOut {
  const char* recipe;
  const char* what;
  std::vector<std::string> changes;
};

int leave_outs() {
  const std::vector<LeaveOut> all = {
      {"exact", "O not rounded to FP32", {"o=exact"}},
      {"exact", "FP32 softmax", {"tiled=yes", "f32=yes"}},
      {"fa2-fp16", "P not rounded", {"p=exact"}},
      {"fa2-fp16", "O not rounded to FP16", {"o=fp32"}},
      {"fa2-fp16", "exact accumulation", {"pv_sum=exact"}},
      {"fp8-tensor", "Q, K per token", {"qk=e4m3/token"}},
      {"fp8-tensor", "V per channel", {"v=e4m3/channel"}},
      {"fp8-tensor", "P's scale 256", {"p_scale=256"}},
      {"fp8-tensor", "P's scale 1", {"p_scale=1"}},
      {"fp8-tensor", "64x128 tiles", {"tiles=64x128"}},
      {"fp8-tensor", "FP22 accumulator", {"pv_sum=ada-fp8"}},
      {"int8-token", "Q, K per block", {"qk=int8/block"}},
      {"int8-token", "K smoothed", {"smooth=k"}},
      {"int8-token", "P not rounded", {"p=exact"}},
      {"int4-token", "Q, K per thread", {"qk=int4/thread"}},
      {"int4-token", "K smoothed", {"smooth=k"}},
      {"int4-token", "P not rounded", {"p=exact"}},
      {"sage1-B", "no smoothing", {"smooth=none"}},
      {"sage1-B", "Q, K per thread", {"qk=int8/thread"}},
      {"sage1-B", "FP32 accumulator", {"pv_sum=ampere-f16"}},
      {"sage1-B", "P not rounded", {"p=exact"}},
      {"sage1-B", "64x128 tiles", {"tiles=64x128"}},
      {"sage2-4b", "no smoothing", {"smooth=none"}},
      {"sage2-4b", "Q not smoothed", {"smooth=k"}},
      {"sage2-4b", "Q, K per block", {"qk=int4/block"}},
      {"sage2-4b", "64x128 tiles", {"tiles=64x128"}},
      {"sage2-4b", "no FP22", {"pv_sum=exact"}},
      {"sage2-4b", "FP22 over 32 products, not 16", {"pv_sum=hopper-wgmma-fp8"}},
      {"sage2-4b", "no promotion", {"promotion=0"}},
      {"sage2-4b", "P's scale 256", {"p_scale=256"}},
      {"sage2-4b", "V per tensor", {"v=e4m3/tensor"}},
      {"sage2-8b", "no smoothing", {"smooth=none"}},
      {"sage2-8b", "Q smoothed too", {"smooth=qk"}},
      {"sage2-8b", "Q, K per block", {"qk=int8/block"}},
      {"sage2-8b", "128x64 tiles", {"tiles=128x64"}},
      {"sage2-8b", "no FP22", {"pv_sum=exact"}},
      {"sage2-8b", "FP22 over 16 products, not 32", {"pv_sum=ada-fp8"}},
      {"sage2-8b", "no promotion", {"promotion=0"}},
      {"sage2-8b", "P's scale 256", {"p_scale=256"}},
      {"sage2-8b", "V per tensor", {"v=e4m3/tensor"}},
  };
  for (const pinned::Value& v : pinned::kValues)
    for (const LeaveOut& l : all) {
      if (l.recipe != v.recipe) continue;
      const Errors e = errors_of(v, l.changes);
      std::printf("%-11s %s %d %d  %-30s 1 - cosine %+9.2e  relative L1 %+9.2e  RMSE %+9.2e\n", l.recipe,
                  std::string(v.call).c_str(), v.batch, v.head, l.what, (1 - e.cosine()) / (1 - v.cosine) - 1,
                  e.relative_l1() / v.relative_l1 - 1, e.rmse() / v.rmse - 1);
      std::fflush(stdout);
    }
  return 0;
}

int dispatch(std::vector<std::string> arguments) {
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (!arguments.empty()) arguments.erase(arguments.begin());
  if (command == "run") return run(arguments);
  if (command == "pins") return pins();
  if (command == "check") return check(arguments);
  if (command == "figures") return figures();
  if (command == "leave-outs") return leave_outs();
  throw std::runtime_error("usage: slow_attention run|pins|check|figures|leave-outs");
}

}  // namespace

int main(int argc, char** argv) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // one line of ours says what failed
  try {
    return dispatch({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "slow_attention: %s\n", e.what());
    return 2;
  }
}

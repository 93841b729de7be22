// Attn-QAT's recipes against what its training kernel returned: close enough that only BF16 steps are left.
#include <array>
#include <string>

#include "attention/gradient.h"
#include "io/vectors.h"
#include "lab/recipe_file.h"
#include "support/catch.h"

using namespace qattn;

namespace {

/// Half a step of BF16 relative to the number. Where a sum's last bit tips a rounding to BF16 or NVFP4, single elements
/// differ by a step or more; 1.1e-3 is the most that was seen over a matrix (dq of the second case without O').
constexpr double kBound = 0x1p-9;

struct Mode {
  const char* kernel;
  const char* recipe;
};
constexpr std::array<Mode, 4> kModes = {Mode{"qat_hp", "attn-qat"},
                                        {"qat_nohp", "attn-qat-delta-o"},
                                        {"qat_nofqP", "attn-qat-unquantized-p"},
                                        {"naive_bwd", "attn-qat-naive-backward"}};

MatrixD head_of(const Tensor& tensor, std::int64_t head) {
  const std::int64_t rows = tensor.shape[2], columns = tensor.shape[3];
  return decode_matrix(tensor, head * rows * columns, rows, columns);
}

attention::Gradients run(const io::RecordedCase& recorded, std::int64_t head, const attention::Recipe& recipe) {
  attention::Problem problem;
  problem.q = head_of(recorded.tensor("q"), head);
  problem.k = head_of(recorded.tensor("k"), head);
  problem.v = head_of(recorded.tensor("v"), head);
  problem.sm_scale = recorded.call.sm_scale;
  const MatrixD upstream = head_of(recorded.tensor("do"), head);
  return attention::recipe_gradients({&problem, 1}, {&upstream, 1}, recipe, format::kBF16);
}

/// The largest relative l2 distance over o, dq, dk and dv.
double distance(const attention::Gradients& ours, const io::RecordedKernel& kernel, std::int64_t head) {
  const std::pair<const char*, const MatrixD*> outputs[] = {
      {"o", &ours.o.front()}, {"dq", &ours.dq.front()}, {"dk", &ours.dk}, {"dv", &ours.dv}};
  double largest = 0.0;
  for (const auto& [name, matrix] : outputs) {
    const MatrixD theirs = head_of(kernel.tensors.find(name)->second, head);
    largest = std::max(largest, (*matrix - theirs).norm() / theirs.norm());
  }
  return largest;
}

const io::RecordedKernel& kernel_of(const io::RecordedCase& recorded, const std::string& name) {
  for (const io::RecordedKernel& kernel : recorded.kernels) {
    if (kernel.name == name) return kernel;
  }
  throw std::out_of_range(name);
}

}  // namespace

TEST_CASE("Attn-QAT's recipes return what the training kernel returned, each its own mode's gradients alone") {
  const io::VectorReader reader(std::string(QATTN_SOURCE_DIR) + "/data/vectors/backward_vectors.h5");
  for (const std::string name : {"q0", "q2"}) {
    const io::RecordedCase recorded = reader.recorded(name);
    for (const Mode& ours : kModes) {
      for (std::int64_t head = 0; head < recorded.call.q_heads; ++head) {
        const attention::Gradients gradients = run(recorded, head, lab::load_recipe(ours.recipe));
        for (const Mode& theirs : kModes) {
          CAPTURE(name, ours.recipe, theirs.kernel, head);
          const double d = distance(gradients, kernel_of(recorded, theirs.kernel), head);
          if (ours.kernel == theirs.kernel) CHECK(d < kBound);
          if (ours.kernel != theirs.kernel) CHECK(d > 2 * kBound);
        }
      }
    }
  }
}

TEST_CASE("What brings Attn-QAT's recipe to its kernel: the BF16 row sum and the reciprocal scaling") {
  const io::VectorReader reader(std::string(QATTN_SOURCE_DIR) + "/data/vectors/backward_vectors.h5");
  const io::RecordedCase recorded = reader.recorded("q0");
  const attention::Recipe recipe = lab::load_recipe("attn-qat");
  const io::RecordedKernel& kernel = kernel_of(recorded, "qat_hp");
  const auto without = [&](const char* key, const char* value) {
    return distance(run(recorded, 0, lab::with_overrides(recipe, {{key, value}})), kernel, 0);
  };
  CHECK(without("row_sum_format", "fp32") > 5 * kBound);
  CHECK(without("scaling", "divide") > 10 * kBound);
  CHECK(without("o_prime_p_format", "exact") < kBound);
}

// Operand preparation on the device: what attention::prepare_operands() does for the recipes of our own kernels, the
// same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/channel_balance.h"
#include "attention/device_operands.h"
#include "attention/operands.h"
#include "attention/prepared_matrix.h"
#include "attention/problem.h"
#include "attention/recipe.h"

namespace qattn::gpu {

/// One head, q [Nq, d], k [Nk, d], v [Nk, dv], in the formats of its dump.
struct HeadInput {
  InputMatrix q;
  InputMatrix k;
  InputMatrix v;
  std::vector<InputMatrix> group_q;  ///< as attention::Problem's
  double sm_scale = 1.0;
};

/// The head's f64 values, which stay where they are.
HeadInput input_of(const attention::Problem& problem);

/// Throws Error(usage) that names the key unless the device can prepare operands of this recipe: Q, K and V in FP16,
/// BF16, E4M3, E5M2, INT8 or INT4, FP32 scales that do not vary along the axis that a product sums over, rules amax,
/// reciprocal and triton_eps; of balances that with alpha = 1/2.
void check_preparable(const attention::Recipe& recipe);

/// Means are sums in f64 in token order, corrections and q . kbar in channel order (quant/smooth.h, operands.cpp): each
/// is one thread's. Largest magnitudes are taken in any order, which decides nothing.
class Preparation {
 public:
  /// Uploads the head and takes the memory that run() needs. Throws Error(usage) as check_preparable().
  Preparation(const HeadInput& input, const attention::Recipe& recipe);

  /// Starts the kernels; may be repeated. Throws Error(input) for a zero scale where the recipe rejects those.
  void run();

  /// The result where it lies, as long as this object lives; without mask and logit scale, which follow from the call.
  DeviceOperands operands() const;

  /// What of the softmax scale scores are still to be multiplied with.
  double score_scale() const { return factors_.scores; }

  /// The result in the form that the emulator takes; waits for the kernels.
  attention::Operands download() const;

  /// Of the head that run() prepared: q . kbar of each query, empty when K is not smoothed.
  std::vector<double> lse_shift() const;

 private:
  void change_basis();
  void correct(DeviceMatrix k);

  attention::Recipe recipe_;
  attention::ScaleFactors factors_;
  bool smooth_q_;
  bool smooth_k_;
  PreparedMatrix q_;
  PreparedMatrix k_;
  PreparedMatrix v_;
  std::optional<ChannelBalance> balance_;
  double rotation_factor_ = 1.0;
  DeviceBuffer correction_;
  DeviceBuffer lse_shift_;
};

}  // namespace qattn::gpu

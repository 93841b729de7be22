// Heads on which operand preparation on the device is compared with the CPU's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/prepare.h"
#include "attention/problem.h"
#include "attention/recipe.h"
#include "lab/dump_set.h"
#include "tensor/tensor.h"

namespace qattn::gpu {

/// One head of a dump as the file has it, with the other query heads of its key/value head.
class HeadTensors {
 public:
  HeadTensors(const lab::DumpSet& dumps, const lab::SelectedCall& call, std::int64_t batch, std::int64_t head);
  /// Tensors [tokens, channels] in their formats; `q` begins with the head in hand.
  HeadTensors(std::vector<Tensor> q, Tensor k, Tensor v, double descale);

  /// Queries and keys of `part`; views of this object's codes.
  HeadInput input(const lab::HeadProblem& part) const;
  /// The values, as DumpSet::read() decodes them.
  attention::Problem problem(double sm_scale) const;

 private:
  std::vector<Tensor> q_;
  Tensor k_, v_;
  double q_descale_ = 1.0, k_descale_ = 1.0, v_descale_ = 1.0;
};

struct OperandCase {
  std::string data;   ///< what rows of the report are grouped by: "smollm2_1.h5", "fp16 normal"
  std::string place;  ///< where in it, for a difference: "layer_06, batch 0, head 3"
  HeadInput input;
  const attention::Problem* problem = nullptr;
};

/// Calls `visit` for every head, and every sequence of a packed one.
void for_each_case(const lab::DumpSet& dumps, const std::function<void(const OperandCase&)>& visit);

/// The same for synthetic heads: lengths from 1 to 4096, head_dim 64 and 128, every input format of dumps, several
/// distributions with outliers; a third of them has a token and a channel of zeros.
void for_each_synthetic_case(std::uint64_t seed, const std::function<void(const OperandCase&)>& visit);

/// `count` recipes that check_preparable() lets through, drawn from every value of the keys that preparation reads.
/// The number of the draw and its keys stand in the name.
std::vector<attention::Recipe> random_recipes(std::uint64_t seed, int count);

}  // namespace qattn::gpu

// Seeded inputs of the measurements.
#pragma once

#include <cstdint>

#include "attention/problem.h"
#include "format/format.h"
#include "tensor/matrix.h"

namespace qattn::bench {

/// Nearly normal numbers (sums of twelve uniform ones) of mean 0 and variance 1.
MatrixF normal_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t stream);

/// The same as codes of a format; integers are scaled so that three standard deviations fill their range.
MatrixCodes normal_codes(const format::Format& format, std::int64_t rows, std::int64_t columns, std::uint64_t stream);

/// One head of `tokens` x `head_dim`, FP16 values, not causal.
attention::Problem normal_problem(std::int64_t tokens, std::int64_t head_dim);

}  // namespace qattn::bench

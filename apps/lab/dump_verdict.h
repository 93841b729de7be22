// What the two modes of `qattn check DUMP` share: rows, failures, diagnosis.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lab/check_dump.h"
#include "lab/checked_head.h"
#include "lab/local_limit.h"
#include "lab/relative_limit.h"

namespace qattn::lab {

/// A row with every key of a dump's rows, those that do not apply null; passed is true.
Json dump_row(const DumpSet& dumps, const Piece& piece, std::string_view name, std::string_view output,
              std::uint64_t elements, std::string_view evidence);

/// rel_l1, max_abs and so on of a row.
void add_errors(Json& row, const metric::Accuracy& output, const metric::Accuracy& recipe, const RelativeLimit& limit);

/// Adds the row; one that failed adds "place: output: detail" to the details, without its place when it is over a whole
/// call, and has it as its reason.
void finish_dump_row(CheckResult& result, const std::string& place, Json row, const std::string& detail);

/// Diagnoses a head whose o failed: sets the row's diagnosis and gives the sentence for people, or where the wrong
/// elements are when nothing known explains them. `factor` is --factor. Rows of zeros are named as such whatever else
/// may fit.
std::string diagnosis_text(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe, double factor,
                           const LocalErrors& local, Json& row);

/// "; every value of o is one of float16, ...: stored in a wider type than the kernel returned ..." where a tensor of
/// float32 or float64 holds nothing but values of a narrower format; else empty.
std::string storage_hint(const Tensor& recorded);

/// Why --ulp fails a right output: what else it would let pass.
std::string ulp_guard_text(const std::string& passing, std::uint64_t allowed);

/// The calls in hand hold o. What cannot be compared goes to the result's errors.
void check_dump_relative(const DumpSet& dumps, const DumpCheckOptions& options, std::span<const Piece> pieces,
                         CheckResult& result);
void check_dump_bits(const DumpSet& dumps, const DumpCheckOptions& options, std::span<const Piece> pieces,
                     CheckResult& result);

}  // namespace qattn::lab

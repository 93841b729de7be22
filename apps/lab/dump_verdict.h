// What the two modes of `qattn check DUMP` share: rows, failures, diagnosis.
#pragma once

#include <string>
#include <string_view>

#include "lab/check_dump.h"
#include "lab/checked_head.h"
#include "lab/relative_limit.h"

namespace qattn::lab {

/// A row with every key of a dump's rows, those that do not apply null; passed is true.
Json dump_row(const DumpSet& dumps, const Piece& piece, std::string_view name, std::string_view output,
              std::uint64_t elements, std::string_view evidence);

/// rel_l1, max_abs and so on of a row.
void add_errors(Json& row, const metric::Accuracy& output, const metric::Accuracy& recipe, const RelativeLimit& limit);

/// Adds the row; one that failed adds "place: output: detail" to the details, without its place when it is over a whole
/// call.
void finish_dump_row(CheckResult& result, const std::string& place, Json row, const std::string& detail);

/// Diagnoses a head whose o failed: sets the row's diagnosis and gives the sentence for people, or where the wrong
/// elements are when nothing known explains them.
std::string diagnosis_text(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe, Json& row);

CheckResult check_dump_relative(const DumpSet& dumps, const DumpCheckOptions& options);
CheckResult check_dump_bits(const DumpSet& dumps, const DumpCheckOptions& options);

}  // namespace qattn::lab

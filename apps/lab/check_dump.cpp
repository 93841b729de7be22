#include "lab/check_dump.h"

#include <fmt/format.h>

#include "base/error.h"
#include "lab/diagnosis.h"
#include "lab/dump_verdict.h"
#include "lab/file_check.h"
#include "lab/nan_origin.h"

namespace qattn::lab {

Json dump_row(const DumpSet& dumps, const Piece& piece, std::string_view name, std::string_view output,
              std::uint64_t elements, std::string_view evidence) {
  const SelectedCall& call = dumps.calls()[piece.call];
  Json row = check_row(call.call->path, "dump", name, output, elements, 0, nullptr, evidence);
  row["batch"] = piece.batch;
  row["head"] = piece.head;
  row["passed"] = true;
  for (const char* key : {"rel_l1", "recipe_rel_l1", "limit_rel_l1", "max_abs", "recipe_max_abs", "limit_max_abs",
                          "nan_count", "inf_count", "convention", "lse_error", "lse_against", "diagnosis", "explain"}) {
    row[key] = nullptr;
  }
  row["file"] = dumps.files()[call.file];
  return row;
}

void add_errors(Json& row, const metric::Accuracy& output, const metric::Accuracy& recipe, const RelativeLimit& limit) {
  row["rel_l1"] = output.rel_l1();
  row["recipe_rel_l1"] = recipe.rel_l1();
  row["limit_rel_l1"] = limit.rel_l1;
  row["max_abs"] = output.max_abs();
  row["recipe_max_abs"] = recipe.max_abs();
  row["limit_max_abs"] = limit.max_abs;
  row["nan_count"] = output.nan_count();
  row["inf_count"] = output.inf_count();
  if (output.max_ulp()) row["max_ulp"] = *output.max_ulp();
}

void finish_dump_row(CheckResult& result, const std::string& place, Json row, const std::string& detail) {
  if (!row["passed"].get<bool>()) {
    result.passed = false;
    const bool whole_call = row["head"].is_null();
    result.details.push_back(fmt::format("{}: {}: {}", whole_call ? row["case"].get<std::string>() : place,
                                         row["output"].get<std::string>(), detail));
  }
  result.rows.push_back(std::move(row));
}

std::string diagnosis_text(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe, Json& row) {
  if (!head.o.allFinite() || !head.emulated.allFinite()) {
    std::string name;
    const std::string why = explain_nonfinite(head, recipe, *dumps.calls()[head.piece.call].call->q_format, name);
    if (!name.empty()) row["diagnosis"] = "NaN or Inf: " + name;
    return why;
  }
  if (const std::optional<Finding> finding = diagnose(dumps, head, recipe)) {
    row["diagnosis"] = finding->name;
    return fmt::format("looks like {}: {}", finding->name, finding->detail);
  }
  return locate(head);
}

CheckResult check_dump(const DumpSet& dumps, const DumpCheckOptions& options) {
  for (const SelectedCall& call : dumps.calls()) {
    if (call.call->has("o")) continue;
    throw Error(
        ErrorKind::input,
        fmt::format("{}: {}: holds no 'o' to check; a kernel's output [B, Hq, Nq, D] is to be beside q, k and v",
                    dumps.files()[call.file], call.call->path));
  }
  return options.recipe ? check_dump_relative(dumps, options) : check_dump_bits(dumps, options);
}

std::vector<Column> dump_check_columns() {
  return {{"case", "call"},
          {"batch", "batch"},
          {"head", "head"},
          {"output", "output"},
          {"passed", "passed"},
          {"rel_l1", "Rel. L1"},
          {"limit_rel_l1", "at most"},
          {"max_abs", "max abs"},
          {"limit_max_abs", "at most"},
          {"mismatches", "mismatches"},
          {"max_ulp", "max ulp"},
          {"convention", "LSE convention"},
          {"lse_error", "LSE error"},
          {"diagnosis", "looks like"}};
}

std::vector<std::string> dump_check_keys() {
  return {"case",         "kind",        "name",           "output",        "elements",  "mismatches", "max_ulp",
          "evidence",     "first",       "batch",          "head",          "passed",    "rel_l1",     "recipe_rel_l1",
          "limit_rel_l1", "max_abs",     "recipe_max_abs", "limit_max_abs", "nan_count", "inf_count",  "convention",
          "lse_error",    "lse_against", "diagnosis",      "explain",       "file"};
}

}  // namespace qattn::lab

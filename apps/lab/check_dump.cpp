#include "lab/check_dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "format/encode.h"
#include "lab/diagnosis.h"
#include "lab/dump_verdict.h"
#include "lab/file_check.h"
#include "lab/nan_origin.h"
#include "lab/suspect.h"

namespace qattn::lab {

Json dump_row(const DumpSet& dumps, const Piece& piece, std::string_view name, std::string_view output,
              std::uint64_t elements, std::string_view evidence) {
  const SelectedCall& call = dumps.calls()[piece.call];
  Json row = check_row(call.call->path, "dump", name, output, elements, 0, nullptr, evidence);
  row["batch"] = piece.batch;
  row["head"] = piece.head;
  row["passed"] = true;
  for (const char* key : {"rel_l1", "recipe_rel_l1", "limit_rel_l1", "max_abs", "recipe_max_abs", "limit_max_abs",
                          "worst_block", "worst_row", "worst_channel", "nan_count", "inf_count", "convention",
                          "lse_error", "lse_against", "diagnosis", "explain"}) {
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
  if (output.max_ulp()) row["max_ulp"] = ulp_json(*output.max_ulp());
}

void finish_dump_row(CheckResult& result, const std::string& place, Json row, const std::string& detail) {
  if (!row["passed"].get<bool>()) {
    result.passed = false;
    const bool whole_call = row["head"].is_null();
    result.details.push_back(fmt::format("{}: {}: {}", whole_call ? row["case"].get<std::string>() : place,
                                         row["output"].get<std::string>(), detail));
    row["reason"] = detail;
  }
  result.rows.push_back(std::move(row));
}

namespace {

/// Rows that are wrong and not only unwritten.
std::vector<std::int64_t> wrong_besides(const LocalErrors& local) {
  std::vector<std::int64_t> others;
  std::set_difference(local.beyond_rows.begin(), local.beyond_rows.end(), local.unwritten.begin(),
                      local.unwritten.end(), std::back_inserter(others));
  return others;
}

std::string unwritten_text(const LocalErrors& local, Json& row) {
  row["diagnosis"] = "unwritten rows";
  const std::vector<std::int64_t> others = wrong_besides(local);
  return fmt::format("looks like unwritten {}: they are zeros where neither the reference nor the recipe has any{}",
                     describe_indices("row", local.unwritten),
                     others.empty() ? "" : fmt::format("; {} off besides", describe_indices("row", others)));
}

}  // namespace

std::string diagnosis_text(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe, double factor,
                           const LocalErrors& local, Json& row) {
  if (!head.o.allFinite() || !head.emulated.allFinite()) {
    std::string name;
    const std::string why = explain_nonfinite(head, recipe, *dumps.calls()[head.piece.call].call->q_format, name);
    row["diagnosis"] = name.empty() ? "NaN or Inf" : "NaN or Inf: " + name;
    return why;
  }
  if (head.o.isZero(0) && !head.reference.isZero(0)) {
    row["diagnosis"] = "all zeros";
    return "looks like all zeros: o is zero everywhere; nothing was written, or the launch failed";
  }
  const bool some_unwritten = !local.unwritten.empty();
  if (some_unwritten && wrong_besides(local).empty()) return unwritten_text(local, row);
  std::optional<Finding> finding = diagnose(dumps, head, recipe);
  if (!finding) finding = small_mistake(dumps, head, recipe, factor);
  if (finding) {
    row["diagnosis"] = finding->name;
    return fmt::format("looks like {}: {}", finding->name, finding->detail);
  }
  return some_unwritten ? unwritten_text(local, row) : locate(head);
}

std::string storage_hint(const Tensor& recorded) {
  if (recorded.format != &format::kFP32 && recorded.format != &format::kFP64) return "";
  const format::Policy to_nearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                  format::Subnormals::keep};
  const std::int64_t size = recorded.elements();
  for (const format::Format* narrow : {&format::kFP16, &format::kBF16}) {
    bool all = true, any = false;
    for (std::int64_t i = 0; i < size && all; ++i) {
      const double x = format::decode(*recorded.format, recorded.code(i));
      all = format::decode(*narrow, format::encode(*narrow, x, to_nearest)) == x || std::isnan(x);
      any = any || x != 0;
    }
    if (!all || !any) continue;
    return fmt::format(
        "; every value of it is one of {}: it was stored in a wider type than the kernel returned; store it as {}",
        narrow->dtype, narrow->dtype);
  }
  return "";
}

std::string ulp_guard_text(const std::string& passing, std::uint64_t allowed) {
  return fmt::format("--ulp {} is worth nothing: {} would pass", allowed, passing);
}

CheckResult check_dump(const DumpSet& dumps, const DumpCheckOptions& options) {
  for (const double limit : {options.factor, options.lse_tolerance}) {
    if (!std::isfinite(limit) || limit < 0) {
      throw Error(ErrorKind::usage, fmt::format("check: {} is no limit; it is to be a finite number", limit));
    }
  }
  CheckResult result;
  std::vector<Piece> pieces = pieces_of(dumps);
  for (std::size_t c = 0; c < dumps.calls().size(); ++c) {
    const SelectedCall& call = dumps.calls()[c];
    if (call.call->has("o")) continue;
    const std::string& file = dumps.files()[call.file];
    result.errors.push_back(
        {file, call.call->path,
         fmt::format("{}: {}: holds no 'o' to check; a kernel's output [B, Hq, Nq, D] is to be beside q, k and v", file,
                     call.call->path)});
    std::erase_if(pieces, [c](const Piece& piece) { return piece.call == c; });
  }
  options.recipe ? check_dump_relative(dumps, options, pieces, result)
                 : check_dump_bits(dumps, options, pieces, result);
  return result;
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
  return {"case",        "kind",          "name",          "output",    "elements",       "mismatches",
          "max_ulp",     "evidence",      "first",         "batch",     "head",           "passed",
          "rel_l1",      "recipe_rel_l1", "limit_rel_l1",  "max_abs",   "recipe_max_abs", "limit_max_abs",
          "worst_block", "worst_row",     "worst_channel", "nan_count", "inf_count",      "convention",
          "lse_error",   "lse_against",   "diagnosis",     "reason",    "explain",        "file"};
}

}  // namespace qattn::lab

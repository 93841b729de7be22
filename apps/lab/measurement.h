// One head under one recipe: the smallest thing that is measured, and the row that says so.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/recipe.h"
#include "attention/reference.h"
#include "lab/device.h"
#include "lab/dump_set.h"
#include "lab/reference_cache.h"
#include "lab/report.h"
#include "metric/accuracy.h"

namespace qattn::lab {

/// One recipe to run, and what its output is compared with.
struct Trial {
  attention::Recipe recipe;
  /// Compared with this recipe's output; unset: with the float64 reference.
  std::optional<attention::Recipe> reference = std::nullopt;
  /// Keys that every row of this trial has after `recipe` ("axis" and "value" of an ablation); an object.
  Json labels = Json::object();
};

/// Two recipes with the same key give the same output.
std::string recipe_key(const attention::Recipe& recipe);

/// One (call, batch, head) of a set.
struct Piece {
  std::size_t call = 0;
  std::int64_t batch = 0, head = 0;
};

/// Every piece, call by call, batch by batch, head by head.
std::vector<Piece> pieces_of(const DumpSet& dumps);

/// Measures recipes on one piece, which is read once; a reference is computed when it is first asked for and kept.
class HeadMeasurement {
 public:
  /// `references` keeps float64 references on disk; nullptr: they are computed. Recipes run on `device`; nullptr: on
  /// the CPU.
  HeadMeasurement(const DumpSet& dumps, const Piece& piece, const ReferenceCache* references = nullptr,
                  const Device* device = nullptr);

  /// The recipe's output against `reference`'s, or against the float64 reference. A head that is one of a recipe's
  /// exceptions runs under its exception_recipe.
  metric::Accuracy measure(const attention::Recipe& recipe, const attention::Recipe* reference = nullptr);

  const std::vector<HeadProblem>& parts() const { return parts_; }
  const io::AttentionCall& call() const { return call_; }

 private:
  /// Reads the other query heads of the group when a recipe first asks for them.
  void read_group();
  const attention::Output& reference_output(std::size_t part, const std::string& key,
                                            const attention::Recipe* reference);

  const DumpSet& dumps_;
  const io::AttentionCall& call_;
  Piece piece_;
  const ReferenceCache* cache_;
  const Device* device_;
  bool has_group_ = false;
  std::vector<HeadProblem> parts_;
  std::map<std::pair<std::size_t, std::string>, attention::Output> references_;
};

/// Throws Error(usage) before anything runs where `device` (nullptr: the CPU) does not do what the trials ask for.
void check_device(const Device* device, std::span<const Trial> trials, bool backward);

/// The format of a recipe's outputs on a call.
const format::Format& output_format(const attention::Recipe& recipe, const io::AttentionCall& call);

/// Adds o against r, [rows, at least `channels`] each, whose first element lies at `origin`. Channels from `channels`
/// on, which only pad head_dim, are left out.
void absorb(metric::Accuracy& accuracy, const format::Format& format, const MatrixD& o, const MatrixD& r,
            std::int64_t channels, const metric::Location& origin);

/// What a row says besides the metrics.
struct RowIdentity {
  std::string call;
  std::optional<std::pair<std::int64_t, std::int64_t>> batch_and_head;  ///< unset: the row over the whole call
  std::string recipe;
  Json labels = Json::object();
  std::string reference = "float64";
  std::string evidence = {};
  std::string file = {};
  std::string output = "o";
};

Json row_json(const RowIdentity& identity, const metric::Accuracy& accuracy);

/// {"batch", "head", "row", "column"}, or null.
Json location_json(const std::optional<metric::Location>& where);

}  // namespace qattn::lab

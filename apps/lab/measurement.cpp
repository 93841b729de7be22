// Reading a head, running a recipe, comparing.
#include "lab/measurement.h"

#include <fmt/format.h>

#include "base/error.h"
#include "lab/exceptions.h"

namespace qattn::lab {
namespace {

using attention::Output;
using attention::Recipe;

}  // namespace

std::string recipe_key(const Recipe& recipe) {
  std::string key;
  for (const auto& [name, value] : attention::resolved(recipe)) {
    if (name != "name" && name != "description" && name != "source" && name != "alias_of")
      key += fmt::format("{}={}\n", name, value);
  }
  return key;
}

std::vector<Piece> pieces_of(const DumpSet& dumps) {
  std::vector<Piece> pieces;
  for (std::size_t c = 0; c < dumps.calls().size(); ++c) {
    const SelectedCall& call = dumps.calls()[c];
    for (std::int64_t batch = 0; batch < call.call->batch; ++batch) {
      for (std::int64_t head = call.first_head; head < call.last_head; ++head) pieces.push_back({c, batch, head});
    }
  }
  return pieces;
}

HeadMeasurement::HeadMeasurement(const DumpSet& dumps, const Piece& piece, const ReferenceCache* references,
                                 const Device* device)
    : dumps_(dumps),
      call_(*dumps.calls()[piece.call].call),
      piece_(piece),
      cache_(references),
      device_(device),
      parts_(dumps.read(dumps.calls()[piece.call], piece.batch, piece.head)) {}

const Output& HeadMeasurement::reference_output(std::size_t part, const std::string& key, const Recipe* reference) {
  const auto found = references_.find({part, key});
  if (found != references_.end()) return found->second;
  const attention::Problem& problem = parts_[part].problem;
  const auto compute = [&] {
    if (reference != nullptr) return run_recipe(device_, problem, *reference, *call_.q_format);
    return cache_ != nullptr ? cache_->reference(problem) : attention::reference_attention(problem);
  };
  return references_.emplace(std::pair(part, key), compute()).first->second;
}

void HeadMeasurement::read_group() {
  if (has_group_) return;
  parts_ = dumps_.read(dumps_.calls()[piece_.call], piece_.batch, piece_.head, true);
  has_group_ = true;
}

metric::Accuracy HeadMeasurement::measure(const Recipe& wanted, const Recipe* wanted_reference) {
  const Exceptions exceptions(wanted);
  const Recipe& recipe = exceptions.effective(call_.path, piece_.head);
  std::optional<Recipe> own_reference;
  if (wanted_reference != nullptr) own_reference = Exceptions(*wanted_reference).effective(call_.path, piece_.head);
  const Recipe* reference = own_reference ? &*own_reference : nullptr;
  for (const Recipe* each : {&recipe, reference}) {
    if (each != nullptr && each->query_heads == attention::QueryHeads::group) read_group();
  }
  const format::Format& format = output_format(recipe, call_);
  const std::int64_t channels = std::min(call_.head_dim_original, call_.head_dim);
  const std::string reference_key = reference == nullptr ? "" : recipe_key(*reference);
  metric::Accuracy accuracy(format);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Output& r = reference_output(i, reference_key, reference);
    const Output o = run_recipe(device_, parts_[i].problem, recipe, *call_.q_format);
    absorb(accuracy, format, o.o, r.o, channels, {piece_.batch, piece_.head, parts_[i].first_row, 0});
  }
  return accuracy;
}

void check_device(const Device* device, std::span<const Trial> trials, bool backward) {
  if (device == nullptr) return;
  if (backward) throw Error(ErrorKind::usage, "backward passes run on the CPU: leave out --device or --backward");
  for (const Trial& trial : trials) {
    device->check(trial.recipe);
    if (trial.reference) device->check(*trial.reference);
  }
}

const format::Format& output_format(const Recipe& recipe, const io::AttentionCall& call) {
  return recipe.o_format != nullptr ? *recipe.o_format : *call.q_format;
}

void absorb(metric::Accuracy& accuracy, const format::Format& format, const MatrixD& o, const MatrixD& r,
            std::int64_t channels, const metric::Location& origin) {
  if (format.bits <= 32) {
    const MatrixF narrow = o.leftCols(channels).cast<float>();
    accuracy.add(narrow, r.leftCols(channels), origin);
    return;
  }
  for (Eigen::Index row = 0; row < o.rows(); ++row) {
    for (Eigen::Index column = 0; column < channels; ++column) {
      accuracy.add(o(row, column), r(row, column), {origin.batch, origin.head, origin.row + row, column});
    }
  }
}

Json location_json(const std::optional<metric::Location>& where) {
  if (!where) return nullptr;
  return {{"batch", where->batch}, {"head", where->head}, {"row", where->row}, {"column", where->column}};
}

Json row_json(const RowIdentity& identity, const metric::Accuracy& a) {
  Json row = {{"call", identity.call}, {"batch", nullptr}, {"head", nullptr}, {"recipe", identity.recipe}};
  if (identity.batch_and_head) {
    row["batch"] = identity.batch_and_head->first;
    row["head"] = identity.batch_and_head->second;
  }
  row.update(identity.labels);
  row["reference"] = identity.reference;
  row["output"] = identity.output;
  row["cos_sim"] = a.cos_sim();
  row["rel_l1"] = a.rel_l1();
  row["rel_l2"] = a.rel_l2();
  row["rmse"] = a.rmse();
  row["max_abs"] = a.max_abs();
  row["max_ulp"] = a.max_ulp() ? Json(*a.max_ulp()) : Json();
  row["p50"] = a.percentile(50);
  row["p90"] = a.percentile(90);
  row["p99"] = a.percentile(99);
  row["p999"] = a.percentile(99.9);
  row["worst_at"] = location_json(a.worst());
  row["elements"] = a.count();
  row["nan_count"] = a.nan_count();
  row["inf_count"] = a.inf_count();
  row["bad_reference_count"] = a.bad_reference_count();
  row["first_bad"] = location_json(a.first_bad());
  row["evidence"] = identity.evidence;
  row["file"] = identity.file;
  return row;
}

}  // namespace qattn::lab

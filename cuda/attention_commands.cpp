// `qattn-gpu run` and `qattn-gpu check DUMP`: our own attention kernels on the calls of a dump.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "attention/head_run.h"
#include "attention/operand_differences.h"
#include "attention/output_dump.h"
#include "attention/pipeline.h"
#include "attention/prepare.h"
#include "base/error.h"
#include "base/parallel.h"
#include "commands.h"
#include "device.h"
#include "format/encode.h"
#include "io/vectors.h"
#include "lab/exceptions.h"
#include "lab/measurement.h"
#include "lab/provenance.h"
#include "lab/tensor_difference.h"
#include "report.h"

namespace qattn::gpu {
namespace {

Card card() { return {device().architecture, device().capability}; }

/// A recipe with what its exceptions say, as the card runs it.
class HeadRecipes {
 public:
  explicit HeadRecipes(const attention::Recipe& recipe)
      : exceptions_(recipe), common_(hardware_recipe(recipe, card())) {}

  const HardwareRecipe& common() const { return common_; }
  HardwareRecipe of(const lab::SelectedCall& call, std::int64_t head) const {
    if (!exceptions_.rules().applies(call.call->path, head)) return common_;
    return hardware_recipe(exceptions_.effective(call.call->path, head), card());
  }

 private:
  lab::Exceptions exceptions_;
  HardwareRecipe common_;
};

/// The recipes, checked as far as that goes before a card is asked for.
std::vector<attention::Recipe> chosen_recipes(const DumpOptions& dump) {
  std::vector<attention::Recipe> recipes;
  for (const std::string& name : dump.recipes) {
    recipes.push_back(lab::with_overrides(lab::load_recipe(name), dump.overrides));
    const lab::Exceptions exceptions(recipes.back());
    for (const attention::Recipe* recipe : {&std::as_const(recipes.back()), exceptions.other()}) {
      if (recipe == nullptr) continue;
      check_for_kernels(*recipe);
      if (!dump.prepare_on_cpu) check_preparable(*recipe);
    }
  }
  return recipes;
}

std::vector<HeadRecipes> on_the_card(const std::vector<attention::Recipe>& recipes) {
  return {recipes.begin(), recipes.end()};
}

PreparedBy prepared_by(const DumpOptions& dump) { return dump.prepare_on_cpu ? PreparedBy::cpu : PreparedBy::gpu; }

std::string changes_text(const HardwareRecipe& hardware) {
  std::string text;
  for (const auto& [key, value] : hardware.changes)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key, value);
  return text.empty() ? "nothing" : text;
}

std::string kernel_text(const HardwareRecipe& hardware) {
  return fmt::format("{} and {}", hardware.kernel->qk, hardware.kernel->pv);
}

const format::Format& o_format(const lab::SelectedCall& call, const attention::Recipe& recipe) {
  return recipe.o_format != nullptr ? *recipe.o_format : *call.call->q_format;
}

attention::Output empty_output(const io::AttentionCall& call) {
  return {MatrixD::Zero(call.q_tokens, call.head_dim),
          std::vector<double>(static_cast<std::size_t>(call.q_tokens), -std::numeric_limits<double>::infinity())};
}

/// `part`'s rows in their place in the whole head's output.
void place(const attention::Output& part, std::int64_t first_row, attention::Output& whole) {
  whole.o.middleRows(first_row, part.o.rows()) = part.o;
  std::copy(part.lse.begin(), part.lse.end(), whole.lse.begin() + first_row);
}

std::vector<lab::HeadProblem> read_parts(const lab::DumpSet& dumps, const lab::Piece& piece,
                                         const HardwareRecipe& hardware) {
  const bool with_group = hardware.recipe.query_heads == attention::QueryHeads::group;
  return dumps.read(dumps.calls()[piece.call], piece.batch, piece.head, with_group);
}

struct PieceRun {
  attention::Output output;
  double milliseconds = 0;
  OperandDifferences operands;  ///< of those that the GPU prepared, against the CPU's, where that was asked for
};

void add(const OperandDifferences& part, OperandDifferences& all) {
  if (all.first.empty()) all.first = part.first;
  all.elements += part.elements;
  all.differing += part.differing;
}

/// A head, sequence by sequence.
PieceRun run_piece(const lab::SelectedCall& call, const std::vector<lab::HeadProblem>& parts,
                   const HardwareRecipe& hardware, PreparedBy by, bool compare_operands) {
  PieceRun run{empty_output(*call.call), 0, {}};
  for (const lab::HeadProblem& part : parts) {
    const HeadRun head = run_head(part.problem, hardware, *call.call->q_format, by, compare_operands);
    place(head.output, part.first_row, run.output);
    run.milliseconds += head.milliseconds;
    if (!head.operands) continue;
    const attention::Operands expected = attention::prepare_operands(part.problem, hardware.recipe);
    add(gpu::compare_operands(expected, *head.operands), run.operands);
  }
  return run;
}

attention::Output emulate(const lab::SelectedCall& call, const std::vector<lab::HeadProblem>& parts,
                          const attention::Recipe& recipe) {
  attention::Output whole = empty_output(*call.call);
  for (const lab::HeadProblem& part : parts) {
    place(attention::run_recipe(part.problem, recipe, *call.call->q_format), part.first_row, whole);
  }
  return whole;
}

/// Elements that are not the same bits; NaN equals NaN.
struct Difference {
  std::int64_t elements = 0;
  std::int64_t differing = 0;
  std::string first;
};

std::uint64_t code_of(const format::Format& format, double value) {
  return format::encode(format, value,
                        {format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep});
}

Difference compare(std::string_view name, const format::Format& format, std::int64_t columns, const double* gpu,
                   const double* emulator, std::int64_t count) {
  Difference difference{count, 0, ""};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t left = code_of(format, gpu[i]), right = code_of(format, emulator[i]);
    if (left == right) continue;
    if (difference.differing++ > 0) continue;
    const std::string channel = columns > 1 ? fmt::format(", channel {}", i % columns) : "";
    difference.first = fmt::format("{}[token {}{}]: GPU {}, emulator {}", name, i / columns, channel,
                                   lab::code_text(format, left), lab::code_text(format, right));
  }
  return difference;
}

/// One head under one recipe.
struct CheckedPiece {
  OperandDifferences operands;
  Difference o, lse;
  double milliseconds = 0;

  std::int64_t elements() const { return operands.elements + o.elements + lse.elements; }
  std::int64_t differing() const { return operands.differing + o.differing + lse.differing; }
  /// The first in the order of the work.
  std::string first() const {
    if (!operands.first.empty()) return operands.first;
    return o.first.empty() ? lse.first : o.first;
  }
};

CheckedPiece check_piece(const lab::DumpSet& dumps, const lab::Piece& piece, const HeadRecipes& recipes,
                         PreparedBy by) {
  const lab::SelectedCall& call = dumps.calls()[piece.call];
  const HardwareRecipe hardware = recipes.of(call, piece.head);
  const std::vector<lab::HeadProblem> parts = read_parts(dumps, piece, hardware);
  const PieceRun run = run_piece(call, parts, hardware, by, true);
  const attention::Output expected = emulate(call, parts, hardware.recipe);
  const format::Format& format = o_format(call, hardware.recipe);
  const auto rows = static_cast<std::int64_t>(expected.lse.size());
  return {run.operands,
          compare("o", format, expected.o.cols(), run.output.o.data(), expected.o.data(), expected.o.size()),
          compare("lse", format::kFP64, 1, run.output.lse.data(), expected.lse.data(), rows), run.milliseconds};
}

/// Prints the pieces of one recipe; returns the number of differing elements.
std::int64_t report_pieces(const lab::DumpSet& dumps, const std::vector<lab::Piece>& pieces,
                           const std::vector<CheckedPiece>& checked, const std::string& recipe, Report& report) {
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const CheckedPiece& result = checked[i];
    const lab::SelectedCall& call = dumps.calls()[pieces[i].call];
    differing += result.differing();
    report.text("{:<12} {:<28} {:>5} {:>5} {:>9} {:>7} {:>9} {:>7} {:>7} {:>9.3f}  {}\n", recipe, call.label,
                pieces[i].batch, pieces[i].head, result.operands.elements, result.operands.differing, result.o.elements,
                result.o.differing, result.lse.differing, result.milliseconds, result.first());
    report.row({{"recipe", recipe},
                {"call", call.label},
                {"batch", pieces[i].batch},
                {"head", pieces[i].head},
                {"queries", call.call->q_tokens},
                {"keys", call.call->kv_tokens},
                {"head_dim", call.call->head_dim},
                {"is_causal", call.call->is_causal},
                {"operand_elements", result.operands.elements},
                {"operands_differing", result.operands.differing},
                {"o_elements", result.o.elements},
                {"o_differing", result.o.differing},
                {"lse_elements", result.lse.elements},
                {"lse_differing", result.lse.differing},
                {"kernel_ms", result.milliseconds},
                {"first", result.first().empty() ? Json() : Json(result.first())}});
  }
  return differing;
}

/// What a file says of where its outputs come from.
io::Attributes file_provenance() {
  return {{"gpu", device().description},
          {"library", fmt::format("qattn-gpu {} ({})", lab::tool_version(), lab::git_commit())}};
}

/// What outputs say of how they were made: every key of the recipe, so that they can be computed again.
io::Attributes recipe_provenance(const HardwareRecipe& hardware) {
  io::Attributes attributes{{"kernel", std::string("qattn_attention")},
                            {"instructions", kernel_text(hardware)},
                            {"changed_by_gpu", changes_text(hardware)}};
  for (const auto& [key, value] : attention::resolved(hardware.recipe)) attributes["recipe_" + key] = value;
  return attributes;
}

/// Runs all selected heads of a call and writes their outputs to `group`; the milliseconds in the kernels.
double write_outputs(const lab::DumpSet& dumps, std::size_t index, const HeadRecipes& recipes, PreparedBy by,
                     const std::string& group, OutputDump& file, Report& report) {
  const lab::SelectedCall& call = dumps.calls()[index];
  const format::Format& format = o_format(call, recipes.common().recipe);
  file.begin_outputs(call, group, format, recipe_provenance(recipes.common()));
  double milliseconds = 0;
  for (std::int64_t batch = 0; batch < call.call->batch; ++batch) {
    for (std::int64_t head = call.first_head; head < call.last_head; ++head) {
      const HardwareRecipe hardware = recipes.of(call, head);
      const PieceRun run = run_piece(call, read_parts(dumps, {index, batch, head}, hardware), hardware, by, false);
      file.write_head(call, group, format, batch, head, run.output);
      milliseconds += run.milliseconds;
    }
  }
  report.text("{}: {} heads, {:.3f} ms in the kernels\n", group, call.call->batch * (call.last_head - call.first_head),
              milliseconds);
  report.row({{"group", group}, {"kernel_ms", milliseconds}});
  return milliseconds;
}

/// "outliers/layer_00" for a call of outliers.h5.
std::string case_name(const lab::DumpSet& dumps, const lab::SelectedCall& call) {
  const std::string stem = std::filesystem::path(dumps.files()[call.file]).stem().string();
  return call.call->path == "/" ? stem : fmt::format("{}/{}", stem, call.call->path);
}

void check_recordable(const lab::DumpSet& dumps, const lab::SelectedCall& call) {
  OutputDump::check(call);
  if (!call.call->has("mask") && call.call->segments.empty()) return;
  throw Error(ErrorKind::usage,
              fmt::format("record: {} has a mask or packed sequences; vectors have neither", case_name(dumps, call)));
}

}  // namespace

void run_attention(const DumpOptions& dump, const std::string& output, const Options& options) {
  const std::vector<attention::Recipe> chosen = chosen_recipes(dump);
  const lab::DumpSet dumps(dump.selection);
  for (const lab::SelectedCall& call : dumps.calls()) OutputDump::check(call);
  const HeadRecipes recipes(chosen.at(0));
  Report report("run", options.json);
  report.text("{}: {} by {}; the GPU fixes {}\n", device().description, dump.recipes.at(0),
              kernel_text(recipes.common()), changes_text(recipes.common()));
  OutputDump file(output, dumps, io::kDumpSchema, file_provenance());
  double milliseconds = 0;
  for (std::size_t i = 0; i < dumps.calls().size(); ++i) {
    const lab::SelectedCall& call = dumps.calls()[i];
    file.copy_inputs(call, call.label);
    milliseconds += write_outputs(dumps, i, recipes, prepared_by(dump), call.label, file, report);
  }
  file.commit();
  report.finish(device().description, {{"file", output}, {"heads", dumps.heads()}, {"kernel_ms", milliseconds}});
}

void record_attention(const DumpOptions& dump, const std::string& output, const Options& options) {
  const std::vector<attention::Recipe> chosen = chosen_recipes(dump);
  for (const attention::Recipe& recipe : chosen) {
    if (recipe.exceptions.empty()) continue;
    throw Error(ErrorKind::usage,
                fmt::format("record: recipe '{}' has exceptions; vectors are of one recipe each", recipe.name));
  }
  const lab::DumpSet dumps(dump.selection);
  for (const lab::SelectedCall& call : dumps.calls()) check_recordable(dumps, call);
  const std::vector<HeadRecipes> recipes = on_the_card(chosen);
  Report report("record", options.json);
  OutputDump file(output, dumps, io::kKernelSchema, file_provenance());
  for (std::size_t i = 0; i < dumps.calls().size(); ++i) {
    const lab::SelectedCall& call = dumps.calls()[i];
    const std::string name = case_name(dumps, call);
    file.copy_inputs(call, name);
    for (std::size_t r = 0; r < recipes.size(); ++r) {
      write_outputs(dumps, i, recipes[r], prepared_by(dump), fmt::format("{}/kernels/{}", name, dump.recipes[r]), file,
                    report);
    }
  }
  file.commit();
  report.text("{}: {} calls under {} recipes\n", output, dumps.calls().size(), recipes.size());
  report.finish(device().description, {{"file", output}, {"calls", dumps.calls().size()}});
}

bool check_attention(const DumpOptions& dump, const Options& options) {
  const std::vector<attention::Recipe> chosen = chosen_recipes(dump);
  const lab::DumpSet dumps(dump.selection);
  const std::vector<lab::Piece> pieces = lab::pieces_of(dumps);
  const std::vector<HeadRecipes> recipes = on_the_card(chosen);
  Report report("check", options.json);
  report.text("{:<12} {:<28} {:>5} {:>5} {:>9} {:>7} {:>9} {:>7} {:>7} {:>9}  {}\n", "recipe", "call", "batch", "head",
              "operands", "differ", "o", "differ", "lse", "kernel ms", "first difference");
  std::int64_t elements = 0, differing = 0;
  Json kernels = Json::object();
  for (std::size_t r = 0; r < recipes.size(); ++r) {
    std::vector<CheckedPiece> checked(pieces.size());
    parallel_for(static_cast<std::int64_t>(pieces.size()), options.threads, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      checked[at] = check_piece(dumps, pieces[at], recipes[r], prepared_by(dump));
    });
    for (const CheckedPiece& piece : checked) elements += piece.elements();
    differing += report_pieces(dumps, pieces, checked, dump.recipes[r], report);
    const HardwareRecipe& common = recipes[r].common();
    report.text("{}: {}; the GPU fixes {}\n", dump.recipes[r], kernel_text(common), changes_text(common));
    kernels[dump.recipes[r]] = {{"kernel", kernel_text(common)}, {"changed", changes_text(common)}};
  }
  report.text("{}: {} elements, {} differ\n", device().description, elements, differing);
  report.finish(device().description,
                {{"elements", elements}, {"differing", differing}, {"kernels", kernels}, {"passed", differing == 0}});
  return differing == 0;
}

}  // namespace qattn::gpu

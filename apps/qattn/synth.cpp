// qattn synth: seeded synthetic dumps.
#include "lab/synth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/error.h"
#include "command.h"
#include "lab/provenance.h"
#include "options.h"
#include "progress.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string path;
  std::string distribution;
  bool list = false;
  std::map<std::string, double, std::less<>> values;  ///< as far as they were given
  lab::SynthRequest request;
  std::int64_t tokens = 1024, q_tokens = 0, kv_tokens = 0;
  std::int64_t kv_heads = 0;
  std::string dtype = "float16";
  std::string layout = "HND";
  int threads = 0;
  OutputOptions output;
};

lab::SynthRequest request_of(const Options& options) {
  lab::SynthRequest request = options.request;
  request.distribution = &lab::find_distribution(options.distribution);
  request.values = options.values;
  request.q_tokens = options.q_tokens > 0 ? options.q_tokens : options.tokens;
  request.kv_tokens = options.kv_tokens > 0 ? options.kv_tokens : options.tokens;
  request.kv_heads = options.kv_heads > 0 ? options.kv_heads : request.q_heads;
  request.format = &format::find(options.dtype);
  request.layout = options.layout == "NHD" ? io::Layout::nhd : io::Layout::hnd;
  return request;
}

lab::Report list_distributions() {
  lab::Report report;
  report.columns = {{"name", "distribution"}, {"tensors", "tensors"}, {"help", "what it is"}, {"source", "source"}};
  report.csv_keys = {"name", "help", "source", "tensors", "parameters"};
  for (const lab::Distribution& d : lab::distributions()) {
    lab::Json parameters = lab::Json::object();
    for (const lab::SynthParameter& p : d.parameters) {
      parameters[std::string(p.name)] = p.standard;
      const std::string note = fmt::format("--{} ({}): {}", p.name, p.standard, p.help);
      if (std::find(report.notes.begin(), report.notes.end(), note) == report.notes.end()) report.notes.push_back(note);
    }
    report.rows.push_back({{"name", d.name},
                           {"help", d.help},
                           {"source", d.source},
                           {"tensors", fmt::format("{}", fmt::join(d.tensors, " "))},
                           {"parameters", parameters}});
  }
  return report;
}

lab::Report make_dump(const Options& options) {
  if (options.path.empty() || options.distribution.empty()) {
    throw Error(ErrorKind::usage, "synth: give OUT and --distribution NAME, or --list");
  }
  const lab::SynthRequest request = request_of(options);
  const InterruptGuard interrupt;
  lab::Report report;
  {
    Progress progress("heads", options.output.quiet);
    lab::RunOptions run;
    run.threads = options.threads;
    run.progress = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
    run.cancelled = InterruptGuard::requested;
    report.rows = lab::synthesize(options.path, request, run);
  }
  report.context = {{"file", options.path}, {"command_line", lab::command_line(request)}};
  report.columns = {
      {"call", "call"}, {"tensor", ""}, {"shape", "shape"}, {"dtype", "dtype"}, {"sha256", "SHA-256 of the codes"}};
  report.notes = {fmt::format("{}: {}", options.path, lab::command_line(request))};
  return report;
}

int synth(const Options& options) {
  lab::Report report = options.list ? list_distributions() : make_dump(options);
  lab::Json context = lab::tool_context();
  context["command"] = "synth";
  context.update(report.context);
  report.context = std::move(context);
  emit(report, options.output);
  return 0;
}

void add_shape_options(CLI::App& command, Options& options) {
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    command.add_option(name, value, help)->type_name("N")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31));
  };
  size("--calls", options.request.calls, "number of calls: layer_00, layer_01, ...");
  size("--batch", options.request.batch, "batch");
  size("--q-heads", options.request.q_heads, "query heads");
  size("--kv-heads", options.kv_heads, "key/value heads; as many as query heads when not given");
  size("--tokens", options.tokens, "queries and keys of each head");
  size("--q-tokens", options.q_tokens, "queries, when they are not as many as the keys");
  size("--kv-tokens", options.kv_tokens, "keys");
  size("--head-dim", options.request.head_dim, "channels of a head");
}

/// An option for every parameter that any distribution has.
void add_parameters(CLI::App& command, const std::shared_ptr<Options>& options) {
  for (const lab::Distribution& d : lab::distributions()) {
    for (const lab::SynthParameter& p : d.parameters) {
      const std::string name(p.name);
      if (command.get_option_no_throw("--" + name) != nullptr) continue;
      command.add_option_function<double>(
          "--" + name, [options, name](const double& value) { options->values[name] = value; }, std::string(p.help));
    }
  }
}

}  // namespace

void add_synth(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("synth", "seeded synthetic dumps, the same bits on every machine");
  command->add_option("out", options->path, "the dump to write (HDF5)")->type_name("OUT");
  command->add_option("--distribution", options->distribution, "what the elements are drawn from (--list)")
      ->type_name("NAME");
  command->add_flag("--list", options->list, "the distributions with their parameters");
  command->add_option("--seed", options->request.seed, "another seed gives other numbers")->type_name("N");
  add_shape_options(*command, *options);
  command->add_option("--dtype", options->dtype, "float16, bfloat16, float32, float8_e4m3fn, ...")->type_name("NAME");
  command->add_flag("--causal", options->request.is_causal, "mark the calls as causal");
  command->add_option("--layout", options->layout, "order of the dimensions in the file")
      ->check(CLI::IsMember({"HND", "NHD"}));
  command->add_option("--threads", options->threads, "number of threads; 0: one for each core")
      ->type_name("N")
      ->check(CLI::Range(0, 4096));
  add_parameters(*command, options);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return synth(*options); }; });
}

}  // namespace qattn::cli

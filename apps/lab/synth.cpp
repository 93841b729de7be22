// From a distribution to a dump, head by head.
#include "lab/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/fp_environment.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "io/sha256.h"

namespace qattn::lab {
namespace {

using Shape = std::vector<std::int64_t>;

void check(const SynthRequest& r) {
  if (r.q_heads % r.kv_heads != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("--q-heads {} is to be a multiple of --kv-heads {}", r.q_heads, r.kv_heads));
  }
  if (r.format->dtype.empty() || !r.format->has_sign) {
    throw Error(ErrorKind::usage, fmt::format("--dtype {}: a dump's elements need a sign and a dtype that files know, "
                                              "e.g. float16, bfloat16, float8_e4m3fn (qattn formats)",
                                              r.format->name));
  }
}

Shape shape_of(const SynthRequest& r, std::string_view tensor) {
  const bool is_query = tensor == "q" || tensor == "do";
  return {r.batch, is_query ? r.q_heads : r.kv_heads, is_query ? r.q_tokens : r.kv_tokens, r.head_dim};
}

Tensor encode_head(const MatrixD& x, const format::Format& format) {
  Tensor tensor = make_tensor(format, {x.rows(), x.cols()});
  for (std::int64_t i = 0; i < x.size(); ++i) tensor.set_code(i, format::encode(format, x.data()[i], {}));
  return tensor;
}

/// Draws heads ahead on several threads and hands them on in order.
class HeadSource {
 public:
  HeadSource(const SynthRequest& request, const SynthValues& values, int threads)
      : request_(request), values_(values), threads_(threads) {
    const auto cores = static_cast<std::size_t>(std::max(1u, std::thread::hardware_concurrency()));
    ahead_ = threads > 0 ? static_cast<std::size_t>(threads) : cores;
  }

  /// body(batch, head, codes) for all heads of one tensor of one call.
  template <class Body>
  void for_each(std::int64_t call, std::string_view tensor, const Body& body) const {
    const Shape shape = shape_of(request_, tensor);
    const std::int64_t heads = shape[0] * shape[1];
    const auto step = static_cast<std::int64_t>(ahead_);
    for (std::int64_t first = 0; first < heads; first += step) {
      std::vector<Tensor> drawn(static_cast<std::size_t>(std::min(step, heads - first)));
      parallel_for(static_cast<std::int64_t>(drawn.size()), threads_, [&](std::int64_t i) {
        const std::int64_t n = first + i;
        const SynthHead head = {request_.seed, call, tensor, n / shape[1], n % shape[1], shape[2], shape[3]};
        drawn[static_cast<std::size_t>(i)] = encode_head(request_.distribution->draw(head, values_), *request_.format);
      });
      for (std::int64_t n = first; n < first + static_cast<std::int64_t>(drawn.size()); ++n) {
        body(n / shape[1], n % shape[1], drawn[static_cast<std::size_t>(n - first)]);
      }
    }
  }

 private:
  const SynthRequest& request_;
  const SynthValues& values_;
  int threads_;
  std::size_t ahead_;
};

std::int64_t heads_of(const SynthRequest& r) {
  std::int64_t heads = 0;
  for (const std::string_view tensor : r.distribution->tensors) heads += r.batch * shape_of(r, tensor)[1];
  return r.calls * heads;
}

io::Attributes attributes_of(const SynthRequest& r) {
  return {{"model", fmt::format("synthetic: {}", r.distribution->name)},
          {"source", command_line(r)},
          {"input", fmt::format("{} ({})", r.distribution->help, r.distribution->source)},
          {"is_causal", r.is_causal}};
}

}  // namespace

std::string command_line(const SynthRequest& r) {
  std::string text = fmt::format("qattn synth OUT --distribution {}", r.distribution->name);
  for (const auto& [name, value] : resolve_values(*r.distribution, r.values, r.head_dim))
    text += fmt::format(" --{} {}", name, value);
  text += fmt::format(" --seed {} --calls {} --batch {} --q-heads {} --kv-heads {} --q-tokens {} --kv-tokens {}",
                      r.seed, r.calls, r.batch, r.q_heads, r.kv_heads, r.q_tokens, r.kv_tokens);
  text += fmt::format(" --head-dim {} --dtype {} --layout {}", r.head_dim, r.format->dtype,
                      r.layout == io::Layout::hnd ? "HND" : "NHD");
  return text + (r.is_causal ? " --causal" : "");
}

std::vector<Json> synthesize(const std::string& path, const SynthRequest& request, const RunOptions& options) {
  const FpEnvironment environment;
  check(request);
  const SynthValues values = resolve_values(*request.distribution, request.values, request.head_dim);
  const HeadSource source(request, values, options.threads);
  const std::int64_t total = heads_of(request);
  std::int64_t done = 0;
  std::vector<Json> rows;
  io::DumpWriter writer(path, attributes_of(request), request.layout);
  for (std::int64_t call = 0; call < request.calls; ++call) {
    const std::string name = fmt::format("layer_{:02}", call);
    writer.begin_call(name);
    for (const std::string_view view : request.distribution->tensors) {
      const std::string tensor(view);
      const Shape shape = shape_of(request, tensor);
      writer.create(name, tensor, *request.format, shape);
      io::Sha256 digest;
      source.for_each(call, tensor, [&](std::int64_t batch, std::int64_t head, const Tensor& codes) {
        if (options.cancelled && options.cancelled()) throw Interrupted();
        writer.write_head(name, tensor, batch, head, codes);
        digest.update(codes.codes);
        if (options.progress) options.progress(++done, total);
      });
      rows.push_back({{"call", name},
                      {"tensor", tensor},
                      {"shape", shape},
                      {"dtype", request.format->dtype},
                      {"sha256", digest.finish()}});
    }
  }
  writer.commit();
  return rows;
}

}  // namespace qattn::lab

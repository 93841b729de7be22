// Small dumps that tests of the third floor write for themselves.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "format/encode.h"
#include "io/dump.h"

namespace qattn::testing {

/// Sizes of the calls of a tiny dump.
struct TinyShape {
  std::int64_t batch = 1, q_heads = 2, kv_heads = 1, tokens = 40, head_dim = 16;
};

/// The value of one element; the first argument is the dataset.
using TinyValue = std::function<double(const std::string&, std::int64_t batch, std::int64_t head, std::int64_t token,
                                       std::int64_t channel)>;

/// Uniform in (-2, 2), different in every element.
inline double tiny_value(const std::string& dataset, std::int64_t batch, std::int64_t head, std::int64_t token,
                         std::int64_t channel) {
  const auto stream = static_cast<std::uint64_t>(dataset.at(0));
  const auto index = static_cast<std::uint64_t>(((batch * 16 + head) * 4096 + token) * 256 + channel);
  return 4.0 * random_unit(7, stream, index) - 2.0;
}

inline Tensor tiny_tensor(const std::string& dataset, std::int64_t heads, const TinyShape& shape,
                          const TinyValue& value, const format::Format& format) {
  Tensor tensor = make_tensor(format, {shape.batch, heads, shape.tokens, shape.head_dim});
  std::int64_t index = 0;
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t token = 0; token < shape.tokens; ++token) {
        for (std::int64_t channel = 0; channel < shape.head_dim; ++channel) {
          tensor.set_code(index++, format::encode(format, value(dataset, batch, head, token, channel), {}));
        }
      }
    }
  }
  return tensor;
}

/// Writes a dump with these calls, all of one shape and in FP16.
inline void write_tiny_dump(const std::string& path, const std::vector<std::string>& calls, const TinyShape& shape = {},
                            const TinyValue& value = tiny_value, const io::Attributes& attributes = {}) {
  io::DumpWriter writer(path, attributes);
  for (const std::string& call : calls) {
    writer.begin_call(call);
    writer.write(call, "q", tiny_tensor("q", shape.q_heads, shape, value, format::kFP16));
    writer.write(call, "k", tiny_tensor("k", shape.kv_heads, shape, value, format::kFP16));
    writer.write(call, "v", tiny_tensor("v", shape.kv_heads, shape, value, format::kFP16));
  }
  writer.commit();
}

}  // namespace qattn::testing

#include "instructions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "mma/digest.h"

namespace qattn::gpu {
namespace {

/// The format that instruction names call `token`.
const format::Format* format_of_token(const std::string& token) {
  for (const mma::Instruction& x : mma::instructions()) {
    for (const format::Format* f : {x.a, x.b, x.c, x.d}) {
      if (mma::type_token(*f) == token) return f;
    }
  }
  throw Error(ErrorKind::internal, "no instruction of the table has the type '" + token + "'");
}

/// Shapes and formats of an instruction that the table lacks, from its name.
mma::Instruction outline(const std::string& name, const MmaKernel& kernel) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  mma::Instruction x{};
  x.name = name;
  x.family = parts[0] + '.' + parts[1];
  x.m = kernel.m;
  x.n = x.n_min = x.n_step = kernel.n;
  x.k = kernel.k;
  x.d = format_of_token(parts[3]);
  x.a = format_of_token(parts[4]);
  x.b = format_of_token(parts[5]);
  x.c = parts.size() > 6 && parts[6] != "satfinite" ? format_of_token(parts[6]) : x.d;
  return x;
}

void add_kernels(const MmaKernels& kernels, const Device& device, const std::regex& only,
                 std::vector<GpuInstruction>& found) {
  for (const MmaKernel* kernel = kernels.begin; kernel != kernels.begin + kernels.count; ++kernel) {
    if (device.capability < kernel->least_capability || device.capability > kernel->largest_capability) continue;
    const std::string name = device.architecture + '.' + kernel->name;
    if (!std::regex_search(name, only)) continue;
    const mma::Instruction* model = mma::find_instruction_or_null(name);
    found.push_back({name, kernel, model != nullptr ? *model : outline(name, *kernel), model != nullptr});
  }
}

}  // namespace

std::vector<GpuInstruction> instructions_of(const Device& device, const std::regex& only) {
  std::vector<GpuInstruction> found;
  for (const MmaKernels& kernels :
       {mma_float_kernels(), mma_float8_kernels(), mma_integer_kernels(), wgmma_kernels()}) {
    add_kernels(kernels, device, only, found);
  }
  if (found.empty()) {
    throw Error(ErrorKind::usage, "no instruction of " + device.architecture + " matches; `qattn-gpu list` has all");
  }
  return found;
}

std::vector<std::byte> pack_codes(const std::vector<std::uint64_t>& codes, int bytes) {
  const auto width = static_cast<std::size_t>(bytes);
  std::vector<std::byte> packed(codes.size() * width);
  for (std::size_t i = 0; i < codes.size(); ++i) std::memcpy(packed.data() + i * width, &codes[i], width);
  return packed;
}

std::vector<std::uint64_t> unpack_codes(const std::vector<std::byte>& packed, int bytes) {
  const auto width = static_cast<std::size_t>(bytes);
  std::vector<std::uint64_t> codes(packed.size() / width);
  for (std::size_t i = 0; i < codes.size(); ++i) std::memcpy(&codes[i], packed.data() + i * width, width);
  return codes;
}

std::vector<std::uint64_t> run_on_device(const GpuInstruction& instruction, const OperandBatch& batch) {
  const MmaKernel& kernel = *instruction.kernel;
  const DeviceBuffer a(pack_codes(batch.a, kernel.operand_bytes)), b(pack_codes(batch.b, kernel.operand_bytes));
  const DeviceBuffer c(pack_codes(batch.c, kernel.accumulator_bytes));
  std::vector<std::byte> result(batch.c.size() * static_cast<std::size_t>(kernel.result_bytes), std::byte{0xA5});
  const DeviceBuffer d{std::span<const std::byte>(result)};  // what no kernel wrote would show
  check_cuda(kernel.launch({a.data(), b.data(), c.data(), d.data(), batch.tiles, batch.rows, batch.columns}),
             "starting " + instruction.name);
  synchronize("running " + instruction.name);
  d.read(result);
  return unpack_codes(result, kernel.result_bytes);
}

DotBackend device_backend(const GpuInstruction& instruction) {
  return [&instruction](const std::vector<DotExperiment>& experiments) {
    constexpr std::size_t side = mma::kTileRows;
    const auto k = static_cast<std::size_t>(instruction.kernel->k);
    const std::size_t tiles = (experiments.size() + side - 1) / side;
    OperandBatch batch;
    batch.tiles = static_cast<int>(tiles);
    batch.rows = batch.columns = mma::kTileRows;
    batch.a.assign(tiles * side * k, 0);
    batch.b = batch.a;
    batch.c.assign(tiles * side * side, 0);
    const auto diagonal = [](std::size_t i) { return (i / side * side + i % side) * side + i % side; };
    for (std::size_t i = 0; i < experiments.size(); ++i) {
      std::copy(experiments[i].a.begin(), experiments[i].a.end(), batch.a.begin() + static_cast<std::ptrdiff_t>(i * k));
      std::copy(experiments[i].b.begin(), experiments[i].b.end(), batch.b.begin() + static_cast<std::ptrdiff_t>(i * k));
      batch.c[diagonal(i)] = experiments[i].c;
    }
    const std::vector<std::uint64_t> d = run_on_device(instruction, batch);
    std::vector<std::uint64_t> outputs;
    for (std::size_t i = 0; i < experiments.size(); ++i) outputs.push_back(d[diagonal(i)]);
    return outputs;
  };
}

}  // namespace qattn::gpu

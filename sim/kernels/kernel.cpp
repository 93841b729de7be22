#include "kernels/kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "kernels/families.h"

namespace qattn::kernels {
namespace {

/// The families, each a function in its own file; a kernel is one entry of its family's table.
constexpr std::array kFamilies{
    attn_qat_kernels, flash_attention_2_kernels, flash_attention_3_kernels, own_kernels, sage_kernels, sdpa_kernels};

std::vector<Kernel> all_kernels() {
  std::vector<Kernel> all;
  for (const auto family : kFamilies) all.insert(all.end(), family().begin(), family().end());
  return all;
}

}  // namespace

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = all_kernels();
  return all;
}

const Kernel* find_kernel_or_null(std::string_view name) {
  const auto found = std::ranges::find(kernels(), name, &Kernel::name);
  return found == kernels().end() ? nullptr : &*found;
}

const Kernel& find_kernel(std::string_view name) {
  if (const Kernel* kernel = find_kernel_or_null(name)) return *kernel;
  std::string names;
  for (const Kernel& kernel : kernels()) names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel.name);
  throw Error(ErrorKind::usage, fmt::format("unknown kernel '{}'; there are {}", name, names));
}

}  // namespace qattn::kernels

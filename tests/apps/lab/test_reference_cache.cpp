// References from the disk are the computed ones, whatever has happened to the files.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/tiny_dump.h"
#include "base/random.h"
#include "lab/recipe_file.h"
#include "lab/reference_cache.h"
#include "lab/runner.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::ScratchFolder;
namespace fs = std::filesystem;

namespace {

attention::Problem small_problem(std::uint64_t seed) {
  attention::Problem problem;
  std::uint64_t stream = 0;
  for (MatrixD* matrix : {&problem.q, &problem.k, &problem.v}) {
    matrix->resize(20, 8);
    for (Eigen::Index i = 0; i < matrix->size(); ++i) {
      matrix->data()[i] = random_unit(seed, stream, static_cast<std::uint64_t>(i)) - 0.5;
    }
    ++stream;
  }
  problem.sm_scale = 0.3;
  return problem;
}

bool same(const attention::Output& x, const attention::Output& y) {
  return x.o.size() == y.o.size() && x.lse == y.lse &&
         std::memcmp(x.o.data(), y.o.data(), sizeof(double) * static_cast<std::size_t>(x.o.size())) == 0;
}

std::vector<fs::path> entries(const std::string& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  return paths;
}

}  // namespace

TEST_CASE("a kept reference comes back bit for bit, and only for the same problem") {
  const ScratchFolder folder;
  const std::string place = folder / "made/on/demand";
  const lab::ReferenceCache cache(place, 0);
  const attention::Problem problem = small_problem(1);
  const attention::Output computed = attention::reference_attention(problem);
  CHECK(same(cache.reference(problem), computed));
  CHECK(cache.hits() == 0);
  CHECK(same(cache.reference(problem), computed));
  CHECK(cache.hits() == 1);
  CHECK(same(lab::ReferenceCache(place, 0).reference(problem), computed));

  std::vector<attention::Problem> others(7, problem);
  others[0].sm_scale = 0.31;
  others[1].is_causal = true;
  others[2].is_causal = true;
  others[2].causal_align = attention::CausalAlign::bottom_right;
  others[3].v(19, 7) = -others[3].v(19, 7);
  others[4].mask = MatrixD::Zero(20, 20);
  others[5].mask = MatrixD::Constant(20, 20, 1.0);
  std::swap(others[6].q, others[6].k);
  for (const attention::Problem& other : others) {
    CHECK(same(cache.reference(other), attention::reference_attention(other)));
  }
  CHECK(cache.hits() == 1);
  CHECK(entries(place).size() == 8);
}

TEST_CASE("a damaged, cut or foreign file is computed anew and mended") {
  const ScratchFolder folder;
  const std::string place = folder / "references";
  const attention::Problem problem = small_problem(2);
  const attention::Output computed = attention::reference_attention(problem);
  lab::ReferenceCache(place, 0).reference(problem);
  const fs::path file = entries(place).at(0);
  const auto size = fs::file_size(file);
  const auto damage = [&](int kind) {
    if (kind == 0) fs::resize_file(file, size - 1);
    if (kind == 1) fs::resize_file(file, 0);
    if (kind == 2) std::ofstream(file) << "something else";
    if (kind > 2) {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(size) * (kind - 2) / 8;
      bytes.seekg(at);
      const auto flipped = static_cast<char>(bytes.get() ^ 0x10);
      bytes.seekp(at);
      bytes.put(flipped);
    }
  };
  for (int kind = 0; kind < 10; ++kind) {
    damage(kind);
    const lab::ReferenceCache cache(place, 0);
    INFO("damage " << kind);
    CHECK(same(cache.reference(problem), computed));
    CHECK(cache.hits() == 0);
    CHECK(same(cache.reference(problem), computed));
    CHECK(cache.hits() == 1);
  }
}

TEST_CASE("another problem's reference of the same shape is not taken, whatever its file is called") {
  const ScratchFolder folder;
  const std::string place = folder / "references";
  lab::ReferenceCache(place, 0).reference(small_problem(4));
  const fs::path other = entries(place).at(0);
  const std::string kept = folder / "other";
  fs::rename(other, kept);
  const attention::Problem problem = small_problem(5);
  lab::ReferenceCache(place, 0).reference(problem);
  fs::copy_file(kept, entries(place).at(0), fs::copy_options::overwrite_existing);
  const lab::ReferenceCache cache(place, 0);
  CHECK(same(cache.reference(problem), attention::reference_attention(problem)));
  CHECK(cache.hits() == 0);
}

TEST_CASE("a place that cannot hold files, a small problem and no folder mean computing") {
  const ScratchFolder folder;
  std::ofstream(folder / "file") << "in the way";
  const attention::Problem problem = small_problem(3);
  const attention::Output computed = attention::reference_attention(problem);
  const std::vector<std::pair<std::string, std::int64_t>> useless = {
      {folder / "file/below", 0}, {"/proc/none", 0}, {"", 0}, {folder / "kept", lab::ReferenceCache::kLeastWork}};
  for (const auto& [place, least_work] : useless) {
    const lab::ReferenceCache cache(place, least_work);
    CHECK(same(cache.reference(problem), computed));
    CHECK(same(cache.reference(problem), computed));
    CHECK(cache.hits() == 0);
    const bool unusable = place == folder / "file/below" || place == "/proc/none";
    INFO(place << ": " << cache.trouble());
    CHECK(cache.trouble().empty() == !unusable);
    CHECK(cache.trouble().find(unusable ? place + ": " : "") == 0);
  }
  CHECK(!fs::exists(folder / "kept"));
}

TEST_CASE("a run takes its references from the disk, and its rows stay the same") {
  const ScratchFolder folder;
  testing::write_tiny_dump(folder / "a.h5", {"one"});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const std::vector<lab::Trial> trials = {{lab::load_recipe("int8-token")}, {lab::load_recipe("fp8-tensor")}};
  const std::vector<lab::Json> expected = lab::run_trials(set, trials, {}).rows;
  const lab::ReferenceCache cache(folder / "references", 0);
  lab::RunOptions options;
  options.references = &cache;
  for (const int threads : {1, 2}) {
    options.threads = threads;
    CHECK(lab::run_trials(set, trials, options).rows == expected);
  }
  CHECK(cache.hits() == 2);
}

TEST_CASE("the default place follows XDG_CACHE_HOME, then HOME") {
  const auto with = [](const char* cache, const char* home) {
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("HOME", home, 1);
    return lab::ReferenceCache::default_folder();
  };
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  CHECK(with("/somewhere/cache", "/home/user") == "/somewhere/cache/qattn/references");
  CHECK(with("", "/home/user") == "/home/user/.cache/qattn/references");
  CHECK(with("relative", "/home/user") == "/home/user/.cache/qattn/references");
  CHECK(with("", "").empty());
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", before.c_str(), 1);
}

// Loading recipes: those that come with the program, inheritance, and every way in which a file can be wrong.
#include <cstdlib>

#include "lab/data_folder.h"
#include "lab/recipe_file.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::message_of;
using io::testing::ScratchFolder;
using io::testing::spill;

namespace {

const char* const kHead = "description = \"d\"\nsource = \"s\"\n";

/// The message of loading a file with this text below a valid head; the text begins on line 3.
std::string complaint(const std::string& text) {
  const ScratchFolder folder;
  spill(folder / "bad.toml", kHead + text);
  const std::string message = message_of([&] { lab::load_recipe(folder / "bad.toml"); }, ErrorKind::usage);
  return message.substr(message.find("bad.toml"));
}

std::string value_of(const attention::Recipe& recipe, std::string_view key) {
  for (const auto& [name, value] : attention::resolved(recipe)) {
    if (name == key) return value;
  }
  return "no such key";
}

}  // namespace

TEST_CASE("Every recipe that comes with the program loads, and says what it is") {
  const std::vector<attention::Recipe> recipes = lab::load_all_recipes();
  std::vector<std::string> names;
  for (const attention::Recipe& recipe : recipes) {
    names.push_back(recipe.name);
    CHECK_FALSE(recipe.description.empty());
    CHECK_FALSE(recipe.source.empty());
  }
  for (const char* name :
       {"exact", "fa2-fp16", "fp8-tensor", "int8-token", "int4-token", "sage1-B", "sage2-4b", "sage2-8b"}) {
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
  }
}

TEST_CASE("sage2-4b and sage2-8b name their kernels' tiles and instructions") {
  const attention::Recipe four = lab::load_recipe("sage2-4b"), eight = lab::load_recipe("sage2-8b");
  CHECK(four.q_block == 128);
  CHECK(four.k_block == 64);
  CHECK(value_of(four, "q_format") == "int4");
  CHECK(value_of(four, "smoothing") == "qk");
  CHECK(value_of(four, "accumulator") == "sm89.mma");
  CHECK(eight.q_block == 64);
  CHECK(eight.k_block == 128);
  CHECK(value_of(eight, "k_granularity") == "per_thread");
  CHECK(value_of(eight, "smoothing") == "k");
  CHECK(value_of(eight, "accumulator") == "sm90.wgmma");
  CHECK(value_of(eight, "promotion") == "tile");
}

TEST_CASE("A recipe may be a file of the user's, extend another one, and apply keys in the order of the file") {
  const ScratchFolder folder;
  spill(folder / "mine.toml", std::string(kHead) +
                                  "extends = \"sage2-4b\"\nqk_format = \"e4m3\"\nk_format = \"int8\"\n" +
                                  "qk_accumulator = \"exact\"\n");
  const attention::Recipe recipe = lab::load_recipe(folder / "mine.toml");
  CHECK(recipe.name == "mine");
  CHECK(recipe.description == "d");
  CHECK(value_of(recipe, "q_format") == "e4m3");
  CHECK(value_of(recipe, "k_format") == "int8");
  CHECK(value_of(recipe, "smoothing") == "qk");
}

TEST_CASE("A wrong recipe file is a usage error that names file and line") {
  CHECK(complaint("no_such_key = 1\n").rfind("bad.toml:3: unknown recipe key 'no_such_key'", 0) == 0);
  CHECK(complaint("\nsmoothing = \"x\"\n").rfind("bad.toml:4: recipe key 'smoothing': 'x'", 0) == 0);
  CHECK(complaint("smoothing = \"k\"\nsmoothing = \"q\"\n").rfind("bad.toml:4: ", 0) == 0);
  CHECK(complaint("smoothing = \n").rfind("bad.toml:3: ", 0) == 0);
  CHECK(complaint("q_block = [1]\n").rfind("bad.toml:3: 'q_block': a string, a number or a boolean", 0) == 0);
  CHECK(complaint("extends = \"nothing\"\n").rfind("bad.toml:3: unknown recipe 'nothing'", 0) == 0);
  CHECK(complaint("extends = 3\n").find("'extends' is to be a string") != std::string::npos);
  CHECK(complaint("q_block = 100\nq_warp = 32\n").find("q_block (100)") != std::string::npos);
}

TEST_CASE("A recipe without description, one that extends itself, and one that is not there are refused") {
  const ScratchFolder folder;
  spill(folder / "bare.toml", "source = \"s\"\n");
  CHECK(
      message_of([&] { lab::load_recipe(folder / "bare.toml"); }, ErrorKind::usage).find("'description' is missing") !=
      std::string::npos);
  spill(folder / "loop.toml", std::string(kHead) + "extends = \"" + folder / "loop.toml" + "\"\n");
  CHECK(message_of([&] { lab::load_recipe(folder / "loop.toml"); }, ErrorKind::usage).find("circle") !=
        std::string::npos);
  CHECK(message_of([&] { lab::load_recipe("sage9"); }, ErrorKind::usage).find("unknown recipe 'sage9'") == 0);
  CHECK(message_of([&] { lab::load_recipe("sage9"); }, ErrorKind::usage).find("sage2-8b") != std::string::npos);
  CHECK(message_of([&] { lab::load_recipe("../recipes/exact"); }, ErrorKind::usage).find("unknown recipe") == 0);
  CHECK(message_of([&] { lab::load_recipe("x/y.toml"); }, ErrorKind::usage) == "x/y.toml: no such recipe file");
}

TEST_CASE("An alias must name a recipe") {
  const ScratchFolder folder;
  const auto complaint = [&](const std::string& alias) {
    spill(folder / "x.toml", std::string(kHead) + "alias_of = \"" + alias + "\"\n");
    return message_of([&] { lab::load_recipe(folder / "x.toml"); }, ErrorKind::usage);
  };
  CHECK(complaint("sage2-8b").empty());
  CHECK(complaint("sage9").find("recipe key 'alias_of': unknown recipe 'sage9'") != std::string::npos);
  CHECK(message_of(
            [&] {
              lab::with_overrides(lab::load_recipe("exact"), {{"alias_of", "sage9"}});
            },
            ErrorKind::usage)
            .find("alias_of") != std::string::npos);
}

TEST_CASE("QATTN_DATA leads to another folder, and to an error when it leads nowhere") {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "recipes");
  spill(folder / "recipes/only.toml", kHead);
  REQUIRE(setenv("QATTN_DATA", folder.path().c_str(), 1) == 0);
  CHECK(lab::data_entries("recipes") == std::vector<std::string>{"only"});
  CHECK(lab::data_entries("papers").empty());
  REQUIRE(setenv("QATTN_DATA", (folder / "nowhere").c_str(), 1) == 0);
  CHECK(message_of([] { lab::data_folder(); }, ErrorKind::usage).find("nowhere is no folder") != std::string::npos);
  REQUIRE(unsetenv("QATTN_DATA") == 0);
  CHECK(lab::data_entries("recipes").size() >= 8);
}

TEST_CASE("Overrides set keys in order and stand in the recipe's name") {
  const lab::Override override = lab::parse_override("pv_format=exact");
  const attention::Recipe recipe =
      lab::with_overrides(lab::load_recipe("sage2-4b"), {override, lab::parse_override("smoothing=none")});
  CHECK(recipe.name == "sage2-4b pv_format=exact smoothing=none");
  CHECK(value_of(recipe, "p_format") == "exact");
  CHECK(value_of(recipe, "smoothing") == "none");
  CHECK(message_of([] { lab::parse_override("smoothing"); }, ErrorKind::usage).find("KEY=VALUE") != std::string::npos);
  CHECK(message_of([] { lab::parse_override("=x"); }, ErrorKind::usage).find("KEY=VALUE") != std::string::npos);
}

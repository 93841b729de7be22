// qattn table --all: one report of every table, whose Markdown and LaTeX are well formed.
#include <algorithm>
#include <sstream>
#include <vector>

#include "lab/paper_table.h"
#include "program.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::ScratchFolder;
using io::testing::slurp;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// How often `c` stands in a line without a backslash before it.
std::size_t count_unescaped(const std::string& line, char c) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < line.size(); ++i) count += line[i] == c && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
  return count;
}

/// Every table: a header, a rule, and rows of as many cells; blank lines around.
std::string markdown_fault(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with('|')) continue;
    const std::size_t cells = count_unescaped(lines[i], '|');
    if (i == 0 || !lines[i - 1].empty()) return "no blank line before: " + lines[i];
    if (i + 1 == lines.size() || lines[i + 1].find_first_not_of("|-:") != std::string::npos) {
      return "no rule behind: " + lines[i];
    }
    for (++i; i < lines.size() && !lines[i].empty(); ++i) {
      if (!lines[i].starts_with('|') || !lines[i].ends_with('|') || count_unescaped(lines[i], '|') != cells) {
        return "no row of " + std::to_string(cells - 1) + " cells: " + lines[i];
      }
    }
  }
  return "";
}

/// Reads LaTeX line by line: environments nest, braces balance, a table's lines have as many cells as it has columns,
/// and characters with a meaning are escaped.
class LatexReader {
 public:
  std::string fault(const std::string& text) {
    for (const std::string& line : lines_of(text)) {
      if (!read(line)) return "LaTeX: " + line;
    }
    if (!environments_.empty()) return "left open: " + environments_.back();
    return tables_ > 0 ? "" : "no tables";
  }

 private:
  bool read(const std::string& line) {
    if (line.starts_with("\\end{")) {
      if (environments_.empty() || line != "\\end{" + environments_.back() + "}") return false;
      environments_.pop_back();
      return true;
    }
    if (!environments_.empty() && environments_.back() == "verbatim") return true;
    if (count_unescaped(line, '{') != count_unescaped(line, '}')) return false;
    for (const char c : {'_', '^', '#', '$', '%', '~'}) {
      if (count_unescaped(line, c) > 0) return false;
    }
    if (line.starts_with("\\begin{") && !line.starts_with("\\begin{center}")) {
      const std::size_t end = line.find('}');
      environments_.push_back(line.substr(7, end - 7));
      if (environments_.back() != "longtable") return true;
      ++tables_;
      cells_ = line.size() - end - 3;  // {lrr}
      return true;
    }
    const bool is_row = line.ends_with("\\\\") && !line.starts_with("\\caption{");
    return count_unescaped(line, '&') == (is_row ? cells_ - 1 : 0);
  }

  std::vector<std::string> environments_;
  std::size_t cells_ = 0;
  int tables_ = 0;
};

}  // namespace

TEST_CASE("table --all writes every table into one Markdown and one LaTeX report that are well formed") {
  const ScratchFolder folder;
  const testing::Outcome outcome =
      testing::qattn(folder, "table --all --calls layer_18 --heads 0:1 --seeds 1 --output " + folder / "all");
  CHECK(outcome.status == 0);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.empty());
  const std::string markdown = slurp(folder / "all.md"), latex = slurp(folder / "all.tex");
  CHECK(markdown_fault(markdown).empty());
  CHECK(LatexReader().fault(latex).empty());
  const std::vector<std::string> lines = lines_of(markdown);
  std::size_t found = 0;
  for (const lab::PaperTable& table : lab::load_all_paper_tables()) {
    CAPTURE(table.id);
    CHECK(std::count(lines.begin(), lines.end(), "## " + table.id) == 1);
    CHECK(latex.find("\\section*{" + table.id + "}") != std::string::npos);
    ++found;
  }
  CHECK(found >= 25);
  // What is taken away is missed.
  CHECK_FALSE(markdown_fault("\n| a | b |\n|---|--:|\n| 1 |\n").empty());
  CHECK_FALSE(markdown_fault("\n| a | b |\n| 1 | 2 |\n").empty());
  CHECK_FALSE(LatexReader().fault(latex.substr(0, latex.size() - 15)).empty());
  CHECK_FALSE(LatexReader().fault("\\begin{longtable}{lr}\na & b & c \\\\\n\\end{longtable}\n").empty());
  CHECK_FALSE(LatexReader().fault("\\begin{longtable}{l}\na_b \\\\\n\\end{longtable}\n").empty());
}

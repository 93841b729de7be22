// The five forms of a report, byte by byte.
#include <limits>

#include "lab/report.h"
#include "support/catch.h"

using namespace qattn::lab;

namespace {

Report sample() {
  Report report;
  report.context = {{"tool", "qattn"}, {"threads", 2}};
  report.columns = {{"call", "call"}, {"head", "head"}, {"cos_sim", "CosSim", 4}, {"paper.rel_l1", "paper"}};
  report.rows.push_back({{"call", "a_1"}, {"head", 0}, {"cos_sim", 0.5}, {"paper", {{"rel_l1", 0.125}}}});
  report.rows.push_back({{"call", "b, \"x\""}, {"head", nullptr}, {"cos_sim", 1.0 / 3.0}, {"paper", nullptr}});
  report.summary = Json::array({{{"recipe", "r"}, {"rel_l1", 2.0}}});
  report.notes = {"50 % done"};
  return report;
}

}  // namespace

TEST_CASE("JSON keeps 17 significant digits, order of keys, and a line a row") {
  CHECK(render(sample(), Form::json) ==
        "{\n\"context\": {\n  \"tool\": \"qattn\",\n  \"threads\": 2\n},\n"
        "\"rows\": [\n"
        "  {\"call\": \"a_1\", \"head\": 0, \"cos_sim\": 0.5, \"paper\": {\"rel_l1\": 0.125}},\n"
        "  {\"call\": \"b, \\\"x\\\"\", \"head\": null, \"cos_sim\": 0.33333333333333331, \"paper\": null}\n"
        "],\n\"summary\": [\n  {\"recipe\": \"r\", \"rel_l1\": 2.0}\n]\n}\n");
}

TEST_CASE("Doubles in JSON come back as the same doubles, NaN and Inf as null") {
  for (const double x : {0.1, 1e300, 5e-324, -0.0, 3.0, 1.0 / 3.0, 123456789012345678.0}) {
    const Json back = Json::parse(to_json(x));
    CHECK(back.is_number_float());
    CHECK(back.get<double>() == x);
  }
  CHECK(to_json(std::numeric_limits<double>::quiet_NaN()) == "null");
  CHECK(to_json(-std::numeric_limits<double>::infinity()) == "null");
  CHECK(to_json(Json::array({1, "\xff", true})).find("null") == std::string::npos);
}

TEST_CASE("CSV quotes what needs it and leaves null empty") {
  CHECK(render(sample(), Form::csv) ==
        "call,head,cos_sim,paper.rel_l1\n"
        "a_1,0,0.5,0.125\n"
        "\"b, \"\"x\"\"\",,0.33333333333333331,\n");
}

TEST_CASE("CSV takes its own keys where a report has them") {
  Report report = sample();
  report.csv_keys = {"cos_sim", "paper"};
  CHECK(render(report, Form::csv) == "cos_sim,paper\n0.5,rel_l1 0.125\n0.33333333333333331,\n");
}

TEST_CASE("Text aligns numbers right and text left") {
  CHECK(render(sample(), Form::text) ==
        "call    head  CosSim  paper\n"
        "------  ----  ------  -----\n"
        "a_1        0  0.5000  0.125\n"
        "b, \"x\"     -  0.3333      -\n"
        "\n50 % done\n");
}

TEST_CASE("Markdown and LaTeX escape their own characters") {
  Report report = sample();
  report.rows[0]["call"] = "a|b_c%";
  CHECK(render(report, Form::markdown) ==
        "| call   | head | CosSim | paper |\n"
        "|--------|-----:|-------:|------:|\n"
        "| a\\|b_c% |    0 | 0.5000 | 0.125 |\n"
        "| b, \"x\" |    - | 0.3333 |     - |\n"
        "\n- 50 % done\n");
  CHECK(render(report, Form::latex) ==
        "\\begin{table}\n\\centering\n\\begin{tabular}{lrrr}\n\\toprule\n"
        "call & head & CosSim & paper \\\\\n\\midrule\n"
        "a|b\\_c\\% & 0 & 0.5000 & 0.125 \\\\\n"
        "b, \"x\" & - & 0.3333 & - \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table}\n\n% 50 % done\n");
}

TEST_CASE("Every line of a note stays a comment in LaTeX, and in its list item in Markdown") {
  Report report = sample();
  report.row_table = RowTable::none;
  report.notes = {"one", "two\n  and\nthree\n"};
  CHECK(render(report, Form::latex) == "% one\n% two\n%   and\n% three\n");
  CHECK(render(report, Form::markdown) == "- one\n- ```\n  two\n    and\n  three\n  ```\n");
}

TEST_CASE("A document has a section a report, and notes that are no comments") {
  Report report = sample();
  report.rows[0]["call"] = "[a]";
  report.notes = {"50 % done", "* two\nlines_"};
  const std::vector<Section> sections = {{"first_one", report}, {"second", sample()}};
  CHECK(render_document("All", sections, Form::markdown) == "# All\n\n## first_one\n\n" +
                                                                render(report, Form::markdown) + "\n## second\n\n" +
                                                                render(sample(), Form::markdown));
  const std::string latex = render_document("All_", sections, Form::latex);
  CHECK(latex.find("\\section*{first\\_one}\n\\begin{longtable}{lrrr}\n\\toprule\n"
                   "call & head & CosSim & paper \\\\\n\\midrule\n\\endhead\n"
                   "{}[a] & 0 & 0.5000 & 0.125 \\\\\n") != std::string::npos);
  CHECK(latex.find("\\item 50 \\% done\n\\item\n\\begin{verbatim}\n* two\nlines_\n\\end{verbatim}\n") !=
        std::string::npos);
  CHECK(latex.rfind("\\documentclass", 0) == 0);
  CHECK(latex.find("\\Large All\\_") != std::string::npos);
}

TEST_CASE("Text may show only rows over whole calls while the other forms show all") {
  Report report = sample();
  report.row_table = RowTable::text_calls;
  CHECK(render(report, Form::text).find("a_1") == std::string::npos);
  CHECK(render(report, Form::markdown).find("a_1") != std::string::npos);
  report.row_table = RowTable::none;
  CHECK(render(report, Form::latex) == "% 50 % done\n");
  CHECK(render(report, Form::csv).find("a_1") != std::string::npos);
}

TEST_CASE("A dotted key finds nested values, and null where there is none") {
  const Json row = {{"a", {{"b", 1}}}};
  CHECK(find(row, "a.b") == 1);
  CHECK(find(row, "a.c").is_null());
  CHECK(find(row, "x").is_null());
}

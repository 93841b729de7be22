// The five forms of a report.
#include "lab/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace qattn::lab {
namespace {

std::string number_to_json(double x) {
  if (!std::isfinite(x)) return "null";
  std::string text = fmt::format("{:.17g}", x);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void append_json(const Json& value, std::string& out) {
  if (value.is_object() || value.is_array()) {
    out += value.is_object() ? '{' : '[';
    bool first = true;
    for (const auto& [key, element] : value.items()) {
      if (!std::exchange(first, false)) out += ", ";
      if (value.is_object()) out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
      append_json(element, out);
    }
    out += value.is_object() ? '}' : ']';
  } else if (value.is_number_float()) {
    out += number_to_json(value.get<double>());
  } else {
    out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

/// A document for people too: the members of the context and the rows stand on lines of their own.
std::string render_json(const Report& report) {
  std::string out = "{\n\"context\": {";
  bool first = true;
  for (const auto& [key, value] : report.context.items()) {
    out += (std::exchange(first, false) ? "\n  " : ",\n  ") + to_json(Json(key)) + ": " + to_json(value);
  }
  out += first ? "},\n\"rows\": [" : "\n},\n\"rows\": [";
  for (std::size_t i = 0; i < report.rows.size(); ++i) out += (i == 0 ? "\n  " : ",\n  ") + to_json(report.rows[i]);
  out += report.rows.empty() ? "]" : "\n]";
  if (!report.summary.is_null()) {
    out += ",\n\"summary\": ";
    if (report.summary.is_array()) {
      out += "[";
      for (std::size_t i = 0; i < report.summary.size(); ++i) {
        out += (i == 0 ? "\n  " : ",\n  ") + to_json(report.summary[i]);
      }
      out += report.summary.empty() ? "]" : "\n]";
    } else {
      out += to_json(report.summary);
    }
  }
  return out + "\n}\n";
}

/// "batch 0, head 3" for an object, "a, b" for an array: how nested values look in a flat cell.
template <class Scalar>
std::string flatten(const Json& value, const Scalar& scalar) {
  if (!value.is_structured()) return scalar(value);
  std::string out;
  for (const auto& [key, element] : value.items()) {
    if (!out.empty()) out += ", ";
    if (value.is_object()) out += key + " ";
    out += flatten(element, scalar);
  }
  return out;
}

std::string csv_scalar(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  const std::string text = to_json(value);
  return text == "null" ? "" : text;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string render_csv(const Report& report) {
  std::vector<std::string> keys = report.csv_keys;
  if (keys.empty()) {
    for (const Column& column : report.columns) keys.push_back(column.key);
  }
  std::string out = fmt::format("{}\n", fmt::join(keys, ","));
  for (const Json& row : report.rows) {
    std::string line;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      line += (i == 0 ? "" : ",") + csv_cell(flatten(find(row, keys[i]), csv_scalar));
    }
    out += line + "\n";
  }
  return out;
}

std::string readable_number(double x, int decimals) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return decimals < 0 ? fmt::format("{:.5g}", x) : fmt::format("{:.{}f}", x, decimals);
}

std::string readable_cell(const Json& row, const Column& column) {
  const auto scalar = [&](const Json& value) -> std::string {
    if (value.is_null()) return "-";
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
    if (value.is_string()) return value.get<std::string>();
    if (value.is_number_float()) return readable_number(value.get<double>(), column.decimals);
    return value.dump();
  };
  return flatten(find(row, column.key), scalar);
}

/// A table as text: cells, and which columns hold numbers and so are set flush right.
struct Cells {
  std::vector<std::vector<std::string>> lines;  ///< the first is the header
  std::vector<bool> numeric;
  std::vector<std::size_t> widths;
};

std::size_t displayed_width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

Cells lay_out(const Table& table) {
  Cells cells;
  std::vector<std::string> header;
  for (const Column& column : table.columns) {
    header.push_back(column.title);
    const auto holds_text = [&](const Json& row) {
      const Json& value = find(row, column.key);
      return value.is_string() || value.is_structured();
    };
    cells.numeric.push_back(std::none_of(table.rows.begin(), table.rows.end(), holds_text));
  }
  cells.lines.push_back(std::move(header));
  for (const Json& row : table.rows) {
    std::vector<std::string> line;
    for (const Column& column : table.columns) line.push_back(readable_cell(row, column));
    cells.lines.push_back(std::move(line));
  }
  cells.widths.resize(table.columns.size());
  for (const auto& line : cells.lines) {
    for (std::size_t i = 0; i < line.size(); ++i) cells.widths[i] = std::max(cells.widths[i], displayed_width(line[i]));
  }
  return cells;
}

std::string pad(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, displayed_width(text)), ' ');
  return right ? space + text : text + space;
}

std::string text_table(const Table& table) {
  const Cells cells = lay_out(table);
  std::string out = table.title.empty() ? "" : table.title + "\n";
  for (std::size_t l = 0; l < cells.lines.size(); ++l) {
    std::string line, rule;
    for (std::size_t i = 0; i < cells.widths.size(); ++i) {
      line += (i == 0 ? "" : "  ") + pad(cells.lines[l][i], cells.widths[i], cells.numeric[i]);
      rule += (i == 0 ? "" : "  ") + std::string(cells.widths[i], '-');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (l == 0) out += rule + "\n";
  }
  return out;
}

std::string markdown_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string markdown_table(const Table& table) {
  const Cells cells = lay_out(table);
  std::string out = table.title.empty() ? "" : "**" + markdown_escaped(table.title) + "**\n\n";
  for (std::size_t l = 0; l < cells.lines.size(); ++l) {
    std::string rule = "|";
    out += "|";
    for (std::size_t i = 0; i < cells.widths.size(); ++i) {
      out += " " + pad(markdown_escaped(cells.lines[l][i]), cells.widths[i], cells.numeric[i]) + " |";
      rule += std::string(cells.widths[i] + 1, '-') + (cells.numeric[i] ? ":|" : "-|");
    }
    out += "\n" + (l == 0 ? rule + "\n" : std::string());
  }
  return out;
}

std::string latex_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\':
        out += "\\textbackslash{}";
        break;
      case '~':
        out += "\\textasciitilde{}";
        break;
      case '^':
        out += "\\textasciicircum{}";
        break;
      case '&':
      case '%':
      case '$':
      case '#':
      case '_':
      case '{':
      case '}':
        out += std::string("\\") + c;
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// Header, rule and rows of a tabular. A line that began with '[' or '*' would be an argument of the line end before.
std::string latex_lines(const Cells& cells, std::string_view header_end) {
  std::string out = "\\toprule\n";
  for (std::size_t l = 0; l < cells.lines.size(); ++l) {
    const std::string& first = cells.lines[l].front();
    if (first.starts_with('[') || first.starts_with('*')) out += "{}";
    for (std::size_t i = 0; i < cells.widths.size(); ++i) {
      out += (i == 0 ? "" : " & ") + latex_escaped(cells.lines[l][i]);
    }
    out += " \\\\\n";
    if (l == 0) out += header_end;
  }
  return out + "\\bottomrule\n";
}

std::string latex_columns(const Cells& cells) {
  std::string columns;
  for (const bool numeric : cells.numeric) columns += numeric ? 'r' : 'l';
  return columns;
}

std::string latex_table(const Table& table) {
  const Cells cells = lay_out(table);
  std::string out = "\\begin{table}\n\\centering\n";
  if (!table.title.empty()) out += "\\caption{" + latex_escaped(table.title) + "}\n";
  out += "\\begin{tabular}{" + latex_columns(cells) + "}\n";
  return out + latex_lines(cells, "\\midrule\n") + "\\end{tabular}\n\\end{table}\n";
}

/// A table that stays in its place and may run over pages.
std::string latex_long_table(const Table& table) {
  const Cells cells = lay_out(table);
  std::string out = "\\begin{longtable}{" + latex_columns(cells) + "}\n";
  if (!table.title.empty()) out += "\\caption{" + latex_escaped(table.title) + "}\\\\\n";
  return out + latex_lines(cells, "\\midrule\n\\endhead\n") + "\\end{longtable}\n";
}

/// The tables of a readable form: the rows as far as they are wanted, then the others.
std::vector<Table> readable_tables(const Report& report, Form form) {
  std::vector<Table> tables;
  if (report.row_table != RowTable::none) {
    Table rows{"", report.columns, {}};
    const bool calls_only = report.row_table == RowTable::text_calls && form == Form::text;
    std::copy_if(report.rows.begin(), report.rows.end(), std::back_inserter(rows.rows),
                 [&](const Json& row) { return !calls_only || find(row, "head").is_null(); });
    tables.push_back(std::move(rows));
  }
  tables.insert(tables.end(), report.tables.begin(), report.tables.end());
  return tables;
}

/// `text` with `mark` before each line but the first.
std::string continued(std::string_view text, std::string_view mark) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += mark;
  }
  return out;
}

std::string_view without_last_newline(std::string_view note) {
  return note.ends_with('\n') ? note.substr(0, note.size() - 1) : note;
}

/// Several lines are a code block inside of their list item: their columns stay aligned.
std::string markdown_note(const std::string& note) {
  const std::string_view text = without_last_newline(note);
  if (text.find('\n') == std::string_view::npos) return fmt::format("- {}{}", text.starts_with('*') ? "\\" : "", text);
  return fmt::format("- ```\n  {}\n  ```", continued(text, "  "));
}

std::string latex_note(const std::string& note) { return "% " + continued(without_last_newline(note), "% "); }

/// A note in running text: an item of a list; several lines stay as they are.
std::string latex_item(const std::string& note) {
  const std::string_view text = without_last_newline(note);
  if (text.find('\n') == std::string_view::npos) return "\\item " + latex_escaped(std::string(text));
  return fmt::format("\\item\n\\begin{{verbatim}}\n{}\n\\end{{verbatim}}", text);
}

std::string latex_section(const Section& section) {
  std::string out = "\\section*{" + latex_escaped(section.title) + "}\n";
  for (const Table& table : readable_tables(section.report, Form::latex)) out += latex_long_table(table);
  if (section.report.notes.empty()) return out;
  out += "\\begin{itemize}\n";
  for (const std::string& note : section.report.notes) out += latex_item(note) + "\n";
  return out + "\\end{itemize}\n";
}

constexpr std::string_view kLatexPreamble = R"(\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{booktabs}
\usepackage{longtable}
\begin{document}
\footnotesize
)";

template <class RenderTable, class RenderNote>
std::string render_readable(const Report& report, Form form, const RenderTable& table, const RenderNote& note) {
  std::string out;
  for (const Table& each : readable_tables(report, form)) out += (out.empty() ? "" : "\n") + table(each);
  if (!report.notes.empty() && !out.empty()) out += "\n";
  for (const std::string& each : report.notes) out += note(each) + "\n";
  return out;
}

}  // namespace

std::string render_document(std::string_view title, std::span<const Section> sections, Form form) {
  std::string out;
  if (form == Form::markdown) {
    out = fmt::format("# {}\n", title);
    for (const Section& section : sections) {
      out += fmt::format("\n## {}\n\n{}", section.title, render(section.report, form));
    }
    return out;
  }
  if (form != Form::latex) throw Error(ErrorKind::internal, "a document is Markdown or LaTeX");
  out =
      fmt::format("{}\\begin{{center}}\\Large {}\\end{{center}}\n", kLatexPreamble, latex_escaped(std::string(title)));
  for (const Section& section : sections) out += latex_section(section);
  return out + "\\end{document}\n";
}

std::string to_json(const Json& value) {
  std::string out;
  append_json(value, out);
  return out;
}

const Json& find(const Json& row, std::string_view key) {
  static const Json kNull;
  const std::size_t dot = key.find('.');
  if (!row.is_object()) return kNull;
  const auto member = row.find(std::string(key.substr(0, dot)));
  if (member == row.end()) return kNull;
  return dot == std::string_view::npos ? *member : find(*member, key.substr(dot + 1));
}

std::string render(const Report& report, Form form) {
  switch (form) {
    case Form::json:
      return render_json(report);
    case Form::csv:
      return render_csv(report);
    case Form::markdown:
      return render_readable(report, form, markdown_table, markdown_note);
    case Form::latex:
      return render_readable(report, form, latex_table, latex_note);
    default:
      return render_readable(report, form, text_table, [](const std::string& note) { return note; });
  }
}

}  // namespace qattn::lab

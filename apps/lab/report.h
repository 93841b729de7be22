// What a command found, in one model, and the forms in which it is printed.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qattn::lab {

/// Ordered: a row's keys keep the order in which they were set, which is the order of the contract. Numbers that are
/// NaN or infinite are held as they are and printed as null.
using Json = nlohmann::ordered_json;

enum class Form { text, json, csv, markdown, latex };

/// One column of a flat form. `key` leads into a row, dots go into nested objects: "paper.rel_l1".
struct Column {
  std::string key;
  std::string title;
  int decimals = -1;  ///< fixed decimals in readable forms; -1: five significant digits. CSV has all digits.
};

struct Table {
  std::string title;
  std::vector<Column> columns;
  std::vector<Json> rows;
};

/// Where the rows are printed besides JSON and CSV, which always hold all of them.
enum class RowTable {
  full,        ///< as the first table of every readable form
  text_calls,  ///< text: only those over whole calls (`head` null); Markdown and LaTeX: all
  none,        ///< the other tables say it all
};

/// Everything a command has to say. JSON: context, rows, summary. CSV: rows. Text, Markdown and LaTeX: the rows, then
/// `tables`, then `notes`.
struct Report {
  Json context = Json::object();
  std::vector<Column> columns;        ///< of the rows, in readable forms
  std::vector<std::string> csv_keys;  ///< of the rows, in CSV; empty: those of `columns`
  std::vector<Json> rows;
  RowTable row_table = RowTable::full;
  Json summary;  ///< null: left out
  std::vector<Table> tables;
  std::vector<std::string> notes;
};

/// The whole report, newline at the end. The same report gives the same bytes.
std::string render(const Report& report, Form form);

/// One of several reports in a document.
struct Section {
  std::string title;
  Report report;
};

/// All sections as one Markdown text, or as LaTeX that compiles by itself (booktabs, longtable, geometry; notes are
/// lists there, no comments). Throws Error(internal) for another form.
std::string render_document(std::string_view title, std::span<const Section> sections, Form form);

/// One line of JSON; doubles with 17 significant digits and always with a point or an exponent, NaN and Inf as null.
std::string to_json(const Json& value);

/// The value under a dotted key, or null.
const Json& find(const Json& row, std::string_view key);

}  // namespace qattn::lab

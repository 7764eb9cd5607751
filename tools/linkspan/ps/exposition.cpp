#include "tools/linkspan/ps/exposition.hpp"

#include <algorithm>
#include <charconv>

namespace linkspan::tool {
namespace {

constexpr std::string_view kEngineInfo = "linkspan_engine_info";
constexpr std::string_view kHelp = "# HELP ", kType = "# TYPE ";  // of one length

bool is_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::string_view cut_name(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_in_name);
  const std::string_view name = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(name.size());
  return name;
}

bool cut(std::string_view& text, char expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(1);
  return true;
}

/// One label, its value still escaped.
struct Label {
  std::string_view key, value;
};

/// Cuts `key="value"` from the front of `text`. nullopt: it does not begin with a label.
std::optional<Label> cut_label(std::string_view& text) {
  Label label{.key = cut_name(text), .value = {}};
  if (label.key.empty() || !cut(text, '=') || !cut(text, '"')) return std::nullopt;
  std::size_t end = 0;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return std::nullopt;
  label.value = text.substr(0, end);
  text.remove_prefix(end + 1);
  return label;
}

std::string unescaped(std::string_view value) {
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool escaped = value[i] == '\\' && i + 1 < value.size();
    if (escaped) ++i;
    out += escaped && value[i] == 'n' ? '\n' : value[i];
  }
  return out;
}

/// Returns the name in "# HELP name ..." and "# TYPE name ...". Empty: it is another line.
std::string_view family_of(std::string_view line) {
  if (!line.starts_with(kHelp) && !line.starts_with(kType)) return {};
  line.remove_prefix(kHelp.size());
  return cut_name(line);
}

}  // namespace

std::string Sample::label(std::string_view key) const {
  std::string_view rest = labels;
  while (const auto each = cut_label(rest)) {
    if (each->key == key) return unescaped(each->value);
    cut(rest, ',');
  }
  return {};
}

std::optional<Sample> parse_sample(std::string_view line) {
  Sample sample;
  sample.name = cut_name(line);
  if (sample.name.empty()) return std::nullopt;
  if (cut(line, '{')) {
    const std::string_view labels = line;
    do {
      if (!cut_label(line)) return std::nullopt;
    } while (cut(line, ','));
    sample.labels = labels.substr(0, labels.size() - line.size());
    if (!cut(line, '}')) return std::nullopt;
  }
  if (!cut(line, ' ')) return std::nullopt;
  const auto read = std::from_chars(line.data(), line.data() + line.size(), sample.value);
  if (read.ec != std::errc() || read.ptr != line.data() + line.size()) return std::nullopt;
  return sample;
}

/// Returns how the labels of the Engine's samples begin, and how they are to begin here: a further
/// Engine of the same name in the same process gets a number.
MergedMetrics::Beginning MergedMetrics::beginning_of(std::string_view metrics) {
  Beginning found;
  for_each_line(metrics, [&](std::string_view line) {
    const auto sample = parse_sample(line);
    if (!sample || sample->name != kEngineInfo) return;
    std::string_view rest = sample->labels;
    const auto engine = cut_label(rest);
    if (!engine || engine->key != "engine" || !cut(rest, ',') || !cut_label(rest)) return;
    found.before = sample->labels.substr(0, sample->labels.size() - rest.size());
    found.now = found.before;
    const std::size_t end_of_name = std::string_view("engine=\"").size() + engine->value.size();
    for (int i = 2; !engines_.insert(found.now).second; ++i)
      found.now = std::string(found.before).insert(end_of_name, " #" + std::to_string(i));
  });
  return found;
}

void MergedMetrics::add(std::string_view metrics) {
  const Beginning beginning = beginning_of(metrics);
  if (beginning.before.empty()) return;
  Family* family = nullptr;
  std::string_view name;
  for_each_line(metrics, [&](std::string_view line) {
    if (const auto next = family_of(line); !next.empty()) {
      const auto [found, added] = families_.try_emplace(std::string(next));
      if (added) order_.emplace_back(next);
      family = &found->second;
      name = next;
      std::string& head = line.starts_with(kHelp) ? family->help : family->type;
      if (head.empty()) head = std::string(line) + "\n";
      return;
    }
    const auto sample = parse_sample(line);
    if (!sample || family == nullptr || !sample->name.starts_with(name) ||
        !sample->labels.starts_with(beginning.before))
      return;
    family->samples.append(sample->name).append("{").append(beginning.now);
    family->samples.append(line.substr(sample->name.size() + 1 + beginning.before.size()));
    family->samples.append("\n");
  });
}

std::string MergedMetrics::text() const {
  std::string out;
  for (const std::string& name : order_) {
    const Family& family = families_.find(name)->second;
    out += family.help + family.type + family.samples;
  }
  return out;
}

}  // namespace linkspan::tool

#include "tools/linkspan/output.hpp"

#include <unistd.h>

#include <fstream>
#include <iostream>

namespace linkspan::tool {
namespace {

constexpr const char* kClearLine = "\r\033[K";
constexpr const char* kStdout = "-";

Status cannot_write(const std::string& file) {
  return {Code::invalid_argument, Scope::request,
          "--json: cannot write " + file + "; name a file in a folder that you may write to, or -"};
}

}  // namespace

Result<Output> Output::open(std::string json) {
  if (!json.empty() && json != kStdout && !std::ofstream(json, std::ios::app))
    return cannot_write(json);
  return Output(std::move(json));
}

Status Output::write(const std::string& text, const std::string& json) const {
  (json_ == kStdout ? std::cerr : std::cout) << text << std::flush;
  if (json_ == kStdout && !(std::cout << json << std::flush)) return cannot_write("stdout");
  if (json_.empty() || json_ == kStdout) return {};
  std::ofstream file(json_, std::ios::trunc);
  return file << json << std::flush ? Status() : cannot_write(json_);
}

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) std::cerr << kClearLine << std::flush;
}

void Progress::show(std::size_t index, std::size_t count, const std::string& what) const {
  if (terminal_)
    std::cerr << kClearLine << '[' << index << '/' << count << "] " << what << std::flush;
}

}  // namespace linkspan::tool

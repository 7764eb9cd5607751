#include "tools/linkspan/command_line/output.hpp"

#include <unistd.h>

#include <fstream>
#include <iostream>

namespace linkspan::tool {
namespace {

constexpr const char* kClearLine = "\r\033[K";
constexpr const char* kStdout = "-";
constexpr const char *kJson = "--json", *kSvg = "--svg";

Status cannot_write(const char* option, const std::string& file) {
  return {Code::invalid_argument, Scope::request,
          std::string(option) + ": cannot write " + file +
              "; name a file in a folder that you may write to" +
              (option == kJson ? ", or -" : "")};
}

Status try_file(const char* option, const std::string& file) {
  if (file.empty() || std::ofstream(file, std::ios::app)) return {};
  return cannot_write(option, file);
}

Status write_file(const char* option, const std::string& file, const std::string& content) {
  if (file.empty()) return {};
  std::ofstream out(file, std::ios::trunc);
  return out << content << std::flush ? Status() : cannot_write(option, file);
}

}  // namespace

Result<Output> Output::open(std::string json, std::string svg) {
  if (json != kStdout)
    if (Status s = try_file(kJson, json); !s.ok()) return s;
  if (Status s = try_file(kSvg, svg); !s.ok()) return s;
  return Output(std::move(json), std::move(svg));
}

Status Output::write(const std::string& text, const std::string& json,
                     const std::string& svg) const {
  (json_ == kStdout ? std::cerr : std::cout) << text << std::flush;
  if (Status s = write_file(kSvg, svg_, svg); !s.ok()) return s;
  if (json_ != kStdout) return write_file(kJson, json_, json);
  return std::cout << json << std::flush ? Status() : cannot_write(kJson, "stdout");
}

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) std::cerr << kClearLine << std::flush;
}

void Progress::show(std::size_t index, std::size_t count, const std::string& what) const {
  show('[' + std::to_string(index) + '/' + std::to_string(count) + "] " + what);
}

void Progress::show(const std::string& line) const {
  if (terminal_) std::cerr << kClearLine << line << std::flush;
}

}  // namespace linkspan::tool

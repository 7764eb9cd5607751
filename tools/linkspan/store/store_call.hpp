// tools/linkspan/store/store_call.hpp - one operation of a Store, parsed from a command line or a
// line of JSON, and its result.
//
// Threads: externally synchronised.
#pragma once

#include <string>
#include <vector>

#include "linkspan/store.hpp"

namespace linkspan::tool {

struct StoreCall {
  std::string operation{};
  std::vector<std::string> keys{}, values{};
  std::int64_t number = 0;
  Duration timeout{};
};

struct StoreAnswer {
  std::vector<std::string> values{};  ///< Raw bytes.
  bool has_number = false;
  std::int64_t number = 0;  ///< 0 or 1 for yes or no.
};

/// Parses "set", "KEY", "VALUE". invalid_argument: the text says what is valid.
Result<StoreCall> call_of(const std::vector<std::string>& arguments, Duration timeout);
/// Parses {"op": "set", "keys": ["KEY"], "values": ["56414c5545"], "number": 0, "timeout_ms": 100},
/// of which all but "op" are optional; values are in hex.
Result<StoreCall> call_of_json(const std::string& line, Duration timeout);
Result<StoreAnswer> run(Store& store, const StoreCall& call);
/// Formats {"code": "ok", "what": "", "values": ["56414c5545"], "number": 5}
std::string to_json(const Result<StoreAnswer>& answer);

}  // namespace linkspan::tool

#include "vcache/native/tests/lender.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "cuda/handles.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

void to_json(Json& json, const Side& side) {
  json = Json{
      {"gpu", side.gpu}, {"at", side.pointer}, {"handle", side.handle}, {"offset", side.offset}};
}
Side side_of(const Json& json) {
  return {.gpu = json.at("gpu"),
          .pointer = json.at("at"),
          .handle = json.at("handle").get<IpcBytes>(),
          .offset = json.at("offset")};
}
Request request_of(const Json& json) {
  return {.from = side_of(json.at("from")), .to = side_of(json.at("to")), .bytes = json["bytes"]};
}
Json json_of(const Request& request) {
  Json json{{"bytes", request.bytes}};
  to_json(json["from"], request.from);
  to_json(json["to"], request.to);
  return json;
}

/// Serves the requests in the child.
class Server {
 public:
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "transfer") return Answer{transfer(call), {}};
    if (what == "begin") return Answer{begin(call), {}};
    const auto name = call.at("name").get<std::string>();
    if (what == "lend") return Answer{lend(name, call), {}};
    if (what == "fill") memory_.at(name)->fill(call.at("seed"));
    if (what == "free") memory_.erase(name);
    if (what == "difference") return Answer{difference(*memory_.at(name), call), {}};
    return Answer{{}, {}};
  }

 private:
  Json lend(const std::string& name, const Json& call) {
    const unsigned gpu = call.at("gpu");
    const Buffer& made =
        *(memory_[name] = take(Buffer::create(MemoryKind::device, call.at("bytes"), gpu)));
    memory_[name]->fill(call.at("seed"));
    const cuda::Device* device = take(topology()->activate(topology()->devices()[gpu].uuid));
    const auto handle =
        take(cuda::export_ipc(*device, reinterpret_cast<std::uint64_t>(made.data())));
    IpcBytes bytes(handle.size());
    std::memcpy(bytes.data(), handle.data(), handle.size());
    return bytes;
  }
  static Json difference(const Buffer& memory, const Json& call) {
    std::vector<Expected> expected;
    for (const Json& each : call.at("expected"))
      expected.push_back({each[0], each[1], each[2], each[3]});
    return memory.difference(call.at("seed"), expected);
  }
  static Json begin(const Json& call) {
    int code = 0;
    std::uint64_t id = 0;
    Request part = request_of(call.at("request"));
    part.bytes /= 4;
    for (int i = 0; i < 4; ++i) {
      code = test::begin(part, &id);
      part.from.offset += part.bytes;
      part.to.offset += part.bytes;
    }
    return code;
  }
  static Json transfer(const Json& call) {
    std::vector<std::string> logged;
    nvlink_transfer_set_log_callback(
        [](int level, const char* text, void* user) {
          static_cast<std::vector<std::string>*>(user)->push_back(std::to_string(level) + " " +
                                                                  text);
        },
        &logged);
    std::vector<int> codes;
    for (const Json& each : call.at("requests")) codes.push_back(test::transfer(request_of(each)));
    nvlink_transfer_set_log_callback(nullptr, nullptr);
    return {{"codes", codes},
            {"last_error", nvlink_transfer_last_error()},
            {"logged", logged},
            {"staged", stats().staged}};
  }

  std::map<std::string, std::unique_ptr<Buffer>> memory_;
};

void serve(Line& line) {
  Server server;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return server.handle(call); },
             [] { return false; });
}
const bool kHelper = add_helper("nvlink_transfer", serve);

}  // namespace

int transfer(const Request& request) {
  const auto& [from, to, bytes, stream] = request;
  return perform_direct_transfer(from.gpu, from.pointer, to.gpu, to.pointer, bytes,
                                 from.handle.data(), static_cast<unsigned>(from.handle.size()),
                                 to.handle.data(), static_cast<unsigned>(to.handle.size()),
                                 from.offset, to.offset, stream);
}

int begin(const Request& request, std::uint64_t* id, std::uint32_t timeout_ms) {
  const auto& [from, to, bytes, stream] = request;
  return nvlink_transfer_begin(from.gpu, from.pointer, to.gpu, to.pointer, bytes,
                               from.handle.data(), static_cast<unsigned>(from.handle.size()),
                               to.handle.data(), static_cast<unsigned>(to.handle.size()),
                               from.offset, to.offset, stream, timeout_ms, id);
}

nvlink_transfer_stats_t stats() {
  nvlink_transfer_stats_t now{};
  now.size = sizeof now;
  EXPECT_EQ(nvlink_transfer_stats(&now), NVLINK_TRANSFER_OK);
  return now;
}

Lender::Lender(const std::vector<std::string>& environment)
    : child_(take(Child::spawn("nvlink_transfer", environment))) {}

Json Lender::call(const Json& request) { return take(child_->line().call(request)).value; }

IpcBytes Lender::lend(const std::string& name, int gpu, std::uint64_t bytes, std::uint64_t seed) {
  return call({{"do", "lend"}, {"name", name}, {"gpu", gpu}, {"bytes", bytes}, {"seed", seed}})
      .get<IpcBytes>();
}

void Lender::fill(const std::string& name, std::uint64_t seed) {
  call({{"do", "fill"}, {"name", name}, {"seed", seed}});
}

void Lender::free(const std::string& name) { call({{"do", "free"}, {"name", name}}); }

std::string Lender::difference(const std::string& name, std::uint64_t seed,
                               std::span<const Expected> expected) {
  Json lines = Json::array();
  for (const auto& [offset, of, from, bytes] : expected) lines.push_back({offset, of, from, bytes});
  return call({{"do", "difference"}, {"name", name}, {"seed", seed}, {"expected", lines}});
}

int Lender::begin_and_leave(const Request& request) {
  return call({{"do", "begin"}, {"request", json_of(request)}});
}

Lender::Told Lender::transfer(const std::vector<Request>& requests) {
  Json call_of{{"do", "transfer"}, {"requests", Json::array()}};
  for (const Request& each : requests) call_of["requests"].push_back(json_of(each));
  const Json told = call(call_of);
  return {.codes = told.at("codes").get<std::vector<int>>(),
          .last_error = told.at("last_error"),
          .logged = told.at("logged").get<std::vector<std::string>>(),
          .staged = told.at("staged")};
}

}  // namespace linkspan::test

// tests/support/verbs_end.hpp - one end of a connection over (simulated) verbs, for tests of the
// functions themselves.
//
// Memory with guards and a pattern, registered; a queue pair with completion queues of its own.
// Threads: externally synchronised.
// Invariants: all of it is destroyed in the destructor, which demands that each call succeeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "transport/verbs/library.hpp"

namespace linkspan::test {

struct VerbsEndOptions {
  std::size_t bytes = 1 << 20;
  int device = 0, gid_index = 4;
  std::uint32_t sends = 64, receives = 64, sges = 4, inline_bytes = 64;
  unsigned access = transport::verbs::kAccessLocalWrite | transport::verbs::kAccessRemoteWrite |
                    transport::verbs::kAccessRemoteRead;
  std::uint8_t timeout = 10, retries = 3, rnr_retry = 7;  // 4 ms, four times
  std::uint64_t seed = 1;
};

class VerbsEnd {
 public:
  static constexpr std::size_t kGuard = 4096;
  using Json = nlohmann::json;
  /// Says where this end is, for connect() of the other one.
  struct Place {
    std::uint32_t qp_num = 0, rkey = 0;
    std::uint64_t address = 0;
    std::vector<std::uint8_t> gid;
    Json to_json() const;
    static Place from_json(const Json& json);
  };

  /// Opens the device and makes all of it, until the queue pair is in the state INIT. Null after a
  /// failure, which it reports as one of the test.
  static std::unique_ptr<VerbsEnd> open(const transport::verbs::Library& library,
                                        const VerbsEndOptions& options = {});
  ~VerbsEnd();
  VerbsEnd(const VerbsEnd&) = delete;
  VerbsEnd& operator=(const VerbsEnd&) = delete;

  Place place() const;
  /// Moves the queue pair to RTR and RTS. Returns 0 or an errno.
  int connect(const Place& peer);
  int move_to(transport::verbs::IbvQpState state);
  transport::verbs::IbvQpState state() const;

  /// Returns a signaled request for `bytes` of this memory at `offset` and of the peer's at `to`.
  transport::verbs::IbvSendWr request(transport::verbs::IbvWrOpcode opcode, std::uint64_t offset,
                                      std::uint32_t bytes, std::uint64_t to);
  int post(transport::verbs::IbvSendWr wr);
  int post_receive(std::uint64_t id, std::uint64_t offset = 0, std::uint32_t bytes = 0);
  /// Polls until there is a completion; nothing after `seconds`.
  std::optional<transport::verbs::IbvWc> completion(transport::verbs::IbvCq* of,
                                                    double seconds = 10);
  std::optional<transport::verbs::IbvWc> sent(double seconds = 10) {
    return completion(send_cq, seconds);
  }
  std::optional<transport::verbs::IbvWc> received(double seconds = 10) {
    return completion(recv_cq, seconds);
  }
  /// Waits for the asynchronous event and acknowledges it; nothing after `seconds`.
  std::optional<transport::verbs::IbvEventType> event(double seconds = 10);

  std::byte* data() { return memory.data() + kGuard; }

  const transport::verbs::Library& ibv;
  const VerbsEndOptions options;
  std::vector<std::byte> memory;  // with guards
  Place peer;
  transport::verbs::IbvContext* context = nullptr;
  transport::verbs::IbvPd* pd = nullptr;
  transport::verbs::IbvMr* mr = nullptr;
  transport::verbs::IbvCompChannel* channel = nullptr;
  transport::verbs::IbvCq* send_cq = nullptr;
  transport::verbs::IbvCq* recv_cq = nullptr;
  transport::verbs::IbvQp* qp = nullptr;

 private:
  VerbsEnd(const transport::verbs::Library& library, const VerbsEndOptions& o);
  bool make();
  std::vector<transport::verbs::IbvSge> sges_;
};

}  // namespace linkspan::test

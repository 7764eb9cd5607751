// control/stream_opener.hpp - connections for transports alone, made beside a Session.
//
// Threads: the Control thread.
// Invariants: `then` is called once for each, unless close() comes first.
#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "control/handshake.hpp"
#include "control/interfaces.hpp"

namespace linkspan::control {

class StreamOpener {
 public:
  using Then = std::function<void(Result<base::Fd>)>;

  StreamOpener(asio::io_context& io, std::uint64_t incarnation, Duration silence);
  StreamOpener(const StreamOpener&) = delete;
  StreamOpener& operator=(const StreamOpener&) = delete;
  ~StreamOpener();

  /// The socket, once the other side has taken it. unreachable, timed_out, or what it answers;
  /// by an interface that was named unreachable or timed_out after 3 s, for there is another way.
  void open(const StreamWay& way, const StreamHello& hello, Duration limit, Then then);
  void close();

 private:
  struct Opening;
  void end_after(std::uint64_t id, Duration time, std::string why);
  void say_hello(std::uint64_t id);
  void hear(std::uint64_t id);
  void end(std::uint64_t id, Result<base::Fd> with);

  asio::io_context& io_;
  const std::uint64_t incarnation_;
  const Duration silence_;
  std::map<std::uint64_t, std::unique_ptr<Opening>> openings_;
  std::uint64_t last_id_ = 0;
};

}  // namespace linkspan::control

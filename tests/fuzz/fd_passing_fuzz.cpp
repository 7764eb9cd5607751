// Fuzzes a peer's bytes and fds: cut anywhere, more fds than a frame holds, of unexpected kinds.
// FdChannel returns frames or ends; what takes an fd checks it first; no fd stays open.
//
// The input: messages of {flags u8, bytes u8, fds u8, kind u8 each, the bytes}. flags 1: the bytes
// are the header of a frame that is as long as the next byte says; 2: read before the next one.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/fd_channel.hpp"
#include "base/process.hpp"
#include "tests/fuzz/support.hpp"
#include "tests/support/raw_message.hpp"
#include "transport/local/completion_flags.hpp"
#include "transport/local/mapping.hpp"

namespace linkspan::fuzz {
namespace {

/// Passes the fds to everything that takes an fd of a peer.
void use(const base::Frame& frame) {
  for (const base::Fd& fd : frame.fds) {
    demand(fd.valid(), "a frame with a closed fd");
    (void)base::is_pidfd(fd.get());
    if (auto view = transport::local::RegionLivenessView::open(fd); view.ok())
      (void)(*view)
          ->entry(static_cast<std::uint32_t>(frame.header.id), frame.header.incarnation)
          .alive();
    if (auto view = transport::local::CompletionFlagsView::open(fd); view.ok())
      (*view)->report_success(static_cast<std::uint32_t>(frame.header.id));
    if (auto host = transport::local::HostMapping::map(fd, frame.header.id, {}); host.ok()) {
      demand((*host)->bytes() >= frame.header.id, "a mapping that is too short");
      auto* last = reinterpret_cast<std::byte*>((*host)->base() + (*host)->bytes() - 1);
      if ((*host)->bytes() != 0) *last = std::byte{1};
    }
  }
}

void receive(base::FdChannel& channel) {
  for (;;) {
    auto frame = channel.receive();
    if (!frame.ok() || !frame->has_value()) return;
    demand((*frame)->payload.size() == (*frame)->header.length, "a length that is not");
    demand((*frame)->fds.size() <= base::kMaxFrameFds, "more fds than a frame holds");
    use(**frame);
  }
}

void run(Input input) {
  auto pair = base::socket_pair();
  demand(pair.ok(), "no sockets");
  base::FdChannel channel(std::move(pair->first));
  const base::Fd peer = std::move(pair->second);
  while (!input.empty()) {
    const std::uint8_t flags = input.byte();
    const std::size_t count = input.byte();
    std::vector<base::Fd> fds;
    for (std::size_t left = input.byte() % 80; left > 0; --left)
      fds.push_back(make_fd(input.byte()));
    std::vector<std::byte> bytes;
    if ((flags & 1) != 0) {
      const base::FrameHeader header{.length = input.byte(),
                                     .op = input.byte(),
                                     .id = input.word(),
                                     .incarnation = input.byte()};
      const auto head = encode(header);
      bytes.assign(head.begin(), head.end());
    }
    const auto more = input.take(count);
    bytes.insert(bytes.end(), more.begin(), more.end());
    (void)!test::send_message(peer.get(), bytes, fds);
    if ((flags & 2) != 0) receive(channel);
  }
  receive(channel);
}

}  // namespace
}  // namespace linkspan::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkspan::fuzz;
  (void)make_fd(static_cast<std::uint8_t>(FdKind::leases));  // what it keeps is there before
  const std::size_t before = open_fds();
  run(Input(data, size));
  demand(open_fds() == before, "an fd stays open");
  return 0;
}

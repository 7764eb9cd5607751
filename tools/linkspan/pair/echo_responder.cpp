#include "tools/linkspan/pair/echo_responder.hpp"

#include <array>
#include <sstream>
#include <utility>

#include "base/clock.hpp"
#include "tools/linkspan/pair/helper_process.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kStepTimeout = 10s;
constexpr std::array kNotification = {std::byte{1}};  // message of each notification

}  // namespace

Result<std::unique_ptr<PingPage>> PingPage::create() {
  auto fd = base::Fd::from("memfd_create", ::memfd_create("linkspan-bench", MFD_CLOEXEC));
  if (!fd.ok()) return fd.status();
  if (::ftruncate(fd->get(), bare::Ping::kPageBytes) != 0)
    return base::Fd::from("ftruncate", -1).status();
  return map(*std::move(fd));
}

Result<std::unique_ptr<PingPage>> PingPage::open(const std::string& path) {
  auto fd = base::Fd::from(path.c_str(), ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.ok()) return fd.status();
  return map(*std::move(fd));
}

Result<std::unique_ptr<PingPage>> PingPage::map(base::Fd fd) {
  void* data =
      ::mmap(nullptr, bare::Ping::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return base::Fd::from("mmap", -1).status();
  return std::unique_ptr<PingPage>(new PingPage(std::move(fd), data));
}

std::string PingPage::path() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_.get());
}

Status await_notification(Engine& engine) {
  const auto end = base::Deadline::in(kStepTimeout);
  for (unsigned polls = 1;; ++polls) {
    engine.progress();
    if (!engine.notifications().empty()) return {};
    if (polls % 1024 == 0 && end.passed())
      return {Code::timed_out, Scope::peer, "no notification came in 10 s"};
  }
}

Status EchoResponder::handle(const std::string& request) {
  std::istringstream fields(request);
  std::string command, file, place, peer_memory;
  std::uint64_t count = 0, offset = 0, bytes = 0;
  fields >> command;
  if (command == "pong" && fields >> count >> offset >> bytes && ping_ != nullptr)
    return pong(count, offset, bytes);
  if (command == "ping") fields >> file;
  if (command == "meet" && fields >> place) return lookup_region(place);
  const auto memory = fields >> place ? memories_.find(place) : memories_.end();
  if (memory != memories_.end() && command == "ping" && std::getline(fields, peer_memory))
    return ping(file, *memory->second, peer_memory);
  bool low_latency = false;
  if (memory != memories_.end() && command == "echo" &&
      fields >> count >> offset >> bytes >> low_latency)
    return echo(*memory->second, count, offset, bytes, low_latency);
  return {Code::invalid_argument, Scope::request, "not understood: " + request};
}

Status EchoResponder::lookup_region(const std::string& place) {
  if (!peer_.valid()) {
    auto peer = engine_.accept(kStepTimeout);
    if (!peer.ok()) return peer.status();
    peer_ = *std::move(peer);
  }
  auto region = peer_.lookup(place);
  if (!region.ok()) return region.status();
  region_ = *std::move(region);
  return {};
}

Status EchoResponder::echo(const Memory& memory, std::uint64_t count, std::uint64_t offset,
                           std::uint64_t bytes, bool low_latency) {
  const TransferOptions options{.notification = kNotification, .low_latency = low_latency};
  Transfer last;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (Status s = await_notification(engine_); !s.ok()) return s;
    const std::uint64_t at = message_offset(offset, bytes, i);
    const Block block{at, at, bytes};
    auto sent = peer_.write(memory.region(), region_, std::span(&block, 1), options);
    if (!sent.ok()) return sent.status();
    last = *std::move(sent);
  }
  return count == 0 ? Status() : last.wait(kStepTimeout);
}

Status EchoResponder::ping(const std::string& file, const Memory& memory,
                           const std::string& peer_memory) {
  const auto other = ExportedMemory::decode(peer_memory);
  if (!other.ok()) return other.status();
  if (memory.device() == nullptr || !other->exported)
    return {Code::invalid_argument, Scope::request, "both memories must be a GPU's"};
  auto page = PingPage::open(file);
  if (!page.ok()) return page.status();
  auto mapping = cuda::IpcMapping::open(*memory.device(), other->handle);
  if (!mapping.ok()) return mapping.status();
  auto made = bare::Ping::create(*memory.device(), (*page)->data(), 1);
  if (!made.ok()) return made.status();
  to_ = mapping->base() + other->allocation_offset;
  from_ = memory.address();
  mapping_.emplace(*std::move(mapping));
  page_ = *std::move(page);
  ping_ = *std::move(made);
  return {};
}

Status EchoResponder::pong(std::uint64_t count, std::uint64_t offset, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t at = message_offset(offset, bytes, i);
    if (Status s = ping_->answer(to_ + at, from_ + at, bytes, kStepTimeout); !s.ok()) return s;
  }
  return {};
}

}  // namespace linkspan::tool

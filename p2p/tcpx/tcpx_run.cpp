#include "p2p/tcpx/tcpx_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/options.hpp"
#include "p2p/tcpx/tcpx_bootstrap.hpp"
#include "p2p/tcpx/tcpx_memory.hpp"
#include "transport/nccl_net/plugin_selection.hpp"
#include "transport/nccl_net/tcpx/pool.hpp"
#include "transport/nccl_net/tcpx/unpack.hpp"

namespace linkspan::tool {
namespace {

using namespace transport::nccl_net;  // NOLINT(google-build-using-namespace)

constexpr char kPayload[] = "Hello from TCPX client!";
constexpr std::uint64_t kPayloadBytes = sizeof kPayload - 1;
constexpr int kTag = 42;
constexpr char kNext = 'n', kVerified = 'v', kFailed = 'f', kBye = 'b';

std::string hex(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", pointer);
  return text;
}

/// Returns the data of an iteration; the payload of the documents is the same in each.
std::vector<unsigned char> data_of(const TcpxPlan& plan, unsigned iteration) {
  if (plan.bytes == 0) return {kPayload, kPayload + kPayloadBytes};
  std::vector<unsigned char> data(plan.bytes);
  for (std::uint64_t i = 0; i < plan.bytes; ++i)
    data[i] = static_cast<unsigned char>(
        ((i + 1) * 0x9E3779B97F4A7C15u + iteration * 0xD1B54A32D192ED03u) >> 56);
  return data;
}

class Run {
 public:
  Run(const TcpxPlan& plan, const std::function<void(const std::string&)>& print)
      : plan_(plan), print_(print) {}

  Result<TcpxFigures> run() {
    print_("=== TCPX GPU-to-GPU transfer test ===");
    print_(std::string("Running in ") + (plan_.server ? "SERVER" : "CLIENT") + " mode");
    auto plugin = load_selected(plan_.plugin);
    if (!plugin.ok()) return plugin.status();
    plugin_ = *std::move(plugin);
    if (plan_.device >= plugin_->devices().size())
      return Status(Code::invalid_argument, Scope::request,
                    "device " + std::to_string(plan_.device) + ": " + plugin_->name() + " has " +
                        std::to_string(plugin_->devices().size()));
    const Properties& device = plugin_->devices()[plan_.device];
    piece_ = std::min<std::uint64_t>(device.max_bytes, std::uint64_t{4} << 20);
    const bool on_gpu = !plan_.host_memory && device.supports(abi::kCuda);
    auto memory = TcpxMemory::create(on_gpu, size());
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    Status ended = plan_.server ? serve() : send();
    return ended.ok() ? Result<TcpxFigures>(figures_) : Result<TcpxFigures>(std::move(ended));
  }

 private:
  base::Deadline step_deadline() const { return base::Deadline::in(plan_.timeout); }
  std::uint64_t size() const { return plan_.bytes == 0 ? kPayloadBytes : plan_.bytes; }
  abi::PointerType type() const { return memory_->on_gpu() ? abi::kCuda : abi::kHost; }

  /// Polls `what` until it returns true. timed_out; disconnected: the other side has closed.
  template <class What>
  Status poll_until(const char* for_what, const What& what) {
    const base::Deadline deadline = step_deadline();
    for (unsigned spins = 0;; ++spins) {
      auto found = what();
      if (!found.ok()) return found.status();
      if (*found) return {};
      if (deadline.passed())
        return {Code::timed_out, Scope::peer,
                std::string("waited in vain for ") + for_what + ": nothing came for " +
                    std::to_string(plan_.timeout / std::chrono::seconds(1)) + " s"};
      if (spins % 64 != 63) continue;  // a wait costs a system call, and sleeps
      if (Status status = bootstrap_->wait_briefly(); !status.ok()) return status;
    }
  }

  /// Reports the failure to the client.
  Status failed(Status why) {
    (void)bootstrap_->send(kFailed, step_deadline());
    return why;
  }

  Status serve() {
    auto listener = Listener::open(plugin_, static_cast<int>(plan_.device));
    if (!listener.ok()) return listener.status();
    print_("Listening on device " + std::to_string(plan_.device));
    auto bootstrap = Bootstrap::serve(plan_.port, (*listener)->handle(), step_deadline());
    if (!bootstrap.ok()) return bootstrap.status();
    bootstrap_ = *std::move(bootstrap);
    std::unique_ptr<ReceiveComm> comm;
    if (Status status = poll_until("the client's connection",
                                   [&]() -> Result<bool> {
                                     auto accepted = (*listener)->accept();
                                     if (!accepted.ok()) return accepted.status();
                                     comm = *std::move(accepted);
                                     return comm != nullptr;
                                   });
        !status.ok())
      return failed(status);
    print_("Connection accepted; recv_comm=" + hex(comm->raw()));
    if (Status status = plan_.transfer ? receive_all(*comm) : Status(); !status.ok())
      return failed(status);
    if (Status status = bootstrap_->send(kVerified, step_deadline()); !status.ok()) return status;
    const auto bye = bootstrap_->receive(step_deadline());
    if (!bye.ok() || *bye != kBye)
      return {Code::disconnected, Scope::peer, "the client has gone without a goodbye"};
    print_("✓ Test PASSED");
    return {};
  }

  Status send() {
    print_("Connecting to server at " + plan_.host);
    Handle handle{};
    auto bootstrap = Bootstrap::connect(plan_.host, plan_.port, handle, step_deadline());
    if (!bootstrap.ok()) return bootstrap.status();
    bootstrap_ = *std::move(bootstrap);
    auto pending_connect = PendingConnect::open(plugin_, static_cast<int>(plan_.device), handle);
    if (!pending_connect.ok()) return pending_connect.status();
    std::unique_ptr<SendComm> comm;
    if (Status status = poll_until("the server to accept",
                                   [&]() -> Result<bool> {
                                     auto connected = (*pending_connect)->connect();
                                     if (!connected.ok()) return connected.status();
                                     comm = *std::move(connected);
                                     return comm != nullptr;
                                   });
        !status.ok())
      return status;
    print_("Connection established; send_comm=" + hex(comm->raw()));
    if (Status status = plan_.transfer ? send_all(*comm) : Status(); !status.ok()) return status;
    const auto verdict = bootstrap_->receive(step_deadline());
    if (!verdict.ok()) return verdict.status();
    if (*verdict != kVerified)
      return {Code::corrupt, Scope::peer, "the server did not get what was sent: see there"};
    if (Status status = bootstrap_->send(kBye, step_deadline()); !status.ok()) return status;
    print_("✓ Test PASSED");
    return {};
  }

  Status send_all(SendComm& comm) {
    auto registered = comm.add_memory(memory_->data(), memory_->bytes(), type());
    if (!registered.ok()) return registered.status();
    print_("Registered client send buffer ptr=" + hex(memory_->data()) +
           ", bytes=" + std::to_string(memory_->bytes()));
    for (unsigned i = 0; i < plan_.iterations; ++i) {
      if (i != 0)
        if (const auto next = bootstrap_->receive(step_deadline()); !next.ok() || *next != kNext)
          return {Code::corrupt, Scope::peer, "the server wants no iteration " + std::to_string(i)};
      if (Status status = memory_->put(data_of(plan_, i)); !status.ok()) return status;
      print_("Sending " + std::to_string(size()) + " bytes");
      for (std::uint64_t begun = 0, sent = 0; sent < size();) {
        const auto step = [&]() -> Result<bool> {
          while (begun < size()) {
            const std::uint64_t bytes = std::min(piece_, size() - begun);
            const Status status = comm.send(static_cast<unsigned char*>(memory_->data()) + begun,
                                            bytes, kTag, **registered, bytes);
            if (status.code() == Code::no_resource) break;
            if (!status.ok()) return status;
            begun += bytes;
          }
          auto done = comm.test();
          if (!done.ok()) return done.status();
          if (*done) sent += (*done)->cookie;
          return done->has_value();
        };
        if (Status status = poll_until("a message to be sent", step); !status.ok()) return status;
      }
    }
    return {};
  }

  /// Finds the pool that an unpack reads, once for a connection, because it does not move.
  Status find_pool(const ReceiveComm& comm) {
    if (!memory_->on_gpu())
      return {Code::unsupported, Scope::transport,
              plugin_->name() + " receives into a pool of GPU memory: the unpack needs that GPU"};
    auto pool = tcpx::find_pool(*memory_->topology(), *memory_->device(), comm.kernels());
    if (!pool.ok()) return pool.status();
    pool_ = *pool;
    auto options = base::Options::from_environment();
    if (!options.ok()) return options.status();
    const auto settings = NcclNetSettings::read(*options);
    if (!settings.ok()) return settings.status();
    auto way = tcpx::choose_unpack(plan_.unpack, settings->unpack, Unpack::d2d);
    if (!way.ok()) return way.status();
    auto unpacker = tcpx::Unpacker::create(*memory_->device(), *way, {.ctas = options->copy_ctas});
    if (!unpacker.ok()) return unpacker.status();
    unpacker_ = *std::move(unpacker);
    return {};
  }

  Status unpack(std::size_t receive, std::uint64_t at, std::uint64_t bytes) {
    auto block =
        tcpx::DescriptorBlock::of_slot(*pool_.meta, receive % tcpx::kMetaSlots,
                                       {.pool_bytes = pool_.bytes, .receive_bytes = bytes});
    if (!block.ok()) return block.status();
    figures_.fragments += block->fragments();
    if (plan_.bytes == 0) {
      print_("Request metadata: frag_count=" + std::to_string(block->fragments()));
      std::size_t number = 0;
      for (const tcpx::LoadMeta& each : block->entries())
        print_("descriptor[" + std::to_string(number++) +
               "] src_off=" + std::to_string(each.src_off) + " len=" + std::to_string(each.len) +
               " dst_off=" + std::to_string(each.dst_off));
      print_(std::string("Launching device unpack (") + name_of(unpacker_->method()) +
             "), total_bytes=" + std::to_string(block->bytes()));
    }
    const tcpx::UnpackRequest request{
        .block = &*block, .bounce = pool_.bounce, .destination = memory_->address() + at};
    auto ticket = unpacker_->begin({&request, 1});
    if (!ticket.ok()) return ticket.status();
    std::optional<Status> end;
    if (Status status = poll_until("the unpack",
                                   [&]() -> Result<bool> {
                                     end = unpacker_->poll(*ticket);
                                     return end.has_value();
                                   });
        !status.ok())
      return status;
    if (end->ok() && plan_.bytes == 0) print_("Device unpack completed successfully");
    return *end;
  }
  static const char* name_of(Unpack way) {
    return way == Unpack::d2d ? "D2D copies" : way == Unpack::host ? "host gather" : "one kernel";
  }

  /// Moves the bytes of a completed receive to their destination.
  Status deliver(ReceiveComm& comm, const Comm::CommRegistration& memory, const Done& done,
                 std::uint64_t at, std::uint64_t due) {
    // A client may count the terminating zero too.
    const bool with_zero = plan_.bytes == 0 && done.bytes == kPayloadBytes + 1;
    if (done.bytes != due && !with_zero)
      return {Code::corrupt, Scope::peer,
              "wrong length: " + std::to_string(done.bytes) + " bytes came, " +
                  std::to_string(due) + " were expected"};
    if (comm.unpacks()) {
      if (Status status = unpack(received_, at, done.bytes); !status.ok()) return status;
    } else if (memory_->on_gpu()) {
      auto request =
          comm.flush(static_cast<unsigned char*>(memory_->data()) + at, done.bytes, memory);
      if (!request.ok()) return request.status();
      if (Status status = poll_until("the flush", [&]() { return comm.flushed(*request); });
          !status.ok())
        return status;
    }
    ++received_;
    return comm.consumed(done);
  }

  Status receive_all(ReceiveComm& comm) {
    auto registered = comm.add_memory(memory_->data(), memory_->bytes(), type());
    if (!registered.ok()) return registered.status();
    print_("Registered server receive buffer ptr=" + hex(memory_->data()) +
           ", bytes=" + std::to_string(memory_->bytes()));
    if (comm.unpacks())
      if (Status status = find_pool(comm); !status.ok()) return status;
    Duration took{};
    for (unsigned i = 0; i < plan_.iterations; ++i) {
      if (Status status = memory_->fill(0xEE); !status.ok()) return status;
      if (i != 0)
        if (Status status = bootstrap_->send(kNext, step_deadline()); !status.ok()) return status;
      print_("Waiting for client data, expected bytes=" + std::to_string(size()));
      const base::Time begin = base::Clock::steady().now();
      if (Status status = receive_iteration(comm, **registered); !status.ok()) return status;
      took += base::Clock::steady().now() - begin;
      if (Status status = verify(i); !status.ok()) return status;
    }
    figures_.gb_per_s = static_cast<double>(size() * plan_.iterations) /
                        static_cast<double>(std::max<Duration::rep>(took.count(), 1));
    return {};
  }

  Status receive_iteration(ReceiveComm& comm, const Comm::CommRegistration& memory) {
    const auto due_at = [&](std::uint64_t at) { return std::min(piece_, size() - at); };
    for (std::uint64_t posted = 0, at = 0; at < size(); at += due_at(at)) {
      std::optional<Done> done;
      const auto step = [&]() -> Result<bool> {
        while (posted < size()) {
          const std::uint64_t room = std::min(piece_, memory_->bytes() - posted);
          const Status status = comm.receive(static_cast<unsigned char*>(memory_->data()) + posted,
                                             room, kTag, memory, posted);
          if (status.code() == Code::no_resource) break;
          if (!status.ok()) return status;
          posted += due_at(posted);
        }
        auto tested = comm.test();
        if (!tested.ok()) return tested.status();
        done = *tested;
        return done.has_value();
      };
      if (Status status = poll_until("a message", step); !status.ok()) return status;
      if (Status status = deliver(comm, memory, *done, at, due_at(at)); !status.ok()) return status;
    }
    return {};
  }

  Status verify(unsigned iteration) {
    const std::vector<unsigned char> wanted = data_of(plan_, iteration);
    std::vector<unsigned char> found(wanted.size());
    if (Status status = memory_->get(found); !status.ok()) return status;
    if (plan_.bytes == 0) print_("Received bytes:" + hex_dump(found));
    const auto wrong = std::mismatch(found.begin(), found.end(), wanted.begin());
    if (wrong.first != found.end()) {
      char text[96];
      std::snprintf(text, sizeof text, "corrupted data: byte %lld is 0x%02x, not 0x%02x",
                    static_cast<long long>(wrong.first - found.begin()), *wrong.first,
                    *wrong.second);
      return {Code::corrupt, Scope::peer, text};
    }
    if (plan_.bytes == 0 || iteration + 1 == plan_.iterations)
      print_("Received data matches expected payload");
    return {};
  }
  static std::string hex_dump(const std::vector<unsigned char>& bytes) {
    std::string text;
    for (const unsigned char each : bytes) {
      char two[4];
      std::snprintf(two, sizeof two, " %02x", each);
      text += two;
    }
    return text;
  }

  const TcpxPlan& plan_;
  const std::function<void(const std::string&)>& print_;
  std::shared_ptr<Plugin> plugin_;      // also the process's
  std::unique_ptr<TcpxMemory> memory_;  // outlives the comm and the unpacker
  std::unique_ptr<tcpx::Unpacker> unpacker_;
  std::optional<Bootstrap> bootstrap_;
  std::uint64_t piece_ = 0;
  std::size_t received_ = 0;  // receives of the comm; the number selects the slot
  tcpx::Pool pool_;
  TcpxFigures figures_;
};

}  // namespace

Result<TcpxFigures> run_tcpx(const TcpxPlan& plan,
                             const std::function<void(const std::string&)>& print) {
  return Run(plan, print).run();
}

}  // namespace linkspan::tool

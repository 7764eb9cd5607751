#include "integrations/nccl/src/net.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/environment.hpp"
#include "base/options.hpp"
#include "base/process.hpp"

namespace linkspan::nccl {
namespace {

using namespace std::chrono_literals;

// Longer than the transport takes to end a transfer that the peer does not acknowledge.
constexpr Duration kQuiet = 12s;

std::string variable(const char* name) {
  const char* const value = base::environment(name);
  return value == nullptr ? "" : value;
}

Result<int> number_of(const char* name, std::uint64_t min, std::uint64_t max,
                      std::uint64_t otherwise) {
  const base::Setting set{.from = name, .value = variable(name)};
  const Status status = set.read_number(min, max, otherwise);
  return status.ok() ? Result<int>(static_cast<int>(otherwise)) : status;
}
Result<int> seconds_of(const char* name, std::uint64_t otherwise) {
  return number_of(name, 2, 86400, otherwise);
}

/// Returns what NCCL has in the place of a request: the comm's number and its place there. Null of
/// null.
void* name_of(const Request* request) {
  if (request == nullptr) return nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(request->comm->id() * kRequests + request->number % kRequests);
}

Status unknown(const char* what) {
  return {Code::invalid_argument, Scope::request,
          std::string(what) + " that NCCL has not been given, or has closed"};
}

}  // namespace

Result<std::unique_ptr<Net>> Net::open(Log log) {
  auto interfaces =
      choose_interfaces(variable("NCCL_SOCKET_IFNAME"), variable("NCCL_SOCKET_FAMILY"));
  if (!interfaces.ok()) return interfaces.status();
  const auto timeout = seconds_of("LINKSPAN_NCCL_MESSAGE_TIMEOUT", 300);
  if (!timeout.ok()) return timeout.status();
  const auto peer_timeout = seconds_of("LINKSPAN_NCCL_PEER_TIMEOUT", 30);
  if (!peer_timeout.ok()) return peer_timeout.status();
  const auto devices = number_of("LINKSPAN_NCCL_DEVICES", 1, kMaxDevices, 1);
  if (!devices.ok()) return devices.status();
  EngineOptions options;
  options.use_gpu = false;  // NCCL's kernels write host memory
  options.log = std::move(log);
  // NCCL's own sockets have no secret either.
  if (variable("LINKSPAN_SECRET").empty() && variable("LINKSPAN_SECRET_FILE").empty() &&
      variable("LINKSPAN_SECURITY").empty())
    options.security = Security::insecure;
  options.transport["tcp.peer_timeout"] = std::to_string(*peer_timeout);
  options.transport["tcp.stall_timeout"] = std::to_string(*timeout);
  if (interfaces->size() > 1) {
    std::string names;
    for (const Interface& each : *interfaces) names += (names.empty() ? "" : ",") + each.name;
    options.transport["tcp.interfaces"] = names;
  }
  options.name = "nccl sender " + std::to_string(::getpid());
  auto senders = Engine::open(options);
  if (!senders.ok()) return senders.status();
  options.name = "nccl receiver " + std::to_string(::getpid());
  auto receivers = Engine::open(options);
  if (!receivers.ok()) return receivers.status();
  if (Status status = receivers->listen("tcp:" + interfaces->front().address + ":0"); !status.ok())
    return status;
  std::unique_ptr<Net> net(new Net({.interfaces = *std::move(interfaces),
                                    .timeout = std::chrono::seconds(*timeout),
                                    .devices = *devices},
                                   *std::move(senders), *std::move(receivers)));
  auto here = net->senders_.register_memory(&net->mail_[0], sizeof net->mail_[0]);
  if (!here.ok()) return here.status();
  net->mailbox_ = *std::move(here);
  auto there = net->receivers_.register_memory(&net->mail_[1], sizeof net->mail_[1]);
  if (!there.ok()) return there.status();
  net->mailbox_here_ = *std::move(there);
  if (Status status = net->receivers_.publish(Link::kMailbox, net->mailbox_here_); !status.ok())
    return status;
  return net;
}

Result<void*> Net::listen(Handle& handle) {
  const base::MutexLock lock(mutex_);
  const std::string address = receivers_.addresses();
  handle = {};
  if (address.size() >= handle.address.size())
    return Status(Code::unsupported, Scope::process,
                  "the address \"" + address +
                      "\" does not fit into NCCL's handle: name one "
                      "interface by NCCL_SOCKET_IFNAME");
  std::ranges::copy(address, handle.address.begin());
  auto made = std::make_unique<Listener>();
  handle.listener = made->id = base::random_u64();  // known only to whom NCCL gives the handle
  void* const key = made.get();
  listeners_.emplace(key, std::move(made));
  return key;
}

std::shared_ptr<Link> Net::link_to(const std::string& address) {
  std::erase_if(links_, [](const auto& each) { return each.second.expired(); });
  std::shared_ptr<Link> link = links_[address].lock();
  if (link == nullptr || link->has_ended())
    links_[address] = link = std::make_shared<Link>(senders_, address, mailbox_, facts_.timeout);
  return link;
}

Result<void*> Net::connect(Handle& handle) {
  const base::MutexLock lock(mutex_);
  if (handle.magic != Handle::kMagic)
    return Status(Code::invalid_argument, Scope::request,
                  "connect by a handle of another plugin: every rank needs this one");
  if (handle.connecting == 0) {
    handle.connecting = ++last_id_;
    auto comm = std::make_unique<SendComm>(handle.connecting, link_to(std::string(handle.where())));
    by_id_[comm->id()] = comm.get();
    connecting_[handle.connecting].comm = std::move(comm);
  }
  take_notifications();
  const auto found = connecting_.find(handle.connecting);
  if (found == connecting_.end()) return unknown("a connect");
  Connecting& trying = found->second;
  const auto give_up = [&](Status why) LINKSPAN_REQUIRES(mutex_) {
    by_id_.erase(trying.comm->id());
    connecting_.erase(found);
    return why;
  };
  const auto connected = trying.comm->link().connected();
  if (!connected.ok()) return give_up(connected.status());
  if (!*connected) return nullptr;
  if (!trying.said) {
    const Status status = trying.comm->link().send(
        {.kind = FrameKind::hello, .comm = handle.listener, .number = trying.comm->id()});
    trying.said = status.ok();
    if (!status.ok() && status.code() != Code::no_resource) return give_up(status);
  }
  if (Status status = trying.comm->link().alive(); !status.ok()) return give_up(status);
  if (!trying.comm->receiver) return nullptr;
  void* const key = trying.comm.get();
  comms_.emplace(key, std::move(trying.comm));
  connecting_.erase(found);
  return key;
}

Result<Peer> Net::receivers_peer(std::uint64_t id) const {
  const auto peers = receivers_.peers();
  const auto found = std::ranges::find(peers, id, &Peer::id);
  if (found == peers.end()) return Status(Code::disconnected, Scope::peer, "the sender is gone");
  return *found;
}

Result<void*> Net::accept(void* listener) {
  const base::MutexLock lock(mutex_);
  take_notifications();
  const auto found = listeners_.find(listener);
  if (found == listeners_.end()) return unknown("a listener");
  Listener& at = *found->second;
  if (at.accepting == nullptr) {
    if (at.hellos.empty()) return nullptr;
    const auto [peer, sender] = at.hellos.front();
    at.hellos.pop_front();
    auto met = receivers_peer(peer);
    if (!met.ok()) return nullptr;  // it has left, and another may come
    at.accepting = std::make_unique<ReceiveComm>(++last_id_, *std::move(met), sender);
    by_id_[at.accepting->id()] = at.accepting.get();
  }
  const auto accepted = at.accepting->accept();
  if (!accepted.ok()) {
    by_id_.erase(at.accepting->id());
    at.accepting.reset();
    return nullptr;
  }
  if (!*accepted) return nullptr;
  void* const key = at.accepting.get();
  comms_.emplace(key, std::move(at.accepting));
  return key;
}

Comm* Net::find(void* comm) {
  const auto found = comms_.find(comm);
  return found == comms_.end() ? nullptr : found->second.get();
}

Result<void*> Net::register_memory(void* comm, void* data, std::size_t bytes) {
  const base::MutexLock lock(mutex_);
  Comm* const of = find(comm);
  if (of == nullptr) return unknown("regMr of a comm");
  const bool receives = of->receives();
  Engine& engine = receives ? receivers_ : senders_;
  auto region = engine.register_memory(data, bytes, {.peers = {.read = false, .write = receives}});
  if (!region.ok()) return region.status();
  auto made = std::make_unique<Memory>(
      Memory{.data = static_cast<std::byte*>(data), .region = *std::move(region)});
  if (receives) {
    made->number = ++last_id_;
    if (Status status = engine.publish(Link::name_of(made->number), made->region); !status.ok()) {
      (void)engine.invalidate(made->region, 5s);  // NCCL may free the memory
      return status;
    }
  }
  Memory* const key = made.get();
  of->memories.emplace(key, std::move(made));
  return key;
}

/// Ends a registration, after which the memory may be freed. Waits until the deadline, so it is
/// called for a memory or comm that no other thread finds any more.
Status Net::end(Memory& memory, bool of_receiver, base::Deadline deadline) {
  return (of_receiver ? receivers_ : senders_).invalidate(memory.region, deadline.left());
}

Status Net::deregister(void* comm, void* memory) {
  std::unique_ptr<Memory> ending;
  bool receives = false;
  {
    const base::MutexLock lock(mutex_);
    Comm* const of = find(comm);
    if (of == nullptr) return unknown("deregMr of a comm");
    const auto found = of->memories.find(static_cast<Memory*>(memory));
    if (found == of->memories.end()) return unknown("deregMr of memory");
    if (of->uses(*found->second))  // as NCCL does when it aborts
      of->abandon({Code::invalid_argument, Scope::request,
                   "deregMr of memory of a message that NCCL has not tested to its end"});
    receives = of->receives();
    ending = std::move(found->second);
    of->memories.erase(found);
  }
  Status status = end(*ending, receives, base::Deadline::in(kQuiet));
  if (status.ok()) return status;
  const base::MutexLock lock(mutex_);
  if (Comm* const of = find(comm); of != nullptr)  // it may be asked again
    of->memories.emplace(static_cast<Memory*>(memory), std::move(ending));
  return status;
}

Result<void*> Net::send(void* comm, void* data, std::size_t bytes, void* memory) {
  const base::MutexLock lock(mutex_);
  auto* const of = dynamic_cast<SendComm*>(find(comm));
  if (of == nullptr) return unknown("isend of a comm");
  const auto known = of->memories.find(static_cast<Memory*>(memory));
  const auto sent =
      of->send(data, bytes, known == of->memories.end() ? nullptr : known->second.get());
  return sent.ok() ? Result<void*>(name_of(*sent)) : sent.status();
}

Result<void*> Net::receive(void* comm, void* data, std::size_t bytes, void* memory) {
  const base::MutexLock lock(mutex_);
  auto* const of = dynamic_cast<ReceiveComm*>(find(comm));
  if (of == nullptr) return unknown("irecv of a comm");
  const auto known = of->memories.find(static_cast<Memory*>(memory));
  const auto posted =
      of->receive(data, bytes, known == of->memories.end() ? nullptr : known->second.get());
  return posted.ok() ? Result<void*>(name_of(*posted)) : posted.status();
}

Result<Net::Tested> Net::test(void* request) {
  const base::MutexLock lock(mutex_);
  const auto name = reinterpret_cast<std::uintptr_t>(request);
  const auto comm = by_id_.find(name / kRequests);
  Request* const of = comm == by_id_.end() ? nullptr : comm->second->request(name % kRequests);
  if (of == nullptr) return unknown("test of a request");
  if (!of->done) take_notifications_of_round(of);
  auto ended = of->comm->test(*of);
  if (ended.status().code() == Code::disconnected) {
    take_notifications();
    ended = of->comm->test(*of);
  }
  if (!ended.ok()) return ended.status();
  if (!*ended) return Tested{false, 0};
  const Tested tested{true, of->bytes};
  *of = {};
  return tested;
}

Status Net::close_comm(void* comm) {
  std::unique_ptr<Comm> closing;
  {
    const base::MutexLock lock(mutex_);
    const auto found = comms_.find(comm);
    if (found == comms_.end()) return unknown("close of a comm");
    closing = std::move(found->second);
    by_id_.erase(closing->id());
    comms_.erase(found);
  }
  const auto deadline = base::Deadline::in(kQuiet);
  if (auto* const sender = dynamic_cast<SendComm*>(closing.get())) sender->settle(5s);
  {
    const base::MutexLock lock(mutex_);
    closing->say_closed();
  }
  Status status;
  for (const auto& [key, memory] : closing->memories)
    if (Status ended = end(*memory, closing->receives(), deadline); status.ok())
      status = std::move(ended);
  const base::MutexLock lock(mutex_);
  closing.reset();  // and its Link, if no other comm has that
  return status;
}

Status Net::close_listener(void* listener) {
  const base::MutexLock lock(mutex_);
  const auto found = listeners_.find(listener);
  if (found == listeners_.end()) return unknown("close of a listener");
  if (found->second->accepting != nullptr) by_id_.erase(found->second->accepting->id());
  listeners_.erase(found);
  return {};
}

/// Takes notifications once for all requests that NCCL tests one after the other: when it comes
/// back to the request for which they were taken, or has tested many others.
void Net::take_notifications_of_round(const void* request) {
  if (request != round_.request && ++round_.tests < kTestsOfRound) return;
  round_ = {.request = request};
  take_notifications();
}

void Net::take_notifications() {
  for (const Notification& each : receivers_.notifications()) take(each, true);
  for (const Notification& each : senders_.notifications()) take(each, false);
}

/// Hands a notification on. A comm that is closed, or never was, gets none.
void Net::take(const Notification& notification, bool by_receiver) {
  const auto frame = frame_of(notification.bytes);
  if (!frame) return;
  if (frame->kind == FrameKind::hello) {
    if (!by_receiver) return;
    for (auto& [key, listener] : listeners_)
      if (listener->id == frame->comm && listener->hellos.size() < kMaxHellos)
        listener->hellos.emplace_back(notification.peer, frame->number);
    return;
  }
  const auto found = by_id_.find(frame->comm);
  if (found == by_id_.end()) return;
  Comm& comm = *found->second;
  if (comm.receives() != by_receiver || comm.peer() != notification.peer) return;
  auto rest = std::span(notification.bytes).subspan(sizeof *frame);
  comm.take(*frame, rest);
  if (frame->kind == FrameKind::small) return;
  for (auto next = frame_of(rest); next && next->comm == comm.id(); next = frame_of(rest)) {
    rest = rest.subspan(sizeof *next);
    comm.take(*next, {});
  }
}

}  // namespace linkspan::nccl

// tests/support/nccl_net_plugin/plugin.cpp - the ABI's functions: each looks up what it was given,
// fails where the environment orders it, and hands on.
#include "tests/support/nccl_net_plugin/plugin.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "tests/support/nccl_net_plugin/connection.hpp"
#include "tests/support/nccl_net_plugin/live.hpp"

namespace linkspan::nccl_test {

struct Context {};

Live& live() {
  static Live& only = *new Live;
  return only;
}

namespace {

std::atomic<Logger> logger{nullptr};

void write(int level, const std::string& text, Where at) {
  if (const Logger to = logger.load(std::memory_order_acquire); to != nullptr)
    to(level, kLogOfNet, at.file, at.line, "%s", text.c_str());
}

/// Returns the result of `call` of the comm, unless another call of it is running or a failure is
/// due.
template <class Of, class Function>
int call(Of* comm, const char* function, Function&& of) {
  if (comm == nullptr) return refuse(kInvalidArgument, std::string(function) + " of no comm");
  const Comm::Call alone(*comm);
  if (!alone)
    return refuse(kInvalidUsage,
                  std::string(function) + " while another thread calls for the comm");
  const Clock::time_point begin = Clock::now();
  const int failure = comm->failures.of(comm->settings, function);
  const int result = failure != kOk ? failure : of(*comm);
  while (Clock::now() - begin < comm->settings.call) {
  }
  return result;
}

Comm* find(const void* comm) {
  if (SendComm* const found = live().sends.find(comm); found != nullptr) return found;
  return live().receives.find(comm);
}

template <class Of>
int close(Known<std::unique_ptr<Of>>& known, void* comm, const char* function) {
  if (known.remove(comm) == nullptr)
    return refuse(kInvalidArgument, std::string(function) + " of no comm");
  return kOk;
}

int check(void* context, int device) {
  if (kKind.version >= 11 && live().contexts.find(context) == nullptr)
    return refuse(kInvalidArgument, "a context that init did not give");
  return device == 0 ? int{kOk} : refuse(kInvalidArgument, "device " + std::to_string(device));
}

}  // namespace

int refuse(Answer answer, const std::string& why, Where at) {
  write(kLogWarn, why, at);
  return answer;
}

void inform(const std::string& what, Where at) { write(kLogInfo, what, at); }

int ordered_failure(const char* function) {
  static std::mutex mutex;
  static Failures failures;
  const Result<Settings> settings = Settings::from_environment();
  if (!settings.ok()) return refuse(kInvalidUsage, settings.status().what());
  const std::lock_guard lock(mutex);
  return failures.of(*settings, function);
}

int init(Logger to) {
  logger = to;
  return ordered_failure("init");
}

int make_context(void** context) {
  auto made = std::make_unique<Context>();
  *context = made.get();
  live().contexts.add(*context, std::move(made));
  return kOk;
}

int finalize(void* context) {
  const auto uses = [context](const auto& user) { return user.context() == context; };
  if (live().sends.any(uses) || live().receives.any(uses) || live().listeners.any(uses))
    return refuse(kInvalidUsage, "finalize before all comms were closed");
  return close(live().contexts, context, "finalize");
}

int devices(int* count) {
  *count = 1;
  return ordered_failure("devices");
}

int pointer_support() {
  return kKind.takes_gpus && Gpu::any() ? kHostPointer | kCudaPointer : kHostPointer;
}

int listen(void* context, int device, void* handle, void** comm) {
  *comm = nullptr;
  if (const int failure = ordered_failure("listen"); failure != kOk) return failure;
  if (const int result = check(context, device); result != kOk) return result;
  std::unique_ptr<Listener> made;
  if (const int result = Listener::open(context, handle, made); result != kOk) return result;
  *comm = made.get();
  live().listeners.add(*comm, std::move(made));
  return kOk;
}

int connect(void* context, int device, void* handle, void** comm, NetDeviceHandle** kernels) {
  *comm = nullptr;
  if (kernels != nullptr) *kernels = nullptr;
  if (const int result = check(context, device); result != kOk) return result;
  Handle where{};
  std::memcpy(&where, handle, sizeof where);
  if (where.magic != kHandleMagic)
    return refuse(kInvalidArgument, "connect to no handle of listen");
  const auto self = reinterpret_cast<std::uintptr_t>(handle);
  if (where.self != 0 && where.self != self)
    return refuse(kInvalidUsage, "connect by a handle that was copied after the first try");
  if (where.self == 0) {
    live().connecting.remove(handle);  // one that was given up at the same place
    std::unique_ptr<Connecting> made;
    if (const int result = Connecting::open(context, where, made); result != kOk) return result;
    live().connecting.add(handle, std::move(made));
    where.self = self;
    std::memcpy(handle, &where, sizeof where);
  }
  Connecting* const trying = live().connecting.find(handle);
  if (trying == nullptr)
    return refuse(kInvalidUsage, "connect by a handle that has its comm, or failed");
  std::unique_ptr<SendComm> made;
  const int result = trying->connect(made);
  if (result != kOk || made != nullptr) live().connecting.remove(handle);
  if (made == nullptr) return result;
  *comm = made.get();
  live().sends.add(*comm, std::move(made));
  return kOk;
}

int accept(void* listening, void** comm, NetDeviceHandle** kernels) {
  *comm = nullptr;
  if (kernels != nullptr) *kernels = nullptr;
  Listener* const listener = live().listeners.find(listening);
  if (listener == nullptr) return refuse(kInvalidArgument, "accept of no listen comm");
  std::unique_ptr<ReceiveComm> made;
  const int result = listener->accept(made);
  if (made == nullptr) return result;
  if (kernels != nullptr) *kernels = made->kernels();
  *comm = made.get();
  live().receives.add(*comm, std::move(made));
  return kOk;
}

int register_memory(void* comm, void* data, std::size_t bytes, int type, void** memory) {
  return call(find(comm), "regMr",
              [&](Comm& of) { return of.add_memory(data, bytes, type, memory); });
}

int deregister(void* comm, void* memory) {
  return call(find(comm), "deregMr", [&](Comm& of) { return of.remove_memory(memory); });
}

int send(void* comm, void* data, std::size_t bytes, int tag, void* memory, void** request) {
  return call(live().sends.find(comm), "isend",
              [&](SendComm& of) { return of.send(data, bytes, tag, memory, request); });
}

int receive(void* comm, int n, void* data, std::size_t bytes, int tag, void* memory,
            void** request) {
  return call(live().receives.find(comm), "irecv",
              [&](ReceiveComm& of) { return of.receive(n, data, bytes, tag, memory, request); });
}

int flush(void* comm, int n, void** data, void** memories, void** request) {
  return call(live().receives.find(comm), "iflush",
              [&](ReceiveComm& of) { return of.flush(n, data, memories, request); });
}

int test(void* request, int* done, int* bytes) {
  Request* const known = live().requests.find(request);
  return call(known == nullptr ? nullptr : known->comm, "test",
              [&](Comm& of) { return of.test(*known, done, bytes); });
}

int consumed(void* comm, int n, void* request) {
  return call(live().receives.find(comm), "irecvConsumed",
              [&](ReceiveComm& of) { return of.consumed(n, request); });
}

int close_send(void* comm) { return close(live().sends, comm, "closeSend"); }
int close_receive(void* comm) { return close(live().receives, comm, "closeRecv"); }
int close_listen(void* comm) { return close(live().listeners, comm, "closeListen"); }

}  // namespace linkspan::nccl_test

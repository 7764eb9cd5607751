// tests/unit/nccl_exporter_fixture.hpp - libnccl-net-linkspan.so by one of its tables, called as
// NCCL calls it; both ends are in this process, over loopback.
//
// Threads: externally synchronised.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdarg>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/unit/nccl_net_fixture.hpp"

namespace linkspan::transport::nccl_net {

using namespace std::chrono_literals;

inline void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level != abi::kWarn) return;
  va_list arguments;
  va_start(arguments, format);
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  Lines::all().log().write(base::Level::warning, text.data());
}

/// The functions of one version.
class NcclExporter : public NcclNet, public ::testing::WithParamInterface<int> {
 protected:
  NcclExporter() {
    // The environment as the first test finds it counts for the process.
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);  // NOLINT(concurrency-mt-unsafe)
    const std::string file = test::file_beside_this_program("nccl/libnccl-net-linkspan.so");
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    net_ = make_net(GetParam(),
                    ::dlsym(library, ("ncclNetPlugin_v" + std::to_string(GetParam())).c_str()));
    EXPECT_EQ(net_->init(&log_line), abi::kSuccess);
  }
  ~NcclExporter() override { EXPECT_EQ(net_->finalize(), abi::kSuccess); }

  using Handle = std::array<std::byte, abi::kHandleBytes>;

  struct Ends {
    void *listener = nullptr, *send = nullptr, *receive = nullptr;
  };
  Ends connect() {
    Ends ends;
    alignas(8) std::array<std::byte, abi::kHandleBytes> handle{};
    EXPECT_EQ(net_->listen(0, handle.data(), ends.listener), abi::kSuccess);
    auto there = handle;  // as NCCL carries it
    until([&] {
      abi::DeviceHandle* kernels = nullptr;
      if (ends.send == nullptr) {
        EXPECT_EQ(net_->connect(0, there.data(), ends.send, kernels), abi::kSuccess);
      }
      if (ends.receive == nullptr) {
        EXPECT_EQ(net_->accept(ends.listener, ends.receive, kernels), abi::kSuccess);
      }
      return ends.send != nullptr && ends.receive != nullptr;
    });
    return ends;
  }
  void close(const Ends& ends) {
    EXPECT_EQ(net_->close_send(ends.send), abi::kSuccess);
    EXPECT_EQ(net_->close_receive(ends.receive), abi::kSuccess);
    EXPECT_EQ(net_->close_listen(ends.listener), abi::kSuccess);
  }
  void* memory(void* comm, Bytes& bytes) {
    void* handle = nullptr;
    EXPECT_EQ(net_->register_memory(comm, bytes.data(), bytes.size(), abi::kHost, handle),
              abi::kSuccess);
    return handle;
  }
  void* send(void* comm, void* data, std::size_t bytes, void* handle) {
    return begun([&](void*& request) { return net_->send(comm, data, bytes, 1, handle, request); });
  }
  void* receive(void* comm, void* data, std::size_t bytes, void* handle) {
    return begun(
        [&](void*& request) { return net_->receive(comm, data, bytes, 1, handle, request); });
  }
  /// Returns a request, once the comm takes one more.
  static void* begun(const std::function<int(void*&)>& begin) {
    void* request = nullptr;
    until([&] {
      EXPECT_EQ(begin(request), abi::kSuccess);
      return request != nullptr;
    });
    return request;
  }
  /// Tests both in turn until they have ended, as NCCL's thread does. Returns what has come.
  int finish(void* sent, void* received) {
    int came = -1;
    until([&] {
      for (void** const each : {&sent, &received}) {
        bool done = false;
        int bytes = -1;
        if (*each == nullptr) continue;
        EXPECT_EQ(net_->test(*each, done, bytes), abi::kSuccess) << Lines::all().text();
        if (!done) continue;
        if (each == &received) came = bytes;
        *each = nullptr;
      }
      return sent == nullptr && received == nullptr;
    });
    return came;
  }

  std::unique_ptr<Net> net_;
};

}  // namespace linkspan::transport::nccl_net

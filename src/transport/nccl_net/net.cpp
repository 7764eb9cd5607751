#include "transport/nccl_net/net.hpp"

#include <algorithm>
#include <climits>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace linkspan::transport::nccl_net {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;  // a power of two that an int holds
constexpr int kOldRequests = 8, kRequests = 32;

/// Maps a version, from abi::kOldest on, to its type.
template <int V>
using TableOf =
    std::tuple_element_t<V - abi::kOldest,
                         std::tuple<abi::TableV5, abi::TableV6, abi::TableV7, abi::TableV8,
                                    abi::TableV9, abi::TableV10, abi::TableV11, abi::TableV12>>;
template <int V>
using PropertiesOf = std::tuple_element_t<
    V - abi::kOldest,
    std::tuple<abi::PropertiesV5, abi::PropertiesV5, abi::PropertiesV7, abi::PropertiesV8,
               abi::PropertiesV9, abi::PropertiesV9, abi::PropertiesV11, abi::PropertiesV12>>;

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

template <int V>
class NetOf final : public Net {
  using Table = TableOf<V>;

 public:
  explicit NetOf(const Table* table) : table_(table) {}

  int version() const noexcept override { return V; }
  const char* name() const noexcept override { return table_->name; }
  int max_requests() const noexcept override { return V < 7 ? kOldRequests : kRequests; }
  bool has_consumed() const noexcept override {
    if constexpr (V >= 7) return table_->irecv_consumed != nullptr;
    return false;
  }

  int init(abi::Logger logger) override {
    if constexpr (V >= 11) return table_->init(&context_, 0, &config_, logger, no_profile);
    if constexpr (V == 10) return table_->init(logger, no_profile);
    if constexpr (V < 10) return table_->init(logger);
  }
  int finalize() override {
    if constexpr (V >= 11)
      if (table_->finalize != nullptr) return table_->finalize(context_);
    return abi::kSuccess;
  }
  int devices(int& count) override { return table_->devices(&count); }

  int properties(int device, Properties& into) override {
    PropertiesOf<V> p;
    std::memset(&p, 0, sizeof p);
    const int result = table_->get_properties(device, &p);
    if (result != abi::kSuccess) return result;
    into = {};
    into.name = text_of(p.name);
    into.pci_path = text_of(p.pci_path);
    into.guid = p.guid;
    into.pointer_support = p.pointer_support;
    into.speed_mbps = p.speed;
    into.port = p.port;
    into.latency_us = p.latency;
    into.max_comms = p.max_comms;
    into.max_receives = std::max(p.max_receives, 1);
    into.max_bytes = kMaxBytes;
    if constexpr (V >= 7) {
      into.device_type = p.device_type;
      into.device_version = p.device_version;
    }
    if constexpr (V >= 8) into.registration_is_global = p.registration_is_global != 0;
    if constexpr (V >= 9) {
      into.force_flush = p.force_flush != 0;
      if (p.max_p2p_bytes != 0) into.max_bytes = std::min(kMaxBytes, p.max_p2p_bytes);
    }
    return result;
  }

  int listen(int device, void* handle, void*& comm) override {
    if constexpr (V >= 11) return table_->listen(context_, device, handle, &comm);
    if constexpr (V < 11) return table_->listen(device, handle, &comm);
  }
  int connect(int device, void* handle, void*& comm, abi::DeviceHandle*& kernels) override {
    if constexpr (V >= 11) return table_->connect(context_, device, handle, &comm, &kernels);
    if constexpr (V == 10) return table_->connect(device, &config_, handle, &comm, &kernels);
    if constexpr (V >= 7 && V < 10) return table_->connect(device, handle, &comm, &kernels);
    if constexpr (V < 7) return table_->connect(device, handle, &comm);
  }
  int accept(void* listening, void*& comm, abi::DeviceHandle*& kernels) override {
    if constexpr (V >= 7) return table_->accept(listening, &comm, &kernels);
    if constexpr (V < 7) return table_->accept(listening, &comm);
  }

  int register_memory(void* comm, void* data, std::size_t bytes, abi::PointerType type,
                      void*& handle) override {
    if constexpr (V >= 8) {
      return table_->reg_mr(comm, data, bytes, type, &handle);
    } else {
      if (bytes > INT_MAX) return abi::kInvalidArgument;
      return table_->reg_mr(comm, data, static_cast<int>(bytes), type, &handle);
    }
  }
  int deregister(void* comm, void* handle) override { return table_->dereg_mr(comm, handle); }

  int send(void* comm, void* data, std::size_t bytes, int tag, void* handle,
           void*& request) override {
    if (bytes > kMaxBytes) return abi::kInvalidArgument;
    if constexpr (V >= 10) return table_->isend(comm, data, bytes, tag, handle, nullptr, &request);
    if constexpr (V == 9) return table_->isend(comm, data, bytes, tag, handle, &request);
    if constexpr (V < 9)
      return table_->isend(comm, data, static_cast<int>(bytes), tag, handle, &request);
  }
  int receive(void* comm, void* data, std::size_t bytes, int tag, void* handle,
              void*& request) override {
    if (bytes > kMaxBytes) return abi::kInvalidArgument;
    std::conditional_t<(V >= 9), std::size_t, int> size{};
    size = static_cast<decltype(size)>(bytes);
    void* hint = nullptr;
    if constexpr (V >= 10)
      return table_->irecv(comm, 1, &data, &size, &tag, &handle, &hint, &request);
    if constexpr (V < 10) return table_->irecv(comm, 1, &data, &size, &tag, &handle, &request);
  }
  int flush(void* comm, void* data, int bytes, void* handle, void*& request) override {
    return table_->iflush == nullptr ? int{abi::kSuccess}
                                     : table_->iflush(comm, 1, &data, &bytes, &handle, &request);
  }
  int test(void* request, bool& done, int& bytes) override {
    int over = 0;
    const int result = table_->test(request, &over, &bytes);
    done = over != 0;
    return result;
  }
  int consumed(void* comm, void* request) override {
    if constexpr (V >= 7)
      if (table_->irecv_consumed != nullptr) return table_->irecv_consumed(comm, 1, request);
    return abi::kSuccess;
  }
  int close_send(void* comm) override { return table_->close_send(comm); }
  int close_receive(void* comm) override { return table_->close_receive(comm); }
  int close_listen(void* comm) override { return table_->close_listen(comm); }

  static bool complete(const Table& t) {
    return t.name != nullptr && t.init != nullptr && t.devices != nullptr &&
           t.get_properties != nullptr && t.listen != nullptr && t.connect != nullptr &&
           t.accept != nullptr && t.reg_mr != nullptr && t.dereg_mr != nullptr &&
           t.isend != nullptr && t.irecv != nullptr && t.test != nullptr &&
           t.close_send != nullptr && t.close_receive != nullptr && t.close_listen != nullptr;
  }

 private:
  static int no_profile(void**, int, void*, std::int64_t, void*) { return abi::kSuccess; }

  const Table* const table_;
  void* context_ = nullptr;  // from version 11 on
  abi::Config config_;
};

template <int V>
std::unique_ptr<Net> make(const void* table) {
  const auto* const typed = static_cast<const TableOf<V>*>(table);
  return NetOf<V>::complete(*typed) ? std::make_unique<NetOf<V>>(typed) : nullptr;
}

}  // namespace

std::unique_ptr<Net> make_net(int version, const void* table) {
  constexpr std::unique_ptr<Net> (*kMake[])(const void*) = {make<5>, make<6>,  make<7>,  make<8>,
                                                            make<9>, make<10>, make<11>, make<12>};
  static_assert(std::size(kMake) == abi::kNewest - abi::kOldest + 1);
  if (table == nullptr || version < abi::kOldest || version > abi::kNewest) return nullptr;
  return kMake[version - abi::kOldest](table);
}

}  // namespace linkspan::transport::nccl_net

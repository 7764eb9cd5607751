#include "api/c/options.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

namespace linkspan::c {
namespace {

constexpr linkspan_engine_options kEngineOptions = LINKSPAN_ENGINE_OPTIONS_INIT;
constexpr linkspan_connect_options kConnectOptions = LINKSPAN_CONNECT_OPTIONS_INIT;
constexpr linkspan_region_options kRegionOptions = LINKSPAN_REGION_OPTIONS_INIT;
constexpr linkspan_transfer_options kTransferOptions = LINKSPAN_TRANSFER_OPTIONS_INIT;
constexpr linkspan_capture_options kCaptureOptions = LINKSPAN_CAPTURE_OPTIONS_INIT;
constexpr linkspan_shape kShape = LINKSPAN_SHAPE_INIT;

/// Copies the caller's struct over `defaults`, which have the length of this release.
template <class T>
Result<T> sized(const T* given, const T& defaults, const char* name) {
  if (given == nullptr) return defaults;
  if (given->size < sizeof given->size)
    return bad(std::string(name) + ": size is " + std::to_string(given->size) +
               "; begin with its INIT macro");
  T out = defaults;
  std::memcpy(&out, given, std::min(given->size, sizeof out));
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof out; i < given->size; ++i)
    if (bytes[i] != 0)
      return Status(Code::unsupported, Scope::request,
                    std::string(name) + " of a later release: this one knows " +
                        std::to_string(sizeof out) + " bytes of it, and byte " + std::to_string(i) +
                        " is not zero");
  return out;
}

/// Reads fields, and keeps the first that is wrong.
class Fields {
 public:
  bool flag(const char* name, std::int32_t value) { return number(name, value, 0, 1) != 0; }
  std::optional<unsigned> optional(const char* name, std::int32_t value) {
    if (number(name, value, -1, std::numeric_limits<std::int32_t>::max()) < 0) return std::nullopt;
    return static_cast<unsigned>(value);
  }
  Duration time(const char* name, std::int64_t value) {
    const auto out = duration({name, value});
    if (!out.ok() && status_.ok()) status_ = out.status();
    return out.ok() ? *out : Duration();
  }
  std::int32_t number(const char* name, std::int32_t value, std::int32_t least, std::int32_t most) {
    if (value >= least && value <= most) return value;
    if (status_.ok())
      status_ = bad(std::string(name) + " is " + std::to_string(value) + "; from " +
                    std::to_string(least) + " to " + std::to_string(most));
    return least;
  }
  StreamOrder stream(const char* name, const linkspan_stream& given) {
    StreamOrder out{.kind = static_cast<StreamOrder::Kind>(
                        number(name, given.kind, 0, LINKSPAN_STREAM_PER_THREAD_DEFAULT)),
                    .handle = given.handle};
    std::memcpy(out.gpu.data(), given.gpu, sizeof given.gpu);
    return out;
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

/// Returns the bytes of a notification, which stay the caller's.
Result<std::span<const std::byte>> notification_of(const void* bytes, std::size_t count) {
  if (bytes == nullptr && count != 0)
    return bad("a notification of " + std::to_string(count) + " bytes at null");
  return std::span(static_cast<const std::byte*>(bytes), count);
}

const char* or_empty(const char* given) { return given == nullptr ? "" : given; }

Result<std::string> secret_of(const char* secret, std::size_t bytes) {
  if (secret == nullptr && bytes != 0)
    return bad("a secret of " + std::to_string(bytes) + " bytes at null");
  if (secret != nullptr && bytes == 0) return bad("a secret of 0 bytes: set secret_bytes");
  return std::string(or_empty(secret), bytes);
}

}  // namespace

Result<EngineOptions> engine_options(const linkspan_engine_options* given) {
  const auto c = sized(given, kEngineOptions, "linkspan_engine_options");
  if (!c.ok()) return c.status();
  Fields fields;
  EngineOptions out{.name = or_empty(c->name),
                    .socket_dir = or_empty(c->socket_dir),
                    .any_uid = fields.flag("any_uid", c->any_uid),
                    .use_gpu = fields.flag("use_gpu", c->use_gpu),
                    .cpu_threads = c->cpu_threads,
                    .copy_ctas = fields.optional("copy_ctas", c->copy_ctas),
                    .relay_gpus = fields.optional("relay_gpus", c->relay_gpus),
                    .secret_file = or_empty(c->secret_file),
                    .transfer_deadline = fields.time("transfer_deadline", c->transfer_deadline)};
  if (fields.number("calibrate", c->calibrate, -1, 1) >= 0) out.calibrate = c->calibrate != 0;
  if (fields.number("security", c->security, -1, LINKSPAN_SECURITY_ENCRYPTED) >= 0)
    out.security = static_cast<Security>(c->security);
  (void)fields.number("reserved", c->reserved, 0, 0);
  auto secret = secret_of(c->secret, c->secret_bytes);
  if (!secret.ok()) return secret.status();
  out.secret = *std::move(secret);
  if (c->transport == nullptr && c->transport_count != 0)
    return bad(std::to_string(c->transport_count) + " options of transports at null");
  for (std::size_t i = 0; i < c->transport_count; ++i) {
    const linkspan_transport_option& each = c->transport[i];
    if (each.key == nullptr) return bad("transport[" + std::to_string(i) + "].key is null");
    out.transport[each.key] = or_empty(each.value);
  }
  if (c->log != nullptr)
    out.log = [log = c->log, user = c->log_user](LogLevel level, std::string_view line) {
      log(user, static_cast<int>(level), line.data(), line.size());
    };
  if (!fields.status().ok()) return fields.status();
  return out;
}

Result<ConnectOptions> connect_options(const linkspan_connect_options* given) {
  const auto c = sized(given, kConnectOptions, "linkspan_connect_options");
  if (!c.ok()) return c.status();
  Fields fields;
  auto secret = secret_of(c->secret, c->secret_bytes);
  if (!secret.ok()) return secret.status();
  ConnectOptions out{.timeout = fields.time("timeout", c->timeout),
                     .expect = or_empty(c->expect),
                     .secret = *std::move(secret)};
  if (!fields.status().ok()) return fields.status();
  return out;
}

Result<RegionOptions> region_options(const linkspan_region_options* given) {
  const auto c = sized(given, kRegionOptions, "linkspan_region_options");
  if (!c.ok()) return c.status();
  Fields fields;
  const RegionOptions out{.peers = {.read = fields.flag("peers_read", c->peers_read),
                                    .write = fields.flag("peers_write", c->peers_write),
                                    .exclusive = fields.flag("exclusive", c->exclusive)},
                          .pin = fields.flag("pin", c->pin)};
  if (!fields.status().ok()) return fields.status();
  return out;
}

Result<TransferOptions> transfer_options(const linkspan_transfer_options* given) {
  const auto c = sized(given, kTransferOptions, "linkspan_transfer_options");
  if (!c.ok()) return c.status();
  const auto notification = notification_of(c->notification, c->notification_bytes);
  if (!notification.ok()) return notification.status();
  Fields fields;
  TransferOptions out{.deadline = fields.time("deadline", c->deadline),
                      .notification = *notification,
                      .after = fields.stream("after.kind", c->after),
                      .release = fields.stream("release.kind", c->release),
                      .low_latency = fields.flag("low_latency", c->low_latency),
                      .copy_ctas = fields.optional("copy_ctas", c->copy_ctas),
                      .require = or_empty(c->require),
                      .checksum = fields.flag("checksum", c->checksum),
                      .failover = fields.flag("failover", c->failover)};
  if (!fields.status().ok()) return fields.status();
  return out;
}

Result<CaptureOptions> capture_options(const linkspan_capture_options* given) {
  const auto c = sized(given, kCaptureOptions, "linkspan_capture_options");
  if (!c.ok()) return c.status();
  const auto notification = notification_of(c->notification, c->notification_bytes);
  if (!notification.ok()) return notification.status();
  Fields fields;
  const CaptureOptions out{.notification = *notification,
                           .copy_ctas = fields.optional("copy_ctas", c->copy_ctas)};
  (void)fields.number("reserved", c->reserved, 0, 0);
  if (!fields.status().ok()) return fields.status();
  return out;
}

Result<StreamOrder> stream_of(const linkspan_stream& given) {
  Fields fields;
  StreamOrder out = fields.stream("stream.kind", given);
  if (!fields.status().ok()) return fields.status();
  return out;
}

Result<Op> op_of(int op) {
  if (op == LINKSPAN_WRITE) return Op::write;
  if (op == LINKSPAN_READ) return Op::read;
  return bad("op is " + std::to_string(op) + "; LINKSPAN_WRITE or LINKSPAN_READ");
}

Status check_pairs(std::size_t count) {
  constexpr std::size_t kMaxPairs = 65536;  // as of Peer::write()
  if (count <= kMaxPairs) return {};
  return bad(std::to_string(count) + " pairs of regions in one transfer; at most " +
             std::to_string(kMaxPairs));
}

Result<OwnedShape> shape_of(const linkspan_shape& given) {
  const auto c = sized(&given, kShape, "linkspan_shape");
  if (!c.ok()) return c.status();
  const int forms = (c->blocks != nullptr ? 1 : 0) + (c->pages != nullptr ? 1 : 0) +
                    (c->strides != nullptr ? 1 : 0);
  if (forms > 1) return bad("a shape of more than one of blocks, pages and strides");
  if (c->blocks == nullptr && c->block_count != 0)
    return bad(std::to_string(c->block_count) + " blocks at null");
  if (c->block_count > std::numeric_limits<std::ptrdiff_t>::max() / sizeof(linkspan_block))
    return bad(std::to_string(c->block_count) + " blocks are more than any memory has");
  OwnedShape out;
  if (c->blocks != nullptr) {
    out.blocks.reserve(c->block_count);
    for (const linkspan_block& b : std::span(c->blocks, c->block_count))
      out.blocks.push_back({b.local_offset, b.remote_offset, b.bytes});
    out.shape = std::span<const Block>(out.blocks);
  }
  if (c->pages != nullptr) {
    const linkspan_pages& p = *c->pages;
    if (p.count != 0 && (p.local_index == nullptr || p.remote_index == nullptr))
      return bad(std::to_string(p.count) + " pages of which an index list is null");
    Fields fields;
    out.shape = Pages{.page_bytes = p.page_bytes,
                      .local_base = p.local_base,
                      .remote_base = p.remote_base,
                      .local_index = {p.local_index, p.count},
                      .remote_index = {p.remote_index, p.count},
                      .indices_on_gpu = fields.flag("indices_on_gpu", p.indices_on_gpu)};
    if (!fields.status().ok()) return fields.status();
  }
  if (c->strides != nullptr) {
    const linkspan_strides& s = *c->strides;
    Strides strides{.bytes = s.bytes, .local_base = s.local_base, .remote_base = s.remote_base};
    std::transform(std::begin(s.levels), std::end(s.levels), strides.levels.begin(),
                   [](const auto& level) {
                     return Strides::Level{level.count, level.local_step, level.remote_step};
                   });
    out.shape = strides;
  }
  return out;
}

}  // namespace linkspan::c

// make_corpus FOLDER - writes the fuzzers' seeds, from real frames, to FOLDER/NAME.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/schema/local_generated.h"
#include "control/exchange.hpp"
#include "control/handshake.hpp"
#include "linkspan/descriptor.hpp"
#include "memory/descriptor.hpp"
#include "net/interfaces.hpp"
#include "store/protocol.hpp"
#include "tests/fuzz/frames.hpp"
#include "tests/fuzz/support.hpp"
#include "tests/support/rx_control.hpp"
#include "transport/local/key.hpp"
#include "transport/local/wire.hpp"
#include "transport/nccl_net/tcpx/structs.hpp"
#include "transport/tcp/frame.hpp"

namespace linkspan::fuzz {
namespace {

using namespace linkspan::control;
using transport::local::LocalMessage;
using Bytes = std::vector<std::byte>;

Bytes join(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
Bytes raw(std::initializer_list<int> values) {
  Bytes all;
  for (const int value : values) all.push_back(static_cast<std::byte>(value));
  return all;
}
Bytes word(std::size_t value) {
  return raw({static_cast<int>(value & 0xff), static_cast<int>(value >> 8)});
}
int of(Step step) { return static_cast<int>(step); }
int of(FdKind kind) { return static_cast<int>(kind); }

class Corpus {
 public:
  Corpus(std::filesystem::path folder, std::string name) : folder_(std::move(folder) / name) {
    std::filesystem::create_directories(folder_);
  }
  void add(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(folder_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path folder_;
};

transport::local::LocalKey shared_key(std::uint64_t serial) {
  return {.id = {kPeerIncarnation, 0, serial},
          .liveness_index = static_cast<std::uint32_t>(serial - 1),
          .kind = MemoryKind::shared,
          .peers = {.read = true, .write = true},
          .bytes = 4096,
          .handle = {.ipc = {}, .memfd = true, .chunks = {}, .pool = {}, .why_none = {}}};
}

/// Returns a frame step: {op, id, fds, their kinds, length, payload}.
Bytes frame(FrameOp op, int id, const Bytes& payload, const Bytes& kinds = {}) {
  return join({raw({static_cast<int>(op), id, static_cast<int>(kinds.size())}), kinds,
               word(payload.size()), payload});
}
Bytes local(LocalMessage op, const Bytes& payload, const Bytes& kinds = {}) {
  return frame(FrameOp::for_transport, 0,
               encode_for_transport("local", static_cast<std::uint16_t>(op), payload), kinds);
}
template <class Make>
Bytes table(const Make& make) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(make(out));
  return schema::finished(out);
}

void write_store(const std::filesystem::path& folder) {
  using namespace store;
  using store::Op;  // linkspan has one too
  const Corpus corpus(folder, "store");
  const auto bytes = [](Op op, Dialect dialect, std::vector<std::string> keys = {},
                        std::vector<std::string> values = {}, std::int64_t number = 0) {
    Request request;
    request.op = op;
    request.keys = std::move(keys);
    request.values = std::move(values);
    request.number = number;
    const std::string text = *encode(request, dialect);
    const auto all = std::as_bytes(std::span(text));
    return Bytes(all.begin(), all.end());
  };
  const auto common = [&](Dialect dialect) {
    return join({bytes(Op::add, dialect, {"n"}, {}, -5), bytes(Op::set, dialect, {"k"}, {"v"}),
                 bytes(Op::compare_set, dialect, {"k"}, {"v", "w"}), bytes(Op::get, dialect, {"k"}),
                 bytes(Op::check, dialect, {"k", "n"}), bytes(Op::wait, dialect, {"none"}),
                 bytes(Op::num_keys, dialect), bytes(Op::delete_key, dialect, {"k"})});
  };
  const Bytes greeted = raw({63, 0, 0xce, 0xf7, 0x85, 0x3c});
  constexpr Dialect kNow = Dialect::current;
  corpus.add("older", join({raw({63}), common(Dialect::older)}));
  corpus.add("current", join({greeted, common(kNow)}));
  corpus.add("many", join({greeted, bytes(Op::multi_set, kNow, {"a", "b"}, {"1", ""}),
                           bytes(Op::multi_get, kNow, {"b", "a"}), bytes(Op::list_keys, kNow),
                           bytes(Op::append, kNow, {"a"}, {"2"})}));
  corpus.add("queues",
             join({greeted, bytes(Op::queue_push, kNow, {"q"}, {"1"}),
                   bytes(Op::queue_length, kNow, {"q"}), bytes(Op::queue_pop, kNow, {"q"}),
                   bytes(Op::cancel_wait, kNow), bytes(Op::ping, kNow, {}, {}, 7)}));
  corpus.add("slow", join({raw({0, 0, 0xce, 0xf7, 0x85, 0x3c}), common(kNow)}));
}

void write_tcp(const std::filesystem::path& folder) {
  using transport::tcp::Head, transport::tcp::FrameType;
  const Corpus corpus(folder, "tcp_frames");
  constexpr std::uint64_t kUs = 77;
  const auto put = [](std::uint64_t position, bool last, std::uint64_t offset,
                      std::uint64_t bytes) {
    return encode(Head{.type = FrameType::put,
                       .id = 9,
                       .incarnation = kUs,
                       .serial = 1,
                       .position = position,
                       .last = last,
                       .spans = {{offset, bytes}},
                       .notification = Bytes(last ? position : 0),
                       .data = bytes});
  };
  const auto data = [](std::uint64_t position, bool last, std::uint64_t bytes, Code code = {}) {
    return encode(Head{.type = FrameType::data,
                       .id = 2,
                       .incarnation = kUs,
                       .position = position,
                       .last = last,
                       .code = code,
                       .data = bytes});
  };
  const auto get_of = [](bool summed) {
    return encode(Head{.type = FrameType::get,
                       .id = 8,
                       .incarnation = kUs,
                       .serial = 1,
                       .summed = summed,
                       .spans = {{0, 100}, {4000, 4192}}});
  };
  const Bytes get = get_of(false);
  const Bytes strange = encode(
      Head{.type = FrameType::get, .id = 8, .incarnation = kUs, .serial = 2, .spans = {{0, 100}}});
  const Bytes cancel = encode(Head{.type = FrameType::cancel, .id = 8, .incarnation = kUs});
  const Bytes ended = encode(Head{.type = FrameType::ended,
                                  .id = 1,
                                  .incarnation = kUs,
                                  .code = Code::unreachable,
                                  .text = "why"});
  corpus.add("put", join({put(4, true, 200, 60), put(0, false, 7, 4)}));
  corpus.add("beyond", join({put(0, true, 8190, 60), put(0, true, 0, 1)}));
  corpus.add("get", join({get, cancel, strange}));
  corpus.add("data", join({data(3000, true, 50), data(0, false, 3000), ended}));
  corpus.add("summed", get_of(true));
  corpus.add("less", join({data(0, true, 10), data(0, true, 0, Code::unreachable)}));
}

void write_tcpx(const std::filesystem::path& folder) {
  using namespace transport::nccl_net::tcpx;
  using test::RxControl;
  const Corpus corpus(folder, "tcpx_cmsg");
  /// {what, pool, receive, DMA-BUF}; the pool is that many 256 bytes.
  const auto head = [](int what, std::size_t pool, std::size_t receive, int dmabuf) {
    return join({raw({what | 8 << 1}), word(pool), word(receive), raw({dmabuf})});
  };
  const auto call = [](const RxControl& control) {
    return join({word(control.bytes().size()), control.bytes()});
  };
  const RxControl tcpx = RxControl()
                             .tcpx(kScmDevmemHeader, 0, 66)
                             .tcpx(kScmDevmemOffset, 4096, 4030, 5)
                             .tcpx(kScmDevmemOffset, 8126, 100, 6);
  corpus.add("tcpx", join({head(0, 256, 4196, 0), call(tcpx), call(tcpx)}));
  RxControl cut = tcpx;
  corpus.add("without_padding", join({head(0, 256, 4196, 0), call(cut.without_padding())}));
  corpus.add("upstream",
             join({head(0, 256, 220, 7), call(RxControl()
                                                  .upstream(kScmDevmemLinear, 0, 20)
                                                  .upstream(kScmDevmemDmabuf, 64, 100, 1, 7)
                                                  .upstream(kScmDevmemDmabuf, 4096, 100, 9, 7))}));
  const std::uint32_t words[] = {1, 2, 3};
  corpus.add("others", join({head(0, 256, 0, 0), call(RxControl().add(SOL_SOCKET, 1, words)),
                             call(RxControl().add(6, kScmDevmemOffset, words))}));
  const auto list = [&head](std::size_t receive, const std::vector<LoadMeta>& entries) {
    const auto all = std::as_bytes(std::span(entries));
    return join({head(1, 256, receive, 0), Bytes(all.begin(), all.end())});
  };
  corpus.add("list", list(300, {{4096, 100, 100}, {0, 100, 0}, {4196, 100, 200}}));
  corpus.add("gap", list(300, {{0, 100, 0}, {4096, 150, 150}}));
  corpus.add("overlap", list(300, {{0, 200, 0}, {4096, 150, 150}}));
}

void write(const std::filesystem::path& folder) {
  write_store(folder);
  write_tcp(folder);
  write_tcpx(folder);
  memory::Descriptor d;
  d.name = "kv";
  d.id = {kPeerIncarnation, 0, 1};
  d.kind = MemoryKind::shared;
  d.peers = {.read = true, .write = true};
  d.bytes = 4096;
  const Bytes shared = encode(shared_key(1));
  d.keys.push_back({.transport = "local", .bytes = shared, .fd_count = 2});
  transport::local::LocalKey gpu = shared_key(2);
  gpu.kind = MemoryKind::device;
  gpu.handle.memfd = false;
  gpu.handle.ipc.emplace().fill(std::byte{0x5a});
  const Bytes address = encode(transport::local::LocalAddress{.incarnation = kPeerIncarnation});

  const Corpus descriptors(folder, "descriptor");
  descriptors.add("descriptor", join({raw({0}), memory::encode(d)}));
  descriptors.add("key_shared", join({raw({1}), shared}));
  descriptors.add("key_gpu", join({raw({1}), encode(gpu)}));
  descriptors.add("address", join({raw({2}), address}));
  const Descriptor users{.address = "unix:/run/peer#7",
                         .engine = "peer",
                         .name = "kv",
                         .version = 3,
                         .regions = {{4096, MemoryKind::device}, {64, MemoryKind::host}}};
  descriptors.add("users", join({raw({3}), users.serialize()}));

  const Hello hello{
      .engine = "peer", .process = {}, .key_share = {}, .transports = {{"local", address}}};
  const MessageOffer offer{.tag = 1, .bytes = 64, .serial = 1, .descriptor = memory::encode(d)};
  const MessageFinished finished{.by_sender = true,
                                 .status = Status(Code::truncated, Scope::request, "too long")};
  const Corpus words(folder, "handshake");
  words.add("hello", join({raw({0}), encode(hello)}));
  Hello interfaces = hello;
  for (const char* each : {"10.0.1.2", "2001:db8::2"})
    interfaces.addresses.push_back(*net::parse_host(each));
  words.add("hello_addresses", join({raw({0}), encode(interfaces)}));
  words.add("error", join({raw({1}), encode_error(finished.status)}));
  words.add("import", join({raw({2}), encode_import("kv", 3)}));
  words.add("imported", join({raw({3}), encode_imported(memory::encode(d))}));
  words.add("notify", join({raw({4}), encode_notify(raw({1, 2, 3}))}));
  words.add("for_transport", join({raw({5}), encode_for_transport("local", 1, shared)}));
  words.add("offer", join({raw({6}), encode(offer)}));
  words.add("accept", join({raw({7}), encode(MessageAccept{.serial = 3})}));
  words.add("finished", join({raw({8}), encode(finished)}));
  words.add("withdraw", join({raw({9}), encode_withdraw(true)}));
  const AskSet waits{.name = "s", .above = 9, .waits = true};
  words.add("ask_set", join({raw({10}), encode(waits)}));
  words.add("set", join({raw({11}), encode_set({.version = 3, .serials = {1, 2}})}));

  words.add("proof", join({raw({12}), encode_proof({})}));
  words.add("stream",
            join({raw({13}), encode(DataConnectionHello{.transport = "tcp", .number = 1})}));

  const Corpus fds(folder, "fd_passing");
  // {flags, bytes, fds, kinds..., payload length, op, id, incarnation}
  fds.add("good", join({raw({3, 4, 2, of(FdKind::leases), of(FdKind::memory), 4, 1, 16, 0, 1}),
                        raw({1, 2, 3, 4})}));
  fds.add("bad_kinds", raw({3, 0, 4, of(FdKind::unsealed_memory), of(FdKind::folder),
                            of(FdKind::socket), of(FdKind::empty_memory), 0, 1, 0, 8, 1}));
  fds.add("in_payload",
          join({raw({3, 0, 0, 8, 1, 0, 0, 1, 2, 8, 1, of(FdKind::event)}), Bytes(8)}));
  fds.add("too_many", join({raw({3, 0, 70}), Bytes(70), raw({0, 1, 0, 0, 1})}));
  fds.add("cut",
          join({raw({2, 12, 1, of(FdKind::tally)}), Bytes(12), raw({2, 12, 1, 0}), Bytes(12)}));

  const Corpus frames(folder, "frames");
  const Bytes greeted = raw({0});
  frames.add("raw_hello",
             join({raw({1}), frame(FrameOp::hello, 0, encode(hello), raw({of(FdKind::pidfd)})),
                   frame(FrameOp::ready, 0, {})}));
  frames.add("imports", join({greeted, frame(FrameOp::import, 1, encode_import("s")),
                              frame(FrameOp::import, 2, encode_import("x")),
                              frame(FrameOp::import, 3, encode_import("h")),
                              frame(FrameOp::notify, 0, encode_notify(raw({7}))),
                              frame(FrameOp::goodbye, 0, {})}));
  frames.add("sets", join({greeted, frame(FrameOp::ask_set, 1, encode(AskSet{.name = "s"})),
                           frame(FrameOp::import, 2, encode_import("s", 1)),
                           frame(FrameOp::ask_set, 3, encode(waits)),
                           frame(FrameOp::ask_set, 3, encode(AskSet{}))}));
  const Bytes offered =
      table([&](auto& out) { return schema::CreateOffer(out, schema::vector_of(out, shared)); });
  const auto execute = [](bool write_ours, std::uint64_t ours) {
    return table([&](auto& out) {
      const schema::WireBlock block(0, 0, 64);
      return schema::CreateExecute(out, 9, write_ours, 1, ours,
                                   out.CreateVectorOfStructs(&block, 1), 0);
    });
  };
  const Bytes pages = table([](auto& out) {
    const auto index = out.CreateVector(std::vector<std::uint32_t>{0, 2, 1});
    return schema::CreateExecute(out, 9, true, 1, 3, 0, 0,
                                 schema::CreateWirePages(out, 16, 0, 0, index, index));
  });
  const Bytes kinds = raw({of(FdKind::leases), of(FdKind::memory)});
  frames.add(
      "execute",
      join({greeted, local(LocalMessage::offer, offered, kinds),
            local(LocalMessage::completion_flags, {}, raw({of(FdKind::tally)})),
            local(LocalMessage::execute, execute(true, 3)),
            local(LocalMessage::execute, execute(false, 2)), local(LocalMessage::execute, pages),
            local(LocalMessage::cancel,
                  table([](auto& out) { return schema::CreateCancel(out, 9); })),
            local(LocalMessage::retract,
                  table([](auto& out) { return schema::CreateRetract(out, 1); })),
            local(LocalMessage::retracted,
                  table([](auto& out) { return schema::CreateRetracted(out, 1); }))}));
  frames.add("pulled",
             join({greeted, raw({of(Step::receive), 1, 0, 1}),
                   raw({of(Step::good_offer), 1, 64, 0, 5}), raw({of(Step::good_answer), 0})}));
  frames.add("offered_first", join({greeted, frame(FrameOp::offer, 5, encode(offer), kinds),
                                    raw({of(Step::receive), 1, 0, 1}),
                                    frame(FrameOp::withdraw, 5, encode_withdraw(true))}));
  frames.add("sent", join({greeted, raw({of(Step::send), 2, 64, 0, 0, of(Step::import_offered)}),
                           frame(FrameOp::finished, kTransferIds, encode(MessageFinished{}))}));
  frames.add("accepted",
             join({greeted, raw({of(Step::send), 2, 64, 0, 1}),
                   frame(FrameOp::accept, kTransferIds, encode(MessageAccept{.serial = 1})),
                   raw({of(Step::good_answer), 0, of(Step::cancel), 0})}));
  frames.add("errors",
             join({greeted, raw({of(Step::receive), 1, 0, 1, of(Step::good_offer), 1, 64, 0, 5,
                                 of(Step::answer), 0, 4, 0, 1, 2, 3, 4, of(Step::stranger), 4})}));
}

}  // namespace
}  // namespace linkspan::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("make_corpus FOLDER\n", stderr);
    return 2;
  }
  linkspan::fuzz::write(argv[1]);
  return 0;
}

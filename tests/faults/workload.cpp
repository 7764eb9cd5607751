#include "tests/faults/workload.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "cuda/stream.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/driver_shim/control.hpp"

namespace linkspan::test {
namespace {

constexpr const char* kHelper = "workload";
constexpr std::uint64_t kBytes = 64u << 10, kBlocks = 256, kTiny = 4097;
constexpr Duration kDeadline = 4s;  // of a transfer; a step has a second more
constexpr std::uint64_t kNearSeed = 1, kFarSeed = 2, kUntouched = 3;
/// Slots of each memory here: the peer writes into the first, the second is what is sent, each of
/// the others takes what one step brings.
constexpr std::uint64_t kSlots = 8, kSent = kBytes;

struct Memory {
  const Kind& kind;
  std::unique_ptr<Buffer> buffer;
  Region region;
  std::vector<Expected> came;     // since it was filled
  std::vector<Extent> undefined;  // what failed may have written
  std::uint64_t used = 2;         // slots
};

class Workload {
 public:
  explicit Workload(const DriverShim& shim) : shim_(shim) {}

  Json run(const std::string& order) {
    const DriverBalance before = shim_.balance();
    shim_.order("clear,trace," + order);
    try {
      act();
    } catch (const std::exception& error) {
      wrong(error.what());
    }
    if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed())
      wrong("the peer's process did not end well");
    return {{"steps", steps_},
            {"calls", shim_.traced()},
            {"struck", shim_.struck()},
            {"wrong", wrong_},
            {"left", difference(before, shim_.balance())}};
  }

 private:
  void wrong(const std::string& what) {
    if (!what.empty() && wrong_.empty()) wrong_ = what;
  }
  /// Runs a step. Returns true if it succeeded.
  bool step(const std::string& name, const std::function<Status()>& act) {
    const base::Time begin = base::Clock::steady().now();
    const Status status = act();
    steps_.push_back({name, name_of(status.code()), status.what(),
                      (base::Clock::steady().now() - begin).count()});
    return status.ok();
  }
  template <class T>
  bool step(const std::string& name, std::optional<T>& out, const std::function<Result<T>()>& act) {
    return step(name, [&] {
      Result<T> made = act();
      if (made.ok()) out.emplace(*std::move(made));
      return made.status();
    });
  }

  void act() {
    std::vector<Memory> memories;  // outlive the Engine
    const std::function<void()> free_them = [&] {
      const DriverShim::Own own(shim_);
      memories.clear();
    };
    {
      FarEngine far;
      std::optional<Engine> engine;
      if (step<Engine>("open", engine, [] { return Engine::open(engine_options("near")); })) {
        memories = make_memories();
        with_engine(*engine, far, memories);
        step("close", [&] { return engine->close(kDeadline); });
      }
    }
    free_them();
  }

  std::vector<Memory> make_memories() {
    const DriverShim::Own own(shim_);
    std::vector<Memory> made;
    for (const char* name : {"device0", "pinned", "host"}) {
      const Kind& kind = kind_of(name);
      if (!kinds_here({kind}).ok()) continue;
      made.push_back({.kind = kind,
                      .buffer = take(Buffer::create(kind.kind, kSlots * kBytes, kind.gpu)),
                      .region = {},
                      .came = {},
                      .undefined = {}});
      made.back().buffer->fill(kNearSeed);
    }
    return made;
  }

  void with_engine(Engine& engine, FarEngine& far, std::vector<Memory>& memories) {
    for (Memory& m : memories) {
      std::optional<Region> region;
      if (!step<Region>(std::string("register ") + m.kind.name, region,
                        [&] { return engine.register_memory(m.buffer->data(), kSlots * kBytes); }))
        continue;
      m.region = *region;
      step(std::string("publish ") + m.kind.name,
           [&] { return engine.publish(m.kind.name, m.region); });
    }
    std::optional<Peer> peer;
    if (step<Peer>("connect", peer, [&] { return engine.connect(far.address(), kDeadline); })) {
      far.accept();
      for (Memory& m : memories) {
        if (!m.region.valid()) continue;
        for (const char* other : {"device1", "pinned", "host"})
          if (kinds_here({kind_of(other)}).ok()) one_sided(m, other, far, *peer);
        if (m.kind.kind == MemoryKind::device) behind_a_stream(m, {"device1", "host"}, far, *peer);
        if (m.kind.kind == MemoryKind::host && topology() != nullptr)
          behind_a_stream(m, {"device1"}, far, *peer);
        by_the_peer(m, far);
        two_sided(m, far, *peer);
      }
    }
    far.let_go();
    for (Memory& m : memories) {
      look(m);
      if (m.region.valid())
        step(std::string("deregister ") + m.kind.name,
             [&] { return engine.deregister(std::exchange(m.region, {}), kDeadline); });
    }
  }

  static Extent slot(std::uint64_t index) { return {index * kBytes, kBytes}; }
  static void* at(const Memory& m, std::uint64_t index) {
    return static_cast<std::byte*>(m.buffer->data()) + slot(index).offset;
  }
  static TransferOptions options() { return {.deadline = kDeadline}; }
  static std::vector<Block> blocks(std::uint64_t local, std::uint64_t remote, std::uint64_t count) {
    std::vector<Block> all;
    for (std::uint64_t i = 0; i < count; ++i) {
      const Block part = part_of(kBytes, i, count);
      all.push_back({local + part.local_offset, remote + part.remote_offset, part.bytes});
    }
    std::ranges::reverse(all);  // so that none goes on where the one before it ends
    return all;
  }
  /// Makes a region there for one transfer. Returns its name.
  std::string target(FarEngine& far, const std::string& kind, std::uint64_t seed) {
    std::string name = "target " + std::to_string(++targets_);
    far.add(name, {.kind = kind, .bytes = kBytes});
    far.fill(name, seed);
    return name;
  }
  static void note(Memory& m, bool good, std::uint64_t index) {
    if (good)
      m.came.push_back({slot(index).offset, kFarSeed, 0, kBytes});
    else
      m.undefined.push_back(slot(index));
  }
  void look(const Memory& m) {
    const DriverShim::Own own(shim_);
    const std::string found = m.buffer->difference(kNearSeed, m.came, m.undefined);
    if (!found.empty()) wrong(std::string("here in ") + m.kind.name + ": " + found);
  }
  void look(FarEngine& far, const std::string& name, std::uint64_t bytes = kBytes) {
    const std::string found = far.difference(name, kUntouched, {{0, kNearSeed, kSent, bytes}});
    if (!found.empty()) wrong("there, in " + name + ": " + found);
  }

  /// Writes one block, many blocks and a tiny one, and reads; after a stream, if `order` names one.
  void one_sided(Memory& m, const std::string& other, FarEngine& far, const Peer& peer,
                 const StreamOrder& order = {}) {
    const std::string pair = std::string(m.kind.name) + " and " + other + " ";
    TransferOptions moved = options();
    moved.after = moved.release = order;
    for (const std::uint64_t count : {std::uint64_t{1}, kBlocks}) {
      const std::string name = target(far, other, kUntouched);
      std::optional<RemoteRegion> remote;
      if (!step<RemoteRegion>(pair + "lookup", remote,
                              [&] { return peer.lookup(name, kDeadline); }))
        continue;
      if (step(pair + "write " + std::to_string(count), [&] {
            return finished(peer.write(m.region, *remote, blocks(kSent, 0, count), moved));
          }))
        look(far, name);
    }
    const std::string tiny = target(far, other, kUntouched);
    std::optional<RemoteRegion> remote;
    moved.low_latency = true;
    if (step<RemoteRegion>(pair + "lookup", remote, [&] { return peer.lookup(tiny, kDeadline); }) &&
        step(pair + "write a tiny one", [&] {
          const Block block{kSent, 0, kTiny};
          return finished(peer.write(m.region, *remote, std::span(&block, 1), moved));
        }))
      look(far, tiny, kTiny);
    moved.low_latency = false;
    const std::string name = target(far, other, kFarSeed);
    if (!step<RemoteRegion>(pair + "lookup", remote, [&] { return peer.lookup(name, kDeadline); }))
      return;
    const std::uint64_t index = m.used++;
    const bool good = step(pair + "read", [&] {
      return finished(peer.read(m.region, *remote, blocks(slot(index).offset, 0, 1), moved));
    });
    note(m, good, index);
  }

  void behind_a_stream(Memory& m, std::initializer_list<const char*> others, FarEngine& far,
                       const Peer& peer) {
    const DriverShim& shim = shim_;
    std::optional<cuda::Stream> stream;
    const cuda::Device* device = nullptr;
    {
      const DriverShim::Own own(shim);
      device = take(topology()->activate(topology()->devices()[m.kind.gpu].uuid));
      stream.emplace(take(cuda::Stream::create(take(device->enter()))));
    }
    const StreamOrder order{
        .kind = StreamOrder::Kind::created, .gpu = device->info().uuid, .handle = stream->get()};
    for (const char* other : others) one_sided(m, other, far, peer, order);
    // releases the user's stream, whatever the result of the transfers
    const DriverShim::Own own(shim);
    must(stream->synchronize(take(device->enter())));
    stream.reset();
  }

  /// Lets the peer write into our memory, and has it request copies that only this side can make.
  void by_the_peer(Memory& m, FarEngine& far) {
    const std::string step_name = std::string("peer writes into ") + m.kind.name;
    const std::string from =
        target(far, kinds_here({kKinds[1]}).ok() ? "device1" : "host", kFarSeed);
    const bool good = step(step_name, [&]() -> Status {
      try {
        far.start(from, m.kind.name, 1);  // to the beginning of the region
      } catch (const std::exception& error) {
        return {Code::unreachable, Scope::request, error.what()};
      }
      const std::string end = far.ends().at(0);
      return end == "ok" ? Status() : Status(Code::cuda, Scope::peer, end);
    });
    note(m, good, 0);
  }

  void two_sided(Memory& m, FarEngine& far, const Peer& peer) {
    const std::string there = "loose " + std::to_string(++targets_);
    far.add_loose(there, {.kind = m.kind.name, .bytes = kBytes});
    const auto exchange = [&](const std::string& name, const Message& message, auto&& act) {
      bool good = false;
      step(name, [&]() -> Status {
        auto posted = far.post(message);
        if (!posted.ok()) return posted.status();
        Status here = finished(act());
        if (!here.ok()) far.cancel(*posted);  // what never came to it would wait for its deadline
        const FarEnd end = far.end(*posted);
        good = here.ok() && end.code == "ok";
        if (here.ok() != (end.code == "ok"))
          wrong(name + " ended \"" + here.to_string() + "\" here and \"" + end.what + "\" there");
        return here;
      });
      return good;
    };
    const std::uint64_t tag = ++tags_;
    far.fill(there, kUntouched);
    if (exchange(std::string("send ") + m.kind.name,
                 {.name = there, .bytes = kBytes, .tag = tag, .deadline = kDeadline},
                 [&] { return peer.send(tag, at(m, 1), kBytes, options()); }))
      look(far, there);
    far.fill(there, kFarSeed);
    const std::uint64_t index = m.used++;
    const bool good =
        exchange(std::string("recv ") + m.kind.name,
                 {.sends = true, .name = there, .bytes = kBytes, .tag = tag, .deadline = kDeadline},
                 [&] { return peer.recv(tag, at(m, index), kBytes, options()); });
    note(m, good, index);
  }

  const DriverShim& shim_;
  Json steps_ = Json::array();
  std::string wrong_;
  std::uint64_t targets_ = 0, tags_ = 0;
};

void workload_main(Line& line) {
  const DriverShim shim = DriverShim::find();
  line.serve(
      [&](const Json& call, const std::vector<base::Fd>&) -> Result<Answer> {
        Workload workload(shim);
        return Answer{workload.run(call.at("do").get<std::string>()), {}};
      },
      [] { return false; });
}
const bool kWorkloadRegistered = add_helper(kHelper, workload_main);

}  // namespace

const Worked::Step* Worked::find(const std::string& name) const {
  for (const Step& step : steps)
    if (step.name == name) return &step;
  return nullptr;
}

std::string Worked::to_string() const {
  std::string text;
  for (const Step& step : steps)
    if (step.code != "ok") text += step.name + ": " + step.code + ", " + step.what + '\n';
  return text;
}

Worked work(const std::string& order) {
  const auto child = take(Child::spawn(kHelper));
  const Json answer = take(child->line().call({{"do", order}})).value;
  Worked worked{.steps = {},
                .calls = answer.at("calls"),
                .struck = answer.at("struck"),
                .wrong = answer.at("wrong"),
                .left = answer.at("left")};
  for (const Json& step : answer.at("steps"))
    worked.steps.push_back({step[0], step[1], step[2], Duration(step[3].get<Duration::rep>())});
  return worked;
}

}  // namespace linkspan::test

// Transfers, prepared ones, and the queue that tells of their ends.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;

/// Transfers that keep memory alive, even if Python dropped them. Never destroyed: what is in
/// flight when the interpreter ends keeps its memory.
class Flying {
 public:
  void add(const nb::object& transfer) {
    if (transfers_.size() >= sweep_at_) {
      sweep();
      sweep_at_ = 2 * transfers_.size() + kFew;
    }
    transfers_.push_back(transfer);
  }
  /// Lets go of the memory of those that are quiet.
  void sweep() {
    std::vector<nb::object> quiet;  // goes last: what is freed here may run Python code
    std::erase_if(transfers_, [&](nb::object& each) {
      if (!nb::inst_ptr<PyTransfer>(each)->transfer.done()) return false;
      quiet.push_back(std::move(nb::inst_ptr<PyTransfer>(each)->memory));
      quiet.push_back(std::move(each));
      return true;
    });
  }

 private:
  static constexpr std::size_t kFew = 8;

  std::vector<nb::object> transfers_;
  std::size_t sweep_at_ = kFew;
};

Flying& flying() {
  static Flying& transfers = *new Flying;
  return transfers;
}

/// Status of one that is quiet; its memory is the caller's again.
void end(nb::handle self, PyTransfer& transfer) {
  const nb::object memory = std::move(transfer.memory);
  const Status status = transfer.transfer.status();
  if (!status.ok()) raise(status, transfer.peer, self);
}

void wait(nb::handle self, std::optional<double> timeout) {
  auto& kept = *nb::inst_ptr<PyTransfer>(self);
  std::optional<Duration> limit;
  if (timeout) limit = seconds(*timeout, "timeout");
  if (!kept.transfer.done()) {
    // A copy, so that the transfer outlives its object.
    Status status;
    in_slices(limit, [&, transfer = kept.transfer](Duration slice) {
      status = transfer.wait(slice);
      return transfer.done() || status.code() != Code::pending;
    });
    if (!kept.transfer.done()) {
      if (status.code() != Code::pending) raise(status, kept.peer, self);
      PyErr_SetString(PyExc_TimeoutError, status.what().c_str());
      throw nb::python_error();
    }
  }
  end(self, kept);
}

/// Nanoseconds of a post and a wait each, without Python between them: what
/// bench/python_overhead.py holds Python against.
std::vector<std::uint64_t> measure(const PyPrepared& self, unsigned runs) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::uint64_t> times(runs);
  const Released released;
  for (std::uint64_t& time : times) {
    const auto begin = Clock::now();
    auto posted = self.prepared.post();
    const Status end = posted.ok() ? posted->wait(std::chrono::seconds(10)) : posted.status();
    time = static_cast<std::uint64_t>((Clock::now() - begin).count());
    if (!end.ok()) return {};
  }
  return times;
}

nb::object as_list(const std::vector<std::uint64_t>& cookies) {
  nb::list list;
  for (const std::uint64_t cookie : cookies) list.append(cookie);
  return list;
}

}  // namespace

nb::object keep(Transfer transfer, std::uint64_t peer, const nb::object& memory) {
  nb::object object = nb::cast(PyTransfer{std::move(transfer), peer, memory}, nb::rv_policy::move);
  if (memory.is_valid()) flying().add(object);
  return object;
}

void bind_transfers(nb::module_& module) {
  nb::class_<PyTransfer>(
      module, "Transfer", nb::is_weak_referenceable(),
      "What a submission becomes. `await transfer`, or wait(): both return None when it is "
      "complete "
      "at the destination, and raise what else it ended with. Until it is done its memory is not "
      "yours. Any thread; dropping it changes nothing.")
      .def("wait", &wait, "timeout"_a = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> None"),
           "Waits until it is quiet, without the interpreter's lock; a signal ends the wait. "
           "TimeoutError: `timeout` seconds passed first, and the transfer continues. "
           "TimedOutError, also a TimeoutError: its own deadline passed, and it is quiet.")
      .def(
          "done",
          [](PyTransfer& self) {
            if (!self.transfer.done()) return false;
            const nb::object memory = std::move(self.memory);  // is the caller's again
            return true;
          },
          "It is quiet: nothing will touch its memory any more.")
      .def(
          "cancel",
          [](const PyTransfer& self) {
            Status status;
            {
              const Released released;
              status = self.transfer.cancel();
            }
            if (status.code() != Code::pending) check(status, self.peer);
            return status.ok();
          },
          "Asks for an early end. True: it is quiet now; False: wait() tells when.")
      .def_prop_ro(
          "status", [](const PyTransfer& self) { return name_of(self.transfer.status().code()); },
          "\"ok\", \"pending\", \"timed_out\", \"canceled\", \"disconnected\" ...")
      .def_prop_ro(
          "bytes", [](const PyTransfer& self) { return self.transfer.bytes(); },
          "Submitted. Of a receive: what the sender sent, once it is done; 0 before.")
      .def_prop_ro("id", [](const PyTransfer& self) { return self.transfer.id(); })
      .def_prop_ro("peer", [](const PyTransfer& self) { return self.peer; })
      .def(
          "__await__",
          [](nb::handle self) {
            return nb::module_::import_("linkspan._asyncio")
                .attr("until_done")(self)
                .attr("__await__")();
          },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, None]"))
      .def("__repr__", [](const PyTransfer& self) {
        return "<Transfer " + std::to_string(self.transfer.id()) + " to peer " +
               std::to_string(self.peer) + ": " + name_of(self.transfer.status().code()) + ">";
      });

  nb::class_<PyPrepared> prepared(
      module, "Prepared",
      "A transfer that is made again and again: checked once, posted at the cost of one launch.");
  bind_capture(prepared);
  prepared.def_prop_ro("bytes", [](const PyPrepared& self) { return self.prepared.bytes(); })
      .def(
          "post",
          [](const PyPrepared& self, nb::handle positions, const nb::kwargs& options) {
            const TransferOptions hints = transfer_options(options, &self.local);
            IndexList some;
            if (!positions.is_none()) some = indices_of(positions, "positions");
            auto transfer = submitting(hints, [&] {
              return positions.is_none() ? self.prepared.post(hints)
                                         : self.prepared.post(some, hints);
            });
            return keep(take(std::move(transfer), self.peer), self.peer);
          },
          "positions"_a = nb::none(), "options"_a,
          nb::sig("def post(self, positions: IndexArray | None = None, **options: "
                  "Unpack[TransferOptions]) -> Transfer"),
          "All of it, or only the pages at these positions of the prepared lists, of several "
          "pairs the same of each.")
      .def(
          "post_pairs",
          [](const PyPrepared& self, nb::handle indices, const nb::kwargs& options) {
            const TransferOptions hints = transfer_options(options, &self.local);
            const IndexList some = indices_of(indices, "indices");
            auto transfer =
                submitting(hints, [&] { return self.prepared.post_pairs(some, hints); });
            return keep(take(std::move(transfer), self.peer), self.peer);
          },
          "indices"_a, "options"_a,
          nb::sig("def post_pairs(self, indices: IndexArray, **options: Unpack[TransferOptions]) "
                  "-> Transfer"),
          "Only the pairs of regions with these indices, as one transfer; an index may repeat. "
          "Errors name a pair by its place in `indices`.")
      .def("_measure", &measure, "runs"_a);

  nb::class_<CompletionQueue>(
      module, "CompletionQueue",
      "Transfers that have become quiet and futures that are done, behind one file "
      "descriptor.")
      .def("__init__",
           [](CompletionQueue* self) {
             new (self) CompletionQueue(take(CompletionQueue::create()));
           })
      .def("fileno", &CompletionQueue::fd)
      .def(
          "add",
          [](CompletionQueue& self, const PyTransfer& transfer, std::uint64_t cookie) {
            check(self.add(transfer.transfer, cookie), transfer.peer);
          },
          "transfer"_a, "cookie"_a)
      .def(
          "add",
          [](CompletionQueue& self, const PyFuture& future, std::uint64_t cookie) {
            check(std::visit([&](const AnyFuture& its) { return self.add(its, cookie); },
                             future.future),
                  future.peer);
          },
          "future"_a, "cookie"_a)
      .def(
          "take",
          [](CompletionQueue& self) {
            const std::vector<std::uint64_t> cookies = self.take();
            if (!cookies.empty()) flying().sweep();
            return as_list(cookies);
          },
          nb::sig("def take(self) -> list[int]"));
}

}  // namespace linkspan::python

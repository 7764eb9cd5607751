// linkspan/device/packet.cuh - exchanges messages between kernels; small ones need no fence.
//
// A mailbox carries the messages of one sender to one receiver, numbered by both from 1 on. Both
// name the offset of the receiver's region where a message goes. Up to PadLayout::mailbox_bytes a
// message goes as packets through a slot of the receiver's pad, and receive() moves it to its
// place. A larger one, and each over the proxy, is put there directly, and its number is stored
// after it. For 8 bytes packets take half the time of a put with a signal; at about 32 KiB they
// take the same.
//
// MEMORY MODEL
//   Packet     a word of 8 bytes: 4 of data below the epoch of the message. Words are stored and
//              loaded whole (relaxed, system scope; only 8-byte atomicity is assumed of the vector
//              accesses), so a word that has the epoch also has its data. Words need no order, so
//              neither side has a fence.
//   receive()  `ok`: after its barrier the bytes are in the region for all lanes of the scope.
//   Landing    receive() stores packets. A message by a put lands as soon as it is sent, up to
//              kSlots messages before it is received. So its place must differ from those of the
//              kSlots messages before it, and each must be read before the next one is received.
//   Slots      kSlots messages may be in flight, half as many while the receiver is idle. The
//              receiver returns credit every kSlots / 2 messages, with the receive of the next one,
//              by a release after its last load of them and after its clears. The sender acquires
//              the credit before it writes to these slots again.
//   Epoch      (number - 1) % wrap + 1, never zero. Before a slot's epochs begin again the receiver
//              clears it, so that no word of the previous cycle is taken for a new one. A cycle has
//              at least kSlots epochs.
#pragma once

#include "linkspan/device/put.cuh"
#include "linkspan/device/signal.cuh"

namespace linkspan::device {
namespace detail {

constexpr uint32_t kCreditEvery = PadLayout::kSlots / 2;

LINKSPAN_DEVICE uint64_t* slot_of(const Window& window, unsigned char* pad, uint32_t mailbox,
                                  uint64_t number) {
  const uint32_t slot =
      mailbox * PadLayout::kSlots + static_cast<uint32_t>(number) % PadLayout::kSlots;
  return word_at(pad, window.layout.slots_at() + uint64_t{2 * slot} * window.layout.mailbox_bytes);
}

LINKSPAN_COLD uint32_t wrapped(uint64_t number, uint32_t wrap) {
  return static_cast<uint32_t>((number - 1) % wrap) + 1;  // a division costs 50 ns
}
LINKSPAN_DEVICE uint32_t epoch_of(const Window& window, uint64_t number) {
  return number <= window.wrap ? static_cast<uint32_t>(number) : wrapped(number, window.wrap);
}

/// Loads or stores word i, bytes [8 * i, 8 * i + 8), if it is unaligned or `bytes` cuts it off.
LINKSPAN_COLD uint64_t load_part(const unsigned char* from, uint32_t i, uint32_t bytes) {
  uint64_t value = 0;
  for (uint32_t k = 0; k < 8 && i * 8 + k < bytes; ++k)
    value |= uint64_t{from[i * 8 + k]} << (8 * k);
  return value;
}
LINKSPAN_COLD void store_part(unsigned char* to, uint32_t i, uint32_t bytes, uint64_t value) {
  for (uint32_t k = 0; k < 8 && i * 8 + k < bytes; ++k)
    to[i * 8 + k] = static_cast<unsigned char>(value >> (8 * k));
}

/// Returns true if the message goes through a slot, unless the sender has a proxy.
LINKSPAN_DEVICE bool is_small(const Window& window, uint64_t bytes) {
  return bytes <= window.layout.mailbox_bytes && window.layout.mailbox_bytes != 0;
}

LINKSPAN_DEVICE bool is_message(const Window& window, uint32_t mailbox, uint64_t number) {
  return mailbox < window.layout.mailboxes && number != 0;
}

/// Describes a message on one side.
struct Packets {
  uint64_t* slot;
  uint32_t epoch;
  uint32_t pairs;  // pairs of words; an empty message has one too
  uint32_t bytes;
  uint32_t whole;  // pairs that are 8 aligned bytes in the region or in `src`
};
LINKSPAN_DEVICE Packets packets_of(const Window& window, unsigned char* pad, uint32_t mailbox,
                                   uint64_t number, const void* memory, uint64_t bytes) {
  const auto size = static_cast<uint32_t>(bytes);
  return {slot_of(window, pad, mailbox, number), epoch_of(window, number),
          size == 0 ? 1 : (size + 7) / 8, size,
          reinterpret_cast<uint64_t>(memory) % 8 == 0 ? size / 8 : 0};
}

LINKSPAN_DEVICE void store_packet(uint64_t* words, uint32_t number, uint64_t data) {
  const uint64_t epoch = uint64_t{number} << 32;
  store_pair(words, epoch | (data & ~uint32_t{0}), epoch | data >> 32);
}
LINKSPAN_DEVICE void store_packet(const Packets& message, uint32_t i, uint64_t data) {
  store_packet(message.slot + 2 * i, message.epoch, data);
}
LINKSPAN_DEVICE uint64_t load_data(const Packets& message, const unsigned char* from, uint32_t i) {
  return i < message.whole ? reinterpret_cast<const uint64_t*>(from)[i]
                           : load_part(from, i, message.bytes);
}
LINKSPAN_DEVICE uint64_t data_of(uint64_t low, uint64_t high) {
  return (low & ~uint32_t{0}) | high << 32;
}
LINKSPAN_DEVICE bool is_here(uint32_t epoch, uint64_t low, uint64_t high) {
  return static_cast<uint32_t>(low >> 32) == epoch && static_cast<uint32_t>(high >> 32) == epoch;
}

/// Stores runs of N pairs a lane, as many as fit into the whole pairs from `i` on, and advances
/// `i`. The loads of a run are in flight together.
template <uint32_t N>
LINKSPAN_DEVICE void pack_runs(const Packets& message, const unsigned char* from, uint32_t step,
                               uint32_t& i) {
  for (; i + (N - 1) * step < message.whole; i += N * step) {
    uint64_t data[N];
    LINKSPAN_UNROLL
    for (uint32_t k = 0; k < N; ++k)
      data[k] = reinterpret_cast<const uint64_t*>(from)[i + k * step];
    LINKSPAN_UNROLL
    for (uint32_t k = 0; k < N; ++k) store_packet(message, i + k * step, data[k]);
  }
}

/// The state of a wait for packets, checked at each 64th poll. Numbered as the outcomes are.
enum class Glance : uint32_t { go_on, timed_out, aborted, put };
LINKSPAN_COLD Glance glance(const uint64_t* arrived, uint64_t number, Bound bound, uint64_t start) {
  give_way();
  // This message or a later one was put. If this one came by packets, they are here, because they
  // precede the later number.
  if (load_acquire(arrived) >= number) return Glance::put;
  if (bound.abort != nullptr && load_acquire(bound.abort) != 0) return Glance::aborted;
  return nanoseconds() - start > bound.nanoseconds ? Glance::timed_out : Glance::go_on;
}
/// Calls `look` until it returns true or the bound ends the wait.
template <class Look>
LINKSPAN_DEVICE Glance await(const uint64_t* arrived, uint64_t number, Bound bound,
                             const Look& look) {
  uint64_t start = 0;
  for (uint32_t looks = 1; !look(); ++looks) {
    if (looks % 64 != 0) continue;
    if (start == 0) start = nanoseconds();
    const Glance found = glance(arrived, number, bound, start);
    // the packets may have arrived since
    if (found != Glance::go_on) return look() ? Glance::go_on : found;
  }
  return Glance::go_on;
}
LINKSPAN_DEVICE Outcome outcome_of(Glance glance) {
  return glance == Glance::put ? Outcome::ok : static_cast<Outcome>(glance);
}

/// Moves packets to the region in runs, as pack_runs() does. Returns go_on once all of these runs
/// are stored.
template <uint32_t N>
LINKSPAN_DEVICE Glance unpack_runs(const Packets& message, unsigned char* to, uint32_t step,
                                   uint32_t& i, const uint64_t* arrived, uint64_t number,
                                   Bound bound) {
  for (; i + (N - 1) * step < message.whole; i += N * step) {
    uint64_t low[N], high[N];
    const Glance found = await(arrived, number, bound, [&] {
      LINKSPAN_UNROLL
      for (uint32_t k = 0; k < N; ++k)
        load_pair(message.slot + 2 * (i + k * step), low[k], high[k]);
      bool here = true;
      LINKSPAN_UNROLL
      for (uint32_t k = 0; k < N; ++k) here &= is_here(message.epoch, low[k], high[k]);
      return here;
    });
    if (found != Glance::go_on) return found;
    LINKSPAN_UNROLL
    for (uint32_t k = 0; k < N; ++k)
      reinterpret_cast<uint64_t*>(to)[i + k * step] = data_of(low[k], high[k]);
  }
  return Glance::go_on;
}

/// Waits for pair `i` and stores it, unless the message comes by a put.
LINKSPAN_COLD Glance unpack_one(const Packets message, unsigned char* to, uint32_t i,
                                const uint64_t* arrived, uint64_t number, Bound bound) {
  uint64_t low = 0, high = 0;
  const Glance found = await(arrived, number, bound, [&] {
    load_pair(message.slot + 2 * i, low, high);
    return is_here(message.epoch, low, high);
  });
  if (found != Glance::go_on) return found;
  if (i < message.whole)
    reinterpret_cast<uint64_t*>(to)[i] = data_of(low, high);
  else
    store_part(to, i, message.bytes, data_of(low, high));
  return found;
}

/// Packs a message with more pairs than the scope has lanes.
template <Scope S>
LINKSPAN_DEVICE void pack_many(const Packets& message, const unsigned char* from) {
  const uint32_t step = lanes<S>();
  uint32_t i = rank<S>();
  pack_runs<4>(message, from, step, i);
  pack_runs<2>(message, from, step, i);
  for (; i < message.pairs; i += step) store_packet(message, i, load_data(message, from, i));
}
template <Scope S>
LINKSPAN_DEVICE Glance unpack_many(const Packets& message, unsigned char* to,
                                   const uint64_t* arrived, uint64_t number, Bound bound) {
  const uint32_t step = lanes<S>();
  uint32_t i = rank<S>();
  Glance found = unpack_runs<4>(message, to, step, i, arrived, number, bound);
  if (found == Glance::go_on) found = unpack_runs<2>(message, to, step, i, arrived, number, bound);
  for (; i < message.pairs && found == Glance::go_on; i += step)
    found = unpack_one(message, to, i, arrived, number, bound);
  return found;
}

/// Clears a slot before its epochs begin again. Ends with a barrier.
template <Scope S>
LINKSPAN_COLD void clear(uint64_t* slot, uint32_t pairs) {
  for (uint32_t i = rank<S>(); i < pairs; i += lanes<S>()) store_pair(slot + 2 * i, 0, 0);
  sync<S>();
}

/// Stores `value` to a word of the peer's pad, with one lane.
LINKSPAN_DEVICE Outcome tell(const Window& window, uint64_t pad_offset, uint64_t value) {
  if (window.proxied())
    return enqueue(window.proxy, window.abort, ProxyOp::set, 0, pad_offset, 8, value);
  store_release(word_at(window.remote_pad, pad_offset), value);
  return Outcome::ok;
}

template <Scope S>
LINKSPAN_COLD Outcome await_room(const uint64_t* credit, uint64_t at_least, Bound bound) {
  Outcome room = Outcome::ok;
  if (rank<S>() == 0) room = wait_at_least(credit, at_least, bound);
  return agree<S>(room);
}

/// Puts the message, then stores its number.
template <Scope S>
LINKSPAN_COLD Outcome send_large(const Window& window, uint32_t mailbox, uint64_t number,
                                 uint64_t offset, const void* src, uint64_t bytes) {
  Outcome end = put<S>(window, offset, src, bytes);
  if (end != Outcome::ok) return end;
  sync<S>();
  if (rank<S>() == 0)
    end = tell(window, window.layout.arrivals_at() + uint64_t{mailbox} * 8, number);
  return agree<S>(end);
}

/// Makes the compiler compute a value here and keep it in a register, as it else computes it anew
/// at each use.
LINKSPAN_DEVICE void keep([[maybe_unused]] uint32_t& value) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(value));
#endif
}
LINKSPAN_DEVICE void keep([[maybe_unused]] uint64_t*& value) {
#if defined(__CUDACC__)
  asm volatile("" : "+l"(value));
#endif
}

/// One side of a mailbox: its next message, and what is constant for all of them. Easy messages are
/// packets of whole words while no credit is due: each further instruction on their path costs
/// time, so all else is left to any_send() and any_receive().
template <Scope S>
class Cursor {
 public:
  /// `last` is the highest number that may be easy.
  LINKSPAN_DEVICE Cursor(const Window& window, unsigned char* pad, uint32_t mailbox, uint64_t next,
                         uint32_t last)
      : number_(next),
        lane_(rank<S>()),
        words_(slot_of(window, pad, mailbox, 0) + 2 * lane_),
        slot_words_(window.layout.mailbox_bytes / 4),
        lanes_(lanes<S>()),
        last_(any(window.proxied(), mailbox >= window.layout.mailboxes) ? 0 : last),
        easy_(easy_from(next)) {
    keep(lane_);
    keep(words_);
    keep(slot_words_);
    keep(lanes_);
  }

  LINKSPAN_DEVICE uint64_t number() const { return number_; }
  LINKSPAN_DEVICE uint32_t lane() const { return lane_; }
  /// Returns true if the next message is easy, at this address here.
  LINKSPAN_DEVICE bool is_easy(uint64_t memory, uint64_t bytes) const {
    return !any(easy_ == 0, bytes - 1 >= slot_words_ * 4, (memory | bytes) % 8 != 0);
  }
  /// Returns true if an easy message has no more pairs than the scope has lanes.
  LINKSPAN_DEVICE bool is_short(uint64_t bytes) const { return bytes <= uint64_t{lanes_} * 8; }
  LINKSPAN_DEVICE Packets easy(uint64_t bytes) const {
    const auto size = static_cast<uint32_t>(bytes);
    return {words() - 2 * lane_, epoch(), size / 8, size, size / 8};
  }
  /// Returns this lane's pair of words of the next message.
  LINKSPAN_DEVICE uint64_t* words() const {
    return words_ + uint64_t{static_cast<uint32_t>(number_) % PadLayout::kSlots} * slot_words_;
  }
  /// Returns the number of an easy message, which is its epoch.
  LINKSPAN_DEVICE uint32_t epoch() const { return static_cast<uint32_t>(number_); }
  /// Goes on to the next message.
  LINKSPAN_DEVICE void advance(bool was_easy) {
    ++number_;
    easy_ = was_easy ? easy_ - 1 : easy_from(number_);
  }

 private:
  /// Returns how many messages from this one on may be easy.
  LINKSPAN_DEVICE uint32_t easy_from(uint64_t number) const {
    const uint32_t before = static_cast<uint32_t>(number - 1) % kCreditEvery;
    const uint32_t most = before == 0 && number > kCreditEvery ? 0 : kCreditEvery - before;
    return number != 0 && number - 1 + most <= last_ ? most : 0;
  }

  uint64_t number_;
  uint32_t lane_;
  uint64_t* words_;  // of this lane, in slot 0
  uint32_t slot_words_;
  uint32_t lanes_;
  const uint32_t last_;
  uint32_t easy_;
};

/// Waits until a slot is free for the message. Is a barrier of the scope.
template <Scope S>
LINKSPAN_DEVICE Outcome make_room(const Window& window, uint32_t mailbox, uint64_t number,
                                  Bound bound) {
  if ((number - 1) % kCreditEvery == 0 && number > kCreditEvery)
    return await_room<S>(
        word_at(window.local_pad, window.layout.credits_at() + uint64_t{mailbox} * 8),
        number - 1 - kCreditEvery, bound);
  sync<S>();
  return Outcome::ok;
}

// A caller passes a copy of its Window to these two, so that the kernel can keep its own in
// registers.

/// Sends every kind of message.
template <Scope S>
LINKSPAN_COLD Outcome any_send(const Window& window, uint32_t mailbox, uint64_t number,
                               uint64_t offset, const void* src, uint64_t bytes, Bound bound) {
  if (!is_message(window, mailbox, number) || !within(offset, bytes, window.remote_bytes))
    return Outcome::out_of_range;
  if (const Outcome room = make_room<S>(window, mailbox, number, bound); room != Outcome::ok)
    return room;
  if (window.proxied() || !is_small(window, bytes))
    return send_large<S>(window, mailbox, number, offset, src, bytes);
  const auto* from = static_cast<const unsigned char*>(src);
  const Packets message = packets_of(window, window.remote_pad, mailbox, number, from, bytes);
  if (const uint32_t i = rank<S>(); message.pairs > lanes<S>())
    pack_many<S>(message, from);
  else if (i < message.pairs)
    store_packet(message, i, load_data(message, from, i));
  return Outcome::ok;
}

/// Receives every kind of message.
template <Scope S>
LINKSPAN_COLD Outcome any_receive(const Window& window, uint32_t mailbox, uint64_t number,
                                  uint64_t offset, uint64_t bytes, Bound bound) {
  if (!is_message(window, mailbox, number) || !within(offset, bytes, window.local_bytes))
    return Outcome::out_of_range;
  Outcome end = Outcome::ok;
  const uint32_t lane = rank<S>();
  // Returns credit for the messages before this one while it is in flight, because a release takes
  // as long as a message.
  if (number % kCreditEvery == 1 && number != 1 && lane == 0)
    end = tell(window, window.layout.credits_at() + uint64_t{mailbox} * 8, number - 1);
  const uint64_t* const arrived =
      word_at(window.local_pad, window.layout.arrivals_at() + uint64_t{mailbox} * 8);
  unsigned char* const to = window.local + offset;
  const Packets message = packets_of(window, window.local_pad, mailbox, number, to, bytes);
  Glance found = Glance::go_on;
  if (end != Outcome::ok) {
  } else if (!is_small(window, bytes)) {
    if (lane == 0) end = wait_at_least(arrived, number, bound);
  } else if (message.pairs > lanes<S>()) {
    found = unpack_many<S>(message, to, arrived, number, bound);
  } else if (lane < message.pairs) {
    found = unpack_one(message, to, lane, arrived, number, bound);
  }
  if (found != Glance::go_on) end = outcome_of(found);
  end = agree<S>(end);
  if (end == Outcome::ok && uint64_t{message.epoch} + PadLayout::kSlots > window.wrap)
    clear<S>(message.slot, window.layout.mailbox_bytes / 8);
  return end;
}

}  // namespace detail

/// Sends the messages of one mailbox, one after the other. All lanes of the scope make one before a
/// loop: what is constant for the mailbox then stays in registers. The Window outlives it.
template <Scope S>
class MailboxSender {
 public:
  /// The first message is number `next`. The bound limits each wait for room.
  LINKSPAN_DEVICE MailboxSender(const Window& window, uint32_t mailbox, Bound bound,
                                uint64_t next = 1)
      : window_(window),
        mailbox_(mailbox),
        bound_(bound),
        at_(window, window.remote_pad, mailbox, next, window.wrap) {}

  /// Returns the number of the next message.
  LINKSPAN_DEVICE uint64_t next() const { return at_.number(); }

  /// Sends the next message to `offset` of the peer's region; the peer receives it with the same
  /// number, offset and size. On `ok` each lane may reuse the bytes of `src` that it read, and
  /// after a barrier of the scope all lanes may reuse all of `src`; over the proxy, after flush().
  /// After another outcome the same message can be sent again.
  LINKSPAN_DEVICE Outcome send(uint64_t offset, const void* src, uint64_t bytes) {
    const bool easy = !detail::any(!at_.is_easy(reinterpret_cast<uint64_t>(src), bytes),
                                   !detail::within(offset, bytes, window_.remote_bytes));
    if (easy) {
      detail::sync<S>();
      if (!at_.is_short(bytes))
        detail::pack_many<S>(at_.easy(bytes), static_cast<const unsigned char*>(src));
      else if (at_.lane() < static_cast<uint32_t>(bytes) / 8)
        detail::store_packet(at_.words(), at_.epoch(),
                             static_cast<const uint64_t*>(src)[at_.lane()]);
    } else if (const Outcome end = detail::any_send<S>(Window(window_), mailbox_, at_.number(),
                                                       offset, src, bytes, bound_);
               end != Outcome::ok) {
      return end;
    }
    at_.advance(easy);
    return Outcome::ok;
  }

 private:
  const Window& window_;
  const uint32_t mailbox_;
  const Bound bound_;
  detail::Cursor<S> at_;
};

/// Receives the messages of one mailbox, one after the other, as a MailboxSender sends them.
template <Scope S>
class MailboxReceiver {
 public:
  /// The first message is number `next`. The bound limits each wait for a message.
  LINKSPAN_DEVICE MailboxReceiver(const Window& window, uint32_t mailbox, Bound bound,
                                  uint64_t next = 1)
      : window_(window),
        mailbox_(mailbox),
        bound_(bound),
        at_(window, window.local_pad, mailbox, next, last_easy(window.wrap)) {}

  /// Returns the number of the next message.
  LINKSPAN_DEVICE uint64_t next() const { return at_.number(); }

  /// Waits until the next message is at `offset` of the local region. The scope must have finished
  /// reading earlier messages there. If it does not return ok, the same message can be received
  /// again.
  LINKSPAN_DEVICE Outcome receive(uint64_t offset, uint64_t bytes) {
    // Computed as an integer, because the range is not checked yet.
    const uint64_t to = reinterpret_cast<uint64_t>(window_.local) + offset;
    const bool easy =
        !detail::any(!at_.is_easy(to, bytes), !detail::within(offset, bytes, window_.local_bytes));
    const Outcome end = easy ? receive_easy(reinterpret_cast<uint64_t*>(to), bytes)
                             : detail::any_receive<S>(Window(window_), mailbox_, at_.number(),
                                                      offset, bytes, bound_);
    if (end == Outcome::ok) at_.advance(easy);
    return end;
  }

 private:
  /// A wait for packets that has looked so often reads the clock.
  static constexpr uint32_t kLooks = 64;
  /// Messages above need a cleared slot.
  LINKSPAN_DEVICE static uint32_t last_easy(uint32_t wrap) {
    return wrap > PadLayout::kSlots ? wrap - PadLayout::kSlots : 0;
  }

  LINKSPAN_DEVICE Outcome receive_easy(uint64_t* to, uint64_t bytes) const {
    detail::Glance found = detail::Glance::go_on;
    if (!at_.is_short(bytes))
      found = detail::unpack_many<S>(at_.easy(bytes), reinterpret_cast<unsigned char*>(to),
                                     arrived(), at_.number(), bound_);
    else if (at_.lane() < static_cast<uint32_t>(bytes) / 8)
      found = receive_pair(to + at_.lane(), bytes);
    return detail::agree<S>(detail::outcome_of(found));
  }
  /// Waits for this lane's pair of a short message.
  LINKSPAN_DEVICE detail::Glance receive_pair(uint64_t* to, uint64_t bytes) const {
    detail::keep(to);  // before the wait
    const uint64_t* const words = at_.words();
    LINKSPAN_NO_UNROLL
    for (uint32_t looks = 0; looks < kLooks; ++looks) {
      uint64_t low = 0, high = 0;
      detail::load_pair(words, low, high);
      if (!detail::is_here(at_.epoch(), low, high)) continue;
      *to = detail::data_of(low, high);
      return detail::Glance::go_on;
    }
    return detail::unpack_one(at_.easy(bytes), reinterpret_cast<unsigned char*>(to - at_.lane()),
                              at_.lane(), arrived(), at_.number(), bound_);
  }
  LINKSPAN_DEVICE const uint64_t* arrived() const {
    return detail::word_at(window_.local_pad,
                           window_.layout.arrivals_at() + uint64_t{mailbox_} * 8);
  }

  const Window& window_;
  const uint32_t mailbox_;
  const Bound bound_;
  detail::Cursor<S> at_;
};

/// Sends message `number` of a mailbox, as a MailboxSender does: numbers are consecutive.
template <Scope S>
LINKSPAN_DEVICE Outcome send(const Window& window, uint32_t mailbox, uint64_t number,
                             uint64_t offset, const void* src, uint64_t bytes, Bound bound) {
  return MailboxSender<S>(window, mailbox, bound, number).send(offset, src, bytes);
}

/// Receives message `number` of a mailbox, as a MailboxReceiver does.
template <Scope S>
LINKSPAN_DEVICE Outcome receive(const Window& window, uint32_t mailbox, uint64_t number,
                                uint64_t offset, uint64_t bytes, Bound bound) {
  return MailboxReceiver<S>(window, mailbox, bound, number).receive(offset, bytes);
}

}  // namespace linkspan::device

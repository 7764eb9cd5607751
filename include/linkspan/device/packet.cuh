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

LINKSPAN_DEVICE void store_packet(const Packets& message, uint32_t i, uint64_t data) {
  const uint64_t epoch = uint64_t{message.epoch} << 32;
  store_pair(message.slot + 2 * i, epoch | (data & ~uint32_t{0}), epoch | data >> 32);
}
LINKSPAN_DEVICE uint64_t load_data(const Packets& message, const unsigned char* from, uint32_t i) {
  return i < message.whole ? reinterpret_cast<const uint64_t*>(from)[i]
                           : load_part(from, i, message.bytes);
}
LINKSPAN_DEVICE uint64_t data_of(uint64_t low, uint64_t high) {
  return (low & ~uint32_t{0}) | high << 32;
}
LINKSPAN_DEVICE bool is_here(const Packets& message, uint64_t low, uint64_t high) {
  return static_cast<uint32_t>(low >> 32) == message.epoch &&
         static_cast<uint32_t>(high >> 32) == message.epoch;
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

/// The state of a wait for packets, checked at each 64th poll.
enum class Glance : uint8_t { go_on, put, timed_out, aborted };
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
  return glance == Glance::timed_out ? Outcome::timed_out
         : glance == Glance::aborted ? Outcome::aborted
                                     : Outcome::ok;
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
      for (uint32_t k = 0; k < N; ++k) here &= is_here(message, low[k], high[k]);
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
LINKSPAN_DEVICE Glance unpack_one(const Packets& message, unsigned char* to, uint32_t i,
                                  const uint64_t* arrived, uint64_t number, Bound bound) {
  uint64_t low = 0, high = 0;
  const Glance found = await(arrived, number, bound, [&] {
    load_pair(message.slot + 2 * i, low, high);
    return is_here(message, low, high);
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
LINKSPAN_COLD Outcome send_large(const Window window, uint32_t mailbox, uint64_t number,
                                 uint64_t offset, const void* src, uint64_t bytes) {
  Outcome end = put<S>(window, offset, src, bytes);
  if (end != Outcome::ok) return end;
  sync<S>();
  if (rank<S>() == 0)
    end = tell(window, window.layout.arrivals_at() + uint64_t{mailbox} * 8, number);
  return agree<S>(end);
}

/// Combines conditions, so that they cost one jump.
template <class... Bools>
LINKSPAN_DEVICE bool any(Bools... each) {
  return (static_cast<unsigned>(each) | ...) != 0;
}

/// Returns true if the message goes as packets, is whole words on this side, and has its number as
/// epoch.
LINKSPAN_DEVICE bool is_plain(const Window& window, uint32_t mailbox, uint64_t number,
                              uint64_t last, const void* memory, uint64_t bytes) {
  return !any(mailbox >= window.layout.mailboxes, number - 1 >= last,
              bytes - 1 >= window.layout.mailbox_bytes,
              (reinterpret_cast<uint64_t>(memory) | bytes) % 8 != 0);
}
LINKSPAN_DEVICE Packets plain_packets(const Window& window, unsigned char* pad, uint32_t mailbox,
                                      uint64_t number, uint64_t bytes) {
  const auto size = static_cast<uint32_t>(bytes);
  return {slot_of(window, pad, mailbox, number), static_cast<uint32_t>(number), size / 8, size,
          size / 8};
}

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

/// Sends every kind of message. The Window is passed by value, so that the kernel can keep its own
/// in registers.
template <Scope S>
LINKSPAN_COLD Outcome any_send(const Window window, uint32_t mailbox, uint64_t number,
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

template <Scope S>
LINKSPAN_COLD Outcome any_receive(const Window window, uint32_t mailbox, uint64_t number,
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

/// Sends message `number` of a mailbox to `offset` of the peer's region; the peer receives it with
/// the same number, offset and size. Numbers are consecutive. The bound limits the wait for room.
/// On return each lane may reuse the bytes of `src` that it read, and after a barrier of the scope
/// all lanes may reuse all of `src`; over the proxy, after flush().
template <Scope S>
LINKSPAN_DEVICE Outcome send(const Window& window, uint32_t mailbox, uint64_t number,
                             uint64_t offset, const void* src, uint64_t bytes, Bound bound) {
  // These checks suffice for most messages; each further one would cost as much as a short message.
  if (detail::any(window.proxied(),
                  !detail::is_plain(window, mailbox, number, window.wrap, src, bytes),
                  !detail::within(offset, bytes, window.remote_bytes)))
    return detail::any_send<S>(window, mailbox, number, offset, src, bytes, bound);
  if (const Outcome room = detail::make_room<S>(window, mailbox, number, bound);
      room != Outcome::ok)
    return room;
  const auto* from = static_cast<const unsigned char*>(src);
  const detail::Packets message =
      detail::plain_packets(window, window.remote_pad, mailbox, number, bytes);
  if (const uint32_t i = detail::rank<S>(); message.pairs > detail::lanes<S>())
    detail::pack_many<S>(message, from);
  else if (i < message.pairs)
    detail::store_packet(message, i, reinterpret_cast<const uint64_t*>(from)[i]);
  return Outcome::ok;
}

/// Waits until message `number` is at `offset` of the local region. The scope must have finished
/// reading earlier messages there. If it does not return ok, the same message can be received
/// again.
template <Scope S>
LINKSPAN_DEVICE Outcome receive(const Window& window, uint32_t mailbox, uint64_t number,
                                uint64_t offset, uint64_t bytes, Bound bound) {
  // Computed as an integer, because the range is not checked yet.
  auto* const to =
      reinterpret_cast<unsigned char*>(reinterpret_cast<uint64_t>(window.local) + offset);
  // Messages above `last` need a cleared slot.
  const uint32_t last = window.wrap > PadLayout::kSlots ? window.wrap - PadLayout::kSlots : 0;
  if (detail::any(window.proxied(), !detail::is_plain(window, mailbox, number, last, to, bytes),
                  !detail::within(offset, bytes, window.local_bytes)))
    return detail::any_receive<S>(window, mailbox, number, offset, bytes, bound);
  const uint32_t lane = detail::rank<S>();
  if (number % detail::kCreditEvery == 1 && number != 1 && lane == 0)
    detail::store_release(
        detail::word_at(window.remote_pad, window.layout.credits_at() + uint64_t{mailbox} * 8),
        number - 1);
  const uint64_t* const arrived =
      detail::word_at(window.local_pad, window.layout.arrivals_at() + uint64_t{mailbox} * 8);
  const detail::Packets message =
      detail::plain_packets(window, window.local_pad, mailbox, number, bytes);
  detail::Glance found = detail::Glance::go_on;
  if (message.pairs > detail::lanes<S>())
    found = detail::unpack_many<S>(message, to, arrived, number, bound);
  else if (lane < message.pairs)
    found = detail::unpack_one(message, to, lane, arrived, number, bound);
  return detail::agree<S>(detail::outcome_of(found));
}

}  // namespace linkspan::device

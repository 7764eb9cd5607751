// linkspan/device/packet.cuh - messages between kernels, without a fence where they are small.
//
// A mailbox carries the messages of one sender to one receiver, numbered by both from 1 on. The
// receiver finds each at the offset of its region that both name. Up to PadLayout::mailbox_bytes a
// message goes as packets through a slot of the receiver's pad, from where the receiver puts it in
// its place; above, and over the proxy, it is put there directly and its number behind it. Packets
// take half the time of a put with a signal for 8 bytes, and as long at about 16 KiB.
//
// MEMORY MODEL
//   Packet     a word of 8 bytes: 4 of data below the epoch of the message. Words are stored and
//              loaded whole (relaxed, system scope; only 8-byte atomicity is assumed of the vector
//              accesses), so a word that bears the epoch bears its data, and nothing is asked of
//              the order among words: no fence on either side.
//   receive()  `ok`: the bytes are in the region for all lanes of the scope, behind a barrier.
//   Landing    packets are put down by receive(). What goes by a put lands as soon as it is sent,
//              up to kSlots messages before it is received: its place is no other's of the kSlots
//              messages before it, and each is read before the next one is received.
//   Slots      kSlots messages may be under way. The receiver returns credit every kSlots / 2
//              messages by a release behind its last load of them and behind what it cleared; the
//              sender acquires it before it writes there again.
//   Epoch      (number - 1) % wrap + 1. Zero is no epoch, and before a slot's epochs begin anew the
//              receiver clears it, so that no word of the cycle before is taken for a new one. A
//              cycle has at least kSlots epochs.
#pragma once

#include "linkspan/device/put.cuh"
#include "linkspan/device/signal.cuh"

namespace linkspan::device {
namespace detail {

constexpr uint32_t kCreditEvery = PadLayout::kSlots / 2;

LINKSPAN_DEVICE uint64_t* slot_of(const Window& window, unsigned char* pad, uint32_t mailbox,
                                  uint64_t number) {
  const uint64_t slot = uint64_t{mailbox} * PadLayout::kSlots + number % PadLayout::kSlots;
  return word_at(pad, window.layout.slots_at() + slot * 2 * window.layout.mailbox_bytes);
}

LINKSPAN_DEVICE uint64_t epoch_of(const Window& window, uint64_t number) {
  return number <= window.wrap ? number : (number - 1) % window.wrap + 1;  // a division costs 50 ns
}

/// Bytes [8 * i, 8 * i + 8) as far as there are so many.
LINKSPAN_DEVICE uint64_t load_eight(const unsigned char* from, uint64_t i, uint64_t bytes) {
  const uint64_t at = i * 8;
  if (at + 8 <= bytes && reinterpret_cast<uint64_t>(from) % 8 == 0)
    return reinterpret_cast<const uint64_t*>(from)[i];
  uint64_t value = 0;
  for (uint64_t k = 0; k < 8 && at + k < bytes; ++k) value |= uint64_t{from[at + k]} << (8 * k);
  return value;
}
LINKSPAN_DEVICE void store_eight(unsigned char* to, uint64_t i, uint64_t bytes, uint64_t value) {
  const uint64_t at = i * 8;
  if (at + 8 <= bytes && reinterpret_cast<uint64_t>(to) % 8 == 0)
    reinterpret_cast<uint64_t*>(to)[i] = value;
  else
    for (uint64_t k = 0; k < 8 && at + k < bytes; ++k)
      to[at + k] = static_cast<unsigned char>(value >> (8 * k));
}

/// Goes through a slot, unless the sender has a proxy.
LINKSPAN_DEVICE bool is_small(const Window& window, uint64_t bytes) {
  return bytes <= window.layout.mailbox_bytes && window.layout.mailbox_bytes != 0;
}

/// Pairs of words that a message of so many bytes takes; of an empty one too.
LINKSPAN_DEVICE uint64_t pairs_of(uint64_t bytes) { return bytes == 0 ? 1 : (bytes + 7) / 8; }

/// `value` into a word of the peer's pad, behind what all lanes of the scope have done.
template <Scope S>
LINKSPAN_DEVICE Outcome tell(const Window& window, uint64_t pad_offset, uint64_t value) {
  sync<S>();
  if (window.proxied()) return queue_word<S>(window, ProxyOp::set, pad_offset, value);
  if (rank<S>() == 0) store_release(word_at(window.remote_pad, pad_offset), value);
  return Outcome::ok;
}

LINKSPAN_DEVICE bool is_message(const Window& window, uint32_t mailbox, uint64_t number) {
  return mailbox < window.layout.mailboxes && number != 0;
}

constexpr uint32_t kAtOnce = 4;  // pairs of a lane that are on their way together

/// By one lane for its share.
template <Scope S>
LINKSPAN_DEVICE void pack(const Window& window, uint32_t mailbox, uint64_t number,
                          const unsigned char* from, uint64_t bytes) {
  uint64_t* slot = slot_of(window, window.remote_pad, mailbox, number);
  const uint64_t epoch = epoch_of(window, number) << 32;
  const uint64_t pairs = pairs_of(bytes), step = lanes<S>();
  for (uint64_t i = rank<S>(); i < pairs; i += kAtOnce * step) {
    uint64_t data[kAtOnce];
    LINKSPAN_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (i + k * step < pairs) data[k] = load_eight(from, i + k * step, bytes);
    LINKSPAN_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (i + k * step < pairs)
        store_pair(slot + 2 * (i + k * step), epoch | (data[k] & ~uint32_t{0}),
                   epoch | data[k] >> 32);
  }
}

/// Puts down what comes as packets, unless it comes by a put. By one lane for its share.
template <Scope S>
LINKSPAN_DEVICE Outcome unpack(const Window& window, uint32_t mailbox, uint64_t number,
                               unsigned char* to, uint64_t bytes, Bound bound) {
  const uint64_t* slot = slot_of(window, window.local_pad, mailbox, number);
  const uint64_t* arrived =
      word_at(window.local_pad, window.layout.arrivals_at() + uint64_t{mailbox} * 8);
  const uint64_t epoch = epoch_of(window, number), pairs = pairs_of(bytes), step = lanes<S>();
  for (uint64_t i = rank<S>(); i < pairs; i += kAtOnce * step) {
    uint64_t low[kAtOnce], high[kAtOnce];
    const auto look = [&] {
      bool here = true;
      LINKSPAN_UNROLL
      for (uint32_t k = 0; k < kAtOnce; ++k)
        if (i + k * step < pairs) load_pair(slot + 2 * (i + k * step), low[k], high[k]);
      LINKSPAN_UNROLL
      for (uint32_t k = 0; k < kAtOnce; ++k)
        if (i + k * step < pairs) here &= (low[k] >> 32) == epoch && (high[k] >> 32) == epoch;
      return here;
    };
    Patience patience(bound);
    for (uint32_t spins = 1; !look(); ++spins) {
      if (spins % 64 == 0 && load_acquire(arrived) >= number) {
        // Put was this one or a later one, and then the packets of this one were there before.
        if (look()) break;
        return Outcome::ok;
      }
      if (const Outcome spent = patience.spent(); spent != Outcome::ok) {
        if (look()) break;  // it has come meanwhile
        return spent;
      }
    }
    LINKSPAN_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (i + k * step < pairs)
        store_eight(to, i + k * step, bytes, (low[k] & ~uint32_t{0}) | high[k] << 32);
  }
  return Outcome::ok;
}

}  // namespace detail

/// Message `number` of a mailbox: bytes to `offset` of the peer's region, where it receives the
/// same number and size. Numbers follow each other. The bound is for room; what a lane gave is its
/// own again when this ends, all of `src` behind a barrier of the scope, over the proxy at flush().
template <Scope S>
LINKSPAN_DEVICE Outcome send(const Window& window, uint32_t mailbox, uint64_t number,
                             uint64_t offset, const void* src, uint64_t bytes, Bound bound) {
  if (!detail::is_message(window, mailbox, number) ||
      !detail::within(offset, bytes, window.remote_bytes))
    return Outcome::out_of_range;
  if ((number - 1) % detail::kCreditEvery == 0 && number > detail::kCreditEvery) {
    Outcome room = Outcome::ok;
    if (detail::rank<S>() == 0)
      room = detail::wait_at_least(
          detail::word_at(window.local_pad, window.layout.credits_at() + uint64_t{mailbox} * 8),
          number - 1 - detail::kCreditEvery, bound);
    if (room = detail::agree<S>(room); room != Outcome::ok) return room;
  } else {
    detail::sync<S>();
  }
  if (window.proxied() || !detail::is_small(window, bytes)) {
    if (const Outcome end = put<S>(window, offset, src, bytes); end != Outcome::ok) return end;
    return detail::tell<S>(window, window.layout.arrivals_at() + uint64_t{mailbox} * 8, number);
  }
  detail::pack<S>(window, mailbox, number, static_cast<const unsigned char*>(src), bytes);
  return Outcome::ok;
}

/// Until message `number` is at `offset` of the region here. What the scope still reads there of an
/// earlier one, it has to have read. Not ok: it may be asked for again, unless it was the credit
/// that a proxy did not take (timed_out or failed while the bytes are there): that ends the
/// mailbox.
template <Scope S>
LINKSPAN_DEVICE Outcome receive(const Window& window, uint32_t mailbox, uint64_t number,
                                uint64_t offset, uint64_t bytes, Bound bound) {
  if (!detail::is_message(window, mailbox, number) ||
      !detail::within(offset, bytes, window.local_bytes))
    return Outcome::out_of_range;
  Outcome end = Outcome::ok;
  if (detail::is_small(window, bytes))
    end = detail::unpack<S>(window, mailbox, number, window.local + offset, bytes, bound);
  else if (detail::rank<S>() == 0)
    end = detail::wait_at_least(
        detail::word_at(window.local_pad, window.layout.arrivals_at() + uint64_t{mailbox} * 8),
        number, bound);
  end = detail::agree<S>(end);
  if (end != Outcome::ok) return end;
  if (detail::epoch_of(window, number) + PadLayout::kSlots > window.wrap) {
    uint64_t* slot = detail::slot_of(window, window.local_pad, mailbox, number);
    const uint64_t pairs = window.layout.mailbox_bytes / 8;
    for (uint64_t i = detail::rank<S>(); i < pairs; i += detail::lanes<S>())
      detail::store_pair(slot + 2 * i, 0, 0);
  }
  if (number % detail::kCreditEvery != 0) return Outcome::ok;
  return detail::tell<S>(window, window.layout.credits_at() + uint64_t{mailbox} * 8, number);
}

}  // namespace linkspan::device

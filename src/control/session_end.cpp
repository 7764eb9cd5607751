#include "control/session_end.hpp"

#include "control/session.hpp"

namespace linkspan::control {
namespace {

/// Sets `done`, and again to false if `report` throws, so that it is retried.
template <class Report>
void report_once(bool& done, const Report& report) {
  if (std::exchange(done, true)) return;
  try {
    report();
  } catch (...) {
    done = false;
    throw;
  }
}

}  // namespace

void SessionEnd::report(Session& session, SessionEvents& events) {
  if (terminated_ || !disconnected_ || dropped_) return;
  const bool established = session.is_established();
  if (established) report_once(disconnect_reported_, [&] { events.on_disconnected(session); });
  // A process that only closed its socket may still copy; one that died may have a forked child
  // that holds the socket and the GPU's files (fact: Death.NothingLandsAfterProcessAndSocketEnded).
  if (established && !goodbye_received_ && !process_ended_ && !session.is_remote()) return;
  report_once(terminated_, [&] {
    if (established) events.on_terminated(session);
  });
}

}  // namespace linkspan::control

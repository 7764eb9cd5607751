/* The Engine's progress thread, users that submit and poll, a peer's message and the GPUs' words.
 *
 * A completion is a word in memory, which wakes nobody: the thread has to look. While a copy runs
 * it sleeps for a bounded time (a doze, or until the predicted end). It is parked when nothing is
 * outstanding, or when only a message of a peer can change anything: then a submission, or the
 * thread that reads the message, rings. Users that wait look themselves and leave without a word.
 * ring() is ProgressThread::notify(), nap() is ProgressThread::wait_up_to(). look() is
 * PeerScheduler::poll() or, of a user, PeerScheduler::wait(), under the peer's mutex. The users
 * have one peer.
 * Checked: the thread is never parked for ever while a copy has ended that nobody has seen.
 */
#include "sync.inc"

#define AWAKE 0
#define DOZE 1
#define PARKED 2

#define NONE 0
#define ASKED 1  /* waits for a message of the peer */
#define COPIES 2 /* a GPU is at it */
#define COPIED 3 /* its word is written: the next look ends it */

bool rung, bell; /* an atomic, an eventfd */
byte sleep_ = AWAKE;
byte polling;    /* users that wait */
byte users = 2;
byte transfer[2]; /* each look and each change of one is a step under the peer's mutex */

#define ALL_DONE (users == 0 && transfer[0] == NONE && transfer[1] == NONE)
#define COPYING(i) (transfer[i] >= COPIES)

inline ring(from) {
  rung = true;
  if
  :: sleep_ >= from -> bell = true
  :: else
  fi
}

inline look() {
  if
  :: transfer[0] == COPIED -> transfer[0] = NONE
  :: else
  fi;
  if
  :: transfer[1] == COPIED -> transfer[1] = NONE
  :: else
  fi
}

/* Submits, then waits for the end or leaves it to the thread. */
proctype User(byte mine) {
  if
  :: mine == 0 -> transfer[mine] = ASKED
  :: transfer[mine] = COPIES
  fi;
#ifdef BROKEN_SUBMISSION_RINGS_NOBODY
  skip;
#else
  ring(PARKED); /* a thread that dozes looks soon */
#endif
  if
  :: polling++;
    do
    :: transfer[mine] == NONE -> polling--; break
    :: atomic { transfer[mine] != NONE -> look() }
    :: polling--; ring(DOZE); break /* its time-out has passed */
    od
  :: skip
  fi;
  users--
}

/* Brings the message that a transfer waits for. */
proctype Control() {
end:
  do
  :: atomic { transfer[0] == ASKED -> transfer[0] = COPIES }; ring(DOZE)
  od
}

proctype Gpu() {
end:
  do
  :: atomic { transfer[0] == COPIES -> transfer[0] = COPIED }
  :: atomic { transfer[1] == COPIES -> transfer[1] = COPIED }
  od
}

/* Sleeps. `bounded`: for a doze, or until what is predicted. */
inline nap(how, bounded) {
#ifdef BROKEN_SLEEP_IS_SET_AFTER_THE_LOOK
  at_once = rung;
  sleep_ = how;
#else
  sleep_ = how;
  at_once = rung; /* who rings from here on sees that it sleeps */
#endif
  if
  :: atomic { bell -> bell = false }
  :: at_once || bounded
  :: ALL_DONE -> goto over
  fi;
  atomic { sleep_ = AWAKE; at_once = false }
}

proctype Thread() {
  bool at_once, idle, copying;
  do
  ::
#ifndef BROKEN_RING_IS_CLEARED_AFTER_THE_LOOK
    rung = false;
#endif
    atomic {
      look();
      idle = transfer[0] == NONE && transfer[1] == NONE;
      copying = COPYING(0) || COPYING(1)
    };
#ifdef BROKEN_RING_IS_CLEARED_AFTER_THE_LOOK
    rung = false;
#endif
    if
    :: idle -> nap(DOZE, true) /* something was outstanding in the last millisecond */
    :: !copying -> nap(PARKED, false)
#ifdef BROKEN_PARKS_WHILE_USERS_POLL
    :: copying && polling > 0 -> nap(PARKED, false)
#else
    :: copying && polling > 0 -> nap(DOZE, true)
#endif
    :: copying -> nap(PARKED, true) /* until shortly before the predicted end */
    :: copying && polling == 0 -> skip /* yields */
    fi
  od;
over:
}

init {
  atomic { run Thread(); run Control(); run Gpu(); run User(0); run User(1) }
}

/* The thread of a TCP data connection, and users that post while it sleeps or works.
 *
 * The thread sleeps in epoll, where the socket's edges tell only what is new and where an eventfd
 * is its bell. A user queues work, then sends it itself if nobody else sends, else wakes the
 * thread. The peer takes frames out of the socket and sends some, each of which is answered.
 * Users post to one peer, under its mutex (`scheduler`). A GPU, and an answer that waits a little
 * for company, keep the thread awake and are left out.
 * Checked: the thread never sleeps for ever while a frame waits to be sent or to be read.
 */
#include "sync.inc"

#define ROOM 1 /* frames that the socket takes */
#define FULL 2 /* frames that wait: then the thread reads none */

bool rung, sleeps, bell;      /* the thread's: atomics, an eventfd */
bool edge, owes_edge;         /* of the socket in epoll; the kernel has answered EAGAIN */
byte in_socket, arrived;      /* frames for the peer; frames of the peer */
byte queued, said;            /* batches and frames to be sent, each under a mutex of its own */
bool scheduler, sending;      /* mutexes: the peer's, of who posts; under it, that of who sends */
bool current;                 /* under it: a frame that the socket has not taken */
bool writable = true;         /* atomics: the socket takes more, */
bool idle = true;             /* nothing was said and nothing is current */
byte users = 2, arrivals = 1; /* that have not ended; that are still to come */

#define HAS_IN (arrived > 0)
#define HAS_OUT (in_socket < ROOM)
#define HAS_EVENT (edge && (HAS_IN || HAS_OUT))
#define ALL_DONE \
  (users == 0 && arrivals == 0 && !arrived && !in_socket && !queued && !said && !current)

/* Wakes the thread: a system call only if it sleeps. */
inline wake() {
  atomic { was = rung; rung = true };
  atomic { bell = bell || (!was && sleeps); was = false }
}

inline say() { atomic { said++; idle = false } }

/* Makes the next frame the current one: all that was said, and a chunk of a batch. */
inline next_frame() {
  atomic { current = said > 0; said = 0 };
  atomic {
    if
    :: queued > 0 -> queued--; current = true
    :: else
    fi
  };
  idle = !current && said == 0
}

/* Sends until the socket is full, nothing is left, or others are to have their turn. */
inline send_frames() {
  do
  :: !writable -> break
  :: else ->
    if
    :: !current -> next_frame()
    :: else
    fi;
    if
    :: !current -> break
    :: else
    fi;
#ifndef BROKEN_WRITABLE_ENDS_AFTER_THE_SEND
    writable = false; /* before the event that tells that it is again */
#endif
    atomic {
      taken = HAS_OUT;
      if
      :: taken -> in_socket++
      :: else -> owes_edge = true
      fi
    };
    if
#ifdef BROKEN_WRITABLE_ENDS_AFTER_THE_SEND
    :: !taken -> writable = false; break
#else
    :: !taken -> break
#endif
    :: else
    fi;
    atomic { writable = true; taken = false };
    atomic { current = false; moved = true };
    if
    :: break /* it has sent as much as a turn may */
    :: skip
    fi
  od
}

/* Sends what is small without the thread, if nothing is on its way. */
inline send_now() {
  if
  :: atomic { !sending -> sending = true };
    if
    :: !current -> send_frames()
    :: else
    fi;
    all_sent = !current && idle;
    unlock(sending);
    if
    :: !all_sent -> wake()
    :: else
    fi
#ifdef BROKEN_FAILED_TRY_LOCK_WAKES_NOBODY
  :: sending
#else
  :: sending -> wake() /* who holds it might not look again */
#endif
  fi
}

/* Posts a batch, or says a frame, for example the question of a read. */
proctype User() {
  bool was, all_sent, by_itself, moved, taken;
  lock(scheduler);
  if
  :: atomic { by_itself = queued == 0 && idle; queued++ };
    if
    :: by_itself -> send_now()
    :: else -> wake()
    fi
  :: say(); send_now()
  fi;
  unlock(scheduler);
  users--
}

proctype Peer() {
end:
  do
  :: atomic { arrivals > 0 -> arrivals--; arrived++; edge = true }
  :: atomic { in_socket > 0 -> in_socket--; edge = edge || owes_edge; owes_edge = false }
  od
}

/* Reports the events of the socket to the thread and clears its bell. */
inline take_events() { in = edge && HAS_IN; out = edge && HAS_OUT; edge = false; bell = false }

proctype Thread() {
  bool readable = true, sends = true; /* to be looked at in the next turn */
  bool goes_on = true;                /* the last turn moved something */
  bool has_rung, spins, in, out, moved, answers, too_much, taken, any;
  do
  ::
    if
#ifdef BROKEN_SLEEPS_BY_THE_CLOCK
    :: spins = false
#else
    :: spins = goes_on
#endif
    :: spins = true /* less than 100 us have passed since something moved */
    fi;
    if
    :: spins && !goes_on -> /* nothing is there: it asks its only socket itself */
      atomic { has_rung = rung; rung = false; readable = true }
    :: else
#ifdef BROKEN_SLEEPS_IS_SET_AFTER_THE_LOOK
      -> any = rung;
      sleeps = !spins;
#else
      -> sleeps = !spins;
      any = rung; /* who rings from here on sees that it sleeps */
#endif
      if
      :: spins || any -> atomic { take_events() }
      :: else ->
        if
        :: atomic { HAS_EVENT || bell -> take_events() }
        :: ALL_DONE -> break
        fi
      fi;
      sleeps = false;
      atomic { has_rung = rung; rung = false; readable = readable || in; sends = sends || out };
      atomic { writable = writable || out; in = false; out = false; any = false }
    fi;
    /* A turn: it reads, answers and sends. */
    atomic { too_much = !idle && said >= FULL };
    atomic {
      if
      :: !too_much && readable && HAS_IN -> arrived--; answers = true
      :: !too_much && readable && !HAS_IN -> readable = false
      :: else
      fi
    };
    if
    :: answers -> lock(sending); say(); unlock(sending)
    :: else
    fi;
    if
    :: sends || has_rung || answers ->
      lock(sending);
      send_frames();
      unlock(sending);
      sends = moved
    :: else
    fi;
    atomic {
      goes_on = moved || answers;
#ifndef BROKEN_ROOM_THAT_OTHERS_MADE_IS_NOT_SEEN
      goes_on = goes_on || (too_much && (idle || said < FULL));
#endif
      moved = false; answers = false; too_much = false; has_rung = false
    }
  od
}

init {
  atomic { run Thread(); run Peer(); run User(); run User() }
}

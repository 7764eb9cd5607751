/* The bell of a ring of notifications, between the process that reads and the one that writes.
 *
 * The writer puts messages into shared memory and makes no system call, unless the reader has asked
 * for a bell: then a frame of the socket follows. The reader's user looks, asks, looks again and
 * sleeps at a condition; its Control thread hears the frame, empties the ring and wakes the user.
 * The writer is in Session::notify() with NotificationRing::put() and
 * consume_doorbell_request(), the user in Inbox::collect() with request_doorbell(), the Control
 * thread in Inbox::on_collect_request().
 * Stores of the writer pass through a store buffer, as those of a core do: one that is sequentially
 * consistent is drained before the next load. Other frames may leave no room in the socket's queue:
 * the writer then owes the frame, and Session::flush_queued() queues it once there is room.
 * Checked: the user never sleeps for ever while a message lies in the ring or beside it, and the
 * writer never waits for ever for room in the ring.
 */
#include "sync.inc"

#define MESSAGES 3
#define ROOM 2 /* messages in the ring */

byte written, taken;   /* words of the shared page */
bool bell;             /* the same */
byte buffered;         /* `written` in the store buffer of the writer */
byte frames;           /* in the socket: "collect" */
bool congested;        /* the queue of the socket has no room */
bool owed;             /* a "collect" that had none */
byte kept;             /* messages that the Control thread has taken out */
byte news;             /* grows when who sleeps is to look anew */
bool events_mutex;     /* Inbox::mutex_ */
byte changed;          /* a condition, under events_mutex */
byte heard;            /* messages that the user has */

proctype StoreBuffer() {
end:
  do
  :: written != buffered -> written = buffered
  od
}

inline request_collection() {
  if
  :: atomic { !congested -> frames++ }
#ifdef BROKEN_BELL_WITHOUT_ROOM_IS_FORGOTTEN
  :: congested
#else
  :: atomic { congested -> owed = true }
#endif
  fi
}

/* Other frames of the session: they fill the queue, and the Control thread sends them. */
proctype Others() {
  byte times;
  do
  :: times == 2 -> break
  :: times < 2 ->
    times++;
    congested = true;
    atomic {
      congested = false;
      if
      :: owed -> owed = false; frames++
      :: else
      fi
    }
  od
}

proctype Writer() {
  byte put;
  bool asked_for_bell;
  bool asked; /* the peer was asked to collect, since the ring was found full */
  do
  :: put == MESSAGES -> break
  :: put < MESSAGES ->
    if
    :: put - taken == ROOM ->
      if
      :: !asked -> request_collection()
      :: else
      fi;
      asked = true;
      put - taken < ROOM /* the user of the writer tries again */
    :: else ->
      asked = false;
      put++;
      buffered = put;
#ifndef BROKEN_STORE_IS_A_RELEASE
      written == buffered; /* seq_cst: either it sees the bell or the reader sees the message */
#endif
      if
      :: bell ->
        atomic { asked_for_bell = bell; bell = false };
        if
        :: asked_for_bell -> request_collection()
        :: else
        fi
      :: else
      fi
    fi
  od
}

/* Takes what lies in the ring for the user and wakes it. */
proctype Control() {
  byte before;
end:
  do
  :: frames > 0 ->
    atomic { frames--; before = kept };
    atomic { kept = kept + written - taken; taken = written };
    atomic {
      !events_mutex;
#ifdef BROKEN_BELL_FOR_NOTHING_IS_NO_NEWS
      if
      :: kept != before -> news++; notify_all(changed)
      :: else
      fi
#else
      /* It may have rung for what was taken already, and the bell asked for since is gone. */
      news++;
      notify_all(changed)
#endif
    };
    before = 0
  od
}

/* Asks for notifications until it has all of them. */
proctype User() {
  byte seen;
  bool silent;
  do
  :: heard == MESSAGES -> break
  :: heard < MESSAGES ->
    seen = news;
    atomic { heard = heard + kept + written - taken; kept = 0; taken = written };
    if
    :: heard == MESSAGES -> break
    :: heard < MESSAGES ->
#ifdef BROKEN_BELL_IS_ASKED_FOR_AFTER_THE_LOOK
      silent = written == taken;
      bell = true;
#else
      bell = true;
      silent = written == taken;
#endif
      lock(events_mutex);
      if
      :: silent && news == seen -> sleep_at(changed, events_mutex, 0)
      :: else
      fi;
      unlock(events_mutex)
    fi
  od
}

init {
  atomic { run StoreBuffer(); run Others(); run Writer(); run Control(); run User() }
}

/* The list of peers that have work, between threads that give a peer work and the ProgressThread.
 *
 * A thread gives work under the peer's mutex and adds the peer to the list unless it is there
 * already (PeerScheduler::touch(), PeerTable::activate()). The ProgressThread does the work under
 * the same mutex, takes the peer off the list once it has none, and then looks once more
 * (PeerTable::poll() and deactivate()). It polls only what is on the list.
 * Checked: no work is left for ever while the peer is off the list.
 */
#include "sync.inc"

#define GIVERS 2

bool peer_mutex;  /* PeerScheduler::mutex_ */
bool is_active;      /* PeerScheduler::active, which touch() reads without the table's mutex */
bool listed;      /* the peer is in PeerTable::active_ */
byte work;
byte given;       /* threads that have given their work */

/* Under the table's mutex. */
inline activate() {
  atomic {
    if
    :: !is_active -> is_active = true; listed = true
    :: else
    fi
  }
}

proctype Giver() {
  lock(peer_mutex);
  if
  :: !is_active -> activate()
  :: else
  fi;
  work++;
  given++;
  unlock(peer_mutex)
}

proctype ProgressThread() {
  bool idle, again;
end:
  do
  :: listed ->
    lock(peer_mutex);
    work = 0;
    idle = true;
    unlock(peer_mutex);
    if
    :: idle ->
      atomic { is_active = false; listed = false };
#ifndef BROKEN_IT_DOES_NOT_LOOK_AGAIN
#ifdef BROKEN_IT_LOOKS_AGAIN_WITHOUT_THE_PEERS_MUTEX
      again = work != 0;
#else
      lock(peer_mutex);
      again = work != 0;
      unlock(peer_mutex);
#endif
      if
      :: again -> activate()
      :: else
      fi
#endif
    fi
  od
}

/* Ends once all work was given and done. */
proctype Check() {
  given == GIVERS;
  work == 0
}

init {
  atomic { run Giver(); run Giver(); run ProgressThread(); run Check() }
}

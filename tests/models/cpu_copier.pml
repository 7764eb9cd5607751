/* The executors of CPU copies, and the thread that queues orders, aborts them and ends the copier.
 *
 * Executors take chunks at a queue and sleep at its condition. A copy of a peer's memory may stand
 * still: the peer's two chunks may take both executors, then a substitute serves the order of this
 * process. A substitute leaves when the executors are back, and takes nothing that needs a slot of
 * a GPU. An executor whose slot is with the GPU waits for at most a millisecond. An executor is in
 * CpuCopier::execute(), JobQueue::claim() and finish(). Scheduler() is the thread that has the
 * mutex of the transport's copiers: it is in start(), abort(), poll() and the destructor. It counts
 * substitutes under the mutex and starts them afterwards; a thread that has not run yet is the same
 * as one that was not started.
 * Checked: an order that no page fault holds up ends, whatever stands still. Once the page faults
 * have ended so does everything, substitutes before the copier.
 */
#include "sync.inc"

#define EXECUTORS 2
#define SHARE 1       /* of a peer, while another order waits */
#define SUBSTITUTE 2  /* its number */

/* All under the mutex. */
bool mutex;
byte changed;           /* the condition */
byte across;            /* chunks that no executor has taken: of the peer's memory, */
byte own, staged;       /* of this process's, of this process's through a slot */
byte left = 4;          /* chunks that have not ended, */
byte own_left = 1;      /* those of this process's memory among them */
byte copying;           /* executors at chunks of the peer */
byte beyond, stuck;     /* of these: beyond its share; of an order that was aborted */
bool aborted;           /* the order of the peer's chunks */
byte replacing;         /* substitutes that go on */

bool stop;              /* the stop token */
bool answers;           /* the peer's page faults end */

/* There is a chunk that this executor may take of an order that is within its share. */
#define OTHERS_WAIT (own > 0 || (staged > 0 && !replaces))

inline finish_across() {
  lock(mutex);
  atomic {
    left--;
    if
    :: aborted -> stuck--
    :: else
    fi;
    if
    :: copying > SHARE -> beyond--
    :: else
    fi;
    copying--;
#ifndef BROKEN_SUBSTITUTE_IS_NOT_CALLED_OFF
    if
    :: replacing > stuck + beyond -> notify_all(changed) /* a substitute is one too many */
    :: else
    fi;
#endif
    unlock(mutex)
  }
}

proctype Executor(byte me; bool replaces) {
  bool in_gpu;
  do
  ::
    if
    :: in_gpu -> /* the GPU is done, or it is not yet */
      if
      :: atomic { !mutex -> in_gpu = false; left-- }
      :: skip
      fi
    :: else
    fi;
    if
    :: stop && !in_gpu && !replaces -> break
    :: else
    fi;
    lock(mutex);
    do
    :: replaces && (stop || replacing > stuck + beyond) ->
      atomic { replacing--; notify_all(changed); unlock(mutex) };
      goto over
    :: else ->
      if
      :: !stop && own > 0 ->
        atomic { own--; unlock(mutex) };
        atomic { !mutex -> own_left--; left-- };
        break
      :: !stop && staged > 0 && !replaces ->
        atomic { staged--; in_gpu = true; unlock(mutex) };
        break
      :: !stop && across > 0 && copying < (OTHERS_WAIT -> SHARE : EXECUTORS) ->
        atomic {
          across--;
          copying++;
          if
          :: copying > SHARE -> beyond++
          :: else
          fi;
          unlock(mutex)
        };
        answers; /* a page fault */
        finish_across();
        break
      :: else ->
        if
        :: stop && !in_gpu -> unlock(mutex); goto over
        :: else
        fi;
#ifdef BROKEN_SLEEPS_LONG_BESIDE_A_GPU
        sleep_at(changed, mutex, me);
#else
        if
        :: in_gpu -> unlock(mutex); break /* a millisecond later */
        :: else -> sleep_at(changed, mutex, me)
        fi
#endif
      fi
    od
  od;
over:
  skip
}

inline queue(chunks, many) {
  lock(mutex);
  atomic { chunks = many; notify_all(changed); unlock(mutex) }
}

inline substitute(wanted) {
  if
  :: replacing == 0 && wanted > 0 -> replacing++; run Executor(SUBSTITUTE, true)
  :: else
  fi
}

proctype Scheduler() {
  if
  :: queue(across, 2); queue(own, 1); queue(staged, 1)
  :: queue(across, 2); queue(staged, 1); queue(own, 1)
  :: queue(own, 1); queue(staged, 1); queue(across, 2)
  fi;
  if
  :: lock(mutex); /* aborts what the peer is at */
    atomic {
      left = left - across;
      across = 0;
      aborted = true;
      stuck = copying;
      substitute(stuck);
      unlock(mutex)
    }
  :: skip
  fi;
  do
  :: own_left == 0 -> break
  :: atomic { own > 0 && replacing == 0 && stuck + beyond > 0 && !mutex -> /* patience ends */
       substitute(stuck + beyond) }
  od;
  answers = true;
  left == 0 && replacing == 0;
  stop = true;
#ifdef BROKEN_STOP_NOTIFIES_WITHOUT_THE_LOCK
  notify_all(changed);
#else
  lock(mutex); /* none is between its look at the token and its wait */
  atomic { notify_all(changed); unlock(mutex) };
#endif
}

init {
  atomic { run Executor(0, false); run Executor(1, false); run Scheduler() }
}

/* One thread that runs tasks in order, those that queue tasks, and the end that lets all run.
 *
 * A task may bring another one, also while the thread ends. Whoever ends the thread does so after
 * the last task that another thread has brought.
 * The functions are those of TaskThread: run(), loop() and end().
 * Checked: every task runs, and the end comes.
 */
#include "sync.inc"

bool mutex;
byte changed;                  /* the condition */
byte tasks;                    /* all of these under mutex */
bool started, ending, ended;
bool over;                     /* the thread's loop has returned */
byte users = 2, brings = 1;    /* how many more tasks the tasks bring */
byte ran, wanted = 3;

/* Queues a task. Starts the thread with the first one; once all has ended runs it itself. */
inline run_task() {
  atomic {
    !mutex;
    by_itself = ended;
    if
    :: ended
    :: !ended && !started && !ending -> started = true; tasks++
    :: else -> tasks++
    fi
  };
#ifndef BROKEN_TASK_IS_QUEUED_IN_SILENCE
  notify_all(changed);
#endif
  if
  :: by_itself -> ran++
  :: else
  fi
}

proctype User() {
  bool by_itself;
  run_task();
  users--
}

proctype Owner() {
  bool by_itself, waits;
  users == 0;
  if /* ends at once, or once the tasks have run */
  :: waits = true
  :: waits = false
  fi;
  !waits || ran == wanted;
#ifdef BROKEN_END_IS_SET_WITHOUT_THE_LOCK
  ending = true;
#else
  atomic { !mutex -> ending = true };
#endif
  notify_all(changed);
  over || !started; /* joins it */
  atomic { !mutex -> ended = true };
  run_task();
  assert(ran == wanted + 1)
}

proctype Thread() {
  bool by_itself;
  started;
  do
  ::
    lock(mutex);
    do
    :: tasks > 0 -> break
    :: tasks == 0 ->
      if
      :: ending -> goto returns
      :: else
      fi;
      sleep_at(changed, mutex, 0)
    od;
#ifdef BROKEN_ENDS_BEFORE_ITS_TASKS
    if
    :: ending -> goto returns
    :: else
    fi;
#endif
    tasks--;
    unlock(mutex);
    ran++;
    if
    :: brings > 0 -> brings--; run_task()
    :: else
    fi
  od;
returns:
  unlock(mutex);
  over = true
}

init {
  atomic { run Thread(); run User(); run User(); run Owner() }
}

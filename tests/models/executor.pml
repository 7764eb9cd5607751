/* One thread of an Executor, tasks that queue tasks, and the end that lets all of them run.
 *
 * The functions are those of base::Executor: run(), with push() and start(); loop(), with
 * take_next(); and end(). Tasks come before the end, while it waits and after it.
 * Checked: every task runs once, on the thread or in its caller, and the end comes.
 */
#include "sync.inc"

bool mutex;
byte changed;                  /* the condition */
byte tasks;                    /* all of these under mutex */
bool started, running, ending;
byte users = 2, brings = 1;    /* how many more tasks the tasks bring */
byte ran, wanted = 3;

/* Queues a task, and starts the thread with the first one. Runs the task itself where no thread
 * runs. */
inline run_task() {
  atomic {
    !mutex;
    if
    :: !started && !ending -> started = true; running = true
    :: else
    fi;
    by_itself = !running;
    if
    :: running -> tasks++
    :: else
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
  bool waits;
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
  !running; /* waits for it */
  users == 0;
  /* A thread that was about to start when `ending` was set has ended too. */
  !running;
  assert(ran + brings == wanted)
}

proctype Thread() {
  bool by_itself;
end_never_started:
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
#ifdef BROKEN_RUNS_ON_AFTER_ITS_LAST_LOOK
  unlock(mutex);
  running = false
#else
  running = false;
  unlock(mutex)
#endif
}

init {
  atomic { run Thread(); run User(); run User(); run Owner() }
}

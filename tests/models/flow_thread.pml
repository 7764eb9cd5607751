/* The thread that calls a network plugin for its flows, and those who order, retract and end.
 *
 * It sleeps at a condition once no flow has an order. Who orders puts the order into the flow,
 * under the flow's mutex, and then wakes the thread.
 * The thread is in FlowThread::loop() and collect(), the others in wake(), give_back() and the
 * destructor.
 * Checked: the thread never sleeps for ever while an order waits, registrations of a retracted
 * region are to be given back, or it is to end.
 */
#include "sync.inc"

bool mutex;
byte changed;      /* the condition */
bool woken, giving_back, ending; /* under mutex */
byte incoming;     /* orders that the flow has not seen, under the flow's mutex */
byte orders;       /* those that it has: the thread's */
bool retracted;    /* a registration of a retracted region is left */
byte users = 2;

inline wake() {
  lock(mutex);
  woken = true;
  notify_all(changed);
  unlock(mutex)
}

/* Orders, twice. */
proctype User() {
  byte ordered;
  do
  :: ordered == 2 -> break
  :: ordered < 2 ->
#ifdef BROKEN_WAKES_BEFORE_IT_ORDERS
    wake();
    incoming++;
#else
    incoming++;
    wake();
#endif
    ordered++
  od;
  users--
}

proctype Retracter() {
  retracted = true;
  lock(mutex);
  giving_back = true;
  notify_all(changed);
  unlock(mutex);
  users--
}

/* Ends the thread once all that was asked for is done, and joins it. */
proctype Owner() {
  users == 0 && incoming == 0 && orders == 0 && !retracted;
#ifndef BROKEN_END_IS_SET_WITHOUT_THE_LOCK
  lock(mutex);
#endif
  ending = true;
#ifndef BROKEN_END_IS_SET_WITHOUT_THE_LOCK
  unlock(mutex);
#endif
  notify_all(changed)
}

proctype Thread() {
  bool gives_back, idle, sleeps;
  do
  ::
    if
    :: gives_back -> retracted = false
    :: else
    fi;
    /* A turn of the flow: it takes orders, and the plugin ends one or none. */
    atomic { orders = orders + incoming; incoming = 0 };
    if
    :: orders > 0 -> orders--
    :: skip
    fi;
    idle = orders == 0; /* else it naps for 50 us at most */
    lock(mutex);
#ifdef BROKEN_WOKEN_IS_NOT_KEPT
    sleeps = idle && !giving_back && !ending;
#else
    sleeps = idle && !woken && !giving_back && !ending;
#endif
    if
    :: sleeps -> sleep_at(changed, mutex, 0)
    :: else
    fi;
    woken = false;
    atomic { gives_back = giving_back; giving_back = false };
    if
    :: ending -> break
    :: else
    fi;
    unlock(mutex)
  od;
  unlock(mutex)
}

init {
  atomic { run Thread(); run User(); run Retracter(); run Owner() }
}

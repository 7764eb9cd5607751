/* tests/abi/pin.h - what a C99 compiler must find true. */
#ifndef LINKSPAN_TESTS_ABI_PIN_H
#define LINKSPAN_TESTS_ABI_PIN_H

/* C99 has no _Static_assert: an array of -1 elements is the error. */
#define PIN_JOIN2(a, b) a##b
#define PIN_JOIN(a, b) PIN_JOIN2(a, b)
#define PIN(condition) typedef char PIN_JOIN(pin_at_line_, __LINE__)[(condition) ? 1 : -1]
/* That function has these types. */
#define PIN_CALL(name, result, arguments)                  \
  extern result(*const PIN_JOIN(pinned_, name)) arguments; \
  result(*const PIN_JOIN(pinned_, name)) arguments = name

#endif

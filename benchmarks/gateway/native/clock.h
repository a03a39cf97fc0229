/* The clock that engine and load share, so that the load can tell how long a token was under way. */
#pragma once
#include <stdint.h>
#include <time.h>

static inline uint64_t read_clock_ns(clockid_t clock) {
  struct timespec t;
  if (clock_gettime(clock, &t)) return 0;
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) { return read_clock_ns(CLOCK_MONOTONIC); }

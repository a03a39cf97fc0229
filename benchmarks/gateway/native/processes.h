/* CPU and memory of the gateway's processes.
 *
 * CPU is read from each process's own clock: user and system time of all its threads, exact to
 * the nanosecond where the kernel accounts so, not in ticks of 10 ms.
 */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

typedef struct {
  int pid[64], count;
} Processes;

static inline Processes processes_of(char *commas) {
  Processes p = {0};
  for (char *one = strtok(commas, ","); one && p.count < 64; one = strtok(NULL, ","))
    p.pid[p.count++] = atoi(one);
  return p;
}

/* 0 if one of them is gone. */
static inline uint64_t processes_cpu_ns(const Processes *p) {
  uint64_t sum = 0;
  for (int i = 0; i < p->count; i++) {
    clockid_t clock;
    uint64_t one = clock_getcpuclockid(p->pid[i], &clock) ? 0 : read_clock_ns(clock);
    if (!one) return 0;
    sum += one;
  }
  return sum;
}

/* Lets VmHWM begin anew, so that the peak is the peak of what is measured; false where it cannot. */
static inline bool processes_forget_peak(const Processes *p) {
  bool all = true;
  for (int i = 0; i < p->count; i++) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/clear_refs", p->pid[i]);
    FILE *file = fopen(path, "w");
    bool written = file && fputs("5", file) >= 0;
    if (file && fclose(file)) written = false;
    all = all && written;
  }
  return all;
}

/* Resident memory in KB; pages that processes share are counted for each. */
static inline long processes_peak_kb(const Processes *p) {
  long sum = 0;
  for (int i = 0; i < p->count; i++) {
    char path[64], line[256];
    long kb;
    snprintf(path, sizeof path, "/proc/%d/status", p->pid[i]);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
      if (sscanf(line, "VmHWM: %ld", &kb) == 1) sum += kb;
    if (file) fclose(file);
  }
  return sum;
}

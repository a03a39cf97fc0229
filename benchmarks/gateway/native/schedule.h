/* Who is due next: a binary heap of things that know when, and where they are in it. */
#pragma once
#include <stdint.h>
#include <stdlib.h>

typedef struct {
  uint64_t due_ns;
  size_t place; /* from 1; 0 while it waits for nothing */
} Due;

typedef struct {
  Due **at; /* from 1 */
  size_t count, capacity;
} Schedule;

static inline void schedule_put(Schedule *s, size_t place, Due *due) {
  s->at[place] = due;
  due->place = place;
}

/* Moves `due` from this place to where it belongs. */
static inline void schedule_settle(Schedule *s, size_t place, Due *due) {
  while (place > 1 && due->due_ns < s->at[place / 2]->due_ns) {
    schedule_put(s, place, s->at[place / 2]);
    place /= 2;
  }
  for (size_t child; (child = place * 2) <= s->count; place = child) {
    if (child < s->count && s->at[child + 1]->due_ns < s->at[child]->due_ns) child++;
    if (due->due_ns <= s->at[child]->due_ns) break;
    schedule_put(s, place, s->at[child]);
  }
  schedule_put(s, place, due);
}

static inline void schedule_add(Schedule *s, Due *due) {
  if (s->count + 2 > s->capacity) {
    s->capacity = (s->count + 2) * 2;
    s->at = realloc(s->at, s->capacity * sizeof *s->at);
    if (!s->at) exit(1);
  }
  schedule_settle(s, ++s->count, due);
}

static inline void schedule_remove(Schedule *s, Due *due) {
  if (!due->place) return;
  size_t place = due->place;
  Due *last = s->at[s->count--];
  due->place = 0;
  if (last != due) schedule_settle(s, place, last);
}

static inline Due *schedule_first(const Schedule *s) { return s->count ? s->at[1] : NULL; }

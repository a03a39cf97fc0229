/* Times that were seen, in units of 100 ns, and their quantiles in microseconds. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  uint32_t *at;
  size_t count, capacity;
} Samples;

static inline void samples_add(Samples *s, uint64_t ns) {
  if (s->count == s->capacity) {
    s->capacity = s->capacity ? s->capacity * 2 : 4096;
    s->at = realloc(s->at, s->capacity * sizeof *s->at);
    if (!s->at) exit(1);
  }
  s->at[s->count++] = ns / 100 > UINT32_MAX ? UINT32_MAX : (uint32_t)(ns / 100);
}

static inline int samples_compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static inline double samples_quantile_us(const Samples *s, double q) {
  return s->at[(size_t)(q * (double)(s->count - 1) + 0.5)] / 10.0;
}

/* ,"name_us":{"p50":..,"p99":..,"max":..}   or null where there is none */
static inline void samples_print(Samples *s, const char *name) {
  if (!s->count) {
    printf(",\"%s_us\":null", name);
    return;
  }
  qsort(s->at, s->count, sizeof *s->at, samples_compare);
  printf(",\"%s_us\":{\"p50\":%.1f,\"p99\":%.1f,\"max\":%.1f}", name, samples_quantile_us(s, 0.5),
         samples_quantile_us(s, 0.99), samples_quantile_us(s, 1));
}

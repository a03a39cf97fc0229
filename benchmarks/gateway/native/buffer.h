/* Bytes that grow. Memory that cannot be had ends the program: it is a benchmark's. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char *at;
  size_t length, capacity;
} Buffer;

/* Room for `more` bytes after the last one; the caller adds to `length` what it wrote there. */
static inline char *buffer_room(Buffer *b, size_t more) {
  if (b->length + more > b->capacity) {
    b->capacity = (b->length + more) * 2;
    b->at = realloc(b->at, b->capacity);
    if (!b->at) {
      perror("no memory");
      exit(1);
    }
  }
  return b->at + b->length;
}

static inline void buffer_add(Buffer *b, const char *bytes, size_t length) {
  memcpy(buffer_room(b, length), bytes, length);
  b->length += length;
}

static inline void buffer_drop(Buffer *b, size_t length) {
  b->length -= length;
  memmove(b->at, b->at + length, b->length);
}

static inline void buffer_free(Buffer *b) {
  free(b->at);
  *b = (Buffer){0};
}

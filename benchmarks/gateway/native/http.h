/* HTTP/1.1 as far as a benchmark needs it: where a message ends, and what its body is.
 *
 *   Head   start line and headers, parsed once the empty line is there
 *   Body   fed piece by piece; takes the framing off: content-length, chunked, or until close
 */
#pragma once
#include <stdbool.h>
#include <strings.h>

#include "buffer.h"

typedef struct {
  size_t bytes; /* with the empty line */
  int status;   /* of a response; 0 in a request */
  long length;  /* content-length, or -1 */
  bool chunked, close;
} Head;

/* Value of a header line if it has this name, else NULL. */
static inline const char *header_value(const char *line, const char *name) {
  size_t length = strlen(name);
  if (strncasecmp(line, name, length) || line[length] != ':') return NULL;
  for (line += length + 1; *line == ' ';) line++;
  return line;
}

/* False while the empty line is missing. Ends the head with a zero byte, in its last newline. */
static inline bool head_parse(char *bytes, size_t length, Head *head) {
  char *end = memmem(bytes, length, "\r\n\r\n", 4);
  if (!end) return false;
  *head = (Head){.bytes = (size_t)(end - bytes) + 4, .length = -1};
  end[3] = 0;
  if (!memcmp(bytes, "HTTP/", 5)) head->status = atoi(bytes + 9);
  for (char *line = strstr(bytes, "\r\n"); line; line = strstr(line, "\r\n")) {
    const char *value;
    line += 2;
    if ((value = header_value(line, "content-length"))) head->length = atol(value);
    if ((value = header_value(line, "transfer-encoding")))
      head->chunked = !strncasecmp(value, "chunked", 7);
    if ((value = header_value(line, "connection"))) head->close = !strncasecmp(value, "close", 5);
  }
  return true;
}

typedef struct {
  enum { LENGTH, CHUNKED, UNTIL_CLOSE } framing;
  enum { SIZE, EXTENSION, DATA, AFTER_DATA, LAST } step; /* of a chunk */
  size_t left;                                           /* bytes in this step, or of all */
  bool done;
} Body;

static inline Body body_begin(const Head *head) {
  if (head->chunked) return (Body){.framing = CHUNKED, .step = SIZE};
  if (head->length >= 0)
    return (Body){.framing = LENGTH, .left = (size_t)head->length, .done = head->length == 0};
  if (head->status) return (Body){.framing = UNTIL_CLOSE, .left = SIZE_MAX};
  return (Body){.done = true};
}

static inline size_t body_take(Body *body, const char *bytes, size_t length, Buffer *into) {
  size_t taken = length < body->left ? length : body->left;
  if (into) buffer_add(into, bytes, taken);
  body->left -= taken;
  return taken;
}

static inline void body_feed_size(Body *body, char c) {
  int low = c | 32;
  if (c == '\n') {
    body->step = body->left ? DATA : LAST;
    if (body->step == LAST) body->left = 2;
  } else if (body->step == EXTENSION) {
    return;
  } else if (c >= '0' && c <= '9') {
    body->left = body->left * 16 + (size_t)(c - '0');
  } else if (low >= 'a' && low <= 'f') {
    body->left = body->left * 16 + (size_t)(low - 'a') + 10;
  } else {
    body->step = EXTENSION;
  }
}

/* Returns how many of these bytes are the body's; fewer than all only when it is done. */
static inline size_t body_feed(Body *body, const char *bytes, size_t length, Buffer *into) {
  size_t at = 0;
  while (at < length && !body->done) {
    if (body->framing != CHUNKED) {
      at += body_take(body, bytes + at, length - at, into);
      body->done = body->left == 0;
      continue;
    }
    switch (body->step) {
      case SIZE:
      case EXTENSION:
        body_feed_size(body, bytes[at++]);
        break;
      case DATA:
        at += body_take(body, bytes + at, length - at, into);
        if (!body->left) body->step = AFTER_DATA, body->left = 2;
        break;
      case AFTER_DATA:
        at += body_take(body, bytes + at, length - at, NULL);
        if (!body->left) body->step = SIZE;
        break;
      case LAST: /* no trailers */
        at += body_take(body, bytes + at, length - at, NULL);
        body->done = body->left == 0;
        break;
    }
  }
  return at;
}

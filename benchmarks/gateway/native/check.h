/* Whether an answer is the right one: every token, in order, of this call, and a proper end. */
#pragma once
#include <stdbool.h>
#include <stdlib.h>

#include "buffer.h"
#include "tokens.h"

typedef struct {
  Tag tag;
  long tokens;        /* seen, so that the next one has this number */
  uint64_t sent_ns;   /* when the engine sent the last one */
  bool done;          /* [DONE] was there */
  const char *wrong;  /* what is, or NULL */
} Check;

/* At `at` is the @ of a token; returns what follows it, or NULL with `wrong` set. */
static inline const char *check_token(Check *c, const char *at, const char *end) {
  char text[TOKEN_BYTES + 1], *after;
  size_t length = (size_t)(end - at) < TOKEN_BYTES ? (size_t)(end - at) : TOKEN_BYTES;
  memcpy(text, at, length);
  text[length] = 0;
  if (strncmp(text + 1, c->tag.tag, TAG_BYTES) || text[1 + TAG_BYTES] != '.') {
    c->wrong = "a token of another call";
    return NULL;
  }
  if (strtol(text + 2 + TAG_BYTES, &after, 10) != c->tokens || *after != '.') {
    c->wrong = "a token that is not the next one";
    return NULL;
  }
  c->sent_ns = strtoull(after + 1, &after, 10);
  if (*after != '@') {
    c->wrong = "a token that breaks off";
    return NULL;
  }
  c->tokens++;
  return at + (after + 1 - text);
}

/* All tokens of a piece of text that splits none. */
static inline void check_text(Check *c, const char *at, size_t length) {
  const char *end = at + length;
  while (!c->wrong && (at = memchr(at, '@', (size_t)(end - at)))) {
    if (c->done) c->wrong = "a token after [DONE]";
    else if (!(at = check_token(c, at, end))) return;
  }
}

/* One line of an event stream. */
static inline void check_line(Check *c, const char *line, size_t length) {
  if (length >= 12 && !memcmp(line, "data: [DONE]", 12)) {
    if (c->done) c->wrong = "[DONE] twice";
    c->done = true;
  } else if (memmem(line, length, "\"error\"", 7)) {
    c->wrong = "an error event";
  } else {
    check_text(c, line, length);
  }
}

static inline void check_end(Check *c, bool stream, long tokens) {
  if (c->wrong) return;
  if (c->tokens != tokens) c->wrong = c->tokens < tokens ? "too few tokens" : "too many tokens";
  else if (stream && !c->done) c->wrong = "a stream without [DONE]";
}

/* What the mock engine reads in a request's body: a handful of keys, at any depth.
 *
 * No JSON parser: strings are skipped with memchr, so that megabytes of prompt cost little. A
 * string that a colon follows is a key.
 */
#pragma once
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tokens.h"

typedef struct {
  bool stream, usage, prefill_only, has_kv;
  long max_tokens;
  Tag asked; /* in the prompt; empty if there is none */
  Tag kv;    /* whose blocks the call is told to read; empty if nobody's */
} Request;

#define KV_MARK "kv-" /* before the tag, in remote_request_id */

static inline const char *request_string_end(const char *at, const char *end) {
  for (const char *quote = at; (quote = memchr(quote, '"', (size_t)(end - quote))); quote++) {
    const char *before = quote;
    while (before > at && before[-1] == '\\') before--;
    if ((quote - before) % 2 == 0) return quote;
  }
  return NULL;
}

static inline const char *request_skip_space(const char *at, const char *end) {
  while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
  return at;
}

static inline void request_note(Request *r, const char *key, size_t length, const char *value,
                                size_t left) {
#define KEY(name) (length == sizeof name - 1 && !memcmp(key, name, sizeof name - 1))
  if (KEY("stream")) r->stream = *value == 't';
  if (KEY("include_usage")) r->usage = *value == 't';
  if (KEY("do_remote_decode")) r->prefill_only = *value == 't';
  if (KEY("do_remote_prefill")) r->has_kv = *value == 't';
  if ((KEY("max_tokens") || KEY("max_completion_tokens")) && *value >= '0' && *value <= '9')
    r->max_tokens = atol(value);
  if (KEY("remote_request_id") && left > sizeof KV_MARK + TAG_BYTES &&
      !memcmp(value + 1, KV_MARK, sizeof KV_MARK - 1))
    memcpy(r->kv.tag, value + sizeof KV_MARK, TAG_BYTES);
#undef KEY
}

static inline Request request_read(const char *body, size_t length) {
  Request r = {.max_tokens = 16};
  const char *end = body + length, *mark = memchr(body, '@', length);
  if (mark && end - mark > TAG_BYTES) memcpy(r.asked.tag, mark + 1, TAG_BYTES);
  for (const char *at = body; (at = memchr(at, '"', (size_t)(end - at)));) {
    const char *key = at + 1, *closing = request_string_end(key, end);
    if (!closing) break;
    at = request_skip_space(closing + 1, end);
    if (at == end || *at != ':') continue;
    at = request_skip_space(at + 1, end);
    if (at == end) break;
    request_note(&r, key, (size_t)(closing - key), at, (size_t)(end - at));
  }
  return r;
}

/* The request that all calls share, but for the tag in its prompt.
 *
 *   before | tag | after
 *
 * The tag is at the beginning of the prompt, so no two calls have a prefix in common, and a
 * gateway that routes by prefix finds nothing to cling to.
 */
#pragma once
#include "buffer.h"
#include "options.h"
#include "tokens.h"

typedef struct {
  Buffer before, after;
} Prompt;

/* Words of small letters, the same in every run. */
static inline void prompt_words(Buffer *b, long bytes) {
  unsigned state = 7;
  for (long i = 0; i < bytes; i++) {
    state = state * 1664525u + 1013904223u;
    unsigned letter = state >> 24;
    buffer_add(b, letter % 6 ? &"abcdefghijklmnopqrstuvwxyz"[letter % 26] : " ", 1);
  }
}

static inline Prompt prompt_build(const Options *o) {
  bool chat = strstr(o->path, "chat") != NULL;
  Buffer head = {0}, body = {0}, tail = {0};
  const char *opening = !chat ? "{\"model\":\"mock\",\"prompt\":\"@"
                        : o->image_bytes
                            ? "{\"model\":\"mock\",\"messages\":[{\"role\":\"user\",\"content\":"
                              "[{\"type\":\"text\",\"text\":\"@"
                            : "{\"model\":\"mock\",\"messages\":[{\"role\":\"user\",\"content\":\"@";
  buffer_add(&body, opening, strlen(opening));
  if (o->image_bytes) {
    const char *image = "\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,";
    buffer_add(&tail, image, strlen(image));
    memset(buffer_room(&tail, (size_t)o->image_bytes), 'A', (size_t)o->image_bytes);
    tail.length += (size_t)o->image_bytes;
    buffer_add(&tail, "\"}}]", 4);
  }
  tail.length += (size_t)sprintf(
      buffer_room(&tail, 128), "%s,\"max_tokens\":%ld,\"temperature\":0.0,\"stream\":%s}",
      !chat ? "\"" : o->image_bytes ? "}]" : "\"}]", o->tokens, o->stream ? "true" : "false");
  long words = o->body_bytes - (long)(body.length + TAG_BYTES + tail.length);
  Prompt p = {0};
  buffer_add(&p.after, " ", 1);
  prompt_words(&p.after, words > 1 ? words - 1 : 0);
  buffer_add(&p.after, tail.at, tail.length);
  head.length += (size_t)sprintf(
      buffer_room(&head, 1024),
      "POST %.200s HTTP/1.1\r\nHost: 127.0.0.1:%ld\r\nContent-Type: application/json\r\n"
      "Accept: */*\r\nUser-Agent: load/1\r\n%s%.200s%sContent-Length: %zu\r\n\r\n",
      o->path, o->port, o->key ? "Authorization: Bearer " : "", o->key ? o->key : "",
      o->key ? "\r\n" : "", body.length + TAG_BYTES + p.after.length);
  p.before = head;
  buffer_add(&p.before, body.at, body.length);
  buffer_free(&body);
  buffer_free(&tail);
  return p;
}

/* What a token looks like, so that the load can tell whose it is, which one, and how old.
 *
 *   @0123456789abcdef.17.123456789012345@
 *    tag of the call  |  when the engine sent it (ns)
 *                     its number in the answer, from 0
 *
 * The load puts @tag into the prompt. All of it is in the text of the answer, which a gateway
 * may not touch however it rewrites what is around it.
 */
#pragma once
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TAG_BYTES 16
#define TOKEN_BYTES 64 /* at most */

typedef struct {
  char tag[TAG_BYTES + 1];
} Tag;

static inline Tag tag_of(uint64_t number) {
  Tag tag;
  snprintf(tag.tag, sizeof tag.tag, "%016" PRIx64, number);
  return tag;
}

static inline int token_write(char *at, const Tag *tag, long number, uint64_t sent_ns) {
  return sprintf(at, "@%s.%ld.%" PRIu64 "@", tag->tag, number, sent_ns);
}

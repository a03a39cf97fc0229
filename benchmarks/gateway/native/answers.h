/* What the mock engine says, as vLLM's OpenAI server says it.
 *
 * A prefill leg is answered as NixlConnector does: one token, and kv_transfer_params that name
 * the blocks, one for every 16 tokens of 4 bytes of body. Its remote_request_id holds the tag of
 * the call, so that the decode engine notices if it is given somebody else's.
 * Source: vLLM 0.32.0, .../kv_connector/v1/nixl/pull_scheduler.py, request_finished().
 */
#pragma once
#include "buffer.h"
#include "clock.h"
#include "request.h"

#define BYTES_OF_BLOCK (16 * 4)
#define STREAM_HEAD                                                    \
  "HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"                             \
  "content-type: text/event-stream; charset=utf-8\r\n"                 \
  "transfer-encoding: chunked\r\n\r\n"
#define STREAM_END "0\r\n\r\n"

static inline void say(Buffer *out, const char *text) { buffer_add(out, text, strlen(text)); }

#define sayf(out, bound, ...) ((out)->length += (size_t)sprintf(buffer_room(out, bound), __VA_ARGS__))

static inline void say_whole(Buffer *out, int status, const Buffer *body) {
  sayf(out, 256,
       "HTTP/1.1 %d %s\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
       "content-length: %zu\r\n\r\n",
       status, status == 200 ? "OK" : status == 404 ? "Not Found" : "Error", body->length);
  buffer_add(out, body->at, body->length);
}

static inline void say_error(Buffer *out, int status, const char *message) {
  Buffer body = {0};
  sayf(&body, 512, "{\"error\":{\"message\":\"%.300s\",\"type\":\"mock\",\"code\":%d}}", message, status);
  say_whole(out, status, &body);
  buffer_free(&body);
}

static inline void say_kv(Buffer *out, const Tag *tag, size_t blocks) {
  say(out, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
           "\"remote_block_ids\":[[");
  for (size_t i = 0; i < blocks; i++) sayf(out, 24, i ? ",%zu" : "%zu", (i * 131 + 7) % 60000);
  sayf(out, 256,
       "]],\"remote_engine_id\":\"mock-p\",\"remote_request_id\":\"" KV_MARK
       "%s\",\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,\"tp_size\":1}",
       tag->tag);
}

/* A whole answer: `tokens` of them for `tag`; `kv_blocks` is 0 but for prefill legs. */
static inline void say_completion(Buffer *out, bool chat, const Tag *tag, long tokens,
                                  size_t prompt_tokens, size_t kv_blocks) {
  static Buffer body;
  body.length = 0;
  sayf(&body, 256, "{\"id\":\"cmpl-%s\",\"object\":\"%s\",\"created\":1790000000,\"model\":\"mock\",",
       tag->tag, chat ? "chat.completion" : "text_completion");
  say(&body, chat ? "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
                  : "\"choices\":[{\"index\":0,\"text\":\"");
  for (long i = 0; i < tokens; i++) {
    say(&body, " ");
    body.length += (size_t)token_write(buffer_room(&body, TOKEN_BYTES), tag, i, 0);
  }
  say(&body, chat ? "\"}" : "\"");
  sayf(&body, 256,
       ",\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%zu,"
       "\"total_tokens\":%zu,\"completion_tokens\":%ld}",
       prompt_tokens, prompt_tokens + (size_t)tokens, tokens);
  if (kv_blocks) say_kv(&body, tag, kv_blocks);
  say(&body, "}");
  say_whole(out, 200, &body);
}

static inline void say_chunk(Buffer *out, const Buffer *event) {
  sayf(out, 16, "%zx\r\n", event->length);
  buffer_add(out, event->at, event->length);
  say(out, "\r\n");
}

/* One event, in an HTTP chunk of its own; padded to `bytes`, as long as real ones are. */
static inline void say_token(Buffer *out, bool chat, const Tag *tag, long number, bool last,
                             size_t bytes) {
  static Buffer event;
  event.length = 0;
  sayf(&event, 256,
       "data: {\"id\":\"cmpl-%s\",\"object\":\"%s\",\"created\":1790000000,\"model\":\"mock\","
       "\"choices\":[{\"index\":0,%s\" ",
       tag->tag, chat ? "chat.completion.chunk" : "text_completion",
       chat ? "\"delta\":{\"content\":" : "\"text\":");
  event.length += (size_t)token_write(buffer_room(&event, TOKEN_BYTES), tag, number, now_ns());
  sayf(&event, 128, "\"%s,\"logprobs\":null,\"finish_reason\":%s}],\"padding\":\"", chat ? "}" : "",
       last ? "\"length\"" : "null");
  size_t padding = event.length + 4 < bytes ? bytes - event.length - 4 : 0;
  memset(buffer_room(&event, padding), 'x', padding);
  event.length += padding;
  say(&event, "\"}\n\n");
  say_chunk(out, &event);
}

static inline void say_usage(Buffer *out, bool chat, const Tag *tag, size_t prompt_tokens,
                             long tokens) {
  static Buffer event;
  event.length = 0;
  sayf(&event, 512,
       "data: {\"id\":\"cmpl-%s\",\"object\":\"%s\",\"created\":1790000000,\"model\":\"mock\","
       "\"choices\":[],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,"
       "\"completion_tokens\":%ld}}\n\n",
       tag->tag, chat ? "chat.completion.chunk" : "text_completion", prompt_tokens,
       prompt_tokens + (size_t)tokens, tokens);
  say_chunk(out, &event);
}

static inline void say_done(Buffer *out) { say(out, "e\r\ndata: [DONE]\n\n\r\n"); }

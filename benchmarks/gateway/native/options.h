/* What the load generator is asked to do. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "processes.h"

typedef struct {
  long port, clients, calls, warm, tokens, body_bytes, image_bytes;
  long idle, think_us, read_bytes, read_every_us, seconds, timeout;
  bool stream;
  const char *path, *key;
  Processes of;
} Options;

static const char USAGE[] =
    "load --port N [...]   closed loop on 127.0.0.1; prints one JSON line\n"
    "  --path P            /v1/completions; one with `chat` in it is asked with messages\n"
    "  --clients N         that each ask again when their answer is complete (1)\n"
    "  --calls N --warm N  measured, and before (1000, 50)\n"
    "  --seconds N         begin no more calls after (60)\n"
    "  --timeout N         seconds without any byte for a call (30)\n"
    "  --tokens N --stream of the answer (16)\n"
    "  --body-bytes N      of the request (200)\n"
    "  --image-bytes N     of them in a data: URL, for chat (0)\n"
    "  --think-us N        mean pause of a client between calls (0)\n"
    "  --idle N            more clients, which ask once before and stay connected (0)\n"
    "  --read-bytes N --read-every-us N  how slowly answers are read (as fast as they come)\n"
    "  --key K             API key\n"
    "  --pids A,B          whose CPU and memory is measured\n";

static inline Options options_read(int count, char **arguments) {
  Options o = {.clients = 1, .calls = 1000, .warm = 50, .tokens = 16, .body_bytes = 200,
               .seconds = 60, .timeout = 30, .path = "/v1/completions"};
  const struct { const char *name; long *value; } numbers[] = {
      {"port", &o.port}, {"clients", &o.clients}, {"calls", &o.calls}, {"warm", &o.warm},
      {"tokens", &o.tokens}, {"body-bytes", &o.body_bytes}, {"image-bytes", &o.image_bytes},
      {"idle", &o.idle}, {"think-us", &o.think_us}, {"read-bytes", &o.read_bytes},
      {"read-every-us", &o.read_every_us}, {"seconds", &o.seconds}, {"timeout", &o.timeout}};
  for (int i = 1; i < count; i++) {
    const char *name = arguments[i] + 2;
    bool known = !strncmp(arguments[i], "--", 2), flag = known && !strcmp(name, "stream");
    if (flag) o.stream = true;
    if (flag) continue;
    char *value = known && i + 1 < count ? arguments[++i] : NULL;
    known = false;
    for (size_t n = 0; value && n < sizeof numbers / sizeof *numbers; n++)
      if (!strcmp(name, numbers[n].name)) *numbers[n].value = atol(value), known = true;
    if (value && !strcmp(name, "path")) o.path = value, known = true;
    if (value && !strcmp(name, "key")) o.key = value, known = true;
    if (value && !strcmp(name, "pids")) o.of = processes_of(value), known = true;
    if (!known) {
      fputs(USAGE, stderr);
      exit(2);
    }
  }
  return o;
}

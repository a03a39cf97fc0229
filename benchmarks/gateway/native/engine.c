/* A mock of an engine's OpenAI server: one thread, epoll, loopback. Prints its port and serves.
 *
 *   engine [PORT]
 *
 *   POST .../completions, .../chat/completions    prefill leg, decode leg, or a whole call
 *   GET  /health /v1/models /metrics
 *   GET  /mock/set?pace_us=5000&in_step=1&...     see `settings`
 *   GET  /mock/counts                             what was asked since the last time
 *
 * A decode leg with the KV of another call is refused, and tokens carry the tag of the KV: a
 * gateway that mixes calls up cannot get a right answer. `wrong` makes the engine itself lie, to
 * prove that the load notices.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/timerfd.h>

#include "connections.h"

enum { RIGHT, SWAPPED, SHORT, DISORDERED, CUT_OFF, UNDONE, REFUSED };

static struct {
  long pace_us;     /* between two tokens; 0: as fast as they are taken */
  long in_step;     /* 1: all streams at the same moments; 0: each at its own */
  long prefill_us;  /* of a prefill leg */
  long event_bytes; /* of one event */
  long wrong;       /* one of the above */
} settings = {.event_bytes = 250};

static struct {
  long prefill, decode, plain, left; /* left: before the answer was complete */
} counts;

static int epoll, timer;
static Schedule schedule;

/* ---- answers ---- */

static size_t prompt_tokens(const Connection *c) { return c->body.length / 4 + 1; }

static long tokens_of(const Connection *c) {
  long all = c->request.prefill_only ? 1 : c->request.max_tokens;
  return settings.wrong == SHORT ? all - 1 : all;
}

static void next_token(Connection *c) {
  long all = tokens_of(c), number = c->next++;
  bool last = c->next == all;
  if (settings.wrong == CUT_OFF && last) {
    c->gone = true;
    return;
  }
  if (settings.wrong == DISORDERED) number ^= 1;
  say_token(&c->out, c->chat, &c->tag, number, last, (size_t)settings.event_bytes);
  if (!last) return;
  if (c->request.usage) say_usage(&c->out, c->chat, &c->tag, prompt_tokens(c), all);
  if (settings.wrong != UNDONE) say_done(&c->out);
  say(&c->out, STREAM_END);
  c->answering = false;
}

static void whole_answer(Connection *c) {
  size_t blocks = c->request.prefill_only ? c->body.length / BYTES_OF_BLOCK + 1 : 0;
  say_completion(&c->out, c->chat, &c->tag, tokens_of(c), prompt_tokens(c), blocks);
  c->answering = false;
}

/* Without a pace a stream goes as fast as its reader: never more than one token in our memory. */
static void go_on(Connection *c) {
  do {
    if (c->answering && !c->request.stream) whole_answer(c);
    else if (c->answering && !c->out.length) next_token(c);
    connection_flush(epoll, c);
  } while (c->answering && !c->gone && !c->out.length);
}

static void wait_until_due(Connection *c, long after_us) {
  uint64_t pace = (uint64_t)settings.pace_us * 1000, due = now_ns() + (uint64_t)after_us * 1000;
  if (c->request.stream && settings.in_step) due += pace - due % pace;
  c->due.due_ns = due;
  schedule_add(&schedule, &c->due);
}

static void answer(Connection *c) {
  Request *r = &c->request;
  *r = request_read(c->body.at, c->body.length);
  c->tag = r->has_kv ? r->kv : r->asked;
  c->next = 0;
  if (settings.wrong == SWAPPED) c->tag.tag[0] ^= 1;
  ++*(r->prefill_only ? &counts.prefill : r->has_kv ? &counts.decode : &counts.plain);
  if (r->has_kv && strcmp(r->kv.tag, r->asked.tag)) {
    say_error(&c->out, 500, "asked to read the KV of another call");
  } else if (settings.wrong == REFUSED && !r->prefill_only) {
    say_error(&c->out, 400, "told to refuse");
  } else {
    long all_us = r->prefill_only ? settings.prefill_us : settings.pace_us * r->max_tokens;
    c->answering = true;
    if (r->stream) say(&c->out, STREAM_HEAD);
    if (!r->stream && all_us) wait_until_due(c, all_us);
    else if (r->stream && settings.pace_us)
      wait_until_due(c, settings.in_step ? 0 : rand() % settings.pace_us);
    else go_on(c);
  }
}

/* ---- requests ---- */

static void setting(const char *path, const char *key, long *value) {
  const char *found = strstr(path, key);
  if (found && found[strlen(key)] == '=') *value = atol(found + strlen(key) + 1);
}

static void say_about_us(Connection *c, const char *path) {
  Buffer body = {0};
  if (!strncmp(path, "/mock/set", 9)) {
    setting(path, "pace_us", &settings.pace_us);
    setting(path, "in_step", &settings.in_step);
    setting(path, "prefill_us", &settings.prefill_us);
    setting(path, "event_bytes", &settings.event_bytes);
    setting(path, "wrong", &settings.wrong);
    say(&body, "{}");
  } else if (!strncmp(path, "/mock/counts", 12)) {
    sayf(&body, 256, "{\"prefill\":%ld,\"decode\":%ld,\"plain\":%ld,\"left\":%ld}", counts.prefill,
         counts.decode, counts.plain, counts.left);
    memset(&counts, 0, sizeof counts);
  } else if (!strncmp(path, "/health ", 8)) {
    say(&body, "{}");
  } else if (!strncmp(path, "/metrics ", 9)) {
    say(&body, "# TYPE vllm:num_requests_running gauge\n"
               "vllm:num_requests_running{model_name=\"mock\"} 0\n");
  } else if (!strncmp(path, "/v1/models ", 11)) {
    say(&body, "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\","
               "\"created\":1790000000,\"owned_by\":\"vllm\",\"max_model_len\":4194304}]}");
  } else {
    say_error(&c->out, 404, "not served");
    return;
  }
  say_whole(&c->out, 200, &body);
  buffer_free(&body);
}

static void serve(Connection *c) {
  char *path = strchr(c->head.at, ' ');
  path = path ? path + 1 : c->head.at;
  c->chat = strstr(path, "/chat/completions ") != NULL;
  if (strstr(path, "/completions ")) answer(c);
  else say_about_us(c, path);
  c->head.length = 0;
  c->in_body = false;
  connection_flush(epoll, c);
}

/* ---- the loop ---- */

static void end(Connection *c) {
  counts.left += c->answering;
  schedule_remove(&schedule, &c->due);
  connection_free(c);
}

static void read_from(Connection *c) {
  static char bytes[1 << 18];
  ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
  if (n == 0 || (n < 0 && errno != EAGAIN)) c->gone = true;
  /* Who asks again before the answer is complete is cut off: no gateway pipelines. */
  if (n > 0 && c->answering) c->gone = true;
  if (n > 0 && !c->gone && connection_take(c, bytes, (size_t)n)) serve(c);
}

static void run_due(void) {
  uint64_t now = now_ns();
  for (Due *due; (due = schedule_first(&schedule)) && due->due_ns <= now;) {
    Connection *c = (Connection *)due;
    schedule_remove(&schedule, due);
    if (!c->request.stream) {
      whole_answer(c);
    } else {
      next_token(c);
      if (c->answering && !c->gone) {
        due->due_ns += (uint64_t)settings.pace_us * 1000;
        schedule_add(&schedule, due);
      }
    }
    connection_flush(epoll, c);
    if (c->gone) end(c);
  }
}

static void set_timer(void) {
  static uint64_t set_to;
  Due *first = schedule_first(&schedule);
  uint64_t due = first ? first->due_ns : 0;
  if (due == set_to) return;
  set_to = due;
  struct itimerspec at = {.it_value = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)}};
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void serve_connection(struct epoll_event *event) {
  Connection *c = event->data.ptr;
  if (event->events & EPOLLOUT) connection_flush(epoll, c);
  if (event->events & EPOLLOUT && c->answering && !c->out.length && !settings.pace_us) go_on(c);
  if (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_from(c);
  if (c->gone) end(c);
}

int main(int count, char **arguments) {
  int listener = listen_on(count > 1 ? atoi(arguments[1]) : 0);
  struct epoll_event events[256];
  signal(SIGPIPE, SIG_IGN);
  epoll = epoll_create1(0);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener,
            &(struct epoll_event){.events = EPOLLIN, .data.ptr = &listener});
  epoll_ctl(epoll, EPOLL_CTL_ADD, timer,
            &(struct epoll_event){.events = EPOLLIN, .data.ptr = &timer});
  for (;;) {
    int ready = epoll_wait(epoll, events, 256, -1);
    for (int i = 0; i < ready; i++) {
      uint64_t expirations;
      if (events[i].data.ptr == &listener) while (connection_accept(epoll, listener));
      else if (events[i].data.ptr == &timer) (void)!read(timer, &expirations, 8);
      else serve_connection(&events[i]);
    }
    /* After all reading, so that no connection that ended is still among the events. */
    run_due();
    set_timer();
  }
}

/* A load generator: clients in a closed loop, every answer checked. One thread, epoll, loopback.
 *
 * First `idle` clients ask once each and stay connected, then `warm` calls are made, then the
 * measured ones. The CPU of --pids is read right before the first and right after the last of
 * these. One wrong answer is an error: who reads our line shows no figure then.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"
#include "http.h"
#include "prompt.h"
#include "samples.h"

typedef struct {
  int fd; /* -1 while not connected */
  enum { IDLE, THINKING, ASKING } state;
  size_t written; /* of the request */
  uint64_t began_ns, heard_ns, wake_ns;
  bool in_body;
  Buffer head, answer; /* of a stream only the line that is not whole yet */
  Head parsed;
  Body reading;
  Check check;
} Client;

static Options options;
static Prompt prompt;
static Client *clients;
static int epoll;
static bool measuring;
static Samples whole, first, transit;

static struct {
  long limit, begun, ended, wrong, tokens;
  Client *next_idle, *last_idle; /* each of them asks once, instead of one again and again */
} phase;
static char first_wrong[256];

/* ---- one call ---- */

static void disconnect(Client *c) {
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
}

static bool slow(void) { return options.read_every_us > 0; }

static void watch(Client *c, int how, bool writing) {
  struct epoll_event event = {.events = (slow() ? 0u : EPOLLIN) | (writing ? EPOLLOUT : 0u),
                              .data.ptr = c};
  epoll_ctl(epoll, how, c->fd, &event);
}

static bool connect_to_target(Client *c) {
  /* Twice a segment of loopback (64 KiB): with less, a window update may be held back until the other end asks
     for it, and 8 MB that take 0.5 s took more than 30 once. */
  int one = 1, small = 131072;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (slow()) setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) {
    disconnect(c);
    return false;
  }
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  watch(c, EPOLL_CTL_ADD, false);
  return true;
}

static void write_request(Client *c) {
  struct iovec all[3] = {{prompt.before.at, prompt.before.length},
                         {c->check.tag.tag, TAG_BYTES},
                         {prompt.after.at, prompt.after.length}};
  size_t length = prompt.before.length + TAG_BYTES + prompt.after.length;
  bool waited = c->written > 0;
  while (c->written < length) {
    struct iovec left[3];
    int count = 0;
    size_t skip = c->written;
    for (int i = 0; i < 3; i++) {
      size_t gone = skip < all[i].iov_len ? skip : all[i].iov_len;
      skip -= gone;
      if (gone < all[i].iov_len)
        left[count++] = (struct iovec){(char *)all[i].iov_base + gone, all[i].iov_len - gone};
    }
    struct msghdr message = {.msg_iov = left, .msg_iovlen = (size_t)count};
    ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) break; /* full, or closed: then reading says so */
    c->written += (size_t)n;
  }
  if (c->written < length || waited) watch(c, EPOLL_CTL_MOD, c->written < length);
}

static void finish(Client *c, const char *wrong);

static void begin(Client *c) {
  static uint64_t numbers;
  if (phase.begun == phase.limit) {
    c->state = IDLE;
    return;
  }
  if (!numbers) numbers = (uint64_t)getpid() << 32;
  phase.begun++;
  c->state = ASKING;
  c->check = (Check){.tag = tag_of(++numbers)};
  c->written = c->head.length = c->answer.length = 0;
  c->in_body = false;
  c->began_ns = c->heard_ns = now_ns();
  c->parsed = (Head){0};
  if (c->fd < 0 && !connect_to_target(c)) finish(c, "no connection");
  else write_request(c);
}

static void think(Client *c, uint64_t mean_us) {
  c->state = THINKING;
  c->wake_ns = now_ns() + mean_us * 1000 * (uint64_t)(50 + rand() % 101) / 100;
}

/* `wrong`: what broke it; NULL if HTTP says that the answer is complete. */
static void finish(Client *c, const char *wrong) {
  uint64_t now = now_ns();
  if (!wrong && c->parsed.status != 200) wrong = "status";
  if (!wrong && !options.stream) check_text(&c->check, c->answer.at, c->answer.length);
  if (!wrong) check_end(&c->check, options.stream, options.tokens);
  if (!wrong) wrong = c->check.wrong;
  phase.ended++;
  phase.wrong += wrong != NULL;
  if (wrong && !first_wrong[0])
    snprintf(first_wrong, sizeof first_wrong, "%s (status %d, %ld tokens) %.*s", wrong,
             c->parsed.status, c->check.tokens, (int)(c->answer.length < 120 ? c->answer.length : 120),
             c->answer.length ? c->answer.at : "");
  if (measuring && !wrong) samples_add(&whole, now - c->began_ns);
  if (wrong || c->parsed.close || c->reading.framing == UNTIL_CLOSE) disconnect(c);
  c->state = IDLE;
  if (phase.next_idle) {
    if (phase.next_idle < phase.last_idle) begin(phase.next_idle++);
  } else if (wrong) {
    think(c, 5000); /* whoever is down is not asked as fast as we can */
  } else if (options.think_us) {
    think(c, (uint64_t)options.think_us);
  } else {
    begin(c);
  }
}

/* ---- reading ---- */

static void note_tokens(Client *c, long before, uint64_t now) {
  if (c->check.tokens == before || !measuring) return;
  phase.tokens += c->check.tokens - before;
  if (!before) samples_add(&first, now - c->began_ns);
  samples_add(&transit, now > c->check.sent_ns ? now - c->check.sent_ns : 0);
}

static void check_lines(Client *c, uint64_t now) {
  size_t start = 0;
  for (char *end; (end = memchr(c->answer.at + start, '\n', c->answer.length - start));
       start = (size_t)(end - c->answer.at) + 1) {
    long before = c->check.tokens;
    check_line(&c->check, c->answer.at + start, (size_t)(end - c->answer.at) - start);
    note_tokens(c, before, now);
  }
  /* Of an answer that is wrong all is kept, for the message. */
  if (!c->check.wrong) buffer_drop(&c->answer, start);
}

static void hear(Client *c, const char *bytes, size_t length, uint64_t now) {
  c->heard_ns = now;
  if (!c->in_body) {
    size_t before = c->head.length;
    buffer_add(&c->head, bytes, length);
    if (!head_parse(c->head.at, c->head.length, &c->parsed)) return;
    size_t used = c->parsed.bytes - before;
    bytes += used, length -= used;
    c->in_body = true;
    c->reading = body_begin(&c->parsed);
  }
  size_t used = body_feed(&c->reading, bytes, length, &c->answer);
  if (options.stream && c->parsed.status == 200 && c->answer.length && !c->check.wrong)
    check_lines(c, now);
  if (used < length) finish(c, "bytes after the answer");
  else if (c->reading.done) finish(c, NULL);
}

static void read_some(Client *c) {
  static char bytes[1 << 18];
  size_t most = slow() ? (size_t)options.read_bytes : sizeof bytes;
  ssize_t n = recv(c->fd, bytes, most, MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return;
  if (n > 0 && c->state == ASKING) {
    hear(c, bytes, (size_t)n, now_ns());
  } else if (c->state == ASKING) {
    bool complete = c->in_body && c->reading.framing == UNTIL_CLOSE && n == 0;
    finish(c, complete ? NULL : "the connection was closed");
  } else {
    disconnect(c);
  }
}

/* ---- the loop ---- */

/* What has its time: who thinks, who is read slowly, who has heard nothing for too long. */
static void look_at_all(long count, uint64_t now) {
  uint64_t silence = (uint64_t)options.timeout * 1000000000u;
  for (Client *c = clients; c < clients + count; c++) {
    if (c->state == THINKING && c->wake_ns <= now) begin(c);
    else if (c->state == ASKING && slow()) read_some(c);
    if (c->state == ASKING && now > c->heard_ns && now - c->heard_ns > silence)
      finish(c, "silence");
  }
}

static void handle(const struct epoll_event *event) {
  Client *c = event->data.ptr;
  if (c->fd < 0) return;
  if (event->events & EPOLLOUT) write_request(c);
  if (!slow() && event->events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_some(c);
}

static void run(long active) {
  struct epoll_event events[512];
  uint64_t looked = 0, until_ns = now_ns() + (uint64_t)options.seconds * 1000000000u;
  while (phase.ended < phase.limit) {
    uint64_t every_us = slow()                              ? (uint64_t)options.read_every_us
                        : options.think_us || phase.wrong ? 1000
                                                            : 200000;
    int ready = epoll_wait(epoll, events, 512, every_us < 1000 ? 1 : (int)(every_us / 1000));
    for (int i = 0; i < ready; i++) handle(&events[i]);
    uint64_t now = now_ns();
    if (now > until_ns) phase.limit = phase.begun;
    if (now - looked < every_us * 1000) continue;
    looked = now;
    look_at_all(active, now);
  }
  for (Client *c = clients; c < clients + active; c++)
    if (c->state == THINKING) c->state = IDLE;
}

static void run_clients(long calls) {
  memset(&phase, 0, sizeof phase);
  phase.limit = calls;
  for (long i = 0; i < options.clients; i++) begin(&clients[i]);
  run(options.clients);
}

static void connect_idle(void) {
  memset(&phase, 0, sizeof phase);
  phase.limit = options.idle;
  phase.next_idle = clients + options.clients;
  phase.last_idle = phase.next_idle + options.idle;
  for (int i = 0; i < 32 && phase.next_idle < phase.last_idle; i++) begin(phase.next_idle++);
  run(options.clients + options.idle);
}

static void print_text(const char *name, const char *text) {
  printf(",\"%s\":\"", name);
  for (; *text; text++) putchar(*text == '"' || *text == '\\' || (unsigned char)*text < 32 ? '.' : *text);
  putchar('"');
}

int main(int count, char **arguments) {
  options = options_read(count, arguments);
  prompt = prompt_build(&options);
  signal(SIGPIPE, SIG_IGN);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  epoll = epoll_create1(0);
  long all = options.clients + options.idle;
  clients = calloc((size_t)all, sizeof *clients);
  if (!clients) return 1;
  for (long i = 0; i < all; i++) clients[i].fd = -1;
  long wrong = 0, asked = 0;
  if (options.idle) connect_idle();
  wrong += phase.wrong, asked += phase.ended;
  if (options.warm) run_clients(options.warm);
  wrong += phase.wrong, asked += options.warm ? phase.ended : 0;
  bool peak_is_new = processes_forget_peak(&options.of);
  measuring = true;
  uint64_t cpu = processes_cpu_ns(&options.of), began = now_ns();
  run_clients(options.calls);
  uint64_t elapsed = now_ns() - began, cpu_after = processes_cpu_ns(&options.of);
  long idle_open = 0;
  for (long i = options.clients; i < all; i++) idle_open += clients[i].fd >= 0;
  asked += phase.ended;
  if (options.of.count && (!cpu || !cpu_after)) {
    wrong++;
    if (!first_wrong[0]) strcpy(first_wrong, "a process of the gateway is gone");
  }
  printf("{\"calls\":%ld,\"asked\":%ld,\"wrong\":%ld,\"seconds\":%.4f,\"tokens\":%ld,"
         "\"cpu_us\":%.1f,\"peak_kb\":%ld,\"peak_is_new\":%s,\"idle_open\":%ld",
         phase.ended, asked, wrong + phase.wrong, (double)elapsed / 1e9, phase.tokens,
         (double)(cpu_after - cpu) / 1e3, processes_peak_kb(&options.of),
         peak_is_new ? "true" : "false", idle_open);
  samples_print(&whole, "whole");
  samples_print(&first, "first");
  samples_print(&transit, "transit");
  print_text("first_wrong", first_wrong);
  puts("}");
  return 0;
}

/* The mock engine's connections: bytes in until a request is whole, bytes out as the peer takes them. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "answers.h"
#include "http.h"
#include "schedule.h"

typedef struct {
  Due due; /* first, so that the schedule's pointers are connections */
  int fd;
  bool in_body, waits_to_write, answering, gone;
  Buffer head, body, out;
  size_t sent; /* of out */
  Head parsed;
  Body reading;
  /* The answer that is under way. */
  Request request;
  bool chat;
  Tag tag; /* whose tokens are sent */
  long next;
} Connection;

static inline int listen_on(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  socklen_t length = sizeof address;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096) ||
      getsockname(fd, (struct sockaddr *)&address, &length)) {
    perror("listen");
    exit(1);
  }
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return fd;
}

static inline Connection *connection_accept(int epoll, int listener) {
  int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
  if (fd < 0) return NULL;
  Connection *c = calloc(1, sizeof *c);
  if (!c) exit(1);
  c->fd = fd;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c});
  return c;
}

static inline void connection_free(Connection *c) {
  close(c->fd);
  buffer_free(&c->head);
  buffer_free(&c->body);
  buffer_free(&c->out);
  free(c);
}

/* Sends what the peer takes now; the rest when epoll says so. */
static inline void connection_flush(int epoll, Connection *c) {
  while (c->sent < c->out.length) {
    ssize_t n = send(c->fd, c->out.at + c->sent, c->out.length - c->sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) c->gone = true;
    if (n < 0) break;
    c->sent += (size_t)n;
  }
  if (c->sent == c->out.length) c->sent = c->out.length = 0;
  bool waits = c->out.length > 0;
  if (waits == c->waits_to_write) return;
  c->waits_to_write = waits;
  struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0u), .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* True when a request is whole: its head is in `head`, zero-terminated, its body in `body`.
 * No gateway pipelines, so bytes beyond it end the connection. */
static inline bool connection_take(Connection *c, const char *bytes, size_t length) {
  if (!c->in_body) {
    size_t before = c->head.length;
    buffer_add(&c->head, bytes, length);
    if (!head_parse(c->head.at, c->head.length, &c->parsed)) return false;
    size_t used = c->parsed.bytes - before;
    bytes += used, length -= used;
    c->body.length = 0;
    c->in_body = true;
    c->reading = body_begin(&c->parsed);
  }
  if (body_feed(&c->reading, bytes, length, &c->body) < length) c->gone = true;
  return c->reading.done && !c->gone;
}

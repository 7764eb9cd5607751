/* two_processes.c - 1 MiB from this process into another's memory, by the C interface.
 *
 *   cc -std=c99 two_processes.c $(pkg-config --cflags --libs linkspan) -o two_processes
 *   ./two_processes
 *
 * The program starts itself a second time as the receiver. That one registers memory, lets the
 * sender find it by a name, and sleeps until a notification says that the data is there. The sender
 * writes it in 256 blocks in another order, and asks which way they take.
 */
#define _POSIX_C_SOURCE 200809L
#include <linkspan/linkspan.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20, BLOCKS = 256, BLOCK = BYTES / BLOCKS };
static const int64_t ten_seconds = 10LL * 1000 * 1000 * 1000;
static const char done[] = "all there";

/* What belongs at a position of the receiver's memory. */
static unsigned char byte_at(size_t i) { return (unsigned char)(i * 31 + i / BLOCK); }

static void must(int code, const char* what) {
  if (code == LINKSPAN_OK) return;
  fprintf(stderr, "%s: %s\n", what, linkspan_last_error());
  exit(1);
}

static void receive(const char* address) {
  linkspan_engine* engine = NULL;
  linkspan_peer* peer = NULL;
  linkspan_region* region = NULL;
  linkspan_notifications* came = NULL;
  const void* message = NULL;
  size_t bytes = 0, wrong = 0;
  unsigned char* memory = calloc(BYTES, 1);
  if (memory == NULL) exit(1);
  must(linkspan_engine_open(NULL, &engine), "open");
  must(linkspan_engine_register_memory(engine, memory, BYTES, NULL, &region), "register");
  must(linkspan_engine_publish(engine, "inbox", region), "publish");
  must(linkspan_engine_listen(engine, address), "listen");
  must(linkspan_engine_accept(engine, ten_seconds, &peer), "accept");
  must(linkspan_engine_notifications(engine, ten_seconds, &came), "notifications");
  must(linkspan_notifications_at(came, 0, NULL, &message, &bytes), "no notification");
  if (bytes != sizeof done || memcmp(message, done, bytes) != 0) exit(1);
  for (size_t i = 0; i < BYTES; ++i) wrong += memory[i] != byte_at(i);
  printf("received %d bytes, %zu of them wrong\n", BYTES, wrong);
  linkspan_notifications_free(came);
  linkspan_region_free(region);
  linkspan_peer_free(peer);
  linkspan_engine_free(engine); /* from here on nobody touches the memory */
  free(memory);
  exit(wrong == 0 ? 0 : 1);
}

static void send_to(const char* address) {
  linkspan_engine* engine = NULL;
  linkspan_peer* peer = NULL;
  linkspan_region* local = NULL;
  linkspan_remote_region* inbox = NULL;
  linkspan_explanation* why = NULL;
  linkspan_transfer* transfer = NULL;
  linkspan_block blocks[BLOCKS];
  linkspan_shape shape = LINKSPAN_SHAPE_INIT;
  linkspan_transfer_options options = LINKSPAN_TRANSFER_OPTIONS_INIT;
  unsigned char* memory = malloc(BYTES);
  if (memory == NULL) exit(1);
  for (size_t b = 0; b < BLOCKS; ++b) { /* the last block first */
    const size_t from = b * BLOCK, to = (BLOCKS - 1 - b) * BLOCK;
    for (size_t i = 0; i < BLOCK; ++i) memory[from + i] = byte_at(to + i);
    blocks[b].local_offset = from;
    blocks[b].remote_offset = to;
    blocks[b].bytes = BLOCK;
  }
  shape.blocks = blocks;
  shape.block_count = BLOCKS;
  options.deadline = ten_seconds;
  options.notification = done;
  options.notification_bytes = sizeof done;

  must(linkspan_engine_open(NULL, &engine), "open");
  must(linkspan_engine_register_memory(engine, memory, BYTES, NULL, &local), "register");
  must(linkspan_engine_connect(engine, address, ten_seconds, &peer), "connect");
  must(linkspan_peer_lookup(peer, "inbox", ten_seconds, &inbox), "lookup");
  must(linkspan_peer_explain(peer, LINKSPAN_WRITE, local, inbox, BLOCKS, BYTES, NULL, &why),
       "explain");
  printf("by %s: %s\n", linkspan_explanation_path(why), linkspan_explanation_reason(why));
  for (size_t i = 0; i < linkspan_explanation_refused_count(why); ++i)
    printf("not by %s: %s\n", linkspan_explanation_refused_path(why, i),
           linkspan_explanation_refused_reason(why, i));
  fflush(stdout);
  must(linkspan_peer_submit(peer, LINKSPAN_WRITE, local, inbox, &shape, &options, &transfer),
       "write");
  must(linkspan_transfer_wait(transfer, 2 * ten_seconds), "wait");
  linkspan_transfer_free(transfer);
  linkspan_explanation_free(why);
  linkspan_remote_region_free(inbox);
  linkspan_peer_free(peer);
  linkspan_region_free(local);
  linkspan_engine_free(engine);
  free(memory);
}

extern char** environ;

int main(int count, char** arguments) {
  char address[64];
  pid_t receiver = 0;
  int status = 1;
  if (count == 2) receive(arguments[1]);
  snprintf(address, sizeof address, "unix:/tmp/two_processes.%ld", (long)getpid());
  char* again[] = {arguments[0], address, NULL};
  if (posix_spawn(&receiver, "/proc/self/exe", NULL, NULL, again, environ) != 0) return 1;
  send_to(address); /* connects as soon as the receiver listens */
  if (waitpid(receiver, &status, 0) != receiver) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

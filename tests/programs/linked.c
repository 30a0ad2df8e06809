// Allocates with known stacks, in an executable or a library that may be linked in any way. Each
// function notes its own return address, so the program knows its call chain without an unwinder.
// At each allocation libgcc walks the stack, too. For each a line is printed:
//
//   SIZE KIND chain ADDRESS… libgcc ADDRESS…
//
// after a line with the process ID, with the return addresses from that of the allocating function
// outwards: the chain's end with main's, libgcc's where it cannot go on. KIND is whole if nothing
// else is between the functions of the chain, parts if functions of libraries are.
//
// Compiled in parts: -DMAIN, which calls the library with -DLINKED or -DOPENS, -DQUIET, which is
// without unwind data in one case, and -DLIBRARY.
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

#define KEPT __attribute__((noipa))

struct chain {
  void *calls[128];
  int depth;
  void (*sample)(struct chain *, int size, const char *kind);
};

#define ENTER() \
  int depth = chain->depth++; \
  chain->calls[depth] = __builtin_return_address(0)
// The calls above are no jumps.
#define LEAVE() \
  chain->depth = depth; \
  __asm__ volatile("")

void quiet(struct chain *chain, int size, const char *kind);
void in_library(struct chain *chain, int size, void (*back)(struct chain *, int));

#if defined QUIET
// Its own caller, and that of a frame inside of it, need unwind data.
KEPT static void quiet_inner(struct chain *chain, int size, const char *kind) {
  char room[96];
  ENTER();
  memset(room, size, sizeof room);
  __asm__ volatile("" : : "r"(room) : "memory");
  chain->sample(chain, size, kind);
  LEAVE();
}

KEPT void quiet(struct chain *chain, int size, const char *kind) {
  ENTER();
  quiet_inner(chain, size, kind);
  LEAVE();
}

#elif defined LIBRARY
KEPT static void library_inner(struct chain *chain, int size, void (*back)(struct chain *, int)) {
  ENTER();
  volatile char *room = alloca((size_t)(size & 127) + 1);
  room[0] = 1;
  chain->sample(chain, size, "whole");
  back(chain, size + 1);
  LEAVE();
}

KEPT void in_library(struct chain *chain, int size, void (*back)(struct chain *, int)) {
  ENTER();
  library_inner(chain, size, back);
  LEAVE();
}

#elif defined MAIN
struct walk {
  void *calls[128];
  int count;
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *data) {
  struct walk *walk = data;
  void *address = (void *)_Unwind_GetIP(context);
  if (!address || walk->count == 128) return _URC_END_OF_STACK;
  walk->calls[walk->count++] = address;
  return _URC_NO_REASON;
}

KEPT static void sample(struct chain *chain, int size, const char *kind) {
  ENTER();
  void *volatile block = malloc((size_t)size);
  (void)block;
  struct walk walk = {.count = 0};
  _Unwind_Backtrace(step, &walk);
  // libgcc's list begins in this function.
  char line[8192];
  int length = snprintf(line, sizeof line, "%d %s chain", size, kind);
  for (int i = depth; i >= 0; i--) length += snprintf(line + length, sizeof line - (size_t)length, " %p", chain->calls[i]);
  length += snprintf(line + length, sizeof line - (size_t)length, " libgcc");
  for (int i = 1; i < walk.count; i++) length += snprintf(line + length, sizeof line - (size_t)length, " %p", walk.calls[i]);
  line[length++] = '\n';
  if (write(1, line, (size_t)length) != length) abort();
  LEAVE();
}

KEPT static void with_alloca(struct chain *chain, int size, int room) {
  ENTER();
  volatile char *bytes = alloca((size_t)room);
  bytes[0] = 1;
  sample(chain, size, "whole");
  LEAVE();
}

KEPT static void aligned(struct chain *chain, int size) {
  _Alignas(64) char bytes[64];
  ENTER();
  __asm__ volatile("" : : "r"(bytes) : "memory");
  with_alloca(chain, size, 40);
  LEAVE();
}

KEPT static void recurses(struct chain *chain, int size, int more) {
  ENTER();
  if (more) recurses(chain, size, more - 1);
  else sample(chain, size, "whole");
  LEAVE();
}

// A linker may put this section far away from the others.
KEPT __attribute__((section(".text_far"))) static void far_inner(struct chain *chain, int size) {
  ENTER();
  sample(chain, size, "whole");
  LEAVE();
}

KEPT __attribute__((section(".text_far"))) static void far_outer(struct chain *chain, int size) {
  ENTER();
  far_inner(chain, size);
  LEAVE();
}

static __thread struct chain *sorting;

KEPT static int compares(const void *one, const void *other) {
  struct chain *chain = sorting;
  ENTER();
  if (chain->depth == 3) sample(chain, 1000006, "parts");
  LEAVE();
  return *(const int *)one - *(const int *)other;
}

KEPT static void sorts(struct chain *chain) {
  ENTER();
  int numbers[] = {2, 1};
  sorting = chain;
  qsort(numbers, 2, sizeof *numbers, compares);
  LEAVE();
}

KEPT static void back(struct chain *chain, int size) {
  ENTER();
  sample(chain, size, "whole");
  LEAVE();
}

KEPT static void *in_thread(void *unused) {
  struct chain here = {.sample = sample}, *chain = &here;
  ENTER();
  aligned(chain, 1000007);
  LEAVE();
  return unused;
}

__attribute__((constructor)) static void before_main(void) {
  struct chain here = {.sample = sample}, *chain = &here;
  ENTER();
  char line[32];
  int length = snprintf(line, sizeof line, "%d\n", getpid());
  if (write(1, line, (size_t)length) != length) abort();
  with_alloca(chain, 1000008, 24);
  LEAVE();
}

// The library's path, if it is opened.
int main(int count, char **arguments) {
  struct chain here = {.sample = sample}, *chain = &here;
  ENTER();
  sample(chain, 1000001, "whole");
  with_alloca(chain, 1000002, 100);
  aligned(chain, 1000003);
  recurses(chain, 1000004, 40);
  far_outer(chain, 1000005);
  sorts(chain);
  pthread_t thread;
  if (!pthread_create(&thread, NULL, in_thread, NULL)) pthread_join(thread, NULL);
  quiet(chain, 1000009, "whole");
#ifdef LINKED
  in_library(chain, 1000010, back);
#endif
#ifdef OPENS
  void *library = dlopen(arguments[1], RTLD_NOW);
  void (*opened)(struct chain *, int, void (*)(struct chain *, int)) = NULL;
  if (library) opened = (__typeof__(opened))dlsym(library, "in_library");
  if (!opened) return 1;
  opened(chain, 1000010, back);
#endif
  (void)count;
  (void)arguments;
  (void)back;
  LEAVE();
  return 0;
}
#endif

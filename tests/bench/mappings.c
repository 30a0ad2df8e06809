// Maps memory, writes to its first page, and unmaps it, again and again.
// usage: mappings ROUNDS PAGES
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)

__attribute__((noinline)) static char *map(size_t bytes) {
  char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  at[0] = 1;
  return at;
}

int main(int count, char **arguments) {
  CHECK(count == 3);
  long rounds = atol(arguments[1]);
  size_t bytes = (size_t)atol(arguments[2]) * 4096;
  for (long round = 0; round < rounds; round++) {
    char *at = map(bytes);
    CHECK(munmap(at, bytes) == 0);
  }
  return 0;
}

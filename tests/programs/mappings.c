// Maps memory and unmaps some of it: also in a constructor, a signal handler, several threads and a
// child. It prints how many bytes of it are mapped at its end, by its own count. With an argument it maps some and waits.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE sysconf(_SC_PAGESIZE)
#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)

static void *early;

__attribute__((constructor)) static void map_early(void) {
  early = mmap(NULL, 5 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

__attribute__((noinline)) static char *map_pages(long pages) {
  char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  at[0] = 1;
  return at;
}

// 3 of 16 pages stay: those at both ends, and one in the middle.
__attribute__((noinline)) static void cuts(void) {
  char *at = map_pages(16);
  CHECK(munmap(at + PAGE, 6 * PAGE) == 0);
  CHECK(munmap(at + 8 * PAGE, 7 * PAGE) == 0);
}

// 40 pages stay, after a failure and two moves.
__attribute__((noinline)) static void moves(void) {
  char *at = map_pages(10);
  errno = 0;
  CHECK(mremap(at, 10 * PAGE, (size_t)1 << 46, 0) == MAP_FAILED && errno == ENOMEM);
  char *target = map_pages(20);
  at = mremap(at, 10 * PAGE, 20 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
  CHECK(at == target);
  CHECK(mremap(at, 20 * PAGE, 40 * PAGE, MREMAP_MAYMOVE) != MAP_FAILED);
}

// Nothing stays.
__attribute__((noinline)) static void keeps_nothing(void) {
  for (int round = 0; round < 50; round++) {
    CHECK(munmap(map_pages(round + 1), (round + 1) * PAGE) == 0);
  }
  char *at = map_pages(4);
  CHECK(mmap(at, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
  errno = 0;
  CHECK(munmap(at + 1, PAGE) == -1 && errno == EINVAL);
  CHECK(munmap(at, 4 * PAGE) == 0);
}

// 3 pages of a file stay: a part of the last one.
__attribute__((noinline)) static void map_file(const char *path) {
  int file = open(path, O_RDONLY);
  CHECK(file >= 0);
  CHECK(mmap(NULL, 2 * PAGE + 808, PROT_READ, MAP_PRIVATE, file, 0) != MAP_FAILED);
  close(file);
  usleep(50000);  // the recorder reads the name
}

// 7 pages of a segment stay.
__attribute__((noinline)) static void attach_segments(void) {
  int id = shmget(IPC_PRIVATE, 7 * PAGE, IPC_CREAT | 0600);
  CHECK(id >= 0);
  char *kept = shmat(id, NULL, 0);
  char *gone = shmat(id, NULL, 0);
  shmctl(id, IPC_RMID, NULL);
  CHECK(kept != (void *)-1 && gone != (void *)-1);
  usleep(50000);
  CHECK(shmdt(gone) == 0);
}

// 11 pages stay.
__attribute__((noinline)) static void grow_break(void) {
  uintptr_t now = (uintptr_t)sbrk(0);
  CHECK(brk((void *)((now + PAGE - 1) & -PAGE)) == 0);
  CHECK(sbrk(16 * PAGE) != (void *)-1);
  CHECK(sbrk(-5 * PAGE) != (void *)-1);
}

// 6 of 64 reserved pages are usable at the end, and 3 of 4 others, of which 2 were reserved meanwhile.
__attribute__((noinline)) static void reserves(void) {
  char *at = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char *others = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED && others != MAP_FAILED);
  CHECK(mprotect(at + 8 * PAGE, 6 * PAGE, PROT_READ | PROT_WRITE) == 0);
  CHECK(mprotect(at + 10 * PAGE, 2 * PAGE, PROT_READ) == 0);
  CHECK(mprotect(others, 2 * PAGE, PROT_NONE) == 0);
  CHECK(mprotect(others + PAGE, PAGE, PROT_READ) == 0);
  errno = 0;
  CHECK(mprotect(at + 1, PAGE, PROT_READ) == -1 && errno == EINVAL);
}

// Returns 5 pages in two calls. A call that fails and one that only advises do not count.
__attribute__((noinline)) static void returns(void) {
  char *at = map_pages(8);
  memset(at, 1, 8 * PAGE);
  CHECK(madvise(at, 3 * PAGE, MADV_DONTNEED) == 0 && at[0] == 0);
  CHECK(madvise(at + 3 * PAGE, 2 * PAGE, MADV_FREE) == 0);
  CHECK(madvise(at, 8 * PAGE, MADV_RANDOM) == 0);
  errno = 0;
  CHECK(madvise(at + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
  CHECK(munmap(at, 8 * PAGE) == 0);
}

static void handler(int signal) {
  (void)signal;
  map_pages(2);
}

static void *run(void *argument) {
  for (int round = 0; round < 100; round++) {
    char *at = map_pages(4);
    munmap(at + PAGE, 2 * PAGE);
    munmap(at, PAGE);
    if (round % 10) munmap(at + 3 * PAGE, PAGE);
  }
  return argument;
}

int main(int count, char **arguments) {
  CHECK(early != MAP_FAILED);
  if (count > 1) {
    // 26 pages, until it is killed.
    map_pages(21);
    for (;; usleep(20000)) free(malloc(100));
  }
  grow_break();
  cuts();
  moves();
  keeps_nothing();
  reserves();
  returns();
  map_file(arguments[0]);
  attach_segments();
  signal(SIGUSR1, handler);
  raise(SIGUSR1);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, run, NULL) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    free(malloc(100));
    map_pages(13);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  // early, cuts, moves, file, segment, break, handler, reserved ones, 4 threads with 10 pages
  long pages = 5 + 3 + 40 + 3 + 7 + 11 + 2 + 9 + 40;
  printf("page %ld\nmapped %ld\nreserved %ld\nreturned %ld\n", PAGE, pages * PAGE, 59 * PAGE, 5 * PAGE);
  return 0;
}

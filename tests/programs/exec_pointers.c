/* Calls exec with addresses that are not mapped, and prints the result of each call. */
#include "own.h"
#include <errno.h>
#include <spawn.h>
#define BAD ((char *)1)
static void told(const char *how, int result) { say("%s %d %s\n", how, result, strerrorname_np(errno)); }
int main(void) {
    char *argv[] = { "true", 0 }, *environment[] = { "A=1", 0 }, *bad[] = { "A=1", BAD, 0 };
    char *const *none = (char *const *)BAD;
    free(malloc(10));
    told("path", execve(BAD, argv, environment));
    told("environment", execve("/bin/true", argv, (char **)none));
    told("string", execve("/bin/true", argv, bad));
    told("arguments", execve("/bin/true", bad, environment));
    told("at", execveat(AT_FDCWD, BAD, argv, environment, 0));
    told("descriptor", fexecve(-1, argv, (char **)none));
    told("v", execv(BAD, argv));
    told("null", execve(0, argv, environment));
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(page != MAP_FAILED && !munmap(page + 4096, 4096), "a page");
    memset(page, 'x', 4096);
    told("no end", execve(page + 4090, argv, environment));
    pid_t pid;
    errno = posix_spawn(&pid, BAD, 0, 0, argv, environment);
    told("spawn", 0);
    errno = posix_spawn(&pid, "/bin/true", 0, 0, argv, (char **)none);
    told("spawn environment", 0);
    return 0;
}

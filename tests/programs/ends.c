/* Ends in the way HOW after ten blocks of 127 bytes: exit, _exit, return, abort, a signal,
 * quick_exit, a crash. */
#include "own.h"
#include <signal.h>
#include <sys/resource.h>
static volatile int *volatile nowhere = (int *)8;
int main(int argc, char **argv) {
    must(argc > 1, "a way");
    struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_CORE, &none);
    for (int i = 0; i < 10; i++) must(malloc(127) != 0, "a block");
    const char *how = argv[1];
    if (!strcmp(how, "return")) return 17;
    if (!strcmp(how, "exit")) exit(18);
    if (!strcmp(how, "_exit")) _exit(19);
    if (!strcmp(how, "quick_exit")) quick_exit(20);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "crash")) *nowhere = 1;
    if (!strcmp(how, "fpe")) raise(SIGFPE);
    if (!strcmp(how, "term")) raise(SIGTERM);
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "raw")) syscall(SYS_exit_group, 21);
    return 1;
}

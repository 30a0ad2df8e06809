/* Runs a program, with its arguments, which may not make writable memory executable
 * (PR_SET_MDWE, inherited by exec). Exits with 77 where the kernel does not know that. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
int main(int argc, char **argv) {
    if (argc < 2 || prctl(PR_SET_MDWE, 1, 0, 0, 0)) return 77;
    execv(argv[1], argv + 1);
    return 1;
}

/* Loses access to the files of its parent, and continues. Prints the process ids of its
 * children. Needs root.
 * setuid          drops the rights of root and forks three children, which allocate 10 blocks each
 * chroot FOLDER   changes its root and does the same
 * exec FOLDER     changes its root, forks a child that allocates nothing and executes `/small`
 * descriptors     uses up all its descriptors, and forks */
#include "own.h"
#include <sys/resource.h>
#include <sys/wait.h>
static void child(void) {
    for (int i = 0; i < 10; i++) free(malloc(1019));
    _exit(7);
}
int main(int argc, char **argv) {
    must(argc > 1, "what to do");
    const char *kind = argv[1];
    free(malloc(1013));
    if (argc > 2) must(!chroot(argv[2]) && !chdir("/"), "chroot");
    if (!strcmp(kind, "setuid")) must(!setgid(65534) && !setuid(65534), "setuid");
    if (!strcmp(kind, "descriptors")) {
        struct rlimit none = { 0, 0 };
        must(!setrlimit(RLIMIT_NOFILE, &none), "setrlimit");
    }
    int is_exec = !strcmp(kind, "exec");
    for (int i = 0; i < (is_exec ? 1 : 3); i++) {
        pid_t pid = fork();
        if (!pid) {
            if (!is_exec) child();
            execl("/small", "small", "7", (char *)0);
            _exit(1);
        }
        int status;
        must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child");
        say("%d\n", pid);
    }
    return 0;
}

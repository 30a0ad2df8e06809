/* Starts PROGRAM in a child by the exec or spawn function KIND, and prints the child's exit
 * status. Its file is named `unseen` and must also be found in PATH. `raw` calls exec by a
 * system call. */
#include "own.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
extern char **environ;
int main(int argc, char **argv) {
    must(argc > 2, "a kind and a program");
    const char *kind = argv[1], *path = argv[2], *name = strrchr(argv[2], '/') + 1;
    char *args[] = { (char *)name, argc > 3 ? argv[3] : (char *)"7", 0 };
    pid_t pid = -1;
    if (!strcmp(kind, "posix_spawn")) must(!posix_spawn(&pid, path, 0, 0, args, environ), "posix_spawn");
    else if (!strcmp(kind, "posix_spawnp")) must(!posix_spawnp(&pid, name, 0, 0, args, environ), "posix_spawnp");
    else if (!(pid = strcmp(kind, "vfork") ? fork() : vfork())) {
        if (!strcmp(kind, "execve") || !strcmp(kind, "vfork")) execve(path, args, environ);
        else if (!strcmp(kind, "execv")) execv(path, args);
        else if (!strcmp(kind, "execl")) execl(path, name, args[1], (char *)0);
        else if (!strcmp(kind, "execle")) execle(path, name, args[1], (char *)0, environ);
        else if (!strcmp(kind, "execvp")) execvp(name, args);
        else if (!strcmp(kind, "execvpe")) execvpe(name, args, environ);
        else if (!strcmp(kind, "execlp")) execlp(name, name, args[1], (char *)0);
        else if (!strcmp(kind, "fexecve")) fexecve(open(path, O_RDONLY | O_CLOEXEC), args, environ);
        else if (!strcmp(kind, "execveat")) execveat(AT_FDCWD, path, args, environ, 0);
        else if (!strcmp(kind, "raw")) { must(malloc(433) != 0, "a block"); syscall(SYS_execve, path, args, environ); }
        _exit(1);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0) must(errno == EINTR, "waitpid");
    say("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return 0;
}

/* Children of several kinds: `forks`, `vforks` and `fails` start no program; `execle` starts one with an
 * environment of its own. The program itself allocates nothing. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **args)
{
    char *own[] = {"PATH=/usr/bin:/bin", 0}, *none[] = {"none", 0};
    if (count < 2)
        return 2;
    if (!strcmp(args[1], "execle")) {
        if (!vfork()) {
            execle("/bin/true", "true", (char *)0, own);
            _exit(1);
        }
        wait(0);
        return 0;
    }
    for (int i = 0; i < 20; i++) {
        pid_t child = !strcmp(args[1], "forks") ? fork() : vfork();
        if (!child) {
            if (!strcmp(args[1], "fails"))
                execv("/no/such/program", none);
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
    return 0;
}

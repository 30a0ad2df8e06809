/* Starts itself by posix_spawn and by fork, and shells by system and popen, and prints what came of
 * it. With an argument it only allocates. */
#include "own.h"
#include <spawn.h>
#include <sys/wait.h>
extern char **environ;
int main(int argc, char **argv) {
    char *volatile block = malloc(10 + argc);
    free(block);
    if (argc > 1) return 0;
    char *arguments[] = { argv[0], "child", 0 }, text[32] = { 0 };
    pid_t pid;
    int status = -1;
    must(!posix_spawn(&pid, argv[0], 0, 0, arguments, environ) && waitpid(pid, &status, 0) == pid, "a child");
    printf("spawned %d\n", status);
    status = system("exit 3");
    printf("system %d\n", WEXITSTATUS(status));
    FILE *file = popen("echo words", "r");
    must(file && fgets(text, sizeof text, file), "a pipe");
    pclose(file);
    printf("popen %s", text);
    fflush(stdout);
    if (!(pid = fork())) { execve(argv[0], arguments, environ); _exit(1); }
    must(waitpid(pid, &status, 0) == pid, "a second child");
    printf("fork %d\n", status);
    return 0;
}

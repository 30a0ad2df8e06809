// Starts a small program again and again, for starts.py: 20 times, and then as often as requested. Prints a line after each round, and reads one.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

int main(int count, char **arguments) {
    if (count < 2) {
        for (int i = 0; i < 10; i++) free(malloc(100 + i));
        return 0;
    }
    int starts[2] = {20, atoi(arguments[1])};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < starts[round]; i++) {
            char *child[] = {arguments[0], NULL};
            pid_t pid;
            int status;
            if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, child, environ) != 0) return 1;
            if (waitpid(pid, &status, 0) != pid || status != 0) return 1;
        }
        puts("done");
        fflush(stdout);
        char line[8];
        if (fgets(line, sizeof line, stdin) == NULL) return 1;
    }
    return 0;
}

/* Starts a child that sleeps for 0.3 s, allocates 1,000 times, creates the file that the argument
 * names, and ends; the program itself ends at once, or with a second argument when the child has
 * allocated for the first time. */
#include "own.h"
#include <fcntl.h>
int main(int argc, char **argv) {
    must(argc > 1, "a file");
    free(malloc(100));
    int pipes[2];
    must(!pipe(pipes), "a pipe");
    if (fork()) {
        char byte;
        if (argc > 2) must(read(pipes[0], &byte, 1) == 1, "the child allocates");
        say("parent\n");
        return 0;
    }
    if (argc > 2) { free(malloc(708)); must(write(pipes[1], "", 1) == 1, "the pipe"); }
    usleep(300000);
    for (int i = 0; i < 1000; i++) free(malloc(709));
    close(open(argv[1], O_CREAT | O_WRONLY, 0600));
    return 0;
}

/* Starts a child that sleeps for 0.3 s, allocates 1,000 times, creates the file that the argument
 * names, and ends; the program itself ends at once. */
#include "own.h"
#include <fcntl.h>
int main(int argc, char **argv) {
    must(argc > 1, "a file");
    free(malloc(100));
    if (fork()) { say("parent\n"); return 0; }
    usleep(300000);
    for (int i = 0; i < 1000; i++) free(malloc(709));
    close(open(argv[1], O_CREAT | O_WRONLY, 0600));
    return 0;
}

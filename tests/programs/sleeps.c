/* Sleeps for the given number of milliseconds without allocating. The exit status is 0. */
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) { return usleep(argc > 1 ? atoi(argv[1]) * 1000 : 0); }

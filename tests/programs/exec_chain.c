/* Executes itself N times (5) by execv; every second exec is called from a thread. Each process
 * allocates a block of 801 bytes and frees another. */
#include "own.h"
#include <pthread.h>
static char **args;
static void *replaces(void *v) { execv("/proc/self/exe", args); must(0, "execv"); return v; }
int main(int argc, char **argv) {
    unsigned long left = number(argc, argv, 1, 5);
    must(malloc(801) != 0, "a block");
    free(malloc(809));
    if (!left) { say("end of the chain\n"); return 3; }
    static char text[20];
    snprintf(text, sizeof text, "%lu", left - 1);
    args = (char *[]){ argv[0], text, 0 };
    pthread_t id;
    if (left % 2) must(!pthread_create(&id, 0, replaces, 0), "a thread"), pthread_join(id, 0);
    replaces(0);
}

// A list of its own is continued by a forked child, loses blocks, and aborts.
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OF_PARENT = 100, OF_CHILD = 50, LOST = 7 };

struct item {
    struct item *next;
    char text[40];
};

static struct item *list;

__attribute__((noinline)) static struct item *append(struct item *last, int count) {
    while (count--) {
        struct item *item = calloc(1, sizeof *item);
        if (last) last->next = item;
        else list = item;
        last = item;
    }
    return last;
}

__attribute__((noinline)) static void lose(void) {
    void *volatile block = malloc(72);
    memset(block, 7, 72);
    block = NULL;
}

// Overwrites what the calls before it left on the stack.
__attribute__((noinline)) static void clear(void) {
    char volatile stack[4096];
    for (size_t i = 0; i < sizeof stack; i++) stack[i] = 0;
}

int main(void) {
    struct rlimit most = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &most);
    struct item *last = append(NULL, OF_PARENT);
    pid_t child = fork();
    if (child == 0) {
        append(last, OF_CHILD);
        for (int i = 0; i < LOST; i++) lose();
        clear();
        abort();
    }
    last = NULL;
    waitpid(child, NULL, 0);
    return 0;
}

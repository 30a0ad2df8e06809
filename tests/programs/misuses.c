// Uses its heap in a wrong way and crashes. Argument: in which way.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct item {
    long number;
    struct item *next;
};

static volatile char sink;

__attribute__((noinline)) static void *make(size_t size) { return calloc(1, size); }
__attribute__((noinline)) static void *make_other(size_t size) { return malloc(size); }
__attribute__((noinline)) static void drop(void *block) { free(block); }
__attribute__((noinline)) static void drop_again(void *block) { free(block); }
__attribute__((noinline)) static void use(volatile char *at) { sink = *at; }
__attribute__((noinline)) static long follow(struct item *volatile item) { return item->next->number; }

static volatile int is_dropped;

static void *in_thread(void *block) {
    while (!is_dropped) usleep(100);
    use((char *)block + 5000);
    return NULL;
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    setrlimit(RLIMIT_CORE, &limit);
    // So large that glibc unmaps it when it is freed.
    char *large = make(1000000), *small = make(40), *other = make(48);
    usleep(20000);
    if (strcmp(way, "use_after_free") == 0) {
        drop(large);
        use(large + 5000);
    }
    if (strcmp(way, "in_thread") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, large);
        drop(large);
        is_dropped = 1;
        pthread_join(thread, NULL);
    }
    if (strcmp(way, "stale_pointer") == 0) {
        // What a freed item has is no address any more.
        struct item *item = make(sizeof *item);
        item->next = item;
        drop(item);
        memset(item, 0x5a, sizeof *item);
        return (int)follow(item);
    }
    if (strcmp(way, "reused") == 0) {
        // The memory of a freed item is that of another block now.
        struct item *item = make(sizeof *item);
        drop(item);
        memset(make_other(sizeof *item), 0x5a, sizeof *item);
        return (int)follow(item);
    }
    if (strcmp(way, "double_free") == 0) {
        drop(small);
        drop_again(small);
    }
    if (strcmp(way, "inside") == 0) drop_again(small + 8);
    if (strcmp(way, "stack") == 0) {
        char bytes[64] = "";
        drop_again(bytes + 16);
    }
    if (strcmp(way, "waits") == 0) {
        puts("ready");
        fflush(stdout);
        pause();
    }
    drop(other);
    return 0;
}

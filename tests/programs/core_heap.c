// Makes blocks in the main heap, in heaps of threads and with mappings of their own, frees some of
// them, prints what it has, and aborts. Argument: `damaged` writes behind a block first, `top` behind the
// last one.
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { HELD = 300, LOST = 40, OF_THREAD = 100 };

struct item {
    struct item *next;
    char text[88];
};

struct item *list;
static struct item *of_thread;
static void *large[6], *last;
static pthread_barrier_t barrier;

static void print(const char *what, void *block) { printf("%s %p %zu\n", what, block, malloc_usable_size(block)); }

__attribute__((noinline)) static void hold(struct item **head) {
    struct item *item = calloc(1, sizeof *item);
    item->next = *head;
    *head = item;
    print("held", item);
}

__attribute__((noinline)) static void lose(void) {
    void *volatile block = malloc(72);
    memset(block, 7, 72);
    print("lost", block);
    block = NULL;
}

// Free memory of every kind: caches of threads, fast bins, other bins.
__attribute__((noinline)) static void drop(size_t bytes, int count) {
    void **blocks = malloc(count * sizeof *blocks);
    for (int number = 0; number < count; number++) blocks[number] = calloc(1, bytes);
    for (int number = 0; number < count; number++) {
        printf("free %p %zu\n", blocks[number], malloc_usable_size(blocks[number]));
        free(blocks[number]);
    }
    memset(blocks, 0, count * sizeof *blocks);
    free(blocks);
}

static void *in_thread(void *unused) {
    (void)unused;
    for (int number = 0; number < OF_THREAD; number++) hold(&of_thread);
    drop(40, 30);
    drop(2000, 12);
    pthread_barrier_wait(&barrier);
    pause();
    return NULL;
}

__attribute__((noinline)) static void clear_stack(void) {
    volatile char room[16384];
    for (size_t at = 0; at < sizeof room; at++) room[at] = 0;
}

int main(int count, char **arguments) {
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    setrlimit(RLIMIT_CORE, &limit);
    static char output[1 << 16];
    setvbuf(stdout, output, _IOFBF, sizeof output);
    pthread_barrier_init(&barrier, NULL, 2);
    for (int number = 0; number < HELD; number++) {
        hold(&list);
        if (number % 30 == 0) drop(600, 3);
    }
    drop(24, 20);
    drop(100, 20);
    for (int number = 0; number < LOST; number++) lose();
    for (int number = 0; number < 3; number++) print("held", large[number] = calloc(1, 300000 + 5000 * number));
    static const size_t alignments[] = { 64, 65536, 2 << 20 };
    for (int number = 0; number < 3; number++) print("held", large[3 + number] = memalign(alignments[number], 400000));
    print("free", large[0]);
    print("held", large[0] = realloc(large[0], 900000));
    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_barrier_wait(&barrier);
    clear_stack();
    if (count > 1 && strcmp(arguments[1], "damaged") == 0) {
        struct item *item = list->next->next;
        printf("damaged %p\n", (void *)item);
        memset(item->text, 0x41, sizeof item->text + 16);
    }
    if (count > 1 && strcmp(arguments[1], "top") == 0) {
        print("held", last = malloc(100000));
        printf("damaged %p\n", last);
        memset(last, 0x41, malloc_usable_size(last) + 8);
    }
    fflush(stdout);
    clear_stack();
    abort();
}

/* The program of these recordings: three threads, a forked child, each kind of event. Its counts are known:
 *
 *   main     keep_two: 2 blocks of 1,000 bytes, kept; grow: 1 block in 4 reallocations to 4,096 bytes, kept;
 *            calloc, aligned_alloc and realloc of a null pointer, each freed, the last by realloc to 0 bytes
 *   threads  each: 100 blocks of 64 bytes, of which the next thread frees 50 and the thread itself 49; 1 is kept
 *   child    frees one inherited block of 700 bytes, reallocates another one to 900 bytes, keeps 1 block of 300 bytes
 *   pairs    as often as the first argument says: malloc and free of 32 bytes, before the threads start
 *
 * The second argument is a number of seconds to sleep between the pairs and the threads.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, BLOCKS = 100, PASSED = 50 };
static void *volatile sink;
static void *kept[8];
static void *blocks[THREADS][BLOCKS];
static pthread_barrier_t barrier;

__attribute__((noinline)) static void keep_two(void)
{
    kept[0] = malloc(1000);
    kept[1] = malloc(1000);
}

__attribute__((noinline)) static void grow(void)
{
    void *block = malloc(256);
    for (size_t size = 512; size <= 4096; size *= 2)
        block = realloc(block, size);
    kept[2] = block;
}

__attribute__((noinline)) static void each_kind(void)
{
    sink = calloc(10, 10);
    free(sink);
    sink = aligned_alloc(64, 640);
    free(sink);
    sink = realloc(NULL, 77);
    sink = realloc(sink, 0);
}

static void *thread(void *argument)
{
    long own = (long)argument, other = (own + 1) % THREADS;
    for (int i = 0; i < BLOCKS; i++)
        blocks[own][i] = malloc(64);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < PASSED; i++)
        free(blocks[other][i]);
    for (int i = PASSED; i < BLOCKS - 1; i++)
        free(blocks[own][i]);
    return NULL;
}

__attribute__((noinline)) static void child(void)
{
    free(kept[3]);
    kept[4] = realloc(kept[4], 900);
    kept[5] = malloc(300);
}

int main(int count, char **arguments)
{
    long pairs = count > 1 ? atol(arguments[1]) : 0;
    keep_two();
    grow();
    each_kind();
    for (long i = 0; i < pairs; i++) {
        sink = malloc(32);
        free(sink);
    }
    if (count > 2)
        sleep((unsigned)atoi(arguments[2]));
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    kept[3] = malloc(700);
    kept[4] = malloc(700);
    pid_t pid = fork();
    if (pid == 0) {
        child();
        _exit(3);
    }
    waitpid(pid, NULL, 0);
    return 0;
}

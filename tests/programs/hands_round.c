/* THREADS threads pass ADDRESSES addresses of handover_allocator.c round by plain stores and
 * loads, ROUNDS times. A thread that receives an address allocates it or, at every second step,
 * frees it, and passes it on at once. The size of an allocation is 64 and its number for the
 * address, modulo 2^19. Step S of address K is made by thread (S + K) % THREADS. The file TIMES
 * gets the counter of the CPU after each step, before it is passed on: all steps of address 0, then
 * those of the next one. A fence makes that no earlier than the step. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "processor.h"
#define MAX 8
static struct { void *volatile block; volatile unsigned long step; char line[112]; } address[MAX] __attribute__((aligned(128)));
static unsigned long threads, addresses, steps, *times;
static void *passes(void *argument) {
    unsigned long self = (unsigned long)argument, idle = 0;
    for (unsigned long over = 0; over < addresses;) {
        over = 0;
        for (unsigned long k = 0; k < addresses; k++) {
            unsigned long step = address[k].step;
            if (step >= steps) { over++; continue; }
            if ((step + k) % threads != self) { if (++idle % 256 == 0) sched_yield(); continue; }
            idle = 0;
            if (step % 2 == 0) address[k].block = aligned_alloc(16UL << k, 64 + step / 2 % (1 << 19));
            else free(address[k].block);
            times[k * steps + step] = processor_ticks();
            address[k].step = step + 1;
        }
    }
    return 0;
}
int main(int argc, char **argv) {
    if (argc != 5) return 2;
    threads = strtoul(argv[1], 0, 10), addresses = strtoul(argv[2], 0, 10), steps = 2 * strtoul(argv[3], 0, 10);
    size_t bytes = addresses * steps * sizeof *times;
    int file = open(argv[4], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, bytes)) return 1;
    times = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (times == MAP_FAILED) return 1;
    pthread_t id[MAX];
    for (unsigned long i = 0; i < threads; i++) if (pthread_create(&id[i], 0, passes, (void *)i)) return 1;
    for (unsigned long i = 0; i < threads; i++) pthread_join(id[i], 0);
    printf("%lu\n", addresses * steps);
    return 0;
}

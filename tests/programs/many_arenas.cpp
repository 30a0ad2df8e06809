// many_arenas THREADS: each thread fills a map with strings, and removes seven of eight when all maps are full, so that no thread uses the memory
// of another one again. The arenas are as many as glibc allows.
#include <chrono>
#include <cstdlib>
#include <pthread.h>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

using Map = std::unordered_map<int, std::string>;

static pthread_barrier_t full;

static void fill(Map *map, int seed) {
    for (int i = 0; i < 1500; i++) (*map)[i] = std::string(50 + (i * 37 + seed) % 900, 'x');
    pthread_barrier_wait(&full);
    for (int i = 0; i < 1500; i++)
        if (i % 8) map->erase(i);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? std::atoi(argv[1]) : 8;
    // Never destroyed, so that the maps are there at the end.
    auto &maps = *new std::vector<Map>(count);
    pthread_barrier_init(&full, nullptr, count);
    std::vector<std::thread> threads;
    for (int i = 0; i < count; i++) threads.emplace_back(fill, &maps[i], i);
    for (auto &thread : threads) thread.join();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return maps[0].size() != 188;
}

/* A std::map from number to text that is bounded: `cached_map MILLISECONDS PER_CENT ENTRIES` fills
 * it in this share of the run, and replaces an old entry by a new one from then on. The first
 * tenth stays for ever. Texts have different lengths, so the bytes of the texts vary and those of
 * the nodes do not. If the machine did not let it run for a thirty-second of the run, `late` is
 * printed on standard error. */
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>

#define SITE __attribute__((noinline))
static constexpr int STEPS = 200;

static std::map<int, std::string> *cache;

SITE static void insert(int key, unsigned random) { cache->emplace(key, std::string(40 + random % 100, 'x')); }

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const long step_ns = atol(argv[1]) * (1000000 / STEPS);
    const int warm = STEPS * atoi(argv[2]) / 100, entries = atoi(argv[3]);
    cache = new std::map<int, std::string>;
    timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    unsigned random = 99;
    long latest_ns = 0;
    int key = 0, oldest = entries / 10;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < entries / warm; k++) {
            random = random * 1103515245 + 12345;
            if (static_cast<int>(cache->size()) >= entries) {
                cache->erase(oldest++);
            }
            insert(key++, random >> 12);
        }
        next.tv_nsec += step_ns;
        next.tv_sec += next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr) != 0) {}
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        const long late = (now.tv_sec - next.tv_sec) * 1000000000 + now.tv_nsec - next.tv_nsec;
        latest_ns = late > latest_ns ? late : latest_ns;
    }
    if (latest_ns > STEPS / 32 * step_ns) fputs("late\n", stderr);
    return 0;
}

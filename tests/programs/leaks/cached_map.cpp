/* A std::map from number to text that is bounded: it is full after two fifths of the run, and an old
 * entry is replaced by a new one from then on. The first tenth stays for ever. Texts have different
 * lengths, so the bytes of the texts vary and those of the nodes do not. A run has 200 steps, each of
 * which sleeps for 6 ms after its work. */
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>

#define SITE __attribute__((noinline))
static constexpr int STEPS = 200, FULL_AT = 80, ENTRIES = 2000;

static std::map<int, std::string> *cache;

SITE static void insert(int key, unsigned random) { cache->emplace(key, std::string(40 + random % 100, 'x')); }

int main() {
    cache = new std::map<int, std::string>;
    unsigned random = 99;
    int key = 0, oldest = ENTRIES / 10;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < ENTRIES / FULL_AT; k++) {
            random = random * 1103515245 + 12345;
            if (static_cast<int>(cache->size()) >= ENTRIES) {
                cache->erase(oldest++);
            }
            insert(key++, random >> 12);
        }
        const timespec pause{0, 6000000};
        nanosleep(&pause, nullptr);
    }
    return 0;
}

// A map that one old pointer into it keeps as well: no node is held only by the map. The second map is
// held by itself only, and the third one is never freed. Every third of the whole is held by a part, too.
#include <cstdlib>
#include <map>
#include <vector>

std::map<int, long> shared, alone, *kept;
std::vector<long *> part, whole;

__attribute__((noinline)) void fill(std::map<int, long> &map, int count) {
    for (int number = 0; number < count; number++)
        map[number] = number;
}

__attribute__((noinline)) void divide() {
    for (int number = 0; number < 900; number++) {
        whole.push_back(new long[20]());
        if (number % 3 == 0)
            part.push_back(whole.back());
    }
}

int main() {
    fill(shared, 4000);
    fill(alone, 1000);
    kept = new std::map<int, long>;
    fill(*kept, 500);
    divide();
    // On the stack of main at its end.
    volatile long *volatile inside = &shared[2000];
    *inside = 1;
    exit(0);
}

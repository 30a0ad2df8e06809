// Nodes with room for several elements: a deque, and a list of arrays as queues have it.
#include <cstdlib>
#include <deque>
#include <memory>

struct Job {
    char load[100];
};

struct Task {
    char load[60];
};

struct Slots {
    std::unique_ptr<Slots> next;
    Task *tasks[31];
};

std::deque<std::unique_ptr<Job>> waiting;
std::unique_ptr<Slots> queue;

__attribute__((noinline)) static Job *make_waiting() { return new Job(); }
__attribute__((noinline)) static Task *make_queued() { return new Task(); }

__attribute__((noinline)) static void fill() {
    for (int number = 0; number < 2000; number++)
        waiting.emplace_back(make_waiting());
    for (int number = 0; number < 20; number++) {
        auto slots = std::make_unique<Slots>();
        slots->next = std::move(queue);
        queue = std::move(slots);
        for (Task *&task : queue->tasks)
            task = make_queued();
    }
}

int main() {
    fill();
    exit(0);
}

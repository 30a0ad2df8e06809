// Heavy templates, for a compiler that allocates much.
#include <algorithm>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>
#include <unordered_map>
#include <variant>
using Value = std::variant<int, double, std::string, std::vector<int>>;
std::map<std::string, std::vector<std::unordered_map<int, std::string>>> words;
std::unordered_map<std::string, std::function<Value(const Value &)>> functions;
int count(const std::string &line) {
    static const std::regex pattern("([a-z]+)=([0-9]+);?");
    int sum = 0;
    for (std::sregex_iterator i(line.begin(), line.end(), pattern), end; i != end; ++i) sum += static_cast<int>((*i)[2].length());
    return sum;
}
int main() {
    std::string line;
    while (std::getline(std::cin, line)) words[line].push_back({{count(line), line}});
    functions["twice"] = [](const Value &v) { return std::visit([](const auto &x) -> Value { return x; }, v); };
    std::mt19937 random;
    std::vector<int> v(100);
    std::iota(v.begin(), v.end(), 0);
    std::shuffle(v.begin(), v.end(), random);
    auto sum = std::async([&] { return std::accumulate(v.begin(), v.end(), 0); });
    std::ostringstream out;
    out << words.size() + functions.size() + static_cast<std::size_t>(sum.get());
    std::cout << out.str() << '\n';
}

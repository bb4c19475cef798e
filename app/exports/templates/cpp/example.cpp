// A product of matrices in the host's memory: ./example M N K [BATCH] [BYTES OF AN ELEMENT].
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tilewise_gemm.hpp"

int main(int count, char **words)
{
    const auto word = [&](int at, long long otherwise) { return at < count ? std::atoll(words[at]) : otherwise; };
    const tilewise::Sizes sizes{word(1, 1024), word(2, 1024), word(3, 1024), word(4, 1)};
    const auto bytes = [&](std::int64_t rows, std::int64_t columns) {
        return static_cast<std::size_t>(sizes.batch * rows * columns * word(5, 8));
    };
    std::vector<unsigned char> a(bytes(sizes.m, sizes.k)), b(bytes(sizes.k, sizes.n)), c(bytes(sizes.m, sizes.n));
    try {
        std::printf("workspace %lld\n", static_cast<long long>(tilewise::Gemm::workspace(sizes)));
        tilewise::Gemm opened;
        tilewise::Gemm gemm = std::move(opened);
        gemm.multiply_host(a.data(), b.data(), c.data(), sizes);
    } catch (const tilewise::Error &error) {
        std::fprintf(stderr, "%d: %s\n", static_cast<int>(error.status()), error.what());
        return 1;
    }
    std::puts("done");
    return 0;
}

// What a shader's C++ asks of the CPU that stands for the GPU: barriers, exchanges within a SIMD group, the arguments of a
// dispatch, and where the elements of its memory lie. run.cpp has the other half, which is compiled once for all shaders.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lanes {

constexpr uint32_t SIMD = 32;  // lanes of a SIMD group

struct Exchange { bool there[SIMD]; alignas(16) unsigned char data[SIMD][64]; };

uint32_t lane();
void barrier(bool shared, bool storage);  // which memory it orders
void simd_barrier();
const Exchange& exchange(const void* data, size_t nbytes);
void atomic_access(const void* address, size_t nbytes);

// Where the elements of a type begin: a scalar is one, and so is a vector with all its components, because WGSL lets a
// write to one of them write the others, too.
struct Layout {
    static constexpr uint32_t MOST = 16384;
    struct Element { uint32_t at, nbytes; };
    Element elements[MOST];
    uint32_t count = 0;
    void add(size_t at, size_t nbytes) {
        if (count < MOST) elements[count] = {uint32_t(at), uint32_t(nbytes)};
        count++;
    }
};
template <class T> struct Elements { static void of(Layout& layout, size_t at) { layout.add(at, sizeof(T)); } };
template <class T, size_t N> struct Elements<T[N]> {
    static void of(Layout& layout, size_t at) {
        for (size_t i = 0; i < N; i++) Elements<T>::of(layout, at + i * sizeof(T));
    }
};

enum class Space { storage, uniform, shared };

struct Argument {
    const char* name;
    Space space;
    bool coherent;  // workgroups may exchange data through it
    size_t nbytes;
    void (*elements)(Layout&, size_t);
};

struct Place { uint32_t group[3], groups[3], lane, in_group[3], in_grid[3]; };  // of a lane

// What the C++ of one shader defines. WIDTH is lanes of a workgroup; sizes has the bytes of each argument.
extern const Argument ARGUMENTS[];
extern const uint32_t ARGUMENT_COUNT, WIDTH[3];
void run_lane(const Place& at, void* const* memory, const uint32_t* sizes);

}  // namespace lanes

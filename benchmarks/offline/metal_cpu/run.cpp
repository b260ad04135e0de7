// Runs one dispatch of a shader's C++ on the CPU, watches each access to memory, and tells of what is wrong on stderr.
//
//     PROGRAM groups_x groups_y groups_z seed [NAME FILE OFFSET BYTES]...
//
// FILE is the memory of a buffer, and what the shader writes is written there. The lanes of a workgroup are fibers on one
// thread: each runs until it comes to a barrier or to an exchange within its SIMD group, in an order drawn from the seed.
// Workgroups run one after the other. Two accesses to an element race if two lanes make them, one at least writes, and no
// barrier for that memory is between; or if two workgroups of a dispatch make them. Accesses are told by what clang adds
// for -fsanitize=thread, whose library this file stands for.
#include "lanes.hpp"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

using lanes::ARGUMENT_COUNT;
using lanes::ARGUMENTS;
using lanes::Exchange;
using lanes::SIMD;
using lanes::Space;
using lanes::WIDTH;

namespace {

constexpr size_t SLOT = size_t(1) << 32;  // of addresses, for each argument, so that an address tells its argument
constexpr size_t STACK = 256 << 10;
constexpr int SHOWN = 8;
constexpr uint32_t NO_LANE = ~0u;

[[noreturn]] void fail(const char* why) {
    fprintf(stderr, "%s\n", why);
    exit(2);
}

int faults = 0;
void report(const char* format, ...) {
    if (faults++ >= SHOWN) return;
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
}

// An access to an element: who made it, and between which barriers.
struct Access {
    uint32_t lane = NO_LANE, group = 0, epoch = 0, simd_epoch = 0;
};

struct Shadow { Access written, read, read_too; bool told = false; };

struct Memory {
    const lanes::Argument* argument = nullptr;
    char* begin = nullptr;
    size_t nbytes = 0, stride = 0;
    std::vector<uint32_t> back;  // of each byte of a stride: how far it is to where its element begins
    std::vector<Shadow> shadows;  // of each pair of bytes
};

struct Lane {
    ucontext_t context;
    enum { ready, at_barrier, exchanging, done } state;
    alignas(16) unsigned char given[64];
    const Exchange* found;
    uint32_t simd_epoch;
};

char* arena;
std::vector<Memory> memories;
std::vector<void*> addresses;
std::vector<uint32_t> sizes;
std::vector<Lane> all;
std::vector<Exchange> exchanges;
ucontext_t scheduler;
uint32_t current = NO_LANE, group_number = 0;
uint32_t group_id[3], groups[3];
uint32_t epochs[2] = {1, 1};  // of threadgroup memory, and of that of the device
bool orders[2];  // what the barrier orders that lanes wait at

bool ordered(const Access& one, uint32_t epoch, uint32_t lane) {
    if (one.lane == NO_LANE || one.lane == lane && one.group == group_number) return true;
    if (one.group != group_number) return false;
    if (one.epoch != epoch) return true;
    return one.lane / SIMD == lane / SIMD && one.simd_epoch != all[lane].simd_epoch;
}

void race(Memory& memory, Shadow& shadow, size_t at, const Access& before, const char* did, const char* does) {
    if (shadow.told) return;
    shadow.told = true;
    const char* name = memory.argument->name;
    if (before.group != group_number)
        report("race: %s at byte %zu: workgroup %u %s it, and workgroup %u %s it", name, at, before.group, did, group_number, does);
    else
        report("race: %s at byte %zu: lane %u %s it, and lane %u %s it with no barrier between", name, at, before.lane, did, current, does);
}

void touch_element(Memory& memory, size_t at, bool write) {
    bool shared = memory.argument->space == Space::shared;
    uint32_t epoch = epochs[shared ? 0 : 1];
    Shadow& shadow = memory.shadows[at / 2];
    auto conflicts = [&](const Access& before) {
        if (before.lane != NO_LANE && before.group != group_number && (shared || memory.argument->coherent)) return false;
        return !ordered(before, epoch, current);
    };
    if (conflicts(shadow.written)) race(memory, shadow, at, shadow.written, "wrote", write ? "writes" : "reads");
    Access now{current, group_number, epoch, all[current].simd_epoch};
    if (write) {
        if (conflicts(shadow.read)) race(memory, shadow, at, shadow.read, "read", "writes");
        if (conflicts(shadow.read_too)) race(memory, shadow, at, shadow.read_too, "read", "writes");
        shadow.written = now;
        return;
    }
    if (shadow.read.lane != current || shadow.read.group != group_number) shadow.read_too = shadow.read;
    shadow.read = now;
}

// The argument that an address belongs to, and where in it; null for what is a lane's own.
Memory* memory_of(const void* address, size_t nbytes, size_t& at) {
    size_t from = static_cast<const char*>(address) - arena;
    if (from >= memories.size() * SLOT || current == NO_LANE) return nullptr;
    Memory& memory = memories[from / SLOT];
    at = static_cast<const char*>(address) - memory.begin;
    if (at >= memory.nbytes || at + nbytes > memory.nbytes) {
        report("out of bounds: %s of %zu bytes at byte %zd", memory.argument->name, memory.nbytes, ptrdiff_t(at));
        if (faults > SHOWN) exit(1);
        return nullptr;
    }
    return &memory;
}

void touch(const void* address, size_t nbytes, bool write) {
    size_t at;
    Memory* memory = memory_of(address, nbytes, at);
    if (!memory || memory->argument->space == Space::uniform) return;
    for (size_t end = at + nbytes; at < end;) {
        size_t first = at - memory->back[at % memory->stride];
        touch_element(*memory, first, write);
        do at++; while (at < end && memory->back[at % memory->stride]);
    }
}

void yield(decltype(Lane::state) state) {
    Lane& mine = all[current];
    mine.state = state;
    swapcontext(&mine.context, &scheduler);
}

void enter() {
    lanes::Place at;
    uint32_t lane = current;
    uint32_t own[3] = {lane % WIDTH[0], lane / WIDTH[0] % WIDTH[1], lane / (WIDTH[0] * WIDTH[1])};
    at.lane = lane;
    for (int i = 0; i < 3; i++) {
        at.group[i] = group_id[i];
        at.groups[i] = groups[i];
        at.in_group[i] = own[i];
        at.in_grid[i] = group_id[i] * WIDTH[i] + own[i];
    }
    lanes::run_lane(at, addresses.data(), sizes.data());
    yield(Lane::done);
}

uint64_t random(uint64_t& seed) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

// Lanes that wait for their SIMD group get what those of it that wait have given. False where none waits.
bool exchange_all() {
    bool any = false;
    for (size_t first = 0; first < all.size(); first += SIMD) {
        Exchange& here = exchanges[first / SIMD];
        size_t end = first + SIMD < all.size() ? first + SIMD : all.size();
        bool some = false;
        for (size_t i = first; i < end; i++) some |= all[i].state == Lane::exchanging;
        if (!some) continue;
        any = true;
        memset(here.there, 0, sizeof here.there);
        for (size_t i = first; i < end; i++) {
            if (all[i].state != Lane::exchanging) continue;
            here.there[i - first] = true;
            memcpy(here.data[i - first], all[i].given, 64);
            all[i].found = &here;
            all[i].state = Lane::ready;
        }
    }
    return any;
}

void run_workgroup(uint64_t& seed, char* stacks) {
    uint32_t count = uint32_t(all.size());
    for (Memory& memory : memories)  // whatever is there before
        if (memory.argument->space == Space::shared) memset(memory.begin, 0xA5, memory.nbytes);
    for (uint32_t i = 0; i < count; i++) {
        getcontext(&all[i].context);
        all[i].context.uc_stack.ss_sp = stacks + i * STACK;
        all[i].context.uc_stack.ss_size = STACK;
        all[i].context.uc_link = &scheduler;
        all[i].state = Lane::ready;
        all[i].simd_epoch = 0;
        makecontext(&all[i].context, enter, 0);
    }
    epochs[0]++;
    epochs[1]++;
    std::vector<uint32_t> order(count);
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    for (;;) {
        for (uint32_t i = count; i > 1 && seed; i--) std::swap(order[i - 1], order[random(seed) % i]);
        bool ran = false;
        for (uint32_t i : order) {
            if (all[i].state != Lane::ready) continue;
            ran = true;
            current = i;
            swapcontext(&scheduler, &all[i].context);
            current = NO_LANE;
        }
        if (ran || exchange_all()) continue;
        uint32_t waiting = 0;
        for (Lane& one : all) waiting += one.state == Lane::at_barrier;
        if (!waiting) return;
        if (waiting != count) {
            report("barrier: %u of %u lanes come to it", waiting, count);
            return;
        }
        for (int i = 0; i < 2; i++) epochs[i] += orders[i];
        orders[0] = orders[1] = false;
        for (Lane& one : all) one.state = Lane::ready;
    }
}

// The memory of an argument with its file, or with nothing.
void map(Memory& memory, char* slot, const char* file, size_t offset, size_t nbytes) {
    if (file) {
        int opened = open(file, O_RDWR);
        if (opened < 0 || mmap(slot, offset + nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, opened, 0) == MAP_FAILED)
            fail("cannot map a buffer");
        close(opened);
    } else if (mmap(slot, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        fail("cannot map threadgroup memory");
    }
    memory.begin = slot + offset;
    memory.nbytes = nbytes;
    memory.stride = memory.argument->nbytes;
    static lanes::Layout layout;
    layout.count = 0;
    memory.argument->elements(layout, 0);
    if (layout.count > lanes::Layout::MOST) fail("a type has too many elements");
    memory.back.assign(memory.stride, 0);
    for (uint32_t i = 0; i < layout.count; i++)
        for (uint32_t byte = 0; byte < layout.elements[i].nbytes; byte++) memory.back[layout.elements[i].at + byte] = byte;
    memory.shadows.resize(memory.argument->space == Space::uniform ? 0 : (nbytes + 1) / 2);
}

}  // namespace

namespace lanes {

uint32_t lane() { return current; }

void barrier(bool shared, bool storage) {
    orders[0] |= shared;
    orders[1] |= storage;
    yield(Lane::at_barrier);
}

const Exchange& exchange(const void* data, size_t nbytes) {
    memcpy(all[current].given, data, nbytes);
    yield(Lane::exchanging);
    return *all[current].found;
}

void simd_barrier() {
    yield(Lane::exchanging);
    all[current].simd_epoch++;
}

void atomic_access(const void* address, size_t nbytes) {
    size_t at;
    memory_of(address, nbytes, at);
}

}  // namespace lanes

// What clang calls before each access.
extern "C" {
void __tsan_init() {}
#define ACCESS(SIZE) \
    void __tsan_read##SIZE(void* at) { touch(at, SIZE, false); } \
    void __tsan_write##SIZE(void* at) { touch(at, SIZE, true); } \
    void __tsan_unaligned_read##SIZE(void* at) { touch(at, SIZE, false); } \
    void __tsan_unaligned_write##SIZE(void* at) { touch(at, SIZE, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void* __real_memcpy(void*, const void*, size_t);
void* __real_memmove(void*, const void*, size_t);
void* __real_memset(void*, int, size_t);
void* __wrap_memcpy(void* to, const void* from, size_t n) { touch(from, n, false); touch(to, n, true); return __real_memcpy(to, from, n); }
void* __wrap_memmove(void* to, const void* from, size_t n) { touch(from, n, false); touch(to, n, true); return __real_memmove(to, from, n); }
void* __wrap_memset(void* to, int byte, size_t n) { touch(to, n, true); return __real_memset(to, byte, n); }
void* __tsan_memcpy(void* to, const void* from, size_t n) { return __wrap_memcpy(to, from, n); }
void* __tsan_memmove(void* to, const void* from, size_t n) { return __wrap_memmove(to, from, n); }
void* __tsan_memset(void* to, int byte, size_t n) { return __wrap_memset(to, byte, n); }
}

int main(int argc, char** argv) {
    if (argc < 5) fail("usage: PROGRAM groups_x groups_y groups_z seed [NAME FILE OFFSET BYTES]...");
    for (int i = 0; i < 3; i++) groups[i] = uint32_t(strtoul(argv[1 + i], nullptr, 10));
    uint64_t seed = strtoull(argv[4], nullptr, 10);
    all.resize(WIDTH[0] * WIDTH[1] * WIDTH[2]);
    exchanges.resize((all.size() + SIMD - 1) / SIMD);
    auto reserve = [](size_t nbytes, int rights) {
        void* found = mmap(nullptr, nbytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) fail("no addresses");
        return static_cast<char*>(found);
    };
    char* room = reserve(ARGUMENT_COUNT * SLOT, PROT_NONE);
    char* stacks = reserve(all.size() * STACK, PROT_READ | PROT_WRITE);
    for (uint32_t i = 0; i < ARGUMENT_COUNT; i++) {
        const lanes::Argument& argument = ARGUMENTS[i];
        Memory memory;
        memory.argument = &argument;
        const char* file = nullptr;
        size_t offset = 0, nbytes = argument.nbytes;
        for (int a = 5; a + 3 < argc; a += 4) {
            if (strcmp(argv[a], argument.name)) continue;
            file = argv[a + 1];
            offset = strtoull(argv[a + 2], nullptr, 10);
            nbytes = strtoull(argv[a + 3], nullptr, 10);
        }
        if (!file && argument.space != Space::shared) fail("an argument is not bound");
        map(memory, room + i * SLOT, file, offset, nbytes);
        memories.push_back(std::move(memory));
        addresses.push_back(memories.back().begin);
        sizes.push_back(uint32_t(nbytes));
    }
    arena = room;
    for (group_id[2] = 0; group_id[2] < groups[2]; group_id[2]++)
        for (group_id[1] = 0; group_id[1] < groups[1]; group_id[1]++)
            for (group_id[0] = 0; group_id[0] < groups[0]; group_id[0]++) {
                run_workgroup(seed, stacks);
                group_number++;
            }
    if (faults > SHOWN) fprintf(stderr, "and %d more\n", faults - SHOWN);
    return faults ? 1 : 0;
}

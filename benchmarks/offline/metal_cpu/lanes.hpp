// The lanes of a workgroup as fibers on one CPU thread: each runs until it comes to a barrier or to an exchange with its
// SIMD group. The order in which they run is drawn from a seed, so that what hangs on it differs from run to run.
// Under ThreadSanitizer they are threads to it: lanes that touch a byte with no barrier between, one to write, are a race.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RACES 1
extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void* __tsan_get_current_fiber(void);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif
#endif

namespace lanes {

struct Exchange { bool there[32]; unsigned char data[32][64]; };

enum class State { ready, at_barrier, exchanging, done };

struct Lane {
    ucontext_t context;
    std::vector<char> stack;
    State state;
    unsigned char given[64];
    Exchange* found;
    void* fiber;
};

struct Group {
    std::vector<Lane> all;
    ucontext_t scheduler;
    uint32_t current;
    uint64_t seed;
    const std::function<void(uint32_t)>* body;
    void* scheduler_fiber;
    char sync;
    bool diverged;
};

inline Group& group() { static Group one; return one; }
inline uint32_t lane() { return group().current; }

inline void switch_to(void* fiber) {
#ifdef RACES
    __tsan_switch_to_fiber(fiber, 1);  // without making one lane see what the other did
#else
    (void)fiber;
#endif
}

__attribute__((no_sanitize("thread"))) inline void yield(State state) {
    Group& g = group();
    Lane& mine = g.all[g.current];
    mine.state = state;
    switch_to(g.scheduler_fiber);
    swapcontext(&mine.context, &g.scheduler);
}

__attribute__((no_sanitize("thread"))) inline void barrier() {
#ifdef RACES
    __tsan_release(&group().sync);
#endif
    yield(State::at_barrier);
#ifdef RACES
    __tsan_acquire(&group().sync);
#endif
}

__attribute__((no_sanitize("thread"))) inline Exchange exchange(const void* data, size_t nbytes, bool memory) {
    Group& g = group();
    Lane& mine = g.all[g.current];
    for (size_t i = 0; i < nbytes; i++) mine.given[i] = static_cast<const unsigned char*>(data)[i];
#ifdef RACES
    char* sync = reinterpret_cast<char*>(&g.all[g.current / 32 * 32].given[63]);
    if (memory) __tsan_release(sync);
#endif
    yield(State::exchanging);
#ifdef RACES
    if (memory) __tsan_acquire(sync);
#else
    (void)memory;
#endif
    return *mine.found;
}

__attribute__((no_sanitize("thread"))) inline void enter() {
    Group& g = group();
    (*g.body)(g.current);
    yield(State::done);
}

inline uint64_t random(uint64_t& seed) {
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return seed;
}

// The lanes of SIMD groups all of whose lanes wait get what these gave; false where none does.
__attribute__((no_sanitize("thread"))) inline bool resolve(Group& g, std::vector<Exchange>& found) {
    bool any = false;
    for (size_t first = 0; first < g.all.size(); first += 32) {
        Exchange& here = found[first / 32];
        bool some = false;
        size_t end = first + 32 < g.all.size() ? first + 32 : g.all.size();
        for (size_t i = first; i < end; i++) some |= g.all[i].state == State::exchanging;
        if (!some) continue;
        memset(here.there, 0, sizeof here.there);
        for (size_t i = first; i < end; i++) {
            if (g.all[i].state != State::exchanging) continue;
            here.there[i - first] = true;
            memcpy(here.data[i - first], g.all[i].given, 64);
            g.all[i].found = &here;
            g.all[i].state = State::ready;
        }
        any = true;
    }
    return any;
}

// Runs the lanes of one workgroup to their end. False where some wait at a barrier that others never come to.
__attribute__((no_sanitize("thread"))) inline bool run(uint32_t count, uint64_t seed, const std::function<void(uint32_t)>& body) {
    Group& g = group();
    g.all.resize(count);
    g.body = &body;
    g.seed = seed * 2 + 88172645463325252ull;
#ifdef RACES
    g.scheduler_fiber = __tsan_get_current_fiber();
    __tsan_release(&g.sync);
#endif
    for (Lane& one : g.all) {
        one.stack.resize(256 << 10);
        getcontext(&one.context);
        one.context.uc_stack.ss_sp = one.stack.data();
        one.context.uc_stack.ss_size = one.stack.size();
        one.context.uc_link = &g.scheduler;
        one.state = State::ready;
        makecontext(&one.context, enter, 0);
#ifdef RACES
        one.fiber = __tsan_create_fiber(0);
#endif
    }
    std::vector<uint32_t> order(count);
    std::vector<Exchange> found((count + 31) / 32);
    bool fine = true;
    for (;;) {
        for (uint32_t i = 0; i < count; i++) order[i] = i;
        for (uint32_t i = count; i > 1 && seed; i--) std::swap(order[i - 1], order[random(g.seed) % i]);
        bool ran = false;
        for (uint32_t i : order) {
            if (g.all[i].state != State::ready) continue;
            g.current = i;
            ran = true;
            switch_to(g.all[i].fiber);
            swapcontext(&g.scheduler, &g.all[i].context);
        }
        if (ran) continue;
        if (resolve(g, found)) continue;
        uint32_t waiting = 0, done = 0;
        for (Lane& one : g.all) { waiting += one.state == State::at_barrier; done += one.state == State::done; }
        if (!waiting) break;
        fine = fine && !done;
        for (Lane& one : g.all) if (one.state == State::at_barrier) one.state = State::ready;
    }
#ifdef RACES
    for (Lane& one : g.all) __tsan_destroy_fiber(one.fiber);
    __tsan_acquire(&g.sync);
#endif
    return fine;
}

}  // namespace lanes

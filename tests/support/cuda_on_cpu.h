// Runs CUDA kernels on the CPU, one thread of a block after the other, each with a stack of its own:
// a thread runs until it meets a barrier, and no thread passes one that others have not reached.
// The order of the threads can be turned round, which brings races to light.
#pragma once

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct float4 {
  float x, y, z, w;
};
struct ushort4 {
  unsigned short x, y, z, w;
};
struct float2 {
  float x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
  return {x, y, z, w};
}

static uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

enum State { RUNNING, AT_BLOCK, AT_WARP, DONE };
struct Thread {
  jmp_buf at;
  ucontext_t first;
  State state;
  std::unique_ptr<char[]> stack;
};
constexpr size_t STACK = 64 << 10;
static jmp_buf scheduler;
static ucontext_t origin;
static std::vector<Thread> threads;
static unsigned current;
static void (*body)();
static uint64_t exchanged[1024];

inline void wait(State state) {
  threads[current].state = state;
  if (!_setjmp(threads[current].at)) _longjmp(scheduler, 1);
}

inline void entry() {
  for (;;) {
    body();
    wait(DONE);
  }
}

inline void resume(unsigned thread, bool started) {
  current = thread;
  threadIdx.x = thread;
  threads[thread].state = RUNNING;
  if (_setjmp(scheduler)) return;
  if (started) _longjmp(threads[thread].at, 1);
  setcontext(&threads[thread].first);
}

// Runs one block; false where some threads wait for others that have ended.
inline bool block(unsigned count, bool backwards, bool started) {
  bool fresh = true;
  for (;;) {
    bool any = false;
    for (unsigned i = 0; i < count; ++i) {
      unsigned t = backwards ? count - 1 - i : i;
      if (fresh || threads[t].state == RUNNING) {
        resume(t, started || !fresh);
        any = true;
      }
    }
    fresh = false;
    if (any) {
      // A warp passes as soon as all of its lanes have come.
      for (unsigned first = 0; first < count; first += 32) {
        unsigned last = first + 32 < count ? first + 32 : count, waiting = 0;
        for (unsigned t = first; t < last; ++t) waiting += threads[t].state == AT_WARP;
        if (waiting == last - first) {
          for (unsigned t = first; t < last; ++t) threads[t].state = RUNNING;
        }
      }
      bool moved = false;
      for (unsigned t = 0; t < count; ++t) moved |= threads[t].state == RUNNING;
      if (moved) continue;
    }
    unsigned done = 0, waiting = 0;
    for (unsigned t = 0; t < count; ++t) {
      done += threads[t].state == DONE, waiting += threads[t].state == AT_BLOCK;
    }
    if (done == count) return true;
    if (waiting != count) return false;
    for (unsigned t = 0; t < count; ++t) threads[t].state = RUNNING;
  }
}

template <typename... P, size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_const_t<P>*>(arguments[I])...);
}

template <typename... P>
int launch(
    void (*kernel)(P...), const unsigned* grid, unsigned count, void** arguments, int given,
    bool backwards) {
  if (given != sizeof...(P)) return 2;
  static void (*running)(P...);
  static void** values;
  running = kernel, values = arguments;
  body = [] { call(running, values, std::index_sequence_for<P...>{}); };
  threads.clear();
  threads.resize(count);
  for (Thread& thread : threads) {
    thread.stack.reset(new char[STACK]);
    getcontext(&thread.first);
    thread.first.uc_stack.ss_sp = thread.stack.get();
    thread.first.uc_stack.ss_size = STACK;
    thread.first.uc_link = &origin;
    makecontext(&thread.first, entry, 0);
  }
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {count, 1, 1};
  bool started = false;
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        if (!block(count, backwards, started)) return 1;
        started = true;
      }
    }
  }
  return 0;
}

template <typename V>
V exchange(V value, unsigned lane) {
  unsigned first = threadIdx.x / 32 * 32;
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  exchanged[threadIdx.x] = bits;
  wait(AT_WARP);
  bits = exchanged[first + lane];
  wait(AT_WARP);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::AT_BLOCK); }
inline void __syncwarp() { emulator::wait(emulator::AT_WARP); }
template <typename V>
V __shfl_xor_sync(unsigned, V value, int mask) {
  return emulator::exchange(value, threadIdx.x % 32 ^ mask);
}
template <typename V>
V __shfl_sync(unsigned, V value, int lane) {
  return emulator::exchange(value, lane);
}
inline unsigned __ballot_sync(unsigned, bool value) {
  unsigned found = 0;
  emulator::exchanged[threadIdx.x] = value;
  emulator::wait(emulator::AT_WARP);
  for (unsigned i = 0; i < 32; ++i) found |= emulator::exchanged[threadIdx.x / 32 * 32 + i] << i;
  emulator::wait(emulator::AT_WARP);
  return found;
}
inline bool __any_sync(unsigned, bool value) { return __ballot_sync(~0u, value) != 0; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline int __clz(unsigned bits) { return bits ? __builtin_clz(bits) : 32; }
inline void atomicAdd(float* to, float value) { *to += value; }
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }

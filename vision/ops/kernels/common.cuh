// Number types and the reading, writing and indexing that all kernels share. CUDA's own headers are
// not needed, so that NVRTC alone compiles this; a host compiler reads it too, for tests.
#pragma once

typedef long long i64;

struct Half {
  unsigned short bits;
};
struct BFloat {
  unsigned short bits;
};

#ifdef __CUDACC__

__device__ __forceinline__ float to_float(Half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ float to_float(BFloat x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ __forceinline__ void from_float(float x, Half& y) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
__device__ __forceinline__ void from_float(float x, BFloat& y) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}

// Copies a number to shared memory without waiting for it, 0 where it is not `wanted`.
__device__ __forceinline__ void copy_async(float* to, const float* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
                  "r"(wanted ? 4 : 0) : "memory");
}
// Four neighbours likewise; both addresses are multiples of 16 bytes.
__device__ __forceinline__ void copy_async4(float* to, const float* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
                  "r"(wanted ? 16 : 0) : "memory");
}
// Waits for all copies of this thread.
__device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Adds to 16 rows by 8 columns, shared out among a warp as tensor cores do, a product 8 words deep; a
// word is two numbers of a half type.
#define TENSOR_CORES(T, SHAPE)                                                                    \
  __device__ __forceinline__ void add_product(                                                    \
      float(&c)[4], const unsigned(&a)[4], const unsigned(&b)[2], T) {                            \
    asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "               \
        "{%0, %1, %2, %3};"                                                                       \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                      \
  }
TENSOR_CORES(Half, "m16n8k16.row.col.f32.f16.f16.f32")
TENSOR_CORES(BFloat, "m16n8k16.row.col.f32.bf16.bf16.f32")

#else  // a host compiler, with _Float16

inline float to_float(Half x) {
  _Float16 y;
  __builtin_memcpy(&y, &x, 2);
  return static_cast<float>(y);
}
inline float to_float(BFloat x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
inline void from_float(float x, Half& y) {
  _Float16 half = static_cast<_Float16>(x);
  __builtin_memcpy(&y, &half, 2);
}
inline void from_float(float x, BFloat& y) {
  unsigned bits = __float_as_uint(x);  // to the nearest, ties to even; NaN stays NaN
  unsigned up = x != x ? 0x400000u : 0x7fffu + (bits >> 16 & 1);
  y.bits = static_cast<unsigned short>((x != x ? bits | up : bits + up) >> 16);
}
inline void copy_async(float* to, const float* from, bool wanted) { *to = wanted ? *from : 0.f; }
inline void copy_async4(float* to, const float* from, bool wanted) {
  for (int i = 0; i < 4; ++i) copy_async(to + i, from + i, wanted);
}
inline void copy_wait() {}

template <typename T>
void add_product(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], T) {
  const int row = threadIdx.x % 32 & ~3, column = threadIdx.x % 4 * 8;  // first lanes that hold them
  for (int word = 0; word < 8; ++word) {
    const unsigned *part = a + word / 4 * 2, lane = word % 4;
    unsigned left[2], right[2];
    for (int i = 0; i < 2; ++i) {
      left[i] = __shfl_sync(~0u, part[i], row + lane);
      right[i] = __shfl_sync(~0u, b[word / 4], column + 4 * i + lane);
    }
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 32; half += 16) {
        const T x{static_cast<unsigned short>(left[i / 2] >> half)};
        c[i] += to_float(x) * to_float(T{static_cast<unsigned short>(right[i % 2] >> half)});
      }
    }
  }
}

#endif

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ void from_float(float x, float& y) { y = x; }

template <typename T>
__device__ __forceinline__ T number(float x) {
  T y;
  from_float(x, y);
  return y;
}

// Four neighbours at once; the address is a multiple of four numbers.
__device__ __forceinline__ void store4(float* to, const float (&x)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
}
template <typename T>
__device__ __forceinline__ void store4(T* to, const float (&x)[4]) {
  *reinterpret_cast<ushort4*>(to) = make_ushort4(
      number<T>(x[0]).bits, number<T>(x[1]).bits, number<T>(x[2]).bits, number<T>(x[3]).bits);
}
__device__ __forceinline__ void load4(const float* from, float (&x)[4]) {
  float4 y = *reinterpret_cast<const float4*>(from);
  x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}
template <typename T>
__device__ __forceinline__ void load4(const T* from, float (&x)[4]) {
  ushort4 y = *reinterpret_cast<const ushort4*>(from);
  x[0] = to_float(T{y.x}), x[1] = to_float(T{y.y});
  x[2] = to_float(T{y.z}), x[3] = to_float(T{y.w});
}

__device__ __forceinline__ float infinite() { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ float undefined() { return __uint_as_float(0x7fc00000u); }

template <typename N>
__device__ __forceinline__ N least(N a, N b) {
  return a < b ? a : b;
}

// a / b of numbers that are not negative: in 32 bits it takes a fraction of the instructions.
__device__ __forceinline__ i64 divided(i64 a, i64 b) {
  return (a | b) >> 32 ? a / b : static_cast<unsigned>(a) / static_cast<unsigned>(b);
}

// A block's tiles: X along a row and whatever else is cut into pieces, Y rows and lines of the
// window, Z images and groups. A grid smaller than the work goes round again.
#define EACH_TILE(X, Y, Z, ACROSS, DOWN, DEEP)              \
  for (int Z = blockIdx.z; Z < (DEEP); Z += gridDim.z)      \
    for (int Y = blockIdx.y; Y < (DOWN); Y += gridDim.y)    \
      for (int X = blockIdx.x; X < (ACROSS); X += gridDim.x)

// N neighbours, read and written at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

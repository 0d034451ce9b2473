// Expected disparity under a softmax, in one reading of the costs: a running maximum, and two sums
// relative to it. Backwards the costs are read twice, and nothing was kept but them.

#include "common.cuh"

constexpr int FLIGHT = 16;  // costs under way at once

struct Moments {
  float top, sum, first;  // maximum of -cost; of exp(-cost - top): its sum, and times the index
};

template <typename T>
__device__ __forceinline__ Moments moments(const T* cost, i64 next, int count) {
  Moments m{-infinite(), 0.f, 0.f};
  for (int d = 0; d < count; d += FLIGHT) {
    T held[FLIGHT];
    float value[FLIGHT], top = m.top;
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i, cost += next) {
      if (d + i < count) held[i] = *cost;
    }
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
      value[i] = d + i < count ? -to_float(held[i]) : -infinite();
      top = fmaxf(top, value[i]);
    }
    const float base = top == -infinite() ? 0.f : top, shrink = expf(m.top - base);
    m.sum *= shrink, m.first *= shrink, m.top = top;
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
      const float weight = expf(value[i] - base);
      m.sum += weight, m.first += weight * (d + i);
    }
  }
  return m;
}

template <typename T>
__global__ void __launch_bounds__(128) soft_argmin_forward(
    const T* cost, i64 cost_b, i64 cost_d, i64 cost_y, i64 cost_x, float* out,
    i64 batch, i64 count, i64 height, i64 width, double start, double step) {
  const i64 area = height * width, pixel = blockIdx.x * 128ll + threadIdx.x;
  if (pixel >= area) return;
  const i64 y = pixel / width, x = pixel - y * width;
  for (i64 image = blockIdx.z; image < batch; image += gridDim.z) {
    const Moments m = moments(
        cost + image * cost_b + y * cost_y + x * cost_x, cost_d, static_cast<int>(count));
    out[image * area + pixel] =
        static_cast<float>(start) + static_cast<float>(step) * (m.first / m.sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(128) soft_argmin_backward(
    const float* gradient, const T* cost, i64 cost_b, i64 cost_d, i64 cost_y, i64 cost_x,
    T* to_cost, i64 to_b, i64 to_d, i64 to_y, i64 to_x,
    i64 batch, i64 count, i64 height, i64 width, double step) {
  const i64 area = height * width, pixel = blockIdx.x * 128ll + threadIdx.x;
  if (pixel >= area) return;
  const i64 y = pixel / width, x = pixel - y * width;
  for (i64 image = blockIdx.z; image < batch; image += gridDim.z) {
    const T* from = cost + image * cost_b + y * cost_y + x * cost_x;
    T* to = to_cost + image * to_b + y * to_y + x * to_x;
    const Moments m = moments(from, cost_d, static_cast<int>(count));
    const float mean = m.first / m.sum, scale = static_cast<float>(step) / m.sum;
    const float given = -gradient[image * area + pixel] * scale;
    for (int d = 0; d < count; d += FLIGHT) {  // all are read before one is written
      T held[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i, from += cost_d) {
        if (d + i < count) held[i] = *from;
      }
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i, to += to_d) {
        if (d + i >= count) break;
        *to = number<T>(given * expf(-to_float(held[i]) - m.top) * (d + i - mean));
      }
    }
  }
}

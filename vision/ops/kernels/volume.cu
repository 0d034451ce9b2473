// Stacks left features on shifted right features. Forwards a thread keeps N neighbouring columns and
// goes through the displacements: the left ones stay, and the right ones move along by one, so that
// each displacement costs one read and two wide writes. Backwards each thread adds up what its
// feature was copied to, in order.

#include "common.cuh"

template <typename T, int N>
__global__ void __launch_bounds__(128) concat_forward(
    const T* left, i64 left_b, i64 left_c, i64 left_y, i64 left_x,
    const T* right, i64 right_b, i64 right_c, i64 right_y, i64 right_x,
    T* out, i64 batch, i64 channels, i64 height, i64 width, i64 count, i64 part) {
  const i64 area = height * width, pixel = (blockIdx.x * 128ll + threadIdx.x) * N;
  if (pixel >= area) return;
  const i64 y = pixel / width;
  const int x = static_cast<int>(pixel - y * width), last = static_cast<int>(count);
  for (i64 map = blockIdx.z; map < batch * channels; map += gridDim.z) {
    const i64 image = map / channels, c = map - image * channels;
    const T* lefts = left + image * left_b + c * left_c + y * left_y;
    const T* rights = right + image * right_b + c * right_c + y * right_y;
    for (int first = blockIdx.y * part; first < last; first += gridDim.y * part) {
      Pack<T, N> a, b;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        a.v[i] = lefts[(x + i) * left_x];
        const int met = x + i - first;
        b.v[i] = met >= 0 ? rights[met * right_x] : T{};
      }
      T* to = out + ((image * 2 * channels + c) * count + first) * area + pixel;
      const int end = least<int>(last, first + part);
#pragma unroll 4
      for (int d = first; d < end; ++d, to += area) {
        const int met = x - d - 1;
        const T coming = met >= 0 ? rights[met * right_x] : T{};
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (x + i < d) a.v[i] = T{};
        }
        *reinterpret_cast<Pack<T, N>*>(to) = a;
        *reinterpret_cast<Pack<T, N>*>(to + channels * count * area) = b;
#pragma unroll
        for (int i = N - 1; i > 0; --i) b.v[i] = b.v[i - 1];
        b.v[0] = coming;
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(128) concat_backward(
    const T* gradient,
    T* to_left, i64 left_b, i64 left_c, i64 left_y, i64 left_x,
    T* to_right, i64 right_b, i64 right_c, i64 right_y, i64 right_x,
    i64 batch, i64 channels, i64 height, i64 width, i64 count) {
  const i64 area = height * width, pixel = blockIdx.x * 128ll + threadIdx.x;
  if (pixel >= area) return;
  const i64 y = pixel / width, x = pixel - y * width;
  for (i64 map = blockIdx.z; map < batch * 2 * channels; map += gridDim.z) {
    const i64 image = map / (2 * channels), c = map - image * 2 * channels;
    const bool is_right = c >= channels;
    const int steps = static_cast<int>(least(count, is_right ? width - x : x + 1));
    const T* at = gradient + map * count * area + pixel;
    const i64 next = is_right ? area + 1 : area;
    float sum = 0.f;
    constexpr int FLIGHT = 8;  // reads under way at once
    for (int d = 0; d < steps; d += FLIGHT) {
      T held[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i, at += next) held[i] = d + i < steps ? *at : T{};
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i) sum += to_float(held[i]);
    }
    if (is_right) {
      to_right[image * right_b + (c - channels) * right_c + y * right_y + x * right_x] =
          number<T>(sum);
    } else {
      to_left[image * left_b + c * left_c + y * left_y + x * left_x] = number<T>(sum);
    }
  }
}

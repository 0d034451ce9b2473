// Samples a map at places along its rows. Backwards, to the map: a thread gathers for its column from
// the pixels that read it, in order, instead of every pixel adding to where it read. Pixels are looked
// through in pieces, and those whose places lie elsewhere are passed over; of the others a thread notes
// who reads its column, so that a warp gathers as often as its busiest column is read.

#include "common.cuh"

constexpr int THREADS = 128;
constexpr int CHANNELS = 16;  // of a thread
constexpr int FLIGHT = 4;  // of them, read at once
constexpr int STAGED = 1024;  // pixels of a row whose places are held at once

// Place p of an axis, its whole part, and whether the place follows the disparity there.
struct Place {
  float at;
  int low;
  bool moves;
};

__device__ __forceinline__ Place settle(float place, int size, bool border) {
  Place p;
  const float last = static_cast<float>(size - 1);
  p.moves = !border || (place > 0.f && place < last);
  // Two pixels outside is outside enough; an infinite place would give NaN.
  p.at = border ? fminf(fmaxf(place, 0.f), last) : fminf(fmaxf(place, -2.f), last + 2.f);
  p.low = static_cast<int>(floorf(p.at));
  return p;
}

// The place that a coordinate is read at: the coordinate, or as networks were published.
__device__ __forceinline__ float read_at(float coordinate, int size, bool aligned) {
  if (aligned) return coordinate;
  return coordinate * (size / static_cast<float>(size > 1 ? size - 1 : 1)) - 0.5f;
}

template <typename T>
__device__ __forceinline__ float tap(
    const T* map, int y, int x, int height, int width, i64 step_y, i64 step_x) {
  const bool inside =
      static_cast<unsigned>(y) < height && static_cast<unsigned>(x) < width;
  return inside ? to_float(map[y * step_y + x * step_x]) : 0.f;
}

// Two neighbours of a row, in FLIGHT channels from `c` on; the last channel again for those beyond it.
template <typename T>
__device__ __forceinline__ void taps(
    const T* map, i64 step_c, int c, int last, int y, int x, int height, int width, i64 step_y,
    i64 step_x, float (&first)[FLIGHT], float (&second)[FLIGHT]) {
#pragma unroll
  for (int i = 0; i < FLIGHT; ++i) {
    const T* at = map + least(c + i, last) * step_c;
    first[i] = tap(at, y, x, height, width, step_y, step_x);
    second[i] = tap(at, y, x + 1, height, width, step_y, step_x);
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) warp_forward(
    const T* image, i64 image_b, i64 image_c, i64 image_y, i64 image_x,
    const float* disparity, i64 disparity_b, i64 disparity_y, i64 disparity_x,
    T* out, i64 out_b, i64 out_c, i64 out_y, i64 out_x,
    i64 batch, i64 channels, i64 height_, i64 width_, i64 border, i64 aligned) {
  const int height = height_, width = width_, x = blockIdx.x * THREADS + threadIdx.x;
  const int bands = (channels + CHANNELS - 1) / CHANNELS;
  if (x >= width) return;
  for (i64 z = blockIdx.z; z < batch * bands; z += gridDim.z) {
    const i64 b = z / bands, c0 = (z - b * bands) * CHANNELS;
    const int have = static_cast<int>(least<i64>(CHANNELS, channels - c0));
    for (int y = blockIdx.y; y < height; y += gridDim.y) {
      const float d = disparity[b * disparity_b + y * disparity_y + x * disparity_x];
      const Place px = settle(read_at(x - d, width, aligned), width, border);
      const Place py = settle(read_at(static_cast<float>(y), height, aligned), height, border);
      const float u = px.at - px.low, v = py.at - py.low;
      const T* from = image + b * image_b + c0 * image_c;
      T* to = out + b * out_b + c0 * out_c + y * out_y + x * out_x;
      for (int c = 0; c < have; c += FLIGHT) {  // all are read before one is written
        float value[FLIGHT], first[FLIGHT], second[FLIGHT];
        taps(from, image_c, c, have - 1, py.low, px.low, height, width, image_y, image_x, first, second);
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) value[i] = (1.f - u) * first[i] + u * second[i];
        if (v > 0.f) {
          taps(from, image_c, c, have - 1, py.low + 1, px.low, height, width, image_y, image_x, first,
               second);
#pragma unroll
          for (int i = 0; i < FLIGHT; ++i) {
            value[i] = (1.f - v) * value[i] + v * ((1.f - u) * first[i] + u * second[i]);
          }
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) {
          if (c + i < have) to[(c + i) * out_c] = number<T>(d == d ? value[i] : d);
        }
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) warp_backward_disparity(
    const T* gradient, i64 gradient_b, i64 gradient_c, i64 gradient_y, i64 gradient_x,
    const T* image, i64 image_b, i64 image_c, i64 image_y, i64 image_x,
    const float* disparity, i64 disparity_b, i64 disparity_y, i64 disparity_x,
    float* out, i64 batch, i64 channels, i64 height_, i64 width_, i64 border, i64 aligned) {
  const int height = height_, width = width_, x = blockIdx.x * THREADS + threadIdx.x;
  if (x >= width) return;
  for (i64 b = blockIdx.z; b < batch; b += gridDim.z) {
    for (int y = blockIdx.y; y < height; y += gridDim.y) {
      const float d = disparity[b * disparity_b + y * disparity_y + x * disparity_x];
      const Place px = settle(read_at(x - d, width, aligned), width, border);
      const Place py = settle(read_at(static_cast<float>(y), height, aligned), height, border);
      const float v = py.at - py.low;
      const T* given = gradient + b * gradient_b + y * gradient_y + x * gradient_x;
      const T* from = image + b * image_b;
      const int last = static_cast<int>(channels) - 1;
      float sum = 0.f, plain = 0.f;
      for (int c = 0; c <= last; c += FLIGHT) {
        float slope[FLIGHT], first[FLIGHT], second[FLIGHT];
        taps(from, image_c, c, last, py.low, px.low, height, width, image_y, image_x, first, second);
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) slope[i] = second[i] - first[i];
        if (v > 0.f) {
          taps(from, image_c, c, last, py.low + 1, px.low, height, width, image_y, image_x, first,
               second);
#pragma unroll
          for (int i = 0; i < FLIGHT; ++i) {
            slope[i] = (1.f - v) * slope[i] + v * (second[i] - first[i]);
          }
        }
        T held[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) held[i] = given[least(c + i, last) * gradient_c];
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) {
          const float one = to_float(held[i]);
          if (c + i <= last) sum += one * slope[i], plain += one;
        }
      }
      const float rate = aligned ? 1.f : width / static_cast<float>(width > 1 ? width - 1 : 1);
      // Where the disparity is NaN it was the result.
      const float found = d == d ? (px.moves ? -rate * sum : 0.f) : plain;
      out[(b * height + y) * width + x] = found;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) warp_backward_image(
    const T* gradient, i64 gradient_b, i64 gradient_c, i64 gradient_y, i64 gradient_x,
    const float* disparity, i64 disparity_b, i64 disparity_y, i64 disparity_x,
    T* out, i64 out_b, i64 out_c, i64 out_y, i64 out_x,
    i64 batch, i64 channels, i64 height_, i64 width_, i64 border, i64 aligned) {
  __shared__ float places[STAGED];
  __shared__ float lows[STAGED / 32], highs[STAGED / 32];
  const int height = height_, width = width_, x = blockIdx.x * THREADS + threadIdx.x;
  const int bands = (channels + CHANNELS - 1) / CHANNELS;
  for (i64 z = blockIdx.z; z < batch * bands; z += gridDim.z) {
    const i64 b = z / bands, c0 = (z - b * bands) * CHANNELS;
    const int have = static_cast<int>(least<i64>(CHANNELS, channels - c0));
    for (int y = blockIdx.y; y < height; y += gridDim.y) {
      float sum[CHANNELS] = {};
      for (int row = y > 2 ? y - 2 : 0; row <= least(y + 2, height - 1); ++row) {
        const Place py = settle(read_at(static_cast<float>(row), height, aligned), height, border);
        const float down = 1.f - fabsf(py.at - y);
        if (down <= 0.f) continue;
        for (int start = 0; start < width; start += STAGED) {
          const int staged = least(STAGED, width - start);
          __syncthreads();
          for (int i = threadIdx.x; i / 32 * 32 < staged; i += THREADS) {
            float place = -1e9f;  // read by no one
            if (i < staged) {
              const int own = start + i;
              const float d = disparity[b * disparity_b + row * disparity_y + own * disparity_x];
              if (d == d) place = settle(read_at(own - d, width, aligned), width, border).at;
            }
            const bool real = place > -1e8f;
            float low = real ? place : 1e9f, high = real ? place : -1e9f;
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
              low = fminf(low, __shfl_xor_sync(~0u, low, step));
              high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
            }
            places[i] = place, lows[i / 32] = low, highs[i / 32] = high;
          }
          __syncthreads();
          for (int piece = 0; piece < staged; piece += 32) {
            if (x >= width || lows[piece / 32] >= x + 1 || highs[piece / 32] <= x - 1) continue;
            unsigned readers = 0;
#pragma unroll
            for (int i = 0; i < 32; ++i) {
              readers |= static_cast<unsigned>(fabsf(places[piece + i] - x) < 1.f) << i;
            }
            for (; readers; readers &= readers - 1) {
              const int i = piece + __ffs(readers) - 1;
              const float weight = (1.f - fabsf(places[i] - x)) * down;
              const T* given = gradient + b * gradient_b + c0 * gradient_c + row * gradient_y
                  + (start + i) * gradient_x;
              T held[CHANNELS];  // what is too many is read again, and not written
#pragma unroll
              for (int c = 0; c < CHANNELS; ++c) held[c] = given[least(c, have - 1) * gradient_c];
#pragma unroll
              for (int c = 0; c < CHANNELS; ++c) sum[c] += weight * to_float(held[c]);
            }
          }
        }
      }
      if (x < width) {
        T* to = out + b * out_b + c0 * out_c + y * out_y + x * out_x;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
          if (c < have) to[c * out_c] = number<T>(sum[c]);
        }
      }
    }
  }
}

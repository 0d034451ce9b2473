// Correlation of a pixel with places along its line in other views. Samples are never written: since
// a sample is a weighted sum of four texels, so is its correlation, and neighbouring samples share
// texels. A warp takes a pixel. First each lane takes a sample, finds its four texels, and finds out
// which of them the sample before it has too; then eight lanes take a texel, each some of its
// channels. All features have their channels last.

#include "common.cuh"

constexpr int WARPS = 8;
constexpr int PIXELS = 32;  // of a block
constexpr int GROUP = 8;    // lanes that share a texel
constexpr unsigned ALL = ~0u;

template <typename T>
struct Level {
  const T* features;  // (B S, H, W, C)
  float* gradient;    // the same, or null
  int height, width;
};

// What the lanes of a warp tell one another about the texels of one pixel: sample and corner make a
// place of 4 * lane + corner.
struct Texels {
  i64 features[128], gradient[128];  // addresses of the distinct ones
  float value[128];
  short link[128];   // the same texel at an earlier place, or the place itself
  short index[128];  // in the lists above, or -1 outside the image
};

struct Sample {
  float weight[4];
  int index[4];
};

template <typename T>
__device__ __forceinline__ int find_texels(
    Texels& texels, const Level<T>& level, bool active, int number, i64 image, i64 channels, float x,
    float y, Sample& sample) {
  const int lane = threadIdx.x % 32;
  const bool lost = x != x || y != y;
  // Two pixels outside is outside enough, and fits an index.
  const float px = lost ? 0.f : fminf(fmaxf(x, -2.f), level.width + 1.f);
  const float py = lost ? 0.f : fminf(fmaxf(y, -2.f), level.height + 1.f);
  const int x0 = static_cast<int>(floorf(px)), y0 = static_cast<int>(floorf(py));
  const float u = lost ? undefined() : px - x0, v = lost ? undefined() : py - y0;
  sample.weight[0] = (1.f - u) * (1.f - v), sample.weight[1] = u * (1.f - v);
  sample.weight[2] = (1.f - u) * v, sample.weight[3] = u * v;

  const int before = lane > 0 ? lane - 1 : 0;
  const int dx = x0 - __shfl_sync(ALL, x0, before), dy = y0 - __shfl_sync(ALL, y0, before);
  const bool follows = __shfl_sync(ALL, number, before) == number && lane > 0;
  const bool leads = active && !(follows && dx == 0 && dy == 0);  // first of those in its cell
  const unsigned leaders = __ballot_sync(ALL, leads), earlier = leaders & ((1u << lane) - 1);
  const int leader = leads ? lane : 31 - __clz(earlier | 1u), previous = 31 - __clz(earlier | 1u);

  int count = 0;
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    const int a = corner % 2, b = corner / 2, place = 4 * lane + corner;
    const int column = x0 + a, row = y0 + b;
    const bool shared = follows && static_cast<unsigned>(a + dx) < 2 &&
        static_cast<unsigned>(b + dy) < 2;
    const bool fresh = leads && !shared && static_cast<unsigned>(column) < level.width &&
        static_cast<unsigned>(row) < level.height;
    const unsigned found = __ballot_sync(ALL, fresh);
    const int index = count + __popc(found & ((1u << lane) - 1));
    count += __popc(found);
    if (leads) {
      texels.link[place] = shared ? 4 * previous + 2 * (b + dy) + a + dx : place;
      texels.index[place] = fresh ? index : -1;
    }
    if (fresh) {
      const i64 texel = ((image * level.height + row) * level.width + column) * channels;
      texels.features[index] = reinterpret_cast<i64>(level.features + texel);
      texels.gradient[index] = reinterpret_cast<i64>(level.gradient + texel);
    }
  }
  __syncwarp();
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    int place = 4 * leader + corner;
    for (int next; active && (next = texels.link[place]) != place;) place = next;
    sample.index[corner] = active ? texels.index[place] : -1;
  }
  return count;
}

// Channels 4 (sub + 8 i) to 4 (sub + 8 i) + 3 for i = 0 ... N - 1, 0 beyond the last.
template <int N, typename T>
__device__ __forceinline__ void read_channels(
    const T* from, int sub, int channels, bool whole, float (&to)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int c = 4 * (sub + GROUP * i);
    if (whole) {
      if (c < channels) {
        load4(from + c, to[i]);
      } else {
        to[i][0] = to[i][1] = to[i][2] = to[i][3] = 0.f;
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) to[i][k] = c + k < channels ? to_float(from[c + k]) : 0.f;
    }
  }
}

struct Line {
  float x, y, along_x, along_y;
};

__device__ __forceinline__ Line line_at(
    const float* base, const float* direction, i64 view, i64 area, i64 pixel) {
  const i64 at = 2 * view * area + pixel;
  return {base[at], base[at + area], direction[at], direction[at + area]};
}

// Level and place of this lane's sample.
template <typename T>
__device__ __forceinline__ int find_sample(
    int sample, int radius, const Line& line, float flow, float& x, float& y) {
  const int count = 2 * radius + 1, level = sample / count;
  const float step = flow + (sample - level * count - radius);
  const float scale = 1.f / (1 << level);
  x = (line.x + step * line.along_x) * scale, y = (line.y + step * line.along_y) * scale;
  return level;
}

#define PYRAMID(T, I) const T *features_##I, float *gradient_##I, i64 height_##I, i64 width_##I
#define LEVEL(I) \
  {features_##I, gradient_##I, static_cast<int>(height_##I), static_cast<int>(width_##I)}

template <typename T>
__device__ __forceinline__ Level<T> pick(
    int level, const Level<T>& a, const Level<T>& b, const Level<T>& c, const Level<T>& d) {
  return level == 0 ? a : level == 1 ? b : level == 2 ? c : d;
}

// The first level of a launch is level `above` of the pyramid. 32 N channels at most.
template <typename T, int N>
__global__ void __launch_bounds__(32 * WARPS, 2) epipolar_forward(
    const T* reference, i64 reference_b, i64 reference_y, i64 reference_x,
    PYRAMID(T, 0), PYRAMID(T, 1), PYRAMID(T, 2), PYRAMID(T, 3),
    const float* base, const float* direction, const float* flow, T* out,
    i64 batch, i64 views, i64 channels, i64 height, i64 width, i64 levels, i64 above, i64 planes,
    i64 radius, i64 whole) {
  __shared__ Texels shared[WARPS];
  __shared__ float stage[32][PIXELS + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sub = lane % GROUP;
  const int samples = static_cast<int>(levels * (2 * radius + 1));
  const i64 area = height * width, first = blockIdx.x * static_cast<i64>(PIXELS);
  const float mean = 1.f / channels, shrink = 1.f / (1 << above);
  Texels& texels = shared[warp];

  for (i64 view = blockIdx.z; view < batch * views; view += gridDim.z) {
    const i64 image = view / views;
    for (int start = 0; start < samples; start += 32) {
      for (int i = warp; i < PIXELS; i += WARPS) {
        const i64 pixel = first + i;
        if (pixel >= area) break;
        const Line line = line_at(base, direction, view, area, pixel);
        const bool active = start + lane < samples;
        float x, y;
        const int number = active
            ? find_sample<T>(start + lane, radius, line, flow[view * area + pixel], x, y)
            : -1;
        const Level<T> level =
            pick<T>(number, LEVEL(0), LEVEL(1), LEVEL(2), LEVEL(3));
        Sample sample;
        const int count = find_texels(
            texels, level, active, number, view, channels, active ? x * shrink : 0.f,
            active ? y * shrink : 0.f, sample);

        const i64 row = pixel / width, column = pixel - row * width;
        float own[N][4];
        read_channels<N>(
            reference + image * reference_b + row * reference_y + column * reference_x, sub,
            static_cast<int>(channels), whole, own);
        float all = 0.f;
#pragma unroll
        for (int k = 0; k < 4 * N; ++k) all += own[k / 4][k % 4];
        const bool lost = __any_sync(ALL, all != all);  // NaN also where a sample is outside
        for (int begin = 0; begin < count; begin += 32) {
          float part[GROUP] = {};
#pragma unroll
          for (int half = 0; half < GROUP; half += GROUP / 2) {
            if (begin + 4 * half >= count) continue;
            // The last texel again beyond it: without branches the reads overlap.
#pragma unroll
            for (int m = half; m < half + GROUP / 2; ++m) {
              const int texel = least(begin + 4 * m + lane / GROUP, count - 1);
              float other[N][4];
              read_channels<N>(
                  reinterpret_cast<const T*>(texels.features[texel]), sub,
                  static_cast<int>(channels), whole, other);
#pragma unroll
              for (int k = 0; k < 4 * N; ++k) part[m] += own[k / 4][k % 4] * other[k / 4][k % 4];
            }
          }
          // Each step halves what a lane holds and adds what its partner holds of the rest.
#pragma unroll
          for (int half = GROUP / 2; half > 0; half /= 2) {
            const bool upper = sub & half;
#pragma unroll
            for (int m = 0; m < half; ++m) {
              const float sent = upper ? part[m] : part[m + half];
              part[m] = (upper ? part[m + half] : part[m]) + __shfl_xor_sync(ALL, sent, half);
            }
          }
          const int texel = begin + 4 * sub + lane / GROUP;
          if (texel < count) texels.value[texel] = part[0];
        }
        __syncwarp();
        float sum = 0.f;
#pragma unroll
        for (int corner = 0; corner < 4; ++corner) {
          const int index = sample.index[corner];
          sum += sample.weight[corner] * (index >= 0 ? texels.value[index] : 0.f);
        }
        stage[lane][i] = lost ? undefined() : sum * mean;
        __syncwarp();
      }
      __syncthreads();
      for (int i = threadIdx.x; i < 32 * PIXELS; i += 32 * WARPS) {
        const int plane = start + i / PIXELS;
        const i64 pixel = first + i % PIXELS;
        if (plane < samples && pixel < area) {
          out[(view * planes + above * (2 * radius + 1) + plane) * area + pixel] =
              number<T>(stage[i / PIXELS][i % PIXELS]);
        }
      }
      __syncthreads();
    }
  }
}

__device__ __forceinline__ void add4(float* to, const float (&x)[4], int have, bool whole) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (whole) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
    return;
  }
#endif
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < have) atomicAdd(to + k, x[k]);
  }
}

// With a = gradient times weight, summed over the samples that read a texel f: to the reference the
// sum of a f, and to the texel a times the reference, added atomically.
template <typename T, int N>
__global__ void __launch_bounds__(32 * WARPS) epipolar_backward(
    const T* reference, i64 reference_b, i64 reference_y, i64 reference_x,
    PYRAMID(T, 0), PYRAMID(T, 1), PYRAMID(T, 2), PYRAMID(T, 3),
    const float* base, const float* direction, const float* flow, const T* gradient,
    float* to_reference, i64 batch, i64 views, i64 channels, i64 height, i64 width, i64 levels,
    i64 above, i64 planes, i64 radius, i64 whole) {
  __shared__ Texels shared[WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sub = lane % GROUP;
  const int samples = static_cast<int>(levels * (2 * radius + 1));
  const int have = static_cast<int>(channels);
  const i64 area = height * width;
  const float mean = 1.f / channels, shrink = 1.f / (1 << above);
  Texels& texels = shared[warp];

  for (i64 image = blockIdx.z; image < batch; image += gridDim.z) {
    const i64 pixel = blockIdx.x * static_cast<i64>(WARPS) + warp;
    if (pixel >= area) continue;
    const i64 row = pixel / width, column = pixel - row * width;
    float own[N][4], sum[N][4] = {};
    read_channels<N>(
        reference + image * reference_b + row * reference_y + column * reference_x, sub, have, whole,
        own);
    for (i64 view = image * views; view < (image + 1) * views; ++view) {
      const Line line = line_at(base, direction, view, area, pixel);
      const float travelled = flow[view * area + pixel];
      for (int start = 0; start < samples; start += 32) {
        const bool active = start + lane < samples;
        const i64 plane = view * planes + above * (2 * radius + 1) + start + lane;
        const float given = active ? to_float(gradient[plane * area + pixel]) * mean : 0.f;
        float x, y;
        const int number =
            active ? find_sample<T>(start + lane, radius, line, travelled, x, y) : -1;
        const Level<T> level =
            pick<T>(number, LEVEL(0), LEVEL(1), LEVEL(2), LEVEL(3));
        Sample sample;
        const int count = find_texels(
            texels, level, active, number, view, channels, active ? x * shrink : 0.f,
            active ? y * shrink : 0.f, sample);
        for (int texel = lane; texel < count; texel += 32) texels.value[texel] = 0.f;
        __syncwarp();
#pragma unroll
        for (int corner = 0; corner < 4; ++corner) {
          const int index = sample.index[corner];
          if (index >= 0) atomicAdd(texels.value + index, given * sample.weight[corner]);
        }
        __syncwarp();
        for (int texel = lane / GROUP; texel < count; texel += 32 / GROUP) {
          const float share = texels.value[texel];
          float other[N][4];
          read_channels<N>(
              reinterpret_cast<const T*>(texels.features[texel]), sub, have, whole, other);
          float* to = reinterpret_cast<float*>(texels.gradient[texel]);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const int c = 4 * (sub + GROUP * i);
            float added[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              sum[i][k] += share * other[i][k], added[k] = share * own[i][k];
            }
            if (c < have) add4(to + c, added, have - c, whole);
          }
        }
        __syncwarp();
      }
    }
    float* to = to_reference + (image * area + pixel) * channels;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float total = sum[i][k];
        total += __shfl_xor_sync(ALL, total, 8);
        total += __shfl_xor_sync(ALL, total, 16);
        const int c = 4 * (sub + GROUP * i) + k;
        if (lane < GROUP && c < have) to[c] = above ? to[c] + total : total;
      }
    }
  }
}

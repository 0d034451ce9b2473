// Correlation along rows, forward, in float32: the same sums as in correlation.cu, for rows of many
// channels. Eight neighbouring threads take the same columns and displacements and every eighth
// channel: whatever the tile, what they read at once lies in different banks of shared memory. In
// the end each adds up an eighth of their sums. Nothing is added atomically.

#include "common.cuh"

constexpr int SLICES = 8;
constexpr int OWN = 8, DEPTH = 16;  // columns and displacements of a thread
constexpr int COLUMNS = 40;         // of a block: divides the widths of published feature maps
constexpr int REACH = 48;           // displacements of a block, at most
constexpr int CHUNK = 32;           // channels that are staged at once
constexpr int PITCH = COLUMNS + 4, WIDE = COLUMNS + REACH + 4;  // odd numbers of 16 bytes
constexpr int TILE = CHUNK * (PITCH + WIDE);
constexpr int SUMS = OWN * DEPTH;

// Keeps one half of what a thread holds, adds what its partner holds of that, and gives it the
// other; returns where the half begins.
template <int HALF>
__device__ __forceinline__ int halve(float (&sum)[SUMS], int partner) {
  const bool upper = threadIdx.x & partner;
#pragma unroll
  for (int s = 0; s < HALF; ++s) {
    const float sent = upper ? sum[s] : sum[s + HALF];
    sum[s] = (upper ? sum[s + HALF] : sum[s]) + __shfl_xor_sync(~0u, sent, partner);
  }
  return upper ? HALF : 0;
}

__global__ void __launch_bounds__(128, 2) sliced_forward(
    const float* left, i64 left_b, i64 left_c, i64 left_y, i64 left_x,
    const float* right, i64 right_b, i64 right_c, i64 right_y, i64 right_x,
    float* out, i64 batch_, i64 groups_, i64 channels_, i64 height_, i64 width_, i64 count_,
    i64 lines_, i64 shift_, i64 reversed, i64 depths_) {
  __shared__ __align__(16) float memory[2 * TILE];
  const int batch = batch_, groups = groups_, channels = channels_, height = height_;
  const int width = width_, count = count_, lines = lines_, shift = shift_, depths = depths_;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int slice = threadIdx.x % SLICES, share = threadIdx.x / SLICES;
  const int depth = share / (COLUMNS / OWN), x = share % (COLUMNS / OWN) * OWN;
  const int span = DEPTH * depths, from = x + REACH - DEPTH * (depth + 1);
  const int across = (width + COLUMNS - 1) / COLUMNS, steps = (count + span - 1) / span;
  const bool last = left_c == 1 && left_x != 1;  // lanes run along what lies side by side

  EACH_TILE(tile, row, pair, across * steps, height * lines, batch * groups) {
    const int x0 = tile % across * COLUMNS, j0 = tile / across * span;
    const int line = row % lines, y = row / lines, group = pair % groups, image = pair / groups;
    const int other = y + line - lines / 2, start = x0 + shift - j0;
    const bool meets = other >= 0 && other < height;
    const i64 c0 = static_cast<i64>(group) * channels;
    const float* lefts = left + image * left_b + c0 * left_c + y * left_y;
    const float* rights = right + image * right_b + c0 * right_c + other * right_y;

    // Four columns from k on, left ones below COLUMNS and then right ones, every `step`th channel.
    const auto bring = [&](float* tile, int k, int c, int ready, int have, int step) {
      const bool is_right = k >= COLUMNS;
      const int column = is_right ? start - span + k - COLUMNS : x0 + k;
      const i64 next = is_right ? right_c : left_c, apart = is_right ? right_x : left_x;
      const int pitch = is_right ? WIDE : PITCH;
      const float* at = (is_right ? rights : lefts) + (ready + c) * next + column * apart;
      float* to = is_right ? tile + CHUNK * PITCH + REACH - span + k - COLUMNS : tile + k;
      const bool whole = apart == 1 && next % 4 == 0 && (column | width) % 4 == 0 &&
          reinterpret_cast<unsigned long long>(at) % 16 == 0;
      for (to += c * pitch; c < have; c += step, at += step * next, to += step * pitch) {
        if (whole) {
          copy_async4(to, at, static_cast<unsigned>(column) < width);
        } else {
#pragma unroll
          for (int m = 0; m < 4; ++m) {
            copy_async(to + m, at + m * apart, static_cast<unsigned>(column + m) < width);
          }
        }
      }
    };

    float sum[SUMS] = {};
    for (int c = 0; meets && c < channels + CHUNK; c += CHUNK) {  // one ahead of the sums
      float* coming = memory + c / CHUNK % 2 * TILE;
      if (c > 0) copy_wait();
      __syncthreads();
      if (c < channels) {
        const int have = least(CHUNK, channels - c), columns = 2 * COLUMNS + span;
        if (last) {
          for (int k = 4 * warp; k < columns; k += 4 * warps) {
            bring(coming, k, lane, c, have, CHUNK);
          }
        } else if (4 * lane < columns) {
          bring(coming, 4 * lane, warp, c, have, warps);
        }
      }
      const float *a = memory + (c / CHUNK + 1) % 2 * TILE, *b = a + CHUNK * PITCH;
      const int have = c > 0 && depth < depths ? least(CHUNK, channels - c + CHUNK) : 0;
#pragma unroll 1
      for (int i = slice; i < have; i += SLICES) {
        float l[OWN], r[DEPTH + OWN];
#pragma unroll
        for (int k = 0; k < OWN; k += 4) {
          load4(a + i * PITCH + x + k, reinterpret_cast<float(&)[4]>(l[k]));
        }
#pragma unroll
        for (int k = 0; k < DEPTH + OWN; k += 4) {
          load4(b + i * WIDE + from + k, reinterpret_cast<float(&)[4]>(r[k]));
        }
#pragma unroll
        for (int s = 0; s < SUMS; ++s) sum[s] += l[s % OWN] * r[DEPTH + s % OWN - s / OWN];
      }
    }

    int first = halve<SUMS / 2>(sum, 4);
    first += halve<SUMS / 4>(sum, 2), first += halve<SUMS / 8>(sum, 1);
    const float scale = 1.f / channels;
    const i64 area = static_cast<i64>(height) * width;
    const i64 plane = (static_cast<i64>(pair) * lines + line) * count;
#pragma unroll
    for (int s = 0; s < SUMS / SLICES; s += 4) {
      const int j = DEPTH * depth + (first + s) / OWN, k = x + s % OWN, column = x0 + k;
      if (depth >= depths || j0 + j >= count || column >= width) continue;
      float value[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const bool inside = static_cast<unsigned>(start + k + m - j) < width;
        value[m] = meets && inside ? sum[s + m] * scale : 0.f;
      }
      float* at = out + (plane + (reversed ? count - 1 - j0 - j : j0 + j)) * area
          + static_cast<i64>(y) * width + column;
      if (width % 4 == 0) {
        store4(at, value);
      } else {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          if (column + m < width) at[m] = value[m];
        }
      }
    }
    __syncthreads();
  }
}

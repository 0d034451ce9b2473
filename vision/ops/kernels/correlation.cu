// Correlation along rows, forward and backward: in one group, in groups, and (line by line) in a
// square window. Displacement j of a pixel x meets column x + shift - j of the other map, and row
// y + line - lines / 2. With `reversed` planes are counted from the other end.
//
// Products run over diagonals: a thread that holds a window of one row has all that a rectangle of
// columns and displacements needs. Rows are staged in shared memory as float, the next ones in
// registers meanwhile. Nothing is added atomically, so that results repeat bit for bit.

#include "common.cuh"

constexpr int THREADS = 128;
constexpr int LANES = 8;   // threads side by side along x, 4 columns each, or 8
constexpr int DEPTH = 16;  // displacements of a thread, forwards
constexpr int REACH = 64;  // displacements of a block, forwards
constexpr int RUN = 8;     // channels of a thread, backwards

template <typename T>
struct Row {
  const T* at;
  i64 channel, column;
  bool last;  // channels lie next to one another

  __device__ __forceinline__ Row(const T* at, i64 channel, i64 column)
      : at(at), channel(channel), column(column), last(channel == 1 && column != 1) {}
};

// Which numbers of a piece one thread brings to shared memory: the first, and from one to the next.
struct Walk {
  i64 step;
  int c, dc, k, dk;  // channel (or plane) and column
};

// Lanes run along whichever dimension lies next to one another in memory. The sizes are powers of
// two, none above WORKERS.
template <int CHANNELS, int COLUMNS, int WORKERS>
__device__ __forceinline__ Walk walk(bool last, i64 channel, i64 column) {
  const int t = threadIdx.x;
  Walk w;
  w.c = last ? t % CHANNELS : t / COLUMNS, w.k = last ? t / CHANNELS : t % COLUMNS;
  w.dc = last ? 0 : WORKERS / COLUMNS, w.dk = last ? WORKERS / CHANNELS : 0;
  w.step = w.dc * channel + w.dk * column;
  return w;
}

// Where column k of a tile's row lies. With 8 columns a thread, neighbours 32 columns apart would
// meet in one bank: every other 32 columns are swapped by fours.
template <bool SWAP>
__device__ __forceinline__ int spread(int k) {
  return SWAP ? k ^ (k >> 3 & 4) : k;
}

template <int COUNT, bool SWAP, typename Inside>
__device__ __forceinline__ void bring(
    Walk w, const float* at, float* tile, int pitch, Inside inside) {
#pragma unroll 4
  for (int i = 0; i < COUNT; ++i) {
    copy_async(tile + w.c * pitch + spread<SWAP>(w.k), at, inside(w.c, w.k));
    at += w.step, w.c += w.dc, w.k += w.dk;
  }
}

template <int COUNT, bool SWAP, typename T, typename Inside>
__device__ __forceinline__ void bring(Walk w, const T* at, float* tile, int pitch, Inside inside) {
  constexpr int FLIGHT = COUNT < 8 ? COUNT : 8;  // reads under way at once
#pragma unroll 1
  for (int i = 0; i < COUNT; i += FLIGHT) {
    T held[FLIGHT];
    int to[FLIGHT];
#pragma unroll
    for (int j = 0; j < FLIGHT; ++j) {
      held[j] = inside(w.c, w.k) ? *at : T{};
      to[j] = w.c * pitch + spread<SWAP>(w.k);
      at += w.step, w.c += w.dc, w.k += w.dk;
    }
#pragma unroll
    for (int j = 0; j < FLIGHT; ++j) tile[to[j]] = to_float(held[j]);
  }
}

// Columns by fours.
template <int COUNT, bool SWAP, typename Inside>
__device__ __forceinline__ void bring4(
    Walk w, const float* at, float* tile, int pitch, Inside inside) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i, at += w.step, w.c += w.dc) {
    copy_async4(tile + w.c * pitch + spread<SWAP>(4 * w.k), at, inside(w.c, 4 * w.k));
  }
}

template <int COUNT, bool SWAP, typename T, typename Inside>
__device__ __forceinline__ void bring4(
    Walk w, const T* at, float* tile, int pitch, Inside inside) {
  constexpr int FLIGHT = COUNT < 4 ? COUNT : 4;
#pragma unroll 1
  for (int i = 0; i < COUNT; i += FLIGHT) {
    Pack<T, 4> held[FLIGHT];
#pragma unroll
    for (int j = 0; j < FLIGHT; ++j) {
      held[j] = Pack<T, 4>{};
      if (inside(w.c + j * w.dc, 4 * w.k)) held[j] = *reinterpret_cast<const Pack<T, 4>*>(at);
      at += w.step;
    }
#pragma unroll
    for (int j = 0; j < FLIGHT; ++j, w.c += w.dc) {
      float x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] = to_float(held[j].v[k]);
      store4(tile + w.c * pitch + spread<SWAP>(4 * w.k), x);
    }
  }
}

// A piece of a row, 0 outside the map: `channels` are left from the row's first on, `x0` is the
// first column, of which `skip` are not wanted (a multiple of 4).
template <int CHANNELS, int COLUMNS, int WORKERS, bool SWAP = false, typename T>
__device__ __forceinline__ void bring_row(
    const Row<T>& row, int channels, int x0, int width, float* tile, int pitch, int skip = 0) {
  const T* first = row.at + x0 * row.column;
  const auto inside = [=](int c, int k) {
    return c < channels && k >= skip && static_cast<unsigned>(x0 + k) < width;
  };
  const bool fours = row.column == 1 && row.channel % 4 == 0 && (x0 | width) % 4 == 0 &&
      reinterpret_cast<unsigned long long>(first) % (4 * sizeof(T)) == 0;
  if (fours) {
    Walk w = walk<CHANNELS, COLUMNS / 4, WORKERS>(false, row.channel, 4);
    bring4<CHANNELS * COLUMNS / 4 / WORKERS, SWAP>(
        w, first + w.c * row.channel + 4 * w.k, tile, pitch, inside);
  } else {
    Walk w = walk<CHANNELS, COLUMNS, WORKERS>(row.last, row.channel, row.column);
    bring<CHANNELS * COLUMNS / WORKERS, SWAP>(
        w, first + w.c * row.channel + w.k * row.column, tile, pitch, inside);
  }
}

// A piece of planes, and only where column `met` + k - plane is inside too.
template <int PLANES, int COLUMNS, int WORKERS, typename T>
__device__ __forceinline__ void bring_planes(
    const T* at, i64 plane, int planes, int x0, int met, int width, float* tile, int pitch) {
  Walk w = walk<PLANES, COLUMNS, WORKERS>(false, plane, 1);
  at += w.c * plane + w.k;
  bring<PLANES * COLUMNS / WORKERS, false>(w, at, tile, pitch, [=](int j, int k) {
    return j < planes && static_cast<unsigned>(x0 + k) < width &&
        static_cast<unsigned>(met + k - j) < width;
  });
}

// A block takes 32 * QUADS * SUBTILES columns and 16 * `depths` displacements of a row, a thread
// 4 * QUADS columns: more of them read less shared memory for each product. What threads are left
// over share the channels, and their sums are added up in a fixed order.
template <typename T, int SUBTILES, int QUADS>
__global__ void __launch_bounds__(THREADS, QUADS == 1 ? 3 : 2) correlation_forward(
    const T* left, i64 left_b, i64 left_c, i64 left_y, i64 left_x,
    const T* right, i64 right_b, i64 right_c, i64 right_y, i64 right_x,
    T* out, i64 batch_, i64 groups_, i64 channels_, i64 height_, i64 width_, i64 count_,
    i64 lines_, i64 shift_, i64 reversed, i64 depths_) {
  constexpr int OWN = 4 * QUADS, COLUMNS = LANES * OWN * SUBTILES, CHUNK = 1024 / COLUMNS;
  constexpr int PITCH = COLUMNS + OWN, WIDE = COLUMNS + REACH + OWN, SUMS = OWN * DEPTH;
  constexpr bool SWAP = QUADS > 1;
  constexpr int TILE = CHUNK * (PITCH + WIDE), FOLD = SUMS * THREADS / 2;
  __shared__ __align__(16) float memory[2 * TILE > FOLD ? 2 * TILE : FOLD];

  const int batch = batch_, groups = groups_, channels = channels_, height = height_;
  const int width = width_, count = count_, lines = lines_, shift = shift_, depths = depths_;
  const int span = DEPTH * depths, share = threadIdx.x / LANES;
  const int slices = THREADS / LANES / depths / SUBTILES, slice = share / depths / SUBTILES;
  const int depth = share % depths, sub = share / depths % SUBTILES;
  const int x = OWN * (LANES * sub + threadIdx.x % LANES), from = x + REACH - DEPTH * (depth + 1);
  const int across = (width + COLUMNS - 1) / COLUMNS, steps = (count + span - 1) / span;

  EACH_TILE(tile, row, pair, across * steps, height * lines, batch * groups) {
    const int x0 = tile % across * COLUMNS, j0 = tile / across * span;
    const int line = row % lines, y = row / lines, group = pair % groups, image = pair / groups;
    const int other = y + line - lines / 2, start = x0 + shift - j0;
    const bool meets = other >= 0 && other < height, whole = width % 4 == 0;
    const i64 c0 = static_cast<i64>(group) * channels;
    Row<T> lefts(left + image * left_b + c0 * left_c + y * left_y, left_c, left_x);
    Row<T> rights(right + image * right_b + c0 * right_c + other * right_y, right_c, right_x);

    float sum[DEPTH][OWN] = {};
    for (int c = 0; meets && c < channels + CHUNK; c += CHUNK) {  // one ahead of the sums
      float* coming = memory + c / CHUNK % 2 * TILE;
      if (c > 0) copy_wait();
      __syncthreads();
      if (c < channels) {
        float* window = coming + CHUNK * PITCH;
        const int left_over = channels - c;
        bring_row<CHUNK, COLUMNS, THREADS, SWAP>(lefts, left_over, x0, width, coming, PITCH);
        bring_row<CHUNK, COLUMNS, THREADS, SWAP>(
            rights, left_over, start, width, window + REACH, WIDE);
        bring_row<CHUNK, REACH, THREADS, SWAP>(
            rights, left_over, start - REACH, width, window, WIDE, REACH - span);
        lefts.at += CHUNK * left_c, rights.at += CHUNK * right_c;
      }
      const float *a = memory + (c / CHUNK + 1) % 2 * TILE, *b = a + CHUNK * PITCH;
      const int have = c > 0 && slice < slices ? least(CHUNK, channels - c + CHUNK) : 0;
#pragma unroll 1
      for (int i = slice; i < have; i += slices) {
        float l[OWN], r[DEPTH + OWN];
#pragma unroll
        for (int k = 0; k < OWN; k += 4) {
          load4(a + i * PITCH + spread<SWAP>(x + k), reinterpret_cast<float(&)[4]>(l[k]));
        }
#pragma unroll
        for (int k = 0; k < DEPTH + OWN; k += 4) {
          load4(b + i * WIDE + spread<SWAP>(from + k), reinterpret_cast<float(&)[4]>(r[k]));
        }
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
#pragma unroll
          for (int k = 0; k < OWN; ++k) sum[j][k] += l[k] * r[DEPTH + k - j];
        }
      }
    }

    const int members = LANES * depths * SUBTILES, own = threadIdx.x % members;
    for (int rows = slices; rows > 1;) {
      const int half = (rows + 1) / 2, writers = (rows - half) * members;
      __syncthreads();
      if (slice >= half && slice < rows) {
        const int to = (slice - half) * members + own;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) memory[i * writers + to] = sum[i / OWN][i % OWN];
      }
      __syncthreads();
      if (slice < rows - half) {
        const int to = slice * members + own;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sum[i / OWN][i % OWN] += memory[i * writers + to];
      }
      rows = half;
    }

    const int column = x0 + x, first = j0 + DEPTH * depth;
    if (slice == 0 && column < width) {
      const float scale = 1.f / channels;
      const i64 area = static_cast<i64>(height) * width;
      const i64 plane = (static_cast<i64>(pair) * lines + line) * count;
      T* at = out + (plane + (reversed ? count - 1 - first : first)) * area;
      at += static_cast<i64>(y) * width + column;
      const i64 next = reversed ? -area : area;
#pragma unroll
      for (int j = 0; j < DEPTH; ++j, at += next) {
        if (first + j >= count) continue;
#pragma unroll
        for (int q = 0; q < OWN; q += 4) {
          const int place = column + q;
          float value[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const bool inside = static_cast<unsigned>(place + k + shift - first - j) < width;
            value[k] = meets && inside ? sum[j][q + k] * scale : 0.f;
          }
          if (whole && place < width) {
            store4(at + q, value);
          } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              if (place + k < width) at[q + k] = number<T>(value[k]);
            }
          }
        }
      }
    }
    __syncthreads();
  }
}

// Both gradients are sums over j of a plane times a window of the other map's row: to the left
// g[j, x] right[x + shift - j]; to the right the same with j counted backwards and g read where the
// left map is. A block takes 32 * SUBTILES columns and 8 * BUNDLES channels of one of the two.
template <typename T, int SUBTILES, int BUNDLES, int STEP>
__global__ void __launch_bounds__(LANES* SUBTILES* BUNDLES, BUNDLES == 1 ? 12 : 3) correlation_backward(
    const T* gradient,
    const T* left, i64 left_b, i64 left_c, i64 left_y, i64 left_x,
    const T* right, i64 right_b, i64 right_c, i64 right_y, i64 right_x,
    T* to_left, i64 to_left_b, i64 to_left_c, i64 to_left_y, i64 to_left_x,
    T* to_right, i64 to_right_b, i64 to_right_c, i64 to_right_y, i64 to_right_x,
    i64 batch_, i64 groups_, i64 channels_, i64 height_, i64 width_, i64 count_, i64 lines_,
    i64 shift_, i64 reversed, i64 whole) {
  constexpr int COLUMNS = 32 * SUBTILES, CHUNK = RUN * BUNDLES;
  constexpr int PITCH = COLUMNS + 4, WIDE = COLUMNS + STEP + 4, WORKERS = LANES * SUBTILES * BUNDLES;
  constexpr int PART = COLUMNS < WORKERS ? COLUMNS : WORKERS;
  __shared__ __align__(16) float g[STEP * PITCH];
  __shared__ __align__(16) float f[CHUNK * WIDE];

  const int batch = batch_, groups = groups_, channels = channels_, height = height_;
  const int width = width_, count = count_, lines = lines_, shift = shift_;
  const int share = threadIdx.x / LANES, bundle = share / SUBTILES;
  const int x = 32 * (share % SUBTILES) + threadIdx.x % LANES * 4;
  const int across = (width + COLUMNS - 1) / COLUMNS, bands = (channels + CHUNK - 1) / CHUNK;
  const i64 area = static_cast<i64>(height) * width;

  // The two that meet the same gradient come one after the other.
  EACH_TILE(tile, y, pair, 2 * across * bands, height, batch * groups) {
    const bool is_right = tile % 2;
    const int x0 = tile / 2 % across * COLUMNS, band = tile / 2 / across * CHUNK;
    const int group = pair % groups, image = pair / groups;
    const int offset = is_right ? count - 1 - shift : shift, have = least(CHUNK, channels - band);
    const i64 c0 = static_cast<i64>(group) * channels + band;
    const T* source = is_right ? left + image * left_b + c0 * left_c
                               : right + image * right_b + c0 * right_c;
    const i64 source_y = is_right ? left_y : right_y;
    const i64 source_c = is_right ? left_c : right_c, source_x = is_right ? left_x : right_x;

    float sum[RUN][4] = {};
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {
      const int move = line - lines / 2, other = is_right ? y - move : y + move;
      if (other < 0 || other >= height) continue;
      const Row<T> row(source + other * source_y, source_c, source_x);
      const i64 plane = (static_cast<i64>(pair) * lines + line) * count;
      const bool backwards = is_right != (reversed != 0);
      const T* given = gradient + (plane + (backwards ? count - 1 : 0)) * area
          + static_cast<i64>(is_right ? other : y) * width + x0;
      const i64 next = backwards ? -area : area;
#pragma unroll 1
      for (int j0 = 0; j0 < count; j0 += STEP) {
        const int met = x0 + offset - j0;
        __syncthreads();
        // To the right g is read where the left map is.
        const T* at = given + j0 * next + (is_right ? offset - j0 : 0);
        bring_row<CHUNK, STEP, WORKERS>(row, have, met - STEP, width, f, WIDE);
#pragma unroll 1
        for (int i = 0; i < COLUMNS; i += PART) {
          bring_row<CHUNK, PART, WORKERS>(row, have, met + i, width, f + STEP + i, WIDE);
          bring_planes<STEP, PART, WORKERS>(
              at + i, next - is_right, count - j0, x0 + i, met + i, width, g + i, PITCH);
        }
        copy_wait();
        __syncthreads();

        const float* window = f + bundle * RUN * WIDE + x + STEP;
        const int planes = least(STEP, count - j0);
        float w[RUN][8];
#pragma unroll
        for (int c = 0; c < RUN; ++c) {
          load4(window + c * WIDE, reinterpret_cast<float(&)[4]>(w[c][4]));
        }
#pragma unroll 1
        for (int j = 0; j < planes; j += 4) {
          window -= 4;
#pragma unroll
          for (int c = 0; c < RUN; ++c) {
            load4(window + c * WIDE, reinterpret_cast<float(&)[4]>(w[c][0]));
          }
#pragma unroll
          for (int d = 0; d < 4; ++d) {
            float v[4];
            load4(g + (j + d) * PITCH + x, v);
#pragma unroll
            for (int c = 0; c < RUN; ++c) {
#pragma unroll
              for (int k = 0; k < 4; ++k) sum[c][k] += v[k] * w[c][4 + k - d];
            }
          }
#pragma unroll
          for (int c = 0; c < RUN; ++c) {
#pragma unroll
            for (int k = 0; k < 4; ++k) w[c][4 + k] = w[c][k];
          }
        }
      }
    }

    const float scale = 1.f / channels;
    T* to = is_right ? to_right + image * to_right_b + c0 * to_right_c + y * to_right_y
                     : to_left + image * to_left_b + c0 * to_left_c + y * to_left_y;
    const i64 to_c = is_right ? to_right_c : to_left_c, to_x = is_right ? to_right_x : to_left_x;
    const int column = x0 + x;
    if (column < width) {
      T* at = to + bundle * RUN * to_c + column * to_x;
#pragma unroll
      for (int c = 0; c < RUN; ++c, at += to_c) {
        if (bundle * RUN + c >= have) continue;
        float value[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) value[k] = sum[c][k] * scale;
        if (whole) {
          store4(at, value);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (column + k < width) at[k * to_x] = number<T>(value[k]);
          }
        }
      }
    }
  }
}

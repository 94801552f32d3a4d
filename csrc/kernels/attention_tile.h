// The two products of attention over a tile of 64 keys, rows x vectors of registers at a time. A sum runs over its
// dimensions or keys in their order whatever the tile's shape, so that the shape changes no bit.
#pragma once
#include "kv.h"

namespace octavo::OCTAVO_TIER {

constexpr int kGroups = kKeyTile / kLanes;

// A tile of keys: its groups, and what the passes over them fetch meanwhile.
template <KvType type> struct KeyTile {
  KvGroup<type> group[kGroups];
  int count;                  // keys that some row sees, from the first
  const char* soon[kGroups];  // needed after the scores,
  const char* then[kGroups];  // after the values: of each group as many numbers as it has in either
};

template <int bytes> inline void prefetch_bytes(const char* p) {
  for (int i = 0; i < bytes; i += 64) prefetch(p + i);
}

// Scores of R rows against V groups of keys. `ahead` of each group is fetched, `bytes` for every 16 numbers read.
template <KvType type, int bytes, int R, int V>
inline void score_pass(const KvGroup<type>* group, const char* const* ahead, const float* q, int n, float* s) {
  F acc[R][V];
  for (auto& row : acc)
    for (F& x : row) x = f_zero();
#pragma GCC unroll 1
  for (int i = 0; i < V; ++i) {
    const char* next = ahead[i];
#pragma GCC unroll 1
    for (int d = i * n / V; d < (i + 1) * n / V; ++d, next += V * bytes) {
      prefetch_bytes<V * bytes>(next);
      F k[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) k[v] = group[v].key(d);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F x = f_set1(q[r * n + d]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = f_fma(k[v], x, acc[r][v]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) f_store(s + r * kKeyTile + v * kLanes, acc[r][v]);
}

// o[r][d0 + ..] += weights p of R rows times V vectors of values; fetches as `score_pass` does.
template <KvType type, int bytes, int R, int V>
inline void value_pass(const KeyTile<type>& tile, const char* const* ahead, int d0, const float* p, int n, float* o) {
  F acc[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) acc[r][v] = f_load(o + r * n + d0 + v * kLanes);
#pragma GCC unroll 1
  for (int g = 0; g * kLanes < tile.count; ++g) {
    const KvGroup<type> group = tile.group[g];
    const char* next = ahead[g] + static_cast<std::ptrdiff_t>(d0) * bytes;
    const float* weight = p + g * kLanes;
    const int keys = min_int(kLanes, tile.count - g * kLanes);
#pragma GCC unroll 1
    for (int j = 0; j < keys; ++j, next += V * bytes) {
      prefetch_bytes<V * bytes>(next);
      F x[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) x[v] = group.value(j, d0 + v * kLanes, n);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F w = f_set1(weight[r * kKeyTile + j]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = f_fma(x[v], w, acc[r][v]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) f_store(o + r * n + d0 + v * kLanes, acc[r][v]);
}

// fn(rows, vectors as constants) for a number of rows up to kAttendRows and of vectors 1, 2 or 4, up to kAttendVectors.
template <int R, int V, class Fn> inline void with_shape(int rows, int vectors, const Fn& fn) {
  if constexpr (V > 1) {
    if (vectors < V) return with_shape<R, V / 2>(rows, vectors, fn);
  }
  if constexpr (R > 1) {
    if (rows < R) return with_shape<R - 1, V>(rows, vectors, fn);
  }
  fn(std::integral_constant<int, R>(), std::integral_constant<int, V>());
}

inline int vectors_of(int left) {
  int v = kAttendVectors;
  while (v > left) v /= 2;
  return v;
}

// fn(first row, rows) for blocks of up to kAttendRows rows of [begin, end), as even as they come.
template <class Fn> inline void each_block(int begin, int end, const Fn& fn) {
  for (int left = (end - begin + kAttendRows - 1) / kAttendRows; left > 0; --left) {
    const int rows = (end - begin + left - 1) / left;
    fn(begin, rows);
    begin += rows;
  }
}

// Scores of rows [begin, end) of q [rows, n] against the tile's keys, rounded up to groups: s [rows, 64].
template <KvType type, int bytes>
void tile_scores(const KeyTile<type>& tile, int begin, int end, const float* q, int n, float* s) {
  const int groups = (tile.count + kLanes - 1) / kLanes;
  const char* here[kGroups];  // the first block has fetched what comes
  for (int g = 0; g < kGroups; ++g) here[g] = reinterpret_cast<const char*>(tile.group[g].k);
  each_block(begin, end, [&](int r, int rows) {
    const char* const* ahead = r == begin ? tile.soon : here;
    for (int g = 0, v; g < groups; g += v) {
      v = vectors_of(groups - g);
      with_shape<kAttendRows, kAttendVectors>(rows, v, [&](auto R, auto V) {
        score_pass<type, bytes, R(), V()>(tile.group + g, ahead + g, q + static_cast<std::ptrdiff_t>(r) * n, n,
                                          s + r * kKeyTile + g * kLanes);
      });
    }
  });
}

// o [rows, n] += p [rows, 64] times the tile's values, for rows [begin, end).
template <KvType type, int bytes>
void tile_values(const KeyTile<type>& tile, int begin, int end, const float* p, int n, float* o) {
  const char* here[kGroups];
  for (int g = 0; g < kGroups; ++g) here[g] = reinterpret_cast<const char*>(tile.group[g].v);
  each_block(begin, end, [&](int r, int rows) {
    const char* const* ahead = r == begin ? tile.then : here;
    for (int d = 0, v; d < n; d += v * kLanes) {
      v = vectors_of((n - d) / kLanes);
      with_shape<kAttendRows, kAttendVectors>(rows, v, [&](auto R, auto V) {
        value_pass<type, bytes, R(), V()>(tile, ahead, d, p + r * kKeyTile, n, o + static_cast<std::ptrdiff_t>(r) * n);
      });
    }
  });
}

}  // namespace octavo::OCTAVO_TIER

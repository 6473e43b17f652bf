// Running sums, products and extremes, and sorted integers, on the CPU, as handlers of XLA's foreign function interface.

namespace {

// ---- scans --------------------------------------------------------------------------------------------------------

struct Sum {
  template <typename T> static constexpr T unit() { return std::is_floating_point_v<T> ? T(-0.0) : T(0); }
  template <typename T> static T join(T total, T x) { return total + x; }
  template <typename T> using Total = std::conditional_t<std::is_same_v<T, float>, double, T>;
};

struct Product {
  template <typename T> static constexpr T unit() { return T(1); }
  template <typename T> static T join(T total, T x) { return total * x; }
  template <typename T> using Total = std::conditional_t<std::is_same_v<T, float>, double, T>;
};

template <typename T>
constexpr T greatest() {
  return std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

struct Maximum {  // of equal values the last, and NaN from the first one on
  template <typename T> static constexpr T unit() {
    return std::is_floating_point_v<T> ? -greatest<T>() : std::numeric_limits<T>::lowest();
  }
  template <typename T> static bool takes(T total, T x) { return x >= total || x != x; }
  template <typename T> static T join(T total, T x) { return takes<T>(total, x) ? x : total; }
  template <typename T> using Total = T;
};

struct Minimum {
  template <typename T> static constexpr T unit() { return greatest<T>(); }
  template <typename T> static bool takes(T total, T x) { return x <= total || x != x; }
  template <typename T> static T join(T total, T x) { return takes<T>(total, x) ? x : total; }
  template <typename T> using Total = T;
};

template <typename I>
I* offset(I* positions, int64_t by) {
  if constexpr (std::is_void_v<I>) return nullptr;
  else return positions + by;
}

constexpr int64_t kLanes = 8;    // rows whose totals depend on each other's in no way, so that the processor overlaps them
constexpr int64_t kColumns = 256;

// Totals of N sequences, and the positions at which extremes were taken (`I`: none where it is void).
template <typename Op, typename T, typename I, int64_t N>
struct Scan {
  using A = typename Op::template Total<T>;
  static constexpr bool kHasPositions = !std::is_void_v<I>;
  A total[N];
  int32_t at[kHasPositions ? N : 1];

  explicit Scan(int64_t used) {
    for (int64_t j = 0; j < used; ++j) total[j] = Op::template unit<A>();
    if constexpr (kHasPositions)
      for (int64_t j = 0; j < used; ++j) at[j] = 0;
  }

  // Join `used` elements, which are `step` apart.
  void next(const T* __restrict x, T* __restrict out, I* __restrict positions, int64_t i, int64_t used, int64_t step) {
    for (int64_t j = 0; j < used; ++j) {
      const A value = static_cast<A>(x[j * step]);
      if constexpr (kHasPositions) {
        const bool takes = Op::template takes<A>(total[j], value);
        total[j] = takes ? value : total[j];
        at[j] = takes ? static_cast<int32_t>(i) : at[j];
        positions[j * step] = at[j];
      } else {
        total[j] = Op::template join<A>(total[j], value);
      }
      out[j * step] = static_cast<T>(total[j]);
    }
  }
};

// Scan N rows of contiguous elements.
template <typename Op, typename T, typename I, int64_t N>
void scan_rows(const T* x, T* out, I* positions, int64_t n) {
  Scan<Op, T, I, N> scan(N);
  for (int64_t i = 0; i < n; ++i) scan.next(x + i, out + i, offset(positions, i), i, N, n);
}

// Scan columns of a matrix with rows of `inner` elements, all of them at a time.
template <typename Op, typename T, typename I>
void scan_columns(const T* x, T* out, I* positions, int64_t n, int64_t inner, int64_t columns) {
  Scan<Op, T, I, kColumns> scan(columns);
  for (int64_t i = 0; i < n; ++i)
    scan.next(x + i * inner, out + i * inner, offset(positions, i * inner), i, columns, 1);
}

// x, out and positions: (outer, n, inner), scanned along n, which is less than 2^31 where there are positions.
template <typename Op, typename T, typename I>
void scan(XLA_FFI_CallFrame* frame) {
  auto* in = static_cast<XLA_FFI_Buffer*>(frame->args.args[0]);
  const T* x = static_cast<const T*>(in->data);
  T* out = static_cast<T*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0])->data);
  I* positions = nullptr;
  if constexpr (!std::is_void_v<I>) positions = static_cast<I*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[1])->data);
  const int64_t outer = in->dims[0], n = in->dims[1], inner = in->dims[2];
  if (inner == 1) {
    for_blocks(frame, (outer + kLanes - 1) / kLanes, [=](int64_t block) {
      int64_t r = block * kLanes;
      const int64_t end = std::min(outer, r + kLanes);
      for (; r + kLanes <= end; r += kLanes)
        scan_rows<Op, T, I, kLanes>(x + r * n, out + r * n, offset(positions, r * n), n);
      for (; r < end; ++r) scan_rows<Op, T, I, 1>(x + r * n, out + r * n, offset(positions, r * n), n);
      return true;
    });
    return;
  }
  const int64_t tiles = (inner + kColumns - 1) / kColumns;
  for_blocks(frame, outer * tiles, [=](int64_t block) {
    const int64_t j = block % tiles * kColumns, at = block / tiles * n * inner + j;
    scan_columns<Op, T, I>(x + at, out + at, offset(positions, at), n, inner, std::min(kColumns, inner - j));
    return true;
  });
}

template <typename Op, typename I>
XLA_FFI_Error* scan_handler(XLA_FFI_CallFrame* frame) {
  if (is_question(frame)) return nullptr;
  switch (static_cast<XLA_FFI_Buffer*>(frame->args.args[0])->dtype) {
    case XLA_FFI_DataType_F32: scan<Op, float, I>(frame); break;
    case XLA_FFI_DataType_F64: scan<Op, double, I>(frame); break;
    case XLA_FFI_DataType_S32: scan<Op, int32_t, I>(frame); break;
    case XLA_FFI_DataType_S64: scan<Op, int64_t, I>(frame); break;
    default: return error(frame, "a scan has no kernel for this dtype");
  }
  return nullptr;
}

// ---- sorted integers ----------------------------------------------------------------------------------------------

constexpr int kDigit = 8;      // bits that a pass sorts by: 256 places are written at a time, which caches hold
constexpr int kMostBits = 40;  // of which keys differ, where all are sorted by
constexpr int kPasses = 8;

// Rows of n keys. `sign`: the bit that is reversed where keys are compared.
struct Keys {
  const uint64_t* x;
  int64_t n;
  uint64_t sign;

  // Whether the lowest `bits` ascend already, as those of keys that contain their positions do.
  bool ascend(int bits) const {
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    for (int64_t i = 1; i < n; ++i)
      if ((x[i] & mask) < (x[i - 1] & mask)) return false;
    return true;
  }

  // Sort by the digits from the bit `low` on, so that equal ones keep their order.
  void by_digits(uint64_t* out, uint64_t* scratch, int low, int passes) const {
    constexpr uint64_t kMask = (1 << kDigit) - 1;
    int64_t starts[kPasses][1 << kDigit] = {};
    for (int64_t i = 0; i < n; ++i)
      for (int p = 0; p < passes; ++p) ++starts[p][((x[i] ^ sign) >> (low + p * kDigit)) & kMask];
    const uint64_t* from = x;
    for (int p = 0; p < passes; ++p) {
      int64_t before = 0;
      for (auto& start : starts[p]) {
        const int64_t count = start;
        start = before;
        before += count;
      }
      uint64_t* to = (passes - p) % 2 ? out : scratch;
      for (int64_t i = 0; i < n; ++i) to[starts[p][((from[i] ^ sign) >> (low + p * kDigit)) & kMask]++] = from[i];
      from = to;
    }
  }

  // Sort keys that are almost in order; false where they are not, and then they are in some other order.
  bool insertion_sort(uint64_t* keys) const {
    int64_t moves = 4 * n;
    for (int64_t i = 1; i < n; ++i) {
      const uint64_t key = keys[i];
      int64_t at = i;
      for (; at > 0 && (keys[at - 1] ^ sign) > (key ^ sign); --at, --moves) keys[at] = keys[at - 1];
      keys[at] = key;
      if (moves < 0) return false;
    }
    return true;
  }

  // Of many bits, the highest are sorted by: so many that few keys, if they are random, are equal in these, and then
  // the order is almost that of all.
  void sort(uint64_t* out) const {
    uint64_t differ = 0;
    for (int64_t i = 1; i < n; ++i) differ |= x[i] ^ x[0];
    if (differ == 0) {
      std::copy(x, x + n, out);
      return;
    }
    const int high = 64 - __builtin_clzll(differ), positions = 64 - __builtin_clzll(n - 1);
    int low = __builtin_ctzll(differ);
    for (const int bits : {32, positions})
      if (low < bits && bits < high && ascend(bits)) {
        low = bits;
        break;
      }
    const bool all = high - low <= kMostBits;
    const int passes = ((all ? high - low : positions + 4) + kDigit - 1) / kDigit;
    if (!all) low = std::max(0, high - passes * kDigit);
    std::unique_ptr<uint64_t[]> scratch(new uint64_t[n]);
    by_digits(out, scratch.get(), low, passes);
    if (!all && !insertion_sort(out))
      std::sort(out, out + n, [s = sign](uint64_t a, uint64_t b) { return (a ^ s) < (b ^ s); });
  }
};

// x and out: (rows, n) of 64-bit integers.
XLA_FFI_Error* sort_handler(XLA_FFI_CallFrame* frame) {
  if (is_question(frame)) return nullptr;
  auto* in = static_cast<XLA_FFI_Buffer*>(frame->args.args[0]);
  if (in->dtype != XLA_FFI_DataType_S64 && in->dtype != XLA_FFI_DataType_U64)
    return error(frame, "sorted integers have 64 bits");
  const uint64_t sign = in->dtype == XLA_FFI_DataType_S64 ? uint64_t(1) << 63 : 0;
  auto* x = static_cast<const uint64_t*>(in->data);
  auto* out = static_cast<uint64_t*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0])->data);
  const int64_t n = in->dims[1];
  for_blocks(frame, in->dims[0], [=](int64_t row) {
    Keys{x + row * n, n, sign}.sort(out + row * n);
    return true;
  });
  return nullptr;
}

}  // namespace

extern "C" {
XLA_FFI_Error* tensorgraft_cumsum(XLA_FFI_CallFrame* frame) { return scan_handler<Sum, void>(frame); }
XLA_FFI_Error* tensorgraft_cumprod(XLA_FFI_CallFrame* frame) { return scan_handler<Product, void>(frame); }
XLA_FFI_Error* tensorgraft_cummax(XLA_FFI_CallFrame* frame) { return scan_handler<Maximum, void>(frame); }
XLA_FFI_Error* tensorgraft_cummin(XLA_FFI_CallFrame* frame) { return scan_handler<Minimum, void>(frame); }
XLA_FFI_Error* tensorgraft_cummax_positions(XLA_FFI_CallFrame* frame) { return scan_handler<Maximum, int64_t>(frame); }
XLA_FFI_Error* tensorgraft_cummin_positions(XLA_FFI_CallFrame* frame) { return scan_handler<Minimum, int64_t>(frame); }
XLA_FFI_Error* tensorgraft_sort(XLA_FFI_CallFrame* frame) { return sort_handler(frame); }
}

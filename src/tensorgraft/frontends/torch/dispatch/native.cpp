// Native kernels of the device: what `ColdOperator.direct` (cold.py) does, without a call of Python.
//
// A kernel makes CPU tensors over the memory of its arguments' storages, redispatches the call to the CPU, and makes
// tensors on the device from the results. A call that it is not to compute goes to the kernel in Python, in front of
// which it stands: nothing has been written then. `native.py` registers it.
#include <Python.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

struct Held {  // a reference to a Python object
  PyObject* p;
  explicit Held(PyObject* p = nullptr) : p(p) {}
  Held(Held&& other) noexcept : p(other.p) { other.p = nullptr; }
  Held(const Held&) = delete;
  ~Held() { Py_XDECREF(p); }
  operator PyObject*() const { return p; }
};

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

enum Kind : int {
  MAKES,  // new tensors
  WRITES,  // the first argument
  WRITES_LIST,  // the first argument, one tensor after the other
  COPIES,  // into the first argument, from any device
  CREATES,  // a tensor on the device that an argument names
  EMPTIES,  // a tensor of zeros on the device that an argument names, if any
  MOVES,  // a tensor to the device that an argument names, if any
  READS,  // values of tensors on the device
};

PyObject *now, *cold_class, *tiered, *lends, *memory, *results, *index_of, *backend_of;
PyObject *s_cell, *s_cold, *s_backend, *s_capture;
std::unordered_map<PyObject*, int> indices;  // of the devices of backends

PyObject* call(PyObject* fn, PyObject* a = nullptr, PyObject* b = nullptr, PyObject* c = nullptr) {
  PyObject* args[] = {a, b, c};
  return PyObject_Vectorcall(fn, args, (a != nullptr) + (b != nullptr) + (c != nullptr), nullptr);
}

// Returns true where no mode, transform or trace of PyTorch's is to be told of the operators that a kernel calls.
bool is_plain() {
  const auto& keys = c10::impl::tls_local_dispatch_key_set();
  return !c10::impl::TorchDispatchModeTLS::any_modes_set() && !at::impl::torch_function_mode_enabled() &&
      !at::tracer::impl::is_dispatch_enabled() &&
      !keys.included_.has(DispatchKey::FuncTorchDynamicLayerFrontMode) &&
      !keys.included_.has(DispatchKey::FuncTorchDynamicLayerBackMode);
}

// Returns true for the dtypes that every backend has. `results` (cold.py) sees to the others.
bool is_common(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
      return true;
    default:
      return false;
  }
}

// Returns false for tensors that more is to be known of than their memory: lazy conjugates, tensors of zeros without
// memory, sparse ones, subclasses with rules of their own.
bool is_usual(const at::Tensor& t) {
  const auto rest = t.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView - c10::autocast_dispatch_keyset;
  return rest == DispatchKeySet(DispatchKey::CPU) || rest == DispatchKeySet(DispatchKey::PrivateUse1);
}

// The arguments of a call, and its results.
struct Call {
  const Kind kind;
  PyObject* backend = nullptr;  // borrowed: a storage of the arguments holds it, or the device
  bool stays = false;  // the result is the CPU's
  bool is_named = false;  // the device is

  // Returns true if `other` is the backend of all arguments so far, and lends its memory.
  bool is_of(PyObject* other) {
    if (backend != nullptr) return other == backend;
    const Held lent(call(lends, other));
    backend = other;
    return lent.p == Py_True;
  }

  // Sets `out` to a CPU tensor over the memory of a tensor. Returns false where Python is to see to the call.
  bool lower(const at::Tensor& t, at::Tensor& out, bool written = false) {
    if (!t.defined()) return true;
    auto* impl = t.unsafeGetTensorImpl();
    if (impl->has_symbolic_sizes_strides() || !is_usual(t)) return false;
    if (t.is_inference() && t.requires_grad()) return false;  // autograd is told of a copy of it
    if (written && t.is_inference() && !c10::InferenceMode::is_enabled()) return false;  // an error
    if (t.is_cpu()) {
      out = t;
      return !written && kind != READS && (t.dim() == 0 || kind == COPIES || kind == MOVES);
    }
    if (!t.is_privateuseone() || !impl->has_storage()) return false;
    Held storage(THPStorage_Wrap(t.storage()));
    if (!storage) return false;
    Held cell(PyObject_GetAttr(storage, s_cell));
    if (!cell) return false;
    const bool is_cold = reinterpret_cast<PyObject*>(Py_TYPE(cell.p)) == cold_class;
    if (written && !is_cold) return false;
    Held own(PyObject_GetAttr(cell, s_backend));
    if (!own || !is_of(own)) return false;
    Held cold(is_cold ? PyObject_GetAttr(cell, s_cold) : call(memory, cell));
    if (!cold || !THPVariable_Check(cold)) return false;
    const at::Tensor& base = THPVariable_Unpack(cold);
    if ((written && base.is_inference()) || !is_usual(base)) return false;
    const auto offset = t.storage_offset();
    // one of a list gets a version of its own, which says whether it has been written
    const bool is_counted = written && kind == WRITES_LIST;
    if (!is_counted && base.scalar_type() == t.scalar_type() && offset == base.storage_offset() &&
        base.sizes() == t.sizes() && base.strides() == t.strides()) {
      out = base;
      return true;
    }
    if (at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize(), offset) > base.storage().nbytes()) {
      return false;
    }
    out = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(base.storage()), DispatchKeySet(DispatchKey::CPU), t.dtype());
    out.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), offset);
    return true;
  }

  // Adds an argument for the CPU. Returns false where Python is to see to the call.
  bool lower(const c10::Argument& argument, const IValue& a, Stack& lowered, bool written) {
    if (a.isTensor()) {
      at::Tensor out;
      if (!lower(a.toTensor(), out, written)) return false;
      lowered.emplace_back(std::move(out));
      return true;
    }
    if (a.isTensorList()) {
      c10::List<at::Tensor> out;
      const auto in = a.toTensorList();
      out.reserve(in.size());
      for (const at::Tensor& t : in) {
        at::Tensor x;
        if (!lower(t, x, written)) return false;
        out.push_back(std::move(x));
      }
      lowered.emplace_back(std::move(out));
      return true;
    }
    if (written) return false;
    if (a.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const std::optional<at::Tensor>& t : a.toOptionalTensorList()) {
        at::Tensor x;
        if (t.has_value() && !lower(*t, x)) return false;
        out.push_back(t.has_value() ? std::optional<at::Tensor>(std::move(x)) : std::nullopt);
      }
      lowered.emplace_back(std::move(out));
      return true;
    }
    if (a.isDevice() && (kind == CREATES || kind == EMPTIES || kind == MOVES)) {
      const c10::Device device = a.toDevice();
      lowered.emplace_back(c10::Device(c10::kCPU));
      stays = device.is_cpu() && kind == MOVES && backend != nullptr;
      if (stays) return true;
      if (device.type() != c10::kPrivateUse1) return false;
      const Held at(PyLong_FromLong(device.index()));
      is_named = true;
      const Held owner(call(backend_of, at, kind == EMPTIES ? Py_True : Py_False));
      return owner && is_of(owner);
    }
    if (a.isBool() && a.toBool() && argument.name() == "pin_memory") return false;
    if (a.isInt() && argument.name() == "layout" && static_cast<c10::Layout>(a.toInt()) != c10::kStrided) return false;
    if (a.isNone() || a.isInt() || a.isDouble() || a.isBool() || a.isString() || a.isIntList() || a.isBoolList() ||
        a.isDoubleList() || a.isComplexDouble()) {
      lowered.push_back(a);
      return true;
    }
    if (a.isList()) {  // of numbers
      for (const IValue& x : a.toListRef()) {
        if (!(x.isInt() || x.isDouble() || x.isBool() || x.isComplexDouble())) return false;
      }
      lowered.push_back(a);
      return true;
    }
    return false;
  }

  // Returns the index of the backend's device; -1 with a Python error.
  int index() {
    const auto found = indices.find(backend);
    if (found != indices.end()) return found->second;
    Held index(call(index_of, backend));
    if (!index) return -1;
    Py_INCREF(backend);
    return indices[backend] = static_cast<int>(PyLong_AsLong(index));
  }

  // Returns false where a result without values would be a constant of a program that is being traced.
  bool may_be_empty() {
    if (kind != EMPTIES || is_named) return true;
    const Held at(PyLong_FromLong(index()));
    const Held owner(call(backend_of, at, Py_True));
    return owner.p == backend;
  }

  // Sets `tensor` to a tensor on the device with the memory of a result. Returns false with a Python error.
  bool raise(const at::Tensor& out, const Stack& lowered, at::Tensor& tensor) {
    Held cold(THPVariable_Wrap(out));
    if (!cold) return false;
    if (!is_usual(out)) return unusual(cold, lowered, tensor);
    const auto& storage = out.storage();
    const bool is_plain_memory = out.numel() && out.storage_offset() == 0 &&
        is_common(out.scalar_type()) && storage.nbytes() == static_cast<size_t>(out.numel()) * out.itemsize() &&
        storage.use_count() == 1 && out.is_non_overlapping_and_dense();
    if (kind == EMPTIES) {
      if (!is_plain_memory) return false;
      const auto& context = at::globalContext();
      if (!(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
        std::memset(storage.mutable_data(), 0, storage.nbytes());
      }
    }
    if (!is_plain_memory) return unusual(cold, lowered, tensor);
    const int device = index();
    if (device < 0) return false;
    auto memory = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(),
        storage.nbytes(),
        at::DataPtr(nullptr, c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device))),
        nullptr,
        false);
    tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(memory)), DispatchKeySet(DispatchKey::PrivateUse1), out.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes(), out.strides());
    Held object(THPStorage_Wrap(tensor.storage()));
    Held cell(call(cold_class, Py_None, backend, cold));
    return object && cell && PyObject_SetAttr(object, s_cell, cell) == 0;
  }

  bool unusual(PyObject* cold, const Stack& lowered, at::Tensor& tensor) {
    Held operands(PyList_New(0));
    const auto add = [&](const at::Tensor& t) {
      Held object(THPVariable_Wrap(t));
      return object && PyList_Append(operands, object) == 0;
    };
    for (const IValue& a : lowered) {
      if (a.isTensor() && a.toTensor().defined() && !add(a.toTensor())) return false;
      if (a.isTensorList()) {
        for (const at::Tensor& t : a.toTensorList()) {
          if (!add(t)) return false;
        }
      }
    }
    Held made(call(results, cold, backend, operands));
    if (!made || !THPVariable_Check(made)) return false;
    tensor = THPVariable_Unpack(made);
    return true;
  }
};

struct Written {  // an error of the CPU's kernel, which may have written a part
  std::exception_ptr error;
};

// Increments the versions of the tensors of a list that have been written: all, or those before one that was refused.
void count_writes(const IValue& targets, const IValue& lowered, bool all) {
  const auto written = lowered.toTensorVector();
  size_t i = 0;
  for (const at::Tensor& t : targets.toTensorVector()) {
    const at::Tensor& low = written[i++];
    if (!t.is_inference() && (all || low.is_inference() || low._version())) t.unsafeGetTensorImpl()->bump_version();
  }
}

struct Kernel : c10::OperatorKernel {
  Kernel(c10::SafeKernelFunction python, PyObject* calls, Kind kind, std::shared_ptr<std::atomic<int64_t>> count)
      : python(std::move(python)), calls(calls), kind(kind), count(std::move(count)) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    // an operator with plans is left to Python; the size is one word, which can be read without the lock
    if (!(PyDict_GET_SIZE(calls) == 0 && is_plain() && computes(op, stack))) python.callBoxed(op, keys, stack);
  }

  bool computes(const c10::OperatorHandle& op, Stack* stack) {
    Gil gil;
    bool done = false;
    try {
      done = attempt(op, stack);
    } catch (const Written& written) {
      std::rethrow_exception(written.error);
    } catch (const std::exception&) {
    }
    if (done || !PyErr_Occurred()) return done;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {  // an interrupt
      python_error error;
      error.persist();
      throw error;
    }
    PyErr_Clear();
    return false;
  }

  bool attempt(const c10::OperatorHandle& op, Stack* stack) {
    {
      Held capture(PyObject_GetAttr(now, s_capture));
      if (capture.p != Py_None) return false;
      Held cold(call(tiered));
      if (cold.p != Py_True) return false;
    }
    const size_t n = op.schema().arguments().size();
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(n);
    Stack lowered, operands;
    lowered.reserve(n);
    const bool writes = kind == WRITES || kind == WRITES_LIST || kind == COPIES;
    Call of{kind};
    for (size_t i = 0; i < n; ++i) {
      if (!of.lower(op.schema().arguments()[i], first[static_cast<std::ptrdiff_t>(i)], lowered, writes && i == 0)) {
        return false;
      }
    }
    if (of.backend == nullptr || !of.may_be_empty()) return false;
    operands = lowered;
    {
      PyThreadState* const state = PyEval_SaveThread();
      std::exception_ptr error;
      bool is_missing = false;
      try {
        const auto& keys = c10::impl::tls_local_dispatch_key_set();
        auto excluded = keys.excluded_ | c10::autocast_dispatch_keyset;
        excluded = excluded | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
        if (kind == WRITES_LIST) excluded = excluded.remove(DispatchKey::ADInplaceOrView);  // which counts versions
        const c10::impl::ForceDispatchKeyGuard below(keys.included_, excluded);
        op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &lowered);
      } catch (const c10::NotImplementedError&) {
        error = std::current_exception();
        is_missing = true;
      } catch (...) {
        error = std::current_exception();
      }
      PyEval_RestoreThread(state);
      if (kind == WRITES_LIST) count_writes(*first, operands[0], !error);
      if (error && writes && !is_missing) throw Written{error};
      if (error) return false;  // the kernel in Python raises it
    }
    ++*count;
    if (writes) {
      IValue self = *first;
      stack->erase(first, stack->end());
      if (!op.schema().returns().empty()) stack->push_back(std::move(self));
      return true;
    }
    for (IValue& out : lowered) {
      if (of.stays) continue;
      if (out.isTensor() && out.toTensor().defined()) {
        at::Tensor raised;
        const at::Tensor cold = std::move(out).toTensor();
        if (!of.raise(cold, operands, raised)) return false;
        out = std::move(raised);
      } else if (out.isTensorList()) {
        c10::List<at::Tensor> all;
        for (const at::Tensor& cold : out.toTensorVector()) {
          at::Tensor raised;
          if (!of.raise(cold, operands, raised)) return false;
          all.push_back(std::move(raised));
        }
        out = std::move(all);
      }
    }
    stack->erase(first, stack->end());
    for (IValue& out : lowered) stack->push_back(std::move(out));
    return true;
  }

  c10::SafeKernelFunction python;
  PyObject* calls;
  Kind kind;
  std::shared_ptr<std::atomic<int64_t>> count;
};

// The CPU's kernel of an operator that makes a view: it changes sizes, strides and offset alone, on any device.
struct View : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
};

struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::vector<std::shared_ptr<std::atomic<int64_t>>> counts;

// Registers a kernel in place of the one in Python. Sets a Python error where PyTorch refuses it.
void put(const char* name, const char* overload, torch::CppFunction&& kernel) {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static Quiet quiet;  // PyTorch warns of the replacement
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  const std::string full = *overload ? std::string(name) + "." + overload : name;
  library->impl(full.c_str(), std::move(kernel));
}

template <class F>
int64_t with_errors(F&& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return -1;
  }
}

}  // namespace

extern "C" {

// Objects of Python, as the variables above are listed.
void tg_setup(PyObject* given) {
  PyObject** const all[] = {&now, &cold_class, &tiered, &lends, &memory, &results, &index_of, &backend_of};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
    *all[i] = Py_NewRef(PyTuple_GET_ITEM(given, i));
  }
  s_cell = PyUnicode_InternFromString("cell");
  s_cold = PyUnicode_InternFromString("cold");
  s_backend = PyUnicode_InternFromString("backend");
  s_capture = PyUnicode_InternFromString("capture");
}

// Registers a kernel in front of the one in Python, and returns the number for `tg_count`.
int64_t tg_kernel(const char* name, const char* overload, PyObject* calls, int kind) {
  return with_errors([&] {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + name).c_str(), overload);
    counts.push_back(std::make_shared<std::atomic<int64_t>>(0));
    auto python = op.getComputedKernelForDispatchKey(DispatchKey::PrivateUse1);
    auto kernel =
        std::make_unique<Kernel>(std::move(python), Py_NewRef(calls), static_cast<Kind>(kind), counts.back());
    put(name, overload, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    return static_cast<int64_t>(counts.size()) - 1;
  });
}

// Registers the CPU's kernel, which changes sizes, strides and offset alone.
int64_t tg_view(const char* name, const char* overload) {
  return with_errors([&] {
    put(name, overload, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<View>()));
    return int64_t{0};
  });
}

int64_t tg_count(int64_t i) { return counts[static_cast<size_t>(i)]->load(); }

}

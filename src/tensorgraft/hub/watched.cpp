// Words of memory that Python changes whenever objects of certain kinds are modified: the versions of dictionaries
// (PEP 509) and of classes, and the references of closure cells and functions.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000 || defined(Py_GIL_DISABLED)
#error "dictionaries have no versions"
#endif

#include <cstdint>
#include <vector>

namespace {

constexpr char kName[] = "tensorgraft.watched";

// Of the objects in a tuple. The values are those at the last comparison that has found a difference.
struct Words {
  std::vector<const uintptr_t*> words;
  std::vector<const unsigned int*> tags;  // of classes; 0: a modification leaves it as it is
  std::vector<uintptr_t> word_values;
  std::vector<unsigned int> tag_values;
  long long generation = 0;
  bool confirmed = false;
};

void add(Words& watched, const void* word) { watched.words.push_back(static_cast<const uintptr_t*>(word)); }

bool add_object(Words& watched, PyObject* object) {
  static_assert(sizeof(reinterpret_cast<PyDictObject*>(object)->ma_version_tag) == sizeof(uintptr_t));
  if (PyDict_Check(object)) {
    add(watched, &reinterpret_cast<PyDictObject*>(object)->ma_version_tag);
  } else if (PyCell_Check(object)) {
    add(watched, &reinterpret_cast<PyCellObject*>(object)->ob_ref);
  } else if (PyFunction_Check(object)) {
    PyFunctionObject* function = reinterpret_cast<PyFunctionObject*>(object);
    add(watched, &function->func_code);
    add(watched, &function->func_defaults);
    add(watched, &function->func_kwdefaults);
  } else if (PyType_Check(object)) {
    watched.tags.push_back(&reinterpret_cast<PyTypeObject*>(object)->tp_version_tag);
  } else if (PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == 1) {  // the class of what is in it
    add(watched, &PyTuple_GET_ITEM(object, 0)->ob_type);
  } else {
    return false;
  }
  return true;
}

Words* words_of(PyObject* self) {
  return static_cast<Words*>(PyCapsule_GetPointer(PyTuple_GET_ITEM(self, 0), kName));
}

// Returns None if nothing has changed since the values were confirmed, and a number to confirm the new ones with.
PyObject* changed(PyObject* self, PyObject*) {
  Words* watched = words_of(self);
  if (watched == nullptr) return nullptr;
  uintptr_t difference = !watched->confirmed;
  for (size_t k = 0; k < watched->words.size(); ++k) difference |= *watched->words[k] ^ watched->word_values[k];
  for (size_t k = 0; k < watched->tags.size(); ++k) difference |= *watched->tags[k] ^ watched->tag_values[k];
  if (difference == 0) Py_RETURN_NONE;
  watched->confirmed = false;
  for (size_t k = 0; k < watched->words.size(); ++k) watched->word_values[k] = *watched->words[k];
  for (size_t k = 0; k < watched->tags.size(); ++k) watched->tag_values[k] = *watched->tags[k];
  return PyLong_FromLongLong(++watched->generation);
}

// The conditions held for the values that `changed` has found.
PyObject* confirm(PyObject* self, PyObject* generation) {
  Words* watched = words_of(self);
  if (watched == nullptr) return nullptr;
  long long number = PyLong_AsLongLong(generation);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  bool valid = number == watched->generation;
  for (unsigned int tag : watched->tag_values) valid &= tag != 0;
  if (valid) watched->confirmed = true;
  Py_RETURN_NONE;
}

PyMethodDef changed_definition = {"changed", changed, METH_NOARGS, nullptr};
PyMethodDef confirm_definition = {"confirm", confirm, METH_O, nullptr};

void deallocate(PyObject* capsule) { delete static_cast<Words*>(PyCapsule_GetPointer(capsule, kName)); }

}  // namespace

// Returns the functions (changed, confirm) for a tuple of objects.
extern "C" PyObject* watch(PyObject* objects) {
  Words* watched = new Words;
  PyObject* capsule = PyCapsule_New(watched, kName, deallocate);
  if (capsule == nullptr) {
    delete watched;
    return nullptr;
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(objects); ++k) {
    if (!add_object(*watched, PyTuple_GET_ITEM(objects, k))) {
      Py_DECREF(capsule);
      return PyErr_Format(PyExc_TypeError, "%R cannot be watched", PyTuple_GET_ITEM(objects, k));
    }
  }
  watched->word_values.resize(watched->words.size());
  watched->tag_values.resize(watched->tags.size());
  PyObject* self = PyTuple_Pack(2, capsule, objects);  // has the references, and is visited by the garbage collector
  Py_DECREF(capsule);
  if (self == nullptr) return nullptr;
  PyObject* result = Py_BuildValue("(NN)", PyCFunction_New(&changed_definition, self),
                                   PyCFunction_New(&confirm_definition, self));
  Py_DECREF(self);
  return result;
}

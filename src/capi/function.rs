//! The methods of native classes, and the native functions of the module, as programs see them: like Python functions.
//!
//! CPython's own objects for C functions (`method_descriptor`, `builtin_function_or_method`) can be called, and that is
//! all. But programs also look at functions: `inspect.iscoroutinefunction`, `unittest.mock`, `functools.wraps`,
//! `weakref.WeakMethod`, `pickle`. A [`Function`] answers them as a Python function does:
//!
//! - Bound to an instance it is a `types.MethodType`.
//! - `inspect` takes any object for a function that has `__code__`, `__defaults__` and `__kwdefaults__`, as the
//!   functions of Cython have. They are those of a template: a Python function with the same parameters, which is made
//!   when one of the attributes is first read. The template of a function that returns a coroutine is an `async def`.
//!   (The mark of `inspect.markcoroutinefunction` needs Python 3.12, and `functools.wraps` copies it to the wrapper.)
//! - It is pickled by its name, and can be referred to weakly.
//!
//! A call costs what that of a C function does: the interpreter takes the class for one of methods
//! (`Py_TPFLAGS_METHOD_DESCRIPTOR`), so `object.name()` makes no bound method.

use std::ffi::{CStr, CString, c_int};
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::arguments::{Arguments, refused, reword};
use super::call::guard;
use super::collector::{Traverse, Visitor};
use super::error::{Raised, unless_raised};
use super::exceptions::Exception;
use super::fallible::{interned, string};
use super::imports::support;
use super::inspect::{clear_error, status};
use super::native::{self, Dealloc, Native, This, WeakList, native_class};
use super::object::{Borrowed, Ref, Slot};
use super::shared::{dict_item, never_count};

unsafe extern "C" {
    static mut PyMethod_Type: ffi::PyTypeObject;
    fn PyMethod_Function(method: *mut ffi::PyObject) -> *mut ffi::PyObject;
    fn PyMethod_Self(method: *mut ffi::PyObject) -> *mut ffi::PyObject;
}

/// The row of a method table.
#[derive(Clone, Copy)]
pub(super) struct Definition {
    pub(super) name: &'static CStr,
    pub(super) function: ffi::PyMethodDefPointer,
    pub(super) flags: c_int,
    pub(super) doc: &'static CStr,
    /// Does it return a coroutine?
    pub(super) is_coroutine: bool,
}

impl Definition {
    /// The address of the C function. No other method of its class has it.
    pub(super) fn address(&self) -> usize {
        // SAFETY: every member of the union is a pointer to a function.
        unsafe { self.function.PyCFunction as usize }
    }
}

/// A native function or method.
#[repr(C)]
pub(crate) struct Function {
    pub(super) vectorcall: ffi::vectorcallfunc,
    /// The class of the receiver, and the C function; null for a function around the callable in `inner`.
    class: *mut ffi::PyTypeObject,
    function: ffi::PyMethodDefPointer,
    /// The row of the table, for a function of a table.
    definition: Option<Definition>,
    inner: Slot,
    pub(super) about: About,
    /// The Python function that has the same parameters, once it is made.
    template: Slot,
    pub(super) dict: Slot,
    pub(super) weaklist: WeakList,
}

/// The attributes of a function that programs can read.
pub(super) struct About {
    pub(super) name: Ref,
    pub(super) qualified_name: Ref,
    pub(super) module: Ref,
    pub(super) text: Ref,
    /// The parameters, as they stand between the parentheses.
    parameters: String,
    is_coroutine: bool,
}

// `function_class` builds the class. Only this module makes instances.
native_class!(unsafe Function);

impl Traverse for Function {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots([&self.inner, &self.template, &self.dict]);
    }

    /// A call may still come, so it keeps `inner`, which cannot be part of a cycle.
    fn clear(&self) {
        self.template.clear();
        self.dict.clear();
    }
}

impl Dealloc for Function {
    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}

// -- calls -------------------------------------------------------------------------------------------------------

/// The fields that a call needs. They never change, so a call needs no section.
///
/// # Safety
/// A live function.
#[inline(always)]
unsafe fn fields<'a>(function: *mut ffi::PyObject) -> &'a Function {
    // SAFETY: the caller's contract, and that of `Native`.
    unsafe { &*function.cast::<u8>().add(Function::offset()).cast::<Function>() }
}

/// Writes the functions that the interpreter calls (`vectorcallfunc`), one for each calling convention of C. A row says
/// how many arguments there are with the receiver, and makes the call.
macro_rules! conventions {
    ($($name:ident($function:ident, $values:ident, $count:ident, $names:ident) if $valid:expr => $call:expr;)*) => {$(
        unsafe extern "C" fn $name(
            function: *mut ffi::PyObject,
            $values: *const *mut ffi::PyObject,
            count: usize,
            $names: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            let $count = count & !ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
            // SAFETY: the interpreter's call of a live function, with that many arguments. `define` has chosen this
            // convention by the flags of the definition, which also say which pointer the union has.
            unsafe {
                let it = fields(function);
                if $count == 0 || ffi::Py_TYPE(*$values) != it.class || !$valid {
                    return call_carefully(it, $values, count, $names);
                }
                let $function = &it.function;
                $call
            }
        }
    )*};
}

conventions! {
    call_fast(function, values, count, names) if true =>
        (function.PyCFunctionFastWithKeywords)(*values, values.add(1), count as isize - 1, names);
    call_one(function, values, count, names) if count == 2 && names.is_null() =>
        (function.PyCFunction)(*values, *values.add(1));
    call_none(function, values, count, names) if count == 1 && names.is_null() =>
        (function.PyCFunction)(*values, null_mut());
}

/// The call of a receiver of a subclass, and of one with wrong arguments.
///
/// # Safety
/// The arguments of a running vectorcall.
#[cold]
#[inline(never)]
unsafe extern "C" fn call_carefully(
    it: &Function,
    values: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let given = count & !ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
    let flags = it.definition.map_or(0, |definition| definition.flags);
    // SAFETY: as in `conventions`.
    unsafe {
        if given == 0 || ffi::PyType_IsSubtype(ffi::Py_TYPE(*values), it.class) == 0 {
            return refuse(it, values, count, names);
        }
        let has_names = !names.is_null() && ffi::PyTuple_GET_SIZE(names) > 0;
        if flags & ffi::METH_FASTCALL != 0 {
            (it.function.PyCFunctionFastWithKeywords)(*values, values.add(1), given as isize - 1, names)
        } else if flags & ffi::METH_O != 0 && given == 2 && !has_names {
            (it.function.PyCFunction)(*values, *values.add(1))
        } else if flags & ffi::METH_NOARGS != 0 && given == 1 && !has_names {
            (it.function.PyCFunction)(*values, null_mut())
        } else {
            refuse(it, values, count, names)
        }
    }
}

/// Raises what CPython's own method raises for these arguments, or a function of Python if the receiver is right.
///
/// # Safety
/// The arguments of a running vectorcall.
unsafe fn refuse(
    it: &Function,
    values: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let Some(Definition { name, function, flags, .. }) = it.definition else { return null_mut() };
    let mut definition =
        ffi::PyMethodDef { ml_name: name.as_ptr(), ml_meth: function, ml_flags: flags, ml_doc: c"".as_ptr() };
    // SAFETY: the method lives no longer than its definition. The arguments are those of the caller.
    guard(|| unsafe {
        let given = count & !ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
        if given > 0 && ffi::PyType_IsSubtype(ffi::Py_TYPE(*values), it.class) != 0 {
            let (class, receiver) = (Borrowed::from_ptr(it.class.cast()), Borrowed::from_ptr(*values));
            let arguments = Arguments::new(values.add(1), given as isize - 1, names);
            let Raised = refused(it.about.qualified_name.text().unwrap_or_default(), "takes other arguments");
            let takes = reword(class, receiver, arguments);
            if takes && flags & ffi::METH_O != 0 && given == 1 && ffi::PyTuple_GET_SIZE(names) == 1 {
                // The only argument, by its name.
                clear_error();
                return (function.PyCFunction)(*values, *values.add(1));
            }
            return null_mut();
        }
        match Ref::from_owned(ffi::PyDescr_NewMethod(it.class, &mut definition)) {
            Some(method) => ffi::PyObject_Vectorcall(method.as_ptr(), values, count, names),
            None => null_mut(),
        }
    })
}

/// Passes a call on to the inner callable.
unsafe extern "C" fn call_inner(
    function: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter's call of a live function, whose inner callable lives as long.
    unsafe { ffi::PyObject_Vectorcall(fields(function).inner.as_ptr(), values, count, names) }
}

// -- what programs look at ---------------------------------------------------------------------------------------

impl Function {
    /// An attribute of the Python function that has the same parameters.
    pub(super) fn of_template(this: This<'_, Function>, attribute: &str) -> Result<Ref, Raised> {
        let name = interned(attribute)?;
        if let Some(template) = this.template.get() {
            return template.getattr(&name);
        }
        let template = match asyncios(&this) {
            Some(template) => template,
            None => this.about.template()?,
        };
        let value = template.getattr(&name);
        this.template.set(Some(template));
        this.track();
        value
    }
}

/// A Python function with the parameters of asyncio's method in whose place this one is, if it is one of these.
fn asyncios(this: &Function) -> Option<Ref> {
    if this.class.is_null() {
        return None;
    }
    // SAFETY: the class of the receivers lives as long as its methods.
    let class = unsafe { Borrowed::from_ptr(this.class.cast()) };
    let made = support(class.py(), "asyncios_parameters")
        .map_err(Raised::from)
        .and_then(|function| Ref::from(function).call(&[class, this.about.name.borrow()]));
    // It fails while the package is imported: its Python code is not there yet.
    unless_raised(made).filter(|template| !template.is_none())
}

impl About {
    /// Makes a Python function of this name, with these parameters, that does nothing.
    fn template(&self) -> Result<Ref, Raised> {
        let keyword = if self.is_coroutine { "async def" } else { "def" };
        let name = self.name.text().unwrap_or_default();
        let source = format!("{keyword} {name}({}): ...", self.parameters);
        let source = CString::new(source).unwrap_or_default();
        // SAFETY: C strings and live objects; each call returns an owned reference or null with an error set.
        unsafe {
            let owned = |object| Ref::from_owned(object).ok_or(Raised);
            let code =
                owned(ffi::Py_CompileString(source.as_ptr(), c"<wakeloop>".as_ptr(), ffi::Py_file_input))?;
            let globals = owned(ffi::PyDict_New())?;
            let key = interned("__name__")?;
            status(ffi::PyDict_SetItem(globals.as_ptr(), key.as_ptr(), self.module.as_ptr()))?;
            owned(ffi::PyEval_EvalCode(code.as_ptr(), globals.as_ptr(), globals.as_ptr()))?;
            dict_item(globals.as_ptr(), &self.name)
                .ok_or_else(|| Exception::SystemError.raise("no function was made"))
        }
    }
}

/// Is `found` the method of `receiver` whose C function has this [address](Method::address)?
pub(crate) fn is_method(found: &Ref, receiver: &Ref, address: usize) -> bool {
    // SAFETY: a live object, of which the parts are read if it is a bound method. They live as long.
    unsafe {
        if ffi::Py_TYPE(found.as_ptr()) != &raw mut PyMethod_Type
            || PyMethod_Self(found.as_ptr()) != receiver.as_ptr()
        {
            return false;
        }
        let function = PyMethod_Function(found.as_ptr());
        ffi::Py_TYPE(function) == Function::class().as_ptr()
            && fields(function).definition.is_some_and(|it| it.address() == address)
    }
}

// -- how they are made -------------------------------------------------------------------------------------------

/// Puts the methods of a table into a class.
pub(super) fn define(class: &Bound<'_, PyType>, table: impl IntoIterator<Item = Definition>) -> PyResult<()> {
    let home = Home::of(class)?;
    for definition in table {
        let vectorcall: ffi::vectorcallfunc = match definition.flags {
            flags if flags & ffi::METH_NOARGS != 0 => call_none,
            flags if flags & ffi::METH_O != 0 => call_one,
            _ => call_fast,
        };
        let name = interned(definition.name.to_str().unwrap_or_default())?;
        let (parameters, text) = described(&definition);
        let about = About {
            qualified_name: home.qualified(&name)?,
            module: home.module.clone_ref(),
            text: string(text)?,
            name: name.clone_ref(),
            parameters,
            is_coroutine: definition.is_coroutine,
        };
        put(class, &name, &create(vectorcall, class.as_type_ptr(), Some(definition), None, about)?)?;
    }
    Ok(())
}

/// Says that these functions of a class, which pyo3 or a slot of the type has made, return coroutines.
pub(crate) fn are_coroutines(class: &Bound<'_, PyType>, names: &[&str]) -> PyResult<()> {
    let home = Home::of(class)?;
    for name in names {
        let name = interned(name)?;
        let found = Ref::from(class.clone().into_any()).getattr(&name)?;
        // A static method was found as the function itself.
        let is_static = found.type_name() == c"builtin_function_or_method";
        let function = around(&found, home.qualified(&name)?, home.module.clone_ref())?;
        let function = if is_static {
            // SAFETY: a live object; an owned reference or null with an error.
            unsafe { Ref::from_owned(ffi::PyStaticMethod_New(function.as_ptr())) }.ok_or(Raised)?
        } else {
            function
        };
        put(class, &name, &function)?;
    }
    Ok(())
}

/// A function of a module that returns a coroutine, around the one that pyo3 has made.
pub(crate) fn coroutine_function<'py>(inner: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = inner.py();
    let inner = Ref::from(inner);
    let of_inner = |name| inner.getattr(&interned(name)?);
    Ok(around(&inner, of_inner("__qualname__")?, of_inner("__module__")?)?.bind(py))
}

fn around(inner: &Ref, qualified_name: Ref, module: Ref) -> Result<Ref, Raised> {
    let of_inner = |name| inner.getattr(&interned(name)?);
    let signature = of_inner("__text_signature__")?;
    let parameters = signature.text().unwrap_or("(*args, **kwargs)").replace("$self", "self");
    let parameters = parameters.trim_start_matches('(').trim_end_matches(')').to_owned();
    let about = About {
        name: of_inner("__name__")?,
        qualified_name,
        module,
        text: of_inner("__doc__")?,
        parameters,
        is_coroutine: true,
    };
    create(call_inner, null_mut(), None, Some(inner.clone_ref()), about)
}

fn create(
    vectorcall: ffi::vectorcallfunc,
    class: *mut ffi::PyTypeObject,
    definition: Option<Definition>,
    inner: Option<Ref>,
    about: About,
) -> Result<Ref, Raised> {
    let (template, dict, weaklist) = (Slot::empty(), Slot::empty(), WeakList::new());
    let inner = Slot::new(inner);
    let function = definition.map_or(ffi::PyMethodDef::zeroed().ml_meth, |it| it.function);
    let function = native::create(Function {
        vectorcall,
        class,
        function,
        definition,
        inner,
        about,
        template,
        dict,
        weaklist,
    })?;
    // Each call of a method counts it, and there are no more of them than methods.
    never_count(&function);
    Ok(function)
}

/// The parameters and the text, from a text that may begin with the call: `name(parameters)`, an empty line. Without a
/// call, the calling convention tells the parameters.
fn described(definition: &Definition) -> (String, &'static str) {
    let name = definition.name.to_str().unwrap_or_default();
    let doc = definition.doc.to_str().unwrap_or_default();
    let call = doc.strip_prefix(name).and_then(|rest| rest.strip_prefix('('));
    match call.and_then(|rest| rest.split_once(")\n\n")) {
        Some(("", text)) => ("self".to_owned(), text),
        Some((parameters, text)) => (format!("self, {parameters}"), text),
        None if definition.flags & ffi::METH_NOARGS != 0 => ("self".to_owned(), doc),
        None if definition.flags & ffi::METH_O != 0 => ("self, object, /".to_owned(), doc),
        None => ("self, /, *args, **kwargs".to_owned(), doc),
    }
}

/// Where the methods of a class are at home.
struct Home {
    class: Ref,
    module: Ref,
}

impl Home {
    fn of(class: &Bound<'_, PyType>) -> Result<Home, Raised> {
        let class = Ref::from(class.clone().into_any());
        let attribute = |name| class.getattr(&interned(name)?);
        Ok(Home { module: attribute("__module__")?, class: attribute("__qualname__")? })
    }

    fn qualified(&self, name: &Ref) -> Result<Ref, Raised> {
        string(&format!("{}.{}", self.class.text().unwrap_or_default(), name.text().unwrap_or_default()))
    }
}

/// Puts a function into a class. If a native function is in the type's slot of that name, it stays there: `setattr` would
/// have the interpreter call this function in its place.
fn put(class: &Bound<'_, PyType>, name: &Ref, function: &Ref) -> Result<(), Raised> {
    let kind = class.as_type_ptr();
    let may_have_slot = name.text().is_some_and(|name| name.starts_with("__"));
    // SAFETY: a live heap type has a dict, which lives as long. The type's caches are told of the change.
    unsafe {
        if !may_have_slot || ffi::PyObject_HasAttr(kind.cast(), name.as_ptr()) == 0 {
            return status(ffi::PyObject_SetAttr(kind.cast(), name.as_ptr(), function.as_ptr()));
        }
        status(ffi::PyDict_SetItem((*kind).tp_dict, name.as_ptr(), function.as_ptr()))?;
        ffi::PyType_Modified(kind);
    }
    Ok(())
}

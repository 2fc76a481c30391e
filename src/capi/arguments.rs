//! The arguments of a method that takes any number of them (`METH_FASTCALL | METH_KEYWORDS`).
//!
//! A method that refuses its arguments says so in the interpreter's words. It finds them in [`reword`], which costs the
//! other calls nothing: it is called where a method has failed.

use std::cell::RefCell;
use std::ffi::CStr;
use std::ptr::null_mut;

use pyo3::ffi;

use super::error::{Raised, raise, take_exception};
use super::exceptions::Exception;
use super::fallible::string;
use super::imports::{imports, support};
use super::object::{Borrowed, Ref};

thread_local! {
    /// The name of a method that has refused its arguments, until [`reword`] takes it.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Positional and keyword arguments, borrowed for the time of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    /// The positional values, and behind them one per name.
    values: *const Borrowed<'a>,
    positional: usize,
    /// A tuple of strings, or nothing.
    names: Option<Borrowed<'a>>,
}

impl<'a> Arguments<'a> {
    /// No arguments at all.
    pub(crate) const NONE: Arguments<'static> =
        Arguments { values: std::ptr::dangling(), positional: 0, names: None };

    /// # Safety
    /// The three values are those of a running fastcall with keywords.
    #[inline(always)]
    pub(crate) unsafe fn new(
        values: *const *mut ffi::PyObject,
        positional: ffi::Py_ssize_t,
        names: *mut ffi::PyObject,
    ) -> Arguments<'a> {
        // SAFETY: the caller's contract. `Borrowed` is transparent over a pointer that is not null.
        let names = unsafe { Borrowed::from_nullable(names) };
        Arguments { values: values.cast(), positional: positional as usize, names }
    }

    /// Positional arguments alone.
    pub(crate) fn positional(values: &'a [Borrowed<'a>]) -> Arguments<'a> {
        Arguments { values: values.as_ptr(), positional: values.len(), names: None }
    }

    /// How many positional arguments there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.positional
    }

    /// All values: the positional ones, and behind them one per keyword name.
    #[inline(always)]
    pub(crate) fn values(&self) -> &'a [Borrowed<'a>] {
        // SAFETY: CPython passes that many values, which live as long as the call (see `new`).
        unsafe { std::slice::from_raw_parts(self.values, self.positional + self.keywords()) }
    }

    /// The positional arguments from `first` on.
    #[inline(always)]
    pub(crate) fn rest(&self, first: usize) -> &'a [Borrowed<'a>] {
        // SAFETY: CPython passes that many values, which live as long as the call (see `new`).
        let all = unsafe { std::slice::from_raw_parts(self.values, self.positional) };
        all.get(first..).unwrap_or_default()
    }

    /// The positional argument `index`, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<Borrowed<'a>> {
        self.rest(0).get(index).copied()
    }

    /// How many keyword arguments there are.
    #[inline(always)]
    pub(crate) fn keywords(&self) -> usize {
        // SAFETY: the names are a tuple.
        self.names.map_or(0, |names| unsafe { ffi::PyTuple_GET_SIZE(names.as_ptr()) as usize })
    }

    /// The tuple of keyword names, if there are any.
    #[inline(always)]
    pub(crate) fn names(&self) -> Option<Borrowed<'a>> {
        self.names
    }

    /// The keyword arguments, names first.
    #[inline(always)]
    pub(crate) fn named(&self) -> impl Iterator<Item = (Borrowed<'a>, Borrowed<'a>)> + use<'a> {
        let (names, values) = (self.names, &self.values()[self.positional..]);
        values.iter().enumerate().filter_map(move |(index, value)| {
            // SAFETY: the tuple is as long as there are values behind the positional ones, and lives as long as the
            // call.
            let name = unsafe {
                Borrowed::from_ptr(ffi::PyTuple_GET_ITEM(names?.as_ptr(), index as ffi::Py_ssize_t))
            };
            Some((name, *value))
        })
    }

    /// The value of `context`, the only keyword of `call_soon` and similar methods. There is none if it is absent or
    /// Python's `None`.
    #[inline(always)]
    pub(crate) fn context(&self, function: &str) -> Result<Option<Borrowed<'a>>, Raised> {
        if self.names.is_none() {
            return Ok(None);
        }
        self.named_context(function)
    }

    /// Takes `self` by value, as `bind_names` does: the arguments of a call stay in registers if no code takes their
    /// address.
    fn named_context(self, function: &str) -> Result<Option<Borrowed<'a>>, Raised> {
        let mut found = None;
        for (name, value) in self.named() {
            if !name.is(&imports().context) && name.text() != Some("context") {
                return Err(unexpected(function, &name));
            }
            found = Some(value);
        }
        Ok(found.filter(|value| !value.is_none()))
    }

    /// Fails with a TypeError like Python's unless there are at least `count` positional arguments.
    #[inline(always)]
    pub(crate) fn at_least(&self, count: usize, function: &str, first_missing: &str) -> Result<(), Raised> {
        if self.positional >= count {
            return Ok(());
        }
        let missing = count - self.positional;
        Err(refused(function, &format!("missing {missing} required positional argument: '{first_missing}'")))
    }

    /// The only argument of a function that has one parameter, positional or by name.
    #[inline(always)]
    pub(crate) fn one(&self, function: &str, parameter: &str) -> Result<Borrowed<'a>, Raised> {
        if let (&[value], None) = (self.rest(0), self.names) {
            return Ok(value);
        }
        self.bind(function, [parameter], []).map(|([value], [])| value)
    }

    /// Binds the arguments to the names of parameters, positional or by name: first those that are required, then those
    /// that may be missing.
    #[inline(always)]
    pub(crate) fn bind<const REQUIRED: usize, const OPTIONAL: usize>(
        &self,
        function: &str,
        required: [&str; REQUIRED],
        optional: [&str; OPTIONAL],
    ) -> Result<([Borrowed<'a>; REQUIRED], [Option<Borrowed<'a>>; OPTIONAL]), Raised> {
        let values = self.rest(0);
        if self.names.is_none()
            && (REQUIRED..=REQUIRED + OPTIONAL).contains(&values.len())
            && let Some((first, rest)) = values.split_first_chunk::<REQUIRED>()
        {
            return Ok((*first, std::array::from_fn(|index| rest.get(index).copied())));
        }
        let (mut found, mut more) = ([None; REQUIRED], [None; OPTIONAL]);
        self.bind_names(function, &required, &optional, &mut found, &mut more)?;
        // None of the required ones is missing now.
        Ok((found.map(|value| value.unwrap_or(Borrowed::none())), more))
    }

    fn bind_names(
        self,
        function: &str,
        required: &[&str],
        optional: &[&str],
        found: &mut [Option<Borrowed<'a>>],
        more: &mut [Option<Borrowed<'a>>],
    ) -> Result<(), Raised> {
        let parameters = required.len() + optional.len();
        if self.positional > parameters {
            let given = self.positional;
            let message = format!("takes {parameters} positional arguments but {given} were given");
            return Err(refused(function, &message));
        }
        let mut places: Vec<&mut Option<Borrowed<'a>>> = found.iter_mut().chain(more.iter_mut()).collect();
        for (place, value) in places.iter_mut().zip(self.rest(0)) {
            **place = Some(*value);
        }
        for (name, value) in self.named() {
            let Some(text) = name.text() else {
                // The name has surrogates, and so no parameter has this name.
                return Err(unexpected(function, &name));
            };
            let Some(place) = required.iter().chain(optional).position(|parameter| *parameter == text) else {
                return Err(unexpected(function, &name));
            };
            if places[place].replace(value).is_some() {
                return Err(refused(function, &format!("got multiple values for argument '{text}'")));
            }
        }
        match required.iter().zip(&places).find(|(_, value)| value.is_none()) {
            Some((parameter, _)) => {
                Err(refused(function, &format!("missing 1 required positional argument: '{parameter}'")))
            }
            None => Ok(()),
        }
    }
}

/// The error for a keyword that the function does not have.
#[cold]
fn unexpected(function: &str, name: &Ref) -> Raised {
    match name.text() {
        Some(text) => refused(function, &format!("got an unexpected keyword argument '{text}'")),
        None => refused(function, "got an unexpected keyword argument"),
    }
}

/// Raises TypeError for wrong arguments, and notes the method for [`reword`].
#[cold]
pub(crate) fn refused(function: &str, message: &str) -> Raised {
    REFUSED.set(Some(function.rsplit('.').next().unwrap_or(function).to_owned()));
    Exception::TypeError.raise(&format!("{function}() {message}"))
}

/// Replaces the error of a method that has just refused these arguments by the one that the interpreter raises for the
/// function of Python in whose place the method is: it has asyncio's qualified name, counts all that is missing, and
/// depends on the version. Leaves any other error as it is. Returns whether the function of Python takes the arguments.
#[cold]
#[inline(never)]
pub(super) fn reword(class: Borrowed<'_>, receiver: Borrowed<'_>, arguments: Arguments<'_>) -> bool {
    let Some(name) = REFUSED.take() else { return false };
    if !Exception::TypeError.is_set() {
        return false;
    }
    let error = take_exception();
    let takes = || -> Result<bool, Raised> {
        let name = string(&name)?;
        let stand_in = Ref::from(support(class.py(), "stand_in")?).call(&[class, name.borrow()])?;
        if stand_in.is_none() {
            return Ok(false);
        }
        stand_in.pass_on(&[receiver], arguments).map(|_| true)
    };
    match takes() {
        Err(Raised) if Exception::TypeError.is_set() => false,
        // The function of Python takes these arguments, or could not be called.
        outcome => {
            let takes = outcome.unwrap_or_else(|raised| {
                drop(raised.take());
                false
            });
            let Raised = raise(error);
            takes
        }
    }
}

/// The arguments of an `__init__`, as `PyArg_ParseTupleAndKeywords` finds them; `None` for one that is left out.
///
/// # Safety
/// The format has only objects, one per name.
pub(crate) unsafe fn parse_init<const N: usize>(
    arguments: Borrowed<'_>,
    keywords: Option<Borrowed<'_>>,
    format: &CStr,
    names: [&CStr; N],
) -> Result<[Option<Ref>; N], Raised> {
    const { assert!(N <= 4) };
    let mut ended = [null_mut(); 5];
    for (place, name) in ended.iter_mut().zip(names) {
        *place = name.as_ptr().cast_mut();
    }
    let mut values = [null_mut::<ffi::PyObject>(); 4];
    let [first, second, third, fourth] = &mut values;
    // SAFETY: the format asks for at most four objects. The names end with null. The parser stores borrowed references,
    // which the arguments keep alive, and leaves null where there is none.
    unsafe {
        let parsed = ffi::PyArg_ParseTupleAndKeywords(
            arguments.as_ptr(),
            keywords.map_or(null_mut(), |keywords| keywords.as_ptr()),
            format.as_ptr(),
            ended.as_mut_ptr().cast(),
            &raw mut *first,
            &raw mut *second,
            &raw mut *third,
            &raw mut *fourth,
        );
        if parsed == 0 {
            Err(Raised)
        } else {
            Ok(std::array::from_fn(|index| Ref::from_nullable(values[index])))
        }
    }
}

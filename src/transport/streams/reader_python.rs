//! The Python class of the native StreamReader: its methods, and asyncio's attributes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::call::{Call, CallKind};
use super::classes::{inherited, plain_reader};
use super::long_read;
use super::reader::{self, Reader};
use super::store::Store;
use crate::capi::arguments::parse_init;
use crate::capi::buffer::Buffer;
use crate::capi::error::exception;
use crate::capi::fallible::collected;
use crate::capi::imports::support;
use crate::capi::inspect::boolean;
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::{Arguments, Borrowed, Fallible, Raised, Ref, This};
use crate::compat::version::READUNTIL_TAKES_TUPLES;
use crate::transport::attributes::{flag_attribute, slot_attribute};

/// asyncio's default limit.
const LIMIT: usize = 64 * 1024;

/// Calls asyncio's method of this name.
fn pass_on(this: This<'_, Reader>, name: &str, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    inherited(|classes| &classes.asyncio_reader, name, &this.object(), arguments)
}

/// A reading method. For a plain reader, `native` returns the kind of the call, or `None` for unusual arguments.
/// Otherwise asyncio's method is called.
#[inline(always)]
fn reading<'a>(
    this: This<'a, Reader>,
    arguments: Arguments<'a>,
    name: &'static str,
    native: impl FnOnce() -> Result<Option<CallKind>, Raised>,
) -> Result<Ref, Raised> {
    if plain_reader(&this.object()).is_some()
        && let Some(kind) = native()?
    {
        return Call::create(&this.object(), kind);
    }
    pass_on(this, name, arguments)
}

fn read(this: This<'_, Reader>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    reading(this, arguments, "read", || {
        let ([], [size]) = arguments.bind("StreamReader.read", [], ["n"])?;
        let size = size.map_or(Some(-1), |size| size.exact_int());
        Ok(size
            .map(|size| if size < 0 { CallKind::ReadAll(Vec::new()) } else { CallKind::Read(size as usize) }))
    })
}

fn readexactly(this: This<'_, Reader>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    reading(this, arguments, "readexactly", || {
        Ok(arguments.one("StreamReader.readexactly", "n")?.exact_int().map(CallKind::Exactly))
    })
}

fn readline(this: This<'_, Reader>) -> Result<Ref, Raised> {
    reading(this, Arguments::NONE, "readline", || Ok(Some(CallKind::Line)))
}

fn readuntil(this: This<'_, Reader>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    reading(this, arguments, "readuntil", || {
        let ([], [separator]) = arguments.bind("StreamReader.readuntil", [], ["separator"])?;
        Ok(separator.map_or(Ok(Some(Vec::new())), separators)?.map(CallKind::Until))
    })
}

/// A separator, or a tuple of separators, as a list with the shortest first. `None` if asyncio's code has to raise an
/// error.
fn separators(given: Borrowed<'_>) -> Result<Option<Vec<Ref>>, Raised> {
    let items = given.tuple_items().filter(|_| READUNTIL_TAKES_TUPLES && given.is_exact_tuple());
    let mut list = collected(items.unwrap_or(&[given]).iter().map(|item| Ok(item.clone_ref())))?;
    let length = |item: &Ref| item.exact_bytes().map_or(0, <[u8]>::len);
    if list.is_empty() || list.iter().any(|item| length(item) == 0) {
        return Ok(None);
    }
    // In place, without memory. Which of two separators of one length is tried first makes no difference.
    list.sort_unstable_by_key(length);
    Ok(Some(list))
}

/// `__anext__`.
fn next(this: This<'_, Reader>) -> Result<Ref, Raised> {
    reading(this, Arguments::NONE, "__anext__", || Ok(Some(CallKind::Next)))
}

fn feed_data(this: This<'_, Reader>, data: Borrowed<'_>) -> Result<(), Raised> {
    match plain_reader(&this.object()).filter(|reader| reader.is_open()) {
        Some(reader) if data.exact_bytes().is_some() => push(reader, data.exact_bytes().unwrap_or_default()),
        Some(reader) if data.is_bytearray() || data.is_memoryview() => {
            let view = Buffer::readable(&data)?;
            push(reader, view.as_slice())
        }
        _ => pass_on(this, "feed_data", Arguments::positional(&[data])).map(drop),
    }
}

fn push(reader: &Reader, data: &[u8]) -> Result<(), Raised> {
    if data.is_empty() {
        return Ok(());
    }
    reader.push(data, None)?;
    long_read::follow(reader);
    Ok(())
}

fn at_eof(this: This<'_, Reader>) -> Result<Ref, Raised> {
    if !this.custom_buffer.is_empty() {
        return pass_on(this, "at_eof", Arguments::NONE);
    }
    Ok(boolean(this.eof.get() && this.store().len() == 0))
}

/// The same text as asyncio's `repr`. It does not turn the store into a bytearray, as reading `_buffer` would.
fn repr(this: This<'_, Reader>) -> PyResult<String> {
    let py = this.py();
    let mut text = String::from("<StreamReader");
    let size = match this.custom_buffer.get() {
        Some(shared) => shared.bind(py).len()?,
        None => this.store().len(),
    };
    if size > 0 {
        text.push_str(&format!(" {size} bytes"));
    }
    if this.eof.get() {
        text.push_str(" eof");
    }
    let limit = this.limit.get().unwrap_or_else(Ref::none);
    if limit.bind(py).ne(Fallible(LIMIT))? {
        text.push_str(&format!(" limit={}", limit.bind(py).str()?));
    }
    let slots = [("waiter", &this.waiter), ("exception", &this.exception), ("transport", &this.transport)];
    for (name, slot) in slots {
        if let Some(value) = slot.get() {
            text.push_str(&format!(" {name}={}", value.bind(py).repr()?));
        }
    }
    if this.paused.get() {
        text.push_str(" paused");
    }
    Ok(text + ">")
}

/// `__init__(limit=65536, loop=None)`.
fn init(
    this: This<'_, Reader>,
    arguments: Borrowed<'_>,
    keywords: Option<Borrowed<'_>>,
) -> Result<(), Raised> {
    // SAFETY: two objects, two names.
    let [limit, event_loop] =
        unsafe { parse_init(arguments, keywords, c"|OO:StreamReader", [c"limit", c"loop"])? };
    Ok(fill(this, limit, event_loop)?)
}

fn fill(this: This<'_, Reader>, limit: Option<Ref>, event_loop: Option<Ref>) -> PyResult<()> {
    let py = this.py();
    let limit = match limit {
        Some(limit) => limit,
        None => Ref::from(Fallible(LIMIT).into_pyobject(py)?.into_any()),
    };
    if limit.bind(py).le(0)? {
        return Err(exception::<PyValueError>("Limit cannot be <= 0"));
    }
    let event_loop = match event_loop.filter(|given| !given.is_none()) {
        Some(given) => given,
        None => Ref::from(support(py, "default_loop")?.call0()?),
    };
    let debug = event_loop.bind(py).call_method0(Fallible("get_debug"))?.is_truthy()?;
    let stack = if debug { Some(Ref::from(support(py, "creation_stack")?.call0()?)) } else { None };
    set_limit(&this, limit);
    this.event_loop.set(Some(event_loop));
    this.source_traceback.set(stack);
    Ok(())
}

/// Sets the limit. If it is not exactly an int, asyncio's methods do all reads.
fn set_limit(reader: &Reader, limit: Ref) {
    let bytes = limit.exact_int();
    reader.custom_limit.set(bytes.is_none());
    reader.bytes.set(bytes.map_or(0, |bytes| bytes.max(0) as usize));
    reader.limit.set(Some(limit));
}

// -- attributes ----------------------------------------------------------------------------------------

/// The program may change what it gets, or what it sets, at any time. So a waiting read counts for itself again, each time
/// that data arrives.
fn buffer(this: This<'_, Reader>) -> Result<Ref, Raised> {
    long_read::end(&this);
    this.custom_buffer.get().map_or_else(|| this.store().share(), Ok)
}

fn set_buffer(this: This<'_, Reader>, value: Option<Borrowed<'_>>) {
    long_read::end(&this);
    let value = value.map_or_else(Ref::none, |value| value.to_owned());
    let (store, custom) = match Store::of(value) {
        Ok(store) => (store, None),
        Err(custom) => (Store::empty(), Some(custom)),
    };
    let replaced = std::mem::replace(this.store(), store);
    this.custom_buffer.set(custom);
    drop(replaced);
}

const ATTRIBUTES: &[Attribute<Reader>] = &[
    slot_attribute!(Reader, c"_loop", event_loop),
    Attribute::new(
        c"_transport",
        |this: This<'_, Reader>| this.transport.get(),
        |this: This<'_, Reader>, value: Option<Borrowed<'_>>| {
            long_read::end(&this);
            this.transport.set(value.filter(|value| !value.is_none()).map(|value| value.to_owned()));
        },
    ),
    slot_attribute!(Reader, c"_exception", exception),
    slot_attribute!(Reader, c"_waiter", waiter),
    slot_attribute!(Reader, c"_source_traceback", source_traceback),
    flag_attribute!(Reader, c"_eof", eof, |value| value.is_true()),
    flag_attribute!(Reader, c"_paused", paused, |value| value.is_true()),
    Attribute::new(
        c"_limit",
        |this: This<'_, Reader>| this.limit.get(),
        |this: This<'_, Reader>, value: Option<Borrowed<'_>>| {
            set_limit(&this, value.map_or_else(Ref::none, |value| value.to_owned()));
        },
    ),
    Attribute::new(c"_buffer", buffer, set_buffer),
    Attribute::dict(),
];

/// The methods of the native class. They are added to the Python subclass too; see `adopt_streams`.
pub(super) const METHODS: &[Method<Reader>] = &[
    Method::fast(c"read", read, c"read(n=-1)\n\nRead up to n bytes, or until the end if n is negative.")
        .coroutine(),
    Method::fast(
        c"readexactly",
        readexactly,
        c"readexactly(n)\n\nRead n bytes. Raises IncompleteReadError if the stream ends before that.",
    )
    .coroutine(),
    Method::no_args(c"readline", readline, c"readline()\n\nRead up to and including the next newline.")
        .coroutine(),
    Method::fast(
        c"readuntil",
        readuntil,
        c"readuntil(separator=b'\\n')\n\nRead up to and including the separator.",
    )
    .coroutine(),
    Method::one_arg(c"feed_data", feed_data, c"Add data to the stream."),
    Method::no_args(c"at_eof", at_eof, c"at_eof()\n\nTrue if the stream has ended and everything was read."),
    Method::no_args(
        c"exception",
        |this: This<'_, Reader>| this.exception.get(),
        c"exception()\n\nThe exception that was set with set_exception(), or None.",
    ),
];

/// Makes the native class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    reader::class()
        .methods(METHODS)
        .attributes(ATTRIBUTES)
        .slots(&[TypeSlot::init(init), TypeSlot::repr(repr), TypeSlot::anext(next)])
        .build(py)
}

//! The Python class of the native StreamWriter: its methods, and asyncio's attributes.

use pyo3::prelude::*;

use super::call::{Call, CallKind};
use super::classes::{CLASSES, inherited};
use super::writer::{self, Writer};
use super::writing;
use crate::capi::arguments::parse_init;
use crate::capi::imports::imports;
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::{Arguments, Borrowed, Raised, Ref, Slot, This};
use crate::transport::attributes::slot_attribute;
use crate::transport::stream::send;
use crate::transport::stream::state::Stream;

/// Calls asyncio's method of this name.
fn pass_on(this: This<'_, Writer>, name: &str, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    inherited(|classes| &classes.asyncio_writer, name, &this.object(), arguments)
}

/// Calls `body` with a plain writer's transport, if it is an unpatched stream transport of ours.
#[inline(always)]
fn with_plain_stream<R>(this: This<'_, Writer>, body: impl FnOnce(This<'_, Stream>) -> R) -> Option<R> {
    let transport = this.transport.get()?;
    let classes = CLASSES.get()?;
    classes.plain_writer(&this.object())?;
    writing::with_plain_stream(classes, &transport, body)
}

fn write(this: This<'_, Writer>, arguments: Arguments<'_>) -> Result<(), Raised> {
    let native = |stream: This<'_, Stream>| send::write(stream, arguments.one("write", "data")?);
    with_plain_stream(this, native).unwrap_or_else(|| pass_on(this, "write", arguments).map(drop))
}

fn writelines(this: This<'_, Writer>, arguments: Arguments<'_>) -> Result<(), Raised> {
    let native = |stream: This<'_, Stream>| send::writelines(stream, arguments.one("writelines", "data")?);
    with_plain_stream(this, native).unwrap_or_else(|| pass_on(this, "writelines", arguments).map(drop))
}

fn drain(this: This<'_, Writer>) -> Result<Ref, Raised> {
    match CLASSES.get().and_then(|classes| classes.plain_writer(&this.object()).map(|_| ())) {
        Some(_) => Call::create(&this.object(), CallKind::Drain),
        None => pass_on(this, "drain", Arguments::NONE),
    }
}

/// `__init__(transport, protocol, reader, loop)`.
fn init(
    this: This<'_, Writer>,
    arguments: Borrowed<'_>,
    keywords: Option<Borrowed<'_>>,
) -> Result<(), Raised> {
    let names = [c"transport", c"protocol", c"reader", c"loop"];
    // SAFETY: four objects, four names.
    let given = unsafe { parse_init(arguments, keywords, c"OOOO:StreamWriter", names)? };
    let slots: [&Slot; 4] = [&this.transport, &this.protocol, &this.reader, &this.event_loop];
    for (slot, value) in slots.into_iter().zip(given) {
        slot.set(value.filter(|value| !value.is_none()));
    }
    Ok(())
}

/// `_complete_fut`. asyncio creates this completed future for each writer and never uses it. Here it is created on
/// first access.
fn complete(this: This<'_, Writer>) -> Result<Ref, Raised> {
    if let Some(made) = this.complete.get() {
        return Ok(made);
    }
    let event_loop = this.event_loop.get().unwrap_or_else(Ref::none);
    let future = event_loop.call_method(&imports().create_future, &[])?;
    future.call_method(&imports().set_result, &[Ref::none().borrow()])?;
    this.complete.set(Some(future.clone_ref()));
    Ok(future)
}

/// The methods of the native class. They are added to the Python subclass too; see `adopt_streams`.
pub(super) const METHODS: &[Method<Writer>] = &[
    Method::fast(c"write", write, c"write(data)\n\nWrite data. Never blocks."),
    Method::fast(
        c"writelines",
        writelines,
        c"writelines(data)\n\nWrite several bytes-like objects, in order.",
    ),
    Method::no_args(c"drain", drain, c"drain()\n\nWait until the write buffer has room for more.")
        .coroutine(),
];

const ATTRIBUTES: &[Attribute<Writer>] = &[
    slot_attribute!(Writer, c"_transport", transport),
    slot_attribute!(Writer, c"_protocol", protocol),
    slot_attribute!(Writer, c"_reader", reader),
    slot_attribute!(Writer, c"_loop", event_loop),
    Attribute::read_only(c"_complete_fut", complete)
        .doc(c"A future of the loop that is done. asyncio makes one for each writer and does not use it."),
    Attribute::dict(),
];

/// Makes the native class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    writer::class().methods(METHODS).attributes(ATTRIBUTES).slots(&[TypeSlot::init(init)]).build(py)
}

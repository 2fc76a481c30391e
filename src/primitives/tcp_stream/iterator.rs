//! `async for`: lines or frames of a stream.

use pyo3::prelude::*;

use super::TcpStream;
use super::call::{Action, TcpStreamCall};
use super::outcome::ReadKind;
use crate::capi::class::ClassSpec;
use crate::capi::methods::{SelfSlot, TypeSlot};
use crate::capi::native::{self, Dealloc, native_class};
use crate::capi::{Raised, Ref, Slot, This};
use crate::framing::ReadRequest;

/// The iterator. It keeps the stream alive and has no state of its own.
struct Iterator {
    /// A TcpStream.
    stream: Slot,
    /// The longest frame, if it is frames.
    frames: Option<usize>,
}

// `make_type` builds the class, and `over` makes every instance by `native::create`.
native_class!(unsafe Iterator, { const COLLECTED: bool = false; });

impl Dealloc for Iterator {}

/// An iterator over frames of at most so many bytes, or over lines.
pub(super) fn over(stream: This<'_, TcpStream>, frames: Option<usize>) -> Result<Ref, Raised> {
    native::create(Iterator { stream: Slot::new(Some(stream.object().to_owned())), frames })
}

fn anext(this: This<'_, Iterator>) -> Result<Ref, Raised> {
    let stream = this.stream.get().ok_or(Raised)?;
    let stream = stream.downcast::<TcpStream>().ok_or(Raised)?;
    let action = match this.frames {
        None => Action::Read(ReadRequest::Line, ReadKind::NextLine),
        Some(most) => Action::Read(ReadRequest::Frame(most), ReadKind::NextFrame),
    };
    TcpStreamCall::create(stream, "TcpStream.__anext__", action)
}

/// Makes the class. Called once, by the module's initialisation.
pub(super) fn make_type(py: Python<'_>) -> PyResult<()> {
    ClassSpec::<Iterator>::new(c"wakeloop._core.TcpStreamIterator")
        .slots(&[TypeSlot::dealloc(), TypeSlot::itself(SelfSlot::AsyncIter), TypeSlot::anext(anext)])
        .build(py)
        .map(drop)
}
